# SPDX-License-Identifier: Apache-2.0
"""bench/decision without processes: progress, paired statistics, noise, replay, arms. Needs in the
environment: BENCH."""
import json
import math
import os
import pathlib
import random
import sys
import tempfile
import types
import unittest
import unittest.mock

BENCH = pathlib.Path(os.environ["BENCH"])
sys.path[:0] = [str(BENCH), str(BENCH / "evaluation"), str(BENCH / "decision")]

import arms  # noqa: E402
import cells  # noqa: E402
import decision_report  # noqa: E402
import harness  # noqa: E402
import noise  # noqa: E402
import paired  # noqa: E402
import progress  # noqa: E402
import replay  # noqa: E402
import requirements  # noqa: E402
import session  # noqa: E402
import steps  # noqa: E402


def run_of(begin, seconds, groups=1, first=0):
    """Marks at these distances."""
    return {"begin": begin, "first": first, "groups": groups,
            "us": [round(1e6 * s) for s in seconds]}


class Progress(unittest.TestCase):
    def test_a_window_counts_fractions_of_a_step(self):
        line = progress.Timeline([run_of(10.0, [0.1, 0.1, 0.2])])
        self.assertAlmostEqual(line.at(10.05), 0.5)
        self.assertAlmostEqual(line.at(10.3), 2.5)
        self.assertAlmostEqual(line.speed(10.0, 10.2), 10)
        self.assertAlmostEqual(line.speed(10.2, 10.3), 5)

    def test_a_segment_counts_for_its_share_of_a_step_alone(self):
        # Segments of 10 and 30 ms alone; beside another job both take twice as long.
        alone = run_of(0.0, [0.01, 0.03] * 5, groups=2)
        shares = progress.weights([alone])
        self.assertAlmostEqual(shares[0], 0.25)
        line = progress.Timeline([run_of(0.0, [0.02, 0.06] * 5, groups=2)], shares)
        for begin in (0.0, 0.01, 0.03, 0.05):
            self.assertAlmostEqual(line.speed(begin, begin + 0.03), 1 / 0.08)
        equal = progress.Timeline([run_of(0.0, [0.02, 0.06] * 5, groups=2)])
        self.assertNotAlmostEqual(equal.speed(0.0, 0.02), 1 / 0.08)

    def test_the_first_step_of_a_run_has_no_weight(self):
        shares = progress.weights([run_of(0.0, [9.0, 9.0, 0.01, 0.03], groups=2)])
        self.assertAlmostEqual(shares[0], 0.25)
        self.assertIsNone(progress.weights([run_of(0.0, [9.0, 9.0], groups=2)]))
        # A run that begins inside of a step: whole steps only.
        shares = progress.weights([run_of(0.0, [9.0, 0.01, 0.03], groups=2, first=1)])
        self.assertAlmostEqual(shares[0], 0.25)

    def test_a_window_outside_of_the_marks_has_no_speed(self):
        line = progress.Timeline([run_of(1.0, [0.1] * 4)])
        self.assertIsNone(line.speed(0.9, 1.1))
        self.assertIsNone(line.speed(1.3, 1.5))
        self.assertIsNone(line.speed(1.2, 1.2))
        self.assertIsNone(progress.Timeline([]).speed(0, 1))

    def test_steps_that_begin_outside_of_a_window_have_no_duration_in_it(self):
        line = progress.Timeline([run_of(0.0, [0.1, 0.1, 0.2, 0.1, 0.1, 0.1], groups=2)])
        self.assertEqual([round(s, 6) for s in line.durations(0.0, 1.0)], [0.3, 0.2])
        self.assertEqual([round(s, 6) for s in line.durations(0.25, 1.0)], [0.2])

    def test_a_pause_adds_nothing(self):
        line = progress.Timeline([run_of(5.0, [0.1, 0.1], first=2), run_of(0.0, [0.1, 0.1])])
        self.assertAlmostEqual(line.at(3.0), 2)
        self.assertAlmostEqual(line.at(5.1), 3)


class Paired(unittest.TestCase):
    def test_drift_that_arms_share_cancels(self):
        draw = random.Random(7)
        drift = [1 + 0.5 * math.sin(i / 5) for i in range(40)]
        theirs = [d * (100 + draw.gauss(0, 0.5)) for d in drift]
        ours = [d * (102 + draw.gauss(0, 0.5)) for d in drift]
        found = paired.ratio(ours, theirs)
        self.assertLess(found.half, 0.005)
        self.assertLess(found.low, 1.02)
        self.assertGreater(found.high, 1.02)
        # The same values, not paired: the drift stays.
        draw.shuffle(ours)
        self.assertGreater(paired.ratio(ours, theirs).half, 0.05)

    def test_an_interval_holds_the_true_value_19_times_in_20(self):
        held = 0
        for seed in range(200):
            draw = random.Random(seed)
            ours = [draw.gauss(1.1, 0.1) for _ in range(30)]
            theirs = [draw.gauss(1.0, 0.1) for _ in range(30)]
            found = paired.ratio(ours, theirs, resamples=200)
            held += found.low <= 1.1 <= found.high
        self.assertGreater(held, 178)
        self.assertLess(held, 200)

    def test_objectives_are_of_speeds_relative_to_alone(self):
        alone = [[100.0, 100.0], [10.0, 10.0]]
        ours, theirs = [[50.0, 50.0], [8.0, 8.0]], [[25.0, 25.0], [9.0, 9.0]]
        self.assertAlmostEqual(paired.objective(ours, alone, sum).value, 1.3)
        self.assertAlmostEqual(
            paired.objective_ratio(ours, theirs, alone, paired.geometric_mean).value,
            math.sqrt(0.5 * 0.8) / math.sqrt(0.25 * 0.9))

    def test_mcnemar_counts_only_requests_that_differ(self):
        same = [True] * 30 + [False] * 60
        self.assertEqual(paired.discordant(same, same, 50)["p"], 1)
        ours = [True] * 31 + [False] * 69
        theirs = [True] * 30 + [False] + [True] * 10 + [False] * 59
        found = paired.discordant(ours, theirs, 200)
        self.assertEqual((found["only_ours"], found["only_theirs"]), (1, 10))
        self.assertAlmostEqual(found["p"], 2 * 12 / 2 ** 11)
        self.assertAlmostEqual(found["difference"][0], -0.09)
        self.assertLess(found["difference"][2], 0)

    def test_rounds_needed_follow_the_square_of_the_noise(self):
        self.assertEqual(paired.rounds_needed(0.05, 0.05), 7)
        self.assertEqual(paired.rounds_needed(0.1, 0.05), 25)
        self.assertIsNone(paired.variation([1.0]))
        self.assertIsNone(paired.autocorrelation([1.0, 1.0, 1.0, 1.0], 1))


class Noise(unittest.TestCase):
    @staticmethod
    def line(rate, seconds=4.0, step=0.002):
        """A job whose rate is a function of time, with a mark every `step` seconds of work."""
        at, gaps = 0.0, []
        while at < seconds:
            gaps.append(step / rate(at))
            at += gaps[-1]
        return progress.Timeline([run_of(0.0, gaps)])

    def test_variation_and_autocorrelation_of_a_slow_wave(self):
        wave = self.line(lambda t: 1 + 0.2 * math.sin(2 * math.pi * t / 0.8))
        at = {s["width_s"]: s for s in noise.stretch([wave], 0.1, 3.9)}
        self.assertAlmostEqual(at[0.02]["variation"][0], 0.2 / math.sqrt(2), delta=0.02)
        self.assertGreater(at[0.02]["log_autocorrelation"][0], 0.9)
        # A fifth of a period later the wave has turned: blocks of 200 ms see little of it.
        self.assertLess(at[0.2]["log_autocorrelation"][1], -0.5)

    def test_a_job_that_stops_does_not_break_the_logarithm(self):
        stops = self.line(lambda t: 1.0 if int(10 * t) % 2 else 0.01)
        found = noise.stretch([stops, self.line(lambda t: 1.0)], 0.1, 3.0)
        self.assertTrue(all(math.isfinite(s["log_sd"]) for s in found))

    def test_a_switch_that_halves_the_rate_for_60_ms(self):
        slow = self.line(lambda t: 0.5 if t % 1 < 0.06 else 1.0)
        found = noise.settling([slow], [(1.0, 1.4), (2.0, 2.4)])
        self.assertAlmostEqual(found["settled_s"][0], 0.06, delta=0.021)
        self.assertAlmostEqual(found["lost_s"][0], 0.03, delta=0.004)
        self.assertIsNone(noise.settled([1, 1, 0.5], 0.01))
        self.assertEqual(noise.settled([1, 1, 1], 0.01), 0)


class Replay(unittest.TestCase):
    @staticmethod
    def exponential(count, mean):
        draw = random.Random(11)
        return [[0.0, draw.expovariate(1 / mean), place, draw.random()]
                for _ in range(count) for place in range(4)]

    def test_latency_of_exponential_service_is_that_of_theory(self):
        for load in (0.2, 0.5, 0.8):
            found = replay.at_load(self.exponential(5000, 0.01), 0.01, load, resamples=4)
            mean = 0.01 / (1 - load)
            self.assertAlmostEqual(found["mean"].value / mean, 1, delta=0.08)
            self.assertAlmostEqual(found["p99"].value / (mean * math.log(100)), 1, delta=0.1)
            self.assertAlmostEqual(found["busy"], load, delta=0.02)

    def test_a_request_takes_what_its_place_in_the_busy_period_takes(self):
        requests = [[0, 1.0, 0, 0.5], [0, 3.0, 0, 9.0], [0, 2.0, 1, 9.0], [0, 4.0, 2, 9.0]]
        measured = replay.service(requests)
        self.assertEqual(measured.edge, 9.0)  # the middle gap
        measured.edge, measured.short, measured.long = 1.0, [1.0], [3.0]
        latencies, busy = replay.replay(measured, [10.0, 10.5, 10.6, 10.7, 23.2])
        # Idle for 10 s: 3; queued: 2, then 4 for each later one; idle for 0.2 s: 1.
        self.assertEqual([round(x, 6) for x in latencies], [3.0, 4.5, 8.4, 12.3, 1.0])
        self.assertAlmostEqual(busy, 14 / 24.2)

    def test_a_load_that_cannot_be_borne_has_no_latency(self):
        self.assertIsNone(replay.at_load(self.exponential(100, 0.01), 0.01, 1.3, count=20_000))

    def test_arms_of_equal_service_have_equal_latency(self):
        some = self.exponential(200, 0.01)
        a, b = (replay.at_load(some, 0.01, 0.8, count=20_000, resamples=2) for _ in range(2))
        self.assertEqual(a["p99"].value, b["p99"].value)

    def test_a_live_loop_agrees_with_its_own_replay_and_no_slower_one_does(self):
        requests = self.exponential(300, 0.01)
        times = replay.arrivals(50, 300, seed=3)
        draw = random.Random(5)
        for slower, inside in ((1.0, True), (1.6, False)):
            live, free = [], 0.0
            for at in times:
                begin = max(at, free)
                free = begin + slower * draw.expovariate(100)
                live.append([at, begin, free])
            self.assertEqual(replay.check(requests, live, "mean", 100)["inside"], inside)

    def oracle(self, slower, speed):
        alone = replay.service(self.exponential(500, 0.01))
        beside = replay.service([[0.0, slower * e, p, g] for _, e, p, g in
                                 self.exponential(500, 0.01)])
        return replay.oracle(alone, {"x": (beside, speed)}, 0.01, 0.5, count=20_000)

    def test_the_oracle_has_the_partner_beside_every_request_that_is_not_slowed(self):
        found = self.oracle(1.0, 0.6)
        self.assertEqual((found["arm"], found["places"]), ("x", replay.EVERY))
        self.assertAlmostEqual(found["training"], 0.5 * 0.6 + 0.5, delta=0.02)

    def test_the_oracle_stops_the_partner_where_requests_take_five_times_as_long(self):
        found = self.oracle(5.0, 0.9)
        self.assertLessEqual(found["p99"], replay.LIMIT)
        # Few requests at most are served beside it: about what the idle time is.
        self.assertAlmostEqual(found["training"], 0.5, delta=0.05)

    def test_the_oracle_keeps_the_limit_and_is_better_than_stopping(self):
        found = self.oracle(1.3, 0.9)
        self.assertLessEqual(found["p99"], replay.LIMIT)
        self.assertGreater(found["training"], 0.55)

    def test_the_partner_is_counted_beside_requests_and_between(self):
        # Half as fast while a request is served.
        seconds = [0.01] * 10 + [0.02] * 5 + [0.01] * 10
        line = progress.Timeline([run_of(0.0, seconds)])
        busy, idle = replay.partner_speeds(line, [[0.1, 0.2, 0, 0.1]], 0.0, 0.3)
        self.assertAlmostEqual(busy, 50)
        self.assertAlmostEqual(idle, 100)
        self.assertAlmostEqual(replay.harvest(0.5, 0.4, 1.0), 0.7)


class Arms(unittest.TestCase):
    def test_an_arm_says_its_group_and_what_runs(self):
        self.assertEqual(arms.arm("mps", 2).group, "mps")
        self.assertEqual((arms.arm("alone:1", 2).group, arms.arm("alone:1", 2).only), ("mps", 1))
        self.assertEqual(arms.arm("alone:0@ours", 2).group, "ours")
        self.assertEqual(arms.arm("ours:slo:x=1", 2).policy, "slo:x=1")
        self.assertEqual(arms.arm("parts:8-15/0-7", 2).label, "68 + 64 SMs")
        for wrong in ("parts:0-7", "parts:7-0/1-2", "alone:2", "alone:0@nowhere", "ours:", "x"):
            with self.assertRaises(harness.Refusal, msg=wrong):
                arms.arm(wrong, 2)

    def test_parts_are_given_by_the_clients_numbers(self):
        arm = arms.arm("parts:12-15/0-11", 2)
        self.assertEqual(arms.policy_of(arm, "/x.so", [7, 4]), "/x.so:plan=7@12-15/4@0-11")
        self.assertEqual(arms.policy_of(arm, "/x.so", [None, None]), "/x.so:plan=12-15/0-11")
        self.assertEqual(arms.policy_of(arms.arm("shared", 2), "/x.so", [7, 4]), "fifo")

    def test_every_cell_names_arms_that_there_are(self):
        for name, definition in cells.CELLS.items():
            for arm in definition.arms:
                arms.arm(arm, len(definition.jobs))
            self.assertTrue(definition.row == "" or any(
                first.startswith(definition.row) for first, *_ in requirements.ROWS), name)


class FakeJob:
    def __init__(self, log, key):
        self.log, self.key = log, key

    def tell(self, do):
        self.log.append((do, *self.key))

    def answer(self, timeout):
        return {"marks": None}


class Toggling(unittest.TestCase):
    def cell(self):
        log = []
        specs = [cells.JobSpec("decode", "demo"), cells.JobSpec("prefill", "demo")]
        daemon = types.SimpleNamespace(
            switch=lambda policy: log.append(("policy", policy)) or 0.001)
        cell = session.Cell("x", specs, types.SimpleNamespace(settle=0, trim=False),
                            types.SimpleNamespace(daemon=daemon),
                            types.SimpleNamespace(add=lambda record: None), ".")
        cell.jobs = {g: [FakeJob(log, (g, i)) for i in (0, 1)] for g in ("mps", "ours")}
        cell.library = lambda: "/x.so"
        cell.clients = {0: 3, 1: 4}
        return cell, log

    def test_only_the_arms_own_jobs_run(self):
        cell, log = self.cell()
        cell.use(arms.arm("shared", 2))
        self.assertEqual(log, [("policy", "fifo"), ("run", "ours", 0), ("run", "ours", 1)])
        log.clear()
        cell.use(arms.arm("parts:0-7/8-15", 2))  # nothing is paused
        self.assertEqual(log, [("policy", "/x.so:plan=3@0-7/4@8-15")])
        log.clear()
        cell.use(arms.arm("alone:1", 2))
        self.assertEqual(set(log), {("pause", "ours", 0), ("pause", "ours", 1), ("run", "mps", 1)})
        self.assertEqual(log[-1], ("run", "mps", 1))
        log.clear()
        cell.use(arms.arm("mps", 2), without=(1,))
        self.assertEqual(log, [("pause", "mps", 1), ("run", "mps", 0)])

    def test_the_same_policy_is_not_read_again(self):
        cell, log = self.cell()
        cell.use(arms.arm("shared", 2))
        log.clear()
        self.assertEqual(cell.use(arms.arm("shared", 2)), 0)
        self.assertEqual(log, [])


class Report(unittest.TestCase):
    """From raw samples that say what is true."""

    def setUp(self):
        directory = tempfile.TemporaryDirectory(prefix="vitamin-decide-")
        self.addCleanup(directory.cleanup)
        self.directory = pathlib.Path(directory.name)

    # Steps a second of job 0 and 1 by arm.
    RATES = {"mps": (20, 90), "alone:0": (100, 0), "alone:1": (0, 100), "shared": (22, 88),
             "parts:0-7/8-15": (80, 50), "ours:throughput": (79, 50)}

    def records(self, rounds=6):
        """Blocks of half a second; every fourth round everything is slower by a third."""
        yield {"header": {"command": "x", "gpu": "g", "driver": "d", "commit": "c" * 40}}
        yield {"cell": "decode-prefill", "definition": {
            "row": "decode beside prefill", "arms": list(self.RATES), "block_s": 0.5}}
        yield {"cell": "decode-prefill", "jobs": [["decode", "I", "plain"], ["prefill", "I", ""]]}
        at, count = 0.0, {}
        for number in range(rounds):
            for name, rates in self.RATES.items():
                step = "found" if name.startswith("ours") else "speeds"
                if step == "found" and number:
                    continue
                seconds = 4.0 if step == "found" else 0.5
                arm = arms.arm(name, 2)
                yield {"block": name, "switch": at, "begin": at + 0.01, "end": at + seconds,
                       "policy_s": 0.001, "step": step, "round": number}
                slow = 1.5 if number % 4 == 3 else 1.0
                for job in (0, 1):
                    if not rates[job]:
                        continue
                    first = count.get((arm.group, job), 0)
                    gaps = self.gaps(name, rates[job] / slow, seconds + 0.05)
                    count[arm.group, job] = first + len(gaps)
                    yield {"run": [arm.group, job], **run_of(at, gaps, first=first)}
                at += seconds + 1

    @staticmethod
    def gaps(name, rate, seconds):
        """The policy shares for its first second, at half the rate."""
        if not name.startswith("ours"):
            return [1 / rate] * round(rate * seconds)
        return [2 / rate] * round(rate / 2) + [1 / rate] * round(rate * (seconds - 1))

    def write(self, records):
        (self.directory / "decode-prefill.jsonl").write_text(
            "\n".join(map(json.dumps, records)) + "\n")

    def test_speeds_are_those_of_the_samples(self):
        self.write(self.records())
        samples, = decision_report.read(self.directory / "decode-prefill.jsonl")
        table, alone = requirements.speeds_of(samples)
        self.assertAlmostEqual(paired.relative(table["mps"], alone)[0], 0.2, delta=0.005)
        self.assertEqual(requirements.best_fixed(table, alone)[1], "parts:0-7/8-15")
        ratio = paired.objective_ratio(table["parts:0-7/8-15"], table["mps"], alone, sum)
        self.assertAlmostEqual(ratio.value, 1.3 / 1.1, delta=0.01)
        self.assertLess(ratio.half, 0.01)  # the slow rounds are slow in every arm

    def test_a_policy_has_found_the_best_after_the_second_that_it_needed(self):
        self.write(self.records(rounds=3))
        samples, = decision_report.read(self.directory / "decode-prefill.jsonl")
        found, = requirements.found_of(samples)
        self.assertAlmostEqual(found["found_s"], 1.0, delta=0.11)
        self.assertAlmostEqual(found["after"], 1, delta=0.03)
        text = decision_report.report(self.directory)
        self.assertIn("| decode beside prefill", text)
        self.assertRegex(text, r"ours:throughput: found after (0\.9|1\.0) s")
        self.assertIn("64 + 68 SMs", text)

    def test_a_round_that_lacks_a_block_is_left_out_of_all_arms(self):
        whole = list(self.records())
        last = [i for i, r in enumerate(whole) if r.get("block") == "shared"][-1]
        self.write(whole[:last] + whole[last + 1:])
        samples, = decision_report.read(self.directory / "decode-prefill.jsonl")
        table, _ = requirements.speeds_of(samples)
        self.assertEqual({len(s) for speeds in table.values() for s in speeds}, {5})

    def test_a_training_pair_tells_what_other_processes_gave(self):
        def session_of(ours):
            yield {"header": {"command": "x", "gpu": "g", "driver": "d", "commit": "c" * 40}}
            yield {"cell": "W1", "definition": {"row": "training pairs", "arms": [],
                                                "block_s": 0.5}}
            yield {"cell": "W1", "jobs": [["train", "RN", ""], ["train", "BE", ""]]}
            at, count = 0.0, {}
            for number in range(4):
                for name, rates in (("mps", (50, 50)), ("alone:0", (100, 0)), ("alone:1", (0, 100)),
                                    ("ours:throughput", (ours, ours))):
                    yield {"block": name, "switch": at, "begin": at + 0.01, "end": at + 1,
                           "policy_s": 0, "step": "speeds", "round": number}
                    for job, rate in enumerate(rates):
                        if rate == 0:
                            continue
                        key = arms.arm(name, 2).group, job
                        first, gaps = count.get(key, 0), [1 / rate] * rate
                        count[key] = first + len(gaps)
                        yield {"run": [*key], **run_of(at, gaps, first=first)}
                    at += 2
        records = [r for ours in (40, 55, 51) for r in session_of(ours)]
        (self.directory / "W1.jsonl").write_text("\n".join(map(json.dumps, records)) + "\n")
        text = decision_report.report(self.directory)
        self.assertRegex(text, r"W1: ours:throughput 1\.020 ± 0\.\d+ × MPS \(MPS 1\.00 ± 0\.\d+\), "
                               r"other processes: 0\.800 ± 0\.\d+ at cccccccc, 1\.100 ±")

    def test_a_row_without_samples_says_so(self):
        text = decision_report.report(self.directory)
        for first, *_ in requirements.ROWS:
            self.assertIn(f"| {first}", text)
        self.assertIn("not measured", text)

    def test_arms_of_a_trace_are_compared_request_by_request(self):
        def cell(mode, slow):
            requests = [{"at": i, "prompt": 9, "output": 3, "tokens": [
                i + 0.1, i + 0.2, i + (0.3 if i not in slow else 5)]} for i in range(40)]
            return {"experiment": "E5", "subject": "t 0.8", "cell": mode, "repeat": 0,
                    "session": 1, "ok": True, "requests": requests, "cut": {"warmed": 0}}
        # At 100 ms a token everything violates 30 ms: limits x 4 would be met by most.
        records = [cell("ours", range(10)), cell("ours-tpot-first", range(2, 4))]
        for r in records:
            r["subject"] = "t 0.8 limits x 4"
        (_, goals), = requirements.traces(records).items()
        self.assertEqual((goals["tpot"]["only_ours"], goals["tpot"]["only_theirs"]), (0, 8))
        self.assertAlmostEqual(goals["tpot"]["p"], 2 / 2 ** 8)
        self.assertEqual(goals["ttft"]["p"], 1)
        # Other requests are not compared.
        records[1]["requests"].pop()
        self.assertEqual(requirements.traces(records), {})

    def test_what_violates_tpot_with_the_decode_alone_no_policy_can_help(self):
        def request(at, first, gaps, gap):
            return {"at": at, "prompt": 9, "output": gaps + 1,
                    "tokens": [first + gap * k for k in range(gaps + 1)]}
        # Steps of 10 ms; beside the second prefill, from 0.5 to 0.6 s, of 20 ms.
        requests = [request(0, 0.1, 40, 0.01), request(0.5, 0.6, 4, 0.01)]
        requests[0]["tokens"] += [0.52, 0.54, 0.56, 0.58]
        requests[0]["output"] = len(requests[0]["tokens"])
        self.assertAlmostEqual(requirements.step_alone(requests), 0.01)
        self.assertEqual(requirements.slow_alone(requests, 0.0101), 0)
        self.assertEqual(requirements.slow_alone(requests, 0.0099), 2)
        # With one slot the second waits for the first.
        requests[1]["tokens"] = [at - 0.4 for at in requests[1]["tokens"]]
        self.assertEqual(requirements.slow_alone(requests, 0.02, slots=2), 0)
        self.assertEqual(requirements.slow_alone(requests, 0.02, slots=1), 1)

    def test_an_arm_that_met_lengths_first_is_not_compared_with_one_that_did_not(self):
        def cell(mode, repeat, prompt, **cut):
            requests = [{"at": 0, "prompt": prompt, "output": 2, "tokens": [0.1, 0.2]}]
            return {"experiment": "E5", "subject": "t 0.8", "cell": mode, "repeat": repeat,
                    "session": 1, "ok": True, "requests": requests, "cut": cut}

        def compared(*records):
            return {mode: goals["ttft"]["requests"]
                    for (_, mode), goals in requirements.traces(records).items()}

        first, second = cell("ours", 0, 9), cell("ours-slo", 0, 9)
        self.assertEqual(compared(first, second), {})  # of the same processes
        self.assertEqual(compared(first, second, cell("ours-slo", 1, 9), cell("ours", 1, 9)),
                         {"ours-slo": 1})
        # MPS has processes of its own, so both arms were the first.
        self.assertEqual(compared(cell("mps", 0, 9), first), {"mps": 1})
        # All lengths were prefilled before.
        self.assertEqual(compared(cell("ours", 0, 9, warmed=1), cell("ours-slo", 0, 9, warmed=0)),
                         {"ours-slo": 1})


class Found(unittest.TestCase):
    """Two jobs at 10 steps a second alone; the best fixed arrangement gives each 0.6."""

    def found(self, late_s):
        jobs = {("ours", job): progress.Timeline([run_of(late_s, [0.25] * 8 + [1 / 6] * 60)])
                for job in range(2)}
        samples = types.SimpleNamespace(
            jobs=[0, 1], timelines=jobs,
            blocks=lambda step: [{"block": "ours:throughput", "begin": 0.0, "end": 10.0}])
        table, alone = {"parts:0-7/8-15": [[6, 6], [6, 6]]}, [[10, 10], [10, 10]]
        with unittest.mock.patch.object(requirements, "speeds_of", lambda _: (table, alone)):
            return requirements.found_of(samples)

    def test_a_policy_that_takes_two_seconds_is_found_after_two(self):
        found, = self.found(0.0)
        self.assertAlmostEqual(found["found_s"], 2.0, delta=0.11)
        self.assertAlmostEqual(found["after"], 1.0, delta=0.01)

    def test_jobs_that_begin_to_count_a_moment_behind_the_block_are_reported(self):
        found, = self.found(0.0003)
        self.assertAlmostEqual(found["found_s"], 2.0, delta=0.11)

    def test_jobs_that_begin_to_count_late_are_not_reported(self):
        self.assertEqual(self.found(0.5), [])


class Orders(unittest.TestCase):
    def test_bursts_load_the_server_as_they_are_asked_to(self):
        bursts = steps.bursts_of(random.Random(1), 0.01, 0.5, 20_000)
        served, idle = 0.01 * sum(n for _, n in bursts), sum(gap for gap, _ in bursts)
        self.assertAlmostEqual(served / (served + idle), 0.5, delta=0.02)
        self.assertEqual({n for _, n in bursts}, {1, 2, 3, 4, 5, 6})

    def test_a_spent_budget_ends_the_step(self):
        cell = types.SimpleNamespace(begin=session.now(), options=types.SimpleNamespace(budget=5))
        steps.allow(cell, 1)
        with self.assertRaises(steps.OutOfTime):
            steps.allow(cell, 10)


if __name__ == "__main__":
    unittest.main()
