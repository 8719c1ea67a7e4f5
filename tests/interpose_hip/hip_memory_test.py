# SPDX-License-Identifier: Apache-2.0
"""Quotas of device memory (VITAMIN_MEMORY) over the software AMD GPU and the real runtime: every
entry point that takes memory against a quota, what queries answer, and processes of a group.

Needs in the environment: LIBRARY (libvitamin_hip.so) and what software_amd.py says.
"""
import os
import pathlib
import subprocess
import sys
import tempfile
import threading
import unittest

from time_limit import time_limit

sys.path.insert(0, str(pathlib.Path(__file__).parents[1] / "amdgpu"))
import software_amd  # noqa: E402

OK, NO_MEMORY = 0, 2
MIB = 1 << 20
QUOTA = 64 * MIB

LINEAR = ("hipMalloc", "hipExtMallocWithFlags", "hipMallocManaged", "hipMallocPitch",
          "hipMemAllocPitch", "hipMalloc3D")
ARRAYS = ("hipMallocArray", "hipMalloc3DArray", "hipArrayCreate", "hipArray3DCreate")
POOLED = ("hipMallocAsync", "hipMallocFromPoolAsync")
KINDS = LINEAR + ARRAYS + POOLED + ("hipMemCreate",)


class Memory(software_amd.Programs):
    def start(self, quota=QUOTA, **settings):
        return self.start_with(True, VITAMIN_MEMORY=str(quota), **settings)

    def start_with(self, preload, **settings):
        environment = self.environment(**settings)
        if preload:
            environment["LD_PRELOAD"] += " " + os.environ["LIBRARY"]
        errors = tempfile.TemporaryFile("w+")
        self.addCleanup(errors.close)
        process = subprocess.Popen([self.PROGRAMS / "memory"], stdin=subprocess.PIPE,
                                   stdout=subprocess.PIPE, stderr=errors, text=True,
                                   env=environment)
        process.errors = errors
        watchdog = threading.Timer(time_limit(100), process.kill)
        watchdog.daemon = True
        watchdog.start()
        self.addCleanup(self.end, process, watchdog)
        return process

    def end(self, process, watchdog):
        if not process.stdin.closed:
            process.stdin.close()
        process.wait(timeout=time_limit(60))
        watchdog.cancel()
        process.stdout.close()

    def ask(self, process, command):
        process.stdin.write(command + "\n")
        process.stdin.flush()
        words = process.stdout.readline().split()
        numbers = [int(word) for word in words]
        return numbers[0] if len(numbers) == 1 else numbers

    def offers(self, kind):
        """Whether the runtime serves this without us: 5.2.3 has stubs, and some that crash."""
        done = subprocess.run([self.PROGRAMS / "memory"], input=f"take {kind} {MIB} a\n", text=True,
                              capture_output=True, timeout=time_limit(100), check=False,
                              env=self.environment())
        return done.stdout == f"{OK}\n"

    def free(self, process):
        status, free, _ = self.ask(process, "info")
        self.assertEqual(status, OK)
        return free

    def said(self, process):
        process.errors.seek(0)
        return process.errors.read()


class Bounded(Memory):
    def test_every_entry_point_that_takes_memory_is_bounded(self):
        bounded = [kind for kind in KINDS if self.offers(kind)]
        self.assertLessEqual(set(LINEAR), set(bounded))
        for kind in bounded:
            with self.subTest(kind):
                program = self.start()
                self.assertEqual(self.ask(program, "info"), [OK, QUOTA, QUOTA])
                self.assertEqual(self.ask(program, f"take {kind} {40 * MIB} a"), OK)
                self.assertEqual(self.free(program), 24 * MIB)
                for other in bounded:
                    self.assertEqual(self.ask(program, f"take {other} {40 * MIB} b"), NO_MEMORY)
                self.assertEqual(self.ask(program, f"take {kind} {24 * MIB} c"), OK)
                self.assertEqual(self.free(program), 0)
                for name in "ac":
                    self.assertEqual(self.ask(program, f"give {name}"), OK)
                self.assertEqual(self.ask(program, "sync"), OK)
                # What a pool keeps is given back when something else is short of it.
                self.assertEqual(self.ask(program, f"take hipMalloc {QUOTA} all"), OK)
                self.assertIn("VIT-513", self.said(program))

    def test_without_a_quota_nothing_is_bounded(self):
        for kind in LINEAR:
            program = self.start_with(True)
            self.assertEqual(self.ask(program, f"take {kind} {2 * QUOTA} a"), OK)
            self.assertEqual(self.ask(program, "give a"), OK)
            self.assertEqual(self.said(program), "")

    def test_memory_of_the_host_is_not_charged(self):
        program = self.start()
        self.assertEqual(self.ask(program, f"take hipHostMalloc {2 * QUOTA} a"), OK)
        self.assertEqual(self.free(program), QUOTA)

    def test_queries_answer_within_the_quota(self):
        native = self.start_with(False)
        total = self.ask(native, "info")[2]
        program = self.start(quota="25%")
        self.assertEqual(self.ask(program, "info"), [OK, total // 4, total // 4])
        self.assertEqual(self.ask(program, "total"), [total // 4] * 2)


class Groups(Memory):
    def test_processes_of_a_run_share_one_quota_and_a_killed_one_has_none(self):
        first, second = (self.start(VITAMIN_RUN_DIR=str(self.directory)) for _ in range(2))
        self.assertEqual(self.ask(first, f"take hipMalloc {40 * MIB} a"), OK)
        self.assertEqual(self.free(second), 24 * MIB)
        self.assertEqual(self.ask(second, f"take hipMallocPitch {40 * MIB} a"), NO_MEMORY)
        first.stdin.write("kill\n")
        first.stdin.flush()
        first.wait(timeout=time_limit(60))
        self.assertEqual(self.free(second), QUOTA)
        self.assertEqual(self.ask(second, f"take hipMallocPitch {40 * MIB} a"), OK)


if __name__ == "__main__":
    unittest.main()
