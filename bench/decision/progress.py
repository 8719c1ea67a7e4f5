# SPDX-License-Identifier: Apache-2.0
"""How far a job has got at any time, in steps with fractions, from its marks.

Marks inside a step divide it into segments. A segment counts for the share of a step that it takes
when the job is alone (`weights`); inside a segment progress is linear in time. So a block of 200 ms
is no coarser for a job of long steps, and what marks of unequal distance do to a rate cancels.
Pure: no clock, no GPU.
"""

import bisect


def equal_weights(groups):
    return [1 / groups] * groups


def weights(runs):
    """The mean share of a step of each segment, over the whole steps of runs of one job. The first
    step of a run, which begins with an idle GPU, is left out. None where there is no other."""
    sums, groups = None, None
    for run in runs:
        groups = run["groups"]
        sums = sums or [0.0] * groups
        us, skip = run["us"], groups - run["first"] % groups
        for at in range(skip, len(us) - groups + 1, groups):
            for i in range(groups):
                sums[i] += us[at + i]
    total = sum(sums or [])
    return [s / total for s in sums] if total else None


class Timeline:
    """Of one job. `runs`: as the job answers them, in any order; runs do not overlap."""

    def __init__(self, runs, shares=None):
        self.times, self.steps = [], []
        self.ends = []  # times of the ends of steps
        for run in sorted(runs, key=lambda r: r["begin"]):
            groups = run["groups"]
            ends = [0.0]
            for share in shares or equal_weights(groups):
                ends.append(ends[-1] + share)
            ends[-1] = 1.0
            count, at = run["first"], run["begin"]
            self.times.append(at)
            self.steps.append(count // groups + ends[count % groups])
            for us in run["us"]:
                at, count = at + us / 1e6, count + 1
                self.times.append(at)
                self.steps.append(count // groups + ends[count % groups])
                if count % groups == 0:
                    self.ends.append(at)

    def durations(self, begin, end):
        """Seconds of each step that began and ended in the window, behind another one."""
        first = bisect.bisect_left(self.ends, begin)
        inside = self.ends[first:bisect.bisect_right(self.ends, end)]
        return [b - a for a, b in zip(inside, inside[1:])]

    def at(self, time):
        """Steps until `time`; what lies before the first mark or behind the last one counts 0."""
        if not self.times:
            return 0.0
        right = bisect.bisect_right(self.times, time)
        if right == 0:
            return self.steps[0]
        if right == len(self.times):
            return self.steps[-1]
        left = right - 1
        span = self.times[right] - self.times[left]
        part = (time - self.times[left]) / span if span > 0 else 1.0
        return self.steps[left] + part * (self.steps[right] - self.steps[left])

    def covers(self, begin, end):
        """Whether marks lie on both sides of the window."""
        return bool(self.times) and self.times[0] <= begin and end <= self.times[-1]

    def speed(self, begin, end):
        """Steps a second; None where the marks do not cover the window."""
        if not self.covers(begin, end) or end <= begin:
            return None
        return (self.at(end) - self.at(begin)) / (end - begin)

    def speeds(self, begin, end, width):
        """Of consecutive windows of `width` in [begin, end]."""
        found, at = [], begin
        while at + width <= end + 1e-9:
            found.append(self.speed(at, at + width))
            at += width
        return [s for s in found if s is not None]
