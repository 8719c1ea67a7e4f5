#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The packages for arm64: made here by a cross compiler, and run in qemu's emulation.

That shows that they are complete and that calls reach the overrides. It shows nothing of arm64's
order of memory accesses: qemu keeps that of the machine that it runs on. In the long form: a chroot
is fetched and Vitamin compiled a second time.
"""
import os
import re
import subprocess
import unittest

from machine import BUILD, SOURCE, VERSION, alone
from packages_test import FLOOR, FLOOR_OF_PROGRAMS, field
import seed
from time_limit import time_limit

DIRECTORY = BUILD / "tests/operations/arm64"
PLACE = "/build/tests/interpose"
PROGRAMS = [f"{name}_{reach}_{form}" for name in ("scenarios", "random_programs")
            for reach in ("linked", "found") for form in ("legacy", "per_thread")]
TARGETS = ["soft_libcuda", "test_kernels", "random_kernels", "pages", *PROGRAMS]


def inside(*words, **options):
    return subprocess.run([SOURCE / "deploy/arm64/inside", DIRECTORY, *map(str, words)], text=True,
                          capture_output=True, timeout=time_limit(600), **options)


def symbols(path):
    """The versions of glibc that a file needs, and the libraries."""
    said = subprocess.run(["readelf", "-W", "--dynamic", "--version-info", path], text=True,
                          capture_output=True, check=True).stdout
    versions = {tuple(map(int, version.split(".")))
                for version in re.findall(r"Name: GLIBC_(\d+(?:\.\d+)+)", said)}
    return versions, set(re.findall(r"NEEDED.*\[(.*?)\]", said))


class CrossBuilt(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        if not seed.long_form():
            raise unittest.SkipTest("the packages for arm64 are built in the long form")
        if os.geteuid() != 0:
            raise unittest.SkipTest("needs root")
        with alone(DIRECTORY):
            done = subprocess.run([SOURCE / "deploy/arm64/build", DIRECTORY,
                                   os.environ["CUDA_HEADERS"], *TARGETS], text=True,
                                  stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        if done.returncode != 0:
            raise AssertionError(done.stdout[-4000:])

    def run_program(self, program, *words, preload=True, door="dlsym"):
        """What it says, and (launches seen, launches bound)."""
        kernels = "random_kernels" if program.startswith("random") else "../test_kernels"
        environment = ["LD_LIBRARY_PATH=/build/lib/soft", "VITAMIN_SOFT_DEVICES=2",
                       f"DRIVER_DOOR={door}", "VITAMIN_POLICY=random", "VITAMIN_SEED=7",
                       f"TEST_KERNELS={PLACE}/{kernels}.so"]
        if not preload:
            return inside("env", *environment, "qemu-aarch64-static", f"{PLACE}/{program}",
                          *words), None
        run = inside("mktemp", "-d").stdout.strip()
        environment += ["LD_PRELOAD=/build/lib/libvitamin_cuda.so", f"VITAMIN_RUN_DIR={run}"]
        done = inside("env", *environment, "qemu-aarch64-static", f"{PLACE}/{program}", *words)
        page = inside("qemu-aarch64-static", f"{PLACE}/pages", run).stdout.split()
        inside("rm", "-r", run)
        return done, tuple(map(int, page[2:4]))

    def test_packages_are_for_arm64_and_need_no_newer_glibc_than_stated(self):
        packages = {path.name.split("_")[0]: path
                    for path in (DIRECTORY / "packages").glob("*.deb")}
        self.assertLessEqual({"vitamind", "vitamin-cli", "vitamin-preload", "libvitamin-dev",
                              "slurm-spank-vitamin", "vitamin-k8s-plugin"}, set(packages))
        for name, path in packages.items():
            self.assertEqual(field(path, "Architecture"),
                             "all" if name == "libvitamin-dev" else "arm64")
        tree = DIRECTORY / "tree"
        for name in ("vitamind", "vitamin-cli", "vitamin-preload"):
            subprocess.run(["dpkg-deb", "-x", packages[name], tree], check=True)
        common = {"libc.so.6", "libm.so.6", "ld-linux-aarch64.so.1"}
        libraries = sorted((tree / "usr/lib").rglob("*.so"))
        self.assertEqual([path.name for path in libraries], ["libvitamin_cuda.so"])
        for path, floor, allowed in (
                (libraries[0], FLOOR, common | {"libdl.so.2", "libpthread.so.0"}),
                (tree / "usr/bin/vitamin", FLOOR_OF_PROGRAMS, common | {"libudev.so.1"}),
                (tree / "usr/bin/vitamind", FLOOR_OF_PROGRAMS, common | {"libudev.so.1"})):
            versions, needed = symbols(path)
            self.assertTrue(versions)
            self.assertLessEqual(max(versions), floor, path.name)
            self.assertLessEqual(needed, allowed, path.name)

    def test_the_program_says_its_version(self):
        done = inside("qemu-aarch64-static", "/build/bin/vitamin", "version")
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertIn(VERSION, done.stdout)

    def test_programs_find_the_same_under_vitamin_and_are_bound(self):
        for program in PROGRAMS:
            words = ("1", "10") if program.startswith("random") else ("copies",)
            for door in ("dlsym", "proc") if "_found_" in program else ("",):
                with self.subTest(program=program, door=door):
                    bare, _ = self.run_program(program, *words, preload=False, door=door)
                    self.assertEqual(bare.returncode, 0, bare.stderr)
                    done, (seen, bound) = self.run_program(program, *words, door=door)
                    self.assertEqual((done.returncode, done.stdout, done.stderr),
                                     (0, bare.stdout, ""))
                    self.assertGreater(seen, 0)
                    self.assertEqual(bound, seen)


if __name__ == "__main__":
    unittest.main()
