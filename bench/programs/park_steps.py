# SPDX-License-Identifier: Apache-2.0
"""A program that holds device memory of known contents, for bench/park.py.

    park_steps.py torch|driver BYTES

Says its process number, then answers each line of its input with a line of JSON: `hash` of all
that it holds, `steps` the losses of 10 steps of a training (torch only).
"""
import ctypes
import hashlib
import json
import os
import sys

PIECE = 1 << 30
SIDE, BATCH, STEPS = 2048, 256, 10


class Torch:
    def __init__(self, count):
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
        import torch
        self.torch = torch
        torch.use_deterministic_algorithms(True)
        torch.manual_seed(1)
        generator = torch.Generator(device="cuda").manual_seed(2)
        self.held = []
        for at in range(0, count, PIECE):
            words = min(PIECE, count - at) // 8
            self.held.append(torch.randint(-(1 << 62), 1 << 62, (words,), dtype=torch.int64,
                                           device="cuda", generator=generator))
        self.model = torch.nn.Sequential(torch.nn.Linear(SIDE, SIDE), torch.nn.GELU(),
                                         torch.nn.Linear(SIDE, SIDE)).cuda()
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-3)
        self.batch = torch.randn(BATCH, SIDE, device="cuda", generator=generator)
        self.steps(3)

    def steps(self, count=STEPS):
        losses = []
        for _ in range(count):
            self.optimizer.zero_grad()
            loss = (self.model(self.batch) - self.batch).square().mean()
            loss.backward()
            self.optimizer.step()
            losses.append(loss.item().hex())
        return losses

    def hash(self):
        """Of each word with its place, by integer sums on the device (they wrap), and of the
        weights."""
        sums, hashes = [], hashlib.sha256()
        for piece in self.held:
            places = self.torch.arange(1, 1 + (1 << 20), device="cuda")
            total = self.torch.zeros((), dtype=self.torch.int64, device="cuda")
            for part in piece.split(1 << 20):
                total = total * 31 + ((part ^ (part >> 29)) * places[:len(part)]).sum()
            sums.append(total.item())
            hashes.update(str(piece.data_ptr()).encode())
        for weight in self.model.parameters():
            hashes.update(weight.detach().cpu().numpy().tobytes())
        return [hashes.hexdigest(), *sums]


class Driver:
    def __init__(self, count):
        self.cu, self.count = ctypes.CDLL("libcuda.so.1"), count
        context, self.address = ctypes.c_void_p(), ctypes.c_uint64()
        for code in (self.cu.cuInit(0), self.cu.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0),
                     self.cu.cuCtxSetCurrent(context),
                     self.cu.cuMemAlloc_v2(ctypes.byref(self.address), ctypes.c_size_t(count)),
                     self.cu.cuMemsetD32_v2(self.address, 0x12345678, ctypes.c_size_t(count // 4))):
            if code != 0:
                sys.exit(f"park_steps: error {code}")

    def hash(self):
        data = ctypes.create_string_buffer(self.count)
        self.cu.cuMemcpyDtoH_v2(data, self.address, ctypes.c_size_t(self.count))
        return [hashlib.sha256(data.raw).hexdigest(), self.address.value]

    def steps(self):
        return []


def main():
    work = {"torch": Torch, "driver": Driver}[sys.argv[1]](int(sys.argv[2]))
    print(json.dumps({"process": os.getpid()}), flush=True)
    for line in sys.stdin:
        print(json.dumps(getattr(work, line.strip())()), flush=True)


if __name__ == "__main__":
    main()
