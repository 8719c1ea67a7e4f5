# SPDX-License-Identifier: Apache-2.0
"""Decoding: does anything change in logits, probabilities or tokens?

    decode.py [--out DIR] [--prompts 64] [--tokens 256] [--replays 100]

A lean decoder of Llama-3.1-8B's shape with half of its layers (no graphs, static cache, bf16
weights from a seed, the whole vocabulary). Natively twice, then under vitamin with a random width
and place for every launch beside a tenant: one state of every prompt replayed, and all prompts
decoded greedily. Last, the same with attention split over the context into as many parts as the
free processors ask for (widths at which launches of ours ran, in their order), with fp32 and with
bf16 partial sums: how many tokens flip, with the 95 % interval. Random weights give flatter logits
than trained ones, so flips are more frequent here.

`--inner` is the program itself: it prints one JSON line with the digests of each step.
"""

import argparse
import itertools
import json
import math
import os
import pathlib
import sys
import tempfile

SPLITS_MAX = 16   # of attention
FEW_WIDTHS = [8, 64, 132, 32]  # where nothing of ours was launched, on a machine without a GPU
OURS = "ours: random width and place for every launch, tenant"
PROCESSORS = 132  # of the device that the program's own structure is made for

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
    layers, heads, kv_heads, head = (2, 4, 2, 16) if tiny else (16, 32, 8, 128)
    width, hidden, words = heads * head, (128 if tiny else 14336), (512 if tiny else 128256)
    groups = heads // kv_heads
    prompts, length, tokens = options.prompts, 16 if tiny else 64, options.tokens
    # Room to cut any length into up to 16 parts of one size.
    longest = length + tokens + 1 + SPLITS_MAX
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

    partial = torch.float32 if options.partials == "fp32" else dtype

    def attend(q, keys, values, time, splits):
        """One query a head against `time` positions of the cache, cut into `splits` parts: each
        leaves its largest score, its sum and its weighted values (these in the type of the
        partials), which are then joined."""
        part = -(-time // splits)
        cut = lambda cache: cache[:, :, :splits * part].float().unflatten(2, (splits, part))
        q = q.float().view(len(q), kv_heads, 1, groups, head)
        score = q @ cut(keys).transpose(3, 4) * head ** -0.5  # batch, kv, split, group, position
        if splits * part > time:
            beyond = (torch.arange(splits * part, device=device) >= time).view(splits, 1, part)
            score = score.masked_fill(beyond, -1e30)
        most = score.amax(-1, keepdim=True)
        share = (score - most).exp()
        value = (share @ cut(values)).to(partial).float()
        weight = (most - most.amax(2, keepdim=True)).exp()
        total = (share.sum(-1, keepdim=True) * weight).sum(2)
        return ((value * weight).sum(2) / total).to(dtype).view(len(q), heads, 1, head)

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
            if time == 1:
                mixed = attend(q, keys, values, at + 1, splits())
            else:
                mixed = F.scaled_dot_product_attention(
                    q, keys[:, :, :time].repeat_interleave(groups, 1),
                    values[:, :, :time].repeat_interleave(groups, 1), is_causal=True)
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

    # How a controller would cut each attention: so that the free processors are filled.
    widths = itertools.repeat(PROCESSORS)
    if options.widths:
        widths = itertools.cycle(map(int, pathlib.Path(options.widths).read_text().split()))
    splits = lambda: max(1, min(SPLITS_MAX, next(widths) // 8))
    ids = torch.randint(0, words, (prompts, length), generator=torch.Generator().manual_seed(6))
    choose = lambda logits: logits.argmax(-1, keepdim=True)
    with torch.no_grad():
        cache = fresh()
        logits = step(ids.to(device), cache, 0, splits)
        # One state of every prompt replayed: its first generated token, again and again.
        first = choose(logits)
        replays, selections = [], []
        for _ in range(options.replays):
            logits_again = step(first, cache, length, splits)
            replays.append(digest(logits_again))
            selections.append(choose(logits_again))
        # End to end.
        steps, chosen = [digest(logits)], [first]
        for i in range(tokens):
            logits = step(chosen[-1], cache, length + i, splits)
            steps += [digest(logits), digest(logits.float().softmax(-1))]
            chosen.append(choose(logits))
    print(json.dumps({"replays": torch.stack(replays).tolist(),
                      "selections": torch.cat(selections, 1).T.tolist(),
                      "steps": torch.stack(steps).tolist(),
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
    # The first token that differs ends the comparison of its prompt: what follows has other inputs.
    pairs = list(zip(reference["tokens"], got["tokens"]))
    spans = [next((i for i, (a, b) in enumerate(zip(x, y)) if a != b), len(x)) for x, y in pairs]
    diverged = sum(x != y for x, y in pairs)
    seen = sum(spans) + diverged
    low, high = interval(diverged, seen)
    differ = lambda key: sum(a != b for a, b in zip(reference[key], got[key]))
    selections = [[a != b for a, b in zip(x, y)]
                  for x, y in zip(reference["selections"], got["selections"])]
    return {"replays_differing": differ("replays"), "replays": len(got["replays"]),
            # Of the first prompt: one autoregressive state, as the paper counts.
            "first_prompt_selections_differing": sum(row[0] for row in selections),
            "selections_differing": sum(map(sum, selections)),
            "selections": sum(map(len, selections)),
            "digests_differing": differ("steps"), "digests": len(got["steps"]),
            "prompts_differing": diverged, "prompts": len(spans),
            "consistent_span": sum(spans) / len(spans), "spans": spans,
            "flip": diverged / max(1, seen), "flip_low": low, "flip_high": high}


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", default=os.environ.get("OUT", str(HERE.parent / "results")))
    parser.add_argument("--prompts", type=int, default=64)
    parser.add_argument("--tokens", type=int, default=256)
    parser.add_argument("--replays", type=int, default=100)
    parser.add_argument("--size", choices=["full", "tiny"], default="full")
    parser.add_argument("--partials", choices=["fp32", "bf16"], default="fp32")
    parser.add_argument("--widths", help="a file of numbers")
    parser.add_argument("--no-tenant", action="store_true")
    parser.add_argument("--timeout", type=float, default=200, help="of one treatment, seconds")
    parser.add_argument("--inner", action="store_true")
    options = parser.parse_args()
    if options.inner:
        return inner(options)

    import audit_log
    import harness
    import plot
    import tenants
    results = harness.Results(options.out, "decode")
    problems = []
    with tempfile.TemporaryDirectory() as directory, tenants.daemon() as environment:
        audit = pathlib.Path(directory) / "audit"
        audit.mkdir()
        widths = pathlib.Path(directory) / "widths"

        def run(name, *words, under=(), changes=None):
            command = [*under, sys.executable, str(HERE / "decode.py"), "--inner", "--size",
                       options.size, "--prompts", str(options.prompts), "--tokens",
                       str(options.tokens), "--replays", str(options.replays), *words]
            result = harness.run(command, options.timeout, dict(environment, **(changes or {})))
            if result.ok and result.lines:
                return result
            results.add({"treatment": name, "error": result.why() or "no result"})
            problems.append(f"{name}: {result.why() or 'no result'}")
            print(problems[-1], flush=True)
            return None

        def judge(name, reference, result, must_equal=False):
            if reference is None or result is None:
                return
            record = {"treatment": name, "seconds": round(result.seconds, 1),
                      **compare(reference.lines[-1], result.lines[-1])}
            results.add(record)
            differing = record["replays_differing"] + record["digests_differing"]
            if must_equal and (differing or record["prompts_differing"]):
                problems.append(f"{name} differs")
            if not must_equal and not differing:
                problems.append(f"{name} does not differ: nothing is seen here")
            print(f"{name}: replays {record['replays_differing']}/{record['replays']}, selections "
                  f"{record['selections_differing']}/{record['selections']}, logits and "
                  f"probabilities {record['digests_differing']}/{record['digests']}, prompts "
                  f"{record['prompts_differing']}/{record['prompts']}, flips per token "
                  f"{record['flip']:.5f} [{record['flip_low']:.5f}, {record['flip_high']:.5f}], "
                  f"{record['seconds']} s", flush=True)

        native = run("native")
        judge("native again", native, run("native again"), must_equal=True)
        beside = 0 if options.no_tenant else 1
        with tenants.Tenants(beside, environment,
                             scale="small" if options.size == "tiny" else "full") as others:
            got = run(OURS, under=[*harness.vitamin("run", "--quiet", "--policy", "random",
                                                    "--seed", "1"), "--"],
                      changes={"VITAMIN_AUDIT": str(audit)})
        if others.problem:
            problems.append(others.problem)
        judge(OURS, native, got, must_equal=True)
        logs = audit_log.read_directory(audit)
        operations = [o for log in logs for o in log]
        wrong = sum(o.flags & (audit_log.CHANGED | audit_log.UNCOVERED) != 0 for o in operations)
        if wrong:
            problems.append(f"the audit found {wrong} wrong operations")
        in_order = [o.processors for log in logs for o in log
                    if o.kind == audit_log.LAUNCH and "interfere" not in o.kernel]
        results.add({"audit": {"operations": len(operations), "launches": len(in_order),
                               "wrong": wrong, "widths": len(set(in_order))}})
        print(f"audit: {len(operations)} operations, {wrong} wrong, {len(set(in_order))} widths",
              flush=True)
        # As many as there are attentions, evenly over ours.
        layers = 2 if options.size == "tiny" else 16
        stride = max(1, len(in_order) // (layers * (options.tokens + options.replays)))
        used = in_order[::stride] or FEW_WIDTHS
        results.add({"widths": sorted({w: used.count(w) for w in set(used)}.items())})
        widths.write_text("\n".join(map(str, used)))
        for partials in ("fp32", "bf16"):
            words = ["--partials", partials]
            base = native if partials == "fp32" else run("fixed splits, bf16 partials", *words)
            name = f"reshaped: splits follow the free processors, {partials} partials"
            judge(name, base, run(name, *words, "--widths", str(widths)))
    plot.write(options.out)
    for problem in problems:
        print("PROBLEM:", problem)
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
