# SPDX-License-Identifier: Apache-2.0
"""Tables and figures of the evaluation; needs no GPU.

    report.py [DIR] [--markdown FILE]     reads DIR/E*.jsonl and DIR/micro_*.jsonl

Writes a section for each experiment, what was not run with its command among them, and figures
(SVG and PNG, where matplotlib is). Ratios are formed within one run of a command, between cells of
one repeat (neighbours in time; the same arrivals), and their median is shown. Beside each stands by
how much the run's exclusive cells differ: above 2 %, or where there is but one, it is not usable.

A line {"note": TEXT} in the results is printed below the table; with "session" and "cells" (modes)
it is about those, and with "void" they are in no table: they are not what their name says.
"""

import argparse
import json
import pathlib
import random
import sys

HERE = pathlib.Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parent), str(HERE)]

import experiments  # noqa: E402
import harness  # noqa: E402
import load  # noqa: E402

AGREE = 0.02
RESULTS = harness.ROOT / "bench" / "results"

SECTIONS = {  # title, command, the paper, what was to be reached
    "E0": ("Calibration", "evaluate.py E0", "not in the paper", ""),
    "E1": ("Operators, matched inputs", "determinism/run.py", "0 drift; reshaping drifts",
           "0 differing bytes, all kernels"),
    "E2": ("Decoding", "determinism/decode.py", "0 of 100; reshaping 5 of 100",
           "0 of 100, 0 of 1,000 states, 0 of 64 x 256 tokens"),
    "E3": ("Colocated training", "evaluate.py E3 --pairs W1,W2,W3,W4,W5,W6",
           "geo-mean 1.38 to 1.63 x the baselines; 1.08 to 1.11 x the strongest on dense pairs, up "
           "to 1.84 x with offload",
           "1.4 x the baselines' geo-mean, 1.10 x the strongest, 1.5 x on W5 and W6; no pair more "
           "than 2 % below MPS"),
    "E4": ("Training beside inference", "evaluate.py E4 --pairs M1",
           "p99 -8.1 to -58.4 %, up to -62.5 %; training 1.05 to 1.36 x, up to 1.43 x",
           "p99 at most 1.15 x exclusive at load 0.5 with training at least 0.70 of exclusive; "
           "above the whole frontier of static partitions"),
    "pairs": ("Pairs of jobs, one configuration for all", "evaluate.py pairs",
              "as E3 and E4", "never below MPS default by more than 2 % in all"),
    "E5": ("Policies on traces", "evaluate.py E5",
           "TPOT violations -21.2 % (Azure), -23.4 % (LongBench), -46.1 % (BurstGPT)",
           "at least 50 % fewer than throughput, TTFT violations at most 1 percentage point more"),
    "E6": ("Dispatch overhead, GEMM", "evaluate.py E6",
           "p95: hierarchical +0.7 %, flat +6.9 %, on demand +412 %", "at most +0.3 %"),
    "E7": ("Memory of the pool", "evaluate.py E7",
           "1,163 MiB GPU and 318 MiB resident; MPS-Pool 2,533 and 552",
           "at most 400 and 120 MiB"),
    "E8": ("Chains of short kernels, decode alone", "evaluate.py E8", "not in the paper",
           "at most +0.1 us a kernel in one entry; a decode step at most 1.01 x native"),
    "E9": ("Bitwise training beside others, SIGKILL", "evaluate.py E9", "not in the paper",
           "50 steps equal; every hazard refused, widened or gang-scheduled"),
}
ELSEWHERE = {"E1": "bench/results/determinism (table in bench/determinism/README.md)",
             "E2": "bench/results/determinism (table in bench/determinism/README.md)",
             "E6": "bench/results/slice/micro_gemm.jsonl (table in the README)",
             "E7": "bench/results/slice/micro_pool.jsonl (table in the README)"}
UNTESTED = {  # what the kept results of an experiment leave out
    "E8": ("chains of short kernels: bench/results/slice/micro_chain.jsonl (table in the README)",),
}
NEVER = (
    "MIG: needs the right to reconfigure the GPU",
    "a serving engine of others (vLLM, SGLang): not on the machine; the decoder here is ours",
    "LithOS itself: its scheduler is not public; sliced and reshaped kernels are in E1",
    "stream priorities in one process: two Python jobs there measure the interpreter's lock",
)


def read(directory, name):
    """Records of DIR/NAME.jsonl without headers, each with the number of its header ("run", from 1)
    and with what notes say of it ("void")."""
    path = pathlib.Path(directory) / f"{name}.jsonl"
    records, run = [], 0
    for line in path.read_text().splitlines() if path.exists() else []:
        try:
            record = json.loads(line)
        except ValueError:  # the last line of a run that was cut off
            continue
        if "header" in record:
            run += 1
        else:
            records.append({**record, "run": run})
    for note in [r for r in records if r.get("void")]:
        for r in records:
            if r.get("session") == note["session"] and r.get("cell") in note["cells"]:
                r["void"] = True
    return records


def headers(directory, name):
    path = pathlib.Path(directory) / f"{name}.jsonl"
    for line in path.read_text().splitlines() if path.exists() else []:
        if line.startswith('{"header"'):
            yield json.loads(line)["header"]


def cells(records):
    return [r for r in records if r.get("ok") and "cell" in r and not r.get("void")]


def by_subject(records):
    found = {}
    for r in records:
        found.setdefault(r["subject"], {}).setdefault(r["cell"], []).append(r)
    return found


def by_session(records):
    """subject and number of its run, subject, cell -> records; of a cell that was run twice, the
    last."""
    found = {}
    for r in cells(records):
        key = (r["subject"], r["session"])
        _, of = found.setdefault(key, (r.get("run", 0), {}))
        of.setdefault(r["cell"], {})[r["repeat"]] = r
    for (subject, _), (run, of) in found.items():
        yield f"{subject}, run {run}", subject, {c: list(x.values()) for c, x in of.items()}


def spread(values):
    """By what share the largest is above the least; nothing of one value."""
    return (max(values) / min(values) - 1) if len(values) > 1 and min(values) > 0 else None


def halves(records, value):
    """Of exclusive cells: by what share the two halves of the session differ, each by its median
    where there are four cells or more."""
    values = [value(r) for r in sorted(records, key=lambda r: r["repeat"])]
    if len(values) >= 4:
        values = [harness.median(values[:len(values) // 2]),
                  harness.median(values[-(len(values) // 2):])]
    return spread(values)


def usable(agree):
    return agree is not None and agree <= AGREE


def differ(agree):
    if agree is None:
        return "one cell: **not usable**"
    return percent(agree) + ("" if usable(agree) else ": **not usable**")


def caption(label, agree):
    return label if usable(agree) else f"{label}\n(not usable)"


def neighbours(runs, base, value):
    """value(cell) / value(base) for each pair of cells of one repeat."""
    of = {r["repeat"]: value(r) for r in base}
    return [value(r) / of[r["repeat"]] for r in runs if of.get(r["repeat"]) and value(r)]


def verdict(what, value, limit, at_least, agree, of=()):
    """One line: what was asked, what was found; `of`: the ratios whose median it is."""
    if value is None:
        return f"* {what}: no two cells of one repeat."
    met = value >= limit if at_least else value <= limit
    spread_ = f" ({between(of, lambda v: number(v, 3))})" if len(of) > 1 else ""
    asked = f"asked at {'least' if at_least else 'most'} {limit:g}"
    return (f"* {what}: {value:.3f}{spread_}, {asked}: " + ("reached" if met else "**missed**")
            + ("." if usable(agree) else ", but the run is not usable."))


def between(values, show):
    """The middle 95 % of the median's distribution, by drawing from the values again and again."""
    if len(values) < 3:
        return "–" if len(values) < 2 else f"{show(min(values))} to {show(max(values))}"
    draw = random.Random(1)
    medians = sorted(harness.median(draw.choices(values, k=len(values))) for _ in range(1000))
    return f"{show(medians[25])} to {show(medians[974])}"


def shares(value):
    return number(value, 4)


def middle(values):
    return harness.median([v for v in values if v is not None])


def number(value, digits=2, scale=1, unit=""):
    return "–" if value is None else f"{scale * value:.{digits}f}{unit}"


def percent(value):
    return number(value, 1, 100, " %")


def table(heads, rows):
    return "\n".join(["| " + " | ".join(heads) + " |", "|" + "---|" * len(heads),
                      *("| " + " | ".join(map(str, row)) + " |" for row in rows)])


# ------------------------------------------------------------------------------- experiments


ALONE = ("exclusive", "ours-alone", "mps-alone")


def normalised(found):
    """Of one session: cell -> [(repeat, [rate / median exclusive rate of each job])]; and by how
    much the exclusive rates of a job differ, the largest."""
    base = list(zip(*([j["per_s"] for j in r["jobs"]] for r in found.get("exclusive", []))))
    middles = [middle(rates) for rates in base]
    alone = found.get("exclusive", [])
    spreads = [halves(alone, lambda r, i=i: r["jobs"][i]["per_s"]) for i in range(len(base))]
    agree = max(spreads) if spreads and None not in spreads else None
    if not middles or not all(middles):
        return {}, agree
    each = lambda r: [job["per_s"] / b for job, b in zip(r["jobs"], middles)]
    return {cell: [{"repeat": r["repeat"], "each": each(r)} for r in runs]
            for cell, runs in found.items()}, agree


def binding_table(records):
    """What Vitamin did in each cell, a second; nothing where nothing was counted."""
    rows, three = [], lambda v: number(v, 0 if v >= 100 else 1)
    for label, _, found in by_session(records):
        for cell, runs in found.items():
            told = [b for b in map(experiments.bindings, runs) if b]
            if not told:
                continue
            mean = lambda key: sum(b[key] for b in told) / len(told)
            widths = {}
            for b in told:
                for width, share in b["widths"].items():
                    widths[width] = widths.get(width, 0) + share / len(told)
            moves = mean("moves")
            rows.append([label, cell, three(mean("launches")), three(mean("rebinds")), three(moves),
                         "" if moves >= 100 else "static", three(mean("grants")),
                         ", ".join(f"{w}: {100 * share:.0f} %" for w, share in
                                   sorted(widths.items()) if share >= 0.005)])
    if not rows:
        return ""
    return "\n\nWhat Vitamin did, a second (below 100 lease moves a job it is called static):\n\n" \
        + table(["pair", "mode", "launches", "rebinds", "lease moves of a job", "",
                 "grants of a job", "launches by processors"], rows)


def asked_each_time(label, found, value):
    """The cost of deciding every launch: a line where both ways were run."""
    ratios = neighbours(found.get("ours-asked", []), found.get("ours-parts", []), value)
    return [f"* {label}, every launch decided / standing grants: {middle(ratios):.3f} "
            f"({between(ratios, lambda v: number(v, 3))})."] if ratios else []


def over_all_pairs(ratios):
    """Of the last run of each pair that has both: ours against each other mode, the geometric mean
    over the pairs. `ratios`: (ours, other) -> pair -> ratio."""
    return [f"* all pairs, {ours} / {other}: {load.geometric_mean(list(of.values())):.3f} "
            f"(geo-mean of {', '.join(of)})."
            for (ours, other), of in ratios.items() if len(of) > 1]


def training_section(records, figure, name="E3"):
    lines, rows, bars, every = [], [], {}, {}
    total = lambda r: sum(r["each"])
    for label, subject, found in by_session(records):
        ratios, agree = normalised(found)
        sums = {c: middle(map(total, runs)) for c, runs in ratios.items() if c not in ALONE}
        for cell, runs in ratios.items():
            if cell in ALONE and cell != "exclusive":
                continue
            each = " + ".join(number(middle([r["each"][i] for r in runs]))
                              for i in range(len(runs[0]["each"])))
            if cell == "exclusive":
                rows.append([label, cell, "–", "–", "–", each, len(runs), differ(agree)])
                continue
            against = neighbours(runs, ratios.get("mps", []), total)
            rows.append([label, cell, number(middle(against), 3),
                         between(against, lambda v: number(v, 3)), number(sums[cell], 3), each,
                         len(runs), differ(agree)])
        if sums:
            bars[caption(label, agree)] = sums
        others = {c: v for c, v in sums.items() if not c.startswith("ours")}
        for ours in [c for c in sums if c.startswith("ours")]:
            for other in others:
                if of := neighbours(ratios[ours], ratios[other], total):
                    every.setdefault((ours, other), {})[subject] = middle(of)
            offload = subject in ("W5", "W6")
            if "mps" in others:
                of = neighbours(ratios[ours], ratios["mps"], total)
                lines.append(verdict(f"{label}, {ours} / MPS", middle(of), 0.98, True, agree, of))
            if others and not offload:
                strongest = max(others, key=others.get)
                of = neighbours(ratios[ours], ratios[strongest], total)
                lines.append(verdict(f"{label}, {ours} / the strongest ({strongest})", middle(of),
                                     1.10, True, agree, of))
            if others:
                lines.append(verdict(f"{label}, {ours} / geo-mean of {', '.join(others)}",
                                     sums[ours] / load.geometric_mean(list(others.values())),
                                     1.5 if offload else 1.4, True, agree))
        lines += asked_each_time(label, ratios, total)
    lines += over_all_pairs(every)
    if figure and bars:
        figure.bars(name, bars, "sum of normalised training throughput",
                    "1.0: two jobs in perfect turns; the paper: 1.38 to 1.63 x the baselines")
    if not rows:
        return ""
    return table(["pair", "mode", "/ MPS, neighbours", "95 % of it", "sum of rates / alone",
                  "each / alone", "repeats", "exclusive differs by"], rows) + "\n\n" + \
        "\n".join(lines) + (binding_table(records) if name == "E3" else "")


def mixed_section(records, figure, name="E4"):
    rows, lines, points, fewest = [], [], {}, None
    rate = lambda r: r["train"]["per_s"]
    late = lambda key: lambda r: r["infer"][key]
    for label, subject, found in by_session(records):
        base, mps = found.get("exclusive", []), found.get("mps", [])
        agree = halves(base, rate)
        for cell, runs in found.items():
            share, p95, p99 = (middle(neighbours(runs, base, v))
                               for v in (rate, late("p95"), late("p99")))
            milliseconds = lambda key: " / ".join(number(r["infer"][key], 0, 1e3) for r in runs)
            interval = " / ".join("–" if None in (r["infer"]["p99_interval"] or [None]) else
                                  "{:.0f} to {:.0f}".format(
                                      *(1e3 * v for v in r["infer"]["p99_interval"]))
                                  for r in runs)
            answered = [r["infer"]["answered"] for r in runs]
            fewest = min([*answered, *([fewest] if fewest else [])])
            of_mps = [neighbours(runs, mps, v) for v in (late("p99"), late("p95"), rate)]
            rows.append([
                label, cell, *(number(middle(of)) for of in of_mps[:2]),
                number(middle(of_mps[2]), 3), number(p99), number(p95), number(share, 3),
                milliseconds("p50"), milliseconds("p95"), interval,
                " / ".join(map(str, answered)),
                sum(r["infer"]["asked"] - r["infer"]["answered"] for r in runs), differ(agree)])
            if p95 and share:
                points.setdefault(caption(label, agree), {})[cell] = (p95, share)
            if cell.startswith("ours") and p99 and share:
                pairs = len(neighbours(runs, base, rate))
                what = f"{label}, {cell} ({pairs} of {len(runs)} repeats have an exclusive cell)"
                of = [neighbours(runs, base, v) for v in (late("p99"), rate)]
                lines += [verdict(f"{what}: p99 / exclusive", p99, 1.15, False, agree, of[0]),
                          verdict(f"{what}: training / exclusive", share, 0.70, True, agree, of[1])]
        lines += frontier(label, found) + asked_each_time(label, found, rate)
    if fewest is not None and fewest < 299:
        lines.insert(0, f"* p99 is an interval, open upwards: the largest of {fewest} requests is "
                     f"below the true p99 with a probability of {percent(0.99 ** fewest)} (299 "
                     "requests bring it below 5 %).")
    if figure and points:
        figure.scatter(name, points, "p95 latency / exclusive", "training / exclusive",
                       "upper left is better; the paper: p99 -8.1 to -58.4 % against baselines")
    if not rows:
        return ""
    return table(["pair, arrivals, load", "mode", "p99 / MPS", "p95 / MPS", "training / MPS",
                  "p99 / alone", "p95 / alone", "training / alone", "p50 ms of each repeat",
                  "p95 ms", "p99 ms: interval", "requests", "not answered",
                  "exclusive training differs by"], rows) + \
        "\n\n" + "\n".join(lines) + (binding_table(records) if name == "E4" else "")


def frontier(label, found):
    """Where ours lies against all static partitions that were run: above the frontier when none of
    them has both more training and less latency."""
    rate, late = lambda r: r["train"]["per_s"], lambda r: r["infer"]["p95"]
    static = {c: runs for c, runs in found.items() if c.startswith("static:")}
    lines = []
    for cell in [c for c in found if c.startswith("ours")] if len(static) > 1 else []:
        better = [c for c, runs in static.items()
                  if (middle(neighbours(runs, found[cell], rate)) or 0) >= 1
                  and (middle(neighbours(runs, found[cell], late)) or 2) <= 1]
        lines.append(f"* {label}, {cell} against {len(static)} static partitions: "
                     + ("none has both more training and a lower p95." if not better else
                        f"**{', '.join(better)}** has both more training and a lower p95."))
    return lines


def pairs_section(records, figure):
    training = [r for r in records if r.get("experiment") == "E3"]
    mixed = [r for r in records if r.get("experiment") == "E4"]
    return "\n\n".join(filter(None, (
        training_section(training, figure, "pairs"), mixed_section(mixed, figure, "pairs-mixed"),
        binding_table(records).strip())))


def serving_section(records, figure):
    """All requests of a session's repeats together; the rates of each repeat beside."""
    rows, bars, lines = [], {}, []
    for label, subject, found in by_session(records):
        pooled, share, late = {}, {}, {}
        for cell, runs in found.items():
            requests = [r for run in runs for r in run["requests"]]
            seconds = sum(run.get("window_s") or _span(run) for run in runs)
            pooled[cell] = figures = load.serving(requests, seconds)
            interactive = lambda run: run["serving"]["violations"]["interactive"]
            share[cell] = figures["violations"]["interactive"]["tpot"]
            late[cell] = figures["violations"]["interactive"]["ttft"]
            each = [interactive(run)["tpot"] for run in runs]
            v = lambda *path: _dig(figures, path)
            rows.append([
                label + (" (synthetic)" if runs[0]["cut"]["synthetic"] else ""), cell,
                number(runs[0]["load"]), percent(share[cell]),
                f"{percent(min(each))} to {percent(max(each))}" if None not in each else "–",
                percent(late[cell]),
                *(number(v("tpot", k), 1, 1e3) for k in ("p50", "p90", "p99")),
                *(number(v("ttft", k), 0, 1e3) for k in ("p50", "p99")),
                number(v("itl", "p99"), 1, 1e3), percent(v("violations", "server", "tpot")),
                number(v("violations", "interactive", "goodput")), len(requests)])
            bars.setdefault(label, {})[cell] = 100 * (share[cell] or 0)
        ours, first = share.get("ours"), share.get("ours-tpot-first")
        if ours and first is not None:
            lines.append(
                f"* {label}: TPOT violations {percent(ours)} under throughput, {percent(first)} "
                f"under tpot-first: {percent(first / ours - 1)}, asked at most -50 %: "
                + ("reached" if first <= ours / 2 else "**missed**")
                + ("" if 0.05 <= ours <= 0.5 else "; throughput violates outside 5 to 50 %")
                + f". TTFT violations {percent(late['ours'])} and "
                f"{percent(late['ours-tpot-first'])}: "
                + ("at most" if late["ours-tpot-first"] - late["ours"] <= 0.01 else "**more than**")
                + " 1 percentage point more.")
            lines.append("* " + label + ", by SLO scale (throughput / tpot-first): " + ", ".join(
                f"{scale}: {percent(a['tpot'])} / {percent(b['tpot'])}" for scale, a, b in
                ((k, pooled["ours"]["scales"][k], pooled["ours-tpot-first"]["scales"][k])
                 for k in pooled["ours"]["scales"])) + ".")
    if figure and bars:
        figure.bars("E5", bars, "requests with TPOT > 30 ms, %",
                    "the paper: tpot-first against throughput -21.2 / -23.4 / -46.1 %")
    return table(["trace", "mode", "load", "TPOT > 30 ms", "of each repeat", "TTFT > 0.5 s",
                  "TPOT p50 ms", "p90", "p99", "TTFT p50 ms", "p99", "ITL p99 ms",
                  "TPOT > 100 ms", "goodput /s", "requests"], rows) + "\n\n" + "\n".join(lines) + \
        binding_table(records)


def _span(run):
    return max((r["at"] for r in run["requests"]), default=1) or 1


def _dig(record, path):
    for key in path:
        record = (record or {}).get(key)
    return record


def calibration_section(records, figure):
    rows, bars = [], {}
    for r in cells(records):
        samples = r["samples"]
        rows.append([r["subject"], r["cell"], number(r["ready"]["build_s"], 0),
                     number(r["step_s"], 1, 1e3),
                     number(middle(samples.get("prefill", [])), 1, 1e3),
                     number(middle(samples.get("decode_step", [])), 2, 1e3),
                     r["profile"]["launches"] or "–", percent(r["profile"]["busy_share"]),
                     number(r["most_mib"], 1, 1 / 1024)])
        bars.setdefault(r["subject"], {})[r["cell"]] = 1e3 * r["step_s"]
    if figure and bars:
        figure.bars("E0", bars, "step or request alone, ms", "not in the paper")
    return table(["workload", "mode", "built in s", "step or request ms", "prefill ms",
                  "decode step ms", "launches", "GPU busy", "most GiB"], rows)


def alone_section(records, figure):
    rows, bars, lines = [], {}, []
    value = lambda r: r["decode_step_s"]
    for label, _, found in by_session([r for r in records if "decode_step_s" in r]):
        base = found.get("exclusive", [])
        agree = halves(base, value)
        for cell, runs in found.items():
            steps, against = [value(r) for r in runs], neighbours(runs, base, value)
            rows.append([label, cell, number(middle(steps), 3, 1e3),
                         f"{1e3 * min(steps):.3f} to {1e3 * max(steps):.3f}",
                         number(middle(against), 3),
                         "–" if not against else f"{min(against):.3f} to {max(against):.3f}",
                         differ(agree), number(middle([r["prefill_s"] for r in runs]), 2, 1e3),
                         len(runs)])
            bars.setdefault(caption(label, agree), {})[cell] = 1e3 * middle(steps)
            if cell == "ours-alone" and against:
                lines.append(verdict(f"{label}, decode step / native", middle(against), 1.01, False,
                                     agree))
    if figure and bars:
        figure.bars("E8", bars, "decode step alone, ms", "asked: at most 1.01 x native")
    return table(["model", "mode", "decode step ms", "least to most", "/ native, neighbours",
                  "least to most", "exclusive differs by", "prefill ms", "repeats"], rows) + \
        "\n\n" + "\n".join(lines) + micro_text(records)


def micro_text(records):
    """What bench/micro.py printed: its own tables."""
    tables = [r["table"] for r in cells(records) if r["subject"] == "micro"]
    return "\n\n" + "\n".join(f"```\n{t.strip()}\n```" for t in tables[-1:]) if tables else ""


def bitwise_section(records, figure):
    rows, bars, lines = [], {}, []
    training = [r for r in cells(records) if r["subject"] not in ("libraries", "hazards")]
    for r in training:
        rows.append([r["cell"], "equal" if r["equal"] else "**different**",
                     ", ".join(f"{n}: {r['differing'][n]} of {c}"
                               for n, c in r["compared"].items()),
                     ", ".join(f"{n} {s:.0f} s" for n, s in r["seconds"].items())])
        bars.setdefault("hashes that differ", {})[r["cell"]] = sum(r["differing"].values())
    if figure and bars:
        figure.bars("E9", bars, "hashes that differ from exclusive", "not in the paper")
    text = table(["mode", "bits", "hashes that differ", "lasted"], rows) if rows else ""
    found = by_subject([r for r in cells(records) if r["subject"] == "libraries"])
    seen = []
    for cell, runs in found.get("libraries", {}).items():
        r = runs[-1]
        of = len(r["operations"])
        told = any(f["kernels"] is not None for f in r["operations"].values())
        seen.append([cell, r["told"] or "–", r["part"] or "–",
                     f"{len(r['other_kernels'])} of {of}" if told else "–",
                     f"{len(r['other_bits'])} of {of}",
                     ", ".join(dict.fromkeys([*r["other_kernels"], *r["other_bits"]])) or "–"])
    if seen:
        text += "\n\nWhat libraries choose (cuBLAS, cuDNN, attention, PyTorch's own), against " \
            "exclusive:\n\n" + table(["mode", "processors that it is told", "part",
                                      "other kernels or grids", "other bits", "of"], seen)
    for r in [r for r in cells(records) if r["subject"] == "hazards"][-1:]:
        told = r["table"].strip().split("\n\n")[-1]
        text += f"\n\nHazards (`bench/daemon/hazards.py`):\n\n```\n{told}\n```"
    return text + "\n\n" + "\n".join(lines)


def dispatch_section(records, figure):
    """Of every round the p95 of an arm over native's of the same round."""
    rows, bars, lines = [], {}, []
    for label, _, found in by_session(records):
        p95 = lambda r: load.percentile(r["wall_us"], 0.95)
        base, hashes = found.get("native", []), set()
        for cell, runs in found.items():
            pooled = [v for r in runs for v in r["wall_us"]]
            against = neighbours(runs, base, p95)
            middles = neighbours(runs, base, lambda r: load.percentile(r["wall_us"], 0.5))
            hashes |= {r["hash"] for r in runs if "hash" in r}
            rows.append([label, cell, number(load.percentile(pooled, 0.5), 1),
                         number(load.percentile(pooled, 0.95), 1), shares(middle(middles)),
                         shares(middle(against)), between(against, shares), len(pooled)])
            bars.setdefault(label, {})[cell] = middle(against)
        if hashes:
            lines.append(f"* {label}: {len(hashes)} different result in all arms."
                         if len(hashes) == 1 else f"* {label}: **{len(hashes)} different results**")
        for cell in ("in process, anew each time", "daemon, a standing grant"):
            against = neighbours(found.get(cell, []), base, p95)
            if against:
                lines.append(verdict(f"{label}, {cell}, p95 / native", middle(against), 1.003,
                                     False, 0))
    if figure and bars:
        bars["the paper"] = {"in process, anew each time": 1.007, "flat pool": 1.069,
                             "made on demand": 5.12}
        figure.bars("E6", bars, "p95 / native, neighbouring rounds",
                    "the paper: hierarchical 1.007, flat 1.069, on demand 5.12", log=True)
    return table(["run", "arm", "p50 us", "p95 us", "p50 / native", "p95 / native", "95 % of it",
                  "samples"], rows) + "\n\n" + "\n".join(lines)


def memory_section(records, figure):
    rows, bars, lines = [], {}, []
    for label, _, found in by_session(records):
        line = lambda cell, key: middle([r[key] for r in found.get(cell, [])])
        less = lambda a, b: None if a is None or b is None else a - b
        for cell, runs in found.items():
            own = line(cell, "entries")
            base = {"vitamin": "native", "a client of MPS, vitamin": "a client of MPS"}.get(cell)
            mib, resident = (less(line(cell, k), line(base, k)) for k in
                             ("used_mib", "resident_mib")) if base else \
                (line(cell, "pool_mib"), line(cell, "pool_resident_mib")) if own else (None, None)
            refused = {r["refused"] for r in runs if r.get("refused")}
            note = f"made {own:.0f}, then error {refused.pop()}" if refused else ""
            rows.append([label, cell, number(line(cell, "used_mib"), 0),
                         number(line(cell, "resident_mib"), 0), number(mib, 0),
                         number(resident, 0), number(line(cell, "pool_ms"), 0) if own else "–",
                         len(runs), note])
            if mib is not None:
                bars.setdefault("GPU MiB of the pool", {})[cell] = mib
                bars.setdefault("resident MiB", {})[cell] = resident
            if cell == "vitamin" and mib is not None:
                lines += [verdict(f"{label}, GPU memory of our pool, MiB", mib, 400, False, 0),
                          verdict(f"{label}, resident memory of our pool, MiB", resident, 120,
                                  False, 0)]
    if figure and bars:
        bars["GPU MiB of the pool"] |= {"paper: hierarchical": 1163, "paper: MPS-Pool": 2533}
        bars["resident MiB"] |= {"paper: hierarchical": 318, "paper: MPS-Pool": 552}
        figure.bars("E7", bars, "MiB", "the paper: 1,163 and 318 MiB; MPS-Pool 2,533 and 552 MiB")
    return table(["run", "what", "GPU MiB in use", "resident MiB", "the pool's GPU MiB",
                  "the pool's resident MiB", "made in ms", "repeats", ""], rows) + \
        "\n\n" + "\n".join(lines)


WRITERS = {"pairs": pairs_section, "E0": calibration_section, "E3": training_section,
           "E4": mixed_section, "E5": serving_section, "E6": dispatch_section, "E7": memory_section,
           "E8": alone_section, "E9": bitwise_section}


class Figures:
    def __init__(self, directory):
        import matplotlib
        matplotlib.use("Agg")
        import matplotlib.pyplot as plt
        plt.rcParams.update({"font.size": 11, "svg.hashsalt": "vitamin"})
        self.plt, self.directory = plt, pathlib.Path(directory)

    def _save(self, figure, name):
        figure.tight_layout()
        figure.savefig(self.directory / f"{name}.svg", metadata={"Date": None})
        figure.savefig(self.directory / f"{name}.png", dpi=110)
        self.plt.close(figure)

    def bars(self, name, groups, label, note, log=False):
        modes = list(dict.fromkeys(m for g in groups.values() for m in g))
        figure, axes = self.plt.subplots(
            figsize=(max(6, 1.5 + 0.42 * len(modes) * len(groups)), 4.2))
        width = 0.8 / max(1, len(modes))
        for i, mode in enumerate(modes):
            shown = [(x + (i - (len(modes) - 1) / 2) * width, g[mode])
                     for x, g in enumerate(groups.values()) if g.get(mode) is not None]
            drawn = axes.bar(*zip(*shown), width, label=mode) if shown else []
            if drawn:
                axes.bar_label(drawn, fmt="%.4g", fontsize=8, rotation=90, padding=2)
        axes.set_xticks(range(len(groups)), list(groups))
        axes.set_ylabel(label)
        axes.margins(y=0.25)
        if log:
            axes.set_yscale("log")
        axes.set_title(f"{name}: {SECTIONS[name.split('-')[0]][0]}\n{note}", fontsize=10)
        if len(modes) > 1:
            axes.legend(fontsize=8, ncols=4, loc="upper center", bbox_to_anchor=(0.5, -0.17))
        self._save(figure, name)

    def scatter(self, name, groups, x, y, note):
        figure, axes = self.plt.subplots(figsize=(7, 4.6))
        for mark, colour, (group, points) in zip(
                "osD^v<>*" * 4, [f"C{i}" for i in range(10)] * 4, groups.items()):
            axes.plot(*zip(*points.values()), mark, color=colour, linestyle="none", label=group)
            for mode, at in points.items():
                axes.annotate(mode, at, fontsize=8, xytext=(4, 4), textcoords="offset points")
        axes.margins(0.2)
        axes.legend(fontsize=8, ncols=3, loc="upper center", bbox_to_anchor=(0.5, -0.17))
        axes.set_xlabel(x)
        axes.set_ylabel(y)
        axes.set_title(f"{name}: {SECTIONS[name.split('-')[0]][0]}\n{note}", fontsize=10)
        self._save(figure, name)


def remarks(records):
    """Lines: what could not be run and why, what was run and is not what it should have been,
    and what was noted."""
    good = {(r["run"], r["subject"], r["cell"]) for r in cells(records)}
    failed, names = {}, lambda found: ", ".join(dict.fromkeys(found))
    for r in records:
        if r.get("ok") is False and (r["run"], r["subject"], r["cell"]) not in good:
            job, _, why = r["why"].partition(": ")
            why = why.split(". ")[0] if why else job
            failed.setdefault((r["run"], r["subject"], why), []).append(r["cell"])
    for (run, subject, why), found in failed.items():
        yield f"* run {run}, {subject}, could not be run: {names(found)}: {why}"
    for note in [r for r in records if "note" in r]:
        about = [r for r in records if "cell" in r and r.get("session") == note.get("session")
                 and r["cell"] in note.get("cells", ())]
        head = ""
        if about:
            head = f"run {about[0]['run']}, {names(r['cell'] for r in about)}: "
        if note.get("void"):
            head = f"not in the tables: {head}"
        yield f"* {head}{note['note']}"


def write(directory, markdown=None):
    """DIR/report.md (or `markdown`) and the figures; returns the text."""
    directory = pathlib.Path(directory)
    directory.mkdir(parents=True, exist_ok=True)
    markdown = pathlib.Path(markdown or directory / "report.md")
    try:
        figures = Figures(directory)
    except ImportError as error:
        figures = None
        print(f"report: no figures: the Python package '{error.name}' is missing",
              file=sys.stderr)
    out = ["# Results", "", "Every experiment of the paper and what it does not show. Written by "
           "`bench/evaluation/report.py` from the raw samples; do not edit.", ""]
    for name, (title, command, paper, asked) in SECTIONS.items():
        out += [f"## {name} {title}", "",
                f"The paper: {paper}." + (f" Asked: {asked}." if asked else ""), ""]
        records = read(directory, name)
        if not any("cell" in r for r in records):
            out += [f"Elsewhere: {ELSEWHERE[name]}." if name in ELSEWHERE else
                    "**Not run.**", "", f"Command: `python3 bench/{command}`", ""]
            continue
        for run, h in enumerate(headers(directory, name), 1):
            out += [f"Run {run}: `{h['command']}`, commit {h['commit'][:12]}, {h['gpu']}, driver "
                    f"{h['driver']}, {h['date']}", ""]
        out += [WRITERS[name](records, figures).strip(), ""]
        for where in sorted(directory.glob(f"{name}*.svg")) if figures else ():
            try:
                where = where.relative_to(markdown.parent.resolve())
            except ValueError:
                pass
            out += [f"![{name}: {title}]({where})", ""]
        out += [*remarks(records), *(f"* {line}" for line in UNTESTED.get(name, ()))]
        out += [""]
    out += ["## Not there", "", *(f"* {line}" for line in NEVER), ""]
    text = "\n".join(out).replace("\n\n\n", "\n\n")
    markdown.write_text(text)
    return text


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("directory", nargs="?", default=RESULTS / "evaluation")
    parser.add_argument("--markdown", default=harness.ROOT / "bench" / "RESULTS.md")
    options = parser.parse_args()
    write(pathlib.Path(options.directory).resolve(), pathlib.Path(options.markdown).resolve())


if __name__ == "__main__":
    main()
