# SPDX-License-Identifier: Apache-2.0
"""The suite's program and `vitamin verify` over the software driver, as a user runs them.

Needs in the environment: PREFIX (build directory), LEAKY (the program with a planted leak), COPIES
(the one that copies to the host in every way), BENCH (bench/determinism).
"""
import functools
import json
import math
import os
import pathlib
import pty
import select
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import unittest

from time_limit import time_limit, wait_until

PREFIX = pathlib.Path(os.environ["PREFIX"])
PROGRAM = PREFIX / "libexec/vitamin/bench/determinism"
SUBJECT = pathlib.Path(__file__).resolve().parent / "subject_program.py"
TENANT = f"exec {PROGRAM} --interfere 1000"
DETERMINISTIC, NOT_BY_ITSELF, BROKEN, INCONCLUSIVE, FAILED, INTERRUPTED = 0, 1, 2, 3, 125, 130


@functools.cache
def audit_log():
    sys.path.insert(0, os.environ["BENCH"])
    import audit_log as module
    return module


class Base(unittest.TestCase):
    def setUp(self):
        directory = tempfile.TemporaryDirectory(prefix="vitamin-verify-")
        self.addCleanup(directory.cleanup)
        self.directory = pathlib.Path(directory.name)

    def environment(self, **changes):
        result = {name: value for name, value in os.environ.items()
                  if not name.startswith(("VITAMIN", "LD_", "CUDA_"))}
        result |= {"LD_LIBRARY_PATH": str(PREFIX / "lib/soft"), "LC_ALL": "C.UTF-8",
                   "ASAN_OPTIONS": "detect_leaks=0",
                   # All processes of a test contend for the processors of one device.
                   "VITAMIN_SOFT_LEDGER": str(self.directory / "ledger")}
        result |= changes
        return {name: value for name, value in result.items() if value is not None}

    def call(self, *command, **changes):
        return subprocess.run([str(word) for word in command], capture_output=True, text=True,
                              timeout=time_limit(240), stdin=subprocess.DEVNULL,
                              env=self.environment(**changes))

    def program(self, *options, under=(), **changes):
        vitamin = [PREFIX / "bin/vitamin", "run", "--quiet", *under, "--"] if under else []
        result = self.call(*vitamin, PROGRAM, *options, **changes)
        self.assertEqual(result.returncode, 0, result.stderr)
        lines = [json.loads(line) for line in result.stdout.splitlines()]
        return {line["subject"]: line for line in lines if "subject" in line}

    def verify(self, *options, command, tenant="", **changes):
        result = self.call(PREFIX / "bin/vitamin", "verify", "--json", "--tenant", tenant, *options,
                           "--", *command, **changes)
        return result, json.loads(result.stdout) if result.stdout else None

    def subject(self, kind):
        return [sys.executable, SUBJECT, kind, PROGRAM]


class Suite(Base):
    """The interposer and the real CUDA backend over the software driver."""

    def reference(self):
        path = self.directory / "digests"
        self.program("--trials", "4", "--digests", path)
        return path

    def assert_equal_to(self, reference, *under, **changes):
        results = self.program("--trials", "4", "--against", reference, under=under, **changes)
        self.assertEqual(len(results), 11)
        for name, line in results.items():
            if "histogram" not in name:
                self.assertEqual(line["differing"], 0, (name, under))

    def test_no_policy_and_no_window_changes_a_byte(self):
        reference = self.reference()
        for policy in ("fifo", "static", "random", "random:exclusive=1", "extremes",
                       "extremes:narrow=1"):
            for window in ("max", "0"):
                with self.subTest(policy=policy, window=window):
                    self.assert_equal_to(reference, "--policy", policy, "--seed", "3", "--strict",
                                         "--window", window)

    def test_tenants_in_other_processes_change_no_byte(self):
        reference = self.reference()
        tenants = [subprocess.Popen([PREFIX / "bin/vitamin", "run", "--quiet", "--policy", "random",
                                     "--seed", str(seed), "--", PROGRAM, "--interfere", "60"],
                                    env=self.environment()) for seed in (1, 2)]
        try:
            for seed in ("4", "5"):
                self.assert_equal_to(reference, "--policy", "random", "--seed", seed)
        finally:
            for tenant in tenants:
                tenant.kill()
                tenant.wait()

    def test_float_atomics_are_seen_to_differ(self):
        results = self.program("--trials", "4", "--against", self.reference(),
                               under=("--policy", "random", "--seed", "3"))
        self.assertGreater(results["float-atomic histogram"]["differing"], 0)

    def widths(self):
        """The processors at which the launches of a random run ran, from its audit."""
        audit = self.directory / "audit"
        audit.mkdir()
        self.program("--trials", "4", under=("--policy", "random", "--seed", "3"),
                     VITAMIN_AUDIT=str(audit))
        widths = audit_log().widths(audit_log().read_directory(audit))
        self.assertGreater(len({w for kernel in widths.values() for w in kernel}), 5)
        path = self.directory / "widths"
        path.write_text(audit_log().widths_text(widths))
        return path

    def test_reshaped_launches_drift_and_bf16_more_than_fp16_more_than_fp32(self):
        drift = self.program("--treatment", "reshape", "--widths", self.widths(), "--trials", "24")
        for name, line in drift.items():
            if name in ("data-parallel GEMM", "element-wise"):
                self.assertEqual(line["differing"], 0, name)
            elif "histogram" not in name:
                self.assertGreater(line["differing"], 0, name)
        by_type = [drift[f"sum, {t} partials"]["max_abs"] for t in ("bf16", "fp16", "fp32")]
        self.assertEqual(by_type, sorted(by_type, reverse=True))
        self.assertGreater(by_type[2], 0)

    def test_atoms_of_whole_blocks_change_no_byte(self):
        drift = self.program("--treatment", "atoms", "--widths", self.widths(), "--trials", "8")
        for name, line in drift.items():
            self.assertGreater(line["turned"], 0, name)
            if "histogram" not in name:
                self.assertEqual(line["differing"], 0, name)


    def test_the_script_of_the_evaluation_finds_no_problem(self):
        script = pathlib.Path(os.environ["BENCH"]) / "run.py"
        # No ledger: a dozen treatments whose processes wait for each other take minutes.
        result = self.call(sys.executable, script, "--smoke", "--out", self.directory,
                           VITAMIN_PREFIX=str(PREFIX), VITAMIN_SOFT_LEDGER=None)
        self.assertEqual(result.returncode, 0, result.stdout + result.stderr)
        self.assertIn("0 problems", result.stdout)
        page = (self.directory / "determinism.html").read_text()
        self.assertEqual(page.count("</svg>"), 2)
        self.assertIn("reshape", page)
        self.assertNotIn("http", page.replace("http://www.w3.org/2000/svg", ""))


class Results(Base):
    """What copies bring to the host is seen, whichever call brought it."""

    def results(self, value, *under):
        audit = self.directory / f"audit-{value}-{len(under)}"
        audit.mkdir()
        result = self.call(PREFIX / "bin/vitamin", "run", "--quiet", *under, "--",
                           os.environ["COPIES"], value, VITAMIN_AUDIT=str(audit))
        self.assertEqual((result.returncode, result.stdout), (0, "13 copies\n"), result.stderr)
        return [(o.structure, o.content) for log in audit_log().read_directory(audit) for o in log
                if o.kind == audit_log().RESULT]

    def test_every_call_that_copies_to_the_host_gives_the_digest_of_the_same_result(self):
        for under in ((), ("--policy", "random")):
            with self.subTest(under=under):
                results = self.results(1, *under)
                self.assertEqual(len(results), 13, results)
                self.assertEqual(len(set(results)), 1, results)
                self.assertEqual(results[0][0], 256 * 6 * 2)
        self.assertNotEqual(self.results(2)[0], results[0])


class Verify(Base):
    def test_a_deterministic_program_passes_every_schedule_beside_a_tenant(self):
        page = self.directory / "report.html"
        result, found = self.verify("--runs", "7", "--check", "stdout,memory", "--report", page,
                                    command=[PROGRAM, "--trials", "20", "--only", "sum"],
                                    tenant=TENANT)
        self.assertEqual(result.returncode, DETERMINISTIC, result.stdout)
        self.assertEqual(found["verdict"], "deterministic")
        self.assertTrue(found["structure_compared"])
        self.assertEqual(len(found["runs"]), 10)
        self.assertTrue(all(run["finding"] == "" for run in found["runs"]))
        self.assertGreater(len(found["runs"][3]["widths"]), 3)
        self.assertIn("deterministic under Vitamin", page.read_text())
        self.assertNotIn("http", page.read_text())

    def test_a_leaked_processor_count_is_broken_by_vitamin_and_the_launch_is_named(self):
        result, found = self.verify("--runs", "2", command=[os.environ["LEAKY"], "--trials", "2",
                                                            "--only", "sum, bf16"])
        self.assertEqual(result.returncode, BROKEN, result.stdout)
        self.assertIn("sum_pieces_bf16", found["reason"])
        self.assertIn("--policy random --seed 1", found["runs"][3]["replay"])

    def test_a_leak_is_caught_where_the_bits_agree(self):
        # Its output does not depend on the grid: only the structure shows it.
        result, found = self.verify("--runs", "1", "--check", "memory",
                                    command=[os.environ["LEAKY"], "--trials", "2",
                                             "--only", "element-wise"])
        self.assertEqual(result.returncode, BROKEN, result.stdout)
        self.assertIn("what was launched", found["reason"])
        self.assertIn("element_wise", found["reason"])

    def test_float_atomics_whose_code_cannot_be_read_are_not_blamed_on_vitamin(self):
        result, found = self.verify("--runs", "3", command=[PROGRAM, "--trials", "4", "--only",
                                                            "histogram"],
                                    PATH="/usr/bin:/bin", tenant=TENANT)
        self.assertIn(result.returncode, (NOT_BY_ITSELF, INCONCLUSIVE), result.stdout)
        if result.returncode == INCONCLUSIVE:
            self.assertIn("is unknown", found["reason"])
            self.assertIn("cuobjdump", found["advice"])

    def test_code_outside_the_contract_is_named_where_it_was_launched(self):
        tool = self.directory / "cuobjdump"
        tool.write_text("#!/bin/sh\nprintf '\\t\\tFunction : histogram\\n"
                        "  REDG.E.ADD.F32.FTZ.RN.STRONG.GPU [R2], R5 ;\\n  CS2R R2, SR_CLOCKLO ;\\n"
                        "  S2R R0, SR_VIRTUALSMID ;\\n\\t\\tFunction : elsewhere\\n"
                        "  S2R R0, SR_VIRTUALSMID ;\\n'\n")
        tool.chmod(0o755)
        path = f"{self.directory}:/usr/bin:/bin"
        command = [PROGRAM, "--trials", "4", "--only", "histogram"]
        _, found = self.verify("--runs", "1", command=command, PATH=path)
        self.assertEqual(found["outside_contract"], {
            "histogram": ["float atomics", "reads %smid", "reads a clock"]})
        page = self.directory / "page.html"
        text = self.call(PREFIX / "bin/vitamin", "verify", "--tenant", "", "--runs", "1",
                         "--report", page, "--", *command, PATH=path).stdout
        for what in ("float atomics", "reads %smid", "reads a clock"):
            self.assertIn(f"outside the contract: histogram {what}", text)
            self.assertIn(f"<code>histogram</code>: {what}", page.read_text())

    def test_a_program_that_differs_from_itself_is_not_blamed_on_vitamin(self):
        result, found = self.verify(command=self.subject("random"))
        self.assertEqual(result.returncode, NOT_BY_ITSELF, result.stdout)
        self.assertIn("drawn", found["reason"])

    def test_time_stamps_are_recognised_and_the_way_out_is_named(self):
        result, found = self.verify(command=self.subject("times"))
        self.assertEqual(result.returncode, NOT_BY_ITSELF, result.stdout)
        self.assertIn("numbers only", found["advice"])
        self.assertIn("--check memory", found["advice"])
        result, _ = self.verify("--runs", "1", "--check", "memory", command=self.subject("times"))
        self.assertEqual(result.returncode, DETERMINISTIC, result.stdout)

    def test_a_command_that_fails_says_so_with_its_last_words(self):
        result, found = self.verify(command=self.subject("fails"))
        self.assertEqual(result.returncode, INCONCLUSIVE)
        self.assertIn("exit code 5", found["reason"])
        self.assertIn("no such model", found["reason"])

    def test_a_command_that_needs_a_terminal_is_told(self):
        result, found = self.verify(command=self.subject("terminal"))
        self.assertEqual(result.returncode, INCONCLUSIVE)
        self.assertIn("terminal", found["advice"])

    def test_a_command_that_reads_the_terminal_does_not_hang(self):
        pid, terminal = pty.fork()
        if pid == 0:
            os.execve(PREFIX / "bin/vitamin",
                      ["vitamin", "verify", "--tenant", "", "--", "sh", "-c", "read x </dev/tty"],
                      self.environment())
        self.addCleanup(os.close, terminal)
        text, limit = b"", time.monotonic() + time_limit(30)
        while select.select([terminal], [], [], max(limit - time.monotonic(), 0))[0]:
            try:
                text += os.read(terminal, 4096)
            except OSError:  # its other side is closed
                break
        if time.monotonic() > limit:
            os.kill(pid, signal.SIGKILL)
        _, status = os.waitpid(pid, 0)
        self.assertEqual(os.waitstatus_to_exitcode(status), INCONCLUSIVE, text)
        self.assertIn(b"seems to need a terminal", text)

    def test_a_command_that_is_stopped_does_not_hang(self):
        result, found = self.verify(command=["sh", "-c", "kill -STOP $$"])
        self.assertEqual(result.returncode, INCONCLUSIVE, result.stdout)
        self.assertIn("was stopped by signal", found["reason"])
        self.assertIn("terminal", found["advice"])

    def test_without_a_device_the_reason_is_said(self):
        result, found = self.verify(command=["sh", "-c", f"{PROGRAM} --trials 1 || true"],
                                    CUDA_VISIBLE_DEVICES="")
        self.assertEqual(result.returncode, INCONCLUSIVE)
        self.assertIn("CUDA_VISIBLE_DEVICES is ''", found["reason"])

    def test_too_little_memory_for_two_is_told_apart_from_a_bug(self):
        result, found = self.verify("--runs", "1", command=self.subject("memory"), tenant=TENANT)
        self.assertEqual(result.returncode, INCONCLUSIVE, result.stdout)
        self.assertIn("too little device memory", found["reason"])

    def test_every_run_is_within_the_quota_that_is_asked_for(self):
        command, size = self.subject("sizes"), {"SUBJECT_BYTES": str(1 << 30)}
        result, found = self.verify("--runs", "2", "--memory", "1GiB", command=command,
                                    tenant=TENANT, **size)
        self.assertEqual(result.returncode, DETERMINISTIC, result.stdout + result.stderr)
        self.assertEqual(len(found["runs"]), 5)
        self.assertIn("--memory 1GiB", found["runs"][-1]["replay"])
        # Without a quota the device is another size: the command fails alone.
        result, _ = self.verify("--runs", "2", command=command, **size)
        self.assertEqual(result.returncode, INCONCLUSIVE, result.stdout)
        result = self.call(PREFIX / "bin/vitamin", "verify", "--memory", "1G", "--", "true")
        self.assertEqual(result.returncode, FAILED)
        self.assertIn("'1G' is no size", result.stderr)

    def test_files_are_compared_and_a_file_that_is_not_written_is_named(self):
        out = self.directory / "out"
        command = ["sh", "-c", f"{PROGRAM} --trials 2 --only sum --digests {out}"]
        result, _ = self.verify("--runs", "2", "--file", out, command=command)
        self.assertEqual(result.returncode, DETERMINISTIC, result.stdout)
        command[2] += f"; date +%N > {out}"
        result, found = self.verify("--runs", "2", "--file", out, command=command)
        self.assertEqual(result.returncode, NOT_BY_ITSELF, result.stdout)
        self.assertIn(str(out), found["reason"])

    def test_a_file_that_is_never_written_shows_nothing(self):
        command = [PROGRAM, "--trials", "1", "--only", "sum"]
        result, found = self.verify("--file", self.directory / "never", command=command)
        self.assertEqual(result.returncode, INCONCLUSIVE, result.stdout)
        self.assertIn("never", found["reason"])
        result, _ = self.verify("--file", self.directory, command=command)
        self.assertEqual(result.returncode, FAILED, result.stdout)
        self.assertIn("is a directory", result.stderr)

    def test_a_dead_tenant_and_none_at_all_show_nothing(self):
        command = [PROGRAM, "--trials", "2", "--only", "sum"]
        result, found = self.verify("--runs", "1", command=command, tenant="false")
        self.assertEqual(result.returncode, INCONCLUSIVE, result.stdout)
        self.assertIn("the tenant ended with exit code 1", found["reason"])
        self.assertEqual(len(found["runs"]), 4)
        # A copy of the command line that has no demo beside it.
        (self.directory / "bin").mkdir()
        shutil.copy(PREFIX / "bin/vitamin", self.directory / "bin")
        os.symlink(PREFIX / "lib", self.directory / "lib")
        result = self.call(self.directory / "bin/vitamin", "verify", "--json", "--", *command)
        self.assertEqual(result.returncode, INCONCLUSIVE, result.stdout + result.stderr)
        self.assertIn("demo-train", json.loads(result.stdout)["reason"])

    def shared(self):
        """How many processes were on one processor at most, and how long more than one was."""
        words = self.call(os.environ["SHARING"], self.directory / "ledger").stdout.split()
        return int(words[0]), int(words[1])

    def test_the_tenant_contends_for_the_processors(self):
        command = [PROGRAM, "--trials", "150", "--only", "sum"]
        result, found = self.verify("--runs", "2", command=command, tenant=TENANT)
        self.assertEqual(result.returncode, DETERMINISTIC, result.stdout)
        self.assertGreater(found["runs"][3]["tenant_launches"], 0)
        most, shared_ns = self.shared()
        self.assertEqual(most, 2)
        self.assertGreater(shared_ns, 0)

    def test_a_command_in_a_pause_of_its_tenant_is_run_again(self):
        # The tenant pauses for longer than the command runs.
        tenant = f"{PROGRAM} --trials 1 --only sum; sleep 0.3"
        for _ in range(5):  # on a busy machine the time in which it is run again may be over
            result, found = self.verify("--runs", "2", tenant=tenant,
                                        command=[PROGRAM, "--trials", "1", "--only", "sum"])
            runs = found["runs"][3:]
            if all(run["tenant_launches"] > 0 for run in runs):
                break
        self.assertEqual(result.returncode, DETERMINISTIC, result.stdout)
        for run in runs:
            self.assertGreater(run["tenant_launches"], 0, run)

    def test_without_a_tenant_nothing_contends(self):
        command = [PROGRAM, "--trials", "2", "--only", "sum"]
        result, found = self.verify("--runs", "1", command=command)
        self.assertEqual(result.returncode, DETERMINISTIC, result.stdout)
        self.assertEqual(self.shared(), (1, 0))

    def test_a_tenant_that_stops_launching_shows_nothing(self):
        # It launches while it starts, and then does nothing. Its launches are seen all at once: the
        # command would begin in the middle of them otherwise.
        command = [PROGRAM, "--trials", "2", "--only", "sum"]
        tenant = (f"apart=$VITAMIN_RUN_DIR/apart; mkdir $apart; VITAMIN_RUN_DIR=$apart {PROGRAM} "
                  "--trials 1 --only element >/dev/null && mv $apart/* $VITAMIN_RUN_DIR && "
                  "exec sleep 1000")
        result, found = self.verify("--runs", "1", command=command, tenant=tenant)
        self.assertEqual(result.returncode, INCONCLUSIVE, result.stdout)
        self.assertIn("launched nothing while", found["reason"])

    def test_ctrl_c_ends_the_children_and_leaves_a_partial_report(self):
        page = self.directory / "report.html"
        process = subprocess.Popen(
            [PREFIX / "bin/vitamin", "verify", "--report", page, "--tenant", "sleep 77777", "--",
             *map(str, self.subject("hangs"))],
            env=self.environment(), stdout=subprocess.PIPE, text=True)
        hanging = lambda: subprocess.run(
            ["pgrep", "-f", f"^[^ ]*python[^ ]* .*{SUBJECT.name} hangs {PROGRAM}"],
            capture_output=True, text=True).stdout.split()
        wait_until(hanging, "the command's first run", 60)
        process.send_signal(signal.SIGINT)
        output, _ = process.communicate(timeout=time_limit(30))
        self.assertEqual(process.returncode, INTERRUPTED)
        self.assertIn("partial", output)
        self.assertIn("partial", page.read_text())
        wait_until(lambda: not hanging(), "the end of the command")

    def test_a_vitamin_that_is_killed_leaves_neither_command_nor_tenant(self):
        # Behind a shell each, so that the processes in question are grandchildren. No other test
        # has their numbers of seconds.
        tenant, run = 1_000_000 + 2 * os.getpid(), 1_000_001 + 2 * os.getpid()
        process = subprocess.Popen(
            [PREFIX / "bin/vitamin", "verify", "--tenant", f"{PROGRAM} --interfere {tenant}; true",
             "--runs", "1", "--",
             "sh", "-c",
             f"{PROGRAM} --trials 2 --only sum; "
             f'[ "$VITAMIN_POLICY" != random ] || sleep {run}'],
            env=self.environment(), stdout=subprocess.DEVNULL)
        pattern = f"^(sleep {run}|[^ ]*/determinism --interfere {tenant})"
        sleeping = lambda: subprocess.run(["pgrep", "-f", pattern], capture_output=True,
                                          text=True).stdout.split()
        wait_until(lambda: len(sleeping()) == 2 or process.poll() is not None,
                   "the run beside the tenant", 60)
        self.assertEqual(len(sleeping()), 2)
        process.kill()
        process.wait()
        wait_until(lambda: not sleeping(), "the end of both", 60)

    def test_a_run_that_does_not_end_is_ended_and_named(self):
        # Those that end have to do so within the same limit.
        result, found = self.verify("--runs", "1", "--limit", str(math.ceil(time_limit(2))),
                                    command=["sh", "-c", f"{PROGRAM} --trials 2 --only sum; "
                                             '[ "$VITAMIN_POLICY" != random ] || sleep 70003'])
        self.assertEqual(result.returncode, BROKEN, result.stdout)
        self.assertIn("did not end in time", found["reason"])
        self.assertIn("--policy random --seed 1", found["runs"][3]["replay"])

    def test_help_and_readme_name_every_exit_code(self):
        text = self.call(PREFIX / "bin/vitamin", "verify", "--help").stdout
        readme = (pathlib.Path(__file__).resolve().parents[2] / "tools/README.md").read_text()
        for code in (DETERMINISTIC, NOT_BY_ITSELF, BROKEN, INCONCLUSIVE, FAILED, 126, 127,
                     INTERRUPTED):
            self.assertRegex(text, rf"(?m)^  {code} ")
            self.assertIn(f"| {code} |", readme)

    def test_wrong_options_are_answered_with_one_line(self):
        for options, words in ((["--check", "fils", "--", "true"], "Did you mean 'files'?"),
                               (["--check", "files", "--", "true"], "--file FILE"),
                               (["--runs", "0", "--", "true"], "at least 1"),
                               ([], "no command to verify"),
                               (["--runz", "3", "--", "true"], "--runs"),
                               (["--report", "/nowhere/x.html", "--", "true"], "cannot write")):
            with self.subTest(options=options):
                result = self.call(PREFIX / "bin/vitamin", "verify", *options)
                self.assertEqual(result.returncode, FAILED, result.stderr)
                self.assertIn(words, result.stderr)
                self.assertEqual(result.stderr.count("\n"), 1)

    def test_a_command_that_is_not_there_is_127(self):
        page = self.directory / "report.html"
        result, found = self.verify("--report", page, command=["/nowhere/program"])
        self.assertEqual(result.returncode, 127)
        self.assertEqual(found["exit_code"], 127)
        self.assertIn("/nowhere/program", found["reason"])
        self.assertFalse(page.exists())

    def test_a_run_that_failed_is_not_called_equal(self):
        result = self.call(PREFIX / "bin/vitamin", "verify", "--tenant", "", "--",
                           *self.subject("fails"))
        self.assertIn("it ended with exit code 5", result.stdout)
        self.assertNotIn("equal", result.stdout)

    def test_the_line_to_run_it_again_is_a_shell_s_and_names_the_tenant(self):
        command = [os.environ["LEAKY"], "--trials", "2", "--only", "sum, bf16"]
        _, found = self.verify("--runs", "1", command=command, tenant=TENANT + " # it's")
        line = found["runs"][3]["replay"]
        self.assertIn("'sum, bf16'", line)
        words = shlex.split(line.split(" & ")[0])
        self.assertEqual(words[-3:], ["sh", "-c", TENANT + " # it's"])

    def test_output_that_is_not_utf_8_still_gives_json(self):
        result, found = self.verify(command=["sh", "-c", r"printf '\377\n' >&2; exit 1"])
        self.assertEqual(result.returncode, INCONCLUSIVE)
        self.assertIn("exit code 1", found["reason"])


if __name__ == "__main__":
    unittest.main()
