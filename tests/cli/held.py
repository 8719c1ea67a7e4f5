# SPDX-License-Identifier: Apache-2.0
"""Keeps a process from running for a while, as a busy machine would; ptrace(2)."""
import contextlib
import ctypes
import errno
import os
import pathlib
import unittest

_SEIZE, _INTERRUPT, _DETACH = 0x4206, 0x4207, 17
_ANY_CHILD = 0x40000000  # __WALL
_ptrace = ctypes.CDLL(None, use_errno=True).ptrace
_ptrace.argtypes = [ctypes.c_long, ctypes.c_long, ctypes.c_void_p, ctypes.c_void_p]
_ptrace.restype = ctypes.c_long


def _call(request, pid):
    if _ptrace(request, pid, None, None) == 0:
        return
    error = ctypes.get_errno()
    if error in (errno.EPERM, errno.ENOSYS):
        raise unittest.SkipTest("this machine does not let us trace our own children")
    raise OSError(error, os.strerror(error))


@contextlib.contextmanager
def held(pid):
    """Within, `pid` executes nothing, and signals for it stay pending."""
    _call(_SEIZE, pid)
    _call(_INTERRUPT, pid)
    _, status = os.waitpid(pid, _ANY_CHILD)  # else a parent's wait would take it for an end
    assert os.WIFSTOPPED(status), status
    try:
        yield
    finally:
        _call(_DETACH, pid)


def state(pid):
    """The letter of /proc/PID/stat: R, S, T (stopped), t (held), Z …"""
    return pathlib.Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]


def is_pending(pid, number):
    """Whether the process has not taken the signal yet."""
    for line in pathlib.Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("ShdPnd:"):
            return bool(int(line.split()[1], 16) >> (number - 1) & 1)
    raise AssertionError(f"/proc/{pid}/status names no pending signals")
