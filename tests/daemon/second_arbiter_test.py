#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Two processes that place work on one device without each other: the second says so in one line,
no process is refused or affected, and `vitamin status` and `vitamin doctor` show both."""
import fcntl
import json
import os
import pathlib
import pwd
import re
import struct
import subprocess
import unittest

from harness import Daemon, DaemonTest
from time_limit import time_limit

ROOT = os.getuid() == 0
CODE = "[VIT-511]"


class SecondArbiter(DaemonTest):
    def setUp(self):
        super().setUp()
        self.locks = pathlib.Path(self.directory.name)
        self.environment = os.environ | {
            "LD_LIBRARY_PATH": os.environ["DRIVER"], "VITAMIN_CONFIG": "/dev/null",
            "VITAMIN_LOCK_DIRECTORY": str(self.locks),
            "VITAMIN_SOFT_LEDGER": os.path.join(self.directory.name, "ledger")}

    def begin(self, *words, steps=1_000_000, user=None):
        program = os.path.join(os.environ["PROGRAMS"], "demo-train")
        process = subprocess.Popen(
            [os.environ["VITAMIN"], "run", *map(str, words), "--", program, str(steps)],
            env=self.environment, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
            start_new_session=True, user=user)

        def end():
            if process.poll() is None:
                os.killpg(process.pid, 9)
            process.communicate()
        self.addCleanup(end)
        return process

    def complete(self, *words, **more):
        process = self.begin(*words, steps=3, **more)
        output, errors = process.communicate(timeout=time_limit(60))
        self.assertEqual(process.returncode, 0, errors)
        return re.search(r"hash (\w+)", output)[1], errors

    def alone(self):
        """A process that runs without vitamind and uses the device now."""
        for path in self.locks.glob("vitamin-*.lock"):
            with open(path, "rb") as file:
                asked = struct.pack("hhqqi", fcntl.F_WRLCK, os.SEEK_SET, 1, 0, 0)
                kind, _, _, _, process = struct.unpack(
                    "hhqqi", fcntl.fcntl(file, fcntl.F_GETLK, asked))
                if kind != fcntl.F_UNLCK:
                    return process
        return None

    def begin_alone(self, **more):
        process = self.begin("--quiet", **more)
        self.until(self.alone, 30)
        return process, self.alone()

    def lines(self, errors):
        return [line for line in errors.splitlines() if CODE in line]

    def test_a_single_process_prints_nothing(self):
        _, errors = self.complete()
        self.assertEqual(self.lines(errors), [])
        _, errors = self.complete()  # nor after one that has ended
        self.assertEqual(self.lines(errors), [])

    def test_a_process_without_vitamind_beside_a_daemon_says_so_and_runs(self):
        expected, _ = self.complete()
        daemon = self.daemon("--quiet")
        self.begin("--daemon", "--socket", daemon.socket, "--quiet")
        self.until(lambda: daemon.status()["clients"], 30)
        got, errors = self.complete()
        self.assertEqual(got, expected)
        line, = self.lines(errors)
        self.assertIn(f"vitamind (process {daemon.process.pid})", line)
        self.assertIn("vitamin run --daemon", line)
        # A client of the daemon prints nothing.
        _, errors = self.complete("--daemon", "--socket", daemon.socket)
        self.assertEqual(self.lines(errors), [])
        self.assertEqual(daemon.status()["devices"][0]["not_clients"], [])

    def test_a_daemon_beside_a_process_without_vitamind_arbitrates_and_shows_it(self):
        first, process = self.begin_alone()
        daemon = self.daemon()
        client = self.begin("--daemon", "--socket", daemon.socket, "--quiet")
        self.until(lambda: daemon.status()["clients"], 30)
        self.assertEqual(daemon.status()["devices"][0]["not_clients"], [process])
        line, = self.lines(daemon.log())
        self.assertIn(f"process {process} uses it without vitamind", line)
        shown = subprocess.run(
            [os.environ["VITAMIN"], "status", "--socket", daemon.socket], env=self.environment,
            text=True, capture_output=True, timeout=time_limit(20), check=True).stdout
        self.assertIn(f"process {process} uses these SMs without vitamind", shown)
        self.assertIsNone(first.poll())
        self.assertIsNone(client.poll())
        os.kill(process, 9)
        self.until(lambda: daemon.status()["devices"][0]["not_clients"] == [])

    def test_two_processes_without_vitamind(self):
        expected, _ = self.complete()
        _, process = self.begin_alone()
        report = os.path.join(self.directory.name, "report")
        got, errors = self.complete("--report", report)
        self.assertEqual(got, expected)
        line, = self.lines(errors)
        self.assertIn(f"process {process} runs", line)
        self.assertIn("vitamin run --daemon", line)
        self.assertIn("decides for itself", json.dumps(json.loads(
            pathlib.Path(report).read_text())))  # counted with the run's other warnings

    def test_the_doctor_shows_processes_that_place_work_without_each_other(self):
        def doctor():
            answer = subprocess.run([os.environ["VITAMIN"], "doctor", "--json"], text=True,
                                    env=self.environment | {"VITAMIN_CONFIG": str(settings)},
                                    capture_output=True, timeout=time_limit(60), check=False)
            return [check["text"] for check in json.loads(answer.stdout)["checks"]
                    if check["check"] == "sharing"]
        settings = self.locks / "vitamin.toml"
        settings.write_text(f'[daemon]\nlock_directory = "{self.locks}"\n')
        _, first = self.begin_alone()
        self.assertEqual(doctor(), [])
        daemon = self.daemon("--quiet")
        self.begin("--daemon", "--socket", daemon.socket, "--quiet")
        self.until(lambda: daemon.status()["clients"], 30)
        said, = doctor()
        self.assertIn(f"vitamind (process {daemon.process.pid})", said)
        self.assertIn(f"process {first}", said)

    def test_a_refused_client_runs_without_vitamind_and_is_shown(self):
        own = self.daemon("--quiet")
        self.begin("--daemon", "--socket", own.socket, "--quiet")
        self.until(lambda: own.status()["clients"], 30)
        _, errors = self.complete("--daemon", "--socket", self.other_daemon())
        self.assertIn("another vitamind arbitrates device", errors)
        self.assertIn(f"(process {own.process.pid}, lock", errors)
        self.assertEqual(len(self.lines(errors)), 1)

    def other_daemon(self):
        directory = self.locks / "other"
        directory.mkdir()
        daemon = Daemon(directory, "--lock-directory", str(self.locks), "--quiet")
        self.addCleanup(daemon.end)
        return daemon.socket

    @unittest.skipUnless(ROOT, "another user is needed")
    def test_another_users_lock_file(self):
        user = pwd.getpwnam("nobody")
        os.chmod(self.locks, 0o1777)
        name = self.lock_name()
        (self.locks / name).write_text("")
        os.chmod(self.locks / name, 0o600)
        os.chown(self.locks / name, user.pw_uid, user.pw_gid)
        _, process = self.begin_alone()
        _, errors = self.complete()
        self.assertIn(f"process {process} runs", self.lines(errors)[0])
        self.assertEqual((self.locks / name).stat().st_uid, user.pw_uid)  # unchanged

    def lock_name(self):
        self.complete()
        path, = self.locks.glob("vitamin-*.lock")
        path.unlink()
        return path.name

    def test_without_usable_locks_a_process_runs_and_prints_nothing(self):
        expected, _ = self.complete()
        for directory in ("", "none", "file"):
            (self.locks / "file").write_text("")
            self.environment["VITAMIN_LOCK_DIRECTORY"] = directory and str(self.locks / directory)
            got, errors = self.complete()
            self.assertEqual((got, self.lines(errors)), (expected, []))

    def test_a_program_uses_the_configured_lock_directory(self):
        del self.environment["VITAMIN_LOCK_DIRECTORY"]
        settings = self.locks / "vitamin.toml"
        settings.write_text(f'[daemon]\nlock_directory = "{self.locks}"\n')
        self.environment["VITAMIN_CONFIG"] = str(settings)
        _, process = self.begin_alone()
        self.assertGreater(process, 0)


if __name__ == "__main__":
    unittest.main()
