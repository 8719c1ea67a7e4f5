# SPDX-License-Identifier: Apache-2.0
"""The rows of issue "Decide", "Must be shown", from raw samples: measured beside the target.

Each function takes the sessions of cells (decision_report.Samples) and answers a sentence, or
nothing where the samples lack what it needs.
"""

import math

import arms
import load
import modes
import paired
import replay
import session
import steps

FIXED = ("parts:", "shared")  # arms that do not decide
WITHIN = 0.97  # of the best fixed arrangement
LATE = 0.1  # s, of the first marks of jobs that begin with a block
LOADS = (0.2, 0.5, 0.8)
SLOTS = 32  # sequences that bench/evaluate.py decodes at once


def speeds_of(samples):
    """(speeds by arm and job, speeds alone by job) by round; None where they were not measured."""
    blocks = samples.blocks("speeds")
    if not blocks:
        return None
    table = session.Rounds(samples.runs, blocks, len(samples.jobs)).table()
    alone = steps.alone_speeds(table, len(samples.jobs))
    if not alone or len(alone[0]) < 2:
        return None
    return table, alone


def best_fixed(table, alone, combine=paired.geometric_mean):
    """(value, arm's name) of the best arm that does not decide; None where there is none."""
    return max(((combine(paired.relative(speeds, alone)), name) for name, speeds in table.items()
                if name.startswith(FIXED)), default=None)


# ---------------------------------------------------------------------------- finding, and phases


def found_of(samples):
    """Of each `found` block: when the policy's objective first stayed within WITHIN of the best
    fixed arrangement's for a second, and the mean from then on relative to the best one's."""
    speeds = speeds_of(samples)
    if not speeds or not (best := best_fixed(*speeds)):
        return []
    table, alone = speeds
    base = [paired.mean(a) for a in alone]
    answer = []
    for block in samples.blocks("found"):
        lines = [samples.timelines.get(("ours", i)) for i in range(len(samples.jobs))]
        if not all(line and line.times for line in lines):
            continue
        # Where the block is the first of its jobs, they begin to count a moment behind it.
        begin = max(block["begin"], *(line.times[0] for line in lines))
        if begin > block["begin"] + LATE or not all(line.covers(begin, block["end"] - 0.2)
                                                    for line in lines):
            continue
        relative = lambda begin, end: [
            max(line.speed(begin, min(end, line.times[-1])) or 0, 1e-9) / b
            for line, b in zip(lines, base)]
        objective = lambda begin, end: paired.geometric_mean(relative(begin, end)) / best[0]
        at = begin
        while at + 1 <= block["end"] and objective(at, at + 1) < WITHIN:
            at += 0.1
        found = at + 1 <= block["end"]
        answer.append({"arm": block["block"], "found_s": at - block["begin"] if found else None,
                       "seconds": block["end"] - block["begin"], "best": best[1],
                       "speeds": relative(at if found else begin, block["end"]),
                       "after": objective(at, block["end"]) if found else
                       objective(begin, block["end"])})
    return answer


def decode_beside_prefill(samples):
    speeds = speeds_of(samples)
    if not speeds or "mps" not in speeds[0]:
        return None
    table, alone = speeds
    best = best_fixed(table, alone)
    over = lambda name, f: paired.objective_ratio(table[name], table["mps"], alone, f).text()
    parts = []
    if best:
        parts.append(f"best fixed ({arms.arm(best[1], len(samples.jobs)).label}): "
                     f"{over(best[1], sum)} × MPS in sum, "
                     f"{over(best[1], paired.geometric_mean)} by geometric mean")
    mps = [paired.mean(speed) / paired.mean(a) for speed, a in zip(table["mps"], alone)]
    for f in found_of(samples):
        when = "not found" if f["found_s"] is None else f"found after {f['found_s']:.1f} s"
        over_mps = lambda objective: objective(f["speeds"]) / objective(mps)
        parts.append(f"{f['arm']}: {when}, {f['after']:.3f} of the best in {f['seconds']:.0f} s: "
                     f"{over_mps(sum):.2f} × MPS in sum, "
                     f"{over_mps(paired.geometric_mean):.2f} by geometric mean")
    return f"{samples.title()}: " + "; ".join(parts) if parts else None


def phases(samples):
    """Of each deciding arm: by phase its objective relative to the best fixed arm's."""
    records = [r for r in samples.records if "phase" in r]
    by = {}
    for r in records:
        arm = arms.arm(r["arm"], len(samples.jobs))
        lines = [samples.timelines.get((arm.group, i)) for i in r["phase"]]
        if not all(lines):
            continue
        rates = [max(line.speed(r["begin"], min(r["end"], line.times[-1])) or 0, 1e-9)
                 for line in lines]
        by.setdefault(tuple(r["phase"]), {}).setdefault(r["arm"], []).append(
            paired.mean(map(math.log, rates)))
    parts = []
    for phase, logs in by.items():
        fixed = {n: paired.mean(v) for n, v in logs.items() if n.startswith(FIXED)}
        if not fixed:
            continue
        best = max(fixed, key=fixed.get)
        kinds = " + ".join(samples.jobs[i][0] for i in phase)
        parts += [f"{kinds}: {name} {math.exp(paired.mean(v) - fixed[best]):.3f} of {best}"
                  for name, v in logs.items() if name.startswith("ours:")]
    return "; ".join(parts) or None


# ------------------------------------------------------------------------------ training pairs


def other_pairs(sessions, newest):
    """What `throughput` gave over MPS in other processes of a pair, in blocks of the same length,
    oldest first."""
    found = []
    for samples in sorted(sessions, key=lambda s: s.header.get("date", "")):
        if samples is newest or samples.definition["block_s"] != newest.definition["block_s"]:
            continue
        table, alone = speeds_of(samples) or ({}, None)
        if "mps" in table and "ours:throughput" in table:
            ratio = paired.objective_ratio(table["ours:throughput"], table["mps"], alone, sum)
            found.append(f"{ratio.text()} at {samples.header['commit'][:8]}")
    return ", other processes: " + ", ".join(found) if found else ""


def training_pair(samples):
    speeds = speeds_of(samples)
    if not speeds or "mps" not in speeds[0]:
        return None
    table, alone = speeds
    busy = {r["profile"]: r.get("busy_share") for r in samples.records if "profile" in r}
    known = [busy[i] for i in sorted(busy) if busy[i]]
    bound = f", bound 2/(u₁+u₂) {2 / sum(known):.2f}" if len(known) == 2 else ""
    parts = [f"{n} {paired.objective_ratio(table[n], table['mps'], alone, sum).text()} × MPS"
             for n in table if arms.arm(n, len(samples.jobs)).group == "ours"
             and arms.arm(n, len(samples.jobs)).only < 0]
    total = paired.objective(table["mps"], alone, sum).text(2)
    return f"{samples.name}: {'; '.join(parts)} (MPS {total}{bound})" if parts else None


def several_clients(samples):
    speeds = speeds_of(samples)
    if not speeds:
        return None
    table, alone = speeds
    value = lambda n: paired.geometric_mean(paired.relative(table[n], alone))
    together = [n for n in table if arms.arm(n, len(samples.jobs)).only < 0]
    others = [n for n in together if not n.startswith("ours:")]
    if not others:
        return None
    best = max(others, key=value)
    return f"{samples.name}: " + "; ".join(
        f"{n} {value(n) / value(best):.3f} of {best}, slowest client "
        f"{min(paired.relative(table[n], alone)):.2f} of alone"
        for n in together if n.startswith("ours:"))


# -------------------------------------------------------------------------------------- service


def served(samples):
    """By arm: the requests of its bursts, and the trained job's speed beside a request and between
    requests, relative to alone (absolute where it was not measured alone)."""
    found, partner = {}, {}
    for r in samples.records:
        if "bursts" not in r:
            continue
        found.setdefault(r["bursts"], []).extend(r["requests"])
        arm = arms.arm(r["bursts"], len(samples.jobs))
        line = samples.timelines.get((arm.group, 1))
        if arm.only < 0 and line:
            pair = replay.partner_speeds(line, r["requests"], r["begin"], r["end"])
            partner.setdefault(r["bursts"], []).append(pair)
    line = samples.timelines.get(("mps", 1))
    alone = paired.mean(filter(None, (line.speed(b["begin"], b["end"])
                                      for b in samples.blocks("partner")))) or 1
    mean = lambda pairs, k: (lambda m: m and m / alone)(
        paired.mean(p[k] for p in pairs if p[k] is not None))
    return found, {n: (mean(pairs, 0), mean(pairs, 1)) for n, pairs in partner.items()}


def service_rows(samples, loads=LOADS):
    """[arm, load, its latency, that of the server alone (replay.at_load), training over alone]."""
    found, partner = served(samples)
    alone_s = next((r["service_s"] for r in samples.records if "service_s" in r), None)
    if "alone:0" not in found or not alone_s:
        return []
    rows = []
    for at in loads:
        alone = replay.at_load(found["alone:0"], alone_s, at)
        for name, requests in found.items():
            ours = replay.at_load(requests, alone_s, at)
            pair = partner.get(name, (None, None))
            train = replay.harvest(ours["busy"], *pair) if ours and None not in pair else None
            rows.append([name, at, ours, alone, train])
    return rows


def service(samples):
    parts = [f"{name} p99 {ours['p99'].value / alone['p99'].value:.2f} × alone, training "
             f"{train:.2f}" for name, at, ours, alone, train in service_rows(samples, (0.5,))
             if ours and alone and train is not None]
    if not parts:
        return None
    if best := oracle(samples):
        first = "" if best["places"] == replay.EVERY else f"first {best['places']} "
        beside = "stopped during requests" if best["arm"] is None else (
            f"beside {100 * best['share']:.0f} % of the busy periods' {first}requests as "
            f"{best['arm']}")
        parts.append(f"oracle: training {best['training']:.2f} at p99 {best['p99']:.2f} × alone "
                     f"({beside})")
    return f"{samples.jobs[1][1]}: {'; '.join(parts)}"


def oracle(samples, load=0.5):
    """replay.oracle of the arms that were measured; None where there are none."""
    found, partner = served(samples)
    alone_s = next((r["service_s"] for r in samples.records if "service_s" in r), None)
    beside = {name: (replay.service(found[name]), pair[0]) for name, pair in partner.items()
              if pair[0] is not None}
    if "alone:0" not in found or not alone_s or not beside:
        return None
    return replay.oracle(replay.service(found["alone:0"]), beside, alone_s, load)


# --------------------------------------------------------------------------------------- traces


def violations(requests, goal="interactive", scale=1.0):
    """Of each request whether it was late, and whether its tokens were slow (as load.serving)."""
    ttft, tpot = (scale * limit for limit in load.SLO[goal])
    late, slow = [], []
    for r in requests:
        unfinished = len(r["tokens"]) < r["output"]
        late.append(unfinished or not r["tokens"] or r["tokens"][0] - r["at"] > ttft)
        slow.append(r["output"] > 1 and (unfinished or (
            r["tokens"][-1] - r["tokens"][0]) / (len(r["tokens"]) - 1) > tpot))
    return late, slow


def step_alone(requests):
    """Seconds: the median decode step beside which no prefill ran and with which no request
    joined; None where there was none."""
    prefills, last, ends = [], 0.0, {}
    for r in requests:
        if r["tokens"]:
            prefills.append((max(r["at"], last), r["tokens"][0]))
            last = r["tokens"][0]
        for place, at in enumerate(r["tokens"][1:]):
            ends[at] = ends.get(at, False) or place == 0
    times = sorted(ends)
    return load.percentile([b - a for a, b in zip(times, times[1:]) if not ends[b]
                            and not any(begin < b and end > a for begin, end in prefills)], 0.5)


def slow_alone(requests, tpot, slots=SLOTS):
    """How many requests would violate `tpot` if decodes had the GPU to themselves: first tokens
    when they were, requests handed over at once, every step as long as step_alone(). At least so
    many do under any policy that leaves first tokens there."""
    step, now, active = step_alone(requests) or 0.0, 0.0, []
    waiting = sorted((r["tokens"][0], r["output"] - 1) for r in requests
                     if r["tokens"] and r["output"] > 1)
    slow = sum(not r["tokens"] and r["output"] > 1 for r in requests)
    waiting.reverse()
    while waiting or active:
        now = now if active else max(now, waiting[-1][0])
        while waiting and len(active) < slots and waiting[-1][0] <= now:
            active.append([*waiting.pop(), 0])
        now += step
        for row in active:
            row[2] += 1
            slow += row[2] == row[1] and (now - row[0]) / row[1] > tpot
        active = [row for row in active if row[2] < row[1]]
    return slow


def cold(cell, met):
    """Whether a cell met lengths of prompts that its processes had not seen: the first prefill of
    each takes 40 to 60 ms more, whatever the mode. `met`: those seen so far, by processes; in the
    order of running. Later records say that all lengths were prefilled before (`warmed`)."""
    seen = met.setdefault((cell["session"], modes.mode(cell["cell"]).setting), set())
    lengths = {q["prompt"] for q in cell["requests"]}
    new = lengths - seen
    seen |= lengths
    return bool(new) and "warmed" not in cell.get("cut", {})


def traces(records, base="ours"):
    """Records of bench/evaluate.py E5: every arm against `base` over the requests that both served,
    McNemar's exact test on those that differ. Not compared: where one of the two was cold().
    `alone`: the part that slow_alone() has of the requests of `base`. `windows`: in how many fewer
    requests violate, and in how many more: the requests of a window are of one moment of the host,
    so p says more than is known."""
    cells, met = {}, {}
    for r in records:
        if r.get("experiment") == "E5" and r.get("ok") and "requests" in r and not r.get("void"):
            r = {**r, "cold": cold(r, met)}
            cells.setdefault((r["subject"], r["session"], r["repeat"]), {})[r["cell"]] = r
    by, alone, windows = {}, {}, {}
    for (subject, _, _), same in cells.items():
        if base not in same:
            continue
        key = lambda cell: [(q["at"], q["prompt"], q["output"]) for q in cell["requests"]]
        for name, cell in same.items():
            if name != base and key(cell) == key(same[base]) and \
                    cell["cold"] == same[base]["cold"]:
                scale = float(subject.partition(" limits x ")[2] or 1)
                ours, theirs = (violations(c["requests"], scale=scale)
                                for c in (cell, same[base]))
                pair = by.setdefault((subject, name), [([], []), ([], [])])
                counts = windows.setdefault((subject, name), [[0, 0], [0, 0]])
                for which in (0, 1):
                    pair[which][0].extend(ours[which])
                    pair[which][1].extend(theirs[which])
                    counts[which][0] += sum(ours[which]) < sum(theirs[which])
                    counts[which][1] += sum(ours[which]) > sum(theirs[which])
                alone.setdefault((subject, name), []).append(
                    slow_alone(same[base]["requests"], scale * load.SLO["interactive"][1]))
    return {key: {"ttft": {**paired.discordant(*pair[0]), "windows": windows[key][0]},
                  "tpot": {**paired.discordant(*pair[1]), "windows": windows[key][1],
                           "alone": sum(alone[key]) / len(pair[1][1])}}
            for key, pair in by.items()}


def lower_violations(records):
    """Of `tpot-first` and `slo` against `throughput`: by trace the change of each rate, relative
    for TPOT."""
    policies, parts = {"ours-tpot-first": "`tpot-first`", "ours-slo": "`slo`"}, []
    for (subject, name), goals in traces(records).items():
        ttft, tpot = goals["ttft"], goals["tpot"]
        if name in policies and tpot["theirs"]:
            change = 100 * (tpot["ours"] / tpot["theirs"] - 1)
            fewer, more = tpot["windows"]
            parts.append(f"{policies[name]}, {subject}: TPOT {change:+.0f} % (fewer in {fewer} "
                         f"windows, more in {more}; p {tpot['p']:.2g}), "
                         f"TTFT {100 * ttft['difference'][0]:+.1f} points (p {ttft['p']:.2g}), "
                         f"{tpot['requests']} requests")
    return "<br>".join(parts)


TRACES = ("prefill and decode as two processes on the three traces",
          "TPOT violations −50 %, TTFT ≤ +1 point on three of four settings")
ELSEWHERE = (("planning", "see the row of docs/results.md",
              "`bench/planning.py`, not of this program"),
             ("bits", "as before", "`bench/determinism`, not of this program"))
ROWS = (
    ("decode beside prefill, closed loops, no hints from the programs", "≥ 1.15 × MPS in sum, "
     "≥ 1.35 × by geometric mean; found within 2 s, kept for 60 s", decode_beside_prefill),
    ("the same with the decoder's steps replayed as CUDA graphs", "reported",
     decode_beside_prefill),
    ("phases that change every 5 s", "≥ 0.95 × the best fixed arrangement of each", phases),
    ("training pairs W1–W6, RN+D0.6, BE+D1.7", "≥ 0.99 × MPS each, interval ≤ ± 1 %",
     training_pair),
    ("`slo`: 8B decoder at load 0.5 beside training", "p99 ≤ 1.15 × alone, replayed", service),
    ("three and four clients of different kinds", "no client starves; ≥ the best of MPS and "
     "static", several_clients),
)


def rows(sessions, trace_records=()):
    """[first cell, target, measured] of each requirement. sessions: of every cell."""
    answer = []
    for first, target, measured in ROWS:
        mine = [s for s in sessions if s.definition.get("row") and
                first.startswith(s.definition["row"])]
        told = [(s, text) for s in mine if (text := measured(s))]
        last = {s.name: text for s, text in told}
        if measured is training_pair:  # what is drawn when processes start shows in several of them
            for newest in {s.name: s for s, _ in told}.values():
                last[newest.name] += other_pairs(
                    [s for s, _ in told if s.name == newest.name], newest)
        answer.append([first, target, "<br>".join(last.values()) or "not measured"])
    served_ = lower_violations(trace_records) or "not measured (--traces)"
    return [*answer[:-1], [*TRACES, served_], answer[-1], *ELSEWHERE]
