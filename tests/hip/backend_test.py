# SPDX-License-Identifier: Apache-2.0
"""The HIP backend under the real ROCm runtime on the software AMD GPU: what users' settings, old
runtimes and refused queues do, and what reaches the hardware queues."""
import os
import pathlib
import subprocess
import sys
import unittest

from time_limit import time_limit

sys.path.insert(0, str(pathlib.Path(__file__).parents[1] / "amdgpu"))
from software_amd import NO_DEVICE, SoftwareAmd, read_trace  # noqa: E402

PROBE = os.environ["PROBE"]
KERNELS = os.environ["KERNELS"]


class Backend(SoftwareAmd):
    def probe(self, *arguments, **settings):
        """(exit code, {key: value}, notices, trace lines)"""
        trace = self.new_file("trace")
        environment = self.environment(VITAMIN_TEST_KERNELS=KERNELS,
                                       VITAMIN_SOFT_AMDGPU_TRACE=str(trace), **settings)
        result = subprocess.run([PROBE, *map(str, arguments)], env=environment, text=True,
                                capture_output=True, timeout=time_limit(120), check=False)
        pairs = [line.split(" ", 1) for line in result.stdout.splitlines()]
        notices = [text for key, text in pairs if key == "notice"]
        values = {key: text for key, text in pairs if key != "notice"}
        self.assertIn(result.returncode, (0, 1), result.stdout + result.stderr)
        return result.returncode, values, notices, read_trace(trace)

    def launched(self, count, stay_ms, enough, **settings):
        """As probe(), of random launches; again until enough(values, trace): slots are made off
        the path, on a busy machine when the launches have ended."""
        for _ in range(20):
            _, values, notices, trace = self.probe("launch", "random", count, stay_ms, **settings)
            self.check_launches(values, count)
            if enough(values, trace):
                return values, notices, trace
        self.fail((settings, values, notices))

    def masks(self, trace):
        return [line for line in trace if line[""] == "mask"]

    def widths(self, trace):
        return {line["cus"] for line in trace if line.get("kernel", "").startswith("add_slowly")}

    def check_launches(self, values, count):
        self.assertEqual((values["right"], values["bound"]), ("1", str(2 * count)), values)


class Settings(Backend):
    def test_both_parts_have_the_units_that_their_engines_make(self):
        for part, units, processors in (("gfx90a", "13", "104"), ("gfx1030", "10", "40")):
            _, values, notices, _ = self.probe("open", VITAMIN_SOFT_AMDGPU=part)
            self.assertEqual((values["units"], values["processors"]), (units, processors))
            self.assertEqual((values["pool_queues_max"], notices), ("4", []))

    def test_a_mask_of_the_users_is_named_and_no_launch_is_lost(self):
        for name, value in (("HSA_CU_MASK", "0:0-7"), ("ROC_GLOBAL_CU_MASK", "0xff")):
            _, values, notices, trace = self.probe("launch", "random", 20, 0, **{name: value})
            self.check_launches(values, 20)
            self.assertEqual((values["narrow"], len(notices)), ("0", 1), notices)
            self.assertIn(f"{name}={value} confines this process", notices[0])

    def test_many_plain_queues_leave_few_slots(self):
        _, values, notices, _ = self.probe("launch", "random", 50, 0, GPU_MAX_HW_QUEUES="6")
        self.check_launches(values, 50)
        self.assertEqual(values["most_queues"], "2")
        self.assertEqual(len(notices), 1, notices)
        self.assertIn("GPU_MAX_HW_QUEUES=6", notices[0])


class Queues(Backend):
    def test_launches_move_between_masked_queues(self):
        moved, widths = 0, set()
        for _ in range(20):  # slots are made off the path: on a busy machine late
            code, values, notices, trace = self.probe("launch", "random", 200, 3_600_000)
            self.assertEqual((code, notices), (0, []))
            self.check_launches(values, 200)
            moved = max(moved, int(values["moved"]))
            widths |= self.widths(trace)
            if moved > 100 and len(widths) > 3:
                break
        self.assertGreater(moved, 100)
        self.assertGreater(len(widths), 3, widths)

    def launches_and_changes(self, stay_ms):
        """Creations and mask changes behind the 40th launch of 800, and the most masked queues at
        any time."""
        _, values, _, trace = self.probe("launch", "random", 400, stay_ms)
        self.check_launches(values, 400)
        launches = changes = 0
        masked, most = set(), 0
        for line in trace:
            launches += line.get("kernel", "").startswith("add_slowly")
            if line[""] == "mask":
                masked.add(line["queue"])
            elif line[""] == "destroy":
                masked.discard(line["queue"])
            changes += launches > 40 and launches < 800 and line[""] in ("create", "mask")
            most = max(most, len(masked))
        return launches, changes, most

    def test_no_queue_is_made_or_masked_after_the_start(self):
        for _ in range(20):  # on a busy machine the start may last beyond 40 launches
            launches, changes, most = self.launches_and_changes(3_600_000)
            if changes == 0:
                break
        self.assertEqual((launches, changes), (800, 0))
        self.assertLessEqual(most, 4)

    def test_slots_that_may_change_do_and_keep_to_the_budget(self):
        for _ in range(20):  # on a busy machine the launches may end before the worker's turn
            launches, changes, most = self.launches_and_changes(5)
            self.assertEqual(launches, 800)
            self.assertLessEqual(most, 4)
            if changes > 0:
                break
        self.assertGreater(changes, 0)

    def test_every_mask_is_made_of_whole_pairs_where_cus_are_paired(self):
        _, _, trace = self.launched(
            100, 5, lambda _, trace: len(self.masks(trace)) >= 4, VITAMIN_SOFT_AMDGPU="gfx1030")
        for line in self.masks(trace):
            for digit in line["mask"].replace("0x", "").replace(",", ""):
                self.assertIn(digit, "03cf", line)

    def test_a_queue_that_cannot_be_created_is_said_once_and_costs_no_launch(self):
        # HIP tries seven smaller and smaller queues for each stream.
        for fault in ("create_queue@3-9", "set_mask@1+", "set_mask@3+"):
            _, values, notices, _ = self.probe("launch", "random", 60, 1,
                                               VITAMIN_SOFT_AMDGPU_FAULTS=fault)
            self.check_launches(values, 60)
            self.assertEqual(len(notices), 1, (fault, notices))
            self.assertIn("A CU-masked queue cannot be created", notices[0])
            self.assertLess(int(values["most_queues"]), 4)


class ExecutionContexts(Backend):
    """Over green_fake.h: no runtime here has them."""

    def test_entries_are_execution_contexts_where_the_runtime_has_them(self):
        for part in ("gfx90a", "gfx1030"):
            _, values, notices, _ = self.probe("open", VITAMIN_SOFT_AMDGPU=part,
                                               VITAMIN_TEST_GREEN="1")
            self.assertEqual((values["priorities"], notices), ("1", []))
            # Two are made to look at, the others for slots; every masked queue is of one of them.
            values, notices, trace = self.launched(
                200, 5, lambda values, trace: int(values["contexts"]) > 2 + 3 and
                len(self.widths(trace)) > 2, VITAMIN_SOFT_AMDGPU=part, VITAMIN_TEST_GREEN="1")
            self.assertEqual((notices, values["alive"], values["blocking"]), ([], "0", "0"))
            self.assertEqual(len(self.masks(trace)), int(values["streams"]))

    def test_where_they_are_not_the_planned_units_masked_streams_are_used(self):
        for fault, why in (("other-units", "do not have the compute units that were asked for"),
                           ("other-groups", "is split into other groups than its units"),
                           ("no-stream", "does not tell its compute units")):
            values, notices, _ = self.launched(
                60, 5, lambda _, trace: len(self.masks(trace)) > 3, VITAMIN_TEST_GREEN=fault)
            self.assertEqual(len(notices), 1, notices)
            self.assertIn("execution contexts are not used, CU-masked streams are", notices[0])
            self.assertIn(why, notices[0])
            self.assertEqual(values["alive"], "0")


class Runtimes(Backend):
    def test_a_function_that_is_missing_is_named(self):
        code, values, _, _ = self.probe("hide", "hipExtStreamCreateWithCUMask")
        self.assertEqual(code, 1)
        self.assertIn("libamdhip64 has no hipExtStreamCreateWithCUMask", values["error"])
        self.assertEqual(self.probe("hide", "hipKernelNameRef")[0], 0)

    def test_a_runtime_that_is_too_old_is_named_with_its_version(self):
        code, values, _, _ = self.probe("version", 50_130_000)
        self.assertEqual(code, 1)
        self.assertIn("too old (version 50130000)", values["error"])
        self.assertEqual(self.probe("version", 50_221_153)[0], 0)

    def test_where_mask_bits_have_no_known_meaning_nothing_is_divided_or_lost(self):
        for version in (50_300_000, 50_500_000):
            settings = {"VITAMIN_SOFT_AMDGPU": "gfx1030", "VITAMIN_TEST_VERSION": str(version)}
            _, values, notices, trace = self.probe("launch", "random", 20, 0, **settings)
            self.check_launches(values, 20)
            self.assertEqual((values["narrow"], len(notices)), ("0", 1), notices)
            self.assertIn("Launches are not moved: it is not known", notices[0])
            self.assertEqual([line for line in trace if line[""] == "mask"], [])
        self.assertEqual(self.probe("open", VITAMIN_TEST_VERSION="50300000")[1]["units"], "13")

    def test_without_a_device_the_error_says_so(self):
        code, values, _, _ = self.probe("open", **NO_DEVICE)
        self.assertEqual(code, 1)
        self.assertRegex(values["error"], r"^0 the device cannot be asked for its name \(HIP error")


if __name__ == "__main__":
    unittest.main()
