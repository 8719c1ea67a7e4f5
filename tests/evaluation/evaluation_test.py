# SPDX-License-Identifier: Apache-2.0
"""bench/evaluate.py where there is no GPU: its experiments on the software device, and what it says
when it cannot run. Needs in the environment: BENCH and VITAMIN_PREFIX (a build directory)."""
import contextlib
import os
import pathlib
import signal
import stat
import subprocess
import sys
import tempfile
import unittest

from time_limit import time_limit, wait_until

BENCH = pathlib.Path(os.environ["BENCH"])
sys.path[:0] = [str(BENCH), str(BENCH / "evaluation")]

import load  # noqa: E402
import modes  # noqa: E402
import report  # noqa: E402

FAKE_MPS = """#!/bin/sh
echo "$@" "$(test -t 0 || test "$1" = -d || cat)" >>"{log}"
"""
FAKE_SMI = """#!/bin/sh
case "$*" in
  *compute-apps*) {apps} ;;
  *memory.used*) echo "{used}, {free}, 1980" ;;
  *) echo "NVIDIA Test, 1.0" ;;
esac
"""


class Evaluation(unittest.TestCase):
    def setUp(self):
        self._directory = tempfile.TemporaryDirectory(prefix="vitamin-evaluation-")
        self.addCleanup(self._directory.cleanup)
        self.directory = pathlib.Path(self._directory.name)
        self.out = self.directory / "out"

    def program(self, name, text):
        path = self.directory / "bin" / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
        path.chmod(path.stat().st_mode | stat.S_IXUSR)

    def command(self, *words):
        return [sys.executable, str(BENCH / "evaluate.py"), *words, "--out", str(self.out)]

    def environment(self, **more):
        return {**os.environ, "PATH": f"{self.directory}/bin:{os.environ['PATH']}", **more}

    def evaluate(self, *words, code=0, **more):
        result = subprocess.run(self.command(*words), capture_output=True, text=True,
                                timeout=time_limit(280),
                                env=self.environment(**more))
        self.assertEqual(result.returncode, code, result.stdout + result.stderr)
        return result

    def cells(self, name):
        return [r for r in report.read(self.out, name) if "cell" in r]

    def by_mode(self, name):
        return {r["cell"]: r for r in self.cells(name)}


class Smoke(Evaluation):
    def test_colocated_training_in_every_mode(self):
        for attempt in range(5):  # again if a job that got no CPU time ended nothing in its window
            log, self.out = (self.directory / f"{name}{attempt}" for name in ("mps.log", "out"))
            self.program("nvidia-cuda-mps-control", FAKE_MPS.format(log=log))
            self.evaluate("E3", "--smoke")
            found = self.by_mode("E3")
            if all(job["ends"] for record in found.values() for job in record["jobs"]):
                break
        self.assertEqual(set(found), {"exclusive", "temporal", "mps", "mps50", "static", "ours",
                                      "orion", "salus"})
        for mode, record in found.items():
            self.assertTrue(record["ok"], record)
            for job in record["jobs"]:
                self.assertGreater(len(job["ends"]), 0, mode)
        # What vitamind did meanwhile stands beside its figures.
        seen = found["ours"]["daemon"]
        self.assertGreater(seen["counted"]["grants"], 0)
        self.assertTrue(seen["held"])
        for _, holds in seen["held"]:
            for _, processors, _ in holds:
                self.assertGreater(processors, 0)
        self.assertNotIn("daemon", found["static"])
        # The control daemon was started once, and told to quit in the end.
        asked = log.read_text().split()
        self.assertEqual((asked[0], asked[-1]), ("-d", "quit"))
        self.assertEqual((asked.count("-d"), asked.count("quit")), (1, 1))

    def test_jobs_that_die_in_one_mode_are_started_again_for_the_others(self):
        words = ("E3", "--smoke", "--modes", "exclusive,ours,ours-fifo,orion,salus")
        process = subprocess.Popen(self.command(*words), text=True, env=self.environment(),
                                   stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        killed, said = [], []
        for line in process.stdout:
            said.append(line)
            if " ours 0: " in line:  # now `ours-fifo` is next, for a test that is not late
                killed = self.clients_of(process.pid)
                os.killpg(killed[0], signal.SIGKILL)
        process.stdout.close()
        self.assertEqual(process.wait(time_limit(60)), 0, "".join(said))
        self.assertEqual(len(killed), 2)
        found = self.by_mode("E3")
        failed, = (mode for mode, r in found.items() if not r["ok"])
        self.assertIn(failed, ("ours-fifo", "orion", "salus"))
        self.assertEqual(len(found), 5)
        text = "".join(said)
        if failed != "salus":
            self.assertIn("the jobs of 'ours' are started again", text)
        # Found dead before it is asked, or while it is.
        self.assertRegex(text, rf"could not be run: W1 {failed} 0: demo \(train, ours\) "
                               "(has ended|ended with code -9)")
        self.assertIn(f"could not be run: {failed}: ", (self.out / "report.md").read_text())

    @staticmethod
    def clients_of(evaluation):
        """Its jobs under vitamind, each the leader of a process group."""
        found = []
        for directory in pathlib.Path("/proc").glob("[0-9]*"):
            try:
                parent = (directory / "stat").read_text().rpartition(")")[2].split()[1]
                words = (directory / "cmdline").read_bytes().split(b"\0")
            except OSError:
                continue
            if parent == str(evaluation) and b"--daemon" in words:
                found.append(int(directory.name))
        return sorted(found)

    def test_a_machine_without_mps_says_so_and_runs_the_rest(self):
        self.evaluate("E4", "--smoke", "--modes", "exclusive,mps,ours,ours-tpot-first")
        found = self.by_mode("E4")
        self.assertIn("no MPS binary", found["mps"]["why"])
        for mode in ("exclusive", "ours", "ours-tpot-first"):
            self.assertTrue(found[mode]["ok"], found[mode])
            self.assertEqual(found[mode]["infer"]["answered"], found[mode]["infer"]["asked"])
        self.assertIn("no MPS binary", (self.out / "report.md").read_text())

    def test_a_trace_through_prefill_and_decode(self):
        self.evaluate("E5", "--smoke", "--modes", "ours,ours-tpot-first,ours-slo")
        for record in self.cells("E5"):
            self.assertTrue(record["ok"], record)
            for request in record["requests"]:
                self.assertEqual(len(request["tokens"]), request["output"])
                self.assertEqual(request["tokens"], sorted(request["tokens"]))
                self.assertGreaterEqual(request["tokens"][0], request["at"])

    def test_bits_beside_others_and_a_survivor(self):
        self.evaluate("E9", "--smoke", "--parts", "bits", "--modes",
                      "exclusive,temporal,ours,ours-kill")
        found = self.by_mode("E9")
        self.assertEqual(set(found), {"exclusive", "temporal", "ours", "ours-kill"})
        for record in found.values():
            self.assertTrue(record["ok"] and record["equal"], record)
            self.assertEqual(record["compared"], {"demo": 6})
        hashes = [value for _, value in found["exclusive"]["hashes"]["demo"]]
        self.assertGreater(len(set(hashes)), 1)  # steps differ

    def test_what_libraries_choose(self):
        self.evaluate("E9", "--smoke", "--parts", "libraries")
        found = self.by_mode("E9")
        for mode in ("exclusive", "green", "green-after", "static", "ours"):
            self.assertTrue(found[mode]["ok"], found[mode])
            self.assertEqual(found[mode]["other_bits"], [])
        self.assertIn("no MPS binary", found["mps25"]["why"])

    def test_pairs_of_both_kinds_in_one_command(self):
        self.evaluate("pairs", "--smoke", "--tokens", "2", "--modes",
                      "exclusive,static,ours,ours-priority")
        cells = {(r["experiment"], r["cell"]): r for r in self.cells("pairs")}
        self.assertEqual(set(cells), {(e, m) for e in ("E3", "E4")
                                      for m in ("exclusive", "static", "ours", "ours-priority")})
        self.assertTrue(all(r["ok"] for r in cells.values()))
        text = (self.out / "report.md").read_text()
        self.assertIn("| ours | Vitamin, throughput | Vitamin |", text)
        self.assertIn("* MIG: needs the right", text)
        self.assertIn("sum of rates / alone", text)
        self.assertIn("p99 / MPS", text)

    def test_ranks_of_a_distributed_job_are_one_job(self):
        self.evaluate("E3", "--smoke", "--gpus", "2", "--pairs", "W7", "--modes", "exclusive,ours")
        for record in self.cells("E3"):
            self.assertTrue(record["ok"], record)
            self.assertEqual(len(record["jobs"]), 2)
        result = self.evaluate("E3", "--smoke", "--pairs", "W7", code=2)
        self.assertIn("W7 is two ranks on two GPUs: --gpus 2", result.stderr)

    def test_a_load_is_found_at_which_policies_can_be_told_apart(self):
        words = ("E5", "--smoke", "--modes", "ours", "--traces", "azure2023_code,longbench_synth_"
                 "poisson1", "--load", "auto")
        self.evaluate(*words)
        records = report.read(self.out, "E5")
        found = {r["trace"]: r for r in records if r.get("calibrated")}
        self.assertEqual(set(found), {"azure2023_code", "longbench_synth_poisson1"})
        for r in found.values():
            self.assertIn(r["load"], [load for load, _ in r["calibrated"]])
        self.assertEqual({r["load"] for r in self.cells("E5")}, {r["load"] for r in found.values()})
        started = [r for r in records if "started" in r]
        self.assertEqual(len(started), 1)  # the same processes for both traces
        # A later session takes what was found.
        self.evaluate(*words, "--resume", "--repeats", "2")
        again = {r["trace"]: r["load"] for r in report.read(self.out, "E5") if r.get("calibrated")}
        self.assertEqual(again, {t: r["load"] for t, r in found.items()})

    def test_limits_are_scaled_for_the_daemon_and_in_the_table(self):
        self.evaluate("E5", "--smoke", "--modes", "ours,ours-tpot-first", "--slo-scale", "0.5",
                      "--graphs")
        for record in self.cells("E5"):
            self.assertTrue(record["ok"], record)
            self.assertEqual(record["slo_scale"], 0.5)
            # Steps that are graphs are compared with such steps alone.
            self.assertTrue(record["subject"].endswith(" graphs limits x 0.5"), record["subject"])
        self.assertIn("| 250, 15 |", (self.out / "report.md").read_text())
        daemon = modes.Daemon(self.out, {}, load.scaled(0.5))
        daemon._write("tpot-first")
        classes = daemon.file.read_text()
        self.assertIn('name = "tokens"\ncommand = ["no-program"]\nkind = "latency"\n'
                      'tpot = "15ms"\n', classes)
        self.assertIn('name = "prompts"\ncommand = ["no-program"]\nkind = "latency"\n'
                      'ttft = "250ms"\n', classes)

    def test_calibration_and_decoding_alone(self):
        self.evaluate("E0", "--smoke")
        self.assertTrue(self.cells("E0")[0]["ok"])
        self.evaluate("E8", "--smoke", "--no-chains")
        self.assertEqual({r["cell"] for r in self.cells("E8") if r["ok"]},
                         {"exclusive", "in-process", "ours-alone"})

    @staticmethod
    def runs(pid):
        with contextlib.suppress(OSError):
            stat = pathlib.Path(f"/proc/{pid}/stat").read_text()
            return stat.rpartition(")")[2].split()[0] != "Z"
        return False

    @staticmethod
    def descendants_of(process):
        parents = {}
        for directory in pathlib.Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError):
                stat = (directory / "stat").read_text()
                parents[int(directory.name)] = int(stat.rpartition(")")[2].split()[1])
        found = {process}
        while more := {pid for pid, parent in parents.items() if parent in found} - found:
            found |= more
        return found - {process}

    def test_an_interrupted_run_ends_its_processes_and_resumes(self):
        words = ("E3", "--smoke", "--modes", "exclusive,temporal,ours,ours-fifo,ours-static,orion")
        process = subprocess.Popen(self.command(*words), text=True,
                                   stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                                   env=self.environment())
        for line in process.stdout:
            if "temporal 0" in line:
                started = self.descendants_of(process.pid)
                process.send_signal(signal.SIGTERM)
                break
        _, errors = process.communicate(timeout=time_limit(120))
        self.assertEqual(process.returncode, 130, errors)
        self.assertIn("--resume runs what is left", errors)
        self.assertGreater(len(started), 2)
        wait_until(lambda: not any(map(self.runs, started)), "the end of what it started")
        with open(self.out / "E3.jsonl", "a") as file:
            file.write('{"cut off in the mid')
        self.evaluate(*words, "--resume")
        temporal = [r["session"] for r in self.cells("E3") if r["cell"] == "temporal"]
        exclusive = [r["session"] for r in self.cells("E3") if r["cell"] == "exclusive"]
        self.assertEqual(temporal, exclusive[:1])  # not run again
        self.assertTrue(self.by_mode("E3")["orion"]["ok"])
        self.assertEqual(exclusive[1:], [self.by_mode("E3")["orion"]["session"]])  # normalises it
        before = len(self.cells("E3"))
        self.evaluate(*words, "--resume")
        self.assertEqual(len(self.cells("E3")), before)

    def test_a_spent_budget_says_how_to_go_on(self):
        result = self.evaluate("E3", "--smoke", "--budget", "1", "--start-s", "0", code=3)
        self.assertIn("with --resume", result.stdout)


class BadInput(Evaluation):
    def refused(self, *words, code=2, **more):
        result = self.evaluate(*words, code=code, **more)
        self.assertEqual(len(result.stderr.strip().splitlines()), 1, result.stderr)
        return result.stderr

    def smi(self, used=10, free=140000, apps="true"):
        self.program("nvidia-smi", FAKE_SMI.format(used=used, free=free, apps=apps))

    def package(self, *names):
        for name in names:
            (self.directory / "python" / name).mkdir(parents=True)
            (self.directory / "python" / name / "__init__.py").write_text("")
        return {"PYTHONPATH": str(self.directory / "python")}

    ALL = ("torch", "numpy", "transformers", "peft", "torchvision")

    def test_no_gpu(self):
        self.program("nvidia-smi", "#!/bin/sh\necho no devices; exit 9\n")
        self.assertIn("finds no GPU", self.refused("E3", **self.package(*self.ALL)))

    def test_a_busy_gpu(self):
        self.smi(apps="echo 4711, 9000")
        self.assertIn("the GPU is busy: 1 processes",
                      self.refused("E3", **self.package(*self.ALL)))

    def test_a_gpu_that_this_command_does_not_have_is_not_looked_at(self):
        self.program("nvidia-smi", """#!/bin/sh
case "$*" in *"-i GPU-mine"*) ;; *) echo "90000, 8000, 1980"; exit ;; esac
case "$*" in *compute-apps*) echo "4711, 9000" ;; *) echo "100, 130000, 1980" ;; esac
""")
        self.assertIn("the GPU is busy: 1 processes, 100 MiB",
                      self.refused("E3", **self.package(*self.ALL),
                                   CUDA_VISIBLE_DEVICES="GPU-mine"))

    def test_fewer_gpus_than_asked_for(self):
        self.smi()
        self.assertIn("--gpus 2: there are 1",
                      self.refused("E3", "--pairs", "W7", "--gpus", "2",
                                   **self.package(*self.ALL)))

    def test_too_little_memory(self):
        self.smi(free=8000)
        self.assertIn("too little memory: D0.6 and D0.6 need about",
                      self.refused("E3", "--pairs", "W1", **self.package(*self.ALL)))

    def test_a_missing_package_is_named(self):
        self.smi()
        packages = self.package("torch", "numpy", "transformers")
        try:
            import peft  # noqa: F401
            self.skipTest("peft is here")
        except ImportError:
            pass
        self.assertIn("package 'peft' is missing (L4 needs it)",
                      self.refused("E3", "--pairs", "W3", **packages))

    def test_no_tree(self):
        self.assertIn("run bench/install_tree",
                      self.refused("E3", "--smoke", VITAMIN_PREFIX=str(self.directory)))

    def test_unknown_pairs_modes_and_traces(self):
        self.assertIn("no training pair 'W99'", self.refused("E3", "--smoke", "--pairs", "W99"))
        self.assertIn("there is no mode 'mig'", self.refused("E3", "--smoke", "--modes", "mig"))
        self.assertIn("--slo-scale 3: one of 0.35, 0.5",
                      self.refused("E5", "--smoke", "--slo-scale", "3"))
        self.assertIn("there is no trace 'x'", self.refused("E5", "--smoke", "--traces", "x"))



class Help(unittest.TestCase):
    def test_every_script_that_takes_options_teaches_them(self):
        scripts = [script for directory in (BENCH, BENCH / "daemon", BENCH / "compat")
                   for script in sorted(directory.glob("*.py"))
                   if "ArgumentParser(" in script.read_text() and "__main__" in script.read_text()]
        self.assertGreater(len(scripts), 20)
        for script in scripts:
            with self.subTest(script=script.name):
                result = subprocess.run([sys.executable, str(script), "--help"],
                                        capture_output=True, text=True, timeout=time_limit(60),
                                        env={**os.environ, "PYTHONPATH": str(BENCH)})
                if "No module named 'torch'" in result.stderr:
                    continue
                self.assertEqual(result.returncode, 0, result.stderr)
                self.assertIn("usage:", result.stdout)


if __name__ == "__main__":
    unittest.main()
