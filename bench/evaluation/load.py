# SPDX-License-Identifier: Apache-2.0
"""Arrivals, traces and the statistics of requests. Pure: no GPU, no clock, no numpy."""

import csv
import math
import pathlib
import random

import harness

TRACES = harness.ROOT / "bench" / "evaluation" / "traces"


def percentile(values, share):
    """Linear between neighbours (numpy's default); None of nothing. `share` in 0..1."""
    ordered = sorted(values)
    if not ordered:
        return None
    place = share * (len(ordered) - 1)
    low = math.floor(place)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (ordered[high] - ordered[low]) * (place - low)


def percentile_interval(values, share, z=1.96):
    """The 95 % interval of a percentile by order statistics; None below 20 values."""
    ordered, n = sorted(values), len(values)
    if n < 20:
        return None
    spread = z * math.sqrt(n * share * (1 - share))
    low = max(0, math.floor(n * share - spread))
    high = min(n - 1, math.ceil(n * share + spread))
    return ordered[low], ordered[high]


def geometric_mean(values):
    values = [v for v in values if v and v > 0]
    return math.exp(sum(map(math.log, values)) / len(values)) if values else None


def poisson(rate, seconds, seed):
    """Scheduled times in [0, seconds), of `rate` a second."""
    draw, at, times = random.Random(seed), 0.0, []
    while rate > 0:
        at += draw.expovariate(rate)
        if at >= seconds:
            return times
        times.append(at)
    return times


class Trace:
    """A file of requests: when (s), tokens of the prompt, tokens of the answer."""

    def __init__(self, name):
        path = pathlib.Path(name) if name.endswith(".csv") else TRACES / f"{name}.csv"
        if not path.exists():
            raise harness.Refusal(f"there is no trace '{name}' (bench/evaluation/traces has "
                                  + ", ".join(sorted(p.stem for p in TRACES.glob("*.csv"))) + ")")
        self.name = path.stem
        with open(path, newline="") as file:
            self.rows = [(float(r["t_s"]), int(r["prompt_tokens"]), int(r["output_tokens"]))
                         for r in csv.DictReader(file)]

    @property
    def synthetic(self):
        return "_synth" in self.name

    def requests(self, rate, seconds, seed, prompt_most, output_most):
        """The requests of one run: a stretch of rate x seconds rows that begins at a place drawn
        from the seed, its times multiplied by one factor so that it lasts `seconds`. Returns the
        requests and how they were cut."""
        count = min(max(2, round(rate * seconds)), len(self.rows))
        first = random.Random(seed).randrange(len(self.rows) - count + 1)
        rows = self.rows[first:first + count]
        span = (rows[-1][0] - rows[0][0]) or 1.0
        factor = seconds / span
        requests = [{"at": (t - rows[0][0]) * factor, "prompt": max(1, min(p, prompt_most)),
                     "output": max(1, min(o, output_most))} for t, p, o in rows]
        cut = {"trace": self.name, "synthetic": self.synthetic, "t0_s": rows[0][0],
               "span_s": span, "time_factor": factor, "requests": count, "seed": seed,
               "prompt_clip": prompt_most, "output_clip": output_most,
               "clipped": sum(p > prompt_most or o > output_most for _, p, o in rows)}
        return requests, cut

    def means(self, prompt_most, output_most):
        prompts = [min(p, prompt_most) for _, p, _ in self.rows]
        outputs = [min(o, output_most) for _, _, o in self.rows]
        return sum(prompts) / len(prompts), sum(outputs) / len(outputs)


SLO = {"interactive": (0.5, 0.030), "server": (2.0, 0.100)}  # TTFT, TPOT in s (MLPerf)


def scaled(scale):
    """TTFT and TPOT of interactive serving in s, times `scale`."""
    return tuple(scale * limit for limit in SLO["interactive"])


SCALES = (0.35, 0.5, 0.75, 1, 1.25, 1.5, 2)


def first_token_due(waiting, after, ttft, usual):
    """When the first of `waiting`, (arrival, tokens) in the order of their arrival, has to end for
    those to be in time that can be if it begins at `after`; where none can, when it should have.
    `usual`: seconds of a prompt of so many tokens, alone."""
    due, late, ahead = [], [], 0.0
    for number, (arrival, tokens) in enumerate(waiting):
        ahead += usual(tokens) if number else 0
        by = arrival + ttft - ahead
        (due if by >= after + usual(waiting[0][1]) else late).append(by)
    return min(due or late)


def serving(requests, seconds):
    """The figures of one serving run. A request: `at` (scheduled), `tokens` (times of its tokens,
    the first included), `output` (tokens wanted); seconds of one clock. A request that never ended
    violates both goals; one of a single token has no TPOT."""
    ended = [r for r in requests if len(r["tokens"]) >= r["output"]]
    ttft = [r["tokens"][0] - r["at"] for r in requests if r["tokens"]]
    tpot_of = lambda r: (r["tokens"][-1] - r["tokens"][0]) / (len(r["tokens"]) - 1)
    tpot = [tpot_of(r) for r in ended if r["output"] > 1]
    gaps = [b - a for r in requests for a, b in zip(r["tokens"], r["tokens"][1:])]

    def violations(ttft_most, tpot_most):
        late = slow = both = timed = 0
        for r in requests:
            unfinished = len(r["tokens"]) < r["output"]
            is_late = not r["tokens"] or unfinished or r["tokens"][0] - r["at"] > ttft_most
            has_tpot = r["output"] > 1
            is_slow = has_tpot and (unfinished or tpot_of(r) > tpot_most)
            late += is_late
            slow += is_slow
            timed += has_tpot
            both += not is_late and not is_slow
        share = lambda part, whole: part / whole if whole else None
        return {"ttft": share(late, len(requests)), "tpot": share(slow, timed),
                "goodput": both / seconds}

    figures = lambda values: {"mean": sum(values) / len(values), "p50": percentile(values, 0.5),
                              "p90": percentile(values, 0.9), "p99": percentile(values, 0.99),
                              "n": len(values)} if values else {"n": 0}
    return {"requests": len(requests), "ended": len(ended), "ttft": figures(ttft),
            "tpot": figures(tpot), "itl": figures(gaps),
            "violations": {name: violations(*goal) for name, goal in SLO.items()},
            "scales": {f"{s:g}": violations(*scaled(s)) for s in SCALES}}
