# SPDX-License-Identifier: Apache-2.0
"""Experiments of bench/evaluate.py that need programs of bench/: dispatch, memory, hazards, and
what is counted while a job runs. Needs in the environment: BENCH and VITAMIN_PREFIX (a build
directory)."""
import json
import os
import pathlib
import subprocess
import sys
import tempfile
import unittest

from time_limit import time_limit

BENCH = pathlib.Path(os.environ["BENCH"])
sys.path[:0] = [str(BENCH), str(BENCH / "evaluation")]

import harness  # noqa: E402
import moving_steps  # noqa: E402
import report  # noqa: E402


class Programs(unittest.TestCase):
    def setUp(self):
        directory = tempfile.TemporaryDirectory(prefix="vitamin-programs-")
        self.addCleanup(directory.cleanup)
        self.out = pathlib.Path(directory.name)

    def evaluate(self, *words):
        result = subprocess.run(
            [sys.executable, str(BENCH / "evaluate.py"), *words, "--out", str(self.out)],
            capture_output=True, text=True, timeout=time_limit(200), check=False)
        self.assertEqual(result.returncode, 0, result.stdout + result.stderr)
        return [r for r in report.read(self.out, words[0]) if "cell" in r]

    def test_dispatch_in_turns_through_all_arms(self):
        cells = self.evaluate("E6", "--smoke")
        self.assertTrue(all(r["ok"] for r in cells), cells)
        self.assertEqual(len({r["cell"] for r in cells}), 6)
        for r in cells:
            self.assertEqual(len(r["wall_us"]), 2 * 20)  # two turns
            self.assertGreaterEqual(min(r["wall_us"]), 200)  # the kernel itself lasts that long
        before = len(cells)
        self.assertEqual(len(self.evaluate("E6", "--smoke", "--resume")), before)
        self.assertIn("p95 / native", (self.out / "report.md").read_text())

    def test_chains_of_short_kernels(self):
        cells = [r for r in self.evaluate("E8", "--smoke") if r["subject"].endswith("chain")]
        self.assertTrue(all(r["ok"] for r in cells), cells)
        self.assertEqual(len(cells), 3 * 7 * 2)  # lengths, arms, rounds
        for r in cells:
            self.assertEqual(len(r["us"]), 2)
            # No kernel begins before the one before has ended.
            self.assertGreaterEqual(min(r["us"]), int(r["subject"].split("-")[0]))
        self.assertIn("us a kernel above native", (self.out / "report.md").read_text())

    def test_memory_of_pools(self):
        found = {r["cell"]: r for r in self.evaluate("E7", "--smoke")}
        self.assertEqual(found["flat pool, 59"]["entries"], 59)
        self.assertGreater(found["vitamin"]["resident_mib"], found["native"]["resident_mib"])
        for name in ("MPS-Pool, 8", "a client of MPS"):
            self.assertIn("no MPS binary", found[name]["why"])

    def test_explanations_of_moving_steps_are_measured_and_printed(self):
        command = [sys.executable, str(BENCH / "moving_steps.py")]
        done = subprocess.run([*command, "--smoke", "--out", str(self.out)], capture_output=True,
                              text=True, timeout=time_limit(200), check=False)
        self.assertEqual((done.returncode, done.stderr), (0, ""), done.stdout)
        kept = self.out / "moving_steps.jsonl"
        records = moving_steps.read(kept)
        self.assertEqual([r["arm"] for r in records if not r["ok"]], [], records)
        self.assertEqual(set(moving_steps.graphs(records)), set(moving_steps.ARMS))
        self.assertEqual(len(moving_steps.queues(records)), 7 * 2)
        made = {r["arm"]: r["coverage"]["graphs"]["made"] for r in records if r["coverage"]}
        self.assertGreater(made["random"], 0)
        self.assertEqual((made["fifo"], made["random, no executables"]), (0, 0))
        lines = done.stdout.splitlines()
        self.assertEqual([line.split(":")[0] for line in lines[-6:]],
                         ["queues"] * 2 + ["calls"] * 2 + ["executables"] * 2)
        self.assertNotIn("–", "".join(lines[-6:]))
        again = subprocess.run([*command, "--analyse", str(kept)], capture_output=True, text=True,
                               timeout=time_limit(30), check=True)
        self.assertEqual(again.stdout, done.stdout)

    def test_arms_of_moving_steps_are_repeated_in_turn_and_shown_one_by_one(self):
        command = [sys.executable, str(BENCH / "moving_steps.py"), "--smoke", "--out",
                   str(self.out), "--arms"]
        done = subprocess.run([*command, "random;fifo", "--repeats", "2"], capture_output=True,
                              text=True, timeout=time_limit(100), check=False)
        self.assertEqual((done.returncode, done.stderr), (0, ""), done.stdout)
        records = moving_steps.read(self.out / "moving_steps.jsonl")
        self.assertEqual([(r["measurement"], r["arm"], r["repeat"]) for r in records],
                         [("graphs", arm, repeat) for repeat in (1, 2)
                          for arm in ("random", "fifo")])
        self.assertEqual(list(moving_steps.graphs(records)),
                         ["random, repeat 1", "fifo, repeat 1", "random, repeat 2",
                          "fifo, repeat 2"])
        heads = [line.split(": a step")[0] for line in done.stdout.splitlines()[-2:]]
        self.assertEqual(heads, ["executables: random, repeat 1", "executables: random, repeat 2"])
        wrong = subprocess.run([*command, "no such"], capture_output=True, text=True,
                               timeout=time_limit(30), check=False)
        self.assertEqual(wrong.returncode, 2)
        self.assertIn("there is no arm 'no such'", wrong.stderr)

    def test_hazards_are_part_of_the_ninth(self):
        record, = self.evaluate("E9", "--smoke", "--parts", "hazards")
        self.assertTrue(record["ok"], record)
        hazards = [r for r in report.read(self.out, "hazards") if "same" in r]
        self.assertEqual([r["hazard"] for r in hazards], ["cooperative", "clusters_16",
                                                          "host_gated"])
        self.assertTrue(all(r["same"] and not r["hung"] for r in hazards), hazards)

    def test_what_a_job_does_is_counted_while_it_runs(self):
        first = self.out
        for attempt in range(5):  # again if a job that got no CPU time launched nothing meanwhile
            self.out = first / str(attempt)
            cells = {r["cell"]: r for r in self.evaluate("E3", "--smoke", "--modes",
                                                         "exclusive,static,ours:random")}
            if all(c["seen"] for mode in ("static", "ours:random")
                   for c in cells[mode]["launches"]):
                break
        self.assertNotIn("launches", cells["exclusive"])
        for mode in ("static", "ours:random"):
            for counted in cells[mode]["launches"]:
                self.assertGreater(counted["seen"], 0)
                self.assertEqual(sum(counted["widths"].values()), counted["bound"])
                self.assertLessEqual(sum(counted["whole"].values()), counted["bound"])
        self.assertGreater(sum(c["moved"] for c in cells["ours:random"]["launches"]), 0)
        self.assertIn("launches by processors", (self.out / "report.md").read_text())

    def test_a_directory_that_is_not_there_is_named(self):
        result = harness.run([harness.program("launch_counts"), str(self.out / "none")], 20)
        self.assertEqual(result.code, 1)
        self.assertIn("none: No such file", result.errors)
        empty = harness.run([harness.program("launch_counts"), str(self.out)], 20)
        self.assertEqual(json.loads(empty.output)["processes"], 0)


if __name__ == "__main__":
    unittest.main()
