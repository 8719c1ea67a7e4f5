# SPDX-License-Identifier: Apache-2.0
"""The figures of bench/evaluate.py, made from known samples. Needs in the environment: BENCH."""
import contextlib
import json
import os
import pathlib
import subprocess
import sys
import tempfile
import types
import unittest

BENCH = pathlib.Path(os.environ["BENCH"])
sys.path[:0] = [str(BENCH), str(BENCH / "evaluation")]

import experiment  # noqa: E402
import experiments  # noqa: E402
import harness  # noqa: E402
import job  # noqa: E402
import load  # noqa: E402
import modes  # noqa: E402
import report  # noqa: E402


class Warming(unittest.TestCase):
    def test_a_process_prefills_each_length_once_before_it_is_measured(self):
        prefill, ran = job.Prefill.__new__(job.Prefill), []
        prefill.engine, prefill.warmed = types.SimpleNamespace(warm=ran.append), {9}
        self.assertEqual(prefill.warm([5, 9, 3, 5]), {"warmed": 2})
        self.assertEqual(prefill.warm([3, 4]), {"warmed": 1})
        self.assertEqual(ran, [3, 5, 4])


class Figures(unittest.TestCase):
    def test_the_newest_run_stands_first_and_earlier_ones_below(self):
        text = self.written(
            "E3", *(self.cell(m, 1, 10, 10) for m in ("exclusive", "mps", "ours")),
            *(self.cell(m, 2, 20, 20) for m in ("exclusive", "mps", "ours")),
            self.cell("exclusive", 3, 10, 10), self.cell("static", 3, 5, 5),
            {"note": "what was learnt"})
        first, _, then = text.partition("<details>")
        rows = lambda part: {line.split("|")[1].strip() for line in part.splitlines()
                             if line.startswith("| W,")}
        self.assertEqual((rows(first), rows(then)), ({"W, run 2"}, {"W, run 1", "W, run 3"}))
        self.assertIn("* what was learnt", then)
        self.assertIn("`throughput` / mps 1.000", first.split("## E0")[0])

    def test_clocks_are_noted_before_and_behind_the_cells(self):
        class Results:
            found = []

            def add(self, record):
                self.found.append(record)
        session = experiment.Session(types.SimpleNamespace(), Results(), [], "", None, 0)
        session.note_clocks("E3", "W1")
        self.assertEqual(Results.found, [])  # nothing where there is no GPU
        session.clocks = lambda: [{"clocks.sm": "1980"}]
        session.note_clocks("E3", "W1")
        self.assertEqual(Results.found[0]["clocks"], [{"clocks.sm": "1980"}])

    def test_percentiles(self):
        self.assertEqual(load.percentile([4, 1, 3, 2], 0.5), 2.5)
        self.assertEqual(load.percentile([1, 2, 3, 4, 5], 1), 5)
        self.assertAlmostEqual(load.percentile(range(101), 0.99), 99)
        self.assertIsNone(load.percentile([], 0.5))
        low, high = load.percentile_interval(list(range(1000)), 0.99)
        self.assertTrue(980 <= low < 990 < high <= 999)

    def test_poisson_arrivals_have_their_rate(self):
        times = load.poisson(50, 200, seed=1)
        self.assertEqual(times, sorted(times))
        self.assertLess(abs(len(times) - 10_000), 5 * 10_000 ** 0.5)
        self.assertEqual(times, load.poisson(50, 200, seed=1))
        self.assertNotEqual(times, load.poisson(50, 200, seed=2))

    def test_a_trace_is_scaled_in_time(self):
        requests, cut = load.Trace("azure2023_code").requests(4, 30, 1, 1000, 20)
        self.assertEqual(len(requests), 120)
        self.assertEqual((requests[0]["at"], round(requests[-1]["at"], 6)), (0, 30))
        self.assertLessEqual(max(r["prompt"] for r in requests), 1000)
        self.assertAlmostEqual(cut["span_s"] * cut["time_factor"], 30)
        self.assertTrue(load.Trace("burstgpt_conv_synth").synthetic)

    def test_a_prompt_is_due_in_time_for_those_behind_it(self):
        due = lambda *waiting: load.first_token_due(waiting, 10.0, 0.5, lambda n: n / 1000)
        self.assertAlmostEqual(due((10.0, 100)), 10.5)
        # The second one needs 200 ms of its own 500.
        self.assertAlmostEqual(due((9.9, 100), (9.95, 200)), 10.25)
        # The first one is late already: the second one is not to be.
        self.assertAlmostEqual(due((9.0, 100), (9.9, 200)), 10.2)
        # All are late: the first one should have ended first.
        self.assertAlmostEqual(due((9.0, 100), (9.2, 100)), 9.5)

    def test_serving_figures(self):
        requests = [
            {"at": 0.0, "output": 3, "tokens": [0.1, 0.12, 0.14]},    # good
            {"at": 1.0, "output": 3, "tokens": [1.7, 1.72, 1.74]},    # late
            {"at": 2.0, "output": 3, "tokens": [2.1, 2.2, 2.3]},      # slow
            {"at": 3.0, "output": 3, "tokens": [3.1, 3.12]},          # never ended: both
            {"at": 4.0, "output": 1, "tokens": [4.1]}]                # no TPOT
        found = load.serving(requests, 10)
        goal = found["violations"]["interactive"]
        self.assertEqual((goal["ttft"], goal["tpot"]), (2 / 5, 2 / 4))
        self.assertAlmostEqual(goal["goodput"], 0.2)
        self.assertEqual(found["ended"], 4)
        self.assertAlmostEqual(found["tpot"]["p50"], 0.02)

    @staticmethod
    def cell(mode, session, *rates, repeat=0):
        return {"experiment": "E3", "subject": "W", "cell": mode, "repeat": repeat, "ok": True,
                "session": session, "jobs": [{"per_s": r} for r in rates]}

    def written(self, name, *records):
        """The report of records, a header before each session."""
        with tempfile.TemporaryDirectory() as directory:
            with open(pathlib.Path(directory) / f"{name}.jsonl", "w") as file:
                session = None
                for r in records:
                    if r.get("session") != session:
                        session = r.get("session")
                        file.write(json.dumps({"header": {
                            "command": "c", "commit": "0", "gpu": "g", "driver": "d",
                            "date": "then"}}) + "\n")
                    file.write(json.dumps(r) + "\n")
            return report.write(directory)

    def test_ratios_are_formed_within_a_session(self):
        found = [report.normalised(cells)[0].get("mps", []) for _, _, cells in report.by_session([
            self.cell("exclusive", 1, 10, 20), self.cell("mps", 1, 5, 10),
            self.cell("exclusive", 2, 20, 40), self.cell("mps", 2, 10, 30),
            self.cell("mps", 3, 1, 1)])]
        self.assertEqual([[r["each"] for r in runs] for runs in found],
                         [[[0.5, 0.5]], [[0.5, 0.75]], []])

    def test_neighbours_are_cells_of_one_repeat(self):
        runs = [{"repeat": 0, "v": 2}, {"repeat": 1, "v": 9}, {"repeat": 2, "v": 8}]
        base = [{"repeat": 0, "v": 1}, {"repeat": 2, "v": 2}]
        self.assertEqual(report.neighbours(runs, base, lambda r: r["v"]), [2, 4])

    def test_a_run_whose_exclusive_cells_differ_is_not_usable(self):
        def of(second):
            text = self.written(
                "E3", self.cell("exclusive", 1, 100, 10), self.cell("mps", 1, 50, 5),
                self.cell("ours", 1, 90, 9), self.cell("ours", 1, 90, 9, repeat=1),
                self.cell("mps", 1, 50, 5, repeat=1),
                self.cell("exclusive", 1, second, 10, repeat=1))
            return next(line for line in text.split("What was asked")[1].splitlines()
                        if line.startswith("| W, run 1 | ours |"))
        self.assertIn("1.800 (1.800 to 1.800), reached | ", of(101))
        self.assertTrue(of(101).endswith("| yes |"))
        self.assertTrue(of(103).endswith("| no |"))
        self.assertEqual(report.differ(report.spread([7])), "one cell: **not usable**")

    def test_the_middle_of_ratios_has_a_spread(self):
        show = lambda v: f"{v:.2f}"
        self.assertEqual(report.between([1.0], show), "–")
        self.assertEqual(report.between([1.0, 1.1], show), "1.00 to 1.10")
        low, _, high = report.between([0.9, 1.0, 1.0, 1.0, 1.1], show).split()
        self.assertTrue(0.9 <= float(low) <= 1.0 <= float(high) <= 1.1)
        told = lambda *of: report.verdict("x", 1.0, 0.99, True, 0, of)
        self.assertIn("1.000 (0.980 to 1.020)", told(0.98, 1.02))
        self.assertIn("reached; the interval holds the limit.", told(0.98, 1.02))
        self.assertTrue(told(0.995, 1.005).endswith("reached."))

    def test_moves_of_leases_tell_what_is_static(self):
        def cell(moves):
            return {**self.cell("ours", 1, 1, 1),
                    "daemon": {"counted": {"moves": moves, "grants": 9}},
                    "launches": [{"seconds": 2.0, "seen": 100, "moved": 10, "widths": {"8": 75}},
                                 {"seconds": 2.0, "seen": 100, "moved": 30, "widths": {"132": 25}}]}
        b = experiment.bindings(cell(500))
        self.assertEqual((b["launches"], b["rebinds"], b["moves"]), (100, 20, 125))
        self.assertEqual(b["widths"], {8: 0.75, 132: 0.25})
        self.assertNotIn("static", experiment.binding(cell(500)))
        self.assertIn("(static)", experiment.binding(cell(300)))
        self.assertEqual(experiment.binding(self.cell("mps", 1, 1, 1)), "")

    def test_static_partitions_are_a_frontier(self):
        def cell(mode, rate, p95):
            return {"repeat": 0, "train": {"per_s": rate}, "infer": {"p95": p95}}
        found = {"ours": [cell("ours", 10, 1.0)], "static:a": [cell("a", 11, 1.1)],
                 "static:b": [cell("b", 9, 0.9)]}
        self.assertIn("none has both", report.frontier("M", found)[0])
        found["static:c"] = [cell("c", 10.5, 0.95)]
        self.assertIn("**static:c** has both", report.frontier("M", found)[0])

    def test_cells_that_are_not_what_they_say_are_in_no_table(self):
        text = self.written(
            "E3", self.cell("exclusive", 1, 10, 10), self.cell("ours:fifo", 1, 5, 5),
            self.cell("exclusive", 2, 10, 10), self.cell("ours:fifo", 2, 7, 7),
            {"note": "something else ran", "session": 1, "cells": ["ours:fifo"], "void": True},
            {"note": "a remark"})
        rows = [line for line in text.splitlines() if line.startswith("| W")]
        self.assertEqual({"run 1" in r for r in rows if "ours:fifo" in r}, {False})
        self.assertIn("not in the tables: run 1, ours:fifo: something else ran", text)
        self.assertIn("* a remark", text)

    def test_p99_of_few_requests_is_an_interval(self):
        def mixed(mode, p99):
            return {"experiment": "E4", "subject": "M", "cell": mode, "repeat": 0, "ok": True,
                    "session": 1, "train": {"per_s": 10},
                    "infer": {"asked": 31, "answered": 31, "p50": 0.1, "p95": 0.2, "p99": p99,
                              "p99_interval": [0.25, 0.4]}}
        text = self.written("E4", mixed("exclusive", 0.3), mixed("ours", 0.36))
        self.assertIn("250 to 400", text)
        self.assertIn("31 requests is below the true p99 with a probability of 73.2 %", text)
        self.assertIn("1.200, asked at most 1.15: **missed**", text)

    def test_what_a_service_does_alone_must_hold_still_to_be_compared_with(self):
        def mixed(mode, repeat, p99):
            return {"experiment": "E4", "subject": "M", "cell": mode, "repeat": repeat, "ok": True,
                    "session": 1, "train": {"per_s": 10},
                    "infer": {"asked": 31, "answered": 31, "p50": 0.1, "p95": 0.2, "p99": p99,
                              "p99_interval": [0.25, 0.4]}}
        for slow, comparable in ((0.8, True), (1.0, False)):
            text = self.written("E4", mixed("exclusive", 0, 0.3), mixed("ours", 0, 0.3),
                                mixed("exclusive", 1, slow), mixed("ours", 1, 0.3))
            self.assertEqual("not comparable: p99 alone was 300 and 1000 ms" in text,
                             not comparable)
            self.assertEqual("M ours not comparable" in text, not comparable)
            self.assertEqual("asked at most 1.15" in text, comparable)

    def test_rates_are_those_of_the_window(self):
        self.assertAlmostEqual(experiment.rate([0.5, 1, 1.5, 2, 2.5, 9], 1, 3), 2)

    def test_settings_are_packed_into_the_memory(self):
        specs = [experiment.spec("train", "D1.7"), experiment.spec("train", "L8")]
        kept, more = experiment.needs(specs)
        names = ["native", "mps", "static", "ours"]
        self.assertEqual(experiment.batches(names, specs, 4 * kept + more), [names])
        self.assertEqual(experiment.batches(names, specs, 2 * kept + more),
                         [["native", "mps"], ["native", "static"], ["native", "ours"]])
        with self.assertRaises(harness.Refusal):
            experiment.batches(names, specs, kept)

    def test_processes_are_built_in_waves_that_fit(self):
        specs = [experiment.spec("train", "D0.6"), experiment.spec("train", "D0.6")]
        kept, more = experiment.needs(specs)
        names = ["native", "mps", "static", "ours"]
        for free in (kept * 4 + more, kept * 4 + 2 * more, 4 * (kept + more)):
            held = 0
            for wave in experiment.waves(names, 0, specs, free):
                self.assertLessEqual(kept * (held + len(wave)) + more * len(wave), free)
                held += len(wave)
            self.assertEqual(held, len(names))
        self.assertEqual(list(experiment.waves(names, 0, specs, 4 * (kept + more))), [names])
        self.assertEqual(list(experiment.waves(names, 1, specs, 0))[0], ["native"])

    def test_repeats_that_are_missing_are_named(self):
        record = {"run": 1, "experiment": "E3", "subject": "W1"}
        why = "D0.6 (train, ours): no answer in 71 s"
        records = [{**record, "cell": "ours", "repeat": 0, "ok": True},
                   {**record, "cell": "ours", "repeat": 1, "ok": False, "why": why},
                   {**record, "cell": "orion", "repeat": 1, "ok": False, "why": why},
                   {**record, "cell": "orion", "repeat": 1, "ok": True},
                   {**record, "cell": "salus", "repeat": 0, "ok": False, "why": why}]
        self.assertEqual(list(report.remarks(records)), [
            "* run 1, W1, could not be run: ours (repeat 1), salus: no answer in 71 s"])

    def test_a_mode_whose_jobs_always_fail_does_not_take_the_others_with_it(self):
        told, started = [], []

        class Told(experiment.Experiment):
            name = "E3"

            def cell(self, jobs, specs, mode, repeat):
                if mode.name == "salus":
                    raise experiments.JobFailed("D0.6 (train, ours): no answer in 71 s")
                return {"jobs": jobs}

        def start(setting, specs):
            started.append(setting)
            return [types.SimpleNamespace(name=setting, ready={}, wait_ready=lambda _: None,
                                          end=lambda: None,
                                          process=types.SimpleNamespace(pid=1))]
        options = types.SimpleNamespace(
            modes=["exclusive", "ours", "salus", "orion"], repeats=3, warm_up=0, window=0,
            start_s=0, start_timeout=1, budget=1e9)
        session = types.SimpleNamespace(
            options=options, free_gib=1e9, cells=0, ended=0, start=start, number=1,
            is_done=lambda *_: False, elapsed=lambda: 0, allow=lambda _: None,
            say=lambda *_: None, note_clocks=lambda *_: None,
            results=types.SimpleNamespace(add=lambda _: None),
            surroundings=types.SimpleNamespace(
                use=lambda _: None, watch=lambda *_: contextlib.nullcontext()),
            add=lambda _, subject, mode, repeat, record: told.append((mode, repeat, record)))
        Told(session).run("W1", [experiment.Spec("train", "demo")])
        self.assertEqual(len(told), 12)
        missing = {(mode, repeat): record["why"] for mode, repeat, record in told
                   if not record["ok"]}
        self.assertEqual(set(missing), {("salus", r) for r in range(3)})
        self.assertIn("not tried again after 2 times: D0.6", missing["salus", 2])
        # As they were at first, and after each of two failures; a third has not happened.
        self.assertEqual(started, ["native", "ours", "ours", "ours"])

    def test_what_was_not_run_is_named_with_its_command(self):
        with tempfile.TemporaryDirectory() as directory:
            text = report.write(directory)
        for name in ("E3", "E4", "E5", "E6", "E7", "E8", "E9"):
            self.assertIn(f"`python3 bench/evaluate.py {name}", text)
        self.assertIn("**Not run.**", text)

    def test_holds_are_told_by_job(self):
        process = subprocess.Popen(["sleep", "60"], start_new_session=True)
        self.addCleanup(process.wait)
        self.addCleanup(process.kill)
        counters = dict.fromkeys(modes.Watch.COUNTERS, 0)

        class Daemon:
            asked = 0

            def status(self):
                self.asked += 1
                return {"devices": [{**counters, "grants": 10 * self.asked, "held": [
                            {"client": 7, "processors": 64, "open": True},
                            {"client": 8, "processors": 68, "open": False}]}],
                        "clients": [{"client": 7, "process": process.pid}]}

            def explain(self):
                return {"devices": []}
        with modes.Watch(Daemon(), 0, samples=1) as watch:
            watch.thread.join()
        record = watch.record([1, process.pid])
        self.assertEqual(record["counted"], {**counters, "grants": 20})
        self.assertEqual(record["explain"], {"devices": []})
        self.assertEqual([holds for _, holds in record["held"]],
                         [[[1, 64, True], ["client 8", 68, False]]])

    def test_any_policy_and_partition_is_a_mode(self):
        self.assertEqual(modes.mode("ours:static:parts=4").policy, "static:parts=4")
        self.assertEqual(modes.mode("static:0-3/4-15").setting, "static:0-3/4-15")


if __name__ == "__main__":
    unittest.main()
