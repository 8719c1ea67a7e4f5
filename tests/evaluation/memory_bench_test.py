# SPDX-License-Identifier: Apache-2.0
"""bench/memory.py over the software libcuda, and what it calls within a quota. Needs in the
environment: BENCH, VITAMIN_PREFIX (a build tree) and FAKE_NVML."""
import json
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
import unittest

from time_limit import time_limit

BENCH = pathlib.Path(os.environ["BENCH"])
sys.path[:0] = [str(BENCH)]

import harness  # noqa: E402
import memory  # noqa: E402
import memory_limits  # noqa: E402

MIB = 1 << 20


def result(code=0, lines=(), timed_out=False):
    text = "".join(json.dumps(line) + "\n" for line in lines)
    return harness.Result([], code, text, "", 1.0, timed_out)


class Smoke(unittest.TestCase):
    def test_programs_of_the_driver_are_within_the_quota_and_as_natively(self):
        with tempfile.TemporaryDirectory() as out:
            done = subprocess.run(
                [sys.executable, str(BENCH / "memory.py"), "--smoke", "--out", out,
                 "--rounds", "1", "--parts", "cost,frameworks,vllm"], capture_output=True,
                text=True, check=False, timeout=time_limit(150))
            self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
            lines = [json.loads(line) for line in
                     pathlib.Path(out, "memory_smoke.jsonl").read_text().splitlines()]
        self.assertIn("commit", lines[0]["header"])
        self.assertIn("driver", lines[0]["header"])
        runs = {(line["case"], line["arm"]): line for line in lines if "case" in line}
        without = [key for key, line in runs.items() if line["verdict"] == "not run"]
        self.assertEqual(without, [("vLLM, gpu_memory_utilization = 0.9", "native")])
        del runs[without[0]]
        self.assertEqual(len(runs), 6)
        for (_, arm), line in runs.items():
            self.assertEqual(line["verdict"], "equal")
            self.assertIn("command", line)
            memory_of_run = line["memory"]
            if arm == "within":
                self.assertEqual(memory_of_run["total"], 256 * MIB)
                self.assertEqual(memory_of_run["taken"], 256 * MIB)
                self.assertEqual(memory_of_run["refused"], 2)
            else:
                self.assertGreater(memory_of_run["taken"], 256 * MIB)
        costs = [line for line in lines if "cost" in line]
        self.assertEqual([line["cost"] for line in costs], ["native", "no quota", "quota"])
        self.assertEqual(done.stdout.count("quota costs"), 2)
        for line in costs:
            self.assertEqual(len(line["lines"]), 4)
            self.assertIn("cuMemAllocAsync", done.stdout)


class Limits(unittest.TestCase):
    QUOTA, PIECE = 64 * MIB, 4 * MIB

    def test_two_processes_are_told_and_get_what_each_limit_leaves(self):
        with tempfile.TemporaryDirectory() as out:
            done = subprocess.run(
                [sys.executable, str(BENCH / "memory.py"), "--smoke", "--out", out, "--parts",
                 "limits", "--memory", "64MiB"], capture_output=True, text=True, check=False,
                timeout=time_limit(150))
            self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
            lines = map(json.loads, pathlib.Path(out, "memory_smoke.jsonl").read_text().split("\n")
                        [:-1])
            arms = {line["limit"]: line for line in lines if "limit" in line}
        took = {}
        for name, arm in arms.items():
            self.assertEqual(arm["why"], "", arm)
            self.assertEqual([line["step"] for line in arm["lines"]],
                             ["cuMemAlloc", "beside it", "cuMemAllocAsync", "cuMemCreate",
                              "cuMemAllocManaged"])
            for line in arm["lines"]:
                self.assertEqual((line["usable"], line["intact"]), (1, 1), line)
            took[name] = [(line["taken"] // self.PIECE, line["refused"])
                          for line in arm["lines"]]
        much = [(21, 0)] * 5  # a third more than the quota, with the piece of the beginning
        each = [(15, 2)] * 5
        together = [(14, 2), (0, 2), *[(14, 2)] * 3]
        self.assertEqual(took, {"none": much, "none, under MPS": much, "MPS's": each,
                                "ours, together": together, "ours, each": each})
        told = {name: {line["told_total"] for line in arm["lines"]} for name, arm in arms.items()}
        self.assertEqual(told["MPS's"], told["none"])  # all of the device
        self.assertLess(max(line["told_free"] for line in arms["MPS's"]["lines"]), self.QUOTA)
        self.assertEqual(told["ours, each"], {self.QUOTA})

    def test_what_goes_beyond_our_limit_is_named(self):
        def beyond(name="ours, each", **changes):
            line = {"who": "program", "step": "cuMemAlloc", "told_total": self.QUOTA,
                    "taken": 15 * self.PIECE, "refused": 2, "usable": 1, "intact": 1}
            return memory_limits.beyond(name, self.QUOTA, self.PIECE, [line | changes] * 5)
        self.assertEqual(beyond(), "")
        self.assertEqual(beyond("MPS's", taken=17 * self.PIECE), "")
        for changes in ({"taken": 16 * self.PIECE}, {"told_total": self.QUOTA + 1},
                        {"refused": 0}, {"refused": 1}, {"usable": 0}, {"intact": 0}):
            self.assertNotEqual(beyond(**changes), "", changes)
        self.assertNotEqual(beyond("ours, together"), "")
        self.assertEqual(beyond("ours, together", taken=14 * self.PIECE), "")


class MemoryOfTheDevice(unittest.TestCase):
    UUIDS = "GPU-56697461-6d69-6e00-536f-6674000000{:02x}"  # of the software driver

    def used(self, **visible):
        with tempfile.TemporaryDirectory() as directory:
            shutil.copy(os.environ["FAKE_NVML"], pathlib.Path(directory) / "libnvidia-ml.so.1")
            soft = pathlib.Path(os.environ["VITAMIN_PREFIX"]) / "lib" / "soft"
            environment = {name: value for name, value in os.environ.items()
                           if not name.startswith("CUDA_")}
            environment |= {
                "LD_LIBRARY_PATH": f"{directory}:{soft}", "VITAMIN_SOFT_DEVICES": "3",
                "FAKE_NVML_UUID": ",".join(self.UUIDS.format(i) for i in range(3)),
                "FAKE_NVML_USED": ",".join(str(i << 30) for i in (1, 2, 3)), **visible}
            said = subprocess.run(
                [sys.executable, "-c", "import nvml; print(nvml.Device().used())"], cwd=BENCH,
                env=environment, capture_output=True, text=True, check=True,
                timeout=time_limit(60)).stdout
        return None if said == "None\n" else (int(said) - (600 << 20)) >> 30

    def test_it_is_that_of_the_device_which_programs_see_first(self):
        self.assertEqual(self.used(), 1)
        self.assertEqual(self.used(CUDA_VISIBLE_DEVICES="2,0"), 3)
        self.assertEqual(self.used(CUDA_VISIBLE_DEVICES="1"), 2)

    def test_nothing_is_known_where_programs_see_none(self):
        self.assertIsNone(self.used(CUDA_VISIBLE_DEVICES=""))


class Verdict(unittest.TestCase):
    HASH = {"name": "a", "hash": "1"}
    WITHIN = {"total": 64 * MIB, "used": 60 * MIB, "taken": 60 * MIB, "refused": 1}

    def verdict(self, code=0, hash_="1", arm="within", timed_out=False, share=0.0, **more):
        native = result(lines=[self.HASH])
        run = result(code, [{"name": "a", "hash": hash_}, self.WITHIN | more], timed_out)
        return memory.verdict(64 * MIB, native, arm, run, share)[0]

    def test_a_program_that_sizes_itself_must_use_its_share_and_is_refused_nothing(self):
        self.assertEqual(self.verdict(share=0.9, refused=0), "equal")
        self.assertEqual(self.verdict(share=0.9, refused=0, used=40 * MIB), "too little")
        self.assertEqual(self.verdict(share=0.9, refused=0, used=65 * MIB), "beyond")

    def test_a_run_within_the_quota_with_the_same_bits_is_equal(self):
        self.assertEqual(self.verdict(), "equal")

    def test_what_goes_wrong_is_called_by_its_name(self):
        self.assertEqual(self.verdict(code=1), "failed")
        self.assertEqual(self.verdict(hash_="2"), "differs")
        self.assertEqual(self.verdict(timed_out=True), "hung")
        self.assertEqual(self.verdict(refused=0), "not refused")
        for key in ("total", "used", "taken"):
            self.assertEqual(self.verdict(**{key: 65 * MIB}), "beyond")
            self.assertEqual(self.verdict(arm="native again", **{key: 65 * MIB}), "equal")

    def test_sizes_have_a_unit(self):
        self.assertEqual(memory.bytes_of("2GiB"), 2 << 30)
        for words in ("2", "GiB", "2GB", "-1GiB", ""):
            with self.assertRaises(harness.Refusal):
                memory.bytes_of(words)


if __name__ == "__main__":
    unittest.main()
