# SPDX-License-Identifier: Apache-2.0
"""The lean decoder: Llama-3.1-8B and GPT-J-6B shapes with random weights.

Eager transformers takes 70 ms of host time for a token that needs 4 ms of GPU: any sharing looks
good beside it, because the GPU idles. Here q, k, v and gate, up are one product each, the cache
is static, and a layer is 9 launches. A step reads nothing back but the tokens; job_machines.py can
capture it as a CUDA graph.
"""

import dataclasses
import math

import torch
import torch.nn.functional as F

import kernels


@dataclasses.dataclass(frozen=True)
class Shape:
    hidden: int
    inner: int
    layers: int
    heads: int
    kv_heads: int
    vocabulary: int
    rotary: int
    base: float
    parallel: bool = False  # GPT-J: attention and MLP beside each other behind one layer norm

    @property
    def dimension(self):
        return self.hidden // self.heads


SHAPES = {
    "I-L8": Shape(4096, 14336, 32, 32, 8, 128256, 128, 500000.0),
    "I-J6": Shape(4096, 16384, 28, 16, 16, 50400, 64, 10000.0, parallel=True),
}
TINY = {
    "I-L8": Shape(64, 128, 2, 4, 2, 512, 16, 500000.0),
    "I-J6": Shape(64, 128, 2, 4, 4, 512, 8, 10000.0, parallel=True),
}
EPSILON = 1e-5


class Decoder:
    """`slots` sequences of at most `length` tokens each. Greedy."""

    def __init__(self, shape, device, slots, length):
        self.shape, self.device, self.slots, self.length = shape, device, slots, length
        draw = torch.Generator(device=device).manual_seed(0)
        options = {"dtype": torch.bfloat16, "device": device}

        def weight(rows, columns):
            w = torch.empty(rows, columns, **options)
            return w.normal_(0, 1 / math.sqrt(columns), generator=draw)

        s = shape
        wide = s.hidden + 2 * s.kv_heads * s.dimension
        self.embedding = weight(s.vocabulary, s.hidden)
        self.head = weight(s.vocabulary, s.hidden)
        self.norm = torch.ones(s.hidden, **options)
        self.shift = torch.zeros(s.hidden, **options)
        self.qkv_width = wide
        if s.parallel:
            self.layers = [(weight(wide + s.inner, s.hidden),
                            weight(s.hidden, s.hidden), weight(s.hidden, s.inner))
                           for _ in range(s.layers)]
        else:
            self.layers = [(weight(wide, s.hidden), weight(s.hidden, s.hidden),
                            weight(2 * s.inner, s.hidden), weight(s.hidden, s.inner))
                           for _ in range(s.layers)]
        self.norms = [(torch.ones(s.hidden, **options), torch.ones(s.hidden, **options))
                      for _ in range(s.layers)]
        self.cos, self.sin = kernels.rope_tables(length, s.rotary, s.base, s.parallel, device,
                                                 torch.float32)
        # Not zeros: what has not been written is never read, and zeros would be faster to read.
        self.cache = torch.empty(s.layers, 2, slots, s.kv_heads, length, s.dimension,
                                 **options).normal_(generator=draw)
        self.behind_layer = lambda index: None  # called when a layer's launches are submitted

    def _attention(self, index, qkv, slot, position, prompt):
        s, (keys, values) = self.shape, self.cache[index]
        q = kernels.rope_and_cache(qkv, slot, position, self.cos, self.sin, keys, values,
                                   s.heads, s.parallel)
        if prompt is None:
            return kernels.attend(q, keys, values, slot, position).view(-1, s.hidden)
        k, v = (c[prompt:prompt + 1, :, :len(q)] for c in (keys, values))
        answer = F.scaled_dot_product_attention(q.transpose(0, 1)[None], k, v, is_causal=True,
                                                enable_gqa=s.heads != s.kv_heads)
        return answer[0].transpose(0, 1).reshape(-1, s.hidden)

    def _forward(self, tokens, slot, position, prompt=None):
        x = F.embedding(tokens, self.embedding)
        if self.shape.parallel:
            for index, (wide, out, down) in enumerate(self.layers):
                h = F.layer_norm(x, (self.shape.hidden,), self.norms[index][0], self.shift,
                                 EPSILON)
                both = F.linear(h, wide)
                qkv = both[:, :self.qkv_width].contiguous()
                attention = self._attention(index, qkv, slot, position, prompt)
                x = torch.addmm(x, attention, out.t())
                inner = F.gelu(both[:, self.qkv_width:], approximate="tanh")
                x = torch.addmm(x, inner, down.t())
                self.behind_layer(index)
            last = F.layer_norm(x[-1:] if prompt is not None else x, (self.shape.hidden,),
                                self.norm, self.shift, EPSILON)
        else:
            residual = x
            h = F.rms_norm(x, (self.shape.hidden,), self.norms[0][0], EPSILON)
            for index, (wide, out, gate_up, down) in enumerate(self.layers):
                attention = self._attention(index, F.linear(h, wide), slot, position, prompt)
                h = kernels.add_norm(F.linear(attention, out), residual, self.norms[index][1],
                                     EPSILON)
                y = F.linear(kernels.silu_mul(F.linear(h, gate_up)), down)
                final = index + 1 == len(self.layers)
                h = kernels.add_norm(y, residual,
                                     self.norm if final else self.norms[index + 1][0], EPSILON)
                self.behind_layer(index)
            last = h[-1:] if prompt is not None else h
        return F.linear(last, self.head).argmax(-1)

    @torch.inference_mode()
    def prefill(self, tokens, slot):
        """A whole prompt into one slot; the first token, (1,), still on the device."""
        position = torch.arange(len(tokens), device=self.device)
        slots = torch.full_like(position, slot)
        return self._forward(tokens, slots, position, prompt=slot)

    @torch.inference_mode()
    def decode(self, tokens, slots, positions):
        """One more token for each row; all (rows,), on the device."""
        return self._forward(tokens, slots, positions)
