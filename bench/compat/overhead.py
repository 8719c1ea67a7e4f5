# SPDX-License-Identifier: Apache-2.0
"""What the first second of a process costs, and every later one: from times of equal batches.

`times` below is what a program prints (programs/steps.py): for each batch when it began (seconds
since the first batch), its wall time, and times of fixed work on the host before each batch.
"""

import harness
from comparisons import interval

FIRST_S = 1.0  # of native batches
CALIBRATIONS = ("spin", "memory", "calls")
QUIET = 1.15  # times the usual time of the fixed work: the host is at its usual speed


def host_factors(times, reference):
    """How much slower the host was around each batch than `reference` (milliseconds of each
    calibration): the mean, before and after the batch, of the slowdown of all calibrations."""
    measured = times["calibration_ms"]
    slowdown = [sum(measured[c][i] / reference[c] for c in CALIBRATIONS) / len(CALIBRATIONS)
                for i in range(len(times["wall_s"]) + 1)]
    return [(a + b) / 2 for a, b in zip(slowdown, slowdown[1:])]


def reference_of(several):
    """The median of each calibration over all processes."""
    return {c: harness.median([v for times in several for v in times["calibration_ms"][c]])
            for c in CALIBRATIONS}


def sensitivity(records, reference):
    """How much of the host's slowdown a batch feels: the slope of a batch's slowdown over the
    host's, each against the median of its process, over native processes alone and without each
    one's first batch. Between 0 and 1; 1 where there is nothing to learn it from."""
    xy = xx = 0.0
    for record in records:
        if not record["arm"].startswith("native") or not record.get("batches"):
            continue
        times = record["batches"]
        factors = host_factors(times, reference)
        own, middle = harness.median(factors), harness.median(times["wall_s"])
        for factor, wall in list(zip(factors, times["wall_s"]))[1:]:
            xy += (factor / own - 1) * (wall / middle - 1)
            xx += (factor / own - 1) ** 2
    return min(max(xy / xx, 0.0), 1.0) if xx else 1.0


class Host:
    """What brings times to the speed of one host."""

    def __init__(self, records):
        self.reference = reference_of([r["batches"] for r in records])
        self.sensitivity = sensitivity(records, self.reference)

    def factors(self, times):
        return [1 + self.sensitivity * (f - 1) for f in host_factors(times, self.reference)]

    def quiet(self, times):
        """Of each batch: was the host at its usual speed before and after it?"""
        fast = [times["calibration_ms"]["spin"][i] <= QUIET * self.reference["spin"]
                for i in range(len(times["wall_s"]) + 1)]
        return [x and y for x, y in zip(fast, fast[1:])]


def walls(times, host=None):
    """Seconds of each batch; with a host, at its speed."""
    if host is None:
        return list(times["wall_s"])
    return [w / f for w, f in zip(times["wall_s"], host.factors(times))]


def first_count(times):
    """How many batches a process does within its first second; at least one, at most half."""
    count, spent = 0, 0.0
    for wall in times["wall_s"]:
        spent += wall
        if spent > FIRST_S:
            break
        count += 1
    return min(max(count, 1), max(1, len(times["wall_s"]) // 2))


def first(values, count):
    """Seconds that the first batches take."""
    return sum(values[:count])


def steady(values):
    """Seconds of one batch in the second half."""
    return harness.median(values[len(values) // 2:])


def of_modes(modes):
    """First-second and steady ratios of the daemon's run to the median of the native ones, from
    the records of one program; two Nones where times were not taken."""
    native = [modes[m]["batches"] for m in ("native", "native again")
              if m in modes and modes[m].get("batches")]
    other = (modes.get("daemon") or {}).get("batches")
    if not native or not other:
        return None, None
    count = first_count(native[0])
    base = [harness.median([f(walls(n)) for n in native])
            for f in (lambda v: first(v, count), steady)]
    return first(walls(other), count) / base[0], steady(walls(other)) / base[1]


def summary(ratios):
    """Median of the ratios of all rounds, and the interval of the median by drawing again."""
    if not ratios:
        return None
    found = interval(ratios)
    return {"rounds": len(ratios), "ratio": harness.median(ratios),
            "low": found[0] if found else None, "high": found[1] if found else None}


def by_round(records):
    """{round: {arm: times}} of the rounds in which every arm has times."""
    arms, rounds = {r["arm"] for r in records}, {}
    for record in records:
        if record.get("batches"):
            rounds.setdefault(record["round"], {})[record["arm"]] = record["batches"]
    return {number: found for number, found in sorted(rounds.items()) if set(found) == arms}


def quiet_pairs(arm, baseline, host, places):
    """Ratios of batches at the same place of two processes, where the host was at its usual speed
    at both."""
    flags = [x and y for x, y in zip(host.quiet(arm), host.quiet(baseline))]
    return [arm["wall_s"][i] / baseline["wall_s"][i] for i in places if flags[i]]


def compare(records, baseline="native"):
    """For each other arm: ratios to the baseline of the same round, over the first second and
    steady, as measured, at the speed of one host, and over those batches alone at which the host
    was at its usual speed; with intervals over rounds (the last: over batches)."""
    records = calibrated(records)
    rounds = by_round(records)
    if not rounds:
        return {}
    host = Host(records)
    count = max(1, int(harness.median([first_count(f[baseline]) for f in rounds.values()])))
    measures = {"first": lambda v: first(v, count), "steady": steady}
    made = {}
    for arm in sorted({a for found in rounds.values() for a in found} - {baseline}):
        row = made[arm] = {"batches_of_first_second": count, "sensitivity": host.sensitivity}
        pairs = [(found[arm], found[baseline]) for found in rounds.values()]
        for kind, by in (("raw", None), ("normalized", host)):
            for name, measure in measures.items():
                row[f"{name}_{kind}"] = summary([measure(walls(a, by)) / measure(walls(b, by))
                                                 for a, b in pairs])
        row["first_cpu"] = summary([
            first(a["thread_cpu_s"], count) / first(b["thread_cpu_s"], count)
            for a, b in pairs if first(b["thread_cpu_s"], count)])
        length = min(len(t["wall_s"]) for pair in pairs for t in pair)
        for name, places in (("first", range(count)), ("steady", range(length // 2, length))):
            row[f"{name}_quiet"] = summary([r for a, b in pairs
                                            for r in quiet_pairs(a, b, host, places)])
    return made


def calibrated(records):
    return [r for r in records if r.get("batches") and r["batches"].get("calibration_ms")]


def slow_batches(records, limit=1.2):
    """Batches that took more than `limit` times their process's own median, outside of each
    process's first batch: how many in each arm, how slow, and how slow the host was at them and at
    all others. Slow batches at which the host was slow too are the host's."""
    records = calibrated(records)
    if not records:
        return {}
    reference, made = reference_of([r["batches"] for r in records]), {}
    for record in records:
        times = record["batches"]
        row = made.setdefault(record["arm"], {"batches": 0, "slow": 0, "slow_first_second": 0,
                                              "slowdown": [], "host_slow": [], "host_other": []})
        middle = harness.median(times["wall_s"])
        factors = host_factors(times, reference)
        for i, (wall, factor) in enumerate(zip(times["wall_s"], factors)):
            if i == 0:
                continue
            slow = wall > limit * middle
            row["batches"] += 1
            row["slow"] += slow
            row["slow_first_second"] += slow and times["began_s"][i] < FIRST_S
            row["host_slow" if slow else "host_other"].append(factor)
            if slow:
                row["slowdown"].append(wall / middle)
    for row in made.values():
        for key in ("slowdown", "host_slow", "host_other"):
            row[key] = harness.median(row[key])
    return made


def host_share(records):
    """Of each arm: the share of all calibrations at which the host was not at its usual speed."""
    records = calibrated(records)
    if not records:
        return {}
    usual, made = reference_of([r["batches"] for r in records])["spin"], {}
    for record in records:
        made.setdefault(record["arm"], []).extend(
            v > QUIET * usual for v in record["batches"]["calibration_ms"]["spin"])
    return {arm: sum(flags) / len(flags) for arm, flags in made.items()}


def others(records):
    """Of each arm, CPU seconds for each second of the batches: of the process's other threads than
    the one that does the batches, of vitamind, of everything else on this machine, and what the
    machine's host took. Each None where it was not recorded."""
    sums = {}
    for record in records:
        times = record.get("batches")
        if not times or "process_cpu_s" not in times:
            continue
        row = sums.setdefault(record["arm"], {"wall": 0.0, "threads": 0.0, "vitamind": 0.0,
                                              "elsewhere": 0.0, "steal": 0.0})
        process, daemon = sum(times["process_cpu_s"]), record.get("daemon_cpu_s") or 0.0
        row["wall"] += sum(times["wall_s"])
        row["threads"] += process - sum(times["thread_cpu_s"])
        row["vitamind"] += daemon
        row["elsewhere"] += max(0.0, sum(times["machine_busy_s"]) - process - daemon)
        row["steal"] += sum(times["machine_steal_s"])
    return {arm: {k: v / row["wall"] for k, v in row.items() if k != "wall"}
            for arm, row in sums.items() if row["wall"]}


def correlation(records):
    """Between the wall time of a batch and the host's slowness at it, each against the median of
    its process, over all batches but each process's first: 1 where the host explains all."""
    records = calibrated(records)
    if not records:
        return None
    reference, x, y = reference_of([r["batches"] for r in records]), [], []
    for record in records:
        times = record["batches"]
        factors = host_factors(times, reference)
        middle, own = harness.median(times["wall_s"]), harness.median(factors)
        x += [f / own for f in factors[1:]]
        y += [w / middle for w in times["wall_s"][1:]]
    if len(x) < 3:
        return None
    mean_x, mean_y = sum(x) / len(x), sum(y) / len(y)
    xx, yy = sum((a - mean_x) ** 2 for a in x), sum((b - mean_y) ** 2 for b in y)
    both = sum((a - mean_x) * (b - mean_y) for a, b in zip(x, y))
    return both / (xx * yy) ** 0.5 if xx and yy else None
