# SPDX-License-Identifier: Apache-2.0
"""A section of report.md for each experiment: its tables and lines, and in a few words what was
found. `figure` (figures.py) draws, or is None."""

import experiment
import load
from comparisons import (between, by_session, by_subject, caption, cells, differ, halves, interval,
                         middle, neighbours, number, percent, shares, table, usable, verdict)

ALONE = ("exclusive", "in-process", "ours-alone", "mps-alone")


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
            told = [b for b in map(experiment.bindings, runs) if b]
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


def judged(of, limit):
    """A ratio that was to be at least the limit, in a table."""
    if not of:
        return "–"
    value, (low, high) = middle(of), interval(of) or (middle(of), middle(of))
    met = "reached" if value >= limit else "**missed**"
    return number(value, 3) + (f" ({between(of, lambda v: number(v, 3))})" if len(of) > 1 else "") \
        + (f", {met}" if not low < limit < high else f", {met}, open")


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


def training_section(records, figure):
    lines, rows, bars, every, against_each, asked = [], [], {}, {}, {}, []
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
            bars[caption(subject, agree)] = sums
        others = {c: v for c, v in sums.items() if not c.startswith("ours")}
        for ours in [c for c in sums if c.startswith("ours")]:
            for other in others:
                if of := neighbours(ratios[ours], ratios[other], total):
                    every.setdefault((ours, other), {})[subject] = middle(of)
                    if ours == "ours":
                        against_each.setdefault(subject, {})[other] = middle(of)
            strongest = max(others, key=others.get, default=None)
            over = lambda other: neighbours(ratios[ours], ratios.get(other, []), total)
            mean = [sums[ours] / load.geometric_mean(list(others.values()))] if others else []
            asked.append([
                label, ours, judged(over("mps"), 0.98),
                judged(over(strongest), 1.10) + (f" ({strongest})" if strongest else ""),
                judged(mean, 1.5 if subject in ("W5", "W6") else 1.4),
                "yes" if usable(agree) else "no"])
        lines += asked_each_time(label, ratios, total)
    lines += over_all_pairs(every)
    if figure and bars:
        figure.training("E3", bars, against_each)
    if not rows:
        return "", ""
    text = ""
    if asked:
        text = "What was asked (open: the interval holds the limit):\n\n" + table(
            ["pair", "policy", "/ MPS: at least 0.98", "/ the strongest: at least 1.10",
             "/ geo-mean of baselines: at least 1.4 (W5, W6: 1.5)", "usable by the rule of 2 %"],
            asked) + "\n\n"
    text += table(["pair", "mode", "/ MPS, neighbours", "95 % of it", "sum of rates / alone",
                   "each / alone", "repeats", "exclusive differs by"], rows) + "\n\n"
    text += "\n".join(lines) + binding_table(records)
    means = {other: of for (ours, other), of in every.items() if ours == "ours"}
    return text, "`throughput` / " + ", / ".join(
        f"{other} {number(load.geometric_mean(list(of.values())), 3)} ({', '.join(of)})"
        for other, of in means.items()) if means else ""


def drifted(alone):
    """What is said of p99s alone (s) of which one is three times another: nothing can be compared
    with them. Else nothing."""
    alone = [v for v in alone if v]
    if len(alone) < 2 or max(alone) <= 3 * min(alone):
        return ""
    return "p99 alone was " + " and ".join(f"{1e3 * v:.0f}" for v in alone) + " ms by turns"


def mixed_section(records, figure):
    rows, lines, points, fewest, relative, found_ = [], [], {}, None, {}, []
    rate = lambda r: r["train"]["per_s"]
    late = lambda key: lambda r: r["infer"][key]
    for label, subject, found in by_session(records):
        base, mps = found.get("exclusive", []), found.get("mps", [])
        agree = halves(base, rate)
        wild = drifted([late("p99")(r) for r in base])
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
                points.setdefault(caption(subject, agree), {})[cell] = (p95, share)
            for ours in ("ours", "ours-tpot-first") if not cell.startswith("ours") else ():
                at = [middle(neighbours(found.get(ours, []), runs, v)) for v in (late("p99"), rate)]
                if cell != "exclusive" and None not in at:
                    relative.setdefault(ours, {})[f"{subject.split()[0]} {cell}"] = at
            if cell in ("ours", "ours-tpot-first") and len(neighbours(runs, base, rate)) > 1:
                found_.append(f"{subject.split()[0]} {cell} " +
                              ("not comparable" if wild else f"{number(p99)} at {number(share)}"))
            if cell.startswith("ours") and wild:
                lines.append(f"* {label}, {cell}: not comparable: {wild}.")
            elif cell.startswith("ours") and p99 and share:
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
        figure.mixed("E4", points, relative)
    if not rows:
        return "", ""
    return table(["pair, arrivals, load", "mode", "p99 / MPS", "p95 / MPS", "training / MPS",
                  "p99 / alone", "p95 / alone", "training / alone", "p50 ms of each repeat",
                  "p95 ms", "p99 ms: interval", "requests", "not answered",
                  "exclusive training differs by"], rows) + \
        "\n\n" + "\n".join(lines) + binding_table(records), \
        "p99 / exclusive, training / exclusive: " + ", ".join(found_) if found_ else ""


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


def serving_section(records, figure):
    """All requests of a session's repeats together; the rates of each repeat beside."""
    rows, bars, lines, told = [], {}, [], []
    for label, subject, found in by_session(records):
        pooled, share, late = {}, {}, {}
        for cell, runs in found.items():
            requests = [r for run in runs for r in run["requests"]]
            seconds = sum(run.get("window_s") or _span(run) for run in runs)
            pooled[cell] = figures = load.serving(requests, seconds)
            scale = runs[0].get("slo_scale", 1)
            asked = figures["scales"][f"{scale:g}"]
            share[cell], late[cell] = asked["tpot"], asked["ttft"]
            each = [run["serving"]["scales"][f"{scale:g}"]["tpot"] for run in runs]
            v = lambda *path: _dig(figures, path)
            rows.append([
                label + (" (synthetic)" if runs[0]["cut"]["synthetic"] else ""), cell,
                number(runs[0]["load"]),
                ", ".join(number(most * scale, 0, 1e3) for most in load.SLO["interactive"]),
                percent(share[cell]),
                f"{percent(min(each))} to {percent(max(each))}" if None not in each else "–",
                percent(late[cell]),
                *(number(v("tpot", k), 1, 1e3) for k in ("p50", "p90", "p99")),
                *(number(v("ttft", k), 0, 1e3) for k in ("p50", "p99")),
                number(v("itl", "p99"), 1, 1e3), percent(v("violations", "server", "tpot")),
                number(asked["goodput"]), len(requests)])
            bars.setdefault(subject, {})[cell] = 100 * (share[cell] or 0)
        ours, first = share.get("ours"), share.get("ours-tpot-first")
        if ours and first is not None:
            told.append(f"{subject.split()[0]} {percent(first / ours - 1)} (of {percent(ours)})")
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
        figure.bars("E5", bars, "requests above the limit of TPOT, %",
                    "the paper: tpot-first against throughput -21.2 / -23.4 / -46.1 %")
    text = table(["trace", "mode", "load", "limits TTFT, TPOT ms", "TPOT above", "of each repeat",
                  "TTFT above",
                  "TPOT p50 ms", "p90", "p99", "TTFT p50 ms", "p99", "ITL p99 ms",
                  "TPOT > 100 ms", "goodput /s", "requests"], rows) + "\n\n" + "\n".join(lines) + \
        binding_table(records)
    return text, "TPOT violations under tpot-first: " + ", ".join(told) if told else ""


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
                  "decode step ms", "launches", "GPU busy", "most GiB"], rows), \
        f"{len(rows)} workloads, each alone"


def alone_section(records, figure):
    rows, bars, lines, told = [], {}, [], {}
    value = lambda r: r["decode_step_s"]
    for label, _, found in by_session([r for r in records if "decode_step_s" in r]):
        base = found.get("exclusive", [])
        agree = halves(base, value)
        for cell, runs in found.items():
            steps, against = [value(r) for r in runs], neighbours(runs, base, value)
            rows.append([label, cell, number(middle(steps), 3, 1e3),
                         f"{1e3 * min(steps):.3f} to {1e3 * max(steps):.3f}",
                         number(middle(against), 3),
                         between(against, lambda v: number(v, 3)),
                         differ(agree), number(middle([r["prefill_s"] for r in runs]), 2, 1e3),
                         len(runs)])
            bars.setdefault(caption(label, agree), {})[cell] = 1e3 * middle(steps)
            if cell != "exclusive" and against:
                told[cell] = middle(against)
                lines.append(verdict(f"{label}, {cell}, decode step / native", middle(against),
                                     1.01, False, agree, against))
    if figure and bars:
        figure.bars("E8", bars, "decode step alone, ms", "asked: at most 1.01 x native")
    text = table(["model", "mode", "decode step ms", "least to most", "/ native, neighbours",
                  "95 % of it", "exclusive differs by", "prefill ms", "repeats"], rows) + \
        "\n\n" + "\n".join(lines) if rows else ""
    more, headline = chains([r for r in records if "us" in r])
    decode = "decode step / native: " + ", ".join(
        f"{c} {number(v, 3)}" for c, v in told.items()) if told else ""
    return text + more, "; ".join(filter(None, (headline, decode)))


def chains(records):
    """Of chains: microseconds a kernel, and those above native's of the same round."""
    rows, lines, told = [], [], []
    value = lambda r: middle(r["us"])
    for label, subject, found in by_session(records):
        base = {r["repeat"]: value(r) for r in found.get("native", [])}
        for cell, runs in found.items():
            above = [value(r) - base[r["repeat"]] for r in runs if r["repeat"] in base]
            plus = lambda v: f"{v:+.3f}"
            rows.append([label, cell, number(middle([value(r) for r in runs]), 3),
                         plus(middle(above)) if above else "–", between(above, plus), len(runs)])
            limit = {"whole device (fifo)": 0.1, "one entry, 64 SMs": 0.1, "a move every 4": 0.6,
                     "daemon, a standing grant": 0.1}.get(cell)
            if limit and above:
                lines.append(verdict(f"{label}, {cell}, us a kernel above native", middle(above),
                                     limit, False, 0, above))
                if cell == "one entry, 64 SMs":
                    told.append(f"{subject} {plus(middle(above))} us")
    if not rows:
        return "", ""
    return "\n\n" + table(["chain of 1,000", "arm", "us a kernel", "above native", "95 % of it",
                           "rounds of 10"], rows) + "\n\n" + "\n".join(lines), \
        "a kernel in one entry: " + ", ".join(told) if told else ""


def bitwise_section(records, figure):
    rows, bars, hazards = [], {}, ""
    training = [r for r in cells(records) if r["subject"] not in ("libraries", "hazards")]
    for r in training:
        rows.append([r["cell"], "equal" if r["equal"] else "**different**",
                     ", ".join(f"{n}: {r['differing'][n]} of {c}"
                               for n, c in r["compared"].items()),
                     ", ".join(f"{n} {s:.0f} s" for n, s in r["seconds"].items())])
        bars[r["cell"].replace("-", "\n")] = {r["cell"]: sum(r["differing"].values())}
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
        lines = told.splitlines()[2:]
        names = dict.fromkeys(line.split()[0].rstrip(",") for line in lines)
        hung = dict.fromkeys(line.split()[0] for line in lines if "hung" in line.lower())
        hazards = f"; of {len(names)} hazards " + (
            f"{len(hung)} hung the first time ({', '.join(hung)})" if hung else "none hung")
        text += f"\n\nHazards (`bench/daemon/hazards.py`):\n\n```\n{told}\n```"
    differ_ = [r["cell"] for r in training if not r["equal"]]
    return text, (f"training equal in {len(training) - len(differ_)} of {len(training)} modes"
                  + (f" (not {', '.join(differ_)})" if differ_ else "")
                  + hazards) if training else hazards.lstrip("; ")


def dispatch_section(records, figure):
    """Of every round the p95 of an arm over native's of the same round."""
    rows, bars, lines, told = [], {}, [], []
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
                                     False, 0, against))
                told.append(f"{cell} {shares(middle(against))} ({between(against, shares)})")
    if figure and bars:
        bars["the paper"] = {"in process, anew each time": 1.007, "flat pool": 1.069,
                             "made on demand": 5.12}
        figure.bars("E6", bars, "p95 / native, neighbouring rounds",
                    "the paper: hierarchical 1.007, flat 1.069, on demand 5.12", log=True)
    return table(["run", "arm", "p50 us", "p95 us", "p50 / native", "p95 / native", "95 % of it",
                  "samples"], rows) + "\n\n" + "\n".join(lines), "; ".join(told)


def memory_section(records, figure):
    rows, series, lines, told = [], {}, [], []
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
            if own and mib is not None:
                series.setdefault(cell.split(",")[0], []).append((own, mib, resident))
            if cell == "vitamin" and mib is not None:
                series["Vitamin"] = [(59, mib, resident)]
                told.append(f"{mib:.0f} and {resident:.0f} MiB")
                lines += [verdict(f"{label}, GPU memory of our pool, MiB", mib, 400, False, 0),
                          verdict(f"{label}, resident memory of our pool, MiB", resident, 120,
                                  False, 0)]
        if "MPS-Pool" in series:
            told.append("MPS-Pool of {:.0f} contexts {:,.0f} and {:,.0f} MiB".format(
                *max(series["MPS-Pool"])))
    if figure and series:
        figure.memory("E7", series, {"the paper, hierarchical": (1163, 318),
                                     "the paper, MPS-Pool": (2533, 552)})
    return table(["run", "what", "GPU MiB in use", "resident MiB", "the pool's GPU MiB",
                  "the pool's resident MiB", "made in ms", "repeats", ""], rows) + \
        "\n\n" + "\n".join(lines), "; ".join(told)


WRITERS = {"E0": calibration_section, "E3": training_section, "E4": mixed_section,
           "E5": serving_section, "E6": dispatch_section, "E7": memory_section,
           "E8": alone_section, "E9": bitwise_section}
