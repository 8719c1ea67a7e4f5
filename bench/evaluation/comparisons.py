# SPDX-License-Identifier: Apache-2.0
"""Records of results, and what they say: cells of one session, ratios of neighbours, their spread.

Ratios are formed within one run of a command, between cells of one repeat (neighbours in time; the
same arrivals), and their median is shown with the middle 95 % of what drawing again from them
gives. Beside stands by how much the run's exclusive cells differ: above 2 %, or where there is but
one, a ratio to exclusive is not usable.
"""

import gzip
import json
import pathlib
import random

import harness

AGREE = 0.02


def lines(directory, name):
    """Of DIR/NAME.jsonl; before them those of NAME.jsonl.gz, which are kept so because they are
    many: every token of every request."""
    for path, open_ in ((f"{name}.jsonl.gz", gzip.open), (f"{name}.jsonl", open)):
        if (pathlib.Path(directory) / path).exists():
            with open_(pathlib.Path(directory) / path, "rt") as file:
                yield from file


def read(directory, name):
    """Records of lines() without headers, each with the number of its header ("run", from 1) and
    with what notes say of it ("void")."""
    records, run = [], 0
    for line in lines(directory, name):
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
    for line in lines(directory, name):
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
    low, high = interval(of) or (value, value)
    show = lambda v: number(v, 3)
    spread_ = f" ({between(of, show)})" if len(of) > 1 else ""
    asked = f"asked at {'least' if at_least else 'most'} {limit:g}"
    open_ = "; the interval holds the limit" if low < limit < high else ""
    return (f"* {what}: {value:.3f}{spread_}, {asked}: " + ("reached" if met else "**missed**")
            + open_ + ("." if usable(agree) else "; not usable by the rule of 2 %."))


def interval(values):
    """The middle 95 % of the median's distribution, by drawing from the values again and again;
    least and most of two; nothing of one."""
    if len(values) < 3:
        return (min(values), max(values)) if len(values) == 2 else None
    draw = random.Random(1)
    medians = sorted(harness.median(draw.choices(values, k=len(values))) for _ in range(1000))
    return medians[25], medians[974]


def between(values, show):
    found = interval(values)
    return f"{show(found[0])} to {show(found[1])}" if found else "–"


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
