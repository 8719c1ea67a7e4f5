# SPDX-License-Identifier: Apache-2.0
"""What the first second of a process costs, and every later one: from times of equal batches.

`times` below is what a program prints (programs/steps.py): for each batch when it began (seconds
since the first batch), its wall time, and times of fixed work on the host before each batch.
"""

import harness
from comparisons import interval

FIRST_S = 1.0  # of native batches
CALIBRATIONS = ("spin", "memory", "calls")


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


def walls(times, reference=None):
    """Seconds of each batch; with a reference, at the speed of the reference host."""
    if reference is None:
        return list(times["wall_s"])
    return [w / f for w, f in zip(times["wall_s"], host_factors(times, reference))]


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


def compare(records, baseline="native"):
    """For each other arm: ratios to the baseline of the same round, over the first second and
    steady, as measured and at the speed of one host, with intervals over rounds."""
    rounds = by_round(records)
    everything = [times for found in rounds.values() for times in found.values()]
    if not everything or not all(t.get("calibration_ms") for t in everything):
        return {}
    reference = reference_of(everything)
    count = harness.median([first_count(found[baseline]) for found in rounds.values()])
    count = max(1, int(count))
    measures = {"first": lambda v: first(v, count), "steady": steady}
    made = {}
    for arm in sorted({a for found in rounds.values() for a in found} - {baseline}):
        made[arm] = {"batches_of_first_second": count}
        for kind, ref in (("raw", None), ("normalized", reference)):
            for name, measure in measures.items():
                made[arm][f"{name}_{kind}"] = summary([
                    measure(walls(found[arm], ref)) / measure(walls(found[baseline], ref))
                    for found in rounds.values()])
        made[arm]["first_cpu"] = summary([
            first(found[arm]["thread_cpu_s"], count) / first(found[baseline]["thread_cpu_s"], count)
            for found in rounds.values() if first(found[baseline]["thread_cpu_s"], count)])
    return made


def slow_batches(records, limit=1.2):
    """Batches that took more than `limit` times their process's own median, outside of each
    process's first batch: how many in each arm, how slow, and how slow the host was at them and at
    all others. Slow batches at which the host was slow too are the host's."""
    everything = [r["batches"] for r in records if r.get("batches")]
    if not everything or not all(t.get("calibration_ms") for t in everything):
        return {}
    reference, made = reference_of(everything), {}
    for record in records:
        if not record.get("batches"):
            continue
        times = record["batches"]
        row = made.setdefault(record["arm"], {"batches": 0, "slow": 0, "slow_first_second": 0,
                                              "slowdown": [], "host_slow": [], "host_other": []})
        middle = harness.median(times["wall_s"])
        factors = host_factors(times, reference)
        own = harness.median(factors)
        for i, (wall, factor) in enumerate(zip(times["wall_s"], factors)):
            if i == 0:
                continue
            row["batches"] += 1
            slow = wall > limit * middle
            row["slow"] += slow
            row["slow_first_second"] += slow and times["began_s"][i] < FIRST_S
            row["host_slow" if slow else "host_other"].append(factor / own)
            if slow:
                row["slowdown"].append(wall / middle)
    for row in made.values():
        for key in ("slowdown", "host_slow", "host_other"):
            row[key] = harness.median(row[key])
    return made


def correlation(records):
    """Between the wall time of a batch and the host's slowness at it, each against the median of
    its process, over all batches but each process's first: 1 where the host explains all."""
    everything = [r["batches"] for r in records if r.get("batches")]
    if not everything or not all(t.get("calibration_ms") for t in everything):
        return None
    reference, x, y = reference_of(everything), [], []
    for times in everything:
        factors = host_factors(times, reference)
        middle, own = harness.median(times["wall_s"]), harness.median(factors)
        x += [f / own for f in factors[1:]]
        y += [w / middle for w in times["wall_s"][1:]]
    if len(x) < 3:
        return None
    mean = lambda v: sum(v) / len(v)
    mx, my = mean(x), mean(y)
    xx, yy = sum((a - mx) ** 2 for a in x), sum((b - my) ** 2 for b in y)
    return sum((a - mx) * (b - my) for a, b in zip(x, y)) / (xx * yy) ** 0.5 if xx and yy else None
