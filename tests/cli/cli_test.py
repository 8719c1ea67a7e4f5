# SPDX-License-Identifier: Apache-2.0
"""The command line, from outside: what is printed, where, and how the process ends.

The preloaded library is a stand-in that reports what a test asks for; tests/interpose runs the real
one. Needs in the environment: VITAMIN (the program), STAND_IN_PRELOAD and STAND_IN_DRIVER (shared
objects).
"""
import contextlib
import json
import os
import pathlib
import pty
import random
import re
import resource
import shutil
import signal
import stat
import struct
import subprocess
import sys
import tempfile
import time
import unittest

from time_limit import time_limit

BOUND = "stage=3 seen=10 bound=10 narrow=8 whole=2 moved=7"


class CliTest(unittest.TestCase):
    """Gives each test an installed tree of its own: bin/vitamin and lib/libvitamin_cuda.so."""

    def setUp(self):
        folder = tempfile.TemporaryDirectory(prefix="vitamin-cli-")
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)
        self.vitamin = self.install(self.folder / "tree")
        (self.folder / "run").mkdir()

    def install(self, tree):
        (tree / "bin").mkdir(parents=True)
        (tree / "lib").mkdir()
        shutil.copy(os.environ["VITAMIN"], tree / "bin/vitamin")
        shutil.copy(os.environ["STAND_IN_PRELOAD"], tree / "lib/libvitamin_cuda.so")
        return tree / "bin/vitamin"

    def environment(self, **changes):
        result = {name: value for name, value in os.environ.items()
                  if not name.startswith(("VITAMIN", "STAND_IN", "LD_", "CUDA_"))}
        result |= {"XDG_RUNTIME_DIR": str(self.folder / "run"), "LC_ALL": "C.UTF-8",
                   # The stand-in must load into programs that were built without a sanitizer.
                   "ASAN_OPTIONS": "detect_leaks=0:verify_asan_link_order=0:handle_segv=0"}
        result |= changes
        return {name: value for name, value in result.items() if value is not None}

    def call(self, *words, vitamin=None, **changes):
        return subprocess.run([vitamin or self.vitamin, *words], capture_output=True, text=True,
                              stdin=subprocess.DEVNULL, timeout=time_limit(100),
                              env=self.environment(**changes))

    def run_under(self, *words, options=(), **changes):
        return self.call("run", *options, "--", *words, **changes)

    def python(self, code, options=(), **changes):
        return self.run_under(sys.executable, "-c", code, options=options, **changes)

    def script(self, text, mode=0o755):
        path = self.folder / "script"
        path.write_text(text)
        path.chmod(mode)
        return path

    def assert_one_line(self, result, code, *parts):
        """Ends with `code` and exactly one line on stderr, which holds every one of `parts`."""
        self.assertEqual(result.returncode, code, result.stderr)
        lines = result.stderr.splitlines()
        self.assertEqual(len(lines), 1, result.stderr)
        self.assertTrue(lines[0].startswith("vitamin: "), lines[0])
        # docs/errors.md has every code (tests/docs).
        self.assertRegex(lines[0], r" \[VIT-[1-9]\d\d\]$")
        for part in parts:
            self.assertIn(part, lines[0])


class Usage(CliTest):
    def test_help_teaches_with_examples(self):
        result = self.call("--help")
        self.assertEqual(result.returncode, 0)
        self.assertIn("vitamin run -- python train.py", result.stdout)

    def test_help_of_run_lists_every_exit_code(self):
        result = self.call("run", "--help")
        self.assertEqual(result.returncode, 0)
        for words in ("123", "125", "126", "127", "--policy", "--report", "--window", "--strict"):
            self.assertIn(words, result.stdout)

    def test_version_is_printed(self):
        self.assertRegex(self.call("version").stdout, r"^vitamin \d+\.\d+\.\d+\n$")
        self.assertRegex(json.loads(self.call("version", "--json").stdout)["version"], r"^\d+\.")
        self.assertEqual(self.call("--version").stdout, self.call("version").stdout)
        self.assertEqual(self.call("--version").returncode, 0)

    def test_the_examples_of_a_verb_are_its_own(self):
        for verb in ("doctor", "status", "accounting", "explain", "top", "drain", "resume",
                     "version", "completion", "policy", "run", "verify", "config", "trace", "cdi",
                     "profile", "simulate"):
            examples = self.call(verb, "--help").stdout.partition("\nExamples:\n")[2]
            commands = re.findall(r"^  vitamin (\S+)", examples, re.M)
            self.assertTrue(commands, verb)
            related = {"drain": {"drain", "resume"}, "resume": {"drain", "resume"},
                       "profile": {"profile", "run"}}.get(verb, {verb})
            self.assertLessEqual(set(commands), related, verb)

    def test_an_unknown_option_is_one_line_with_a_suggestion(self):
        self.assert_one_line(self.call("run", "--polcy", "random", "--", "true"), 125,
                             "unknown option '--polcy'", "Did you mean '--policy'?", "--help")

    def test_an_unknown_policy_is_one_line_with_a_suggestion(self):
        self.assert_one_line(self.call("run", "--policy", "radnom", "--", "true"), 125,
                             "radnom", "did you mean 'random'?", "fifo")

    def test_a_parameter_that_a_policy_does_not_have_is_refused(self):
        self.assert_one_line(self.call("run", "--policy", "random:evry=4", "--", "true"), 125,
                             "random", "evry")

    def test_an_unknown_word_is_one_line_with_a_suggestion(self):
        self.assert_one_line(self.call("rnu"), 125, "'rnu'", "Did you mean 'run'?")

    def test_a_window_without_unit_is_refused(self):
        self.assert_one_line(self.call("run", "--window", "500", "--", "true"), 125, "'500'",
                             "500us")

    def test_a_seed_that_is_no_number_is_refused(self):
        self.assert_one_line(self.call("run", "--seed", "x", "--", "true"), 125, "--seed")

    def test_an_option_without_its_value_is_refused(self):
        self.assert_one_line(self.call("run", "--policy"), 125, "--policy")

    def test_run_without_a_command_is_refused(self):
        self.assert_one_line(self.call("run"), 125, "no command")
        self.assert_one_line(self.call("run", "--"), 125, "no command")

    def listed_policies(self):
        lines = self.call("policy", "list").stdout.splitlines()
        return [line.split()[0] for line in lines if not line.startswith(" ")]

    def test_every_listed_policy_is_accepted_by_run(self):
        names = self.listed_policies()
        self.assertLessEqual({"fifo", "static", "random"}, set(names))
        for name in names:
            with self.subTest(policy=name):
                self.assertEqual(
                    self.run_under("true", options=["--quiet", "--policy", name]).returncode, 0)

    def test_policy_list_as_json_names_the_same_policies(self):
        names = self.listed_policies()
        answer = json.loads(self.call("policy", "list", "--json").stdout)
        self.assertEqual([policy["name"] for policy in answer["policies"]], names)


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

    def test_a_folder_is_126(self):
        self.assert_one_line(self.run_under(str(self.folder)), 126, "folder")

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
        file = self.folder / "own.toml"
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
        missing = self.python("print('ran')", options=["--config", str(self.folder / "none")])
        self.assertEqual((missing.returncode, missing.stdout), (125, ""))
        self.assertIn("cannot be read", missing.stderr)
        wrong = self.python("print('ran')", options=["--set", "policy.nam=x"])
        self.assertEqual((wrong.returncode, wrong.stdout), (125, ""))
        self.assertIn("did you mean 'policy.name'?", wrong.stderr)

    def test_what_was_not_asked_for_is_not_in_the_environment(self):
        seen = self.python("import os; print([n for n in os.environ if n.startswith('VITAMIN_')])")
        self.assertNotIn("VITAMIN_SEED", seen.stdout)
        self.assertNotIn("VITAMIN_WINDOW_NS", seen.stdout)

    def test_the_users_own_preload_stays_behind_ours(self):
        other = self.folder / "other.so"
        shutil.copy(os.environ["STAND_IN_DRIVER"], other)
        code = "import os; print(os.environ['LD_PRELOAD'])"
        result = self.python(code, LD_PRELOAD=str(other))
        items = result.stdout.strip().split(":")
        self.assertEqual(items[-2:], [str(self.folder / "tree/lib/libvitamin_cuda.so"), str(other)])

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
        vitamin = self.install(self.folder / "a tree: with colon")
        result = self.call("run", "--quiet", "--strict", "--", "true", vitamin=vitamin,
                           STAND_IN_PAGE=BOUND)
        self.assertEqual((result.returncode, result.stderr), (0, ""))


class Signals(CliTest):
    def start(self, code, **more):
        process = subprocess.Popen(
            [self.vitamin, "run", "--quiet", "--", sys.executable, "-uc", code], text=True,
            env=self.environment(STAND_IN_PAGE=BOUND), stdout=subprocess.PIPE, **more)
        self.addCleanup(process.stdout.close)
        self.addCleanup(process.kill)
        return process

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
                                     code], self.environment(STAND_IN_PAGE=BOUND))
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

    STOPS = "import os, signal; os.kill(os.getpid(), signal.SIGSTOP); print('on')"

    def wait_until_stopped(self, process):
        _, status = os.waitpid(process.pid, os.WUNTRACED)
        self.assertTrue(os.WIFSTOPPED(status))

    def command_of(self, process):
        """The process of the command, once there is one."""
        until = time.monotonic() + time_limit(60)
        while time.monotonic() < until:
            for child in pathlib.Path(f"/proc/{process.pid}/task/{process.pid}/children") \
                    .read_text().split():
                with contextlib.suppress(OSError):
                    if os.readlink(f"/proc/{child}/exe") == os.path.realpath(sys.executable):
                        return int(child)
            time.sleep(0.005)
        self.fail("no command was started")

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

    def test_a_stopped_command_that_is_killed_ends_vitamin(self):
        process = self.start(self.STOPS)
        child = self.command_of(process)
        self.wait_until_stopped(process)
        os.kill(child, signal.SIGKILL)
        self.assertEqual(process.wait(time_limit(60)), -signal.SIGKILL)

    def test_the_exit_code_arrives_however_stops_and_continues_are_mixed(self):
        chance = random.Random(18)
        for turn in range(20):
            process = self.start("import time; print('on'); time.sleep(0.1); raise SystemExit(7)",
                                 process_group=0)
            self.assertEqual(process.stdout.readline(), "on\n")
            child = self.command_of(process)
            both, group = [process.pid, child], [-process.pid]
            for _ in range(chance.randrange(1, 4)):
                # The last SIGCONT of each that was stopped comes behind its last SIGSTOP.
                first, last = chance.choice([(both, both), ([child], [child]), (group, group),
                                             ([child], [process.pid]), (both, group),
                                             (group, both)])
                for number, whom in ((signal.SIGSTOP, first), (signal.SIGCONT, last)):
                    for each in chance.sample(whom, len(whom)):
                        with contextlib.suppress(ProcessLookupError):
                            os.kill(each, number)
                        time.sleep(chance.choice((0, 0, 0.001, 0.02)))
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
        process = self.start(code, process_group=0)
        self.assertEqual(process.stdout.readline(), "ready\n")
        os.killpg(process.pid, signal.SIGTSTP)
        self.assertEqual(process.wait(time_limit(60)), 5)

    def test_a_stop_asked_of_vitamin_reaches_the_command(self):
        process = self.start("print('ready', flush=True); input()", process_group=0,
                             stdin=subprocess.PIPE)
        self.addCleanup(process.stdin.close)
        self.assertEqual(process.stdout.readline(), "ready\n")
        child = self.command_of(process)
        process.send_signal(signal.SIGTSTP)
        self.wait_until_stopped(process)
        state = pathlib.Path(f"/proc/{child}/stat").read_text().rpartition(")")[2].split()[0]
        self.assertEqual(state, "T")
        os.killpg(process.pid, signal.SIGCONT)
        process.stdin.write("\n")
        process.stdin.flush()
        self.assertEqual(process.wait(time_limit(60)), 0)

    def test_output_that_nobody_reads_changes_no_exit_code(self):
        ours, theirs = os.pipe()
        os.close(ours)
        self.addCleanup(os.close, theirs)
        result = subprocess.run(
            [self.vitamin, "run", "--json", "--", sys.executable, "-c", "raise SystemExit(8)"],
            env=self.environment(STAND_IN_PAGE=BOUND), stdout=subprocess.PIPE, stderr=theirs,
            timeout=time_limit(100))
        self.assertEqual(result.returncode, 8)

    def test_a_report_beyond_the_limit_on_files_changes_no_exit_code(self):
        report = self.folder / "report"
        result = subprocess.run(
            [self.vitamin, "run", "--quiet", "--report", str(report), "--", sys.executable, "-c",
             "raise SystemExit(8)"], env=self.environment(STAND_IN_PAGE=BOUND),
            capture_output=True, text=True, timeout=time_limit(100),
            preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (10, 10)))
        self.assertEqual(result.returncode, 8)
        self.assertIn("VIT-108", result.stderr)

    def test_a_shell_with_job_control_stops_and_continues_a_run(self):
        shell = subprocess.Popen(["bash", "--norc", "-i"], stdin=subprocess.PIPE, text=True,
                                 stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                                 env=self.environment(STAND_IN_PAGE=BOUND), start_new_session=True)
        self.addCleanup(shell.kill)
        code = "import os, signal; os.kill(os.getpid(), signal.SIGSTOP); raise SystemExit(6)"
        output, _ = shell.communicate(
            f"set -m\n{self.vitamin} run --quiet -- {sys.executable} -c '{code}'\n"
            "echo stopped $?\nfg >/dev/null\necho ended $?\nexit\n", timeout=time_limit(60))
        self.assertIn(f"stopped {128 + signal.SIGSTOP}", output)
        self.assertIn("ended 6", output)


class RunFolders(CliTest):
    """$XDG_RUNTIME_DIR of these tests is self.folder / "run"."""

    def folders(self):
        return sorted((self.folder / "run").glob("vitamin-run-*"))

    def started(self, code):
        process = subprocess.Popen(
            [self.vitamin, "run", "--quiet", "--", sys.executable, "-uc", code], text=True,
            env=self.environment(STAND_IN_PAGE=BOUND), stdout=subprocess.PIPE,
            stdin=subprocess.PIPE)
        self.addCleanup(process.stdout.close)
        self.addCleanup(process.stdin.close)
        self.addCleanup(process.kill)
        return process

    def test_a_run_that_is_told_to_end_early_leaves_no_directory(self):
        # How long it takes until the command runs, when nobody interrupts it.
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
            self.assertEqual(self.folders(), [])

    def test_the_directory_of_a_killed_run_is_removed_by_a_later_one(self):
        process = self.started("print(1); input()")
        process.stdout.readline()
        process.kill()
        process.wait()
        self.assertEqual(len(self.folders()), 1)
        process.stdin.close()  # ends the command, too
        left, = self.folders()
        until = time.monotonic() + time_limit(60)
        while left.exists() and time.monotonic() < until:
            self.assertEqual(self.python("pass", ["--quiet"], STAND_IN_PAGE=BOUND).returncode, 0)
        self.assertEqual(self.folders(), [])

    def test_the_folder_of_a_run_is_not_removed_by_another(self):
        process = self.started("print(1); input()")
        process.stdout.readline()
        self.assertEqual(self.python("pass").returncode, 0)
        self.assertEqual(len(self.folders()), 1)
        process.stdin.write("\n")
        process.stdin.flush()
        self.assertEqual(process.wait(time_limit(60)), 0)
        self.assertEqual(self.folders(), [])

    def test_a_folder_that_a_living_program_still_uses_is_not_removed(self):
        process = self.started("print(1); input()")
        process.stdout.readline()
        process.kill()
        process.wait()
        for _ in range(3):
            self.assertEqual(self.python("pass").returncode, 0)
            self.assertEqual(len(self.folders()), 1)

    def test_what_only_has_the_name_of_a_run_folder_is_kept(self):
        other = self.folder / "kept"
        other.mkdir()
        (other / "file").touch()
        (self.folder / "run/vitamin-run-file00").touch()
        (self.folder / "run/vitamin-run-link00").symlink_to(other)
        self.assertEqual(self.python("pass").returncode, 0)
        self.assertEqual(len(self.folders()), 2)
        self.assertTrue((other / "file").exists())

    @unittest.skipUnless(os.geteuid() == 0, "only root can make a folder of another user")
    def test_a_folder_of_another_user_is_kept(self):
        folder = self.folder / "run/vitamin-run-other0"
        folder.mkdir()
        os.chown(folder, 65534, 65534)
        self.assertEqual(self.python("pass").returncode, 0)
        self.assertEqual(self.folders(), [folder])

    def test_runs_at_once_do_not_take_each_others_folders(self):
        code = "import os; print(len(os.listdir(os.environ['VITAMIN_RUN_DIR'])))"
        processes = [self.started(code) for _ in range(12)]
        for process in processes:
            self.assertEqual(process.stdout.readline(), "1\n")
            self.assertEqual(process.wait(time_limit(60)), 0)
        self.assertEqual(self.folders(), [])


class NoRoom(CliTest):
    """A program's statistics find no room: it ends as it would, and a line says so."""

    NO_ROOM = "could not be counted"

    def full_folder(self):
        """A file system in memory with no byte left, but for names."""
        folder = self.folder / "full"
        folder.mkdir()
        made = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "none", str(folder)],
                              capture_output=True, text=True)
        if made.returncode != 0:
            self.skipTest(f"no file system can be mounted here: {made.stderr.strip()}")
        self.addCleanup(subprocess.run, ["umount", "--lazy", str(folder)])
        with open(folder / "fill", "wb", buffering=0) as file, contextlib.suppress(OSError):
            while file.write(bytes(4096)):
                pass
        return folder

    def test_a_full_runtime_directory_is_passed_over(self):
        result = self.python("print('out'); raise SystemExit(4)", ["--quiet"],
                             STAND_IN_PAGE=BOUND, XDG_RUNTIME_DIR=str(self.full_folder()))
        self.assertEqual((result.returncode, result.stdout, result.stderr), (4, "out\n", ""))

    def test_a_folder_that_fills_up_while_the_program_starts_ends_nothing(self):
        folder = self.full_folder()
        (folder / "fill").unlink()
        # Each process of the run makes a page; the first leaves no room for the second's.
        code = ("import contextlib, os, subprocess, sys\n"
                f"with open('{folder}/fill', 'wb', buffering=0) as f, "
                "contextlib.suppress(OSError):\n"
                "    while f.write(bytes(4096)): pass\n"
                "raise SystemExit(subprocess.run(['sh', '-c', 'exit 9']).returncode)\n")
        result = self.python(code, ["--quiet"], STAND_IN_PAGE=BOUND, XDG_RUNTIME_DIR=str(folder))
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
                    stdin=subprocess.DEVNULL, env=self.environment(STAND_IN_PAGE=BOUND))
                self.assertEqual(result.stdout, "9\n")
                self.assert_one_line(result, 0, self.NO_ROOM)

    def test_a_page_that_is_cut_while_it_is_read_ends_nothing(self):
        code = ("import os, glob\n"
                "path = glob.glob(os.environ['VITAMIN_RUN_DIR'] + '/*.stats')[0]\n"
                f"os.truncate(path, SIZE)\n")
        for size in (0, 10, 5000, 100_000):
            with self.subTest(size=size):
                result = self.python(code.replace("SIZE", str(size)), ["--quiet"],
                                     STAND_IN_PAGE=BOUND)
                self.assertEqual(result.returncode, 0, result.stderr)
                self.assertEqual(len(result.stderr.splitlines()), 1, result.stderr)


class Library(CliTest):
    def refused(self, *parts):
        mark = self.folder / "mark"
        result = self.run_under("touch", str(mark))
        self.assert_one_line(result, 125, *parts)
        self.assertFalse(mark.exists(), "the command was started")

    def test_without_the_library_nothing_is_started(self):
        (self.folder / "tree/lib/libvitamin_cuda.so").unlink()
        self.refused("libvitamin_cuda.so", "missing")

    def test_with_a_library_that_is_none_nothing_is_started(self):
        (self.folder / "tree/lib/libvitamin_cuda.so").write_text("not an object")
        self.refused("libvitamin_cuda.so", "loader does not accept")

    def test_with_a_cut_library_nothing_is_started(self):
        path = self.folder / "tree/lib/libvitamin_cuda.so"
        path.write_bytes(path.read_bytes()[:3000])
        self.refused("loader does not accept")


class Coverage(CliTest):
    def test_full_coverage_prints_a_table_and_succeeds_under_strict(self):
        result = self.run_under("true", options=["--strict"], STAND_IN_PAGE=BOUND)
        self.assertEqual(result.returncode, 0)
        self.assertEqual(result.stdout, "")
        self.assertIn("10 of 10 launches bound (100 %)", result.stderr)
        self.assertRegex(result.stderr, r"on the whole device +2 +20\.0 % +cluster too large 2")
        self.assertRegex(result.stderr, r"moved to another entry +7 ")
        self.assertRegex(result.stderr, r"libstand_in\.so +10 +10")
        self.assertRegex(result.stderr, r"132 +2 +█+ +the whole device")
        self.assertIn("a warning of the stand-in", result.stderr)

    def test_without_utf8_the_table_is_ascii(self):
        result = self.run_under("true", STAND_IN_PAGE=BOUND, LC_ALL="C")
        self.assertRegex(result.stderr, r"132 +2 +#+ +the whole device")

    def test_quiet_and_complete_prints_nothing(self):
        result = self.run_under("true", options=["--quiet"], STAND_IN_PAGE=BOUND)
        self.assertEqual((result.returncode, result.stdout, result.stderr), (0, "", ""))

    def test_a_launch_that_was_not_bound_fails_strict_only(self):
        page = "stage=3 seen=10 bound=9 bridged=1 narrow=9"
        result = self.run_under("true", options=["--quiet"], STAND_IN_PAGE=page)
        self.assert_one_line(result, 0, "1 of 10 launches were not bound")
        result = self.run_under("true", options=["--quiet", "--strict"], STAND_IN_PAGE=page)
        self.assert_one_line(result, 123, "1 of 10 launches were not bound")

    def test_one_launch_short_of_all_is_not_shown_as_all(self):
        page = "stage=3 seen=100000 bound=99999 passed=1"
        self.assertIn("(99.9 %)", self.run_under("true", STAND_IN_PAGE=page).stderr)

    def test_launches_before_any_device_was_managed_count_as_passed(self):
        result = self.run_under("true", options=["--quiet", "--strict"],
                                STAND_IN_PAGE="stage=3 seen=9 bound=9 unmanaged=1")
        self.assert_one_line(result, 123, "1 of 10 launches were not bound")

    def test_the_commands_own_failure_wins_over_strict(self):
        result = self.run_under("false", options=["--strict", "--quiet"])
        self.assertEqual(result.returncode, 1)

    def test_the_page_of_a_killed_process_counts(self):
        result = self.python("import os; os.kill(os.getpid(), 9)", ["--json"], STAND_IN_PAGE=BOUND)
        self.assertEqual(result.returncode, -9)
        self.assertEqual(json.loads(result.stderr)["coverage"]["bound"], 10)

    def test_every_process_of_the_tree_is_in_the_report(self):
        script = self.script("#!/bin/sh\ntrue\ncat /dev/null\nexec cat /dev/null\n")
        result = self.run_under(str(script), options=["--json"], STAND_IN_PAGE=BOUND,
                                STAND_IN_PROGRAM="cat")
        report = json.loads(result.stderr)
        names = [process["program"] for process in report["processes"]]
        self.assertEqual(names.count("cat"), 2)
        self.assertEqual(report["coverage"], {"launches": 20, "bound": 20, "complete": True,
                                              "passed_unmanaged": 0, "unreadable_pages": 0})

    def test_a_report_file_says_the_same_as_the_json_output(self):
        path = self.folder / "report.json"
        result = self.run_under("true", options=["--json", "--report", str(path), "--seed", "5",
                                                 "--policy", "random"], STAND_IN_PAGE=BOUND)
        report = json.loads(path.read_text())
        self.assertEqual(report, json.loads(result.stderr))
        self.assertEqual(report["schema"], 1)
        self.assertEqual(report["command"], ["true"])
        self.assertEqual((report["policy"], report["seed"], report["window"]), ("random", 5, None))
        self.assertEqual(report["totals"]["widths"], [{"processors": 8, "launches": 8},
                                                      {"processors": 132, "launches": 2}])
        self.assertEqual(report["totals"]["whole_device"], {"cluster": 2})
        self.assertIsNone(report["problem"])

    def test_a_report_to_stdout_is_json(self):
        result = self.run_under("true", options=["--report", "-", "--quiet"], STAND_IN_PAGE=BOUND)
        self.assertTrue(json.loads(result.stdout)["coverage"]["complete"])

    def test_a_report_that_cannot_be_written_stops_before_the_command(self):
        mark = self.folder / "mark"
        result = self.run_under("touch", str(mark), options=["--report", "/no/such/folder/x"])
        self.assert_one_line(result, 125, "/no/such/folder/x")
        self.assertFalse(mark.exists())

    def test_a_page_of_another_version_is_said(self):
        code = ("import os, struct, glob\n"
                "path = glob.glob(os.environ['VITAMIN_RUN_DIR'] + '/*.stats')[0]\n"
                "with open(path, 'r+b') as page: page.seek(8); page.write(struct.pack('I', 99))\n")
        result = self.python(code, STAND_IN_PAGE=BOUND)
        self.assert_one_line(result, 0, "another version")

    def test_the_run_folder_is_private_and_gone_at_the_end(self):
        code = "import os; d = os.environ['VITAMIN_RUN_DIR']; print(d, oct(os.stat(d).st_mode))"
        path, mode = self.python(code).stdout.split()
        self.assertEqual(stat.S_IMODE(int(mode, 8)), 0o700)
        self.assertFalse(os.path.exists(path))
        self.assertEqual(os.listdir(self.folder / "run"), [])


class NoLaunches(CliTest):
    def environment(self, **changes):
        driver = self.folder / "driver"
        if not driver.exists():
            driver.mkdir()
            shutil.copy(os.environ["STAND_IN_DRIVER"], driver / "libcuda.so.1")
        return super().environment(**({"LD_LIBRARY_PATH": str(driver)} | changes))

    def silent(self, code, *parts, command=("true",), **changes):
        result = self.run_under(*command, **changes)
        self.assert_one_line(result, code, "no launch was seen", *parts)
        strict = self.run_under(*command, options=["--strict"], **changes)
        self.assertEqual(strict.returncode, 123 if code == 0 else code)

    def test_a_program_that_never_uses_cuda_is_said(self):
        self.silent(0, "none of the 1 process of this run used CUDA")

    def test_cuda_started_without_a_launch_is_said(self):
        self.silent(0, "no kernel was launched", STAND_IN_PAGE="stage=2")

    def test_a_part_of_ours_that_failed_is_said(self):
        self.silent(0, "the pool could not be made", "true (",
                    STAND_IN_PAGE="stage=4 message=the pool could not be made: out of memory")

    def test_a_missing_driver_is_said(self):
        self.silent(0, "no NVIDIA driver was found", "install", LD_LIBRARY_PATH=None)

    def test_too_old_a_driver_is_said(self):
        self.silent(0, "supports CUDA 12.2", "12.4", STAND_IN_VERSION="12020")

    def test_no_device_is_said(self):
        self.silent(0, "sees no device", STAND_IN_INIT="100")

    def test_an_empty_list_of_visible_devices_is_said(self):
        self.silent(0, "CUDA_VISIBLE_DEVICES is ''", STAND_IN_INIT="100", CUDA_VISIBLE_DEVICES="")

    def test_a_driver_that_refuses_to_start_is_said(self):
        self.silent(0, "CUDA_ERROR_OF_THE_STAND_IN", "803", STAND_IN_INIT="803")

    def test_a_driver_that_crashes_is_said(self):
        self.silent(0, "crashed", STAND_IN_CRASH="1")

    def test_a_statically_linked_program_is_said(self):
        # Just a program header and exit(0): mov edi,0; mov eax,60; syscall
        code = bytes.fromhex("bf00000000b83c0000000f05")
        base, head = 0x400000, 64 + 56
        elf = (b"\x7fELF\x02\x01\x01" + bytes(9) +
               struct.pack("<HHIQQQIHHHHHH", 2, 62, 1, base + head, 64, 0, 0, 64, 56, 1, 64, 0, 0) +
               struct.pack("<IIQQQQQQ", 1, 5, 0, base, base, head + len(code), head + len(code),
                           0x1000) + code)
        program = self.folder / "static"
        program.write_bytes(elf)
        program.chmod(0o755)
        self.silent(0, "statically linked", command=(str(program),))

    @unittest.skipUnless(os.geteuid() == 0, "only root can make a program of another user")
    def test_a_program_that_changes_its_user_is_said(self):
        program = self.folder / "setuid"
        shutil.copy("/bin/true", program)
        os.chown(program, 65534, 65534)
        program.chmod(0o4755)
        self.silent(0, "set-user-ID", command=(str(program),))

    def test_a_command_that_clears_the_preload_is_said(self):
        script = self.script("#!/usr/bin/env -S -i /bin/true\n")
        result = self.run_under(str(script))
        self.assertEqual(result.returncode, 0)
        self.assertIn("no launch was seen", result.stderr)


class Doctor(CliTest):
    def test_a_machine_without_a_driver_is_not_ready(self):
        result = self.call("doctor")
        self.assertEqual(result.returncode, 1)
        self.assertRegex(result.stdout, r"(?m)^problem +driver +no NVIDIA driver")
        self.assertIn("Not ready", result.stdout)

    def test_a_machine_with_driver_and_device_is_ready(self):
        driver = self.folder / "driver"
        driver.mkdir()
        shutil.copy(os.environ["STAND_IN_DRIVER"], driver / "libcuda.so.1")
        result = self.call("doctor", LD_LIBRARY_PATH=str(driver))
        self.assertEqual(result.returncode, 0, result.stdout)
        self.assertRegex(result.stdout, r"(?m)^ok +device +stand-in 0, 16 processors, .* 75\.76")

    def bundle(self, **changes):
        path = self.folder / "bundle.json"
        result = self.call("doctor", "--bundle", str(path), **changes)
        self.assertIn(result.returncode, (0, 1), result.stderr)
        self.assertIn("look into it before you give it away", result.stderr)
        return json.loads(path.read_text()), path.read_text()

    def test_a_bundle_has_what_a_report_of_a_bug_needs(self):
        bundle, _ = self.bundle(VITAMIN_POLICY="fifo")
        self.assertEqual(bundle["doctor"]["healthy"], False)
        self.assertRegex(bundle["version"], r"^\d+\.")
        self.assertIn("Linux", bundle["kernel"])
        self.assertEqual(bundle["environment"]["VITAMIN_POLICY"], "fifo")
        self.assertIn("vitamind", bundle)

    def test_a_bundle_has_no_secret(self):
        secrets = {
            # No variable of ours.
            "AWS_SECRET_ACCESS_KEY": "wJalrXUtnFEMIK7MDENGbPxRfiCYEXAMPLEKEY",
            "CUDA_TOKEN": "short7",
            "VITAMIN_NOTE": "sk9fJ2kLm3nOp4qRs5tUv6wX",
            "HIP_REPOSITORY": "https://someone:hunter2@example.org/x",
        }
        log = self.folder / "run/vitamin"
        log.mkdir()
        (log / "vitamind.sock.log").write_text(
            "info password=letmein9 beside it\nwarning Authorization: Bearer abc.def\n"
            '{"text": "api_key: \'k-1\'"}\nworth keeping GPU-12345678-1234-1234-1234-123456789abc\n'
            + "x1" * 3000 + "\nplain end\n")
        bundle, text = self.bundle(**secrets)
        for secret in [*secrets.values(), "hunter2", "letmein9", "abc.def", "k-1", "x1x1x1"]:
            self.assertNotIn(secret, text)
        self.assertNotIn("AWS_SECRET_ACCESS_KEY", text)
        self.assertEqual(bundle["environment"]["CUDA_TOKEN"], "[left out]")
        self.assertIn("worth keeping GPU-12345678-1234-1234-1234-123456789abc", bundle["log"])
        self.assertIn("plain end", bundle["log"])
        self.assertIn("example.org/x", bundle["environment"]["HIP_REPOSITORY"])

    def test_a_bundle_names_no_home(self):
        _, text = self.bundle(HOME="/srv/someone", VITAMIN_X="/srv/someone/file")
        self.assertNotIn("/srv/someone", text)
        self.assertIn("~/file", text)

    def test_a_bundle_that_cannot_be_written_is_one_line(self):
        self.assert_one_line(self.call("doctor", "--bundle", "/no/such/folder/x"), 125,
                             "/no/such/folder/x", "VIT-108")

    def test_json_says_the_same(self):
        result = self.call("doctor", "--json")
        answer = json.loads(result.stdout)
        self.assertEqual(result.returncode, 1)
        self.assertFalse(answer["healthy"])
        verdicts = {check["check"]: check["verdict"] for check in answer["checks"]}
        self.assertEqual(verdicts["preload"], "ok")
        self.assertEqual(verdicts["driver"], "problem")

    def test_a_library_that_does_not_load_is_a_problem(self):
        (self.folder / "tree/lib/libvitamin_cuda.so").write_text("not an object")
        self.assertRegex(self.call("doctor").stdout, r"(?m)^problem +preload ")

    def test_it_says_whether_mps_serves_several_users(self):
        for option, words in (("-multiuser-server", "of all users"),
                              ("-d", "of one user at a time .*-multiuser-server")):
            control = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(3600)",
                                        option])
            self.addCleanup(control.wait)
            self.addCleanup(control.kill)
            (self.folder / "control").touch()
            (self.folder / "nvidia-cuda-mps-control.pid").write_text(f"{control.pid}\n")
            result = self.call("doctor", CUDA_MPS_PIPE_DIRECTORY=str(self.folder))
            self.assertRegex(result.stdout, rf"(?m)^ok +mps +.*{words}")

    def test_mps_own_limit_of_memory_is_no_problem(self):
        limit = {"CUDA_MPS_PINNED_DEVICE_MEM_LIMIT": "0=4G"}
        result = self.call("doctor", **limit)
        self.assertRegex(result.stdout, r"(?m)^note +mps +CUDA_MPS_PINNED_DEVICE_MEM_LIMIT=0=4G: ")
        self.assertNotRegex(result.stdout, r"(?m)^problem +mps ")
        self.assertNotIn("PINNED", self.run_under("true", **limit).stderr)

    def test_an_mps_percentage_is_a_problem(self):
        result = self.call("doctor", CUDA_MPS_ACTIVE_THREAD_PERCENTAGE="50")
        self.assertRegex(result.stdout, r"(?m)^problem +mps +CUDA_MPS_ACTIVE_THREAD_PERCENTAGE")


if __name__ == "__main__":
    unittest.main()
