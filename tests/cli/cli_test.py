# SPDX-License-Identifier: Apache-2.0
"""The command line, from outside: what is printed, where, and how the process ends."""
import contextlib
import json
import os
import pathlib
import pty
import random
import resource
import shutil
import signal
import subprocess
import sys
import time
import unittest

import seed
from cli_harness import BOUND, CliTest, SignalTest
from held import children_of, held, held_at_its_fork, is_pending, state
from time_limit import time_limit, wait_until


class Command(CliTest):
    def test_the_exit_code_passes_through(self):
        for code in (0, 1, 7, 123, 255):
            with self.subTest(code=code):
                self.assertEqual(self.python(f"raise SystemExit({code})").returncode, code)

    def test_output_and_input_pass_through(self):
        result = subprocess.run([self.vitamin, "run", "--", "cat"], input="words", text=True,
                                capture_output=True, env=self.environment(),
                                timeout=time_limit(100))
        self.assertEqual(result.stdout, "words")

    def test_arguments_pass_unchanged(self):
        words = ["", "a b", "--", "--policy", "*", "ä"]
        result = self.python("import sys; print(sys.argv[1:])")
        result = self.run_under(sys.executable, "-c", "import sys; print(sys.argv[1:])", *words)
        self.assertEqual(result.stdout, f"{words}\n")

    def test_the_double_dash_may_be_left_out(self):
        result = self.call("run", "--policy", "random", "echo", "--quiet", "-n", "x")
        self.assertEqual(result.stdout, "--quiet -n x\n")

    def test_a_missing_command_is_127(self):
        self.assert_one_line(self.run_under("no-such-command"), 127, "not found",
                             "no-such-command")
        self.assert_one_line(self.run_under("./no/such"), 127, "not found")

    def test_a_file_that_may_not_be_executed_is_126(self):
        self.assert_one_line(self.run_under(str(self.script("#!/bin/sh\n", 0o644))), 126,
                             "cannot execute", "chmod")

    def test_a_directory_is_126(self):
        self.assert_one_line(self.run_under(str(self.directory)), 126, "directory")

    def test_a_script_whose_interpreter_is_missing_is_127(self):
        self.assert_one_line(self.run_under(str(self.script("#!/no/interpreter\n"))), 127,
                             "interpreter")

    def test_the_environment_of_the_command_says_what_was_asked_for(self):
        code = "import os, json; print(json.dumps(dict(os.environ)))"
        options = ["--policy", "random", "--seed", "18446744073709551615", "--window", "1.5ms"]
        seen = json.loads(self.python(code, options, MINE="kept").stdout)
        self.assertEqual(seen["VITAMIN_POLICY"], "random")
        self.assertEqual(seen["VITAMIN_SEED"], "18446744073709551615")
        self.assertEqual(seen["VITAMIN_WINDOW_NS"], "1500000")
        self.assertEqual(seen["MINE"], "kept")

    def test_a_configuration_for_one_run(self):
        file = self.directory / "own.toml"
        file.write_text('policy.name = "random"\npolicy.seed = 7\n')
        show = "import os; print(os.environ['VITAMIN_POLICY'], os.environ.get('VITAMIN_SEED'))"
        shown = self.python(show, options=["--config", str(file)])
        self.assertEqual(shown.stdout, "random 7\n", shown.stderr)
        shown = self.python(show, options=["--config", str(file), "--set", "policy.name=static",
                                           "--set", "policy.seed=8"])
        self.assertEqual(shown.stdout, "static 8\n", shown.stderr)
        shown = self.python(show, options=["--config", str(file), "--policy", "fifo"])
        self.assertEqual(shown.stdout, "fifo None\n", shown.stderr)

    def test_a_configuration_for_one_run_that_is_wrong_starts_nothing(self):
        missing = self.python("print('ran')", options=["--config", str(self.directory / "none")])
        self.assertEqual((missing.returncode, missing.stdout), (125, ""))
        self.assertIn("cannot be read", missing.stderr)
        wrong = self.python("print('ran')", options=["--set", "policy.nam=x"])
        self.assertEqual((wrong.returncode, wrong.stdout), (125, ""))
        line, last = wrong.stderr.splitlines()
        self.assertTrue(line.endswith("did you mean 'policy.name'? [VIT-111]"), line)
        # The command that says the same again, not one that reads another configuration.
        self.assertIn("See `vitamin config check --set policy.nam=x`. [VIT-111]", last)

    def test_what_was_not_asked_for_is_not_in_the_environment(self):
        seen = self.python("import os; print([n for n in os.environ if n.startswith('VITAMIN_')])")
        self.assertNotIn("VITAMIN_SEED", seen.stdout)
        self.assertNotIn("VITAMIN_WINDOW_NS", seen.stdout)

    def test_the_users_own_preload_stays_behind_ours(self):
        other = self.directory / "other.so"
        shutil.copy(os.environ["FAKE_DRIVER"], other)
        code = "import os; print(os.environ['LD_PRELOAD'])"
        result = self.python(code, LD_PRELOAD=str(other))
        items = result.stdout.strip().split(":")
        ours = self.directory / "tree/lib/libvitamin_cuda.so"
        self.assertEqual(items[-2:], [str(ours), str(other)])

    def test_a_run_inside_a_run_preloads_once(self):
        result = self.run_under(self.vitamin, "run", "--quiet", "--", sys.executable, "-c",
                                "import os; print(os.environ['LD_PRELOAD'])")
        self.assertEqual(result.stdout.count("libvitamin_cuda.so"), 1)

    def test_a_caller_that_ignores_sigchld_still_gets_the_code(self):
        result = subprocess.run(
            [self.vitamin, "run", "--", sys.executable, "-c",
             "import signal; print(signal.getsignal(signal.SIGCHLD).name); raise SystemExit(3)"],
            env=self.environment(), capture_output=True, text=True, timeout=time_limit(100),
            preexec_fn=lambda: signal.signal(signal.SIGCHLD, signal.SIG_IGN))
        self.assertEqual(result.returncode, 3)
        self.assertEqual(result.stdout, "SIG_IGN\n")  # and the command inherits what it would

    def test_an_install_path_with_a_space_and_a_colon_works(self):
        vitamin = self.install(self.directory / "a tree: with colon")
        result = self.call("run", "--quiet", "--strict", "--", "true", vitamin=vitamin,
                           FAKE_PAGE=BOUND)
        self.assertEqual((result.returncode, result.stderr), (0, ""))


class Signals(SignalTest):
    def test_a_command_that_a_signal_ends_ends_vitamin_by_it(self):
        for number in (signal.SIGTERM, signal.SIGKILL, signal.SIGSEGV, signal.SIGINT):
            with self.subTest(signal=number):
                result = self.python(f"import os; os.kill(os.getpid(), {int(number)})",
                                     ["--quiet"])
                self.assertEqual(result.returncode, -number)

    def test_signals_sent_to_vitamin_reach_the_command(self):
        code = ("import signal, time\n"
                "def got(n, f): print('got', n, flush=True); raise SystemExit(9)\n"
                "for n in (1, 2, 3, 10, 12, 15): signal.signal(n, got)\n"
                "print('ready')\n"
                # The interpreter may look for signals, get one, and then begin to sleep.
                "while True: time.sleep(0.05)\n")
        for number in (signal.SIGHUP, signal.SIGINT, signal.SIGQUIT, signal.SIGUSR1,
                       signal.SIGUSR2, signal.SIGTERM):
            with self.subTest(signal=number):
                process = self.start(code)
                self.assertEqual(process.stdout.readline(), "ready\n")
                process.send_signal(number)
                self.assertEqual(process.stdout.readline(), f"got {int(number)}\n")
                self.assertEqual(process.wait(time_limit(60)), 9)

    def test_a_terminals_interrupt_reaches_the_command_once(self):
        code = ("import signal, time\n"
                "count = 0\n"
                "def got(n, f):\n"
                "    global count\n"
                "    count += 1\n"
                "signal.signal(2, got)\n"
                "print('ready', flush=True)\n"
                "while count == 0: time.sleep(0.01)\n"
                "time.sleep(1)\n"  # for a second one
                "print('interrupts', count, flush=True)\n")
        pid, terminal = pty.fork()
        if pid == 0:
            os.execve(self.vitamin, ["vitamin", "run", "--quiet", "--", sys.executable, "-uc",
                                     code], self.environment(FAKE_PAGE=BOUND))
        output = b""
        while b"ready" not in output:
            output += os.read(terminal, 1000)
        os.write(terminal, b"\x03")
        while b"interrupts" not in output or not output.endswith(b"\n"):
            output += os.read(terminal, 1000)
        _, status = os.waitpid(pid, 0)
        os.close(terminal)
        self.assertIn(b"interrupts 1", output)
        self.assertEqual(os.waitstatus_to_exitcode(status), 0)

    def test_a_command_that_stops_stops_vitamin_until_it_is_continued(self):
        process = self.start(self.STOPS)
        self.wait_until_stopped(process)
        process.send_signal(signal.SIGCONT)
        self.assertEqual(process.stdout.readline(), "on\n")
        self.assertEqual(process.wait(time_limit(60)), 0)

    def test_a_command_that_another_process_continues_continues_vitamin(self):
        process = self.start(self.STOPS)
        child = self.command_of(process)
        self.wait_until_stopped(process)
        os.kill(child, signal.SIGCONT)
        self.assertEqual(process.stdout.readline(), "on\n")
        self.assertEqual(process.wait(time_limit(60)), 0)

    def test_a_continue_that_meets_an_unfinished_one_is_passed_on(self):
        # Two SIGCONT for vitamin before it runs again: the kernel keeps one, and says that
        # vitamin's own process sent it. The command has not stopped again yet.
        process = self.start(f"{self.STOPS}; input()", stdin=subprocess.PIPE)
        child = self.command_of(process)
        self.wait_until_stopped(process)
        with contextlib.ExitStack() as until_vitamin_ran:
            with held(process.pid):
                os.kill(child, signal.SIGCONT)
                self.assertEqual(process.stdout.readline(), "on\n")
                wait_until(lambda: is_pending(process.pid, signal.SIGCONT), "the first SIGCONT")
                until_vitamin_ran.enter_context(held(child))
                os.kill(child, signal.SIGSTOP)
                process.send_signal(signal.SIGCONT)
            wait_until(lambda: children_of(process.pid) == [child], "the end of what woke vitamin")
        self.let_end(process)
        self.assertEqual(process.wait(time_limit(60)), 0)

    def test_a_stop_of_the_group_spares_what_wakes_vitamin(self):
        process = self.start("print('on'); input()", stdin=subprocess.PIPE)
        self.assertEqual(process.stdout.readline(), "on\n")
        child = self.command_of(process)
        with held_at_its_fork(process.pid) as wait_for_fork:
            os.kill(child, signal.SIGSTOP)
            wait_for_fork()
            os.killpg(process.pid, signal.SIGSTOP)
        self.wait_until_stopped(process)
        for each in (child, process.pid):
            os.kill(each, signal.SIGCONT)
        self.let_end(process)
        self.assertEqual(process.wait(time_limit(60)), 0)

    def test_a_stopped_command_that_is_killed_ends_vitamin(self):
        process = self.start(self.STOPS)
        child = self.command_of(process)
        self.wait_until_stopped(process)
        os.kill(child, signal.SIGKILL)
        self.assertEqual(process.wait(time_limit(60)), -signal.SIGKILL)

    def test_the_exit_code_arrives_however_stops_and_continues_are_mixed(self):
        chance = random.Random(seed.seed(18))
        for turn in range(300 if seed.long_form() else 20):
            process = self.start("print('on'); input(); raise SystemExit(7)", stdin=subprocess.PIPE)
            self.assertEqual(process.stdout.readline(), "on\n")
            child = self.command_of(process)
            both, group = [process.pid, child], [-process.pid]
            rounds = chance.randrange(1, 4)
            ends = chance.randrange(rounds + 1)
            for number_of_round in range(rounds):
                if number_of_round == ends:
                    self.let_end(process)
                # The last SIGCONT of each that was stopped comes behind its last SIGSTOP.
                first, last = chance.choice([(both, both), ([child], [child]), (group, group),
                                             ([child], [process.pid]), (both, group),
                                             (group, both)])
                for number, whom in ((signal.SIGSTOP, first), (signal.SIGCONT, last)):
                    for each in chance.sample(whom, len(whom)):
                        with contextlib.suppress(ProcessLookupError):
                            os.kill(each, number)
                        time.sleep(chance.choice((0, 0, 0.001, 0.02)))
            if ends == rounds:
                self.let_end(process)
            with self.subTest(turn=turn):
                try:
                    self.assertEqual(process.wait(time_limit(30)), 7)
                except subprocess.TimeoutExpired:
                    process.send_signal(signal.SIGCONT)
                    raise

    def test_a_command_that_ignores_the_terminals_stop_is_waited_for(self):
        code = ("import signal, time\n"
                "signal.signal(signal.SIGTSTP, signal.SIG_IGN)\n"
                "print('ready', flush=True)\n"
                "time.sleep(0.3)\n"
                "raise SystemExit(5)\n")
        process = self.start(code)
        self.assertEqual(process.stdout.readline(), "ready\n")
        os.killpg(process.pid, signal.SIGTSTP)
        self.assertEqual(process.wait(time_limit(60)), 5)

    def test_a_stop_asked_of_vitamin_reaches_the_command(self):
        process = self.start("print('ready', flush=True); input()", stdin=subprocess.PIPE)
        self.assertEqual(process.stdout.readline(), "ready\n")
        child = self.command_of(process)
        process.send_signal(signal.SIGTSTP)
        self.wait_until_stopped(process)
        self.assertEqual(state(child), "T")
        os.killpg(process.pid, signal.SIGCONT)
        process.stdin.write("\n")
        process.stdin.flush()
        self.assertEqual(process.wait(time_limit(60)), 0)

    def test_output_without_a_reader_changes_no_exit_code(self):
        ours, theirs = os.pipe()
        os.close(ours)
        self.addCleanup(os.close, theirs)
        result = subprocess.run(
            [self.vitamin, "run", "--json", "--", sys.executable, "-c", "raise SystemExit(8)"],
            env=self.environment(FAKE_PAGE=BOUND), stdout=subprocess.PIPE, stderr=theirs,
            timeout=time_limit(100))
        self.assertEqual(result.returncode, 8)

    def test_a_report_beyond_the_limit_on_files_changes_no_exit_code(self):
        report = self.directory / "report"
        result = subprocess.run(
            [self.vitamin, "run", "--quiet", "--report", str(report), "--", sys.executable, "-c",
             "raise SystemExit(8)"], env=self.environment(FAKE_PAGE=BOUND),
            capture_output=True, text=True, timeout=time_limit(100),
            preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (10, 10)))
        self.assertEqual(result.returncode, 8)
        self.assertIn("VIT-108", result.stderr)

    def test_a_shell_with_job_control_stops_and_continues_a_run(self):
        home = self.directory / "home"
        home.mkdir()
        shell = subprocess.Popen(
            ["bash", "--norc", "-i"], stdin=subprocess.PIPE, text=True, stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT, start_new_session=True,
            env=self.environment(FAKE_PAGE=BOUND, HOME=str(home), HISTFILE=""))
        self.addCleanup(shell.kill)
        code = "import os, signal; os.kill(os.getpid(), signal.SIGSTOP); raise SystemExit(6)"
        output, _ = shell.communicate(
            f"set -m\n{self.vitamin} run --quiet -- {sys.executable} -c '{code}'\n"
            "echo stopped $?\nfg >/dev/null\necho ended $?\nexit\n", timeout=time_limit(60))
        self.assertIn(f"stopped {128 + signal.SIGSTOP}", output)
        self.assertIn("ended 6", output)
        self.assertEqual(list(home.iterdir()), [])  # no history of this


class RunDirectories(CliTest):
    """$XDG_RUNTIME_DIR of these tests is self.directory / "run"."""

    def directories(self):
        return sorted((self.directory / "run").glob("vitamin-run-*"))

    def started(self, code):
        process = subprocess.Popen(
            [self.vitamin, "run", "--quiet", "--", sys.executable, "-uc", code], text=True,
            env=self.environment(FAKE_PAGE=BOUND), stdout=subprocess.PIPE,
            stdin=subprocess.PIPE)
        self.addCleanup(process.stdout.close)
        self.addCleanup(process.stdin.close)
        self.addCleanup(process.kill)
        return process

    def test_a_run_that_is_told_to_end_early_leaves_no_directory(self):
        # How long it takes until the command runs, when it is not interrupted.
        begin = time.monotonic()
        first = self.started("print('on')")
        first.stdout.readline()
        until_started = time.monotonic() - begin
        self.assertEqual(first.wait(time_limit(60)), 0)
        for turn in range(30):
            process = self.started("import time; time.sleep(60)")
            time.sleep(until_started * turn / 30)
            process.send_signal(signal.SIGTERM)
            self.assertEqual(process.wait(time_limit(60)), -signal.SIGTERM)
            self.assertEqual(self.directories(), [])

    def test_the_directory_of_a_killed_run_is_removed_by_a_later_one(self):
        process = self.started("print(1); input()")
        process.stdout.readline()
        process.kill()
        process.wait()
        self.assertEqual(len(self.directories()), 1)
        process.stdin.close()  # ends the command, too
        left, = self.directories()
        until = time.monotonic() + time_limit(60)
        while left.exists() and time.monotonic() < until:
            self.assertEqual(self.python("pass", ["--quiet"], FAKE_PAGE=BOUND).returncode, 0)
        self.assertEqual(self.directories(), [])

    def test_the_directory_of_a_run_is_not_removed_by_another(self):
        process = self.started("print(1); input()")
        process.stdout.readline()
        self.assertEqual(self.python("pass").returncode, 0)
        self.assertEqual(len(self.directories()), 1)
        process.stdin.write("\n")
        process.stdin.flush()
        self.assertEqual(process.wait(time_limit(60)), 0)
        self.assertEqual(self.directories(), [])

    def test_a_directory_that_a_living_program_still_uses_is_not_removed(self):
        process = self.started("print(1); input()")
        process.stdout.readline()
        process.kill()
        process.wait()
        for _ in range(3):
            self.assertEqual(self.python("pass").returncode, 0)
            self.assertEqual(len(self.directories()), 1)

    def test_what_only_has_the_name_of_a_run_directory_is_kept(self):
        other = self.directory / "kept"
        other.mkdir()
        (other / "file").touch()
        (self.directory / "run/vitamin-run-file00").touch()
        (self.directory / "run/vitamin-run-link00").symlink_to(other)
        self.assertEqual(self.python("pass").returncode, 0)
        self.assertEqual(len(self.directories()), 2)
        self.assertTrue((other / "file").exists())

    @unittest.skipUnless(os.geteuid() == 0, "only root can make a directory of another user")
    def test_a_directory_of_another_user_is_kept(self):
        directory = self.directory / "run/vitamin-run-other0"
        directory.mkdir()
        os.chown(directory, 65534, 65534)
        self.assertEqual(self.python("pass").returncode, 0)
        self.assertEqual(self.directories(), [directory])

    def test_runs_at_once_do_not_take_each_others_directories(self):
        code = "import os; print(len(os.listdir(os.environ['VITAMIN_RUN_DIR'])))"
        processes = [self.started(code) for _ in range(12)]
        for process in processes:
            self.assertEqual(process.stdout.readline(), "1\n")
            self.assertEqual(process.wait(time_limit(60)), 0)
        self.assertEqual(self.directories(), [])


class NoRoom(CliTest):
    """A program's statistics find no room: it ends as it would, and a line says so."""

    NO_ROOM = "could not be counted"

    def full_directory(self):
        """A file system in memory with no byte left, but for names."""
        directory = self.directory / "full"
        directory.mkdir()
        made = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "none", str(directory)],
                              capture_output=True, text=True)
        if made.returncode != 0:
            self.skipTest(f"no file system can be mounted here: {made.stderr.strip()}")
        self.addCleanup(subprocess.run, ["umount", "--lazy", str(directory)])
        with open(directory / "fill", "wb", buffering=0) as file, contextlib.suppress(OSError):
            while file.write(bytes(4096)):
                pass
        return directory

    def test_a_full_runtime_directory_is_passed_over(self):
        result = self.python("print('out'); raise SystemExit(4)", ["--quiet"],
                             FAKE_PAGE=BOUND, XDG_RUNTIME_DIR=str(self.full_directory()))
        self.assertEqual((result.returncode, result.stdout, result.stderr), (4, "out\n", ""))

    def test_a_directory_that_fills_up_while_the_program_starts_ends_nothing(self):
        directory = self.full_directory()
        (directory / "fill").unlink()
        # Each process of the run makes a page; the first leaves no room for the second's.
        code = ("import contextlib, os, subprocess, sys\n"
                f"with open('{directory}/fill', 'wb', buffering=0) as f, "
                "contextlib.suppress(OSError):\n"
                "    while f.write(bytes(4096)): pass\n"
                "raise SystemExit(subprocess.run(['sh', '-c', 'exit 9']).returncode)\n")
        result = self.python(code, ["--quiet"], FAKE_PAGE=BOUND, XDG_RUNTIME_DIR=str(directory))
        self.assert_one_line(result, 9, self.NO_ROOM, "1 of 2 processes")

    def test_a_limit_on_the_size_of_files_ends_nothing(self):
        for limit in (0, 4096, 100_000):
            with self.subTest(limit=limit):
                result = subprocess.run(
                    [self.vitamin, "run", "--quiet", "--", sys.executable, "-c",
                     f"import resource as r; r.setrlimit(r.RLIMIT_FSIZE, ({limit}, {limit}))\n"
                     "import subprocess\n"
                     "print(subprocess.run(['sh', '-c', 'exit 9']).returncode)\n"],
                    capture_output=True, text=True, timeout=time_limit(100),
                    # ThreadSanitizer writes a file there when a process begins, if it can.
                    stdin=subprocess.DEVNULL, env=self.environment(FAKE_PAGE=BOUND,
                                                                   TMPDIR="/nonexistent"))
                self.assertEqual(result.stdout, "9\n")
                self.assert_one_line(result, 0, self.NO_ROOM)

    def test_a_page_that_is_cut_while_it_is_read_ends_nothing(self):
        code = ("import os, glob\n"
                "path = glob.glob(os.environ['VITAMIN_RUN_DIR'] + '/*.stats')[0]\n"
                f"os.truncate(path, SIZE)\n")
        for size in (0, 10, 5000, 100_000):
            with self.subTest(size=size):
                result = self.python(code.replace("SIZE", str(size)), ["--quiet"],
                                     FAKE_PAGE=BOUND)
                self.assertEqual(result.returncode, 0, result.stderr)
                self.assertEqual(len(result.stderr.splitlines()), 1, result.stderr)


class Library(CliTest):
    def refused(self, *parts):
        mark = self.directory / "mark"
        result = self.run_under("touch", str(mark))
        self.assert_one_line(result, 125, *parts)
        self.assertFalse(mark.exists(), "the command was started")

    def test_without_the_library_nothing_is_started(self):
        (self.directory / "tree/lib/libvitamin_cuda.so").unlink()
        self.refused("libvitamin_cuda.so", "missing")

    def test_with_a_library_that_is_none_nothing_is_started(self):
        (self.directory / "tree/lib/libvitamin_cuda.so").write_text("not an object")
        self.refused("libvitamin_cuda.so", "loader does not accept")

    def test_with_a_cut_library_nothing_is_started(self):
        path = self.directory / "tree/lib/libvitamin_cuda.so"
        path.write_bytes(path.read_bytes()[:3000])
        self.refused("loader does not accept")


if __name__ == "__main__":
    unittest.main()
