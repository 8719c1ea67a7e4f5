# SPDX-License-Identifier: Apache-2.0
"""Memory stays flat: objects that are made and destroyed again and again, bare and under the
preloaded library, over the software driver.

What a process holds is looked at after each of several rounds; the first ones warm up. Growth is
what the rounds add, in the median and from the least of the first to the least of the last ones,
whichever is less: what comes and goes does not count, nor does a step now and then
(a table that doubles, a queue that the pool makes because more streams than ever were busy at a
time, and keeps). It is compared with the growth of the bare program, whose driver may grow as well.
Growth is looked for once more in four times as many rounds: what is held for a while (executables
that were not dropped yet) differs by more from round to round than a leak
adds.

A policy that moves many streams makes the pool grow queues for as many as are busy at a time: where
streams are busy the policy is one that does not.

VITAMIN_TEST_LONG=1: 100,000 objects of each kind, and the resident (without a sanitizer) and device
memory as well, to 1 % of the native.

Environment: see doors_test.py; besides TEST_KERNELS.
"""
import itertools
import os
import statistics
import tempfile
import unittest

import doors_test

LONG = os.environ.get("VITAMIN_TEST_LONG") == "1"
# A sanitizer keeps what was freed, and its shadow: its resident memory is not ours.
MEASURED = ("device",) if os.environ["SANITIZED"] == "1" else ("resident", "device")
ROUNDS, WARM_UP = 10, 2
ROUNDS_AGAIN = 4 * ROUNDS
# The device's pool has a block for each free that is behind when the next allocation comes: of how
# many objects at most that may be (flat_memory.cpp waits so often), and how large one is.
BEHIND, BLOCK = 8, 4096
ALLOCATED_ELSEWHERE = ("pool_memory_used_elsewhere",)
# In a round: two queues of the pool over the software driver.
USUAL_NOISE = 32 << 10
BYTES_PER_OBJECT = 4


def run(*words, preload, policy="fifo", audit=None):
    environment = {"VITAMIN_POLICY": policy, "VITAMIN_SEED": "1", "VITAMIN_SOFT_DEVICES": "2"}
    if audit:
        environment["VITAMIN_AUDIT"] = audit
    done = doors_test.run(*words, program="flat_memory", preload=preload, environment=environment,
                          timeout=3600 if LONG else 120)
    if done.returncode != 0 or done.stderr:
        raise AssertionError((words, preload, done))
    return done.stdout.splitlines()


class Rounds:
    """What was held after each round."""

    def __init__(self, kind, objects, at_a_time=1, rounds=ROUNDS, **options):
        self.rounds = []
        for line in run(kind, objects, rounds, at_a_time, **options):
            words = line.split()
            self.rounds.append({name: int(value) for name, value in zip(words[::2], words[1::2])})
        assert len(self.rounds) == rounds
        self.at_an_end = (rounds - WARM_UP) // 2

    def growth(self, what):
        """In a round, in bytes."""
        held = [one[what] for one in self.rounds[WARM_UP - 1:]]
        added = statistics.median(after - before for before, after in itertools.pairwise(held))
        first, last = held[:self.at_an_end], held[-self.at_an_end:]
        return min(added, (min(last) - min(first)) / (len(held) - self.at_an_end))

    def at_end(self, what):
        return min(one[what] for one in self.rounds[-self.at_an_end:])


class Flat(unittest.TestCase):
    def compare(self, kind, objects, at_a_time=1, policy="fifo", audited=False):
        most = USUAL_NOISE + BYTES_PER_OBJECT * objects
        for rounds in (ROUNDS, ROUNDS_AGAIN):
            bare = Rounds(kind, objects, at_a_time, rounds, preload=False)
            with tempfile.TemporaryDirectory() as directory:
                ours = Rounds(kind, objects, at_a_time, rounds, preload=True, policy=policy,
                              audit=directory if audited else None)
            grown = ours.growth("heap") - bare.growth("heap")
            if grown <= most:
                break
        where = (kind, at_a_time, policy, audited, ours.rounds, bare.rounds)
        self.assertLessEqual(grown, most, where)
        self.assertEqual(ours.at_end("trimmed"), bare.at_end("trimmed"), where)
        if kind in ALLOCATED_ELSEWHERE:  # the speed of the device decides, natively too
            self.assertLessEqual(max(one["device"] for one in ours.rounds),
                                 bare.at_end("trimmed") + (at_a_time + BEHIND) * BLOCK, where)
        else:
            self.assertEqual(ours.at_end("device"), bare.at_end("device"), where)
        if not LONG or audited:  # an audit's log is a file that is mapped
            return
        for what in MEASURED:
            self.assertLessEqual(ours.growth(what) - bare.growth(what),
                                 bare.at_end(what) // 100 + USUAL_NOISE, (what, where))

    def check(self, *kinds, objects=400):
        for kind in kinds:
            self.compare(kind, 100_000 // ROUNDS if LONG else objects)
            self.compare(kind, objects // 4, audited=True)
            if not kind.startswith("broken"):  # an open capture forbids the waits
                self.compare(kind, objects, at_a_time=50)
            if not kind.startswith(("busy", "broken", "bound")):
                self.compare(kind, objects, policy="random")

    def test_streams_leave_nothing(self):
        self.check("streams", "blocking_streams", "busy_streams", "busy_blocking_streams")

    def test_events_leave_nothing(self):
        self.check("events", "events_in_graphs")

    def test_graphs_leave_nothing(self):
        self.check("graphs", "executables", "bound_executables")

    def test_captures_leave_nothing(self):
        self.check("captures", "broken_captures")

    def test_modules_and_libraries_leave_nothing(self):
        self.check("modules", "libraries", objects=200)

    def test_contexts_leave_nothing(self):
        self.check("contexts", "green_contexts", objects=100)

    def test_primary_contexts_leave_nothing(self):
        for policy in ("fifo", "random"):
            self.compare("primary_contexts", 12, policy=policy)

    def test_threads_leave_nothing(self):
        self.check("threads", "host_functions")

    def test_allocations_leave_nothing(self):
        self.check("host_memory", "registered_memory", "device_memory")

    def test_allocations_in_stream_order_leave_nothing(self):
        self.check("pool_memory", "pool_memory_freed_at_once", "memory_pools")

    def test_allocations_of_a_stream_that_does_nothing_else_leave_nothing(self):
        self.check("pool_memory_used_elsewhere", objects=2000)

    @unittest.skipIf(os.environ["SANITIZED"] == "1", "its runtime sees the leak first")
    def test_a_leak_is_seen(self):
        bare = Rounds("leaks", 1000, preload=False)
        self.assertGreater(bare.growth("heap"), USUAL_NOISE + BYTES_PER_OBJECT * 1000)


class Pool(unittest.TestCase):
    """Memory that is allocated and freed in stream order, whatever is deferred."""

    # The software pool does not split blocks, so which of two blocks an allocation gets changes
    # what is left for the next: one block of the largest size more or less.
    LARGEST = 4 << 20

    def check(self, scenario, seed):
        expected, natively = run("pool", scenario, seed, preload=False)
        for policy in ("static", "random"):
            found, held = run("pool", scenario, seed, preload=True, policy=policy)
            self.assertEqual(found, expected, (scenario, seed, policy))
            spare = self.LARGEST if scenario.startswith("many_sizes") else 0
            self.assertLessEqual(int(held), 1.2 * int(natively) + spare,
                                 (scenario, seed, policy))

    def test_memory_of_one_size_is_used_again(self):
        for scenario in ("one_size", "one_size_behind_a_gate"):
            self.check(scenario, 1)

    def test_memory_of_many_sizes_is_used_again(self):
        for seed in range(1, 41 if LONG else 4):
            for scenario in ("many_sizes", "many_sizes_behind_a_gate"):
                self.check(scenario, seed)


if __name__ == "__main__":
    unittest.main()
