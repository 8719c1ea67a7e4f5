# SPDX-License-Identifier: Apache-2.0
"""What jobs run on: the demo's software device, or PyTorch on a GPU."""
import contextlib
import pathlib
import subprocess
import sys
import time
import types

HERE = pathlib.Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent)]

import harness  # noqa: E402

sys.path.append(str(harness.prefix() / "lib" / "vitamin" / "python"))
try:
    import vitamin_advice as advice
except ImportError:  # a build directory, or a tree without Vitamin
    import contextlib
    advice = types.SimpleNamespace(
        prefill=lambda **_: contextlib.nullcontext(), decode=lambda **_: contextlib.nullcontext(),
        expect=lambda *_, **__: False, iteration_end=lambda: False, DECODE=2)

BLOCK = 256  # tokens of keys and values that are handed over at once


def now():
    return time.monotonic()


# ------------------------------------------------------------- where there is no GPU: the demo


class DemoMachine:
    """Stands for the device: `run` is one demo program from its start to its end."""

    tiny = True

    @staticmethod
    def run(name, count):
        answer = subprocess.run([str(harness.prefix() / "bin" / f"demo-{name}"), str(count)],
                                capture_output=True, text=True, stdin=subprocess.DEVNULL)
        if answer.returncode:
            raise RuntimeError(f"demo-{name} ended with {answer.returncode}: {answer.stderr}")
        return answer.stdout.split("hash ")[1].split(",")[0]

    def synchronize(self):
        pass

    def trim(self):
        return {"most_mib": 0}


class DemoTraining:
    def __init__(self, machine):
        self.machine = machine

    def step(self):
        return self.machine.run("train", 3)

    def pause(self):
        pass

    def mark(self):
        return None


class DemoEngine:
    """Prefill and decode are demo programs; keys and values are a byte a token."""

    block_bytes = BLOCK

    def __init__(self, machine, slots, length, between):
        self.machine, self.slots, self.length, self.between = machine, slots, length, between
        self.cache = [bytearray(length) for _ in range(slots)]

    def prefill(self, tokens, due=None):
        self.machine.run("train", 1)
        self.cache[0][:tokens] = bytes([tokens % 256]) * tokens
        return tokens % 256

    def warm(self, tokens):
        """Nothing is made for a length."""

    def give(self, blocks, tokens):
        for index, block in enumerate(blocks):
            part = bytes(self.cache[0][index * BLOCK:min(tokens, (index + 1) * BLOCK)])
            self.between[block * BLOCK:block * BLOCK + len(part)] = part

    def take(self, blocks, tokens, slot):
        for index, block in enumerate(blocks):
            count = min(tokens - index * BLOCK, BLOCK)
            self.cache[slot][index * BLOCK:index * BLOCK + count] = \
                self.between[block * BLOCK:block * BLOCK + count]
        if self.cache[slot][:tokens] != bytes([tokens % 256]) * tokens:
            raise RuntimeError("what was handed over is not what the prefill wrote")

    def decode(self, rows, due=None):
        self.machine.run("serve", 1)
        return [0] * len(rows)


# ------------------------------------------------------------------------------ with PyTorch


class TorchMachine:
    def __init__(self, device, tiny, rank=0, world=1, link=None):
        import torch
        if device == "cuda" and torch.cuda.device_count() < world:
            raise RuntimeError(f"PyTorch finds {torch.cuda.device_count()} GPUs, not {world}")
        self.torch, self.device, self.tiny = torch, torch.device(device), tiny
        self.rank, self.world, self.link = rank, world, link
        torch.set_num_threads(1)  # those that are idle spin for a while
        if world > 1:
            import torch.distributed as distributed
            more = {}
            if device == "cuda":
                self.device = torch.device("cuda", rank)
                torch.cuda.set_device(self.device)
                more = {"device_id": self.device}
            distributed.init_process_group("nccl" if device == "cuda" else "gloo",
                                           init_method=f"file://{link}.store", rank=rank,
                                           world_size=world, **more)

    def synchronize(self):
        if self.device.type == "cuda":
            self.torch.cuda.synchronize()

    def trim(self):
        """Gives cached memory back for the job of the next window; MiB at the most, and kept."""
        if self.device.type != "cuda":
            return {"most_mib": 0}
        self.torch.cuda.synchronize()
        most = self.torch.cuda.max_memory_reserved() >> 20
        self.torch.cuda.empty_cache()
        return {"most_mib": most, "kept_mib": self.torch.cuda.memory_reserved() >> 20}


class TorchTraining:
    def __init__(self, machine, name):
        import training
        self.machine = machine
        self.work = training.make(name, machine.device, machine.tiny, machine.world)

    def step(self):
        return self.work.step()

    def pause(self):
        """Gradients are not kept from one window to the next."""
        self.work.optimizer.zero_grad(set_to_none=True)

    def mark(self):
        """Something to wait for: the end of the step that was just queued."""
        if self.machine.device.type != "cuda":
            return None
        event = self.machine.torch.cuda.Event(blocking=False)
        event.record()
        return event


class TorchEngine:
    def __init__(self, machine, name, slots, length, between=None, graphs=False):
        import decoder
        torch = self.torch = machine.torch
        self.machine = machine
        # Of decode steps, by how many rows: a graph, its inputs and what it answers.
        self.graphs = {} if graphs and machine.device.type == "cuda" else None
        shape = (decoder.TINY if machine.tiny else decoder.SHAPES)[name]
        self.model = decoder.Decoder(shape, machine.device, slots, length)
        self.slots, self.length = slots, length
        draw = torch.Generator().manual_seed(5)
        self.prompt = torch.randint(0, shape.vocabulary, (length,), generator=draw).to(
            machine.device)
        cache = self.model.cache
        block = (cache.shape[0], 2, cache.shape[3], BLOCK, cache.shape[5])
        self.block_bytes = 2 * int(torch.Size(block).numel())
        self.rows = None
        self.fastest = {}  # seconds of a step, by how many rows
        if between is not None:
            whole = between if machine.device.type == "cuda" else \
                torch.frombuffer(between, dtype=torch.bfloat16)
            self.blocks = whole[:len(whole) // (self.block_bytes // 2) * (self.block_bytes // 2)
                                ].view(-1, *block)

    def prefill(self, tokens, due=None):
        """The first token, which is due at that moment (None: at none)."""
        due_ms = 0 if due is None else max(0.1, 1e3 * (due - now()))
        with advice.prefill(deadline_ms=due_ms):
            return int(self.model.prefill(self.prompt[:tokens], 0))

    def warm(self, tokens):
        """A prefill that is no step to a policy."""
        int(self.model.prefill(self.prompt[:tokens], 0))

    def give(self, blocks, tokens):
        for index, block in enumerate(blocks):
            begin, end = index * BLOCK, min(tokens, (index + 1) * BLOCK)
            self.blocks[block][..., :end - begin, :].copy_(
                self.model.cache[:, :, 0, :, begin:end])
        self.machine.synchronize()

    def take(self, blocks, tokens, slot):
        """Behind the decodes that there were, and before the next."""
        for index, block in enumerate(blocks):
            begin, end = index * BLOCK, min(tokens, (index + 1) * BLOCK)
            self.model.cache[:, :, slot, :, begin:end].copy_(
                self.blocks[block][..., :end - begin, :])

    def decode(self, rows, due=None):
        """`rows`: (slot, position, token) of each sequence, whose tokens are due at that moment
        (None: a fifth later than the fastest such step would end). Waits for them."""
        slots = [slot for slot, _, _ in rows]
        if self.rows != slots or self.expected != [position for _, position, _ in rows]:
            tensor = lambda values: self.torch.tensor(values, device=self.machine.device)
            self.on_device = [tensor(list(column)) for column in zip(*rows)]
        slot, position, token = self.on_device
        usual_ms = 1e3 * self.fastest.get(len(rows), 0)
        begin = now()
        due_ms = 1.2 * usual_ms if due is None else max(0.1, 1e3 * (due - begin))
        with advice.decode(deadline_ms=due_ms, queued_ms=usual_ms):
            answer = self.step(token, slot, position)
            tokens = answer.tolist()
        self.fastest[len(rows)] = min(now() - begin, self.fastest.get(len(rows), 1e9))
        self.on_device[1] = position + 1
        self.on_device[2] = answer
        self.rows, self.expected = slots, [p + 1 for _, p, _ in rows]
        return tokens

    def step(self, token, slot, position):
        """The launches of a decode step, or the graph that has been captured of them."""
        if self.graphs is None:
            return self.model.decode(token, slot, position)
        if len(token) not in self.graphs:
            self.capture(len(token))
        graph, inputs, answer = self.graphs[len(token)]
        for kept, value in zip(inputs, (token, slot, position)):
            kept.copy_(value)
        graph.replay()
        return answer.clone()

    def capture(self, rows):
        torch = self.torch
        inputs = [torch.arange(rows, device=self.machine.device) for _ in range(3)]
        aside = torch.cuda.Stream()
        aside.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(aside):  # as PyTorch's documentation asks before a capture
            self.model.decode(*inputs)
        torch.cuda.current_stream().wait_stream(aside)
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        pool = next(iter(self.graphs.values()))[0].pool() if self.graphs else None
        with torch.cuda.graph(graph, pool=pool):
            answer = self.model.decode(*inputs)
        self.graphs[rows] = graph, inputs, answer
