# SPDX-License-Identifier: Apache-2.0
"""Whole programs bare and under the preloaded library, over the software driver: what they print
and how they end must be equal, however they reach the driver and wherever their launches run.

Environment: see doors_test.py; besides TEST_KERNELS and RANDOM_KERNELS.
"""
import contextlib
import functools
import itertools
import os
import pathlib
import subprocess
import tempfile
import unittest

import doors_test
from seed import takes_a_sample
from time_limit import time_limit, wait_until

# How a program reaches the driver, and what NULL means in it.
DOORS = (("linked", None), ("found", "dlsym"), ("found", "proc"))
FORMS = ("legacy", "per_thread")
POLICIES = ("fifo", "static", "random")
WINDOWS = ("0", "8000", "max")
STAGE_MANAGED = 3


def page_of(directory):
    """{program: {counter: sum over the processes of that program}} of a run's pages."""
    names = ("seen", "bound", "bridged", "passed", "captured", "narrow", "moved", "deferred")
    text = subprocess.run([str(doors_test.PROGRAMS / "pages"), directory], capture_output=True,
                          text=True, check=True).stdout
    pages = {}
    for line in text.splitlines():
        if line.startswith("  "):
            continue
        words = line.split()
        page = pages.setdefault(words[0], dict.fromkeys((*names, "stage", "warnings"), 0))
        page["stage"] = max(page["stage"], int(words[1]))
        page["warnings"] += int(words[10])
        for name, word in zip(names, words[2:]):
            page[name] += int(word)
    return pages


def start(program, *words, reach="found", form="legacy", door="dlsym", policy="random",
          window="max", seed=1, preload=True, library=None, run_directory=None, devices=2):
    environment = {"VITAMIN_POLICY": policy, "VITAMIN_SEED": str(seed),
                   "VITAMIN_SOFT_DEVICES": str(devices), "DRIVER_DOOR": door or ""}
    if window != "max":
        environment["VITAMIN_WINDOW_NS"] = window
    if run_directory:
        environment["VITAMIN_RUN_DIR"] = run_directory
    if library:
        environment["LD_PRELOAD"] = " ".join(
            name for name in (os.environ.get("FIRST", ""), library) if name)
    return doors_test.run(*words, program=f"{program}_{reach}_{form}", preload=preload,
                          environment=environment)


@functools.cache
def bare(scenario, reach, door, form):
    done = start("scenarios", scenario, reach=reach, door=door, form=form, preload=False)
    return done.returncode, done.stdout


class Scenarios(unittest.TestCase):
    def compare(self, scenario, reach, door, form, policy, window):
        expected = bare(scenario, reach, door, form)
        self.assertEqual(expected[0], 0, expected)
        with tempfile.TemporaryDirectory() as directory:
            done = start("scenarios", scenario, reach=reach, door=door, form=form, policy=policy,
                         window=window, run_directory=directory)
            page = page_of(directory).get(f"scenarios_{reach}"[:15], {})
        where = (scenario, reach, door, form, policy, window)
        self.assertEqual((done.returncode, done.stdout), expected, (where, done.stderr))
        self.assertEqual(done.stderr, "", where)
        self.assertEqual(page["stage"], STAGE_MANAGED, where)
        self.assertGreater(page["bound"], 0, where)
        self.assertEqual(page["seen"], page["bound"] + page["bridged"] + page["passed"], where)
        if policy == "random":
            self.assertGreater(page["narrow"], 0, where)
        return page

    def check(self, scenario):
        if takes_a_sample():
            self.compare(scenario, "linked", None, "legacy", "random", "max")
            self.compare(scenario, "found", "dlsym", "per_thread", "static", "8000")
            self.compare(scenario, "found", "proc", "legacy", "fifo", "0")
            return
        for (reach, door), form in itertools.product(DOORS, FORMS):
            self.compare(scenario, reach, door, form, "random", "max")
        for policy, window in itertools.product(POLICIES, WINDOWS):
            self.compare(scenario, "found", "proc", FORMS[len(policy) % 2], policy, window)

    def test_default_streams_keep_their_order(self):
        self.check("default_streams")

    def test_default_streams_of_threads_keep_their_order(self):
        self.check("default_streams_of_threads")

    def test_a_wait_means_the_record_that_was_newest_then(self):
        self.check("event_generations")

    def test_events_are_recorded_again_and_again(self):
        self.check("event_storm")

    def test_event_times_are_measured(self):
        self.check("event_times")

    def test_a_destroyed_stream_finishes_its_work(self):
        self.check("destroyed_stream")

    def test_two_threads_share_a_stream(self):
        self.check("one_stream_of_two_threads")

    def test_arguments_may_change_when_the_call_has_returned(self):
        self.check("argument_lifetimes")

    def test_a_pageable_source_may_change_when_the_call_has_returned(self):
        self.check("pageable_source")

    def test_copies_of_every_kind_of_memory_follow_their_stream(self):
        self.check("copies")

    def test_memory_is_freed_behind_its_last_user(self):
        self.check("early_free")

    def test_a_module_is_unloaded_behind_its_last_kernel(self):
        self.check("unloaded_module")

    def test_kernels_of_libraries_are_launched(self):
        self.check("library_kernels")

    def test_host_functions_run_in_their_place(self):
        self.check("host_functions")

    def test_a_slow_host_function_holds_its_own_stream_only(self):
        self.check("slow_host_function")

    def test_callbacks_are_told_the_stream_of_the_application(self):
        self.check("callbacks")

    def test_value_waits_hold_their_own_stream_only(self):
        self.check("value_waits")

    def test_many_launches_wait_behind_a_gate(self):
        self.check("many_behind_a_gate")

    def test_captures_and_graphs_give_the_same_result(self):
        self.check("captures")

    def test_a_per_thread_stream_is_captured(self):
        self.check("capture_of_a_thread_stream")

    def test_a_wrong_launch_is_refused_by_the_same_call(self):
        self.check("launch_errors")

    def test_a_faulted_device_is_reported_by_every_later_call(self):
        self.check("sticky_error")

    def test_clusters_and_cooperative_grids_run_unchanged(self):
        self.check("wide_launches")

    def test_programmatic_launches_keep_their_result(self):
        self.check("programmatic_launches")

    def test_settings_of_streams_contexts_and_functions_are_kept(self):
        self.check("stream_settings")

    def test_two_devices_wait_for_each_other(self):
        self.check("two_devices")

    def test_a_context_that_is_not_managed_waits_for_one_that_is(self):
        self.check("foreign_context")

    def test_a_device_is_reset_and_used_again(self):
        self.check("reset_device")

    def test_forks_and_helpers_work_before_and_after_the_first_call(self):
        self.check("forks")

    def test_a_static_destructor_uses_the_driver(self):
        self.check("static_destructor")

    def test_many_threads_work_at_once(self):
        self.check("many_threads")


class Watchdog(unittest.TestCase):
    def test_a_kernel_that_waits_for_its_own_blocks_is_named_and_remembered(self):
        with tempfile.TemporaryDirectory() as directory:
            known = pathlib.Path(directory) / "wide-only"
            environment = doors_test.changed_environment(environment={
                "VITAMIN_POLICY": "static:units=0-0", "VITAMIN_WIDE_ONLY": str(known)})
            command = [str(doors_test.PROGRAMS / "scenarios_found_legacy"), "hand_written_barrier"]
            # 500 blocks wait for each other on 8 processors, which hold 256: it never ends.
            with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE,
                                  stderr=subprocess.PIPE, text=True) as hung:
                wait_until(lambda: known.exists() and known.read_text().endswith("\n")
                           or hung.poll() is not None, "the watchdog", 50)
                errors = hung.stderr.readline()  # said before or behind it
                hung.kill()
                output, more = hung.communicate()
                errors += more
            self.assertEqual(output, "")
            self.assertIn("kernel grid_barrier has run for", errors)
            self.assertEqual(known.read_text(), "grid_barrier\n")
            again = subprocess.run(command, env=environment, capture_output=True, text=True,
                                   timeout=time_limit(60), check=False)
            self.assertEqual((again.returncode, again.stdout), (0, "blocks 500\n"), again.stderr)
            self.assertEqual(known.read_text(), "grid_barrier\n")

    def test_a_kernel_that_several_processes_catch_at_once_is_remembered_once(self):
        with tempfile.TemporaryDirectory() as directory, contextlib.ExitStack() as ends:
            known = pathlib.Path(directory) / "wide-only"
            environment = doors_test.changed_environment(environment={
                "VITAMIN_POLICY": "static:units=0-0", "VITAMIN_WIDE_ONLY": str(known)})
            command = [str(doors_test.PROGRAMS / "scenarios_found_legacy"), "hand_written_barrier"]
            hung = [ends.enter_context(subprocess.Popen(command, env=environment, text=True,
                                                        stdout=subprocess.DEVNULL,
                                                        stderr=subprocess.PIPE)) for _ in range(3)]
            for process in hung:
                ends.callback(process.kill)
            for process in hung:
                self.assertIn("kernel grid_barrier has run for", line := process.stderr.readline())
                self.assertIn("and in later runs, it runs where all of them fit", line)
            self.assertEqual(known.read_text(), "grid_barrier\n")

    def test_with_caution_it_does_not_hang_the_first_time(self):
        with tempfile.TemporaryDirectory() as directory:
            known = pathlib.Path(directory) / "wide-only"
            environment = doors_test.changed_environment(environment={
                "VITAMIN_POLICY": "static:units=0-0", "VITAMIN_WIDE_ONLY": str(known),
                "VITAMIN_CAUTIOUS": "1"})
            command = [str(doors_test.PROGRAMS / "scenarios_found_legacy"), "hand_written_barrier"]
            done = subprocess.run(command, env=environment, capture_output=True, text=True,
                                  timeout=time_limit(60), check=False)
            self.assertEqual((done.returncode, done.stdout), (0, "blocks 500\n"), done.stderr)
            self.assertFalse(known.exists())


class RandomPrograms(unittest.TestCase):
    def check(self, policy, window, programs=None):
        programs = programs or (40 if takes_a_sample() else 400)
        kernels = {"TEST_KERNELS": os.environ["RANDOM_KERNELS"]}
        before = os.environ["TEST_KERNELS"]
        os.environ.update(kernels)
        try:
            for index, form in enumerate(FORMS):
                done = start("random_programs", 1 + index * programs, programs, policy=policy,
                             window=window, form=form)
                self.assertEqual((done.returncode, done.stdout, done.stderr),
                                 (0, f"{programs} programs, 0 wrong\n", ""))
        finally:
            os.environ["TEST_KERNELS"] = before

    def test_random_programs_agree_with_the_reference_under_fifo(self):
        for window in WINDOWS:
            self.check("fifo", window)

    def test_random_programs_agree_with_the_reference_under_static(self):
        for window in WINDOWS:
            self.check("static", window)

    def test_random_programs_agree_with_the_reference_under_random(self):
        for window in WINDOWS:
            self.check("random", window)


class BadInput(unittest.TestCase):
    def test_a_driver_of_this_build_exports_nothing_that_is_not_classified(self):
        os.environ["VITAMIN_DEBUG"] = "1"
        done = start("scenarios", "copies")
        self.assertEqual(done.stderr, "vitamin: the driver exports no stream-ordered function that "
                                      "is not classified\n")

    def test_an_unknown_policy_leaves_the_program_as_it_was_and_says_so_once(self):
        done = start("scenarios", "two_devices", policy="no-such-policy")
        self.assertEqual((done.returncode, done.stdout), bare("two_devices", "found", "dlsym",
                                                              "legacy"))
        self.assertIn("no-such-policy", done.stderr)
        self.assertIn("without late binding", done.stderr)
        self.assertEqual(done.stderr.count("\n"), 1)

    def test_no_device_is_the_driver_s_own_answer(self):
        self.assertEqual(start("scenarios", "copies", devices=0).stdout,
                         start("scenarios", "copies", devices=0, preload=False).stdout)

    def test_a_number_that_is_none_is_named(self):
        done = start("scenarios", "copies", window="soon")
        self.assertEqual(done.returncode, 0)
        self.assertIn("VITAMIN_WINDOW_NS=soon is not a number", done.stderr)


if __name__ == "__main__":
    unittest.main()
