# SPDX-License-Identifier: Apache-2.0
"""Programs whose deferred work meets what is not virtualised, bare and under the preloaded library:
every answer, and what lies in memory in the end, must be equal.

Environment: see programs_test.py.
"""
import os
import pathlib
import subprocess
import sys
import tempfile
import unittest

import doors_test
import programs_test

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent))
import time_limit  # noqa: E402

POLICIES = (("fifo", 1), ("static", 1), ("random", 1), ("random", 2))


def run(scenario, policy=None, seed=1, run_directory=None, program="boundaries"):
    """(exit code, output, errors); a program that hangs fails the test."""
    environment = {"VITAMIN_SOFT_DEVICES": "2"}
    if policy:
        environment |= {"VITAMIN_POLICY": policy, "VITAMIN_SEED": str(seed)}
    if run_directory:
        environment["VITAMIN_RUN_DIR"] = run_directory
    changed = doors_test.changed_environment(policy is not None, environment=environment)
    done = subprocess.run([str(doors_test.PROGRAMS / program), scenario], capture_output=True,
                          text=True, check=False, timeout=time_limit.time_limit(10), env=changed)
    return done.returncode, done.stdout, done.stderr


class Compared(unittest.TestCase):
    program = "boundaries"

    def check(self, scenario):
        """The statistics of each preloaded run."""
        expected = run(scenario, program=self.program)
        self.assertEqual(expected[0], 0, expected)
        pages = []
        for policy, seed in POLICIES:
            with tempfile.TemporaryDirectory() as directory:
                self.assertEqual(run(scenario, policy, seed, directory, self.program), expected,
                                 (scenario, policy, seed))
                pages.append(programs_test.page_of(directory).get(self.program, {}))
        return pages


class Boundaries(Compared):
    def test_an_event_of_a_graph_is_recorded_by_a_call_behind_a_gate(self):
        self.check("event_of_a_graph")

    def test_an_event_is_given_to_a_graph_while_its_record_waits(self):
        self.check("event_given_to_a_graph")

    def test_an_event_of_a_capture_is_recorded_by_a_foreign_stream(self):
        self.check("event_of_a_capture_recorded_elsewhere")

    def test_a_managed_stream_joins_the_capture_of_a_green_stream(self):
        self.check("capture_of_a_green_stream")

    def test_a_foreign_capturing_stream_is_destroyed(self):
        for page in self.check("capturing_stream_destroyed"):
            self.assertEqual((page["bound"], page["bridged"]), (10, 0))

    def test_a_blocking_stream_captures_behind_held_legacy_work(self):
        self.check("capture_behind_held_legacy_work")

    def test_a_capture_begins_while_a_free_is_held(self):
        self.check("capture_behind_a_held_free")

    def test_a_foreign_stream_waits_for_an_event_of_a_deep_stream(self):
        self.check("foreign_wait_for_a_deep_stream")

    def test_a_foreign_stream_allocates_what_deferred_work_frees(self):
        self.check("foreign_allocation_behind_a_deferred_free")

    def test_a_primary_context_is_reset_with_work_outstanding(self):
        self.check("primary_context_reset")

    def test_a_primary_context_is_released_with_work_outstanding(self):
        self.check("primary_context_released")

    def test_a_created_context_is_destroyed_beside_deferred_work(self):
        for page in self.check("created_context_destroyed"):
            self.assertEqual(page["bridged"], 0)

    def test_refused_launches_are_refused_by_the_call(self):
        self.check("refused_launches")

    def test_refused_copies_fills_and_records_are_refused_by_the_call(self):
        self.check("refused_calls")

    def test_copies_between_contexts_are_ordered_with_both(self):
        self.check("peer_copies")

    def test_a_copy_between_contexts_is_ordered_with_what_came_before_it_only(self):
        self.check("copies_behind_a_gate")

    def test_copies_between_contexts_of_one_device_are_ordered_with_both(self):
        self.check("copies_beside_a_created_context")

    # AddressSanitizer (GCC 12) does not take its locks at fork: a child that frees memory can wait
    # for a thread that only its parent has. One run of five hundred did.
    @unittest.skipIf("address" in os.environ["VITAMIN_TEST_SANITIZERS"],
                     "a child under AddressSanitizer can wait for a lock of its parent")
    def test_forked_children_exit(self):
        self.check("children_that_exit")

    def test_default_streams_of_threads_begin_without_attributes(self):
        self.check("attributes_of_ended_threads")

    def test_threads_sleep_while_there_is_nothing_to_do(self):
        self.check("threads_that_sleep")


class HeldStreams(Compared):
    program = "held_streams"

    def test_refused_frees_are_refused_by_the_call(self):
        self.check("refused_frees")

    def test_a_deferred_free_takes_the_memory_at_once(self):
        self.check("frees_made_twice")

    def test_a_pool_counts_what_deferred_work_frees(self):
        self.check("attributes_of_a_pool")

    def test_a_wait_for_an_event_keeps_the_record_that_it_meant(self):
        self.check("event_recorded_again_while_waited_for")

    def test_elapsed_times_are_refused_before_events_are_waited_for(self):
        self.check("elapsed_times")

    def test_records_waits_and_host_functions_never_block_the_caller(self):
        self.check("many_markers")

    def test_wrong_batches_of_value_operations_are_refused(self):
        self.check("batches")

    def test_fills_and_copies_of_device_memory_return_at_once(self):
        self.check("fills_and_copies_of_device_memory")

    def test_work_of_destroyed_streams_goes_on(self):
        self.check("destroyed_streams")

    def test_calls_that_a_capture_forbids_break_it_at_once(self):
        self.check("calls_in_captures")


if __name__ == "__main__":
    unittest.main()
