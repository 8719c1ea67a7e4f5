# SPDX-License-Identifier: Apache-2.0
"""Jobs that tell bytes, for E9: training whose every step is hashed, and what libraries choose.

Both are ordinary PyTorch. Training is that of bench/workloads.py with deterministic flags; it is
built once and put back to its first state before each run."""

import ctypes
import json
import os
import pathlib
import tempfile
import types

os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")


class Training:
    def __init__(self, machine, name):
        import workloads
        self.torch, self.workloads = machine.torch, workloads
        make = {"qwen-train": workloads.QwenTraining,
                "resnet-train": workloads.ResnetTraining}[name]
        options = types.SimpleNamespace(size="tiny" if machine.tiny else "full",
                                        device=machine.device)
        workloads.flags("raise")
        self.work, self.note = make(options), None
        self.first = {k: v.clone() for k, v in self.work.model.state_dict().items()}
        self.digest = workloads.Digest(machine.device)
        try:
            self.work.step(0)
        except RuntimeError as error:  # as bench/workloads.py does
            if "deterministic" not in str(error):
                raise
            self.note = str(error).splitlines()[0][:200]
            workloads.flags("warn")
            self.work.step(0)

    def begin(self):
        self.work.optimizer.zero_grad(set_to_none=True)
        self.work.optimizer.state.clear()
        self.work.model.load_state_dict(self.first)

    def step(self, i):
        """Hashes of loss, gradients and weights."""
        loss = self.work.step(i)
        return [["loss", self.workloads.sha256(loss)],
                ["gradients", self.digest.all(self.work.gradients())],
                ["weights", self.digest.all(self.work.parameters())]]


class GreenContext:
    """A green context over `count` processors, made current in this thread."""

    def __init__(self, count):
        cuda = ctypes.CDLL("libcuda.so.1")

        def must(name, *arguments):
            status = getattr(cuda, name)(*arguments)
            if status:
                raise RuntimeError(f"{name} answers {status}")

        resource = ctypes.c_uint8 * 144  # CUdevResource: its type, then at 96 what it is
        whole, part, rest, groups = resource(), resource(), resource(), ctypes.c_uint(1)
        must("cuInit", 0)
        must("cuDeviceGetDevResource", 0, whole, 1)
        must("cuDevSmResourceSplitByCount", part, ctypes.byref(groups), whole, rest, 0, count)
        self.processors = int.from_bytes(bytes(part[96:100]), "little")
        self._description, self._green = ctypes.c_void_p(), ctypes.c_void_p()
        self.context = ctypes.c_void_p()
        must("cuDevResourceGenerateDesc", ctypes.byref(self._description), part, 1)
        must("cuGreenCtxCreate", ctypes.byref(self._green), self._description, 0, 1)
        must("cuCtxFromGreenCtx", ctypes.byref(self.context), self._green)
        must("cuCtxSetCurrent", self.context)


class Libraries:
    """Operations of cuBLAS, cuDNN, flash attention and PyTorch; of each the kernels that ran, with
    their grids, and a hash of the result."""

    def __init__(self, machine, green=""):
        import workloads
        self.torch, self.sha256 = machine.torch, workloads.sha256
        self.cuda, self.tiny = machine.device.type == "cuda", machine.tiny
        self.device, self.green = machine.device, None
        workloads.flags("warn")
        if self.cuda:
            self.torch.zeros(1, device=self.device)
        if green == "green":
            self.green = GreenContext(64)
        self.operations = dict(self.make())
        for run in self.operations.values():
            run()
        if green == "green-after":  # handles and workspaces are there by now
            self.green = GreenContext(64)

    def make(self):
        torch, size = self.torch, (lambda n: max(4, n // 64)) if self.tiny else (lambda n: n)
        functional = torch.nn.functional
        draw = torch.Generator().manual_seed(7)
        tensor = lambda *shape, dtype=torch.bfloat16: torch.randn(
            *map(size, shape), generator=draw).to(self.device, dtype)
        for m, k, n in ((16, 4096, 6144), (16, 14336, 4096), (512, 4096, 4096),
                        (4096, 1024, 3072), (1, 4096, 4096)):
            a, b = tensor(m, k), tensor(k, n)
            yield f"cuBLAS bf16 {m} x {k} x {n}", lambda a=a, b=b: a @ b
        a, b = tensor(1024, 4096, dtype=torch.float32), tensor(4096, 1024, dtype=torch.float32)
        yield "cuBLAS fp32 1024 x 4096 x 1024", lambda: a @ b
        q, k, v = (tensor(256, 16 * 64, 1024, 128) for _ in range(3)) if self.tiny else \
            (tensor(4, 16, 1024, 128) for _ in range(3))
        attention = functional.scaled_dot_product_attention
        yield "attention, causal", lambda: attention(q, k, v, is_causal=True)
        one, keys, values = tensor(4, 32, 64 if self.tiny else 1, 128), tensor(4, 32, 4096, 128), \
            tensor(4, 32, 4096, 128)
        yield "attention, one token", lambda: attention(one, keys, values)
        x = tensor(64, 256, 64 * 56, 64 * 56)[..., :56, :56].contiguous() if self.tiny else \
            tensor(64, 256, 56, 56)
        w = tensor(64, 256, 64 * 3, 64 * 3)[..., :3, :3].contiguous() if self.tiny else \
            tensor(64, 256, 3, 3)
        x = x.to(memory_format=torch.channels_last)
        yield "cuDNN convolution", lambda: functional.conv2d(x, w, padding=1)
        gradient = functional.conv2d(x, w, padding=1)
        yield "cuDNN gradient of the weights", lambda: torch.nn.grad.conv2d_weight(
            x, w.shape, gradient, padding=1)
        rows = tensor(4096, 4096)
        yield "sum of all", lambda: rows.float().sum()
        yield "sum of columns", lambda: rows.sum(0)
        yield "softmax", lambda: rows.softmax(-1)
        yield "layer norm", lambda: functional.layer_norm(rows, rows.shape[-1:])
        yield "cumulative sum", lambda: rows.cumsum(0)

    def each(self):
        """name -> {"hash", "kernels": [name, grid, block] or None}"""
        found = {}
        for name, run in self.operations.items():
            kernels, problem = None, ""
            if self.cuda:
                try:
                    result, kernels = self.profiled(run)
                except (RuntimeError, OSError, ValueError) as error:
                    problem = f"{type(error).__name__}: {str(error)[:120]}"
            if kernels is None:
                result = run()
            found[name] = {"hash": self.sha256(result), "kernels": kernels, "problem": problem}
        return {"operations": found, "part": self.green and self.green.processors,
                "processors": self.torch.cuda.get_device_properties(0).multi_processor_count
                if self.cuda else None}

    def profiled(self, run):
        torch = self.torch
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as trace:
            result = run()
            torch.cuda.synchronize()
        with tempfile.TemporaryDirectory() as directory:
            path = pathlib.Path(directory) / "trace.json"
            trace.export_chrome_trace(str(path))
            events = json.loads(path.read_text())["traceEvents"]
        kernels = sorted((e["ts"], e["name"], e["args"]["grid"], e["args"]["block"])
                         for e in events if e.get("cat") == "kernel")
        return result, [[n, g, b] for _, n, g, b in kernels]
