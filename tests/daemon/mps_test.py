#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""vitamind starts and watches MPS; a fake of NVIDIA's control program answers as the test says."""
import json
import os
import pathlib
import signal
import subprocess
import time
import unittest

from harness import DaemonTest
from time_limit import time_limit

CONTROL = os.environ["CONTROL"]
LIBRARY = pathlib.Path(os.environ["VITAMIN"]).parents[1] / "lib" / "libvitamin_cuda.so"


class Mps(DaemonTest):
    def setUp(self):
        super().setUp()
        self.mps = pathlib.Path(self.directory.name, "mps")
        self.addCleanup(self.end_control)

    def end_control(self):
        try:
            os.kill(self.pid(), signal.SIGKILL)
        except (OSError, ValueError):
            pass

    def until(self, what, seconds=60):  # each request to the control program is a process
        super().until(what, seconds)

    def pid(self):
        return int((self.mps / "nvidia-cuda-mps-control.pid").read_text())

    def watched(self, *settings, mode="auto"):
        words = [f"mps.mode={mode}", f"mps.control={CONTROL}", "mps.check_every=50ms", *settings]
        return self.daemon(*[part for word in words for part in ("--set", word)])

    def facts(self, daemon):
        return daemon.status()["mps"]

    def looked(self, daemon):
        """Waits until the daemon has checked once more."""
        checks = self.facts(daemon)["checks"]
        self.until(lambda: self.facts(daemon)["checks"] > checks + 2)

    def say(self, **world):
        new = self.mps / "world.new"
        new.write_text(json.dumps(world))
        new.rename(self.mps / "world")

    def test_it_is_started_in_a_private_directory_and_ended_with_the_daemon(self):
        daemon = self.watched()
        facts = self.facts(daemon)
        self.assertEqual((facts["state"], facts["problem"], facts["starts"]), ("ready", "", 1))
        self.assertEqual(facts["directory"], str(self.mps))
        self.assertEqual(self.mps.stat().st_mode & 0o777, 0o700)
        process = self.pid()
        daemon.end()

        def has_ended():
            try:
                return "Z" in pathlib.Path(f"/proc/{process}/stat").read_text()
            except OSError:  # and was waited for, perhaps between open() and read()
                return True
        self.until(has_ended)
        self.assertIn("quit", (self.mps / "commands").read_text())

    def test_it_is_restarted_when_it_was_killed(self):
        daemon = self.watched()
        first = self.pid()
        os.kill(first, signal.SIGKILL)
        self.until(lambda: self.facts(daemon)["starts"] == 2)
        self.assertNotEqual(self.pid(), first)
        self.until(lambda: self.facts(daemon)["state"] == "ready")

    def test_mps_of_a_killed_daemon_is_taken_over(self):
        daemon = self.watched()
        first = self.pid()
        daemon.kill()
        daemon.start()
        self.assertEqual(self.facts(daemon)["state"], "ready")
        self.assertEqual(self.facts(daemon)["starts"], 0)
        self.assertEqual(self.pid(), first)

    def test_after_a_fault_mps_is_restarted_once_all_clients_have_ended(self):
        daemon = self.watched()
        self.say(servers={"4711": {"status": "FAULT", "clients": [17, 18]}})
        self.until(lambda: self.facts(daemon)["state"] == "fault")
        facts = self.facts(daemon)
        self.assertEqual(facts["faults"], 1)
        self.assertIn("before the 2 that are left have ended; end them", facts["problem"])
        checks = facts["checks"]
        self.until(lambda: self.facts(daemon)["checks"] > checks + 3)
        self.assertEqual(self.facts(daemon)["starts"], 1)  # not restarted yet
        self.say(servers={"4711": {"status": "FAULT", "clients": []}})
        self.until(lambda: self.facts(daemon)["starts"] == 2)
        self.until(lambda: self.facts(daemon)["state"] == "ready")
        self.assertEqual(self.facts(daemon)["faults"], 1)
        self.assertEqual(self.facts(daemon)["problem"], "")

    def write_log(self, text, mode="a"):
        with open(self.mps / "server.log", mode, encoding="ascii") as log:
            log.write(text)

    @staticmethod
    def fault(server, culprit, affected):
        """What driver 580 writes at a fault; the client of the first line may not be the
        one that has failed."""
        def said(text):
            return f"[2026-11-22 17:50:31.901 Server {server}] {text}\n"
        return "".join([
            said(f"Client {{PID: {culprit}, Context: 1}} encountered a fatal GPU error."),
            said("Server is handling a fatal GPU error."),
            *[said(f"Client {{PID: {pid}, Context ID: 1}} on device 0 to be torn down")
              for pid in affected],
            said("The following devices will be reset:"), said("0"),
            said("The following client process have a sticky error set:"),
            *[said(pid) for pid in affected],
            said(f"Server failed to recevie command with status 806, assuming client "
                 f"{{PID: {culprit}, Context ID: 1}} exit")])

    def test_a_fault_that_is_over_before_the_check_is_read_from_the_log(self):
        self.mps.mkdir(mode=0o700)
        self.write_log(self.fault(11, 12, [12, 13]))  # an old fault, which is to be ignored
        daemon = self.watched()
        self.looked(daemon)
        self.assertEqual(self.facts(daemon)["faults"], 0)
        self.say(servers={"40287": {"status": "ACTIVE", "clients": []}})
        before = time.monotonic_ns()
        self.write_log(self.fault(40287, 40285, [40285, 40461]))
        self.until(lambda: self.facts(daemon)["faults"] == 1)
        facts = self.facts(daemon)
        self.assertEqual((facts["affected"], facts["state"], facts["starts"]),
                         (["40285", "40461"], "ready", 1))
        self.assertLessEqual(facts["since_fault_ns"], time.monotonic_ns() - before)
        self.assertIn("contexts of all clients of server 40287: processes 40285, 40461 get "
                      "errors from now on; end them and start them again", daemon.log())
        text = subprocess.run([os.environ["VITAMIN"], "status", "--socket", str(daemon.socket)],
                              text=True, stdout=subprocess.PIPE, check=True).stdout
        self.assertRegex(text, r"MPS: 1 fault on the GPU so far, the last one \d+ s ago: it took "
                               r"their contexts from processes 40285, 40461")
        doctor = subprocess.run([os.environ["VITAMIN"], "doctor"], text=True,
                                stdout=subprocess.PIPE, check=False,
                                env=os.environ | {"VITAMIN_DAEMON": str(daemon.socket)}).stdout
        self.assertRegex(doctor, r"(?m)^note +mps +1 fault on the GPU so far")
        self.assertIn("\nvitamind_mps_faults_total 1\n", daemon.ask("metrics")["text"])

    def test_a_fault_in_the_log_and_the_status_counts_once_in_either_order(self):
        daemon = self.watched()
        self.write_log(self.fault(21, 5, [5]))
        self.until(lambda: self.facts(daemon)["faults"] == 1)
        self.say(servers={"21": {"status": "FAULT", "clients": [5]}})
        self.until(lambda: self.facts(daemon)["state"] == "fault")
        self.assertEqual(self.facts(daemon)["faults"], 1)
        self.say(servers={"22": {"status": "FAULT", "clients": [6]}})
        self.until(lambda: self.facts(daemon)["faults"] == 2)
        self.assertEqual(self.facts(daemon)["affected"], [])
        self.write_log(self.fault(22, 6, [6]))
        self.until(lambda: self.facts(daemon)["affected"] == ["6"])
        self.looked(daemon)
        self.assertEqual(self.facts(daemon)["faults"], 2)

    def test_the_log_is_read_however_it_is_written(self):
        daemon = self.watched()
        text = self.fault(31, 7, [7, 8])
        middle = text.index("] 8\n")  # in the middle of a line of the list
        self.write_log(text[:middle])
        self.until(lambda: self.facts(daemon)["faults"] == 1)
        self.write_log(text[middle:])
        self.looked(daemon)
        # Truncated, as by logrotate, and then replaced.
        self.write_log(self.fault(31, 9, [9]), mode="w")
        self.until(lambda: self.facts(daemon)["affected"] == ["9"])
        new = self.mps / "server.log.new"
        new.write_text("x" * 3_000_000 + "\n" + self.fault(31, 10, [10]))  # too long to be read
        new.rename(self.mps / "server.log")
        self.until(lambda: self.facts(daemon)["affected"] == ["10"])
        self.assertEqual(self.facts(daemon)["faults"], 3)
        (self.mps / "server.log").unlink()
        self.looked(daemon)
        self.write_log(self.fault(32, 14, [14]))
        self.until(lambda: self.facts(daemon)["affected"] == ["14"])

    def test_the_log_of_another_users_mps_is_not_read(self):
        self.mps.mkdir(mode=0o700)
        subprocess.run([CONTROL, "-d"], check=True,
                       env=os.environ | {"CUDA_MPS_PIPE_DIRECTORY": str(self.mps)})
        daemon = self.watched(f"mps.directory={self.mps}", mode="external")
        self.write_log(self.fault(41, 1, [1]))
        self.looked(daemon)
        self.assertEqual(self.facts(daemon)["faults"], 0)

    def test_external_mps_is_watched_and_never_started_or_ended(self):
        daemon = self.watched(f"mps.directory={self.mps}", mode="external")
        facts = self.facts(daemon)
        self.assertEqual((facts["state"], facts["starts"]), ("failed", 0))
        self.assertIn("no control daemon answers", facts["problem"])
        self.mps.mkdir()
        subprocess.run([CONTROL, "-d"], check=True,
                       env=os.environ | {"CUDA_MPS_PIPE_DIRECTORY": str(self.mps)})
        self.until(lambda: self.facts(daemon)["state"] == "ready")
        daemon.end()
        self.assertTrue(os.path.exists(f"/proc/{self.pid()}"))
        self.assertNotIn("quit", (self.mps / "commands").read_text())

    def test_a_thread_percentage_is_reported_as_changing_bits(self):
        daemon = self.watched()
        self.say(servers={}, share="50.0")
        self.until(lambda: "thread percentage is 50.0" in self.facts(daemon)["problem"])

    def test_a_failed_start_is_logged_once_and_delays_no_client(self):
        self.mps.mkdir(mode=0o700)
        (self.mps / "world").write_text('{"refuse": true}')
        daemon = self.watched()
        facts = self.facts(daemon)
        self.assertEqual(facts["state"], "failed")
        self.assertIn("Cannot find MPS control daemon's device", facts["problem"])
        self.assertIn("take turns", facts["problem"])
        self.until(lambda: self.facts(daemon)["checks"] > 10)
        self.assertEqual(daemon.log().count("cannot be started"), 1)
        commands = self.facts(daemon)["starts"]
        self.assertEqual(commands, 0)

    def test_a_directory_that_others_can_write_is_not_used(self):
        self.mps.mkdir()
        self.mps.chmod(0o777)
        facts = self.facts(self.watched())
        self.assertEqual(facts["state"], "failed")
        self.assertIn("not a directory of this user alone", facts["problem"])

    def test_the_work_of_an_ended_job_is_terminated_and_no_other(self):
        daemon = self.watched()
        for step in ("12.0", "13.0"):
            daemon.ask(f"job-begin {step} {os.getuid()} 40 - -")
        members = {}
        for step in ("12.0", "12.0", "13.0"):
            member = self.member(daemon, "hold", environment={"MEMBER_JOB": step})
            self.assertIn("entry", member.stdout.readline())
            members[member.pid] = step
        (ended, idle) = [pid for pid, step in members.items() if step == "12.0"]
        # One of the job's processes is not a client of MPS.
        self.say(servers={"4711": {"status": "ACTIVE", "clients":
                                   [pid for pid in members if pid != idle]}})
        self.assertEqual(daemon.ask("job-end 12")["left"], 2)
        self.until(lambda: self.facts(daemon)["terminated"] == 1)
        checks = self.facts(daemon)["checks"]
        self.until(lambda: self.facts(daemon)["checks"] > checks + 1)
        ends = [line for line in (self.mps / "commands").read_text().splitlines()
                if line.startswith("terminate_client")]
        self.assertEqual(ends, [f"terminate_client 4711 {ended}"])
        self.assertEqual(daemon.ask("job-end 12"),
                         {"schema": 1, "steps": 0, "left": 2, "sm_seconds": 0.0})

    def test_mode_off_does_nothing(self):
        self.assertEqual(self.facts(self.watched(mode="off"))["state"], "off")
        self.assertFalse(self.mps.exists())

    def test_without_the_control_program_auto_is_off_and_external_is_a_problem(self):
        for mode, state in (("auto", "off"), ("external", "failed")):
            daemon = self.daemon("--set", f"mps.mode={mode}", "--set", "mps.control=no-such-mps")
            self.assertEqual(self.facts(daemon)["state"], state)
            daemon.end()

    @unittest.skipUnless(LIBRARY.exists(), "the library for CUDA is not built here")
    def test_a_command_gets_the_directory_and_a_warning_about_bits(self):
        daemon = self.watched()
        environment = {name: value for name, value in os.environ.items()
                       if name not in ("CUDA_MPS_PIPE_DIRECTORY", "LD_PRELOAD")}
        ran = subprocess.run([os.environ["VITAMIN"], "run", "--daemon", "--quiet", "--socket",
                              str(daemon.socket), "--", "sh", "-c",
                              "echo dir=$CUDA_MPS_PIPE_DIRECTORY"], text=True, capture_output=True,
                             timeout=time_limit(60), check=False,
                             env=environment | {"VITAMIN_CONFIG": "/dev/null",
                                                "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE": "30"})
        self.assertIn(f"dir={self.mps}\n", ran.stdout, ran.stderr)
        self.assertIn("CUDA_MPS_ACTIVE_THREAD_PERCENTAGE=30: programs then see a smaller device",
                      ran.stderr)

    @unittest.skipUnless(LIBRARY.exists(), "the library for CUDA is not built here")
    def test_classes_and_settings_become_environment_variables_of_mps_clients(self):
        daemon = self.watched()
        file = pathlib.Path(self.directory.name) / "classes.toml"
        environment = {name: value for name, value in os.environ.items()
                       if name not in ("CUDA_MPS_CLIENT_PRIORITY", "CUDA_DEVICE_MAX_CONNECTIONS",
                                    "LD_PRELOAD")}

        def told(variable, kind, more="", **variables):
            file.write_text(f'[[class]]\nname = "c"\nkind = "{kind}"\n{more}')
            return subprocess.run([os.environ["VITAMIN"], "run", "--daemon", "--quiet", "--socket",
                                   str(daemon.socket), "--class", "c", "--", "sh", "-c",
                                   f"echo ${{{variable}-none}}"], text=True, timeout=time_limit(60),
                                  check=True, stdout=subprocess.PIPE,
                                  env=environment | variables | {"VITAMIN_CONFIG": str(file)}
                                  ).stdout.strip()

        def priority(*words, **variables):
            return told("CUDA_MPS_CLIENT_PRIORITY", *words, **variables)

        def connections(*words, **variables):
            return told("CUDA_DEVICE_MAX_CONNECTIONS", *words, **variables)

        self.assertEqual(priority("batch"), "1")
        self.assertEqual(priority("latency"), "none")
        self.assertEqual(priority("batch", "[mps]\npriorities = false\n"), "none")
        self.assertEqual(priority("batch", '[mps]\nmode = "off"\n'), "none")
        self.assertEqual(priority("batch", CUDA_MPS_CLIENT_PRIORITY="0"), "0")

        self.assertEqual(connections("latency"), "8")
        self.assertEqual(connections("latency", "[mps]\nconnections = 16\n"), "16")
        self.assertEqual(connections("latency", "[mps]\nconnections = 0\n"), "none")
        self.assertEqual(connections("latency", '[mps]\nmode = "off"\n'), "none")
        self.assertEqual(connections("latency", CUDA_DEVICE_MAX_CONNECTIONS="3"), "3")


if __name__ == "__main__":
    unittest.main()
