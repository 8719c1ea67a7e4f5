# SPDX-License-Identifier: Apache-2.0
"""The measurements of bench/daemon on the software device: they must not rot where there is no GPU,
and what they read from a vitamind's trace must be what it did. Needs in the environment: BENCH and
VITAMIN_PREFIX (a build directory)."""
import json
import os
import pathlib
import subprocess
import sys
import tempfile
import time
import unittest

import seed as seeds
from time_limit import time_limit

BENCH = pathlib.Path(os.environ["BENCH"])
sys.path[:0] = [str(BENCH), str(BENCH / "daemon")]

import common  # noqa: E402
import decisions  # noqa: E402
import holds  # noqa: E402
import reclaim  # noqa: E402


class Jobs(unittest.TestCase):
    def test_no_line_is_lost_that_is_written_while_the_file_is_read(self):
        writes = "for i in range(100_000): print('{\"i\": %d}' % i, flush=True)"
        job = common.Job([sys.executable, "-c", writes], {})
        while job.process.poll() is None:
            job.lines()
        self.assertEqual([line["i"] for line in job.lines()], list(range(100_000)))
        self.assertEqual(job.wait(time_limit(10)).code, 0)


class Holds(unittest.TestCase):
    def twice(self, *changes):
        """How many pairs of these holds, each of another client on unit 1, break the rules."""
        usual = {"units": 2, "whole": False, "open": True, "shared": False, "adopted": False,
                 "age_ms": 5.0}
        held = [{**usual, "client": i, **more} for i, more in enumerate(changes)]
        return len(list(holds.held_twice({"held": held})))

    def test_only_what_was_granted_before_a_report_overlaps_earlier_work(self):
        earlier = {"adopted": True, "open": False}
        self.assertEqual(self.twice({}, {}), 1)
        self.assertEqual(self.twice({}, {"open": False}), 1)
        self.assertEqual(self.twice({}, {"units": 4}), 0)
        self.assertEqual(self.twice(earlier, earlier), 0)
        self.assertEqual(self.twice({"age_ms": 6.0}, earlier), 0)
        self.assertEqual(self.twice(earlier, {"age_ms": 4.0}), 1)
        self.assertEqual(self.twice({"age_ms": 6.0}, {"age_ms": 6.0}, earlier), 1)


class Scripts(unittest.TestCase):
    def run_script(self, script, *words):
        """The records that it wrote, without the header."""
        with tempfile.TemporaryDirectory(prefix="vitamin-bench-") as directory:
            result = subprocess.run(
                [sys.executable, str(BENCH / "daemon" / script), *words, "--device", "soft",
                 "--out", directory], capture_output=True, text=True,
                 timeout=time_limit(200), check=False)
            self.assertEqual(result.returncode, 0, result.stdout + result.stderr)
            lines = [json.loads(line) for path in pathlib.Path(directory).glob("*.jsonl")
                     for line in path.read_text().splitlines()]
            self.assertGreater(len(lines), 1, result.stdout + result.stderr)
            return [line for line in lines if "header" not in line]

    def test_no_client_is_granted_what_anothers_kernel_still_runs_on(self):
        for seconds in ("0.4", "1.6", "6.4"):  # in which clients have turns
            records = self.run_script("processes.py", "reclaim", "--seconds", seconds)
            self.assertEqual(len(records), 6)
            for record in records:
                self.assertEqual(record["overlaps"], 0, record)
                self.assertEqual(record["dropped"], 0)
            if sum(r["closures"] for r in records) > 0:
                return
        self.fail("no gate was closed")

    def test_ten_processes_of_a_user_hold_no_more_than_the_users_share(self):
        native, *records = self.run_script("user_share.py", "--seconds", "1")
        self.assertGreater(min(native["natively"]), 0)
        self.assertEqual([record["policy"] for record in records], ["throughput", "fifo"])
        for record in records:
            self.assertEqual((record["failed"], record["clients"]), ([], 10), record)
            self.assertGreater(record["sms"], 0, record)
            self.assertLessEqual(record["sms"], 33, record)
            self.assertGreater(record["together"], 0, record)

    def test_a_survivor_keeps_its_bytes_and_its_coverage(self):
        record, = self.run_script("processes.py", "kill", "--policies", "random", "--kills", "4")
        self.assertEqual((record["equal"], record["of"]), (1, 1), record)
        self.assertTrue(record["coverage_same"], record)
        self.assertEqual(len(record["gone"]), 4, record)
        for gone in record["gone"]:
            self.assertLessEqual(gone["dying"], gone["forget"])

    def test_hazards_end_as_they_do_natively(self):
        records = self.run_script("hazards.py", "cooperative", "cooperative_too_large",
                                  "clusters_16", "persistent", "meeting_streams", "host_gated",
                                  "fault",
                                  "--repeats", "5", "--timeout", "60")
        shared = [r for r in records if r.get("mode") == "random"]
        self.assertEqual(len(shared), 7)
        for record in shared:
            self.assertTrue(record["same"], record)
            self.assertFalse(record["hung"], record)

    def test_a_fault_is_contained_in_its_class_and_its_cost_is_measured(self):
        kinds = ["illegal", "hang"] if seeds.long_form() else ["illegal"]
        for seconds in ("3", "12", "48"):  # in which a bystander that lives on is there behind it
            records = self.run_script("fault_matrix.py", "--kinds", *kinds, "--isolations",
                                      "shared", "class", "--rounds", "1", "--seconds", seconds,
                                      "--limit", "100000")
            faults = {(r["isolation"], r["fault"]): r for r in records if r["part"] == "fault"}
            if not any(record[who]["survived"] and record[who]["after"] is None
                       for record in faults.values() if "why" not in record
                       for who in ("same", "other")):
                break
        self.assertEqual(len(faults), 2 * len(kinds))
        for (isolation, kind), record in faults.items():
            self.assertNotIn("why", record)
            for who in ("same", "other"):
                self.assertTrue(record[who]["equal"], record)
                self.assertEqual(record[who]["survived"], kind == "hang" or
                                 (isolation, who) == ("class", "other"), record)
            self.assertIsNotNone(record["accepts_again_s"], record)
        costs = [r for r in records if r["part"] == "cost"]
        self.assertEqual(len(costs), 6)
        self.assertTrue(all(r["speeds"] and r["equal"] for r in costs), costs)

    def test_jobs_of_ranks_on_eight_gpus_end_with_their_bits(self):
        """With ranks that are late or killed, GPUs in another order in every process, and another
        vitamind in the middle of a collective."""
        cells = {"three": 3, "exchange": 2, "overlap": 2, "late": 2, "restart": 2, "kill": 2}
        records = self.run_script("many_gpus.py", *cells, "--gpus", "8", "--policies",
                                  "random,throughput", "--steps", "4", "--timed", "10",
                                  "--timeout", str(time_limit(20)))
        jobs = [r for r in records if "job" in r]
        for record in jobs:
            self.assertEqual(record["equal"], record["of"], record)
            self.assertEqual((record["right_gpus"], record["hung"] and not record["killed"]),
                             (True, False), record)
            if record["mode"] not in ("native", "MPS") and not record["killed"]:
                self.assertEqual([c["bound_share"] for c in record["coverage"]],
                                 [1.0] * len(record["coverage"]), record)
        for cell, count in cells.items():
            shared = [r for r in jobs if r["cell"] == cell and r["mode"] not in ("native", "MPS")]
            modes = {r["mode"] for r in shared}
            self.assertGreater(len(modes), 0, cell)
            self.assertEqual(len(shared), count * len(modes), cell)
        daemons = [r for r in records if "looks" in r]
        self.assertGreater(sum(r["looks"] for r in daemons), 0)
        self.assertEqual([r["overlaps"] for r in daemons], [[]] * len(daemons))

    def test_processes_of_a_gpu_that_falls_off_end_with_an_error_and_others_with_their_bits(self):
        records = self.run_script("many_gpus.py", "lost", "--gpus", "4", "--policies",
                                  "random,throughput", "--steps", "4", "--timeout",
                                  str(time_limit(20)))
        for mode in ("MPS", "random", "throughput"):
            stays, loses = [r for r in records if "job" in r and r["mode"] == mode]
            self.assertEqual((stays["equal"], stays["hung"], stays["why"]),
                             (stays["of"], False, [""] * 3), stays)
            self.assertRegex(loses["why"][-1], "46|DEVICE_UNAVAILABLE", loses)

    def test_rates_by_turns_are_paired(self):
        records = self.run_script("many_gpus.py", "two", "--rates", "--gpus", "2", "--policies",
                                  "throughput", "--steps", "2", "--timed", "20", "--block", "0.2",
                                  "--rounds", "3", "--timeout", str(time_limit(30)))
        rates, = [r for r in records if "rates" in r]
        self.assertEqual(len(rates["rounds"]), 3)
        for job in ("sum", "ddp 1", "ddp 2"):
            value, low, high = rates["over_MPS"][job]
            self.assertTrue(0 < low <= value <= high, rates["over_MPS"])
        jobs = [r for r in records if "job" in r]
        self.assertEqual([(r["equal"], r["hung"]) for r in jobs],
                         [(r["of"], False) for r in jobs])

    def test_one_vitamind_serves_several_gpus_of_several_processes(self):
        for seconds in ("1", "4", "16"):  # in which processes get CPU time
            records = [r for r in self.run_script("scaling.py", "--gpus", "1,2", "--processes", "2",
                                                  "--seconds", seconds) if "gpus" in r]
            self.assertEqual([(r["gpus"], r["processes"]) for r in records], [(1, 2), (2, 4)])
            if all(r["grants_per_s"] > 0 for r in records):
                break
        for record in records:
            self.assertGreater(record["grants_per_s"], 0, record)
            self.assertGreater(record["us_per_request"], 0, record)
            self.assertIsNotNone(record["wait_p99_us"], record)
            self.assertEqual(record["problems"], [], record)

    def test_loops_are_rated_alone_and_beside_each_other(self):
        for seconds in (0.2, 1, 4, 16):  # in which each loop ends something
            records = self.run_script("processes.py", "loops", "--repeats", "1",
                                      "--seconds", str(seconds))
            medians = [(r["medians"], r["loops"]) for r in records if "medians" in r]
            for each, loops in medians:
                self.assertEqual(len(each), loops)
            if all(min(each) > 0 for each, _ in medians):
                break
        self.assertGreater(min(min(each) for each, _ in medians), 0)

    def test_halves_by_leases_are_compared_with_the_same_halves_without_a_daemon(self):
        for seconds in (0.3, 1, 4, 16):
            records = self.run_script("processes.py", "partition", "--repeats", "2",
                                      "--seconds", str(seconds))
            windows = [r["setting"] for r in records if "setting" in r]
            self.assertEqual(windows, ["static", "leases", "leases", "static"])
            jobs = [r for r in records if "job" in r]
            self.assertEqual(len(jobs), 2)
            covers = [job["coverage"][setting] for job in jobs for setting in ("leases", "static")]
            for cover in covers:
                self.assertEqual(cover["bound"], cover["launches"], cover)
            # On a machine that is too busy a job ends nothing in a short window, or hears nothing
            # of its daemon and goes elsewhere.
            least = min(rate for r in records for rate in r.get("per_s", [1]))
            if least > 0 and not any(cover["whole_device"] for cover in covers):
                break
        self.assertGreater(least, 0)
        for job in jobs:
            self.assertEqual(len(job["ratios"]), 2)
        for cover in covers:  # on one half, and nowhere else
            self.assertEqual(cover["whole_device"], {}, cover)
            self.assertLessEqual({w["processors"] for w in cover["widths"]}, {64, 68}, cover)


class Trace(unittest.TestCase):
    def test_entries_have_the_units_that_the_daemon_gives_them(self):
        with common.Surroundings("soft") as surroundings:
            daemon = common.Daemon("random", surroundings.environment, trace=True, watch=False)
            job = common.occupant(surroundings.environment, daemon)
            seen = {}

            def look():
                for device in daemon.status()["devices"]:
                    seen.update({h["entry"]: (h["units"], h["processors"])
                                 for h in device["held"]})
                return len(seen)
            for seconds in (1.5, 6, 24):  # of which the job or the daemon may get little
                job.tell(f"compute 0 1000 8 2000000 4 {seconds}")
                end = time.monotonic() + seconds
                while look() < 10 and time.monotonic() < end:
                    pass
                job.next()
                if len(seen) >= 3:
                    break
            job.end()
            daemon.end()
        known = {e: (daemon.decisions.units[e], daemon.decisions.processors[e]) for e in seen}
        self.assertGreaterEqual(len(seen), 3)
        self.assertEqual(known, seen)

    def test_a_lease_that_came_back_to_its_holder_was_not_reclaimed(self):
        made = decisions.Decisions.__new__(decisions.Decisions)
        made.units = [3, 1, 2, 3]
        event = lambda ns, kind, client, entry=0: decisions.Event(ns, kind, client, 0, entry, ns)
        made.events = [event(1, "grant", 1, 3), event(2, "closed", 1), event(4, "returned", 1, 3),
                       event(5, "grant", 2, 1), event(6, "closed", 2), event(7, "returned", 2, 1),
                       event(8, "grant", 2, 1), event(9, "dying", 2), event(10, "forget", 2),
                       event(12, "grant", 1, 3)]
        closure, = made.closures()
        self.assertEqual((closure["closed"], closure["returned"], closure["granted"]), (2, 4, 5))
        # Its last kernel ended at 3 (of 1000): what is beyond counts from there.
        ends = {1: ([3000], [500]), 2: ([9000], [6000])}
        scaled = {**closure, **{k: 1000 * closure[k] for k in ("closed", "returned", "granted")}}
        judged, = reclaim.judge([scaled], ends, 0)
        self.assertEqual((judged["outstanding_us"], judged["beyond_us"]), (1.0, 2.0))
        self.assertEqual(reclaim.overlaps(ends[1], ends[2], 0), 0)
        # (ends, begins): one that still runs when another's begins, whichever is told first.
        late = ([2000, 7000], [500, 2500]), ([6500, 9000], [6000, 7000])
        self.assertEqual(reclaim.overlaps(*late, 0), 1)
        self.assertEqual(reclaim.overlaps(*reversed(late), 0), 1)
        self.assertEqual(reclaim.overlaps(*late, 1000), 0)  # the clocks may differ by so much
        gone, = made.reuse()
        self.assertEqual((gone["units"], gone["forget"], gone["again"], gone["all_again"]),
                         (1, 10, 12, 12))


if __name__ == "__main__":
    unittest.main()
