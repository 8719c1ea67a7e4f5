# SPDX-License-Identifier: Apache-2.0
"""Triton with autotuning: kernels are chosen by time, so values are small integers, which every
order of summation adds exactly."""

import torch
import triton
import triton.language as tl

import steps


@triton.autotune(
    configs=[triton.Config({"BM": m, "BN": n, "BK": k}, num_warps=w, num_stages=s)
             for m, n, k, w, s in ((64, 64, 32, 4, 2), (128, 64, 32, 4, 3), (64, 128, 64, 8, 2),
                                   (128, 128, 32, 8, 3))],
    key=["M", "N", "K"])
@triton.jit
def product(a, b, c, M, N, K, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr):
    rows = tl.program_id(0) * BM + tl.arange(0, BM)
    columns = tl.program_id(1) * BN + tl.arange(0, BN)
    total = tl.zeros((BM, BN), dtype=tl.float32)
    for start in range(0, K, BK):
        inner = start + tl.arange(0, BK)
        left = tl.load(a + rows[:, None] * K + inner[None, :])
        right = tl.load(b + inner[:, None] * N + columns[None, :])
        total += tl.dot(left, right)
    tl.store(c + rows[:, None] * N + columns[None, :], total)


def autotuned(options):
    draw = torch.Generator().manual_seed(1)
    integers = lambda *shape: torch.randint(-4, 5, shape, generator=draw).cuda().bfloat16()
    sizes = [(256, 512, 256), (512, 256, 1024), (1024, 1024, 512)]
    tasks = [(integers(m, k), integers(k, n), torch.empty(m, n, device="cuda"), m, n, k)
             for m, n, k in sizes]

    def step(_):
        for _ in range(20):
            for a, b, c, m, n, k in tasks:
                grid = lambda meta, m=m, n=n: (m // meta["BM"], n // meta["BN"])
                product[grid](a, b, c, m, n, k)
        torch.cuda.synchronize()
    steps.Batches(options).run(step)
    for a, b, c, m, n, k in tasks:
        steps.tell_hash(f"product {m} x {n} x {k}", c.cpu().numpy().tobytes())


if __name__ == "__main__":
    chosen = steps.options(["autotuned"], __doc__.splitlines()[0])
    if chosen.device != "cuda" or not torch.cuda.is_available():
        steps.cannot("Triton needs a GPU")
    autotuned(chosen)
