# SPDX-License-Identifier: Apache-2.0
"""Triton: an element-wise kernel, a row softmax and a matrix product, compiled at run time and
launched through Triton's own launcher; memory comes from PyTorch."""

import hashlib
import json

import torch
import triton
import triton.language as tl


@triton.jit
def fused_step(x, y, out, count, BLOCK: tl.constexpr):
    place = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = place < count
    a = tl.load(x + place, mask=inside)
    b = tl.load(y + place, mask=inside)
    tl.store(out + place, a * 0.5 + tl.exp(b) * 0.25, mask=inside)


@triton.jit
def softmax_rows(x, out, columns, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    place = tl.arange(0, BLOCK)
    values = tl.load(x + row * columns + place, mask=place < columns, other=-float("inf"))
    powers = tl.exp(values - tl.max(values, axis=0))
    tl.store(out + row * columns + place, powers / tl.sum(powers, axis=0), mask=place < columns)


@triton.jit
def product(a, b, c, M, N, K, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr):
    rows = tl.program_id(0) * BM + tl.arange(0, BM)
    columns = tl.program_id(1) * BN + tl.arange(0, BN)
    total = tl.zeros((BM, BN), dtype=tl.float32)
    for k in range(0, K, BK):
        inner = k + tl.arange(0, BK)
        left = tl.load(a + rows[:, None] * K + inner[None, :])
        right = tl.load(b + inner[:, None] * N + columns[None, :])
        total += tl.dot(left, right)
    tl.store(c + rows[:, None] * N + columns[None, :], total.to(tl.bfloat16))


def tell(name, tensor):
    torch.cuda.synchronize()
    raw = tensor.contiguous().view(-1).view(torch.uint8).cpu().numpy()
    print(json.dumps({"name": name, "hash": hashlib.sha256(raw).hexdigest()}), flush=True)


def main():
    draw = torch.Generator().manual_seed(4)
    x = torch.randn(1 << 20, generator=draw).cuda()
    y = torch.randn(1 << 20, generator=draw).cuda()
    out = torch.empty_like(x)
    streams = [torch.cuda.current_stream(), torch.cuda.Stream()]
    for i, stream in enumerate(streams):
        stream.wait_stream(torch.cuda.default_stream())
        with torch.cuda.stream(stream):
            for _ in range(50):
                fused_step[(1024,)](x, y, out, x.numel(), BLOCK=1024)
                fused_step[(1024,)](out, x, y, x.numel(), BLOCK=1024)
            tell(f"fused steps, stream {i}", y)
            soft = torch.empty(1024, 1000, device="cuda")
            softmax_rows[(1024,)](x, soft, 1000, BLOCK=1024)
            tell(f"softmax, stream {i}", soft)
            a = torch.randn(512, 1024, generator=draw).cuda().bfloat16()
            b = torch.randn(1024, 768, generator=draw).cuda().bfloat16()
            c = torch.empty(512, 768, device="cuda", dtype=torch.bfloat16)
            for warps in (4, 8):
                product[(512 // 128, 768 // 128)](a, b, c, 512, 768, 1024, BM=128, BN=128, BK=64,
                                                  num_warps=warps)
                tell(f"product, {warps} warps, stream {i}", c)
        torch.cuda.default_stream().wait_stream(stream)


if __name__ == "__main__":
    main()
