# SPDX-License-Identifier: Apache-2.0
"""Runs a program that may hang. One that does is ended, and the failure says where it stood."""

import os
import pathlib
import shutil
import signal
import subprocess

from time_limit import time_limit

# ctest ends a test of the short form after 600 s and shows nothing of it.
MOST_S = 400


def run(command, plenty, **settings):
    """subprocess.run() of `command` with its output captured as text.

    `plenty`: seconds that it takes at most on an idle machine (time_limit). Raises AssertionError
    with what it printed and, where gdb is installed, the stacks of its processes if it takes
    longer.
    """
    limit = min(time_limit(plenty), MOST_S)
    with subprocess.Popen(command, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                          start_new_session=True, **settings) as process:
        try:
            out, error = process.communicate(timeout=limit)
        except subprocess.TimeoutExpired:
            stacks = "".join(map(stacks_of, members(process.pid)))
            os.killpg(process.pid, signal.SIGKILL)
            out, error = process.communicate()
            raise AssertionError(f"{command} has not ended within {limit:.0f} s\n"
                                 f"output:\n{out}\nerrors:\n{error}\n{stacks}") from None
    return subprocess.CompletedProcess(process.args, process.returncode, out, error)


def members(session):
    """The processes of a session."""
    for entry in pathlib.Path("/proc").glob("[0-9]*"):
        try:
            if os.getsid(int(entry.name)) == session:
                yield int(entry.name)
        except ProcessLookupError:
            pass


def stacks_of(pid):
    if not shutil.which("gdb"):
        return f"no stacks of process {pid}: gdb is not installed\n"
    command = ["gdb", "-p", str(pid), "-batch", "-nx", "-ex", "thread apply all bt"]
    try:
        done = subprocess.run(command, text=True, capture_output=True, timeout=60, check=False)
    except subprocess.TimeoutExpired:
        return f"no stacks of process {pid}: gdb does not answer\n"
    return f"stacks of process {pid}:\n{done.stdout}\n"
