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

import decision_report  # noqa: E402


class Smoke(unittest.TestCase):
    def setUp(self):
        directory = tempfile.TemporaryDirectory(prefix="vitamin-decide-")
        self.addCleanup(directory.cleanup)
        self.out = pathlib.Path(directory.name)

    def decide(self, *words, code=0):
        result = subprocess.run(
            [sys.executable, str(BENCH / "decide.py"), *words, "--out", str(self.out)],
            capture_output=True, text=True, timeout=time_limit(120))
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


def fields(kind, *names):
    return [(name, kind) for name in names]


U32, U64, POINTER = ctypes.c_uint32, ctypes.c_uint64, ctypes.c_void_p


class Partition(ctypes.Structure):
    _fields_ = fields(U32, "size", "sms") + fields(U64, "units")


class Client(ctypes.Structure):
    _fields_ = (fields(U32, "size", "id") + [("weight", ctypes.c_float)] +
                fields(U32, "max_sms", "reserved_sms", "group", "may_share", "phase", "active",
                       "reports_progress") +
                fields(U64, "ttft_ns", "tpot_ns", "latency_ns", "step_ns") +
                [("quantile", ctypes.c_float)] + fields(U32, "streams_count", "steps_count") +
                fields(POINTER, "streams", "steps") +
                fields(U64, "work", "busy_ns", "misplaced", "launches", "active_since_ns"))


class Row(ctypes.Structure):
    _fields_ = (fields(U32, "size", "client", "stream", "partition", "mode", "rank", "hold",
                       "launches") + fields(U64, "run_ahead_ns", "until_ns"))


class Snapshot(ctypes.Structure):
    _fields_ = (fields(U32, "size", "partitions_count", "clients_count", "grants_count",
                       "changed_count", "current_count") + fields(U64, "now_ns", "revision") +
                [("partitions", ctypes.POINTER(Partition)), ("clients", ctypes.POINTER(Client))] +
                fields(POINTER, "grants", "changed", "current", "speed", "host"))


CREATE = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_char_p, ctypes.c_char_p, ctypes.c_size_t)
ALLOCATE = ctypes.CFUNCTYPE(ctypes.c_int64, ctypes.c_void_p, ctypes.POINTER(Snapshot),
                            ctypes.POINTER(Row), U32, ctypes.POINTER(U64))


class Functions(ctypes.Structure):
    _fields_ = (fields(U32, "size", "abi") + fields(ctypes.c_char_p, "name", "summary") +
                fields(U32, "flags") + [("create", CREATE), ("destroy", POINTER),
                                        ("allocate", ALLOCATE)] +
                fields(POINTER, "place", "forget", "pick", "select", "prepare"))


EXCLUSIVE, SHARED = 0, 1  # enum vitamin_mode


class FixedParts(unittest.TestCase):
    """The policy of the arms, over a pool of four units of eight SMs."""

    def setUp(self):
        library = ctypes.CDLL(str(PREFIX / "lib" / "vitamin" / "bench" / "fixed_parts.so"))
        library.vitamin_policy.restype = ctypes.POINTER(Functions)
        self.functions = library.vitamin_policy().contents
        self.assertEqual((self.functions.abi, self.functions.size),
                         (2, ctypes.sizeof(Functions)))
        units = [0b1111, 0b0001, 0b0010, 0b0100, 0b1000, 0b0011, 0b1100, 0b0111]
        self.partitions = (Partition * len(units))(*[
            Partition(ctypes.sizeof(Partition), 8 * bin(u).count("1"), u) for u in units])

    def make(self, parameters):
        error = ctypes.create_string_buffer(200)
        state = self.functions.create(parameters.encode(), error, len(error))
        return state, error.value.decode()

    def allocate(self, state, *clients, idle=()):
        """{client: (partition, mode)}"""
        some = (Client * len(clients))(*[
            Client(size=ctypes.sizeof(Client), id=c, active=c not in idle) for c in clients])
        snapshot = Snapshot(size=ctypes.sizeof(Snapshot), partitions_count=len(self.partitions),
                            clients_count=len(clients), partitions=self.partitions, clients=some)
        rows, wake = (Row * 8)(), U64(0)
        count = self.functions.allocate(state, ctypes.byref(snapshot), rows, len(rows),
                                        ctypes.byref(wake))
        self.assertTrue(all(row.size == ctypes.sizeof(Row) for row in rows[:count]))
        return {row.client: (row.partition, row.mode) for row in rows[:count]}

    def test_each_client_has_the_part_of_its_number(self):
        state, _ = self.make("plan=7@2-3/4@0-1")
        self.assertEqual(self.allocate(state, 4, 7), {4: (5, EXCLUSIVE), 7: (6, EXCLUSIVE)})
        self.assertEqual(self.allocate(state, 4, 7, idle=(4,)), {7: (6, EXCLUSIVE)})

    def test_clients_without_a_number_get_parts_in_the_order_of_coming(self):
        state, _ = self.make("plan=0-2/3-3")
        self.assertEqual(self.allocate(state, 9), {9: (7, EXCLUSIVE)})
        self.assertEqual(self.allocate(state, 5, 9), {5: (4, EXCLUSIVE), 9: (7, EXCLUSIVE)})
        self.assertEqual(self.allocate(state, 5, 6, 9),
                         {5: (4, EXCLUSIVE), 6: (7, SHARED), 9: (7, SHARED)})

    def test_every_unit_is_the_whole_device(self):
        state, _ = self.make("plan=1@0-3/2@0-3")
        self.assertEqual(self.allocate(state, 1), {1: (0, SHARED)})

    def test_a_plan_that_is_none_is_refused_with_what_it_should_be(self):
        for wrong in ("", "x=1", "plan=", "plan=3-1", "plan=0-64", "plan=0-1/", "plan=0-1,2-3",
                      "plan=a@0-1"):
            state, error = self.make(wrong)
            self.assertIsNone(state, wrong)
            self.assertIn("is not plan=", error)


if __name__ == "__main__":
    unittest.main()
