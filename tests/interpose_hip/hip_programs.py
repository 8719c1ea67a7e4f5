# SPDX-License-Identifier: Apache-2.0
"""Shared by tests that run programs under `vitamin run` over the software AMD GPU.

Needs in the environment: VITAMIN and what software_amd.py says; for runtime_with() CXX and RUNTIME.
"""
import json
import os
import pathlib
import subprocess
import sys

import hang

sys.path.insert(0, str(pathlib.Path(__file__).parents[1] / "amdgpu"))
import software_amd  # noqa: E402
from software_amd import launches, read_trace  # noqa: E402

__all__ = ["VITAMIN", "Programs", "launches", "read_trace", "software_amd"]
VITAMIN = os.environ["VITAMIN"]


class Programs(software_amd.Programs):
    def native(self, *command, **settings):
        return self.run_command([self.PROGRAMS / command[0], *command[1:]], settings)

    def run_command(self, command, settings):
        return hang.run(command, 60, env=self.environment(**settings))

    def shared(self, *command, options=("--policy", "random"), **settings):
        """The result of a program under `vitamin run`, and its report."""
        report = self.directory / "report.json"
        result = self.run_command([VITAMIN, "run", "--report", report, *options, "--",
                                   self.PROGRAMS / command[0], *command[1:]], settings)
        return result, json.loads(report.read_text()) if report.exists() else {}

    def check_same(self, *command, **settings):
        native = self.native(*command, **settings)
        self.assertEqual(native.returncode, 0, native.stdout + native.stderr)
        for seed in ("1", "2"):
            result, report = self.shared(*command, options=("--policy", "random", "--seed", seed),
                                         **settings)
            self.assertEqual((result.returncode, result.stdout), (0, native.stdout), result.stderr)
            launches = report["totals"]["launches"]
            self.assertGreater(launches["seen"], 0, (report, result.stderr))
            self.assertEqual(launches["bound"], launches["seen"], report["totals"])
        return report["totals"]

    def until(self, holds, run):
        """What run() answers, once that holds. For where launches go: a thread of the runtime makes
        queues beside a program, which may be over before it got a processor."""
        for _ in range(20):
            found = run()
            if holds(found):
                return found
            print("not in this run:", found, flush=True)  # the log tells how often
        self.fail("not so in 20 runs")

    def runtime_with(self, source):
        """A directory with the real runtime behind a library of this C source."""
        directory = self.new_file("runtime")
        directory.mkdir()
        empty = directory / "empty.c"
        empty.write_text("")
        make = [os.environ["CXX"], "-x", "c", "-shared", "-fPIC"]
        real = directory / "libreal_runtime.so"
        subprocess.run([*make, empty, f"-Wl,-soname,{real.name}", "-o", real], check=True)
        subprocess.run([*make, source, "-x", "none", "-Wl,-soname,libamdhip64.so.5,--no-as-needed",
                        real, "-o", directory / "libamdhip64.so.5"], check=True)
        real.unlink()
        real.symlink_to(os.environ["RUNTIME"])
        return directory

    def trace(self, run, *command, **settings):
        file = self.new_file("trace")
        run(*command, VITAMIN_SOFT_AMDGPU_TRACE=str(file), **settings)
        return read_trace(file)
