# SPDX-License-Identifier: Apache-2.0
"""Signals and stops of a run in the moments, and on the machines, that are rare."""
import ctypes
import errno
import fcntl
import os
import pty
import signal
import struct
import subprocess
import sys
import unittest

from cli_harness import BOUND, SignalTest
from held import children_of, held_at_its_fork, held_when_it_takes
from time_limit import time_limit, wait_until

_DEATH_SIGNAL, _FILTER, _NO_NEW_RIGHTS = 1, 22, 38  # PR_SET_PDEATHSIG, …_SECCOMP, …_NO_NEW_PRIVS


def refuse_close_range():
    """From here on close_range(2) fails in this process, as in Linux before 5.9."""
    load_number, if_equal, answer = 0x20, 0x15, 0x06
    refused, allowed = 0x50000 | errno.ENOSYS, 0x7fff0000
    code = b"".join(struct.pack("HBBI", *instruction) for instruction in (
        (load_number, 0, 0, 0), (if_equal, 0, 1, 436), (answer, 0, 0, refused),
        (answer, 0, 0, allowed)))
    instructions = ctypes.create_string_buffer(code, len(code))
    program = struct.pack("HxxxxxxP", len(code) // 8, ctypes.addressof(instructions))
    call = ctypes.CDLL(None).prctl
    if call(_NO_NEW_RIGHTS, 1, 0, 0, 0) != 0 or call(_FILTER, 2, program) != 0:
        raise OSError("no filters of system calls")


class Ends(SignalTest):
    """What ends with the caller, its terminal or its timer."""

    def lasting(self):
        """A program that says that it is there, and later that it was never ended."""
        return f"import time; print('on'); time.sleep({time_limit(60)}); print('survived')"

    def test_a_terminal_that_hangs_up_ends_the_command(self):
        # vitamin leads the session, as under `ssh -t`: the kernel tells no other process.
        pid, terminal = pty.fork()
        if pid == 0:
            os.execve(self.vitamin, ["vitamin", "run", "--quiet", "--", sys.executable, "-uc",
                                     self.lasting()], self.environment(FAKE_PAGE=BOUND))
        output = b""
        while b"on\r\n" not in output:  # both writes of it: a write after the hang-up fails
            output += os.read(terminal, 1000)
        os.close(terminal)
        _, status = os.waitpid(pid, 0)
        self.assertEqual(os.waitstatus_to_exitcode(status), -signal.SIGHUP)

    def test_a_timer_that_the_caller_set_ends_the_command(self):
        seconds, output = 0.5, ""
        while output != "on\n":  # else it came before the command was there
            seconds *= 2
            process = self.start(self.lasting(), preexec_fn=lambda: signal.setitimer(
                signal.ITIMER_REAL, seconds))
            output = process.stdout.read()
            self.assertEqual(process.wait(time_limit(60)), -signal.SIGALRM)

    def test_a_command_ends_with_the_caller_where_the_caller_asked_for_that(self):
        code = ("import ctypes, subprocess, sys\n"
                "subprocess.Popen(sys.argv[1:], preexec_fn=lambda: ctypes.CDLL(None).prctl("
                f"{_DEATH_SIGNAL}, {int(signal.SIGKILL)}))\n"
                "input()\n")
        with subprocess.Popen(
                [sys.executable, "-c", code, self.vitamin, "run", "--quiet", "--", sys.executable,
                 "-uc", self.lasting()], text=True, env=self.environment(FAKE_PAGE=BOUND),
                stdin=subprocess.PIPE, stdout=subprocess.PIPE) as caller:
            self.assertEqual(caller.stdout.readline(), "on\n")
            caller.kill()
            self.assertEqual(caller.stdout.read(), "")


class Stops(SignalTest):
    def waiting(self):
        """A run whose command waits for let_end(); and the command."""
        process = self.start("print('on'); input(); raise SystemExit(7)", stdin=subprocess.PIPE)
        self.assertEqual(process.stdout.readline(), "on\n")
        return process, self.command_of(process)

    def assert_ends(self, process):
        self.let_end(process)
        self.assertEqual(process.wait(time_limit(60)), 7)

    def test_a_command_that_stops_stops_vitamin_where_the_kernel_lacks_close_range(self):
        try:
            process = self.start(f"{self.STOPS}; input(); raise SystemExit(7)",
                                 stdin=subprocess.PIPE, preexec_fn=refuse_close_range)
        except subprocess.SubprocessError:
            self.skipTest("this machine filters no system calls")
        self.wait_until_stopped(process)
        process.send_signal(signal.SIGCONT)
        self.assert_ends(process)

    def test_a_command_that_is_stopped_before_its_program_runs_stops_vitamin(self):
        program = self.script("#!/bin/sh\nread line\nexit 7\n")
        # Who executes the file waits until it is not leased any more.
        before = signal.signal(signal.SIGIO, signal.SIG_IGN)  # which says that one waits
        self.addCleanup(signal.signal, signal.SIGIO, before)
        with open(program, "rb") as file:
            try:
                fcntl.fcntl(file, fcntl.F_SETLEASE, fcntl.F_WRLCK)
            except OSError as error:
                self.skipTest(f"this file system leases no files: {error}")
            process = self.start_command(program, stdin=subprocess.PIPE)
            wait_until(lambda: fcntl.fcntl(file, fcntl.F_GETLEASE) != fcntl.F_WRLCK, "the command")
            command, = children_of(process.pid)
            os.kill(command, signal.SIGSTOP)
            self.wait_until_stopped(process)
        process.send_signal(signal.SIGCONT)
        self.assert_ends(process)

    def test_a_continue_that_comes_while_a_stop_is_passed_on_is_the_last_word(self):
        process, _ = self.waiting()
        with held_when_it_takes(process.pid, signal.SIGTSTP):
            process.send_signal(signal.SIGCONT)
        self.assert_ends(process)

    def test_a_command_that_is_soon_continued_does_not_stop_vitamin(self):
        # A shell would take the terminal back from a job that goes on.
        process, command = self.waiting()
        with held_at_its_fork(process.pid) as wait_for_fork:
            os.kill(command, signal.SIGSTOP)
            wait_for_fork()
            os.kill(command, signal.SIGCONT)
        wait_until(lambda: children_of(process.pid) == [command], "the end of what wakes vitamin")
        self.assertEqual(os.waitpid(process.pid, os.WNOHANG | os.WUNTRACED | os.WCONTINUED),
                         (0, 0))
        self.assert_ends(process)


if __name__ == "__main__":
    unittest.main()
