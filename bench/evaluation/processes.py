# SPDX-License-Identifier: Apache-2.0
"""Jobs as processes: started once, told by a pipe to run windows."""

import json
import os
import pathlib
import queue
import signal
import subprocess
import sys
import tempfile
import threading
import time

import harness

HERE = pathlib.Path(__file__).resolve().parent


class JobFailed(Exception):
    """What went wrong with a job, as a sentence."""


class Job:
    def __init__(self, name, arguments, words=(), environment=None, program=None):
        """`words` before job.py with its arguments, or before another program that is told by
        lines and answers by JSON lines, `ready` first."""
        self.name = name
        self.command = [*words, *(program or [sys.executable, str(HERE / "job.py")]),
                        *map(str, arguments)]
        self._errors = tempfile.TemporaryFile("w+", errors="replace")
        self.process = None
        try:
            with harness.not_interrupted():
                self.process = subprocess.Popen(
                    self.command, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                    stderr=self._errors, text=True, start_new_session=True,
                    env=harness.environment_with(environment))
        except KeyboardInterrupt:
            if self.process:
                self.kill()
            raise
        self._answers = queue.Queue()
        threading.Thread(target=self._read, daemon=True).start()
        self.ready = None

    def _read(self):
        for line in self.process.stdout:
            try:
                self._answers.put(json.loads(line))
            except ValueError:
                pass
        self._answers.put(None)

    def tail(self):
        self._errors.seek(0)
        return " / ".join(self._errors.read().strip().splitlines()[-3:])[-400:]

    def answer(self, timeout):
        try:
            record = self._answers.get(timeout=timeout)
        except queue.Empty:
            raise JobFailed(f"{self.name}: no answer in {timeout:.0f} s") from None
        if record is None:
            code = self.process.wait()
            raise JobFailed(f"{self.name} ended with code {code}: {self.tail()}")
        if "error" in record:
            raise JobFailed(f"{self.name}: {record['error']}")
        return record

    def wait_ready(self, timeout):
        if self.ready is None:
            self.ready = self.answer(timeout)
        return self.ready

    def tell_text(self, line):
        try:
            self.process.stdin.write(line + "\n")
            self.process.stdin.flush()
        except OSError:
            raise JobFailed(f"{self.name} has ended: {self.tail()}") from None

    def tell(self, **command):
        self.tell_text(json.dumps(command))

    def ask_text(self, line, timeout):
        self.tell_text(line)
        return self.answer(timeout)

    def ask(self, timeout, **command):
        self.tell(**command)
        return self.answer(timeout)

    def end(self):
        """Its input is closed, which ends it; then everything that it started."""
        if self.process.poll() is None:
            try:
                self.process.stdin.close()
                self.process.wait(10)
            except (OSError, subprocess.TimeoutExpired):
                pass
        self.kill()

    def busy(self):
        """Runs, and has not answered."""
        return self.process.poll() is None and self._answers.empty()

    def kill(self):
        try:
            os.killpg(self.process.pid, signal.SIGKILL)
        except OSError:
            pass
        self.process.wait()


class Ranks:
    """The processes of one distributed job, told alike; what the first answers counts."""

    def __init__(self, jobs):
        self.jobs, self.name, self.process = jobs, jobs[0].name, jobs[0].process

    @property
    def ready(self):
        return self.jobs[0].ready

    def _all(self, ask):
        """Each in a thread: where one fails the others wait for it."""
        found = [None] * len(self.jobs)

        def one(i):
            try:
                found[i] = ask(self.jobs[i])
            except JobFailed as error:
                found[i] = error
        threads = [threading.Thread(target=one, args=(i,)) for i in range(len(self.jobs))]
        [t.start() for t in threads]
        [t.join() for t in threads]
        for answer in found:
            if isinstance(answer, JobFailed):
                raise answer
        return found[0]

    def answer(self, timeout):
        return self._all(lambda job: job.answer(timeout))

    def wait_ready(self, timeout):
        return self._all(lambda job: job.wait_ready(timeout))

    def tell(self, **command):
        for job in self.jobs:
            job.tell(**command)

    def ask(self, timeout, **command):
        self.tell(**command)
        return self.answer(timeout)

    def busy(self):
        return all(job.busy() for job in self.jobs)

    def kill(self):
        for job in self.jobs:
            job.kill()

    def end(self):
        threads = [threading.Thread(target=job.end) for job in self.jobs]
        [t.start() for t in threads]
        [t.join() for t in threads]


def counts(job):
    """What Vitamin has counted for the job and whatever it started; None where it is not there."""
    directory = (job.ready or {}).get("counts")
    if not directory:
        return None
    lines = harness.run([harness.program("launch_counts"), directory], 60).lines
    return lines[0] if lines else None


def counted(before, after, seconds):
    """The difference of two counts, and how it is told."""
    if not before or not after:
        return None
    differ = lambda what: {k: more for k, n in after[what].items()
                           if (more := n - before[what].get(k, 0))}
    return {"seconds": round(seconds, 3), "widths": differ("widths"), "whole": differ("whole"),
            **{k: after[k] - before[k] for k in ("seen", "bound", "moved", "deferred", "edges")}}


def together(commands, lead=0.5, timeout=120):
    """Tells several jobs to begin at one moment; their answers, in order. `commands`: job and
    command of each."""
    at = time.monotonic() + lead
    for job, command in commands:
        job.tell(**command, at=at)
    return [job.answer(timeout) for job, _ in commands]
