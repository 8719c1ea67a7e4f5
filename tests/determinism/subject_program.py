# SPDX-License-Identifier: Apache-2.0
"""A command to verify, that does on purpose what the tests of `vitamin verify` are about.

    subject_program.py KIND DETERMINISM     KIND: fails, terminal, times, random, hangs, memory,
                                            sizes (fails unless the device has SUBJECT_BYTES)

It runs the suite's program and then misbehaves, or does so instead.
"""
import ctypes
import os
import subprocess
import sys
import time


def main():
    kind, program = sys.argv[1:]
    if kind == "fails":
        print("no such model", file=sys.stderr)
        return 5
    if kind == "terminal":
        import termios
        termios.tcgetattr(0)
    if kind == "sizes":
        driver = ctypes.CDLL("libcuda.so.1")
        total = ctypes.c_size_t()
        driver.cuInit(0)
        driver.cuDeviceTotalMem_v2(ctypes.byref(total), 0)
        print("of", total.value)
        if total.value != int(os.environ["SUBJECT_BYTES"]):
            print("another size", file=sys.stderr)
            return 7
    code = subprocess.call([program, "--trials", "2", "--only", "sum"])
    if kind == "times":
        print("took", time.perf_counter(), "s")
    if kind == "random":
        print("drawn", "abcdefghijklmnopqrstuvwxyz"[os.urandom(1)[0] % 26], os.urandom(4).hex())
    if kind == "hangs":
        time.sleep(1000)
    if kind == "memory" and os.environ.get("VITAMIN_POLICY", "fifo") != "fifo":
        print("CUDA error: out of memory", file=sys.stderr)
        return 1
    return code


if __name__ == "__main__":
    sys.exit(main())
