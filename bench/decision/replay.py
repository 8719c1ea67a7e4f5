# SPDX-License-Identifier: Apache-2.0
"""Latency at a load, from measured service times: arrivals replayed through one server. Pure.

A window of 80 requests says little of their p99: it differs by 40 % between windows. What one
request takes is measured well by far fewer, if it is known what it depends on: whether the server
was idle before it (the partner's work is in the way, or the partner was given the GPU) or busy (the
request was queued, the partner has made way). So each is drawn from what was measured in the same
place:

    first      the server was idle; by how long: short and long gaps apart
    queued     by its place in the busy period, 1, 2, 3 and more

Arrivals are Poisson at a load relative to the mean service time alone, or given.
"""

import dataclasses
import math
import random

import paired

ARRIVALS = 100_000
PLACES = 3  # queued requests of this place and later ones are taken for alike
SATURATED = 0.999  # a busy share from which on the queue grows without end
QUANTILES = (0.5, 0.9, 0.99)


@dataclasses.dataclass
class Service:
    """Measured service times of one arm, seconds."""
    short: list  # first of a busy period, behind a gap of at most `edge`
    long: list
    edge: float
    queued: list  # by place - 1

    def first(self, gap):
        return self.short if gap <= self.edge else self.long

    def later(self, place):
        return self.queued[min(place, len(self.queued)) - 1]

    @property
    def count(self):
        return len(self.short) + len(self.long) + sum(map(len, self.queued))


def service(requests):
    """Of [begin, end, place in its burst, gap before the burst]. Requires first ones; where no
    request was queued, queued ones are taken for first ones."""
    first = sorted((gap, end - begin) for begin, end, place, gap in requests if place == 0)
    edge = first[len(first) // 2][0]
    short = [s for gap, s in first if gap <= edge]
    long = [s for gap, s in first if gap > edge] or short
    queued = [[e - b for b, e, place, _ in requests if place == p] for p in range(1, PLACES)]
    queued.append([e - b for b, e, place, _ in requests if place >= PLACES])
    known = [q for q in queued if q] or [short + long]
    last, filled = known[0], []
    for q in queued:
        last = q or last
        filled.append(last)
    return Service(short, long, edge, filled)


def arrivals(rate, count, seed):
    """Poisson: times of `count` arrivals."""
    draw, at, times = random.Random(seed), 0.0, []
    for _ in range(count):
        at += draw.expovariate(rate)
        times.append(at)
    return times


def replay(measured, times, seed=1):
    """One server, first come first served. Latencies in the order of arrival, and the share of the
    time in which the server is busy."""
    draw = random.Random(seed)
    latencies, free, place, busy = [], 0.0, 0, 0.0
    for at in times:
        if at >= free:
            pool, begin, place = measured.first(at - free), at, 0
        else:
            place += 1
            pool, begin = measured.later(place), free
        took = pool[int(draw.random() * len(pool))]
        free = begin + took
        busy += took
        latencies.append(free - at)
    return latencies, busy / max(free, 1e-12)


def summary(latencies):
    ordered = sorted(latencies)
    return {"mean": paired.mean(ordered),
            **{f"p{100 * q:g}": paired.quantile(ordered, q) for q in QUANTILES}}


def drawn_again(measured, seed):
    """The same service times, drawn with return: another sample of as many."""
    draw = random.Random(seed)
    again = lambda values: draw.choices(values, k=len(values))
    return Service(again(measured.short), again(measured.long), measured.edge,
                   [again(q) for q in measured.queued])


def at_load(requests, alone_mean, load, count=ARRIVALS, resamples=20, seed=1):
    """Intervals of the mean and the quantiles of latency at `load`, with the share of busy time.
    The interval is that of the measured service times drawn again; the arrivals are the same in
    every arm and sample, so that arms differ by their service times only. None at a load that the
    server cannot bear."""
    measured = service(requests)
    times = arrivals(load / alone_mean, count, seed)
    latencies, busy = replay(measured, times)
    if busy >= SATURATED:
        return None
    value = summary(latencies)
    few = times[:max(count // 5, 2000)]
    base = summary(replay(measured, few)[0])
    others = []
    for i in range(seed + 1, seed + 1 + resamples):
        again, share = replay(drawn_again(measured, i), few, i)
        others.append(summary(again) if share < SATURATED else None)
    answer = {"busy": busy, "arrivals": count}
    for key, at in value.items():
        spread = sorted(o[key] / base[key] if o else math.inf for o in others)
        answer[key] = paired.Interval(at, at * paired.quantile(spread, 0.025),
                                      at * paired.quantile(spread, 0.975))
    return answer


def harvest(busy, beside_busy, beside_idle):
    """The partner's speed relative to alone at a share of busy time, of its speed beside a request
    and between requests."""
    return busy * beside_busy + (1 - busy) * beside_idle


EVERY = 10 ** 9  # more places than a busy period has
LIMIT = 1.15  # of p99, relative to alone


def mixed(alone, beside, places, share, times, seed=1):
    """As replay(), where the partner runs beside the first `places` requests of a busy period, in
    `share` of the busy periods, and is stopped for the others. Latencies, and the shares of the
    time in which a request is served beside the partner, and in which none is served."""
    draw = random.Random(seed)
    latencies, free, place, chosen, together, idle = [], 0.0, 0, False, 0.0, 0.0
    for at in times:
        if at >= free:
            gap, begin, place = at - free, at, 0
            idle += gap
            chosen = draw.random() < share
            with_partner = chosen and places > 0
            pool = (beside if with_partner else alone).first(gap)
        else:
            place, begin = place + 1, free
            with_partner = chosen and place < places
            pool = (beside if with_partner else alone).later(place)
        took = pool[int(draw.random() * len(pool))]
        together += took if with_partner else 0.0
        free = begin + took
        latencies.append(free - at)
    return latencies, together / free, idle / free


def oracle(alone, beside, alone_mean, load, limit=LIMIT, count=ARRIVALS // 2, seed=1):
    """The most that the partner can get on while p99 stays within `limit` of alone: the GPU is its
    own between requests, at no cost of changing, and it runs beside some requests in the best
    arrangement that was measured. beside: by arm its Service and the partner's speed beside a
    request, relative to alone. It knows the future only as far as the place in the busy period."""
    times = arrivals(load / alone_mean, count, seed)
    p99 = lambda latencies: paired.quantile(sorted(latencies), 0.99)
    latencies, _, idle = mixed(alone, alone, 0, 0, times)
    most = p99(latencies)
    best = {"training": idle, "arm": None, "places": 0, "share": 0.0, "p99": 1.0}
    for arm, (service_, speed) in beside.items():
        for places in (1, 2, PLACES, EVERY):
            low, high = 0.0, 1.0
            for step in range(5):  # the largest share within the limit
                share = 1.0 if step == 0 else (low + high) / 2
                latencies, together, idle = mixed(alone, service_, places, share, times)
                over = p99(latencies) / most
                low, high = (share, high) if over <= limit else (low, share)
                training = together * speed + idle
                if over <= limit and training > best["training"]:
                    best = {"training": training, "arm": arm, "places": places, "share": share,
                            "p99": over}
                if low == 1.0:
                    break
    return best


def check(requests, live, key="p90", resamples=200, seed=1):
    """A live open loop against its replay: the measured value, the interval of the same value over
    replays of as many arrivals at the same times, and whether it lies inside. live: [scheduled,
    begin, end] of each request."""
    measured = service(requests)
    times = sorted(at for at, _, _ in live)
    seen = summary([end - at for at, _, end in live])[key]
    found = sorted(summary(replay(drawn_again(measured, seed + i), times, seed + i)[0])[key]
                   for i in range(resamples))
    low, high = paired.quantile(found, 0.025), paired.quantile(found, 0.975)
    return {"live": seen, "low": low, "high": high, "inside": low <= seen <= high}


def partner_speeds(line, requests, begin, end):
    """The partner's steps a second while a request was served, and between requests; None where
    there was no such time. line: its Timeline."""
    serving = sorted((b, e) for b, e, _, _ in requests)
    edges = [begin, *(t for pair in serving for t in pair), end]
    between = list(zip(edges[0::2], edges[1::2]))
    return _speed(line, serving), _speed(line, between)


def _speed(line, windows):
    known = [(b, e) for b, e in windows if e > b and line.covers(b, e)]
    seconds = sum(e - b for b, e in known)
    return sum(line.at(e) - line.at(b) for b, e in known) / seconds if seconds else None
