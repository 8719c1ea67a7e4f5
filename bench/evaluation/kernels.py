# SPDX-License-Identifier: Apache-2.0
"""The few kernels of the lean decoder: Triton where there is a GPU, the same in PyTorch elsewhere.

A token's row of `qkv` holds the heads of q, then k, then v. The cache of one layer is
(slots, heads of k, length, dimension); `slot` and `position` say where each token's k and v go.
"""

import torch
import torch.nn.functional as F

try:
    import triton
    import triton.language as tl
except ImportError:  # a machine without a GPU
    triton = None


def rope_tables(length, rotary, base, interleaved, device, dtype):
    """cos and sin, (length, rotary): one factor an element, in the order of the elements."""
    frequency = base ** (-torch.arange(0, rotary, 2, dtype=torch.float64) / rotary)
    angle = torch.arange(length, dtype=torch.float64)[:, None] * frequency
    angle = angle.repeat_interleave(2, 1) if interleaved else torch.cat([angle, angle], 1)
    return angle.cos().to(device, dtype), angle.sin().to(device, dtype)


if triton:
    @triton.jit
    def _rope_and_cache(qkv, slot, position, cos, sin, q_out, keys, values, slot_stride,
                        head_stride, Q: tl.constexpr, KV: tl.constexpr, D: tl.constexpr,
                        R: tl.constexpr, INTERLEAVED: tl.constexpr):
        token, head = tl.program_id(0), tl.program_id(1)
        i = tl.arange(0, D)
        row = qkv + (token * (Q + 2 * KV) + head) * D
        x = tl.load(row + i)
        at = tl.load(position + token)
        if head < Q + KV:
            if INTERLEAVED:
                partner, first = i ^ 1, i % 2 == 0
            else:
                first = i < R // 2
                partner = tl.where(first, i + R // 2, i - R // 2)
            rotated = i < R
            other = tl.load(row + partner, mask=rotated, other=0).to(tl.float32)
            c = tl.load(cos + at * R + i, mask=rotated, other=1).to(tl.float32)
            s = tl.load(sin + at * R + i, mask=rotated, other=0).to(tl.float32)
            x = (x.to(tl.float32) * c + tl.where(first, -other, other) * s).to(x.dtype)
        if head < Q:
            tl.store(q_out + (token * Q + head) * D + i, x)
        else:
            place = tl.load(slot + token) * slot_stride + at * D + i
            if head < Q + KV:
                tl.store(keys + place + (head - Q) * head_stride, x)
            else:
                tl.store(values + place + (head - Q - KV) * head_stride, x)

    @triton.jit
    def _silu_mul(x, out, WIDTH, BLOCK: tl.constexpr):
        row = tl.program_id(0)
        i = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
        inside = i < WIDTH
        gate = tl.load(x + row * 2 * WIDTH + i, mask=inside).to(tl.float32)
        up = tl.load(x + row * 2 * WIDTH + WIDTH + i, mask=inside).to(tl.float32)
        value = gate / (1 + tl.exp(-gate)) * up
        tl.store(out + row * WIDTH + i, value.to(out.dtype.element_ty), mask=inside)

    @triton.jit
    def _add_norm(x, residual, weight, out, WIDTH, EPSILON: tl.constexpr, BLOCK: tl.constexpr):
        row = tl.program_id(0)
        i = tl.arange(0, BLOCK)
        inside = i < WIDTH
        total = tl.load(x + row * WIDTH + i, mask=inside, other=0).to(tl.float32) + tl.load(
            residual + row * WIDTH + i, mask=inside, other=0).to(tl.float32)
        tl.store(residual + row * WIDTH + i, total.to(residual.dtype.element_ty), mask=inside)
        scale = 1 / tl.sqrt(tl.sum(total * total) / WIDTH + EPSILON)
        w = tl.load(weight + i, mask=inside).to(tl.float32)
        tl.store(out + row * WIDTH + i, (total * scale * w).to(out.dtype.element_ty), mask=inside)

    @triton.jit
    def _attend(q, keys, values, slot, position, out, scale, slot_stride, head_stride,
                KV: tl.constexpr, GROUP: tl.constexpr, ROWS: tl.constexpr, D: tl.constexpr,
                BLOCK: tl.constexpr):
        token, head = tl.program_id(0), tl.program_id(1)
        length = tl.load(position + token) + 1
        r, d, n = tl.arange(0, ROWS), tl.arange(0, D), tl.arange(0, BLOCK)
        mine = (token * KV * GROUP + head * GROUP + r[:, None]) * D + d[None, :]
        rows = r[:, None] < GROUP
        query = tl.load(q + mine, mask=rows, other=0)
        base = tl.load(slot + token) * slot_stride + head * head_stride
        most = tl.full([ROWS], -1e30, tl.float32)
        total = tl.zeros([ROWS], tl.float32)
        result = tl.zeros([ROWS, D], tl.float32)
        for start in range(0, length, BLOCK):
            there = start + n < length
            at = base + (start + n)[:, None] * D + d[None, :]
            k = tl.load(keys + at, mask=there[:, None], other=0)
            v = tl.load(values + at, mask=there[:, None], other=0)
            score = tl.dot(query, tl.trans(k)) * scale
            score = tl.where(there[None, :], score, -1e30)
            larger = tl.maximum(most, tl.max(score, 1))
            p = tl.exp(score - larger[:, None])
            shrink = tl.exp(most - larger)
            total = total * shrink + tl.sum(p, 1)
            result = result * shrink[:, None] + tl.dot(p.to(v.dtype), v)
            most = larger
        result = result / total[:, None]
        tl.store(out + mine, result.to(out.dtype.element_ty), mask=rows)

    @triton.jit
    def _unpack(packed, scales, out, count, GROUP: tl.constexpr, BLOCK: tl.constexpr):
        i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
        inside = i < count
        byte = tl.load(packed + i // 2, mask=inside, other=0).to(tl.int32)
        nibble = tl.where(i % 2 == 0, byte & 15, (byte >> 4) & 15) - 8
        scale = tl.load(scales + i // GROUP, mask=inside, other=0).to(tl.float32)
        tl.store(out + i, (nibble.to(tl.float32) * scale).to(out.dtype.element_ty), mask=inside)


def _on_gpu(tensor):
    return triton is not None and tensor.is_cuda


def rope_and_cache(qkv, slot, position, cos, sin, keys, values, heads, interleaved,
                   force=False):
    """Rotates q and k, writes k and v into the cache; returns q, (tokens, heads, dimension)."""
    kv, dimension = keys.shape[1], keys.shape[3]
    tokens, rotary = qkv.shape[0], cos.shape[1]
    if _on_gpu(qkv) or force:
        q = torch.empty(tokens, heads, dimension, dtype=qkv.dtype, device=qkv.device)
        _rope_and_cache[(tokens, heads + 2 * kv)](
            qkv, slot, position, cos, sin, q, keys, values, keys.stride(0), keys.stride(1),
            Q=heads, KV=kv, D=dimension, R=rotary, INTERLEAVED=interleaved, num_warps=1)
        return q
    x = qkv.view(tokens, heads + 2 * kv, dimension)
    turn = x[:, :heads + kv, :rotary].float()
    if interleaved:
        other = torch.stack([-turn[..., 1::2], turn[..., 0::2]], -1).flatten(-2)
    else:
        half = rotary // 2
        other = torch.cat([-turn[..., half:], turn[..., :half]], -1)
    c, s = cos[position].float()[:, None], sin[position].float()[:, None]
    turned = torch.cat([(turn * c + other * s).to(qkv.dtype),
                        x[:, :heads + kv, rotary:]], -1)
    keys[slot, :, position] = turned[:, heads:]
    values[slot, :, position] = x[:, heads + kv:]
    return turned[:, :heads].contiguous()


def silu_mul(x, force=False):
    width = x.shape[1] // 2
    if not (_on_gpu(x) or force):
        return F.silu(x[:, :width]) * x[:, width:]
    out = torch.empty(x.shape[0], width, dtype=x.dtype, device=x.device)
    _silu_mul[(x.shape[0], triton.cdiv(width, 1024))](x, out, width, BLOCK=1024, num_warps=4)
    return out


def add_norm(x, residual, weight, epsilon, force=False):
    """residual += x, in place; returns its RMS norm times `weight`."""
    if not (_on_gpu(x) or force):
        residual.add_(x)
        return F.rms_norm(residual, (x.shape[1],), weight, epsilon)
    out = torch.empty_like(x)
    _add_norm[(x.shape[0],)](x, residual, weight, out, x.shape[1], EPSILON=epsilon,
                             BLOCK=triton.next_power_of_2(x.shape[1]), num_warps=8)
    return out


def attend(q, keys, values, slot, position, force=False):
    """One query token a row against its slot's cache, its own k and v included."""
    tokens, heads, dimension = q.shape
    kv = keys.shape[1]
    if _on_gpu(q) or force:
        out = torch.empty_like(q)
        _attend[(tokens, kv)](
            q, keys, values, slot, position, out, dimension ** -0.5, keys.stride(0),
            keys.stride(1), KV=kv, GROUP=heads // kv, ROWS=max(16, heads // kv), D=dimension,
            BLOCK=64 if dimension <= 128 else 32, num_warps=4)
        return out
    out = torch.empty_like(q)
    for row in range(tokens):
        length = int(position[row]) + 1
        k, v = (cache[slot[row], :, :length].repeat_interleave(heads // kv, 0)
                for cache in (keys, values))
        out[row] = F.scaled_dot_product_attention(q[row][:, None], k, v)[:, 0]
    return out


GROUP = 64  # weights that share a scale


def unpack(packed, scales, shape, force=False):
    """Weights of 4 bits, two a byte, as bfloat16."""
    count = packed.numel() * 2
    out = torch.empty(shape, dtype=torch.bfloat16, device=packed.device)
    if _on_gpu(packed) or force:
        _unpack[(triton.cdiv(count, 4096),)](packed, scales, out, count, GROUP=GROUP, BLOCK=4096,
                                             num_warps=8)
        return out
    nibbles = torch.stack([packed & 15, packed >> 4], -1).flatten().float() - 8
    out.view(-1).copy_((nibbles.view(-1, GROUP) * scales.float()[:, None]).view(-1))
    return out
