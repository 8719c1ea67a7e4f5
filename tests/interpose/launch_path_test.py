# SPDX-License-Identifier: Apache-2.0
"""What a launch costs in instructions of ours, on the thread that launches: single-stepped over the
software driver, which shows the same numbers as an H200 (bench/results/green, bench/micro.py path).

Environment: see doors_test.py; besides RANDOM_KERNELS.
"""
import os
import statistics
import subprocess
import unittest

import doors_test
from time_limit import time_limit

PROGRAM = doors_test.PROGRAMS / "launch_path"
LAUNCHES = 7
# Before the redesigns of the submission pipeline and of the scheduler, at c36b089. A change that
# needs more has to save them elsewhere, or to say in its message what they buy.
MOST_INSTRUCTIONS = {"fifo": 573, "static": 706, "random": 2865}


def instructions(policy, preload=True):
    """Of our library, of each launch that is counted."""
    result = subprocess.run(
        [str(PROGRAM), "libvitamin_cuda.so", os.environ["RANDOM_KERNELS"]],
        env=doors_test.changed_environment(preload, environment={"VITAMIN_POLICY": policy,
                                                                 "VITAMIN_SEED": "1"}),
        capture_output=True, text=True, timeout=time_limit(120))
    if result.returncode != 0:
        raise AssertionError(result.stderr)
    return [int(line) for line in result.stdout.split()]


class LaunchPathTest(unittest.TestCase):
    def test_a_launch_executes_no_more_instructions_than_it_did(self):
        for policy, most in MOST_INSTRUCTIONS.items():
            with self.subTest(policy=policy):
                counts = instructions(policy)
                self.assertEqual(len(counts), LAUNCHES)
                # Some launches also close a batch or meet a decision; the median is the path.
                median = statistics.median(counts)
                self.assertGreater(median, 100)  # it went through our library
                self.assertLessEqual(median, most, counts)

    def test_without_the_library_nothing_of_it_is_counted(self):
        self.assertEqual(instructions("fifo", preload=False), [0] * LAUNCHES)


if __name__ == "__main__":
    unittest.main()
