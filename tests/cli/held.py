# SPDX-License-Identifier: Apache-2.0
"""Keeps processes from running for a while, as a busy machine would; ptrace(2)."""
import contextlib
import ctypes
import errno
import os
import pathlib
import unittest

_SEIZE, _INTERRUPT, _TO_SYSCALL, _DETACH = 0x4206, 0x4207, 24, 17
_ANY_CHILD = 0x40000000  # __WALL
_WITH_FORKS, _A_FORK = 2, 1  # PTRACE_O_TRACEFORK, PTRACE_EVENT_FORK
_ptrace = ctypes.CDLL(None, use_errno=True).ptrace
_ptrace.argtypes = [ctypes.c_long, ctypes.c_long, ctypes.c_void_p, ctypes.c_void_p]
_ptrace.restype = ctypes.c_long


def _call(request, pid, data=None):
    if _ptrace(request, pid, None, data) == 0:
        return
    error = ctypes.get_errno()
    if error in (errno.EPERM, errno.ENOSYS):
        raise unittest.SkipTest("this machine does not let us trace our own children")
    raise OSError(error, os.strerror(error))


def _wait(pid):
    """The event for which it stands now. Left unread, a parent would take it for an end."""
    _, status = os.waitpid(pid, _ANY_CHILD)
    assert os.WIFSTOPPED(status), status
    return status >> 16


@contextlib.contextmanager
def held(pid):
    """Within, `pid` executes nothing, and signals for it stay pending."""
    _call(_SEIZE, pid)
    _call(_INTERRUPT, pid)
    _wait(pid)
    try:
        yield
    finally:
        _call(_DETACH, pid)


@contextlib.contextmanager
def held_when_it_takes(pid, number):
    """Sends a signal to `pid`, which waits for signals. Within, it has taken this one and executed
    nothing since."""
    with held(pid):
        os.kill(pid, number)
        while is_pending(pid, number):
            _call(_TO_SYSCALL, pid)  # its next beginning or end
            _wait(pid)
        yield


@contextlib.contextmanager
def held_at_its_fork(pid):
    """Gives a function that waits for the next fork of `pid` and answers the new process. Both
    execute nothing from there until the end, where the new one goes on first."""
    forked = []

    def wait_for_fork():
        event = _wait(pid)
        assert event == _A_FORK, event
        forked.extend(child for child in children_of(pid) if child not in before)
        _wait(*forked)
        return forked[0]

    before = children_of(pid)
    _call(_SEIZE, pid, _WITH_FORKS)
    try:
        yield wait_for_fork
    finally:
        for each in (*forked, pid):
            _call(_DETACH, each)


def children_of(pid):
    return [int(child) for child in
            pathlib.Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def state(pid):
    """The letter of /proc/PID/stat: R, S, T (stopped), t (held), Z …"""
    return pathlib.Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]


def is_pending(pid, number):
    """Whether the process has not taken the signal yet."""
    for line in pathlib.Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("ShdPnd:"):
            return bool(int(line.split()[1], 16) >> (number - 1) & 1)
    raise AssertionError(f"/proc/{pid}/status names no pending signals")
