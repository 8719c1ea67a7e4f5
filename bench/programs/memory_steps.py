# SPDX-License-Identifier: Apache-2.0
"""A program of a framework that sizes itself by free memory, for bench/memory.py.

    memory_steps.py torch|jax|cupy BYTES

It computes a chain of products, takes pieces of 1 GiB until BYTES are taken or one is refused,
gives them back, and computes once more. A JSON line says what memory it was told of and what it
took; one for each result has its hash. Exit code 77: the framework is not here.
"""
import hashlib
import json
import os
import sys

PIECE = 1 << 30
SIDE, STEPS = 4096, 40


def say(**fields):
    print(json.dumps(fields), flush=True)


def say_result(name, array):
    say(name=name, hash=hashlib.sha256(array.tobytes()).hexdigest())


class Torch:
    def __init__(self):
        import torch
        self.torch = torch
        generator = torch.Generator(device="cuda").manual_seed(1)
        self.weight = torch.randn(SIDE, SIDE, device="cuda", generator=generator)

    def chain(self):
        x = self.weight
        for _ in range(STEPS):
            x = self.torch.tanh(x @ self.weight / 64)
        return x.cpu().numpy()

    def memory(self):
        return self.torch.cuda.mem_get_info()

    def take(self):
        try:
            piece = self.torch.empty(PIECE, dtype=self.torch.uint8, device="cuda")
            piece.fill_(1)
        except self.torch.OutOfMemoryError:
            return None
        return piece

    def give_back(self):
        self.torch.cuda.empty_cache()


class Jax:
    def __init__(self):
        import jax
        import numpy
        self.jax, self.numpy = jax, numpy
        self.weight = jax.random.normal(jax.random.key(1), (SIDE, SIDE))
        self.step = jax.jit(lambda x, w: jax.numpy.tanh(x @ w / 64))

    def chain(self):
        x = self.weight
        for _ in range(STEPS):
            x = self.step(x, self.weight)
        return self.numpy.asarray(x)

    def memory(self):
        return driver_memory()

    def take(self):
        try:
            return self.jax.numpy.ones(PIECE, dtype="uint8").block_until_ready()
        except Exception as error:  # the class has had several names
            if "RESOURCE_EXHAUSTED" not in str(error):
                raise
            return None

    def give_back(self):
        pass


class Cupy:
    def __init__(self):
        import cupy
        self.cupy = cupy
        self.weight = cupy.random.RandomState(1).standard_normal((SIDE, SIDE), dtype="float32")

    def chain(self):
        x = self.weight
        for _ in range(STEPS):
            x = self.cupy.tanh(x @ self.weight / 64)
        return self.cupy.asnumpy(x)

    def memory(self):
        return self.cupy.cuda.runtime.memGetInfo()

    def take(self):
        try:
            return self.cupy.ones(PIECE, dtype="uint8")
        except self.cupy.cuda.memory.OutOfMemoryError:
            return None

    def give_back(self):
        self.cupy.get_default_memory_pool().free_all_blocks()


def driver_memory():
    """Free and total memory by the driver that the process has loaded."""
    import ctypes
    driver = ctypes.CDLL("libcuda.so.1")
    free, total = ctypes.c_size_t(), ctypes.c_size_t()
    context = ctypes.c_void_p()
    driver.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0)
    driver.cuCtxSetCurrent(context)
    if driver.cuMemGetInfo_v2(ctypes.byref(free), ctypes.byref(total)) != 0:
        raise RuntimeError("cuMemGetInfo fails")
    return free.value, total.value


def main():
    framework, wanted = sys.argv[1], int(sys.argv[2])
    try:
        program = {"torch": Torch, "jax": Jax, "cupy": Cupy}[framework]()
    except ImportError as error:
        say(cannot=str(error))
        return 77
    say_result("before", program.chain())
    pieces, refused, lowest, total = [], False, None, None
    while len(pieces) * PIECE < wanted and not refused:
        piece = program.take()
        refused = piece is None
        if not refused:
            pieces.append(piece)
        free, total = program.memory()
        lowest = free if lowest is None else min(lowest, free)
    taken = len(pieces) * PIECE
    del pieces, piece
    program.give_back()
    say_result("after", program.chain())
    say(total=total, used=total - lowest, taken=taken, refused=int(refused))
    return 0


if __name__ == "__main__":
    code = main()
    sys.stdout.flush()
    os._exit(code) if code else sys.exit(0)
