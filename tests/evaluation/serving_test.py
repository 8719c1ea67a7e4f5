# SPDX-License-Identifier: Apache-2.0
"""bench/serving.py and bench/call_costs.py without a GPU: the requests, the arms on the software
device, and what is made of measured values. Needs in the environment: BENCH and VITAMIN_PREFIX (a
build directory)."""
import json
import os
import pathlib
import subprocess
import sys
import tempfile
import time
import unittest

from ports import reserved_port
from time_limit import time_limit, wait_until

BENCH = pathlib.Path(os.environ["BENCH"])
sys.path[:0] = [str(BENCH), str(BENCH / "evaluation"), str(BENCH / "decision"),
                str(BENCH / "daemon")]

import call_costs  # noqa: E402
import http_load  # noqa: E402
import results_engines  # noqa: E402
import results_kept  # noqa: E402
import serving_report  # noqa: E402

KEPT = BENCH / "results"


def answer(ttft, tpot):
    return {"at": 0.0, "ttft": ttft, "tpot": tpot, "tokens": 4, "text": "t"}


class Requests(unittest.TestCase):
    def setUp(self):
        self.port = reserved_port(self)
        self.server = http_load.Server(self.port, "model")

    def start(self):
        process = subprocess.Popen(
            [sys.executable, str(BENCH / "evaluation" / "fake_server.py"), str(self.port)])
        self.addCleanup(process.wait)
        self.addCleanup(process.kill)
        wait_until(self.server.healthy, plenty=20)

    def test_each_request_is_sent_at_its_time_and_every_token_is_timed(self):
        self.start()
        requests = http_load.draw_requests(40, 0.5, 3, 1000, (4, 9), 5)
        self.assertEqual(requests, http_load.draw_requests(40, 0.5, 3, 1000, (4, 9), 5))
        self.assertTrue(all(4 <= len(r.prompt) <= 9 for r in requests))
        answers = self.server.open_loop(requests)
        self.assertEqual([a.error for a in answers], [""] * len(requests))
        for a in answers:
            self.assertEqual((len(a.times), a.tokens), (5, 5))
            self.assertGreater(a.ttft(), 0)
            self.assertGreaterEqual(a.times[-1] - a.scheduled, 0.005)  # the server's own time
            self.assertAlmostEqual(a.tpot(), (a.times[-1] - a.times[0]) / 4)
        alone = self.server.one_at_a_time(requests)
        self.assertEqual([a.text for a in alone], [a.text for a in answers])
        self.assertGreater(len({a.text for a in alone}), 1)

    def test_clients_ask_again_as_soon_as_they_have_their_answer(self):
        self.start()
        requests = http_load.draw_requests(40, 0.5, 3, 1000, (4, 9), 5)
        for seconds in (0.5, 2, 8):  # in which each client begins
            begin = time.monotonic()
            answers = self.server.closed_loop(requests, 3, seconds)
            self.assertGreaterEqual(time.monotonic() - begin, seconds)
            if len(answers) >= 3:
                break
        self.assertGreaterEqual(len(answers), 3)
        self.assertEqual({a.error for a in answers}, {""})

    def test_what_the_server_refuses_and_a_server_that_is_not_there_are_told(self):
        request = http_load.Request(0.0, (5,), 2)
        self.assertFalse(self.server.healthy())
        self.assertIn("Refused", self.server.ask(request, 0.0).error)
        self.start()
        refused = http_load.Server(self.port, "nothing").ask(request, 0.0)
        self.assertIn("status 404", refused.error)
        self.assertEqual(set(refused.record()), {"error"})


class Serving(unittest.TestCase):
    def run_serving(self, *words):
        return subprocess.run([sys.executable, str(BENCH / "serving.py"), *words],
                              capture_output=True, text=True, timeout=time_limit(120))

    def test_arms_take_turns_in_the_same_processes_and_answer_the_same_requests(self):
        arms = ["server alone", "training alone", "MPS", "Vitamin, 30 ms, announced"]
        for block in ("1", "4", "16"):  # seconds in which the training ends a step
            with tempfile.TemporaryDirectory(prefix="vitamin-serving-") as out:
                result = self.run_serving("--smoke", "--arms", ";".join(arms), "--out", out,
                                          "--block", block)
                self.assertEqual(result.returncode, 0, result.stdout + result.stderr)
                records = serving_report.read(pathlib.Path(out) / "serving.jsonl")
            self.assertIn("one at a time: equal", result.stdout)
            blocks = [r for r in records if "arm" in r]
            if all(r.get("steps_per_s") != 0 for r in blocks):
                break
        self.assertEqual(sorted((r["round"], r["arm"]) for r in blocks),
                         sorted((n, a) for n in (0, 1) for a in arms))
        for number in (0, 1):
            of = {r["arm"]: r for r in blocks if r["round"] == number}
            texts = {a: [x["text"] for x in r["answers"]] for a, r in of.items()}
            self.assertEqual(texts["training alone"], [])
            self.assertEqual(texts["server alone"], texts["MPS"])
            self.assertEqual(texts["server alone"], texts["Vitamin, 30 ms, announced"])
            for a in ("training alone", "MPS", "Vitamin, 30 ms, announced"):
                self.assertGreater(of[a]["steps_per_s"], 0)
            self.assertNotIn("steps_per_s", of["server alone"])

    def test_an_arm_that_is_not_there_is_refused_and_the_budget_ends_the_rounds(self):
        result = self.run_serving("--smoke", "--arms", "MIG")
        self.assertEqual(result.returncode, 2)
        self.assertIn("there is no arm 'MIG'", result.stderr)
        with tempfile.TemporaryDirectory(prefix="vitamin-serving-") as out:
            budget = str(time_limit(60))
            result = self.run_serving("--smoke", "--arms", "server alone", "--budget", budget,
                                      "--block", budget, "--out", out)
            self.assertEqual(result.returncode, 3, result.stdout + result.stderr)
        self.assertIn("budget", result.stdout)

    def test_percentiles_are_of_all_requests_and_ratios_of_the_same_round(self):
        arms = ["training alone", "MPS"]
        records = [{"header": {}}, {"serving": {"arms": arms}}]
        for number, alone, beside in ((0, 10.0, 5.0), (1, 20.0, 10.0), (2, 1.0, 0.9)):
            records.append({"round": number, "arm": "training alone", "answers": [],
                            "steps_per_s": alone})
            records.append({"round": number, "arm": "MPS", "steps_per_s": beside,
                            "tokens_per_s": 100.0 + number, "answers": [
                                answer(0.1 * (number + 1), 0.01), {"error": "late"}]})
        records.append({"round": 3, "arm": "MPS", "answers": [answer(9, 9)]})  # half a round
        _, (_, ttft, _, tpot, _, ratio, tokens, _) = serving_report.rows(records)
        self.assertEqual((ttft, tpot), ("200", "10.0"))
        self.assertTrue(ratio.startswith("0.50 ("), ratio)
        self.assertTrue(tokens.startswith("101 ("), tokens)

    def test_the_recipe_has_the_kept_figures(self):
        page = (BENCH.parent / "docs" / "share-vllm-and-training.md").read_text()
        words = {"server alone": "server alone", "MPS": "both under MPS",
                 "MPS with priorities": "MPS with priorities",
                 "Vitamin, slo": "both under Vitamin, as above"}
        bare = lambda text: text.split(" (")[0]
        for row in results_engines.serving_rows(results_kept.Files()):
            if row[0] in words:
                line = " | ".join([words[row[0]], row[3], row[4], *map(bare, row[5:])])
                self.assertIn(f"| {line} |", page)


class CallCosts(unittest.TestCase):
    RECORDS = [{"round": n, "arm": arm, "us": {"launch": base + 0.1 * n, "copy": 7.0}}
               for n in range(4) for arm, base in (("native", 10.0), ("fifo", 10.5))]

    def test_a_difference_is_that_of_the_same_round(self):
        kinds = call_costs.by_kind([*self.RECORDS, {"round": 4, "arm": "native",
                                                    "us": {"launch": 99, "copy": 99}}])
        self.assertEqual(len(kinds["launch"]["native"]), 4)
        self.assertEqual(call_costs.difference(kinds["launch"]["fifo"], kinds["launch"]["native"]),
                         "+0.50 ± 0.00")
        self.assertEqual(list(call_costs.rows(self.RECORDS))[1], ["copy", "7.00", "+0.00 ± 0.00"])

    def test_kept_values_are_read_and_an_arm_that_is_not_there_is_refused(self):
        command = [sys.executable, str(BENCH / "call_costs.py")]
        kept = KEPT / "engines" / "call_costs.jsonl"
        told = subprocess.run([*command, "--analyse", str(kept)], capture_output=True, text=True)
        self.assertEqual(told.returncode, 0, told.stderr)
        self.assertIn("graph of 50 kernels and wait", told.stdout)
        arms = {json.loads(line).get("arm") for line in kept.read_text().splitlines()} - {None}
        self.assertEqual(arms, set(call_costs.ARMS))
        refused = subprocess.run([*command, "--arms", "native,mig"], capture_output=True, text=True)
        self.assertEqual(refused.returncode, 2)
        self.assertIn("there is no arm 'mig'", refused.stderr)


if __name__ == "__main__":
    unittest.main()
