# SPDX-License-Identifier: Apache-2.0
"""Which of the SMs that a status of vitamind shows are held twice against the rules.

Earlier work may overlap earlier work, and what another client had been granted before the work was
reported: after vitamind was stopped for a while, say, when one process reports what it did
meanwhile and another has not connected again yet. So may shared grants, which members of a group
have, and a shared grant beside one of another client that drains. No others overlap.
"""
import itertools


def held_twice(device):
    """Pairs of holds of a device of the status, by two clients."""
    parts = [hold for hold in device["held"] if not hold["whole"]]
    for one, other in itertools.combinations(parts, 2):
        both = {key: one[key] and other[key] for key in ("shared", "open")}
        apart = not (one["shared"] or other["shared"]) or (both["open"] and not both["shared"])
        if (one["client"] != other["client"] and one["units"] & other["units"] and apart
                and not _reported_late(one, other) and not _reported_late(other, one)):
            yield one, other


def _reported_late(earlier_work, other):
    """The other grant is earlier work, too, or was given before this work was reported."""
    return earlier_work["adopted"] and (
        other["adopted"] or other["age_ms"] >= earlier_work["age_ms"])
