# SPDX-License-Identifier: Apache-2.0
"""Statistics of paired blocks. Pure: no GPU, no clock; draws come from fixed seeds.

A round has one block of every arm, in random order. What drifts over seconds (clocks, the host's
neighbours) is common to the arms of a round, so rounds, not blocks, are drawn again: an interval of
a ratio of two arms is that of ratios of sums over the same drawn rounds.
"""

import math
import random

RESAMPLES = 2000
CONFIDENCE = 0.95


def mean(values):
    values = list(values)
    return sum(values) / len(values) if values else None


def geometric_mean(values):
    return math.exp(mean(map(math.log, values))) if values and min(values) > 0 else 0.0


def quantile(ordered, share):
    """Of sorted values, linear between neighbours."""
    place = share * (len(ordered) - 1)
    low = math.floor(place)
    high = min(low + 1, len(ordered) - 1)
    if math.isinf(ordered[high]):
        return ordered[high] if place > low else ordered[low]
    return ordered[low] + (ordered[high] - ordered[low]) * (place - low)


class Interval:
    """A value, and where it lies with CONFIDENCE."""

    def __init__(self, value, low, high):
        self.value, self.low, self.high = value, low, high

    @property
    def half(self):
        """Half of the width, relative to the value."""
        return (self.high - self.low) / 2 / abs(self.value) if self.value else math.inf

    def text(self, digits=3):
        return f"{self.value:.{digits}f} ± {(self.high - self.low) / 2:.{digits}f}"

    def json(self):
        return [round(x, 6) for x in (self.value, self.low, self.high)]


def bootstrap(count, statistic, resamples=RESAMPLES, seed=1):
    """The interval of `statistic(indices)`, where indices are drawn from range(count) with return.
    Requires count >= 2."""
    draw = random.Random(seed)
    value = statistic(range(count))
    found = sorted(statistic(draw.choices(range(count), k=count)) for _ in range(resamples))
    tail = (1 - CONFIDENCE) / 2
    return Interval(value, quantile(found, tail), quantile(found, 1 - tail))


def ratio(ours, theirs, **more):
    """Of the means of two arms, paired by round. Lists of equal length."""
    total = lambda values, indices: sum(values[i] for i in indices)
    return bootstrap(len(ours), lambda drawn: total(ours, drawn) / total(theirs, drawn), **more)


def relative(speeds, alone):
    """speeds, alone: of each job a list by round. Of each job its speed relative to alone."""
    return [sum(s) / sum(a) for s, a in zip(speeds, alone)]


def objective(speeds, alone, combine, **more):
    """The interval of `combine` (sum, geometric_mean) of the jobs' relative speeds."""
    def statistic(drawn):
        drawn = list(drawn)
        return combine([sum(s[i] for i in drawn) / sum(a[i] for i in drawn)
                        for s, a in zip(speeds, alone)])
    return bootstrap(len(speeds[0]), statistic, **more)


def objective_ratio(ours, theirs, alone, combine, **more):
    """The interval of the ratio of two arms by `combine`, paired by round."""
    def statistic(drawn):
        drawn = list(drawn)
        of = lambda speeds: combine([sum(s[i] for i in drawn) / sum(a[i] for i in drawn)
                                     for s, a in zip(speeds, alone)])
        return of(ours) / of(theirs)
    return bootstrap(len(ours[0]), statistic, **more)


def variation(values):
    """Standard deviation over mean; None below two values or where the mean is 0."""
    if len(values) < 2 or not mean(values):
        return None
    m = mean(values)
    return math.sqrt(sum((v - m) ** 2 for v in values) / (len(values) - 1)) / m


def autocorrelation(values, lag):
    """Of one series; None where it is too short or constant."""
    m = mean(values)
    if len(values) < lag + 2:
        return None
    total = sum((v - m) ** 2 for v in values)
    if total == 0:
        return None
    return sum((a - m) * (b - m) for a, b in zip(values, values[lag:])) / total


def rounds_needed(variation_of_difference, lead, errors=2.5):
    """Paired blocks until a difference of `lead` (relative) is `errors` standard errors."""
    return math.ceil((errors * variation_of_difference / lead) ** 2)


def binomial_two_sided(successes, trials):
    """The exact p-value of a fair coin: of an outcome as unlikely as this one, or more so."""
    if trials == 0:
        return 1.0
    few = min(successes, trials - successes)
    tail = sum(math.comb(trials, k) for k in range(few + 1)) / 2 ** trials
    return min(1.0, 2 * tail)


def discordant(ours, theirs, resamples=RESAMPLES):
    """Two arms served the same requests: `ours`, `theirs` say of each whether it violated its goal.
    McNemar's exact test on those that differ, and the interval of the difference of the rates."""
    only_ours = sum(a and not b for a, b in zip(ours, theirs))
    only_theirs = sum(b and not a for a, b in zip(ours, theirs))
    count = len(ours)
    change = bootstrap(count, lambda drawn: sum(ours[i] - theirs[i] for i in drawn) / count,
                       resamples)
    return {"requests": count, "ours": sum(ours) / count, "theirs": sum(theirs) / count,
            "only_ours": only_ours, "only_theirs": only_theirs, "difference": change.json(),
            "p": binomial_two_sided(only_ours, only_ours + only_theirs)}
