#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Takes fixes out one by one and lets the random CUDA programs find what is broken then.

    mutations.py [--programs N] [--scratch DIRECTORY] [NAME ...]

Each *.patch beside this file takes one fix out. A line "Kinds: a,b" at its head names the kinds of
fragments that are run (compare.py --only); without it, all are. In a scratch copy of the tree the
library is built with one patch after the other, and programs run until one differs. Exit code 1: a
patch no longer applies, or what it breaks is not found, or programs differ without any patch.
"""
import argparse
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
import time

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parent.parent.parent
sys.path.insert(0, str(HERE.parent))

import compare

TARGETS = ("vitamin_interpose_cuda", "soft_libcuda", "random_cuda_programs", "random_cuda_kernels")
LEFT_OUT = ("build", "dist", ".git", "__pycache__")


def run(*command, where):
    done = subprocess.run(command, cwd=where, capture_output=True, text=True, check=False)
    return done.returncode == 0, done.stdout + done.stderr


def build(tree, configure):
    if configure:
        built, said = run("cmake", "-S", ".", "--preset", "release", where=tree)
        if not built:
            return said
    built, said = run("ninja", "-C", "build/release", *TARGETS, where=tree)
    return "" if built else said


def copy_tree(tree):
    """Copies what differs, with the time of now: an object that was built of a patched file is
    then built again."""
    for directory, directories, names in os.walk(ROOT):
        directories[:] = [name for name in directories if name not in LEFT_OUT]
        there = tree / pathlib.Path(directory).relative_to(ROOT)
        there.mkdir(parents=True, exist_ok=True)
        links = [name for name in directories if (pathlib.Path(directory) / name).is_symlink()]
        for name in names + links:
            source, copy = pathlib.Path(directory) / name, there / name
            if source.is_symlink():
                copy.unlink(missing_ok=True)
                copy.symlink_to(source.readlink())
            elif not copy.exists() or copy.read_bytes() != source.read_bytes():
                shutil.copyfile(source, copy)
                shutil.copymode(source, copy)


def point_at(tree):
    out = tree / "build/release"
    os.environ |= {"PROGRAM": str(out / "tests/random_programs/random_cuda_programs"),
                   "RANDOM_KERNELS": str(out / "tests/random_programs/random_cuda_kernels.so"),
                   "DRIVER": str(out / "lib/soft"),
                   "LIBRARY": str(out / "lib/libvitamin_cuda.so")}


def kinds_of(patch):
    for line in patch.read_text().splitlines():
        if line.startswith("Kinds: "):
            return ["--only", line.removeprefix("Kinds: ").strip()]
        if line.startswith("--- "):
            break
    return []


def is_certain(difference, options):
    """A program that is only slow may be so for the machine's reasons: it counts when it is slow
    every time."""
    return (not difference.line.startswith(compare.SLOW)
            or all(compare.repeats(difference, options, 1) for _ in range(3)))


def find(programs, options):
    """(difference or None, programs that ran, seconds)"""
    began, ran = time.monotonic(), 0

    def progress(done):
        nonlocal ran
        ran = done

    at = 1
    while at <= programs:
        found = compare.compare(at, programs - at + 1, options=options, stop=True,
                                progress=lambda done, _, at=at: progress(at - 1 + done))
        if found := [one for one in found if is_certain(one, options)]:
            return found[0], ran, time.monotonic() - began
        at = ran + 1
    return None, ran, time.monotonic() - began


def mutate(tree, patch, programs):
    """One line of the table, and whether the mutation was found."""
    applied, said = run("patch", "-p1", "--fuzz=0", "-i", str(patch), where=tree)
    if not applied:
        return f"does not apply: {said.strip().splitlines()[0]}", False
    try:
        if said := build(tree, False):
            return f"does not compile: {said[-300:]}", False
        difference, ran, seconds = find(programs, kinds_of(patch))
        if difference is None:
            return f"NOT FOUND by {ran} programs in {seconds:.0f} s", False
        return (f"seed {difference.seed}, policy {difference.policy}, after {ran} programs, "
                f"{seconds:.0f} s: {difference.line.strip()}"), True
    finally:
        run("patch", "-R", "-p1", "-i", str(patch), where=tree)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("names", nargs="*")
    parser.add_argument("--programs", type=int, default=20_000)
    parser.add_argument("--scratch", type=pathlib.Path)
    words = parser.parse_args()
    patches = [patch for patch in sorted(HERE.glob("*.patch"))
               if not words.names or any(name in patch.stem for name in words.names)]
    scratch = words.scratch or pathlib.Path(tempfile.mkdtemp(prefix="mutations-"))
    tree = scratch / "tree"
    copy_tree(tree)
    if said := build(tree, True):
        sys.exit(f"the tree does not build:\n{said[-2000:]}")
    point_at(tree)
    difference, ran, seconds = find(1000, [])
    print(f"{'no patch':<40} {difference or 'no difference'}: {ran} programs, {seconds:.0f} s")
    right = difference is None
    for patch in patches:
        line, found = mutate(tree, patch, words.programs)
        right = right and found
        print(f"{patch.stem:<40} {line}", flush=True)
    if not words.scratch:
        shutil.rmtree(scratch)
    return 0 if right else 1


if __name__ == "__main__":
    sys.exit(main())
