# SPDX-License-Identifier: Apache-2.0
"""Programs under a library without its bridges: they must come out wrong, or programs_test.py shows
little.

Environment: see programs_test.py; besides UNBRIDGED, that library.
"""
import os
import unittest

import programs_test


class NegativeControls(unittest.TestCase):
    def wrong(self, scenario, window):
        expected = programs_test.bare(scenario, "found", "dlsym", "legacy")
        for _ in range(20):  # a kernel may end before a program without a processor goes on
            done = programs_test.start("scenarios", scenario, window=window,
                                       library=os.environ["UNBRIDGED"])
            if (done.returncode, done.stdout) != expected:
                return
        self.fail(f"as natively in 20 runs: {expected}")

    def test_without_bridges_memory_is_freed_too_early(self):
        self.wrong("early_free", "max")

    def test_without_bridges_a_pageable_source_is_read_too_late(self):
        self.wrong("pageable_source", "0")

    def test_without_bridges_an_event_means_the_wrong_record(self):
        self.wrong("event_generations", "max")

    def test_the_reference_finds_what_missing_bridges_break(self):
        os.environ["TEST_KERNELS"] = os.environ["RANDOM_KERNELS"]
        done = programs_test.start("random_programs", 1, 200, library=os.environ["UNBRIDGED"])
        self.assertNotEqual(done.returncode, 0, done)


if __name__ == "__main__":
    unittest.main()
