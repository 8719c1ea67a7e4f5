# SPDX-License-Identifier: Apache-2.0
"""Where processes spend their CPU time, by library: bench/programs/cpu_samples.cpp, read."""

import bisect
import collections
import pathlib
import struct
import subprocess

import harness

OURS = "libvitamin_"
SAMPLE = struct.Struct("QQ")


def library():
    return harness.prefix() / "lib" / "vitamin" / "bench" / "cpu_samples.so"


def environment(directory):
    return {"LD_PRELOAD": str(library()), "VITAMIN_SAMPLES": str(directory)}


def family(pid):
    """A process and everything that it has started and that still runs."""
    found = [pid]
    for one in found:
        try:
            for children in pathlib.Path(f"/proc/{one}/task").glob("*/children"):
                found += map(int, children.read_text().split())
        except OSError:  # a process or a thread that has ended meanwhile
            continue
    return found


class Mappings:
    """Libraries of a living process, by address."""

    def __init__(self, pid):
        self.found = []
        for line in pathlib.Path(f"/proc/{pid}/maps").read_text().splitlines():
            begin_end, mode, offset, _, _, *name = line.split(None, 5)
            if "x" in mode:
                begin, end = (int(x, 16) for x in begin_end.split("-"))
                self.found.append((begin, end, int(offset, 16),
                                   pathlib.Path(name[0]).name if name else "(anonymous)"))
        self.begins = [begin for begin, *_ in self.found]

    def place(self, address):
        """Name of the file, and the offset in it."""
        i = bisect.bisect(self.begins, address) - 1
        if i < 0 or address >= self.found[i][1]:
            return "(unknown)", 0
        begin, _, offset, name = self.found[i]
        return name, address - begin + offset


def taken(directory, pid, windows):
    """Of a living process and the programs that it has started and that still run, within `windows`
    (begin and end in ns of CLOCK_MONOTONIC): {library: samples}, and of Vitamin's own {offset:
    samples}."""
    modules, ours = collections.Counter(), collections.Counter()
    for one in family(pid):
        try:
            data = (pathlib.Path(directory) / str(one)).read_bytes()
            mappings = Mappings(one)
        except OSError:  # it takes none, or has ended
            continue
        for ns, address in SAMPLE.iter_unpack(data[:len(data) // SAMPLE.size * SAMPLE.size]):
            if any(begin <= ns < end for begin, end in windows):
                name, offset = mappings.place(address)
                modules[name] += 1
                if name.startswith(OURS):
                    ours[hex(offset)] += 1
    return {"modules": dict(modules), "ours": dict(ours)}


def functions(path, offsets):
    """{function: samples} by the symbols of the library that was sampled, before it was
    stripped."""
    run = lambda *words: subprocess.run([*words, str(path)], capture_output=True, text=True,
                                        check=True).stdout.splitlines()
    symbols = sorted((int(address, 16), name) for address, kind, name in
                     (line.split(None, 2) for line in run("nm", "-C", "--defined-only"))
                     if kind in "tTwWi")
    segments = [[int(x, 16) for x in (f[1], f[2], f[4])] for f in
                (line.split() for line in run("readelf", "-lW")) if f[:1] == ["LOAD"]]
    starts, found = [address for address, _ in symbols], collections.Counter()
    for offset, count in offsets.items():
        for begin, address, size in segments:
            if begin <= int(offset, 16) < begin + size:
                at = bisect.bisect(starts, int(offset, 16) - begin + address) - 1
                found[symbols[at][1]] += count
    return found
