# SPDX-License-Identifier: Apache-2.0
"""bench/decide.py on the software device: its steps, what it says when it cannot run, and its
arms' policy. Needs in the environment: BENCH and VITAMIN_PREFIX (a build directory)."""
import ctypes
import json
import os
import pathlib
import subprocess
import sys
import tempfile
import unittest

from time_limit import time_limit

BENCH = pathlib.Path(os.environ["BENCH"])
PREFIX = pathlib.Path(os.environ["VITAMIN_PREFIX"])
sys.path[:0] = [str(BENCH), str(BENCH / "evaluation"), str(BENCH / "decision")]
sys.dont_write_bytecode = True

import decision_report  # noqa: E402


class Smoke(unittest.TestCase):
    def setUp(self):
        directory = tempfile.TemporaryDirectory(prefix="vitamin-decide-")
        self.addCleanup(directory.cleanup)
        self.out = pathlib.Path(directory.name)

    def decide(self, *words, code=0):
        result = subprocess.run(
            [sys.executable, "-B", str(BENCH / "decide.py"), *words, "--out", str(self.out)],
            capture_output=True, text=True, timeout=time_limit(120),
            env={**os.environ, "PYTHONDONTWRITEBYTECODE": "1"})
        self.assertEqual(result.returncode, code, result.stdout + result.stderr)
        return result

    def records(self, cell):
        return [json.loads(line) for line in (self.out / f"{cell}.jsonl").read_text().splitlines()]

    def test_rounds_have_a_block_of_every_arm_in_the_same_processes(self):
        chosen = ["mps", "alone:0", "alone:1", "shared", "parts:8-15/0-7"]
        self.decide("--smoke", "--do", "noise,speeds", "--arms", ",".join(chosen),
                    "--block", "0.5", "--stretch", "1")
        records = self.records("decode-prefill")
        for key in ("command", "commit", "gpu", "driver"):
            self.assertIn(key, records[0]["header"])
        rounds = {}
        for r in records:
            if r.get("step") == "speeds":
                rounds.setdefault(r["round"], []).append(r["block"])
        self.assertEqual(sorted(rounds), [0, 1])
        for blocks in rounds.values():
            self.assertEqual(sorted(blocks), sorted(chosen))
        self.assertEqual(len([r for r in records if "started" in r]), 1)
        # Marks are counted on over pauses: nothing of a job is lost between its runs.
        expected = {}
        for r in (r for r in records if "run" in r):
            key = tuple(r["run"])
            self.assertEqual(r["first"], expected.get(key, 0), key)
            expected[key] = r["first"] + len(r["us"])
        self.assertEqual(set(expected), {(g, j) for g in ("mps", "ours") for j in (0, 1)})
        text = decision_report.report(self.out)
        for title in ("### Block noise", "### Speeds", "68 + 64 SMs"):
            self.assertIn(title, text)

    def test_a_policy_is_watched_when_a_partner_comes(self):
        self.decide("--smoke", "--do", "found", "--arms", "alone:0,shared", "--policies", "fifo",
                    "--found-seconds", "1")
        blocks = [r for r in self.records("decode-prefill") if r.get("step") == "found"]
        self.assertEqual([b["block"] for b in blocks], ["ours:fifo"])

    def test_phases_run_their_own_jobs_only(self):
        self.decide("--smoke", "phases", "--arms", "shared", "--phase", "0.7")
        records = self.records("phases")
        phases = [r for r in records if "phase" in r]
        self.assertEqual([r["phase"] for r in phases], [[0, 1], [1, 2], [0, 3]])
        for r in (r for r in records if "run" in r):
            begin, end = r["begin"], r["begin"] + sum(r["us"]) / 1e6
            for p in phases:
                if r["run"][1] not in p["phase"]:
                    overlap = min(end, p["end"]) - max(begin, p["begin"])
                    self.assertLessEqual(overlap, 0, f"{r['run']} in {p['phase']}")

    def test_requests_are_served_in_every_arm_with_the_same_live_arrivals(self):
        self.decide("--smoke", "slo-BE", "--arms", "alone:0,alone:1,mps,shared", "--rounds", "1",
                    "--open-seconds", "1")
        records = self.records("slo-BE")
        bursts = [r for r in records if "bursts" in r]
        self.assertEqual({r["bursts"] for r in bursts}, {"alone:0", "mps", "shared"})
        for r in bursts:
            self.assertGreaterEqual(len(r["requests"]), 4)
            self.assertTrue(all(b <= e for b, e, _, _ in r["requests"]))
        live = [r for r in records if "open" in r]
        self.assertEqual(len(live), 3)
        self.assertEqual(len({json.dumps([at for at, _, _ in r["requests"]]) for r in live}), 1)
        self.assertIn("### Latency", decision_report.report(self.out))

    def test_bad_input_is_one_line(self):
        for words, said in ((("--smoke", "nothing"), "there is no cell 'nothing'"),
                            (("--smoke", "--arms", "mig"), "there is no arm 'mig'"),
                            (("--smoke", "--arms", "ours:nonsense"), "does not take the policy")):
            errors = self.decide(*words, code=2).stderr.strip().splitlines()
            self.assertEqual(len(errors), 1, errors)
            self.assertIn(said, errors[0])

    def test_a_spent_budget_keeps_what_there_is(self):
        result = self.decide("--smoke", "--do", "noise", "--arms", "shared", "--budget", "0",
                             code=3)
        self.assertIn("the budget of 0 s is spent", result.stdout)
        self.assertTrue(any("started" in r for r in self.records("decode-prefill")))


class Entry(ctypes.Structure):
    _fields_ = [("size", ctypes.c_uint32), ("processors", ctypes.c_uint32),
                ("units", ctypes.c_uint64)]


class Operation(ctypes.Structure):
    _fields_ = [(n, ctypes.c_uint32) for n in ("size", "client", "lane", "kind", "processors",
                                               "last_entry")] + \
               [(n, ctypes.c_uint64) for n in ("id", "kernel", "since_ns", "ready_at_ns",
                                               "deadline_ns", "predicted_ns", "queued_ns")] + \
               [("times_ns", ctypes.c_void_p), ("iteration_end", ctypes.c_uint32),
                ("target_ns", ctypes.c_uint64)]


class Pool(ctypes.Structure):
    _fields_ = [(n, ctypes.c_uint32) for n in ("size", "entries_count", "waiting_count",
                                               "holdings_count")] + \
               [("entries", ctypes.POINTER(Entry)), ("waiting", ctypes.c_void_p),
                ("holdings", ctypes.c_void_p), ("barred", ctypes.c_uint64),
                ("set_aside", ctypes.c_uint64), ("now_ns", ctypes.c_uint64),
                ("epoch", ctypes.c_uint64)]


class Choice(ctypes.Structure):
    _fields_ = [("entry", ctypes.c_uint32), ("launches", ctypes.c_uint32)]


CREATE = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_char_p, ctypes.c_char_p, ctypes.c_size_t)
SELECT = ctypes.CFUNCTYPE(Choice, ctypes.c_void_p, ctypes.POINTER(Operation),
                          ctypes.POINTER(ctypes.c_uint32), ctypes.c_uint32, ctypes.POINTER(Pool))


class Functions(ctypes.Structure):
    _fields_ = [("size", ctypes.c_uint32), ("abi", ctypes.c_uint32), ("name", ctypes.c_char_p),
                ("summary", ctypes.c_char_p), ("create", CREATE), ("destroy", ctypes.c_void_p),
                ("pick", ctypes.c_void_p), ("select", SELECT), ("prepare", ctypes.c_void_p)]


NO_ENTRY, UNTIL_CHANGED = 0xffff, 0xffffffff


class FixedParts(unittest.TestCase):
    """The policy of the arms, over a pool of four units of eight SMs."""

    def setUp(self):
        library = ctypes.CDLL(str(PREFIX / "lib" / "vitamin" / "bench" / "fixed_parts.so"))
        library.vitamin_policy.restype = ctypes.POINTER(Functions)
        self.functions = library.vitamin_policy().contents
        units = [0b1111, 0b0001, 0b0010, 0b0100, 0b1000, 0b0011, 0b1100, 0b0111]
        self.entries = (Entry * len(units))(*[
            Entry(ctypes.sizeof(Entry), 8 * bin(u).count("1"), u) for u in units])
        self.pool = Pool(size=ctypes.sizeof(Pool), entries_count=len(units), entries=self.entries)

    def make(self, parameters):
        error = ctypes.create_string_buffer(200)
        state = self.functions.create(parameters.encode(), error, len(error))
        return state, error.value.decode()

    def select(self, state, client, eligible=range(8), processors=1):
        operation = Operation(size=ctypes.sizeof(Operation), client=client, processors=processors)
        list_ = (ctypes.c_uint32 * len(eligible))(*eligible)
        choice = self.functions.select(state, ctypes.byref(operation), list_, len(list_),
                                       ctypes.byref(self.pool))
        return choice.entry, choice.launches

    def test_each_client_has_the_part_of_its_number(self):
        state, _ = self.make("plan=7@2-3/4@0-1")
        self.assertEqual(self.select(state, 7), (6, UNTIL_CHANGED))
        self.assertEqual(self.select(state, 4), (5, UNTIL_CHANGED))

    def test_clients_without_a_number_get_parts_in_the_order_of_coming(self):
        state, _ = self.make("plan=0-2/3-3")
        self.assertEqual([self.select(state, c)[0] for c in (9, 5, 9, 5, 6)], [7, 4, 7, 4, 7])

    def test_a_part_that_drains_is_waited_for(self):
        state, _ = self.make("plan=1@0-1/2@2-3")
        self.assertEqual(self.select(state, 1, eligible=[1, 2, 3, 0])[0], NO_ENTRY)

    def test_a_launch_that_needs_more_than_the_part_runs_on_the_whole_device(self):
        state, _ = self.make("plan=1@0-1/2@2-3")
        self.assertEqual(self.select(state, 1, eligible=[7, 0], processors=20), (0, 1))

    def test_every_unit_is_the_whole_device(self):
        state, _ = self.make("plan=1@0-3/2@0-3")
        self.assertEqual(self.select(state, 1), (0, UNTIL_CHANGED))

    def test_a_plan_that_is_none_is_refused_with_what_it_should_be(self):
        for wrong in ("", "x=1", "plan=", "plan=3-1", "plan=0-64", "plan=0-1/", "plan=0-1,2-3",
                      "plan=a@0-1"):
            state, error = self.make(wrong)
            self.assertIsNone(state, wrong)
            self.assertIn("is not plan=", error)


if __name__ == "__main__":
    unittest.main()
