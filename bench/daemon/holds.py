# SPDX-License-Identifier: Apache-2.0
"""Which of the SMs that a status of vitamind shows are held twice against the rules.

Earlier work may overlap: work in one client's fallback partition beside what another still had
there. So may shared grants, which members of a group have, and a shared grant beside one of another
client that drains. No others overlap.
"""
import itertools


def held_twice(device):
    """Pairs of holds of a device of the status, by two clients."""
    parts = [hold for hold in device["held"] if not hold["whole"]]
    for one, other in itertools.combinations(parts, 2):
        both = {key: one[key] and other[key] for key in ("adopted", "shared", "open")}
        apart = not (one["shared"] or other["shared"]) or (both["open"] and not both["shared"])
        if (one["client"] != other["client"] and one["units"] & other["units"] and apart
                and not both["adopted"]):
            yield one, other
