# SPDX-License-Identifier: Apache-2.0
"""Helpers of the measurements of several processes under one vitamind."""
import contextlib
import json
import os
import pathlib
import signal
import subprocess
import sys
import tempfile
import threading
import time

HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent))

import decisions  # noqa: E402
import harness  # noqa: E402
import micro  # noqa: E402
from holds import held_twice  # noqa: E402


class Surroundings:
    """Runs MPS, or sets up the software device, for everything that is measured inside."""

    def __init__(self, device, mps=True):
        self.device, self.mps, self.wanted = device, None, mps

    def __enter__(self):
        if self.device != "cuda":
            self.directory = tempfile.TemporaryDirectory(prefix="vitamin-soft-")
            soft = harness.prefix() / "lib" / "soft"
            self.environment = {"LD_LIBRARY_PATH": f"{soft}:{harness.library_path()}",
                                "VITAMIN_SOFT_LEDGER": f"{self.directory.name}/ledger"}
            self.words = "without a GPU"
            return self
        if not self.wanted:
            self.environment, self.words = {}, "without MPS"
            return self
        self.mps = micro.Mps().__enter__()
        self.environment = dict(self.mps.environment) if self.mps.running else {}
        self.words = "under MPS" if self.mps.running else "no MPS: processes take turns"
        return self

    def __exit__(self, *problem):
        if self.mps:
            self.mps.__exit__(*problem)
        elif self.device != "cuda":
            self.directory.cleanup()


class Daemon:
    """A vitamind with a socket of its own, whose status is polled."""

    def __init__(self, policy, environment, *options, trace=False, watch=True):
        self.directory = tempfile.TemporaryDirectory(prefix="vitamind-")
        if trace:
            options = [*options, "--trace", self.directory.name]
        self.socket = pathlib.Path(self.directory.name) / "s"
        self.log = harness.Output()
        self.command = [str(harness.prefix() / "bin" / "vitamind"), "--socket", str(self.socket),
                        "--lock-directory", self.directory.name, "--policy", policy,
                        "--set", "mps.mode=off", *options]
        self.environment = harness.environment_with(environment | {"VITAMIN_CONFIG": "/dev/null"})
        self.start()
        self.looks, self.overlaps, self.last, self.most = 0, [], {}, 0
        self.decisions = None  # at its end, where it was traced
        self.seen = []  # (when, clients, leases by client)
        self.over = threading.Event()
        self.await_status()
        self.watcher = threading.Thread(target=self.watch, daemon=True)
        if watch:  # polling needs a CPU
            self.watcher.start()

    def start(self):
        self.process = subprocess.Popen(self.command, stdout=self.log, stderr=self.log,
                                        env=self.environment)

    def await_status(self):
        until = time.monotonic() + 10
        while self.status() is None and time.monotonic() < until:
            time.sleep(0.01)

    def restart(self):
        """SIGKILL, and another in its place."""
        self.process.kill()
        self.process.wait()
        self.start()
        self.await_status()

    def processor_seconds(self):
        """That it has used so far; None once it has ended."""
        try:
            words = pathlib.Path(f"/proc/{self.process.pid}/stat").read_text().rsplit(")")[-1]
        except OSError:
            return None
        return sum(map(int, words.split()[11:13])) / os.sysconf("SC_CLK_TCK")

    def status(self):
        answer = subprocess.run(harness.vitamin("status", "--json", "--socket", str(self.socket)),
                                capture_output=True, text=True, timeout=120, check=False)
        return json.loads(answer.stdout) if answer.returncode == 0 and answer.stdout else None

    def watch(self):
        while not self.over.wait(0.02):
            now = time.monotonic()
            status = self.status()
            if status is None or not status["devices"]:
                continue
            self.looks += 1
            self.last = status
            for device in status["devices"]:
                self.most = max(self.most, len({h["client"] for h in device["held"]}))
                self.overlaps += map(list, held_twice(device))
            self.seen.append((now, [c["process"] for c in status["clients"]]))

    def counters(self):
        """Those of all devices in the last status that was polled."""
        return {k: sum(d.get(k) or 0 for d in self.last.get("devices") or []) for k in (
            "grants", "moves", "gates_closed", "served_by_age", "overdue", "stale", "undelivered",
            "requests")}

    def end(self):
        self.over.set()
        if self.watcher.is_alive():
            self.watcher.join()
        self.process.terminate()
        try:
            self.process.wait(10)
        except subprocess.TimeoutExpired:
            self.process.kill()
        text = self.log.text()
        if list(pathlib.Path(self.directory.name).glob("daemon.*.trace")):
            self.decisions = decisions.Decisions(self.directory.name)
        self.directory.cleanup()
        return text


class Job:
    """A command in the background, and its output."""

    def __init__(self, command, environment, daemon=None, words=(), talk=False, policy=None):
        self.directory = tempfile.TemporaryDirectory()
        self.report = pathlib.Path(self.directory.name) / "report.json"
        place = ["--daemon", "--socket", str(daemon.socket)] if daemon is not None else \
            ["--policy", policy] if policy else None
        if place:
            command = [*harness.vitamin("run", "--quiet", *place, "--report", str(self.report),
                                        *words), "--", *command]
        self.out, self.err = harness.Output(), harness.Output()
        self.begin = time.monotonic()
        self.process = subprocess.Popen(command, stdout=self.out, stderr=self.err,
                                        stdin=subprocess.PIPE if talk else subprocess.DEVNULL,
                                        start_new_session=True,
                                        env=harness.environment_with(environment))

    def lines(self):
        return self.out.lines()

    def kill(self):
        """Kills the command and its children, if it still runs."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        return self.wait(20)

    def wait(self, timeout, witness=None):
        """`witness`, if any, is called before a job that takes too long is killed."""
        timed_out = False
        try:
            code = self.process.wait(timeout)
        except subprocess.TimeoutExpired:
            timed_out = True
            if witness:
                witness(self.process.pid)
            os.killpg(self.process.pid, signal.SIGKILL)
            code = self.process.wait()
        seconds = time.monotonic() - self.begin
        result = harness.Result([], code, self.out.text(), self.err.text(), seconds, timed_out)
        self.coverage = harness.coverage(harness.read_report(self.report))
        self.directory.cleanup()
        return result


class Resident(Job):
    """A program that answers each line that it reads with a line."""

    def __init__(self, *words, **more):
        super().__init__(*words, talk=True, **more)
        self.answered = 0

    def next(self, timeout=60):
        """Its next line."""
        limit = time.monotonic() + timeout
        while True:
            lines = self.lines()
            if len(lines) > self.answered:
                self.answered += 1
                return lines[self.answered - 1]
            if self.process.poll() is not None or time.monotonic() > limit:
                tail = " / ".join(self.err.text().strip().splitlines()[-3:])
                raise RuntimeError(f"no answer (exit code {self.process.poll()}): {tail}")
            time.sleep(0.002)

    def tell(self, line):
        self.process.stdin.write((line + "\n").encode())
        self.process.stdin.flush()

    def ask(self, line, timeout=60):
        self.tell(line)
        return self.next(timeout)

    def end(self):
        try:
            self.process.stdin.close()
        except OSError:
            pass
        return self.wait(20)


def occupant(environment, daemon=None, words=(), policy=None):
    """bench/programs/occupy.cpp, ready."""
    made = Resident([harness.program("occupy")], environment, daemon=daemon, words=words,
                    policy=policy)
    made.next()
    return made


def brief(cover):
    return {k: cover[k] for k in ("launches", "bound", "bound_share", "narrow_share", "moved_share",
                                  "deferred", "whole_device", "widths", "warnings", "problem")
            } if cover else None


def percentile(values, share):
    values = sorted(values)
    return values[min(len(values) - 1, int(len(values) * share))] if values else None
