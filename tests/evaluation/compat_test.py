# SPDX-License-Identifier: Apache-2.0
"""bench/compat: programs natively and under Vitamin, over the software libcuda; the arithmetic of
overheads from known times; the page made from the kept results. Needs in the environment: BENCH and
VITAMIN_PREFIX (a build tree)."""
import importlib.util
import json
import os
import pathlib
import random
import shutil
import subprocess
import sys
import tempfile
import types
import unittest

from time_limit import time_limit

BENCH = pathlib.Path(os.environ["BENCH"])
sys.path[:0] = [str(BENCH / "compat"), str(BENCH), str(BENCH / "evaluation"), str(BENCH / "daemon")]

import compat  # noqa: E402
import harness  # noqa: E402
import overhead  # noqa: E402
import programs  # noqa: E402
import samples  # noqa: E402
import start  # noqa: E402
import table  # noqa: E402
import turns  # noqa: E402

# Whether Vitamin's library is in the process.
PRELOADED = "import os, sys; inside = 'libvitamin' in os.environ.get('LD_PRELOAD', '')\n"


def python(name, code, **more):
    return programs.Program(name, (sys.executable, "-c", PRELOADED + code), **more)


class Compat(unittest.TestCase):
    def setUp(self):
        directory = tempfile.TemporaryDirectory(prefix="vitamin-compat-test-")
        self.addCleanup(directory.cleanup)
        self.out = pathlib.Path(directory.name)

    def command(self, script, *words, code=0):
        result = subprocess.run(
            [sys.executable, str(BENCH / "compat" / script), *words], capture_output=True,
            text=True, timeout=time_limit(120), check=False)
        self.assertEqual(result.returncode, code, result.stdout + result.stderr)
        return result

    def suite(self, *listed, modes=("native", "native again", "random")):
        """Records of programs, and how many runs were not as natively."""
        options = compat.parse(["--smoke", "--out", str(self.out), "--json"])
        results = harness.Results(self.out, "compat")
        self.addCleanup(results._file.close)
        suite = compat.Suite(options, results, compat.Surroundings(True, self.out))
        with open(os.devnull, "w", encoding="ascii") as nothing:
            stdout, sys.stdout = sys.stdout, nothing
            try:
                bad = suite.run(listed, modes)
            finally:
                sys.stdout = stdout
        return {(r["program"], r["mode"]): r for r in suite.records}, bad


class Suite(Compat):
    def test_smoke_programs_are_equal_and_bound_in_every_mode(self):
        lines = [json.loads(line) for line in self.command(
            "compat.py", "--smoke", "--json", "--out", str(self.out)).stdout.splitlines()]
        found = {(r["program"], r["mode"]): r for r in lines}
        names = [p.name for p in programs.smoke() if not p.modules]
        self.assertEqual(set(found), {("a missing module", "native"),
                                      *((n, m) for n in names for m in compat.MODES)})
        for name in names:
            self.assertEqual([found[name, m]["verdict"] for m in compat.MODES],
                             ["runs", "equal", "equal", "equal", "equal"], name)
            for mode in ("random", "static", "daemon"):
                cover = found[name, mode]["coverage"]
                self.assertGreater(cover["launches"], 0)
                self.assertEqual(cover["bound"], cover["launches"])
        self.assertEqual(found["a missing module", "native"]["why"],
                         "no module vitamin_no_such_module")
        header, versions = [json.loads(line) for line in (
            self.out / "compat_smoke.jsonl").read_text().splitlines()[:2]]
        self.assertLessEqual({"command", "commit", "gpu", "driver", "date"},
                             set(header["header"]))
        self.assertIn("python", versions["versions"])

    def test_another_result_under_vitamin_is_found(self):
        found, bad = self.suite(python(
            "differs", "print('{\"name\": \"x\", \"hash\": \"%s\"}' % inside)"))
        self.assertEqual(found["differs", "native again"]["verdict"], "equal")
        self.assertEqual(found["differs", "random"]["verdict"], "differs")
        self.assertIn("first: x", found["differs", "random"]["why"])
        self.assertEqual(bad, 1)

    def test_another_exit_code_under_vitamin_is_found(self):
        found, bad = self.suite(python("fails", "print(1); sys.exit(3 if inside else 0)"),
                                python("passes", "print(1); sys.exit(0 if inside else 3)"))
        self.assertEqual(found["fails", "random"]["verdict"], "failed")
        self.assertIn("exit code 3", found["fails", "random"]["why"])
        self.assertEqual(found["passes", "native"]["verdict"], "failed")
        self.assertEqual(found["passes", "random"]["verdict"], "failed")
        self.assertEqual(bad, 2)

    def test_a_program_that_fails_natively_in_the_same_way_is_not_blamed(self):
        found, bad = self.suite(python("broken", "sys.exit('no such model')"))
        self.assertEqual(found["broken", "random"]["verdict"], "as natively")
        self.assertIn("no such model", found["broken", "random"]["why"])
        self.assertEqual(bad, 0)

    def test_a_program_that_prints_nothing_proves_nothing(self):
        found, bad = self.suite(python("silent", ""))
        self.assertEqual(found["silent", "random"]["verdict"], "no result")
        self.assertEqual(bad, 1)

    def test_a_program_that_cannot_run_here_says_why_and_hides_no_other(self):
        found, bad = self.suite(
            python("cannot", "print('{\"cannot\": \"no GPU\"}'); sys.exit(77)"),
            python("runs", "print(1)"))
        self.assertEqual((found["cannot", "native"]["verdict"], found["cannot", "native"]["why"]),
                         ("not run", "no GPU"))
        self.assertNotIn(("cannot", "random"), found)
        self.assertEqual(found["runs", "random"]["verdict"], "equal")
        self.assertEqual(bad, 0)

    def test_a_run_that_was_ended_for_its_time_is_called_hung(self):
        program = python("hangs", "")
        native = harness.Result([], 0, "out\n", "", 1.0, False)
        ended = harness.Result([], -9, "", "", 9.0, True)
        self.assertEqual(compat.verdict(program, native, ended)[0], "hung")

    def test_what_differs_by_design_can_be_ignored(self):
        program = python("timed", "", ignore=r"[0-9.]+ s")
        results = [harness.Result([], 0, f"answer 4 in {t} s\n", "", 1.0, False)
                   for t in (0.1, 12.5)]
        self.assertEqual(compat.verdict(program, *results), ("equal", ""))

    def test_wrong_words_are_answered(self):
        self.assertIn("no program's name holds 'nothing'",
                      self.command("compat.py", "--only", "nothing", code=2).stderr)
        self.assertIn("unknown mode 'mps'",
                      self.command("compat.py", "--modes", "mps", code=2).stderr)
        self.assertIn("it has no batches",
                      self.command("start.py", "--program", "cuBLAS", code=2).stderr)

    def test_list_says_what_cannot_run(self):
        listed = self.command("compat.py", "--list").stdout
        self.assertIn("not supplied (--cuda-samples DIR)", listed)
        one = self.command("compat.py", "--list", "--only", "CuPy").stdout.splitlines()
        self.assertEqual(len(one), 3)  # headings, a line, the program of exactly this name
        some = self.command("compat.py", "--list", "--only", "upy").stdout.splitlines()
        self.assertEqual(len(some), 5)

    def test_outcomes_of_programs_of_others(self):
        tree = self.out / "samples"
        tree.mkdir()
        for name in ("true", "false"):
            (tree / name).write_bytes(pathlib.Path(f"/bin/{name}").read_bytes())
            (tree / name).chmod(0o755)
        (tree / "notes.sh").write_text("#!/bin/sh\n")
        lines = self.command("programs/outcomes.py", "executables", str(tree)).stdout.splitlines()
        self.assertEqual({r["name"]: r["hash"] for r in map(json.loads, lines)},
                         {"false": "exit code 1", "true": "exit code 0"})
        empty = self.command("programs/outcomes.py", "executables", str(BENCH / "compat"),
                             code=compat.CANNOT).stdout
        self.assertIn("build it first", empty)

    def test_programs_of_others_by_a_relative_path_and_several_at_once(self):
        tree = self.out / "samples" / "deep"
        tree.mkdir(parents=True)
        (tree / "true").write_bytes(pathlib.Path("/bin/true").read_bytes())
        (tree / "true").chmod(0o755)
        lines = self.command("programs/outcomes.py", "executables", "--at-once", "3",
                             os.path.relpath(tree.parent)).stdout.splitlines()
        self.assertEqual([json.loads(line) for line in lines],
                         [{"name": "true", "hash": "exit code 0"}])

    def test_programs_of_others_that_do_not_end_in_time(self):
        tree = self.out / "samples"
        tree.mkdir()
        compiler = shutil.which("cc")
        if not compiler:
            self.skipTest("no C compiler")
        (tree / "sleeps.c").write_text("#include <unistd.h>\nint main(void) { pause(); }\n")
        subprocess.run([compiler, "-o", str(tree / "sleeps"), str(tree / "sleeps.c")], check=True)
        hung = self.command("programs/outcomes.py", "executables", str(tree), "--each", "0.2")
        self.assertEqual(json.loads(hung.stdout), {"name": "sleeps", "hash": "exit code hung"})
        over = self.command("programs/outcomes.py", "executables", str(tree), "--within", "0.2")
        self.assertEqual(json.loads(over.stdout), {"unfinished": "0 of 1 programs ended in time"})

    @unittest.skipUnless(importlib.util.find_spec("pytest"), "no pytest")
    def test_outcomes_of_tests_also_of_those_that_end_the_process(self):
        file = self.out / "test_some.py"
        file.write_text("import os, unittest\n"
                        "class T(unittest.TestCase):\n"
                        "    def test_a(self): pass\n"
                        "    def test_b(self): self.fail()\n"
                        "    def test_c(self): self.skipTest('no')\n"
                        "    def test_d(self): os._exit(3)\n"
                        "    def test_e(self): pass\n")
        lines = self.command("programs/outcomes.py", "pytest", str(file)).stdout.splitlines()
        found = {r["name"].rpartition("::")[2]: r["hash"] for r in map(json.loads, lines)}
        self.assertEqual(found, {"test_a": "passed", "test_b": "failure", "test_c": "skipped",
                                 "test_d": "ended the process: exit code 3", "test_e": "passed"})

    def test_runs_that_their_time_ended_are_compared_where_both_have_results(self):
        lines = [f'{{"name": "{name}", "hash": "1"}}\n' for name in "abc"]
        native = harness.Result([], 0, "".join(lines), "", 1.0, False)
        part = harness.Result([], 0, lines[1] + lines[0] + '{"unfinished": "2 of 3"}\n', "", 1.0,
                              False)
        none = harness.Result([], 0, '{"unfinished": "0 of 3"}\n', "", 1.0, False)
        program = python("tests", "")
        self.assertEqual(compat.verdict(program, native, part),
                         ("equal", "the 2 results that both have"))
        for pair in ((native, none), (none, native), (none, none)):
            self.assertEqual(compat.verdict(program, *pair)[0], "no result")
        whole = harness.Result([], 0, lines[0], "", 1.0, False)
        self.assertEqual(compat.verdict(program, native, whole)[0], "differs")

    def test_what_others_wrote_is_run_where_the_options_say(self):
        options = compat.parse(["--cuda-samples", "S", "--pytorch-source", "P", "--llama-cpp", "L",
                                "--llama-model", "M", "--limit", "9", "--only",
                                "samples,test_,ma.c"])
        llama, samples, *tests = programs.chosen(options)
        self.assertIn("L/bin/llama-simple", llama.command)
        self.assertEqual(samples.command[-5:], ("S", "--within", "9.0", "--at-once", "1"))
        self.assertEqual([t.command[-3] for t in tests],
                         ["P/test/test_cuda.py", "P/test/inductor/test_cudagraph_trees.py"])
        for program in (samples, *tests):
            self.assertGreater(program.seconds, 9)


class Turns(Compat):
    def test_living_processes_of_every_arm_take_turns(self):
        result = self.command("turns.py", "--smoke", "--rounds", "2", "--turns", "4", "--batches",
                              "2", "--prepare", "8", "--json", "--out", str(self.out))
        found = json.loads(result.stdout)
        self.assertEqual(set(found), {"native again", "fifo", "daemon"})
        self.assertEqual({(r["rounds"], r["turns"]) for r in found.values()}, {(2, 4)})
        again = self.command("turns.py", "--json", "--analyse", str(self.out / "turns.jsonl"))
        self.assertEqual(json.loads(again.stdout), found)
        records = [json.loads(line) for line in (self.out / "turns.jsonl").read_text().splitlines()]
        rounds = [r for r in records if "round" in r]
        for r in rounds:
            self.assertEqual({tuple(map(len, t)) for t in r["turns"].values()}, {(2, 2, 2, 2)})
            self.assertEqual(len({json.dumps(h) for h in r["hashes"].values()}), 1)
            self.assertTrue(r["hashes"]["fifo"])

    def test_samples_tell_in_which_library_each_arm_is(self):
        self.command("turns.py", "--smoke", "--rounds", "1", "--turns", "6", "--batches", "300",
                     "--samples", "--out", str(self.out))
        kept = str(self.out / "turns.jsonl")
        library = harness.prefix() / "lib" / "libvitamin_cuda.so"
        shown = self.command("turns.py", "--analyse", kept, "--library", str(library)).stdout
        self.assertRegex(shown, r"library +native +native again +fifo +daemon")
        self.assertRegex(shown, r"\nlibc\.so\.6 +0\.\d+ +0\.\d+ +0\.\d+ +0\.\d+")
        lines = pathlib.Path(kept).read_text().splitlines()
        found, _ = turns.sampled([json.loads(line) for line in lines])
        for arm in ("native", "native again"):
            self.assertFalse([name for name in found[arm] if name.startswith(samples.OURS)])

    def test_an_offset_is_told_as_the_function_that_holds_it(self):
        library = harness.prefix() / "lib" / "libvitamin_cuda.so"
        lines = subprocess.run(["nm", "-D", "--defined-only", library], capture_output=True,
                               text=True, check=True).stdout.splitlines()
        address = next(int(line.split()[0], 16) for line in lines if line.endswith(" dlsym"))
        offset = self.offset_of(library, address)
        self.assertEqual(samples.functions(library, {hex(offset + 1): 3}), {"dlsym": 3})

    @staticmethod
    def offset_of(library, address):
        for line in subprocess.run(["readelf", "-lW", library], capture_output=True, text=True,
                                   check=True).stdout.splitlines():
            f = line.split()
            if f[:1] == ["LOAD"] and 0 <= address - int(f[2], 16) < int(f[4], 16):
                return address - int(f[2], 16) + int(f[1], 16)
        raise AssertionError(f"{address:#x} is in no segment")

    def test_few_rounds_have_no_interval(self):
        record = {"round": 0, "turns": {"native": [[1], [1]], "fifo": [[1], [2]]}}
        row = turns.analyse([record] * (turns.ROUNDS - 1))["fifo"]
        self.assertEqual((row["first"], row["steady"]), ([1, None, None], [2, None, None]))

    def test_shares_have_the_interval_of_their_samples(self):
        record = {"samples": {"fifo": {"modules": {"libvitamin_cuda.so": 5, "libc.so.6": 95}}}}
        self.assertEqual(turns.counted([record, record]), {"fifo": (10, 200)})
        self.assertEqual(turns.share_text(10, 200), "5.0 ± 3.0 % (10 of 200)")

    def test_what_ends_while_it_is_read_has_no_samples(self):
        with subprocess.Popen(["sleep", "60"]) as process:
            self.assertIn(process.pid, samples.family(os.getpid()))
            process.kill()
        self.assertEqual(samples.family(process.pid), [process.pid])
        self.assertEqual(samples.taken(self.out, process.pid, [(0, 1)]),
                         {"modules": {}, "ours": {}})

    def test_a_program_that_is_executed_outlives_the_timer(self):
        environment = os.environ | samples.environment(self.out)
        work = "import os, time\nend = time.process_time() + 0.1\n" \
               "while time.process_time() < end: pass\n"
        for _ in range(10):
            subprocess.run([sys.executable, "-c", work + "os.execv('/bin/sh', ['sh', '-c', ':'])"],
                           env=environment, check=True)

    def test_samples_are_counted_for_each_batch_behind_the_first_second(self):
        record = {"turns": {"native": [[1.0, 0.5], [0.1, 0.1], [0.1, 0.1]]},
                  "samples": {"native": {"modules": {"a": 8}, "ours": {}},
                              "fifo": {"modules": {"a": 8, "b": 2}, "ours": {"0x10": 2}}}}
        self.assertEqual(turns.sampled([record, record]),
                         [{"native": {"a": 2.0}, "fifo": {"a": 2.0, "b": 0.5}},
                          {"native": {}, "fifo": {"0x10": 0.5}}])

    def test_ratios_are_of_sums_and_later_turns_begin_behind_their_first_fifth(self):
        # The first second is one native turn; of later turns the first batch of five is left out.
        native = [[0.2] * 5, [0.1] * 5, [9.0, 0.1, 0.1, 0.1, 0.1], [5.0, 0.2, 0.2, 0.2, 0.2]]
        ours = [[0.3] * 5, [0.1] * 5, [1.0, 0.11, 0.11, 0.11, 0.11], [7.0, 0.21, 0.21, 0.21, 0.21]]
        records = [{"round": 0, "turns": {"native": native, "fifo": ours}}]
        row = turns.analyse(records)["fifo"]
        self.assertAlmostEqual(row["first"][0], 1.5)
        self.assertAlmostEqual(row["steady"][0], (0.4 + 0.44 + 0.84) / (0.4 + 0.4 + 0.8))
        self.assertEqual(row["turns"], 3)
        self.assertEqual(row["steady"][1:], [None, None])

    def test_what_drifts_between_turns_does_not_widen_the_interval(self):
        draw, records = random.Random(3), []
        for number in range(turns.ROUNDS):
            speeds = [draw.choice((1.0, 1.6)) for _ in range(30)]
            of = lambda factor: [[0.2 * s * factor] * 5 for s in speeds]
            records.append({"round": number, "turns": {"native": of(1.0), "fifo": of(1.02)}})
        for value in turns.analyse(records)["fifo"]["steady"]:
            self.assertAlmostEqual(value, 1.02)

    def test_a_process_that_fails_and_results_that_differ_are_failures(self):
        fine = {"round": 0, "turns": {"native": [[1], [1]], "fifo": [[1], [1]]},
                "hashes": {"native": [["w", "1"]], "fifo": [["w", "1"]]}}
        differs = {**fine, "hashes": {"native": [["w", "1"]], "fifo": [["w", "2"]]}}
        kept = self.out / "kept.jsonl"
        failed = {"round": 1, "error": "x"}
        for records, code in (([fine], 0), ([fine, differs], 1), ([fine, failed], 1), ([], 1)):
            kept.write_text("".join(json.dumps(r) + "\n" for r in records))
            self.command("turns.py", "--analyse", str(kept), code=code)

    def test_what_cannot_be_measured_is_refused(self):
        for words in (["--arms", "native"], ["--turns", "1"], ["--program", "cuBLAS"]):
            self.command("turns.py", *words, code=2)


class Start(Compat):
    def test_fresh_processes_of_every_arm_are_measured(self):
        result = self.command("start.py", "--smoke", "--rounds", "2", "--batches", "4", "--prepare",
                              "8", "--json", "--out", str(self.out))
        found = json.loads(result.stdout)
        self.assertEqual(found["rounds"], 2)
        self.assertEqual(set(found["ratios"]), {"native again", "fifo", "daemon"})
        self.assertEqual(set(found["others"]), {"native", "native again", "fifo", "daemon"})
        again = self.command("start.py", "--json", "--analyse", str(self.out / "start.jsonl"))
        self.assertEqual(json.loads(again.stdout), found)
        records = [json.loads(line) for line in (self.out / "start.jsonl").read_text().splitlines()]
        runs = [r for r in records if "arm" in r]
        self.assertEqual(len(runs), 8)
        for r in runs:
            self.assertEqual(len(r["batches"]["wall_s"]), 4)
            self.assertEqual(len(r["batches"]["calibration_ms"]["spin"]), 5)
            self.assertGreater(r["age_s"], r["idle_s"])
        last = max(runs, key=lambda r: r["order"])
        self.assertEqual(found["idle_s"][last["arm"]][1],
                         max(r["idle_s"] for r in runs if r["arm"] == last["arm"]))
        # The order is drawn, so no arm is always first.
        self.assertNotEqual(*([r["arm"] for r in runs if r["round"] == n] for n in (0, 1)))


    def test_where_one_process_does_not_start_the_others_are_ended(self):
        ended, made = [], []

        class Fails:
            def __init__(self, *_):
                if len(made) == 2:
                    raise OSError("no more processes")
                made.append(self)

            def end(self):
                ended.append(self)
        options = types.SimpleNamespace(seed=1, prepare=4, rounds=1, deadline=None,
                                        arms=start.ARMS, batches=4)
        real, start.Process = start.Process, Fails
        self.addCleanup(setattr, start, "Process", real)
        with self.assertRaises(OSError):
            start.measure(options, None, None, None)
        self.assertEqual(sorted(map(id, ended)), sorted(map(id, made)))


SPIN = {"spin": 2.0, "memory": 4.0, "calls": 0.5}


def process(arm, number, cost=lambda i: 1.0, slow=lambda i: 1.0, felt=1.0, count=24):
    """A process of known times: batches of 0.25 s, `cost` of the arm, `slow` of the host, of which
    a batch feels the share `felt`."""
    walls = [0.25 * cost(i) * (1 + felt * (slow(i) - 1)) for i in range(count)]
    return {"round": number, "arm": arm, "batches": {
        "began_s": [sum(walls[:i]) for i in range(count)], "wall_s": walls, "thread_cpu_s": walls,
        "calibration_ms": {c: [ms * slow(min(i, count - 1)) for i in range(count + 1)]
                           for c, ms in SPIN.items()}}}


class Overhead(unittest.TestCase):
    def rounds(self, cost=lambda i: 1.0, felt=1.0):
        """Four rounds; in each process the host is slow for a stretch, at another place."""
        draw, records = random.Random(1), []
        for number in range(4):
            for arm in ("native", "fifo"):
                at = draw.randrange(24) if arm == "native" else 0
                slow = lambda i, at=at: 1.6 if at <= i < at + 6 else 1.0
                records.append(process(arm, number, cost if arm == "fifo" else lambda i: 1.0, slow,
                                       felt))
        return records

    def test_a_slow_host_is_not_taken_for_ours(self):
        found = overhead.compare(self.rounds())["fifo"]
        self.assertEqual(found["batches_of_first_second"], 4)
        self.assertGreater(found["first_raw"]["ratio"], 1.3)
        self.assertAlmostEqual(found["first_normalized"]["ratio"], 1.0, delta=0.05)
        self.assertAlmostEqual(found["steady_normalized"]["ratio"], 1.0, delta=0.02)

    def test_a_slow_start_of_ours_is_found_on_a_slow_host(self):
        found = overhead.compare(self.rounds(lambda i: 1.4 if i < 8 else 1.0))["fifo"]
        self.assertAlmostEqual(found["first_normalized"]["ratio"], 1.4, delta=0.07)
        self.assertGreater(found["first_normalized"]["low"], 1.2)
        self.assertAlmostEqual(found["steady_normalized"]["ratio"], 1.0, delta=0.02)

    def test_how_much_of_the_hosts_slowness_a_batch_feels_is_learnt_from_native_alone(self):
        records = self.rounds(lambda i: 1.4 if i < 8 else 1.0, felt=0.5)
        native = [r for r in records if r["arm"] == "native"]
        reference = overhead.reference_of([r["batches"] for r in records])
        learnt = overhead.sensitivity(records, reference)
        self.assertAlmostEqual(learnt, 0.5, delta=0.1)
        self.assertEqual(learnt, overhead.sensitivity(native, reference))
        found = overhead.compare(records)["fifo"]
        self.assertAlmostEqual(found["first_normalized"]["ratio"], 1.4, delta=0.07)

    def test_batches_with_a_usual_host_are_compared_place_by_place(self):
        slow = lambda i: 1.6 if i in (0, 1) else 1.0
        records = [process("native", 0), process("fifo", 0, lambda i: 1.1, slow)]
        found = overhead.compare(records)["fifo"]
        self.assertEqual(found["first_quiet"]["rounds"], 2)  # of the four of the first second
        self.assertAlmostEqual(found["first_quiet"]["ratio"], 1.1)

    def test_slow_batches_are_told_with_the_host_at_them(self):
        slow = lambda i: 1.6 if i in (5, 6) else 1.0
        rows = overhead.slow_batches([process("native", 0, slow=slow),
                                      process("fifo", 0, lambda i: 1.6 if i in (5, 6) else 1.0)])
        self.assertEqual((rows["native"]["slow"], rows["fifo"]["slow"]), (2, 2))
        self.assertGreater(rows["native"]["host_slow"], 1.25)
        self.assertAlmostEqual(rows["fifo"]["host_slow"], 1.0)

    def test_a_round_that_lacks_an_arm_is_left_out(self):
        records = [process("native", 0), process("fifo", 0), process("native", 1),
                   {"round": 1, "arm": "fifo", "error": "it ended"}]
        self.assertEqual(list(overhead.by_round(records)), [0])
        self.assertEqual(overhead.compare(records)["fifo"]["first_raw"]["rounds"], 1)

    def test_cpu_time_of_others_is_told_for_each_second(self):
        record = process("daemon", 0, count=4)
        record["daemon_cpu_s"] = 0.1
        record["batches"] |= {"process_cpu_s": [0.3] * 4, "machine_busy_s": [0.5] * 4,
                              "machine_steal_s": [0.0] * 4}
        row = overhead.others([record])["daemon"]
        self.assertAlmostEqual(row["threads"], 0.2)  # 4 x (0.3 - 0.25) in one second
        self.assertAlmostEqual(row["vitamind"], 0.1)
        self.assertAlmostEqual(row["elsewhere"], 2.0 - 1.2 - 0.1)
        self.assertEqual(overhead.others([process("native", 0)]), {})  # results of earlier versions

    def test_nothing_is_told_without_times(self):
        self.assertEqual(overhead.compare([]), {})
        self.assertEqual(overhead.of_modes({"native": {"batches": None}}), (None, None))
        modes = {"native": {"batches": process("native", 0)["batches"]},
                 "daemon": {"batches": process("x", 0, lambda i: 1.2)["batches"]}}
        for ratio in overhead.of_modes(modes):
            self.assertAlmostEqual(ratio, 1.2)


class Table(Compat):
    def write(self, name, date, *records):
        header = {"header": {"date": date, "gpu": "H", "driver": "1", "cpu": "c", "commit": "abc",
                             "command": "compat.py"}}
        (self.out / name).write_text("".join(json.dumps(r) + "\n" for r in (
            header, {"versions": {"torch": "9.9"}, "jobs": 1}, *records)))

    def test_the_page_is_that_of_the_kept_results(self):
        self.assertEqual(table.PAGE.read_text(), table.page(table.RESULTS),
                         "run bench/compat/table.py --write")

    def test_the_newest_run_counts_and_not_run_gives_way(self):
        record = lambda verdict, mode="native", why="": {
            "program": "DDP, one rank", "mode": mode, "verdict": verdict, "why": why}
        self.write("b.jsonl", "2026-01-01", record("runs"),
                   record("differs", "random", "of 1 January"))
        self.write("a.jsonl", "2026-01-02", record("runs"), record("equal", "random"))
        self.write("c.jsonl", "2026-01-03", record("not run", why="no module torch"))
        page = table.page(self.out)
        self.assertIn("| DDP, one rank | torch 9.9 | – | equal |", page)
        self.assertNotIn("no module torch", page)
        self.assertNotIn("of 1 January", page)

    def test_what_fails_is_told_with_its_cause(self):
        record = lambda verdict, mode, why="": {"program": "CuPy", "mode": mode, "verdict": verdict,
                                                "why": why}
        self.write("a.jsonl", "2026-01-01", record("runs", "native"),
                   record("differs", "random", "1 of 3, first: sorted"))
        page = table.page(self.out)
        self.assertIn("**differs**", page)
        self.assertIn("* CuPy, random: differs: 1 of 3, first: sorted", page)

    def test_reasons_of_the_whole_device_are_in_words(self):
        cover = {"whole_device": {"host_gated": 2}, "graphs": {"whole_device": {"new_key": 1}}}
        self.assertEqual(table.causes(cover), "2 kernel launches: behind a wait that the host "
                                              "ends; 1 graph launches: new key")


class Programs(unittest.TestCase):
    def test_every_program_has_a_name_of_its_own_and_a_script_that_is_there(self):
        options = types.SimpleNamespace(
            smoke=False, only=None, llama_cpp="l", llama_model="m", cuda_samples="c",
            pytorch_source="p", limit=0, samples_at_once=1)
        listed = programs.chosen(options)
        self.assertEqual(len({p.name for p in listed}), len(listed))
        for p in listed:
            for word in p.command:
                if word.endswith(".py") and not word.startswith("p/"):
                    self.assertTrue(pathlib.Path(word).exists(), word)
                    compile(pathlib.Path(word).read_text(), word, "exec")


if __name__ == "__main__":
    unittest.main()
