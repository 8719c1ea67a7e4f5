# SPDX-License-Identifier: Apache-2.0
"""Programs with deep streams, and with threads and devices that wait, bare and under the preloaded
library: what they print must be equal, and none may hang.

Environment: see programs_test.py.
"""
import unittest

import programs_test


class Queues(unittest.TestCase):
    def check(self, scenario, policies=programs_test.POLICIES, windows=("max",)):
        bare = programs_test.start("queue_scenarios", scenario, preload=False)
        self.assertEqual((bare.returncode, bare.stderr), (0, ""), bare)
        for policy in policies:
            for window in windows:
                done = programs_test.start("queue_scenarios", scenario, policy=policy,
                                           window=window)
                self.assertEqual((done.returncode, done.stdout, done.stderr),
                                 (0, bare.stdout, ""), (policy, window))

    def test_launches_and_records_that_a_driver_takes_block_no_thread(self):
        self.check("launches_and_records", windows=programs_test.WINDOWS)

    def test_legacy_launches_that_a_driver_takes_block_no_thread(self):
        self.check("legacy_launches")

    def test_more_records_than_a_driver_takes_launches_block_no_thread(self):
        self.check("many_records_behind_a_gate", windows=programs_test.WINDOWS)

    def test_what_a_driver_takes_behind_a_host_function_blocks_no_thread(self):
        self.check("full_behind_a_host_function", windows=programs_test.WINDOWS)

    def test_what_a_driver_takes_behind_the_legacy_stream_blocks_no_thread(self):
        self.check("full_behind_the_legacy_stream", windows=programs_test.WINDOWS)

    def test_what_a_driver_takes_behind_a_kernel_blocks_no_thread(self):
        self.check("full_behind_a_kernel", windows=programs_test.WINDOWS)

    def test_what_a_driver_takes_behind_a_second_gate_blocks_no_thread(self):
        self.check("full_behind_a_second_gate")

    def test_launches_that_the_driver_refuses_hold_no_other_stream(self):
        self.check("refused_on_a_held_stream")

    def test_a_graph_is_launched_behind_its_own_launch_alone(self):
        self.check("graph_of_two_streams")

    def test_destroying_a_deep_stream_waits_for_nothing(self):
        self.check("deep_stream_destroyed")

    def test_a_thread_that_fills_a_stream_holds_up_no_other(self):
        self.check("launches_run_ahead")

    def test_a_thread_that_fills_a_stream_with_value_waits_holds_up_no_other(self):
        self.check("value_waits_run_ahead")

    def test_frees_on_one_device_do_not_wait_for_another(self):
        self.check("frees_beside_a_held_device")

    def test_frees_in_one_context_do_not_wait_for_another_of_the_device(self):
        self.check("frees_beside_a_held_context")

    def test_a_module_is_unloaded_behind_the_launches_of_its_own_context(self):
        self.check("unloaded_from_another_context", windows=("0", "max"))

    def test_deferred_launches_go_on_while_a_graph_cannot_be_made(self):
        self.check("graph_is_made_while_a_thread_waits", windows=("0", "max"))


if __name__ == "__main__":
    unittest.main()
