# SPDX-License-Identifier: Apache-2.0
"""Workloads of the name `demo`: runs of Vitamin's demo programs on the software device."""

import subprocess

import harness


class Demo:
    """A step is one run of a program: two groups, of which the second does as much as the first."""

    groups, waits, queued, warm_up = 2, True, 1, 1

    def __init__(self, program, count):
        self.command = [str(harness.prefix() / "bin" / f"demo-{program}"), str(count)]

    def _run(self):
        answer = subprocess.run(self.command, capture_output=True, text=True,
                                stdin=subprocess.DEVNULL)
        if answer.returncode:
            raise RuntimeError(f"{self.command[0]} ended with {answer.returncode}: {answer.stderr}")

    def step(self, mark):
        for _ in range(self.groups):
            self._run()
            mark()

    def request(self):
        self._run()

    def rest(self):
        pass

    def memory(self):
        return {}


def make(kind):
    return Demo("train", 2) if kind in ("train", "prefill", "score") else Demo("serve", 1)
