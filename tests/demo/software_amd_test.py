# SPDX-License-Identifier: Apache-2.0
"""tools/demo/demo.py on the software AMD GPU. Needs in the environment: DEMO and PREFIX (a build
directory)."""
import json
import os
import pathlib
import re
import subprocess
import sys
import tempfile
import unittest

from time_limit import time_limit

DEMO = os.environ["DEMO"]
PREFIX = pathlib.Path(os.environ["PREFIX"])
ROW = re.compile(r"^  (train|serve) +([\d,]+) of ([\d,]+) +([\d,]+) +(\d+) +(equal|DIFFERENT)",
                 re.M)

# A program whose bits are others in every run, with less to do.
UNSTEADY = """#!/bin/sh
{program} 2 | sed "s/hash ......../hash $(printf %08x $$)/"
"""


def run(command, **settings):
    environment = {name: value for name, value in os.environ.items()
                   if not name.startswith(("VITAMIN", "HSA_", "HIP_", "ROC_", "GPU_", "LD_"))}
    return subprocess.run(command, text=True, env=environment | settings, capture_output=True,
                          timeout=time_limit(280))


def demo(prefix, *options):
    return run([sys.executable, DEMO, "--prefix", prefix, *options])


class Demo(unittest.TestCase):
    def rows(self, result):
        rows = {name: (int(bound.replace(",", "")), int(launches.replace(",", "")),
                       int(moved.replace(",", "")), int(widths), bits)
                for name, bound, launches, moved, widths, bits in ROW.findall(result.stdout)}
        self.assertEqual(sorted(rows), ["serve", "train"], result.stdout + result.stderr)
        return rows

    def test_without_a_gpu_two_hip_programs_share_the_software_amd_gpu(self):
        result = demo(PREFIX, "--software")
        self.assertEqual(result.returncode, 0, result.stdout + result.stderr)
        self.assertIn("device: a SOFTWARE AMD GPU", result.stdout)
        self.assertIn("on which this never ran", result.stdout)
        for name, (bound, launches, moved, widths, bits) in self.rows(result).items():
            self.assertGreater(launches, 100, name)
            self.assertEqual((bound, bits), (launches, "equal"), name)
            self.assertGreater(moved, 0, name)
            self.assertGreater(widths, 1, name)

    def test_bits_that_differ_fail_the_demo(self):
        with tempfile.TemporaryDirectory(prefix="vitamin-demo-") as name:
            prefix = pathlib.Path(name)
            (prefix / "bin").mkdir()
            (prefix / "lib").symlink_to(PREFIX / "lib")
            (prefix / "bin/vitamin").symlink_to(PREFIX / "bin/vitamin")
            for program in ("demo-train-hip", "demo-serve-hip"):
                file = prefix / "bin" / program
                file.write_text(UNSTEADY.format(program=PREFIX / "bin" / program))
                file.chmod(0o755)
            result = demo(prefix, "--device", "amd")
        self.assertEqual(result.returncode, 1, result.stdout + result.stderr)
        for name, (bound, launches, _, _, bits) in self.rows(result).items():
            self.assertEqual((bound, bits), (launches, "DIFFERENT"), name)

    def test_a_build_without_it_says_what_to_do(self):
        with tempfile.TemporaryDirectory(prefix="vitamin-demo-") as prefix:
            result = demo(prefix, "--device", "amd")
        self.assertEqual(result.returncode, 1)
        self.assertIn("the software AMD GPU was not built: install hipcc", result.stderr)


@unittest.skipUnless((PREFIX / "bin/demo-train").exists(), "the CUDA part was not built")
class BothVendors(unittest.TestCase):
    SOFTWARE = {"LD_LIBRARY_PATH": str(PREFIX / "lib/soft"),
                "LD_PRELOAD": str(PREFIX / "lib/soft/libvitamin_soft_kfd.so")}

    def test_one_run_binds_the_launches_of_programs_of_both(self):
        programs = [PREFIX / "bin/demo-train", PREFIX / "bin/demo-train-hip"]
        with tempfile.TemporaryDirectory(prefix="vitamin-demo-") as directory:
            report = pathlib.Path(directory) / "report"
            result = run([PREFIX / "bin/vitamin", "run", "--strict", "--policy", "random",
                          "--report", report, "--", "sh", "-c",
                          f"{programs[0]} 2 && {programs[1]} 2"],
                         VITAMIN_LOCK_DIRECTORY=directory, **self.SOFTWARE)
            self.assertEqual(result.returncode, 0, result.stderr)
            processes = json.loads(report.read_text())["processes"]
        devices = {process["program"]: process["devices"] for process in processes}
        for program, name in zip(programs, ("Vitamin Software GPU", "Vitamin software AMD GPU")):
            (device,) = devices[program.name]
            self.assertEqual(device["name"], name)
            self.assertGreater(device["launches"]["bound"], 10)
            self.assertGreater(device["launches"]["moved"], 0)

    def test_doctor_names_the_devices_of_both(self):
        result = run([PREFIX / "bin/vitamin", "doctor"], **self.SOFTWARE)
        self.assertEqual(result.returncode, 0, result.stdout)
        self.assertRegex(result.stdout, r"(?m)^ok +device +Vitamin Software GPU")
        self.assertRegex(result.stdout, r"(?m)^ok +hip_device +Vitamin software AMD GPU")


if __name__ == "__main__":
    unittest.main()
