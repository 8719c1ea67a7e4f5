# SPDX-License-Identifier: Apache-2.0
"""What serving.py measured, as tables. Pure: no GPU, no clock."""

import json
import pathlib
import statistics

import harness
import load
from paired import bootstrap

TRAINING_ALONE = ("training alone", "training alone, Vitamin")


def read(path):
    """The records of all commands in a file."""
    return [json.loads(line) for line in pathlib.Path(path).read_text().splitlines()]


def by_round(records):
    """Rounds that have a block of every arm: number of the command and round, arm: record."""
    command, rounds, arms = 0, {}, []
    for r in records:
        command += "serving" in r
        arms = r["serving"]["arms"] if "serving" in r else arms
        if "arm" in r:
            rounds.setdefault((command, r["round"]), {})[r["arm"]] = r
    return [found for found in rounds.values() if len(found) == len(arms)], arms


def answers(blocks):
    return [a for b in blocks for a in b["answers"] if "error" not in a]


def text(value, scale=1.0, digits=1):
    return "–" if value is None else f"{scale * value:.{digits}f}"


def interval(values, digits):
    """Of a median over blocks: what another draw of the rounds might give."""
    if not values:
        return "–"
    middle = statistics.median(values)
    if len(values) < 2:
        return text(middle, digits=digits)
    found = bootstrap(len(values), lambda drawn: statistics.median(values[i] for i in drawn))
    return f"{middle:.{digits}f} ({found.low:.{digits}f} to {found.high:.{digits}f})"


def summary(rounds, arm):
    """Of one arm, over all of its blocks."""
    blocks = [r[arm] for r in rounds]
    kept = answers(blocks)
    share = lambda key, p: load.percentile([a[key] for a in kept], p)
    return {"requests": len(kept),
            "failed": sum("error" in a for b in blocks for a in b["answers"]),
            "ttft": [share("ttft", 0.5), share("ttft", 0.99)],
            "tpot": [share("tpot", 0.5), share("tpot", 0.99)],
            **{key: [b[key] for b in blocks if b.get(key)]
               for key in ("tokens_per_s", "steps_per_s", "steps_per_s_closed")}}


HEADS = ["arm", "TTFT p50 ms", "TTFT p99 ms", "TPOT p50 ms", "TPOT p99 ms", "training / alone",
         "server full: tokens/s", "training / alone then"]


def rows(records):
    rounds, arms = by_round(records)
    found = {arm: summary(rounds, arm) for arm in arms}
    alone = next((a for a in TRAINING_ALONE if a in arms), None)
    for arm in arms:
        s = found[arm]
        share = lambda key: [r[arm][key] / r[alone]["steps_per_s"] for r in rounds
                             if alone and r[arm].get(key)]
        yield [arm, *(text(s[key][i], 1e3, digits) for key, digits in (("ttft", 0), ("tpot", 1))
                      for i in (0, 1)),
               interval(share("steps_per_s"), digits=2), interval(s["tokens_per_s"], digits=0),
               interval(share("steps_per_s_closed"), digits=2)]


def requests_of(records):
    rounds, arms = by_round(records)
    return {arm: summary(rounds, arm)["requests"] for arm in arms}


def texts_equal(records):
    """Whether all servers gave the same texts, one request at a time; None where none was asked."""
    checked = [r["checked"] for r in records if "checked" in r]
    return all(len({tuple(t) for t in c.values()}) == 1 for c in checked) if checked else None


def report(records):
    rounds, _ = by_round(records)
    counts = requests_of(records)
    equal = {True: "equal", False: "DIFFERENT", None: "not asked"}[texts_equal(records)]
    return "\n".join([
        harness.table(list(rows(records)), HEADS), "",
        f"{len(rounds)} rounds; requests of an arm: {max(counts.values(), default=0)}; medians "
        "over rounds, in brackets the middle 95 % of their distribution; percentiles over all "
        f"requests. Texts, one request at a time: {equal}."])
