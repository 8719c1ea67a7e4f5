# SPDX-License-Identifier: Apache-2.0
"""bench/spread.py: several commands at once, each on GPUs and processors of its own. Needs in the
environment: BENCH."""
import json
import os
import pathlib
import signal
import subprocess
import sys
import tempfile
import unittest

from time_limit import time_limit, wait_until

BENCH = pathlib.Path(os.environ["BENCH"])

# Says where it runs, and when: what others may do meanwhile is seen from the files. It lasts some
# seconds, or until another one has begun.
TELL = ("import json, os, pathlib, sys, time\n"
        "out = pathlib.Path(sys.argv[1]); begin = time.monotonic()\n"
        "(out / 'begun').write_text(str(os.getpid()))\n"
        "if sys.argv[2].isalpha():\n"
        "    while not (out.parent / sys.argv[2] / 'begun').exists(): time.sleep(0.01)\n"
        "else: time.sleep(float(sys.argv[2]))\n"
        "(out / 'told').write_text(json.dumps({'gpus': os.environ['CUDA_VISIBLE_DEVICES'],\n"
        "    'cores': sorted(os.sched_getaffinity(0)), 'begin': begin,\n"
        "    'end': time.monotonic(), 'args': sys.argv[3:]}))\n"
        "print('done well')\n")


class Spread(unittest.TestCase):
    def setUp(self):
        directory = tempfile.TemporaryDirectory(prefix="vitamin-spread-")
        self.addCleanup(directory.cleanup)
        self.directory = pathlib.Path(directory.name)
        self.out = self.directory / "out"
        self.tell = self.directory / "tell.py"
        self.tell.write_text(TELL)

    def plan(self, **commands):
        text = "".join(f"[{name}]\n" + "".join(f"{k} = {json.dumps(v)}\n" for k, v in table.items())
                       for name, table in commands.items())
        path = self.directory / "plan.toml"
        path.write_text(text)
        return path

    def command(self, plan, *words, gpus="a,b"):
        return [sys.executable, str(BENCH / "spread.py"), str(plan), "--out", str(self.out),
                *(["--gpus", gpus] if gpus else []), *words]

    def spread(self, plan, *words, code=0, gpus="a,b"):
        done = subprocess.run(self.command(plan, *words, gpus=gpus), capture_output=True, text=True,
                              timeout=time_limit(60))
        self.assertEqual(done.returncode, code, done.stdout + done.stderr)
        return done

    def telling(self, how_long, *words):
        return f"{self.tell} {{out}} {how_long} " + " ".join(words)

    def told(self, name):
        return json.loads((self.out / name / "told").read_text())

    def test_commands_have_gpus_and_processors_of_their_own(self):
        at_once = len(os.sched_getaffinity(0)) > 1  # else one after the other
        minutes = min(time_limit(30) / 60, 4)  # all of them have 9.5
        plan = self.plan(one={"run": self.telling("two" if at_once else 0.1), "minutes": minutes,
                              "cores": 1},
                         two={"run": self.telling("one" if at_once else 0.1), "minutes": minutes,
                              "cores": 1},
                         both={"run": self.telling(0.1), "minutes": minutes, "gpus": 2, "cores": 1})
        done = self.spread(plan)
        one, two, both = (self.told(name) for name in ("one", "two", "both"))
        self.assertEqual(both["gpus"], "a,b")
        self.assertGreaterEqual(both["begin"], max(one["end"], two["end"]) - 0.01)
        if at_once:
            self.assertEqual({one["gpus"], two["gpus"]}, {"a", "b"})
            self.assertEqual(len(set(one["cores"]) | set(two["cores"])), 2)
            self.assertLess(max(one["begin"], two["begin"]), min(one["end"], two["end"]))
        self.assertIn("done well", done.stdout)

    def test_what_ended_well_is_not_run_again(self):
        plan = self.plan(good={"run": self.telling(0), "minutes": 1},
                         bad={"run": "false", "minutes": 1})
        self.spread(plan, code=1)
        (self.out / "good" / "told").unlink()
        self.spread(plan, code=1)
        self.assertFalse((self.out / "good" / "told").exists())
        lines = [json.loads(line) for line in (self.out / "spread.jsonl").read_text().splitlines()]
        self.assertEqual([(line["name"], line["code"]) for line in lines if line["name"] == "bad"],
                         [("bad", 1), ("bad", 1)])
        self.assertEqual(sum(line["name"] == "good" for line in lines), 1)

    def test_what_takes_too_long_is_ended_with_what_it_started(self):
        pid = self.directory / "pid"
        for seconds in (0.6, 3, 15):  # in which the command begins
            plan = self.plan(long={"run": f"sh -c 'sleep 1234 & echo $! >{pid}; wait'",
                                   "minutes": time_limit(seconds) / 60})
            done = self.spread(plan, code=1)
            self.assertIn("long: killed", done.stdout)
            if pid.exists() and pid.read_text():
                break
        child = int(pid.read_text())
        wait_until(lambda: not os.path.exists(f"/proc/{child}"), "the end of what it started")

    def test_nothing_begins_that_would_not_end_in_time(self):
        plan = self.plan(short={"run": self.telling(0), "minutes": 0.5},
                         long={"run": self.telling(0), "minutes": 9})
        done = self.spread(plan, "--minutes", "1", code=1)
        self.assertRegex(done.stdout, r"long +not begun: it may take 9 minutes")
        self.assertTrue((self.out / "short" / "told").exists())

    def test_an_interruption_ends_all_and_the_next_run_goes_on(self):
        plan = self.plan(long={"run": self.telling(30), "minutes": 1})
        running = subprocess.Popen(self.command(plan), stdout=subprocess.PIPE,
                                   stderr=subprocess.PIPE, text=True)
        self.assertIn("long: 1 GPUs", running.stdout.readline())
        begun = self.out / "long" / "begun"
        wait_until(lambda: begun.exists() and begun.read_text(), "the command's first words")
        running.send_signal(signal.SIGINT)
        _, errors = running.communicate(timeout=time_limit(30))
        self.assertEqual(running.returncode, 130)
        self.assertIn("run it again to go on", errors)
        self.assertFalse(os.path.exists(f"/proc/{begun.read_text()}"))
        self.plan(long={"run": self.telling(0), "minutes": 1})
        self.spread(plan)
        self.assertTrue((self.out / "long" / "told").exists())

    def test_what_is_wrong_with_a_plan_is_said_at_once(self):
        path = self.directory / "plan.toml"
        for text, said in (
                ("[a]\nrun = 3\nminute = 1\n", ("a.minute: there is no such key", "a.minutes: it "
                                                "is missing", "a.run: it cannot be 3")),
                ("a = 1\n", ("a: a command is a table, [a]",)),
                ("[a\n", ("plan.toml: ",)),
                ("[a]\nrun = 'x'\nminutes = 1\ngpus = 3\n", ("a needs 3 GPUs",))):
            path.write_text(text)
            errors = self.spread(path, code=2).stderr
            for words in said:
                self.assertIn(words, errors)
        path.write_text("[a]\nrun = 'true'\nminutes = 1\n")
        self.assertIn("has no b; it has a", self.spread(path, "--only", "b", code=2).stderr)
        self.assertIn("missing.toml", self.spread("missing.toml", code=2).stderr)

    def test_the_plans_that_are_kept_can_be_run(self):
        for path in sorted((BENCH / "plans").glob("*.toml")):
            gpus = ",".join(f"gpu{i}" for i in range(8))
            # Nothing of it begins in no time, and all of it has been read by then.
            done = self.spread(path, "--minutes", "0", gpus=gpus, code=1)
            self.assertIn("not begun", done.stdout)


if __name__ == "__main__":
    unittest.main()
