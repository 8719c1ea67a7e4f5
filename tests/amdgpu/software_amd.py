# SPDX-License-Identifier: Apache-2.0
"""Shared by tests over the software AMD GPU: an environment without the caller's own settings, a
directory for each test, the GPU's trace.

Needs in the environment: SOFT_DRIVER (the fake kernel driver) and PROGRAMS.
"""
import os
import pathlib
import tempfile
import unittest

from rocm import without_settings

# The environment with which a program finds the GPU, and the one with which it finds none.
DEVICE = {"LD_PRELOAD": os.environ["SOFT_DRIVER"]}
NO_DEVICE = {"LD_PRELOAD": ""}
# A HIP program that forks while a stream of its own has a queue. 256 MiB: more than the runtime has
# left of what it asked the driver for before.
HIP_FORK = """
import ctypes, os
hip = ctypes.CDLL("libamdhip64.so.5")
memory, stream, word = ctypes.c_void_p(), ctypes.c_void_p(), ctypes.c_uint32(0)
print(hip.hipMalloc(ctypes.byref(memory), 4096), hip.hipStreamCreate(ctypes.byref(stream)),
      hip.hipMemsetD32Async(memory, 7, 16, stream), hip.hipStreamSynchronize(stream), flush=True)
child = os.fork()
if child == 0:
    print(hip.hipMalloc(ctypes.byref(ctypes.c_void_p()), 1 << 28), flush=True)
    os._exit(0)
os.waitpid(child, 0)
print(hip.hipMemsetD32Async(memory, 9, 16, stream), hip.hipStreamSynchronize(stream),
      hip.hipMemcpy(ctypes.byref(word), memory, 4, 2), word.value)
"""


def words(line):
    """'mask queue=2 cus=8' as {'': 'mask', 'queue': '2', 'cus': '8'}."""
    name, *pairs = line.split()
    return {"": name} | dict(pair.split("=", 1) for pair in pairs if "=" in pair)


def read_trace(file):
    return [words(line) for line in file.read_text().splitlines()] if file.exists() else []


def launches(trace):
    """The dispatches that are not the runtime's own."""
    return [line for line in trace if line[""] == "dispatch" and line["kernel"] != "?"]


class SoftwareAmd(unittest.TestCase):
    def setUp(self):
        temporary = tempfile.TemporaryDirectory(prefix="vitamin-amd-")
        self.addCleanup(temporary.cleanup)
        self.directory = pathlib.Path(temporary.name)

    def environment(self, **settings):
        """Each test has a GPU of its own, so its processes also have their device locks in the
        test's directory."""
        locks = {"VITAMIN_LOCK_DIRECTORY": str(self.directory)}
        return without_settings(os.environ) | DEVICE | locks | settings

    def new_file(self, name):
        return self.directory / f"{name}{len(list(self.directory.iterdir()))}"


class Programs(SoftwareAmd):
    PROGRAMS = pathlib.Path(os.environ.get("PROGRAMS", "."))

    def environment(self, **settings):
        return super().environment(MODULE_FILE=str(self.PROGRAMS / "module.co")) | settings
