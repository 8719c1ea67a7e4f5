# SPDX-License-Identifier: Apache-2.0
"""Limits of wall-clock time in tests.

A limit ends a test that hangs; it is no verdict on speed, and costs nothing while the test passes.
Callers pass a generous time for an idle machine; it is multiplied here by what slows a test down:
VITAMIN_TEST_TIME_SCALE=F sets the factor, else it follows from sanitizers
(VITAMIN_TEST_SANITIZERS, set by CMake) and from how many runnable threads share a processor. The
same for C++: tests/time_limit.h.
"""

import os
import time

# For machines that say nothing of what slows them: CPU quotas, other virtual machines.
USUAL_TIME_SCALE = 4


def time_scale():
    """The factor on every limit."""
    if given := os.environ.get("VITAMIN_TEST_TIME_SCALE"):
        return float(given)
    with open("/proc/loadavg", encoding="ascii") as file:
        minute, _, _, running, _ = file.read().split()
    load = max(float(minute), float(running.split("/")[0])) / (os.cpu_count() or 1)
    build = 3 if os.environ.get("VITAMIN_TEST_SANITIZERS") else 1
    return USUAL_TIME_SCALE * build * min(max(load, 1), 10)


def time_limit(plenty):
    """The limit, in seconds, for what takes at most `plenty` seconds on an idle machine."""
    return plenty * time_scale()


def wait_until(condition, what="the condition", plenty=10, every=0.01):
    """Waits until `condition()` answers something true, and returns that.

    Raises AssertionError, naming `what`, if it does not within the limit.
    """
    limit = time.monotonic() + time_limit(plenty)
    while True:
        # Read before the question: this process may be off its processor between the two.
        over = time.monotonic() > limit
        if answer := condition():
            return answer
        if over:
            raise AssertionError(f"waited in vain for {what}")
        time.sleep(every)
