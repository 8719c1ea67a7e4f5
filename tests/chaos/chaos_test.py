#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Whatever happens around programs under `vitamin run --daemon`, who is not killed ends natively.

Needs in the environment: BUILD (the build directory), MEMBER, ATTACKER, GRAPHS, TEST_KERNELS,
JUMPING_CLOCK_LIBRARY. VITAMIN_TEST_LONG=1: an hour instead of less than a minute.
"""
import fcntl
import os
import pathlib
import random
import subprocess
import sys
import tempfile
import unittest

HERE = pathlib.Path(__file__).resolve().parent
sys.path += [str(HERE.parent), str(HERE.parent / "daemon")]

import seed as seeds  # noqa: E402
import storm  # noqa: E402
from world import World  # noqa: E402

SHORT_EVENTS, LONG_SECONDS = 120, 3600


def programs():
    build = pathlib.Path(os.environ["BUILD"])
    return {"vitamin": str(build / "bin/vitamin"), "vitamind": str(build / "bin/vitamind"),
            "train": str(build / "bin/demo-train"), "serve": str(build / "bin/demo-serve"),
            "train_hip": str(build / "bin/demo-train-hip"), "driver": str(build / "lib/soft"),
            "graphs": os.environ["GRAPHS"], "kernels": os.environ["TEST_KERNELS"],
            "member": os.environ["MEMBER"], "attacker": os.environ["ATTACKER"],
            "clock": os.environ["JUMPING_CLOCK_LIBRARY"]}


class Chaos(unittest.TestCase):
    def setUp(self):
        directory = tempfile.TemporaryDirectory(prefix="vitamin-chaos-", dir="/tmp")
        self.addCleanup(directory.cleanup)
        self.world = World(directory.name, programs())
        self.addCleanup(self.world.unmount)

    def test_a_storm_leaves_everything_as_it_was(self):
        for limit in self.world.limits():
            print("not tried:", limit, file=sys.stderr)
        seed = seeds.seed()
        weather = storm.Storm(self.world, seed, say=print if "-v" in sys.argv else None)
        if seeds.long_form():
            weather.run(seconds=LONG_SECONDS)
        else:
            weather.run(events=SHORT_EVENTS, ends=10)
        print(f"{weather.number} clients, {weather.counts.total()} events: "
              f"{dict(weather.counts.most_common())}", file=sys.stderr)
        self.assertGreater(weather.ended, 10)
        self.assertGreater(weather.looks, 0)

    def assert_found(self, words, spoil, seconds=3):
        """A storm in which something is wrong is told from one in which nothing is."""
        weather = storm.Storm(self.world, 1)
        weather.happen = lambda index: spoil(weather, index)
        with self.assertRaisesRegex(storm.Broken, words) as found:
            weather.run(seconds=seconds)
        self.assertIn("repeat with VITAMIN_TEST_SEED=1", str(found.exception))

    def test_another_output_than_the_native_one_is_found(self):
        def spoil(weather, index):
            if index == 0:
                weather.native["quick"] = (0, "other bits\n")
                weather.kinds = ["quick"]
            storm.Storm.start_client(weather, random.Random(index))
        self.assert_found("natively 'other bits", spoil)

    def test_another_exit_code_than_the_native_one_is_found(self):
        def spoil(weather, index):
            if index == 0:
                weather.native["no driver"] = (6, "")
                weather.kinds = ["no driver"]
            storm.Storm.start_client(weather, random.Random(index))
        self.assert_found("ended with 5, natively 6", spoil)

    def test_a_client_that_does_not_end_is_found(self):
        def spoil(weather, index):
            if index == 0:
                weather.kinds = ["train"]
                storm.Storm.start_client(weather, random.Random(index))
                os.kill(weather.clients[0].process.pid, storm.signal.SIGSTOP)
                weather.clients[0].started = -1e6  # beyond the limit of any machine
        self.assert_found("has not ended", spoil)

    def test_a_daemon_that_dies_of_itself_is_found(self):
        def spoil(weather, index):
            for process in weather.daemons.running:
                process.send_signal(storm.signal.SIGSEGV)
        self.assert_found("vitamind ended with -11", spoil)

    def test_a_directory_that_stays_is_found(self):
        def spoil(weather, index):
            path = self.world.directory / "run/vitamin-run-stays"
            path.touch()
        self.assert_found("directories of runs: ", spoil, seconds=1)

    def test_a_lock_that_stays_is_found(self):
        def spoil(weather, index):
            if index == 0:
                file = open(self.world.directory / "locks/kept", "w", encoding="ascii")
                self.addCleanup(file.close)
                fcntl.flock(file, fcntl.LOCK_EX)
        self.assert_found("locks held|descriptors of this process", spoil, seconds=1)


def main():
    # Mounts of our own, which end with us.
    if os.geteuid() == 0 and not os.environ.get("CHAOS_OWN_MOUNTS"):
        os.environ["CHAOS_OWN_MOUNTS"] = "1" if os.system(
            "unshare --mount --propagation private mount -t tmpfs none /dev/shm 2>/dev/null") == 0 \
            else ""
        if os.environ["CHAOS_OWN_MOUNTS"]:
            sys.exit(subprocess.call(["unshare", "--mount", "--propagation", "private",
                                      sys.executable, *sys.argv]))
    unittest.main()


if __name__ == "__main__":
    main()
