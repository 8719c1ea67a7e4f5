# SPDX-License-Identifier: Apache-2.0
"""vitamin run with the real preloaded library over the software driver, as a user runs it.

Needs in the environment: PREFIX (build directory), FAULT_PROGRAM and FAULT_KERNELS.
"""
import json
import os
import pathlib
import re
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import unittest

from time_limit import time_limit

PREFIX = pathlib.Path(os.environ["PREFIX"])
HASH = re.compile(r"hash ([0-9a-f]{16}), (\d+) launches")
ILLEGAL_ADDRESS = 700


class EndToEnd(unittest.TestCase):
    def setUp(self):
        directory = tempfile.TemporaryDirectory(prefix="vitamin-e2e-")
        self.addCleanup(directory.cleanup)
        self.directory = pathlib.Path(directory.name)

    def environment(self, **changes):
        result = {name: value for name, value in os.environ.items()
                  if not name.startswith(("VITAMIN", "LD_", "CUDA_"))}
        result |= {"LD_LIBRARY_PATH": str(PREFIX / "lib/soft"), "LC_ALL": "C.UTF-8",
                   "ASAN_OPTIONS": "detect_leaks=0",
                   "VITAMIN_LOCK_DIRECTORY": str(self.directory)}  # no other test's processes
        result |= changes
        return {name: value for name, value in result.items() if value is not None}

    def native(self, *command, **changes):
        return subprocess.run(command, capture_output=True, text=True, timeout=time_limit(200),
                              stdin=subprocess.DEVNULL, env=self.environment(**changes))

    def run_under(self, *command, options=("--quiet",), **changes):
        self.report_path = self.directory / "report.json"
        return self.native(PREFIX / "bin/vitamin", "run", *options, "--report", self.report_path,
                           "--", *command, **changes)

    def report(self):
        return json.loads(self.report_path.read_text())

    def fault(self, runner, count, name):
        return runner(os.environ["FAULT_PROGRAM"], os.environ["FAULT_KERNELS"], str(count), name)

    def test_every_policy_keeps_the_bits_and_binds_every_launch(self):
        for program in ("demo-train", "demo-serve"):
            alone = self.native(PREFIX / "bin" / program, "12")
            self.assertEqual(alone.returncode, 0, alone.stderr)
            wanted = HASH.search(alone.stdout)
            for policy in ("fifo", "static", "random"):
                for window in (None, "0"):
                    with self.subTest(program=program, policy=policy, window=window):
                        options = ["--quiet", "--strict", "--policy", policy]
                        options += ["--window", window] if window else []
                        result = self.run_under(PREFIX / "bin" / program, "12", options=options)
                        self.assertEqual((result.returncode, result.stderr), (0, ""))
                        found = HASH.search(result.stdout)
                        self.assertEqual(found[1], wanted[1])
                        self.assertEqual(self.report()["coverage"]["bound"], int(found[2]))

    def test_statistics_without_room_end_nothing_and_are_said_once(self):
        program = [PREFIX / "bin/demo-train", "12"]
        alone = self.native(*program)
        # Code of a sanitized build is too large for the first, when the software driver copies it.
        for limit in (200_000,) if os.environ["FIRST"] else (100_000, 200_000):
            with self.subTest(limit=limit):
                result = subprocess.run(
                    program, capture_output=True, text=True, timeout=time_limit(100),
                    stdin=subprocess.DEVNULL,
                    env=self.environment(LD_PRELOAD=f"{os.environ['FIRST']} "
                                                    f"{PREFIX / 'lib/libvitamin_cuda.so'}",
                                         VITAMIN_RUN_DIR=str(self.directory)),
                    preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit)))
                self.assertEqual(result.returncode, 0, result.stderr)
                self.assertEqual(HASH.search(result.stdout)[1], HASH.search(alone.stdout)[1])
                self.assertEqual(result.stderr.count("[VIT-512]"), 1, result.stderr)

    def test_random_placement_moves_launches_and_the_seed_repeats_it(self):
        # Moves are made just in time, and what a call flushes before its time comes does not move:
        # without this setting the speed of the device decides what is drawn for.
        at_once = {"VITAMIN_AHEAD_OF_MOVE": "1000"}
        widths = []
        for seed in ("1", "1", "2"):
            result = self.run_under(PREFIX / "bin/demo-train", "12",
                                    options=["--policy", "random", "--seed", seed], **at_once)
            self.assertEqual(result.returncode, 0, result.stderr)
            widths.append(self.report()["totals"]["widths"])
            launches = self.report()["totals"]["launches"]
            self.assertGreater(launches["moved"], 50)
            self.assertEqual(launches["deferred"], 0)
        self.assertEqual(widths[0], widths[1])
        self.assertNotEqual(widths[0], widths[2])

    def test_a_faulting_kernel_is_reported_by_the_programs_own_calls(self):
        alone = self.fault(self.native, 3, "ill")
        result = self.fault(self.run_under, 3, "ill")
        self.assertEqual(alone.returncode, 42, alone.stderr)
        self.assertIn(f"synchronize {ILLEGAL_ADDRESS}", alone.stdout)
        self.assertEqual((result.returncode, result.stdout), (alone.returncode, alone.stdout))

    def test_after_a_fault_another_program_on_the_device_runs(self):
        ledger = {"VITAMIN_SOFT_LEDGER": str(self.directory / "ledger")}
        program = (os.environ["FAULT_PROGRAM"], os.environ["FAULT_KERNELS"], "3")
        self.assertEqual(self.run_under(*program, "ill", **ledger).returncode, 42)
        self.assertEqual(self.run_under(*program, "well", **ledger).returncode, 0)
        self.assertTrue(self.report()["coverage"]["complete"])

    def test_a_program_without_a_fault_ends_well(self):
        result = self.fault(self.run_under, 3, "well")
        self.assertEqual((result.returncode, result.stderr), (0, ""))
        self.assertEqual(self.report()["coverage"]["bound"], 5)

    def test_a_program_that_launches_graphs_only_is_seen(self):
        program = (os.environ["GRAPHS"], "one_graph_in_many_streams")
        alone = self.native(*program)
        self.assertEqual(alone.returncode, 0, alone.stderr)
        for policy in ("fifo", "static"):
            result = self.run_under(*program, options=["--strict", "--policy", policy])
            self.assertEqual((result.returncode, result.stdout), (0, alone.stdout), result.stderr)
            self.assertIn("of 200 graph launches bound", result.stderr)
            self.assertNotIn("VIT-", result.stderr)
            self.assertEqual(self.report()["coverage"]["launches"], 0)
            self.assertIsNone(self.report()["problem"])

    def test_programs_that_a_shell_starts_are_all_counted(self):
        train = PREFIX / "bin/demo-train"
        result = self.run_under("sh", "-c", f"{train} 3 && true && exec {train} 3",
                                options=["--quiet", "--strict"])
        self.assertEqual(result.returncode, 0, result.stderr)
        users = [p["program"] for p in self.report()["processes"] if p["devices"]]
        self.assertEqual(users, ["demo-train", "demo-train"])

    def test_a_killed_program_leaves_what_it_counted(self):
        code = ("import subprocess, sys, time\n"
                "p = subprocess.Popen([sys.argv[1], '1000000'])\n"
                "time.sleep(float(sys.argv[2]))\n"
                "p.kill()\n"
                "raise SystemExit(-p.wait())\n")
        # This policy defers: what is counted of a launch at two times must agree at any time.
        for seconds in (1, 4, 16, 64):  # until it had deferred something before it was killed
            result = self.run_under(sys.executable, "-c", code, PREFIX / "bin/demo-train",
                                    str(seconds), options=["--quiet", "--policy", "random"])
            self.assertEqual(result.returncode, signal.SIGKILL, result.stderr)
            launches = self.report()["totals"]["launches"]
            self.assertLessEqual(launches["deferred"], launches["seen"])
            if self.report()["coverage"]["bound"] > 0 and launches["deferred"] > 0:
                return
        self.fail("nothing of it was counted, or nothing was deferred")

    def test_a_terminated_run_ends_at_once_and_by_the_signal(self):
        process = subprocess.Popen([PREFIX / "bin/vitamin", "run", "--quiet", "--",
                                    PREFIX / "bin/demo-train", "1000000"],
                                   env=self.environment(), stdout=subprocess.DEVNULL,
                                   stderr=subprocess.DEVNULL)
        self.addCleanup(process.kill)
        time.sleep(2)
        process.terminate()
        self.assertEqual(process.wait(time_limit(60)), -signal.SIGTERM)

    def test_helpers_that_inherit_the_preload_work_as_before(self):
        script = "echo $(ls / | wc -l); python3 -c 'print(1)'; find /etc/hostname"
        alone = self.native("sh", "-c", script)
        result = self.run_under("sh", "-c", script)
        self.assertEqual((result.returncode, result.stdout), (0, alone.stdout))
        self.assertIn("used CUDA", result.stderr)

    def test_without_a_visible_device_the_program_fails_as_natively_and_the_reason_is_said(self):
        alone = self.native(PREFIX / "bin/demo-train", "3", CUDA_VISIBLE_DEVICES="")
        result = self.run_under(PREFIX / "bin/demo-train", "3", CUDA_VISIBLE_DEVICES="")
        self.assertEqual(alone.returncode, 1)
        self.assertEqual(result.returncode, 1)
        self.assertTrue(result.stderr.startswith(alone.stderr), result.stderr)
        self.assertIn("CUDA_VISIBLE_DEVICES is ''", result.stderr)

    def test_without_a_driver_the_program_fails_as_natively_and_the_reason_is_said(self):
        alone = self.native(PREFIX / "bin/demo-train", "3", LD_LIBRARY_PATH=None)
        result = self.run_under(PREFIX / "bin/demo-train", "3", LD_LIBRARY_PATH=None)
        self.assertEqual((alone.returncode, result.returncode), (1, 1))
        self.assertTrue(result.stderr.startswith(alone.stderr), result.stderr)
        self.assertIn("no NVIDIA driver was found", result.stderr)

    def profile(self, program, *options, command="profile"):
        words = (PREFIX / "bin/vitamin", command, *options,
                 "--profiles", self.directory / "profiles",
                 "--", PREFIX / "bin" / program, "12")
        return self.native(*words)

    def shown(self):
        file = next((self.directory / "profiles").glob("*.profile"))
        done = self.native(PREFIX / "bin/vitamin", "profile", "show", "--json", file)
        self.assertEqual(done.returncode, 0, done.stderr)
        return file, json.loads(done.stdout)

    def test_profile_learns_kernels_at_many_widths_and_keeps_the_bits(self):
        alone = HASH.search(self.native(PREFIX / "bin/demo-train", "12").stdout)
        done = self.profile("demo-train")
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertEqual(HASH.search(done.stdout).groups(), alone.groups())
        self.assertRegex(done.stderr, r"times of [\d,]+ launches")
        file, first = self.shown()
        self.assertGreater(len(first["kernels"]), 1)
        widths = {point["processors"] for kernel in first["kernels"]
                  for point in kernel["curve"] if point["measured"]}
        self.assertGreater(len(widths), 3)
        for kernel in first["kernels"]:
            for point in kernel["curve"]:
                self.assertEqual(point["samples"] > 0, point["measured"], point)
        # A later run adds to it, and a policy that looks at times learns by itself.
        before = file.read_text()
        self.assertEqual(self.profile("demo-serve").returncode, 0)
        self.assertGreater(len(self.shown()[1]["kernels"]), len(first["kernels"]))
        self.assertNotEqual(file.read_text(), before)

    def test_a_policy_that_looks_at_times_gets_them_and_fifo_measures_nothing(self):
        state = {"XDG_STATE_HOME": str(self.directory)}
        looks = ("--policy", "throughput:model=algorithm1")
        done = self.run_under(PREFIX / "bin/demo-train", "12", options=looks, **state)
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertEqual(len(self.report()["profiles"]), 1, done.stderr)
        self.assertTrue((self.directory / "vitamin/profiles").is_dir())
        done = self.run_under(PREFIX / "bin/demo-train", "12", **state)
        self.assertEqual(self.report()["profiles"], [])
        self.run_under(PREFIX / "bin/demo-train", "12", options=(*looks, "--profiles", "none"),
                       **state)
        self.assertEqual(self.report()["profiles"], [])

    def test_what_a_test_runs_leaves_the_state_directory_of_the_user_untouched(self):
        home, state = self.directory / "home", pathlib.Path(os.environ["XDG_STATE_HOME"])
        home.mkdir()
        looks = ("--policy", "throughput:model=algorithm1")
        for variable, used, unused in ((str(state), state, home), (None, home, state)):
            with self.subTest(XDG_STATE_HOME=variable):
                self.assertEqual(list(unused.iterdir()), [])
                done = self.run_under(PREFIX / "bin/demo-train", "12", options=looks,
                                      HOME=str(home), XDG_STATE_HOME=variable)
                self.assertEqual(done.returncode, 0, done.stderr)
                self.assertEqual(list(unused.iterdir()), [])
                self.assertEqual(len(list(used.rglob("vitamin/profiles/*.profile"))), 1)
                shutil.rmtree(state / "vitamin", ignore_errors=True)

    def test_a_profile_that_cannot_be_used_is_said_in_one_line_and_left_as_it_is(self):
        self.assertEqual(self.profile("demo-train").returncode, 0)
        file, _ = self.shown()
        good = file.read_text()
        model = re.search("^model (.*)$", good, re.M)[1]
        for text, word in ((good[:200], "cut short"),
                           (good.replace("vitamin-profile 2", "vitamin-profile 9"), "newer"),
                           (good.replace(model, "Another GPU"), "checksum")):
            with self.subTest(word):
                file.write_text(text)
                done = self.profile("demo-train", "--policy", "throughput", command="run")
                self.assertEqual(done.returncode, 0, done.stderr)
                lines = [line for line in done.stderr.splitlines() if word in line]
                self.assertGreaterEqual(len(lines), 1, done.stderr)
                self.assertEqual(file.read_text(), text)

    def background(self, *words, **changes):
        process = subprocess.Popen(words, env=self.environment(**changes), text=True,
                                   stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
                                   stderr=subprocess.DEVNULL)
        self.addCleanup(process.wait, time_limit(60))
        self.addCleanup(process.terminate)
        return process

    def explain(self, socket, *words):
        return self.native(PREFIX / "bin/vitamin", "explain", "--socket", socket, *words)

    def until_explained(self, socket, what):
        """The document as soon as what(its only device) holds."""
        until = time.monotonic() + time_limit(60)
        while time.monotonic() < until:
            answer = self.explain(socket, "--json")
            if answer.returncode == 0:
                device, = json.loads(answer.stdout)["devices"]
                if what(device):
                    return device
            time.sleep(0.05)
        self.fail(f"not explained: {answer.stdout}{answer.stderr}")

    def assert_refused(self, result, *parts):
        self.assertEqual((result.returncode, result.stdout), (125, ""))
        self.assertEqual(len(result.stderr.splitlines()), 1, result.stderr)
        for part in parts:
            self.assertIn(part, result.stderr)

    def test_explain_says_for_two_programs_what_each_has_why_and_what_else_was_measured(self):
        socket = str(self.directory / "s")
        self.assert_refused(self.explain(socket), "VIT-301", "vitamin run --daemon")
        self.background(PREFIX / "bin/vitamind", "--socket", socket, "--lock-directory",
                        self.directory, "--policy", "throughput", VITAMIN_CONFIG="/dev/null")
        until = time.monotonic() + time_limit(60)
        while not os.path.exists(socket) and time.monotonic() < until:
            time.sleep(0.01)
        self.assert_refused(self.explain(socket), "it has no client", "VIT-304")
        run = [PREFIX / "bin/vitamin", "run", "--quiet", "--daemon", "--socket", socket, "--"]
        self.background(*run, PREFIX / "bin/demo-train", "1000000")
        alone = self.until_explained(socket, lambda device: device["clients"][0]["has"]["active"])
        self.assertEqual(alone["clients"][0]["program"], "demo-train")
        self.assertIn(alone["clients"][0]["has"]["mode"], ("shared", "exclusive"))
        self.background(*run, PREFIX / "bin/demo-train", "1000000")

        def measured(device):
            """And both have what the policy wished: one without CPU time is idle for a moment."""
            choice = device["choice"]
            return (choice is not None and any(each["measured"] for each in choice["arrangements"])
                    and all(client["why"] == "policy" for client in device["clients"]))
        device = self.until_explained(socket, measured)
        arrangements = device["choice"]["arrangements"]
        self.assertGreater(len(arrangements), 2)
        self.assertEqual([each["chosen"] for each in arrangements],
                         [True] + [False] * (len(arrangements) - 1))
        for each in arrangements:
            self.assertEqual([client["client"] for client in each["clients"]], [1, 2])
            self.assertEqual(each["measured"], each["blocks"] > 0)
        self.assertEqual([client["why"] for client in device["clients"]], ["policy", "policy"])
        text = self.explain(socket)
        self.assertEqual((text.returncode, text.stderr), (0, ""))
        self.assertRegex(text.stdout, r"(?m)^  > +A +in force ")
        for client in (1, 2):
            self.assertRegex(text.stdout, rf"(?m)^  client {client} \(demo-train\) has ")
        one = self.explain(socket, "2").stdout
        self.assertIn("client 2 (demo-train) has ", one)
        self.assertNotRegex(one, r"(?m)^  client 1 ")
        self.assert_refused(self.explain(socket, "demo-tarin"), "'demo-tarin'", "1 (demo-train)",
                            "VIT-101")

    def test_doctor_finds_the_software_device(self):
        result = self.native(PREFIX / "bin/vitamin", "doctor")
        self.assertEqual(result.returncode, 0, result.stdout)


if __name__ == "__main__":
    unittest.main()
