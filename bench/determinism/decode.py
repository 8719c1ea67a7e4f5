# SPDX-License-Identifier: Apache-2.0
"""Decoding: does anything change in logits, probabilities or tokens?

    decode.py [--out DIR] [--prompts 64] [--tokens 256] [--replays 100]

A lean decoder of Llama's shape (no graphs, static cache, bf16 weights from a seed). Natively
twice, then under vitamin with a random width and place for every launch beside a tenant: one state
replayed, and prompts decoded greedily. Last, the same decoding with attention split over the
context into as many parts as the free processors ask for (the widths that ours ran at), with fp32
and with bf16 partial sums: how many tokens flip, with the 95 % interval.

`--inner` is the program itself: it prints one JSON line with the digests of each step.
"""

import argparse
import json
import math
import os
import pathlib
import subprocess
import sys
import tempfile

HERE = pathlib.Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parent), str(HERE)]

os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")


# ------------------------------------------------------------------------------- the inner program

def inner(options):
    import torch
    import torch.nn.functional as F

    torch.use_deterministic_algorithms(True)
    torch.backends.cuda.matmul.allow_bf16_reduced_precision_reduction = False
    tiny = options.size == "tiny"
    device = torch.device("cpu" if tiny else "cuda")
    layers, heads, kv_heads, head = (2, 4, 2, 16) if tiny else (8, 32, 8, 128)
    width, hidden, words = heads * head, (128 if tiny else 14336), (512 if tiny else 32000)
    prompts, length, tokens = options.prompts, 16 if tiny else 64, options.tokens
    longest = length + tokens + 1
    draw = torch.Generator().manual_seed(5)
    dtype = torch.bfloat16

    def weight(*shape):
        noise = torch.randn(shape, generator=draw if tiny else None, device=device)
        return (noise * shape[-1] ** -0.5).to(dtype)

    torch.manual_seed(5)
    blocks = [{"qkv": weight((heads + 2 * kv_heads) * head, width), "o": weight(width, width),
               "gate": weight(hidden, width), "up": weight(hidden, width),
               "down": weight(width, hidden)} for _ in range(layers)]
    table, out = weight(words, width), weight(words, width)
    frequency = 500000.0 ** (-torch.arange(0, head, 2, device=device).float() / head)
    angle = torch.arange(longest, device=device).float()[:, None] * frequency[None]
    cos, sin = angle.cos(), angle.sin()

    def norm(x):
        x = x.float()
        return (x * torch.rsqrt(x.square().mean(-1, keepdim=True) + 1e-5)).to(dtype)

    def turn(x, at):  # x: batch, heads, time, head
        c, s = cos[at].to(dtype), sin[at].to(dtype)
        a, b = x[..., 0::2], x[..., 1::2]
        return torch.stack([a * c - b * s, a * s + b * c], -1).flatten(-2)

    def attend(q, k, v, splits):
        """One query a head against the context in `splits` parts, joined in order."""
        k, v = (t.repeat_interleave(heads // kv_heads, 1) for t in (k, v))
        partial = torch.float32 if options.partials == "fp32" else dtype
        best, total, value = None, None, None
        for ks, vs in zip(k.tensor_split(splits, 2), v.tensor_split(splits, 2)):
            score = (q.float() @ ks.float().transpose(2, 3)) * head ** -0.5
            most = score.amax(-1, keepdim=True)
            share = (score - most).exp()
            s, w = share.sum(-1, keepdim=True), (share @ vs.float()).to(partial).float()
            if best is None:
                best, total, value = most, s, w
            else:
                top = torch.maximum(best, most)
                a, b = (best - top).exp(), (most - top).exp()
                best, total, value = top, total * a + s * b, (value * a + w * b).to(partial).float()
        return (value / total).to(dtype)

    def step(ids, cache, at, splits):
        x = F.embedding(ids, table)
        batch, time = ids.shape
        where = torch.arange(at, at + time, device=device)
        for block, (keys, values) in zip(blocks, cache):
            q, k, v = (norm(x) @ block["qkv"].T).view(batch, time, -1, head).transpose(1, 2).split(
                [heads, kv_heads, kv_heads], 1)
            keys[:, :, at:at + time] = turn(k, where)
            values[:, :, at:at + time] = v
            q = turn(q, where)
            seen_k, seen_v = keys[:, :, :at + time], values[:, :, :at + time]
            if time == 1:
                mixed = attend(q, seen_k, seen_v, splits)
            else:
                groups = heads // kv_heads
                mixed = F.scaled_dot_product_attention(
                    q, seen_k.repeat_interleave(groups, 1), seen_v.repeat_interleave(groups, 1),
                    is_causal=True)
            x = x + mixed.transpose(1, 2).reshape(batch, time, width) @ block["o"].T
            y = norm(x)
            x = x + (F.silu(y @ block["gate"].T) * (y @ block["up"].T)) @ block["down"].T
        return norm(x[:, -1]) @ out.T

    def fresh():
        return [tuple(torch.zeros(prompts, kv_heads, longest, head, dtype=dtype, device=device)
                      for _ in range(2)) for _ in range(layers)]

    def digest(tensor):
        """128 bits of a tensor's bytes, as two integer sums made on the device."""
        raw = tensor.contiguous().view(-1)
        bits = raw.view({2: torch.int16, 4: torch.int32, 8: torch.int64}[raw.element_size()]).long()
        place = torch.arange(len(bits), device=device)
        return torch.stack([(bits * (place * 0x1E3779B97F4A7C15 | 1)).sum(),
                            ((bits + 1) * (place * 0x3F58476D1CE4E5B9 | 1)).sum()])

    widths = None
    if options.widths:
        widths = [int(w) for w in pathlib.Path(options.widths).read_text().split()]
    splits_at = lambda i: 8 if widths is None else max(1, min(16, widths[i % len(widths)] // 8))
    ids = torch.randint(0, words, (prompts, length), generator=torch.Generator().manual_seed(6))
    with torch.no_grad():
        cache = fresh()
        logits = step(ids.to(device), cache, 0, 8)
        # One state replayed: the first generated token, again and again.
        first = logits.argmax(-1, keepdim=True)
        replays = torch.stack([digest(step(first, cache, length, splits_at(i)))
                               for i in range(options.replays)]).tolist()
        # End to end.
        steps, chosen = [digest(logits)], [first]
        for i in range(tokens):
            logits = step(chosen[-1], cache, length + i, splits_at(i))
            steps += [digest(logits), digest(logits.float().softmax(-1))]
            chosen.append(logits.argmax(-1, keepdim=True))
    print(json.dumps({"replays": replays, "steps": torch.stack(steps).tolist(),
                      "tokens": torch.cat(chosen, 1).tolist()}), flush=True)


# ----------------------------------------------------------------------------------- the treatments

def interval(hits, of):
    """Wilson's 95 % interval of a share."""
    if of == 0:
        return 0.0, 1.0
    z, p = 1.96, hits / of
    middle, spread = p + z * z / (2 * of), z * math.sqrt(p * (1 - p) / of + z * z / (4 * of * of))
    return (middle - spread) / (1 + z * z / of), (middle + spread) / (1 + z * z / of)


def compare(reference, got):
    """Numbers: what differs from the reference."""
    flips = sum(a != b for x, y in zip(reference["tokens"], got["tokens"]) for a, b in zip(x, y))
    # The first token that differs ends the comparison of its prompt: what follows has other inputs.
    independent = sum(x != y for x, y in zip(reference["tokens"], got["tokens"]))
    spans = [next((i for i, (a, b) in enumerate(zip(x, y)) if a != b), len(x))
             for x, y in zip(reference["tokens"], got["tokens"])]
    differ = lambda key: sum(a != b for a, b in zip(reference[key], got[key]))
    low, high = interval(independent, sum(spans) + independent)
    return {"replays_differing": differ("replays"), "replays": len(got["replays"]),
            "digests_differing": differ("steps"), "digests": len(got["steps"]),
            "tokens_differing": flips, "tokens": sum(map(len, got["tokens"])),
            "prompts_differing": independent, "prompts": len(spans),
            "consistent_span": sum(spans) / len(spans), "flip_low": low, "flip_high": high,
            "flip": independent / max(1, sum(spans) + independent)}


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out")
    parser.add_argument("--prompts", type=int, default=64)
    parser.add_argument("--tokens", type=int, default=256)
    parser.add_argument("--replays", type=int, default=100)
    parser.add_argument("--size", choices=["full", "tiny"], default="full")
    parser.add_argument("--partials", choices=["fp32", "bf16"], default="fp32")
    parser.add_argument("--widths")
    parser.add_argument("--timeout", type=float, default=150)
    parser.add_argument("--inner", action="store_true")
    options = parser.parse_args()
    if options.inner:
        return inner(options)

    import audit_log
    import harness
    results = harness.Results(options.out or harness.default_output(), "decode")
    failures = 0
    with tempfile.TemporaryDirectory() as folder:
        audit = pathlib.Path(folder) / "audit"
        audit.mkdir()
        widths = pathlib.Path(folder) / "widths"

        def run(name, *words, ours=False, environment=None):
            command = [sys.executable, str(HERE / "decode.py"), "--inner", "--size", options.size,
                       "--prompts", str(options.prompts), "--tokens", str(options.tokens),
                       "--replays", str(options.replays), *words]
            if ours:
                command = [*harness.vitamin("run", "--quiet", "--policy", "random", "--seed", "1"),
                           "--", *command]
            result = harness.run(command, options.timeout, environment)
            if not result.lines:
                results.add({"treatment": name, "error": result.why()})
                print(f"{name}: {result.why()}", flush=True)
                return None
            return result

        def judge(name, reference, result):
            if reference is None or result is None:
                return None
            record = {"treatment": name, "seconds": round(result.seconds, 1),
                      **compare(reference.lines[-1], result.lines[-1])}
            results.add(record)
            print(f"{name}: replays {record['replays_differing']}/{record['replays']}, logits and "
                  f"probabilities {record['digests_differing']}/{record['digests']}, tokens "
                  f"{record['tokens_differing']}/{record['tokens']}, flips per token "
                  f"{record['flip']:.5f} [{record['flip_low']:.5f}, {record['flip_high']:.5f}], "
                  f"{record['seconds']} s", flush=True)
            return record

        native = run("native")
        judge("native again", native, run("native again"))
        tenant = None if options.size == "tiny" else subprocess.Popen(
            [*harness.vitamin("run", "--quiet", "--policy", "random", "--seed", "9"), "--",
             harness.program("determinism"), "--interfere", "600"],
            stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        try:
            got = run("ours", ours=True, environment={"VITAMIN_AUDIT": str(audit)})
        finally:
            if tenant:
                tenant.terminate()
                tenant.wait()
        record = judge("ours: random width and place for every launch, tenant", native, got)
        if record is None or record["replays_differing"] or record["digests_differing"] or \
                record["tokens_differing"]:
            failures += 1
        operations = [o for log in audit_log.read_folder(audit) for o in log]
        wrong = sum(o.flags & (audit_log.CHANGED | audit_log.UNCOVERED) != 0 for o in operations)
        launches = [o.processors for o in operations if o.kind == audit_log.LAUNCH]
        results.add({"audit": {"operations": len(operations), "wrong": wrong,
                               "widths": len(set(launches))}})
        print(f"audit: {len(operations)} operations, {wrong} wrong, {len(set(launches))} widths")
        failures += wrong > 0
        # One width a step: every so many launches of ours.
        step = max(1, len(launches) // max(1, options.tokens))
        widths.write_text("\n".join(map(str, launches[::step] or [8, 64, 132, 32])))
        for partials in ("fp32", "bf16"):
            words = ["--partials", partials]
            base = run(f"fixed splits, {partials}", *words) if partials == "bf16" else native
            judge(f"reshaped: splits follow the free processors, {partials} partials", base,
                  run(f"reshaped {partials}", *words, "--widths", str(widths)))
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
