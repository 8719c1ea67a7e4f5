#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The lease protocol under spin: every interleaving of lease.pml, a model that moves leases by
the table by which the scheduler's ledger moves grants (tests/protocol/lease_moves.def)."""
import os
import pathlib
import re
import subprocess
import tempfile
import unittest

SOURCE, SPIN = pathlib.Path(os.environ["SOURCE"]), os.environ["SPIN"]
MODEL, TABLE = "tests/protocol/lease.pml", "tests/protocol/lease_moves.def"


class Model(unittest.TestCase):
    def verify(self, *defines, liveness=False, plant=None):
        """(number of errors, states). `plant`: (row of the table, what stands there instead)"""
        table = (SOURCE / TABLE).read_text()
        if plant:
            self.assertEqual(table.count(plant[0]), 1)
            table = table.replace(*plant)
        with tempfile.TemporaryDirectory() as folder:
            for path, text in ((MODEL, (SOURCE / MODEL).read_text()), (TABLE, table)):
                (pathlib.Path(folder) / path).parent.mkdir(parents=True)
                (pathlib.Path(folder) / path).write_text(text)
            folder = str((pathlib.Path(folder) / MODEL).parent)
            made = subprocess.run([SPIN, "-a", *defines, "lease.pml"], cwd=folder, text=True,
                                  capture_output=True)
            self.assertEqual(made.returncode, 0, made.stdout)
            # Unoptimised: it is compiled for longer than it runs.
            build = ["gcc", "-w", "-O0", "-o", "pan", "pan.c"]
            build += ["-DNFAIR=3"] if liveness else ["-DSAFETY", "-DNOCLAIM"]
            subprocess.run(build, cwd=folder, check=True)
            words = ["./pan", "-m1000000"] + (["-a", "-f"] if liveness else [])
            output = subprocess.run(words, cwd=folder, check=True, capture_output=True,
                                    text=True).stdout
        self.assertNotIn("max search depth too small", output)
        return (int(re.search(r"errors: (\d+)", output)[1]),
                int(re.search(r"(\d+) states, stored", output)[1]))

    def holds(self, *defines, **how):
        errors, states = self.verify(*defines, **how)
        self.assertEqual(errors, 0)
        self.assertGreater(states, 1000)

    def fails(self, *defines, **how):
        self.assertGreater(self.verify(*defines, **how)[0], 0)

    def test_no_policy_brings_two_clients_onto_the_same_units(self):
        self.holds("-DANY_POLICY")

    def test_nor_the_death_of_a_client_at_any_step(self):
        self.holds("-DANY_POLICY", "-DVICTIM=0")
        self.holds("-DANY_POLICY", "-DVICTIM=1")

    def test_who_waits_is_served_and_so_is_who_comes_again_and_again(self):
        self.holds(liveness=True)

    def test_nor_does_a_death_leave_anybody_waiting(self):
        self.holds("-DVICTIM=0", liveness=True)
        self.holds("-DVICTIM=1", liveness=True)

    def test_an_ancestor_that_is_not_submitted_yet_inherits_the_reservation(self):
        # Without the end of the reservation, which would help it, too.
        self.holds("-DNO_EXPIRY", liveness=True)
        self.fails("-DNO_EXPIRY", "-DNO_INHERITANCE", liveness=True)

    def test_a_reservation_for_what_never_comes_has_to_end(self):
        self.holds("-DNEVER_COMES", liveness=True)
        self.fails("-DNEVER_COMES", "-DNO_EXPIRY", liveness=True)

    def test_the_model_finds_units_that_are_freed_before_the_work_of_the_dead_is_over(self):
        self.fails("-DANY_POLICY", "-DVICTIM=0", "-DFORGET_AT_ONCE")
        self.fails("-DANY_POLICY", "-DVICTIM=1", "-DFORGET_AT_ONCE")

    def test_the_model_finds_a_grant_that_is_returned_before_it_has_drained(self):
        self.fails("-DANY_POLICY", "-DRETURN_EARLY")

    def test_a_table_that_gives_units_twice_is_found(self):
        for row, planted in (("Acquire, Idle, Free, Leased", "Acquire, Idle, Always, Leased"),
                             ("Retire, Draining, Busy, Draining", "Retire, Draining, Busy, Idle"),
                             ("Close, Leased, Busy, Draining", "Close, Leased, Busy, Idle")):
            with self.subTest(planted):
                self.fails("-DANY_POLICY", plant=(row, planted))

    def test_a_table_that_does_not_free_units_is_found(self):
        for row, planted in (("Close, Leased, Quiet, Idle", "Close, Leased, Quiet, Draining"),
                             ("Retire, Draining, Quiet, Idle", "Retire, Draining, Quiet, Draining"),
                             ("LEASE_MOVE(Acquire, Leased, Always, Leased)\n", "")):
            with self.subTest(planted):
                self.fails(plant=(row, planted), liveness=True)

    def test_a_table_that_keeps_units_of_the_dead_is_found(self):
        self.fails("-DVICTIM=1", liveness=True, plant=("Forget, Draining, Always, Idle",
                                                       "Forget, Draining, Always, Draining"))
        self.fails("-DVICTIM=0", liveness=True, plant=("Forget, Leased, Always, Idle",
                                                       "Forget, Leased, Always, Leased"))


if __name__ == "__main__":
    unittest.main()
