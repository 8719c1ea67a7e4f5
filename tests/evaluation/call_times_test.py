# SPDX-License-Identifier: Apache-2.0
"""bench/call_times.py and the cold calls of bench/micro.py over the software driver. Needs in the
environment: BENCH and VITAMIN_PREFIX (a build directory)."""
import json
import os
import pathlib
import subprocess
import sys
import tempfile
import unittest

from time_limit import time_limit

BENCH, PREFIX = pathlib.Path(os.environ["BENCH"]), pathlib.Path(os.environ["VITAMIN_PREFIX"])
ALLOCATE = str(PREFIX / "libexec" / "vitamin" / "bench" / "allocate")
PIECES = 8


class CallTimes(unittest.TestCase):
    def setUp(self):
        directory = tempfile.TemporaryDirectory(prefix="vitamin-call-times-")
        self.addCleanup(directory.cleanup)
        self.out = pathlib.Path(directory.name)

    def bench(self, script, *words):
        environment = {**os.environ, "LD_LIBRARY_PATH": str(PREFIX / "lib" / "soft"),
                       "OUT": str(self.out)}
        return subprocess.run([sys.executable, str(BENCH / script), *words], capture_output=True,
                              text=True, timeout=time_limit(100), check=False, env=environment)

    def call_times(self, *words):
        return self.bench("call_times.py", *words)

    def test_each_call_is_timed_natively_and_under_vitamin(self):
        done = self.call_times("--rounds", "2", "--", ALLOCATE, "grow", str(PIECES << 20),
                               str(1 << 20), "cuMemAlloc")
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        kept = self.out / "call_times.jsonl"
        runs = [json.loads(line) for line in kept.read_text().splitlines()][1:]
        self.assertEqual([(run["round"], run["arm"]) for run in runs],
                         [(0, "native"), (0, "fifo"), (1, "fifo"), (1, "native")])
        for run in runs:
            allocations = run["entries"]["cuMemAlloc_v2"]
            self.assertGreaterEqual(allocations["calls"], 2 * PIECES)  # twice, says its usage
            self.assertEqual(allocations["calls"], sum(allocations["by_magnitude"]))
            self.assertGreater(allocations["ns"], 0)
        # The program is the same, so that both see the same calls.
        self.assertEqual(*({name: entry["calls"] for name, entry in run["entries"].items()}
                           for run in runs[:2]))
        rows = [line.split()[0] for line in done.stdout.splitlines()[2:-2]]
        self.assertEqual(sorted(rows), sorted(runs[0]["entries"]))
        again = self.call_times("--analyse", str(kept))
        self.assertEqual((again.returncode, again.stdout), (0, done.stdout))

    def test_a_program_that_fails_is_told(self):
        done = self.call_times("--", ALLOCATE, "no such")
        self.assertEqual(done.returncode, 1, done.stdout)
        self.assertIn("usage: allocate", done.stderr)

    def test_a_program_that_uses_no_gpu_is_told(self):
        done = self.call_times("--", "true")
        self.assertEqual(done.returncode, 1, done.stdout)
        self.assertIn("called nothing that Vitamin overrides", done.stderr)

    def test_no_program_is_told(self):
        done = self.call_times()
        self.assertEqual(done.returncode, 2, done.stdout)
        self.assertIn("name a program after --", done.stderr)

    def test_two_native_arms_are_refused(self):
        done = self.call_times("--policy", "native", "--", "true")
        self.assertEqual(done.returncode, 2, done.stdout)
        self.assertIn("name a policy", done.stderr)

    def test_calls_are_timed_warm_and_cold(self):
        done = self.bench("micro.py", "cold", "--rounds", "1")
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        kept = [json.loads(line)
                for line in (self.out / "micro_cold.jsonl").read_text().splitlines()]
        self.assertEqual([record["arm"] for record in kept[1:]], ["native", "fifo"])
        for record in kept[1:]:
            self.assertTrue(record["ok"], record)
            self.assertEqual(len(record["lines"]), 7, record)
            for line in record["lines"]:
                self.assertGreater(min(line["warm_ns"], line["cold_ns"]), 0)


if __name__ == "__main__":
    unittest.main()
