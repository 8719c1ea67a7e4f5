# SPDX-License-Identifier: Apache-2.0
"""The PyTorch programs of the evaluation: ordinary programs that know nothing of Vitamin.

    workloads.py qwen-train resnet-train llama-generate   bytes of losses, gradients, weights, ...
    workloads.py --timed ...                               step times instead
    workloads.py --resident NAME       waits to be told a number of steps, and tells each one's time
    workloads.py --cause                                   why Qwen3 training differs from itself

Shapes are those of Qwen3-0.6B, ResNet-152 and Llama-3.1-8B; weights and data are random from fixed
seeds, so nothing is downloaded. `--size tiny --device cpu` runs the same code anywhere.

Determinism. Qwen3 training as usually written (deterministic flags that only warn, attention left
to PyTorch's choice) gives other bytes in every run on an H200. `--cause` runs it twice in each of
several forms and names the first gradients that differ; its result is kept in bench/results. The
training workload here therefore uses flash attention, whose backward pass has a deterministic form,
under `use_deterministic_algorithms(True)`, which raises instead of warning.
"""

import argparse
import contextlib
import hashlib
import json
import os
import pathlib
import sys
import time

os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
os.environ.setdefault("HF_HUB_OFFLINE", "1")

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel

BACKENDS = {
    "flash": [SDPBackend.FLASH_ATTENTION],
    "flash or math": [SDPBackend.FLASH_ATTENTION, SDPBackend.MATH],
    "efficient": [SDPBackend.EFFICIENT_ATTENTION],
    "cudnn": [SDPBackend.CUDNN_ATTENTION],
    "math": [SDPBackend.MATH],
}


def attention(name):
    return sdpa_kernel(BACKENDS[name]) if name in BACKENDS else contextlib.nullcontext()


def tell(record):
    print(json.dumps(record), flush=True)


def with_the_others(options):
    """Built; what several processes are to do at one time begins when the file is made."""
    if options.go is None:
        return
    if options.device.type == "cuda":
        torch.cuda.synchronize()
    tell({"ready": True})
    while not options.go.exists():
        time.sleep(0.0005)


def sha256(tensor):
    """Of the tensor's bytes."""
    raw = tensor.detach().contiguous().view(-1).view(torch.uint8).cpu().numpy()
    return hashlib.sha256(raw).hexdigest()


class Digest:
    """A digest of many large tensors, made on the device: each tensor's words as integers, times an
    odd number that depends on the place, summed modulo 2^64. Integer sums do not depend on their
    order, and nothing but 8 bytes a tensor leaves the device."""

    WORDS = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}

    def __init__(self, device):
        self.factors = torch.empty(0, dtype=torch.int64, device=device)

    def each(self, tensors):
        sums = []
        for tensor in tensors:
            words = tensor.detach().contiguous().view(-1)
            words = words.view(self.WORDS[words.element_size()]).to(torch.int64)
            if len(self.factors) < len(words):
                place = torch.arange(len(words), dtype=torch.int64, device=words.device)
                place.mul_(0x1E3779B97F4A7C15).add_(0x3F58476D1CE4E5B9)
                self.factors = place.bitwise_or_(1)
            sums.append((words * self.factors[: len(words)]).sum())
        return torch.stack(sums).cpu()

    def all(self, tensors):
        return sha256(self.each(tensors))


class Clock:
    """Wall time of each step behind a warm-up, the device idle at both ends.

    Virtual machines take the processor away for milliseconds at a time, so the sum of the steps
    says more about the neighbours than about the program. `quiet_ms` is the step of the 20th
    percentile: what a step takes when it is let alone.
    """

    def __init__(self, device):
        self.device = device

    def now(self):
        if self.device.type == "cuda":
            torch.cuda.synchronize()
        return time.perf_counter()

    def time(self, name, step, warm_up, steps):
        for i in range(warm_up):
            step(i)
        steps_ms = []
        for i in range(steps):
            begin = self.now()
            step(warm_up + i)
            steps_ms.append(1e3 * (self.now() - begin))
        tell({"name": name, "steps": steps, "seconds": sum(steps_ms) / 1e3,
              "quiet_ms": sorted(steps_ms)[len(steps_ms) // 5], "steps_ms": steps_ms})


def generator(seed):
    return torch.Generator().manual_seed(seed)


# ------------------------------------------------------------------------------------------ Qwen3


class QwenTraining:
    name = "qwen-train"
    steps = 20

    def __init__(self, options, attention_name="flash or math", fused=True):
        from transformers import Qwen3Config, Qwen3ForCausalLM
        tiny = options.size == "tiny"
        torch.manual_seed(0)
        config = Qwen3Config(
            hidden_size=64 if tiny else 1024, intermediate_size=128 if tiny else 3072,
            num_hidden_layers=2 if tiny else 28, num_attention_heads=4 if tiny else 16,
            num_key_value_heads=2 if tiny else 8, head_dim=16 if tiny else 128,
            vocab_size=512 if tiny else 151936, tie_word_embeddings=True, use_cache=False)
        self.attention = "math" if options.device.type == "cpu" else attention_name
        with torch.device(options.device):  # half a minute faster than on the CPU
            model = Qwen3ForCausalLM(config)
        self.model = model.to(torch.bfloat16).train()
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-5, fused=fused)
        shape = (2, 16) if tiny else (4, 1024)
        draw = generator(1)
        self.data = [torch.randint(0, config.vocab_size, shape, generator=draw).to(options.device)
                     for _ in range(4)]

    def step(self, i):
        batch = self.data[i % len(self.data)]
        self.optimizer.zero_grad(set_to_none=True)
        with attention(self.attention):
            loss = self.model(input_ids=batch, labels=batch).loss
            loss.backward()
        self.optimizer.step()
        return loss

    def parameters(self):
        return list(self.model.parameters())

    def gradients(self):
        return [p.grad for p in self.model.parameters()]


# ----------------------------------------------------------------------------------------- ResNet


class ResnetTraining:
    name = "resnet-train"
    steps = 10

    def __init__(self, options):
        import torchvision
        tiny = options.size == "tiny"
        torch.manual_seed(0)
        model = torchvision.models.resnet18() if tiny else torchvision.models.resnet152()
        self.device = options.device
        self.model = model.to(options.device).to(memory_format=torch.channels_last).train()
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.01, momentum=0.9)
        draw = generator(2)
        images, side = (2, 64) if tiny else (64, 224)
        self.images = torch.randn(images, 3, side, side, generator=draw).to(options.device).to(
            memory_format=torch.channels_last)
        self.labels = torch.randint(0, 1000, (images,), generator=draw).to(options.device)

    def step(self, _):
        self.optimizer.zero_grad(set_to_none=True)
        with torch.autocast(self.device.type, dtype=torch.bfloat16):
            loss = torch.nn.functional.cross_entropy(self.model(self.images), self.labels)
        loss.backward()
        self.optimizer.step()
        return loss

    def parameters(self):
        return list(self.model.parameters()) + list(self.model.buffers())

    def gradients(self):
        return [p.grad for p in self.model.parameters()]


def train(make, options):
    work = make(options)
    try:
        work.step(0)
    except RuntimeError as error:
        # Another version of PyTorch may lack the deterministic form of an operation that the model
        # uses. Native against native then shows whether it matters.
        if "deterministic" not in str(error):
            raise
        tell({"name": "note", "value": str(error).splitlines()[0][:300]})
        flags("warn")
    del work
    work = make(options)
    if options.timed:
        Clock(options.device).time(work.name, work.step, 4, options.steps or 2 * work.steps)
        return
    digest = Digest(options.device)
    with_the_others(options)
    for i in range(options.steps or work.steps):
        loss = work.step(i)
        tell({"name": f"{work.name} step {i} loss", "value": float(loss), "hash": sha256(loss)})
        tell({"name": f"{work.name} step {i} gradients", "hash": digest.all(work.gradients())})
        tell({"name": f"{work.name} step {i} weights", "hash": digest.all(work.parameters())})
    flat = lambda tensors: torch.cat([t.detach().reshape(-1).view(torch.uint8) for t in tensors])
    tell({"name": f"{work.name} final gradient bytes", "hash": sha256(flat(work.gradients()))})
    tell({"name": f"{work.name} final weight bytes", "hash": sha256(flat(work.parameters()))})


# ------------------------------------------------------------------------------------------ Llama


class LlamaGeneration:
    name = "llama-generate"
    tokens = 64

    def __init__(self, options):
        from transformers import LlamaConfig, LlamaForCausalLM
        tiny = options.size == "tiny"
        torch.manual_seed(0)
        config = LlamaConfig(
            hidden_size=64 if tiny else 4096, intermediate_size=128 if tiny else 14336,
            num_hidden_layers=2 if tiny else 32, num_attention_heads=4 if tiny else 32,
            num_key_value_heads=2 if tiny else 8, vocab_size=512 if tiny else 128256,
            max_position_embeddings=8192, rope_theta=500000.0)
        torch.set_default_dtype(torch.bfloat16)
        with torch.device(options.device):
            self.model = LlamaForCausalLM(config).eval()
        torch.set_default_dtype(torch.float32)
        self.prompt = torch.randint(0, config.vocab_size, (1, 32 if tiny else 512),
                                    generator=generator(3)).to(options.device)

    @torch.no_grad()
    def prefill(self):
        return self.model(input_ids=self.prompt, use_cache=True)

    @torch.no_grad()
    def run(self, tokens, each=lambda i, logits: None):
        """Prefill, then `tokens` greedy tokens, one at a time."""
        answer = self.prefill()
        each(0, answer.logits)
        chosen = []
        for i in range(tokens):
            token = answer.logits[:, -1:].argmax(-1)
            chosen.append(token)
            answer = self.model(input_ids=token, past_key_values=answer.past_key_values,
                                use_cache=True)
            each(i + 1, answer.logits)
        return torch.cat(chosen, 1)


def generate(options):
    work = LlamaGeneration(options)
    tokens = options.steps or work.tokens
    if options.timed:
        work.run(8)
        clock = Clock(options.device)
        clock.time(f"{work.name} prefill", lambda _: work.prefill(), 1, 10)
        clock.time(f"{work.name} {tokens // 4} tokens", lambda _: work.run(tokens // 4), 1, 8)
        return
    with_the_others(options)
    note = lambda i, logits: tell({"name": f"{work.name} logits {i}", "hash": sha256(logits)})
    chosen = work.run(tokens, note)
    tell({"name": f"{work.name} tokens", "value": chosen[0, :8].tolist(), "hash": sha256(chosen)})


GENERATED = 4  # tokens of a step of a resident generation


# ------------------------------------------------------------- why Qwen3 differs from itself


CAUSES = [  # what, deterministic flags (None, "warn", "raise"), attention, fused optimizer
    ("as usually written", "warn", "auto", True),
    ("no deterministic flags", None, "auto", True),
    ("flags that raise", "raise", "auto", True),
    ("cuDNN attention", "warn", "cudnn", True),
    ("memory-efficient attention", "warn", "efficient", True),
    ("flash attention, no flags", None, "flash", True),
    ("flash attention", "raise", "flash", True),
    ("math attention, no flags", None, "math", True),
    ("as usually written, optimizer not fused", "warn", "auto", False),
]


def flags(mode):
    torch.use_deterministic_algorithms(mode is not None, warn_only=mode == "warn")
    torch.backends.cudnn.deterministic = mode is not None
    torch.utils.deterministic.fill_uninitialized_memory = False


def traced_training(options, attention_name, fused, steps):
    """Digest of every parameter's gradient at every step."""
    work = QwenTraining(options, attention_name, fused)
    work.attention = attention_name  # also where there is no GPU
    digest = Digest(options.device)
    trace = []
    for i in range(steps):
        work.step(i)
        trace.append(digest.each(work.gradients()))
    names = [name for name, _ in work.model.named_parameters()]
    return names, trace


def cause(options):
    steps = options.steps or 5
    for what, mode, attention_name, fused in CAUSES:
        record = {"name": "cause", "form": what, "steps": steps}
        try:
            flags(mode)
            names, first = traced_training(options, attention_name, fused, steps)
            _, second = traced_training(options, attention_name, fused, steps)
            different = [(i, [n for n, a, b in zip(names, x, y) if a != b])
                         for i, (x, y) in enumerate(zip(first, second)) if not torch.equal(x, y)]
            record["equal"] = not different
            if different:
                step, gradients = different[0]
                record.update(first_step=step, gradients=len(gradients), of=len(names),
                              last_in_the_network=gradients[-6:])
        except (RuntimeError, ValueError, IndexError) as error:
            record["error"] = str(error).splitlines()[0][:200]
        tell(record)
        if options.device.type == "cuda":
            torch.cuda.empty_cache()


def resident(name, options):
    """Built and warm; then for each line of input, `N`, milliseconds of N steps, the device idle
    before the first and after each. A step of generation is a prefill and GENERATED tokens."""
    if name == "llama-generate":
        work = LlamaGeneration(options)
        step = lambda _: work.run(GENERATED)
    else:
        work = {"qwen-train": QwenTraining, "resnet-train": ResnetTraining}[name](options)
        step = work.step
    clock, count = Clock(options.device), 0
    for count in range(5):
        step(count)
    clock.now()
    tell({"name": name, "ready": True})
    for line in sys.stdin:
        steps_ms = []
        for _ in range(int(line)):
            count += 1
            begin = clock.now()
            step(count)
            steps_ms.append(1e3 * (clock.now() - begin))
        tell({"name": name, "steps_ms": steps_ms})


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("workloads", nargs="*",
                        help="qwen-train, resnet-train, llama-generate")
    parser.add_argument("--steps", type=int, default=0, help="not the workload's own number")
    parser.add_argument("--size", choices=["full", "tiny"], default="full")
    parser.add_argument("--device", type=torch.device, default=torch.device("cuda"))
    parser.add_argument("--timed", action="store_true")
    parser.add_argument("--resident", action="store_true")
    parser.add_argument("--go", type=pathlib.Path, help="a file to wait for before the first step")
    parser.add_argument("--cause", action="store_true")
    options = parser.parse_args()
    tell({"name": "versions", "torch": torch.__version__, "cuda": torch.version.cuda,
          "cudnn": torch.backends.cudnn.version()})
    torch.backends.cudnn.benchmark = False
    if options.cause:
        cause(options)
        return
    flags("raise")
    if options.resident:
        name, = options.workloads
        resident(name, options)
        return
    runs = {"qwen-train": lambda: train(QwenTraining, options),
            "resnet-train": lambda: train(ResnetTraining, options),
            "llama-generate": lambda: generate(options)}
    for name in options.workloads:
        if name not in runs:
            parser.error(f"there is no workload '{name}'")
    for name in options.workloads:
        runs[name]()
        if options.device.type == "cuda":
            torch.cuda.empty_cache()


if __name__ == "__main__":
    main()
