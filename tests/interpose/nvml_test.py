# SPDX-License-Identifier: Apache-2.0
"""What NVML answers under a quota to a program that opens it as pynvml does: by ctypes.

Environment: see programs_test.py; FAKE_NVML (a fake libnvidia-ml).
"""
import os
import subprocess
import sys
import tempfile
import unittest

import doors_test
import memory_test
from memory_test import MIB, OK, QUOTA
from time_limit import time_limit

TOTAL, RESERVED = 16 << 30, 600 * MIB
VERSION_2 = 40 | 2 << 24

ASKS = """
import ctypes, os, sys
nvml = ctypes.CDLL(os.environ["FAKE_NVML"])
class V1(ctypes.Structure):
    _fields_ = [(name, ctypes.c_ulonglong) for name in ("total", "free", "used")]
class V2(ctypes.Structure):
    _fields_ = [("version", ctypes.c_uint)] + [
        (name, ctypes.c_ulonglong) for name in ("total", "reserved", "free", "used")]
device = ctypes.c_void_p()
assert nvml.nvmlInit_v2() == 0
assert nvml.nvmlDeviceGetHandleByIndex_v2(0, ctypes.byref(device)) == 0
def ask():
    one, two, wrong = V1(), V2(version=int(sys.argv[1])), V2(version=1)
    print(nvml.nvmlDeviceGetMemoryInfo(device, ctypes.byref(one)), one.total, one.free, one.used)
    print(nvml.nvmlDeviceGetMemoryInfo_v2(device, ctypes.byref(two)), two.total, two.reserved,
          two.free, two.used)
    print(nvml.nvmlDeviceGetMemoryInfo_v2(device, ctypes.byref(wrong)))
    print("libcuda" in open("/proc/self/maps").read(), flush=True)
ask()
if "fork" in sys.argv:
    if os.fork() == 0:
        ask()
        os._exit(0)
    os.wait()
"""


def asked(*words, quota=None, preload=True, **environment):
    """The lines of the program, as lists of numbers and words."""
    if quota is not None:
        environment["VITAMIN_MEMORY"] = str(quota)
    changed = doors_test.changed_environment(
        preload, environment={"VITAMIN_LOCK_DIRECTORY": "", **environment,
                              "ASAN_OPTIONS": "detect_leaks=0"})  # Python has some
    done = subprocess.run([sys.executable, "-c", ASKS, str(VERSION_2), *words],
                          capture_output=True, text=True, timeout=time_limit(60), env=changed,
                          check=True)
    return [[int(word) if word.isdigit() else word for word in line.split()]
            for line in done.stdout.splitlines()]


class Nvml(unittest.TestCase):
    UUID = "GPU-00000000-1111-2222-3333-444444444444"

    def check(self, lines, free, quota=QUOTA):
        first, second, wrong, cuda = lines
        self.assertEqual(first, [OK, quota + RESERVED, free, quota - free + RESERVED])
        self.assertEqual(second, [OK, quota + RESERVED, RESERVED, free, quota - free])
        self.assertEqual(wrong, [25])
        self.assertEqual(cuda, ["False"])  # CUDA was not touched

    def test_without_a_quota_the_answers_are_native(self):
        native = asked(preload=False, FAKE_NVML_USED=str(MIB))
        self.assertEqual(asked(FAKE_NVML_USED=str(MIB)), native)
        self.check(native, TOTAL - MIB, TOTAL)

    def test_a_quota_of_the_whole_device_answers_as_natively(self):
        native = asked(preload=False, FAKE_NVML_USED=str(MIB))
        self.assertEqual(asked(quota="100%", FAKE_NVML_UUID=self.UUID, FAKE_NVML_USED=str(MIB)),
                         native)

    def test_total_and_free_are_within_the_quota(self):
        self.check(asked(quota=QUOTA, FAKE_NVML_UUID=self.UUID), QUOTA)
        self.check(asked(quota="25%", FAKE_NVML_UUID=self.UUID), TOTAL // 4, TOTAL // 4)

    def test_a_device_with_less_than_the_quota_bounds_it(self):
        self.check(asked(quota=QUOTA, FAKE_NVML_UUID=self.UUID, FAKE_NVML_USED=str(TOTAL - MIB)),
                   MIB)

    def test_a_part_of_a_device_is_answered_natively(self):
        self.assertEqual(asked(quota=QUOTA, FAKE_NVML_UUID="MIG-1"), asked(preload=False))

    def test_a_forked_child_is_answered_within_the_quota_or_natively_and_never_otherwise(self):
        lines = asked("fork", quota=QUOTA, FAKE_NVML_UUID=self.UUID)
        self.check(lines[:4], QUOTA)
        self.assertIn(lines[4:], (lines[:4], asked(preload=False)))

    def test_what_other_processes_of_the_run_have_is_not_free(self):
        with tempfile.TemporaryDirectory() as directory, \
                memory_test.Program(directory=directory) as program:
            self.assertEqual(program.ask(f"take cuMemAlloc {40 * MIB} a"), OK)
            name, = (each for each in os.listdir(directory) if each.startswith("quota-GPU-"))
            uuid = name.removeprefix("quota-")
            for _ in range(2):  # asking leaves nothing behind
                self.check(asked(quota=QUOTA, FAKE_NVML_UUID=uuid, VITAMIN_RUN_DIR=directory),
                           24 * MIB)
            self.assertEqual(program.free(), 24 * MIB)


if __name__ == "__main__":
    unittest.main()
