# SPDX-License-Identifier: Apache-2.0
"""What a quota adds to an allocation and to a free, on the thread that calls: instructions of ours,
calls into the driver and system calls, single-stepped over the software driver. Times are
bench/memory.py's; these counts say whether a time can be ours.

Environment: see doors_test.py.
"""
import collections
import statistics
import subprocess
import unittest

import doors_test
from time_limit import time_limit

PROGRAM = doors_test.PROGRAMS / "allocation_path"
SMALL, LARGE = 512, 2 << 20
Step = collections.namedtuple("Step", "instructions calls system_calls")


def steps(quota):
    """Of each (verb, bytes)."""
    environment = {"VITAMIN_POLICY": "fifo", "VITAMIN_LOCK_DIRECTORY": ""}
    if quota is not None:
        environment["VITAMIN_MEMORY"] = str(quota)
    result = subprocess.run(
        [str(PROGRAM), "libvitamin_cuda.so"], capture_output=True, text=True,
        env=doors_test.changed_environment(True, environment=environment),
        timeout=time_limit(120))
    if result.returncode != 0:
        raise AssertionError(result.stderr)
    found = collections.defaultdict(list)
    for line in result.stdout.splitlines():
        verb, *numbers = line.split()
        size, *counts = map(int, numbers)
        found[verb, size].append(Step(*counts))
    return found


class AllocationPathTest(unittest.TestCase):
    def medians(self, found, name):
        return {key: statistics.median(getattr(step, name) for step in found[key])
                for key in found}

    def test_a_quota_adds_the_same_to_an_allocation_of_any_size(self):
        within, without = steps(64 << 20), steps(None)
        self.assertEqual({key: len(all_) for key, all_ in within.items()},
                         {(verb, size): 7 for verb in ("take", "give") for size in (SMALL, LARGE)})
        print({name: (self.medians(within, name), self.medians(without, name))
               for name in Step._fields})
        for (verb, size), all_ in within.items():
            self.assertEqual([step.system_calls for step in all_], [0] * 7, (verb, size))
            # Which device and which context is current.
            more = 2 if verb == "take" else 0
            self.assertEqual([step.calls - more for step in all_],
                             [step.calls for step in without[verb, size]], (verb, size))
        counts = self.medians(within, "instructions")
        for verb in "take", "give":
            self.assertGreater(counts[verb, SMALL], 100)
            self.assertLessEqual(abs(counts[verb, LARGE] - counts[verb, SMALL]), 100, counts)


if __name__ == "__main__":
    unittest.main()
