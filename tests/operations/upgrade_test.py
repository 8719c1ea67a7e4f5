#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""vitamind is replaced under load, by its own version, by the previous one and back.

The load is eight programs over the software device. None loses its place: each is a client of every
vitamind that comes, its bits are those of a run alone, and this tree's vitamind leases no SM twice.
Where the machine is so busy that a program takes vitamind for silent, what overlaps by that is not
counted.

The version before is built from the history of this tree (the newest commit that speaks the
protocol's version before this one), in the long form; or VITAMIN_PREVIOUS names a build of it.
"""
import json
import os
import pathlib
import shutil
import subprocess
import sys
import threading
import time
import unittest

HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent / "daemon"))
from harness import MAJOR, MINOR  # noqa: E402
from machine import BUILD, SOURCE, alone  # noqa: E402
import programs_over_daemon_test as programs  # noqa: E402
import seed  # noqa: E402
from time_limit import time_limit, wait_until  # noqa: E402

VERSION = "daemon/protocol/version.h"
# Words of CMake's cache that say where the headers are.
KEPT = ("VITAMIN_CUDA_INCLUDE_DIR", "CMAKE_BUILD_TYPE", "CMAKE_CXX_COMPILER_LAUNCHER")


def git(*words):
    return subprocess.run(["git", "-C", SOURCE, *words], text=True, capture_output=True,
                          check=True).stdout


def commit_of(major, minor):
    """The newest commit with that version of the protocol; None: there is none."""
    wanted = {f"kMajor = {major};", f"kMinor = {minor};"}
    try:
        commits = git("rev-list", "--max-count=2000", "HEAD", "--", VERSION).split()
        candidates = [parent for commit in commits
                      for parent in (commit, *git("rev-parse", f"{commit}^@").split())]
    except (subprocess.CalledProcessError, FileNotFoundError):
        return None
    for commit in candidates:
        text = subprocess.run(["git", "-C", SOURCE, "show", f"{commit}:{VERSION}"], text=True,
                              capture_output=True).stdout
        if all(word in text for word in wanted):
            return commit
    return None


def build(commit):
    """A build of vitamind, `vitamin` and the preloaded library of that commit."""
    directory = BUILD / "tests/operations/previous"
    with alone(directory):
        done = directory / commit
        if not done.exists():
            for old in ("source", "build"):
                shutil.rmtree(directory / old, ignore_errors=True)
            (directory / "source").mkdir()
            archive = subprocess.run(["git", "-C", SOURCE, "archive", commit], check=True,
                                     capture_output=True).stdout
            subprocess.run(["tar", "-x", "-C", directory / "source"], input=archive, check=True)
            cache = (BUILD / "CMakeCache.txt").read_text().splitlines()
            kept = [f"-D{line}" for line in cache if line.split(":")[0] in KEPT]
            for words in ([os.environ["CMAKE"], "-G", "Ninja", "-S", directory / "source", "-B",
                           directory / "build", *kept],
                          [os.environ["CMAKE"], "--build", directory / "build", "--target",
                           "vitamind", "vitamin", "vitamin_interpose_cuda"]):
                made = subprocess.run(words, text=True, capture_output=True)
                if made.returncode != 0:
                    raise AssertionError(f"{commit}: {made.stdout[-2000:]}{made.stderr[-2000:]}")
            done.touch()
    return directory / "build"


def previous():
    """A build of the previous version. Raises SkipTest if there is none."""
    if given := os.environ.get("VITAMIN_PREVIOUS"):
        return pathlib.Path(given)
    if not seed.long_form():
        raise unittest.SkipTest("the version before is built in the long form only")
    if (commit := commit_of(MAJOR, MINOR - 1)) is None:
        raise unittest.SkipTest(f"no commit of the history speaks {MAJOR}.{MINOR - 1}")
    return build(commit)


class Watch:
    """Watches a daemon's decisions until stop(): the longest time without one, and whether an SM
    was ever leased twice."""

    def __init__(self, test, daemon):
        self.test, self.daemon = test, daemon
        self.longest, self.problem = 0.0, None
        self.grants, self.since = None, time.monotonic()
        self.stopped = threading.Event()
        self.thread = threading.Thread(target=self.run)
        self.thread.start()

    def run(self):
        while not self.stopped.wait(0.002):
            try:
                status = self.daemon.status()
            except (OSError, ValueError):
                continue  # one daemon has ended and the next one has not started
            device = status["devices"][0] if status["devices"] else None
            grants = (status["daemon"]["process"], device and device["grants"])
            now = time.monotonic()
            if grants != self.grants and device and device["grants"] > 0:
                self.longest = max(self.longest, now - self.since)
                self.grants, self.since = grants, now
            if any("age_ms" not in hold for held in status["devices"] for hold in held["held"]):
                continue  # of a release that does not say which leases are of before, and overlap
            try:
                self.test.check_disjoint(status)
            except AssertionError as problem:
                self.problem = problem

    def stop(self):
        self.stopped.set()
        self.thread.join()
        if self.problem is not None:
            raise self.problem


class Upgrade(programs.UnderDaemon):
    CLIENTS = 8

    def program(self, name):
        return [str(BUILD / "bin" / name), str(self.steps)]

    def alone(self):
        return programs.hash_of(subprocess.run(
            self.program("demo-train"), env=self.environment, text=True, capture_output=True,
            timeout=time_limit(120), check=True).stdout)

    def run_under(self, daemon, name, number, socket=None):
        """As the base class, but every second program has the library of the other tree."""
        prefix = self.prefixes[number % len(self.prefixes)]
        before, os.environ["VITAMIN"] = os.environ["VITAMIN"], str(prefix / "bin/vitamin")
        try:
            return super().run_under(daemon, name, number, socket)
        finally:
            os.environ["VITAMIN"] = before

    def all_at_work(self, daemon, clients):
        """Waits until all programs are clients and have had several grants. False: one
        has ended before."""
        def there():
            if any(process.poll() is not None for process in self.processes):
                return "ended"
            status = daemon.status()
            known = {client["process"] for client in status["clients"]}
            return known == clients and status["devices"][0]["grants"] >= 20 * self.CLIENTS
        return wait_until(there, "all clients at work with this vitamind", 60) is True

    def upgraded(self, prefixes, rounds):
        """Number of replacements while all worked; the longest time without a decision."""
        self.prefixes = prefixes
        expected = self.alone()
        # A policy whose parameters every release knows.
        daemon = self.daemon("--policy", "extremes:narrow=1", "--answer-within", "3600",
                             program=str(prefixes[0] / "bin/vitamind"))
        self.processes, clients = self.started(daemon, ["demo-train"] * self.CLIENTS)
        clients = set(clients)
        replaced = restarts = overlaps = 0
        at_work = self.all_at_work(daemon, clients)
        watch = Watch(self, daemon)
        try:
            while at_work and replaced < rounds:
                daemon.end()  # as in a package upgrade
                prefix = prefixes[(replaced + 1) % len(prefixes)]
                daemon.words[0] = str(prefix / "bin/vitamind")
                daemon.start()
                restarts += 1
                at_work = self.all_at_work(daemon, clients)
                replaced += at_work
                device, = daemon.status()["devices"]
                self.assertEqual(device["overdue"], 0, prefix)
                if prefix == BUILD:  # a release before may grant what clients of before still use
                    overlaps += device["overlaps"]
        finally:
            watch.stop()
        starved = False  # took a vitamind for silent, and went on beside the leases of others
        for process in self.processes:
            output, errors = process.communicate(timeout=time_limit(120))
            self.assertEqual(process.returncode, 0, errors)
            self.assertEqual(programs.hash_of(output), expected)
            starved = starved or errors.count("vitamind is gone") > restarts
        if not starved:
            self.assertEqual(overlaps, 0, daemon.log())
        daemon.end()
        return replaced, watch.longest

    def check(self, prefixes, rounds, what):
        for self.steps in (400, 1600, 6400):  # more if a program ended before the last replacement
            replaced, longest = self.upgraded(prefixes, rounds)
            if replaced == rounds:
                break
        self.assertEqual(replaced, rounds, "programs always ended before")
        print(json.dumps({"what": what, "clients": self.CLIENTS, "replaced": replaced,
                          "longest_ms_without_a_decision": round(1000 * longest, 1)}))

    def test_eight_clients_keep_their_leases_and_bits(self):
        self.check([BUILD], 2, "the same version")

    def test_downgrade_and_upgrade_with_clients_of_both_versions(self):
        self.check([BUILD, previous()], 4, f"{MAJOR}.{MINOR} and {MAJOR}.{MINOR - 1} in turn")


class History(unittest.TestCase):
    def test_the_previous_version_is_found_in_the_history(self):
        if subprocess.run(["git", "-C", SOURCE, "rev-parse", "HEAD"],
                          capture_output=True).returncode != 0:
            self.skipTest("no history here")
        if git("rev-parse", "--is-shallow-repository").strip() == "true":
            self.skipTest("the history is cut off")
        commit = commit_of(MAJOR, MINOR - 1)
        self.assertIsNotNone(commit)
        self.assertIn(f"kMinor = {MINOR - 1};", git("show", f"{commit}:{VERSION}"))
        self.assertIsNone(commit_of(MAJOR, MINOR + 1))


if __name__ == "__main__":
    unittest.main()
