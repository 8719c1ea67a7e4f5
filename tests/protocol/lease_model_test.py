#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The lease protocol under spin: every interleaving of lease.pml, a model that moves leases by
the table by which the scheduler's ledger moves grants (tests/protocol/lease_moves.def)."""
import os
import pathlib
import re
import shutil
import subprocess
import tempfile
import unittest

SOURCE, SPIN = pathlib.Path(os.environ["SOURCE"]), os.environ["SPIN"]
MODEL, TABLE = "tests/protocol/lease.pml", "tests/protocol/lease_moves.def"


class Model(unittest.TestCase):
    def verify(self, *defines, liveness=False, plant=None):
        """(number of errors, states). `plant`: (row of the table, wrong row in its place)"""
        table = (SOURCE / TABLE).read_text()
        if plant:
            self.assertEqual(table.count(plant[0]), 1)
            table = table.replace(*plant)
        with tempfile.TemporaryDirectory() as root:
            for path, text in ((MODEL, (SOURCE / MODEL).read_text()), (TABLE, table)):
                (pathlib.Path(root) / path).parent.mkdir(parents=True, exist_ok=True)
                (pathlib.Path(root) / path).write_text(text)
            directory = (pathlib.Path(root) / MODEL).parent
            made = subprocess.run([SPIN, "-a", *defines, "lease.pml"], cwd=directory, text=True,
                                  capture_output=True)
            self.assertEqual(made.returncode, 0, made.stdout)
            # pan.c is one large function: gcc takes longer for it than most models run.
            build = [shutil.which("tcc") or "gcc", "-w", "-o", "pan", "pan.c"]
            build += ["-DNFAIR=3"] if liveness else ["-DSAFETY", "-DNOCLAIM"]
            subprocess.run(build, cwd=directory, check=True)
            # A hash table of 2^21: larger ones cost more in cache misses than they save.
            words = ["./pan", "-m1000000", "-w21"] + (["-a", "-f"] if liveness else [])
            output = subprocess.run(words, cwd=directory, check=True, capture_output=True,
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

    def test_two_clients_never_hold_the_same_units_under_any_policy(self):
        self.holds("-DANY_POLICY")

    def test_two_clients_never_hold_the_same_units_when_a_client_dies_at_any_step(self):
        self.holds("-DANY_POLICY", "-DVICTIM=0")
        self.holds("-DANY_POLICY", "-DVICTIM=1")

    def test_every_waiting_stream_is_granted_in_the_end(self):
        self.holds(liveness=True)

    def test_every_waiting_stream_is_granted_in_the_end_when_a_client_dies(self):
        self.holds("-DVICTIM=0", liveness=True)
        self.holds("-DVICTIM=1", liveness=True)

    def test_an_ancestor_that_is_not_submitted_yet_inherits_the_reservation(self):
        # Without expiry of reservations, which would also let it run.
        self.holds("-DNO_EXPIRY", liveness=True)
        self.fails("-DNO_EXPIRY", "-DNO_INHERITANCE", liveness=True)

    def test_a_reservation_for_an_operation_that_never_comes_must_expire(self):
        self.holds("-DNEVER_COMES", liveness=True)
        self.fails("-DNEVER_COMES", "-DNO_EXPIRY", liveness=True)

    def test_the_model_finds_units_that_are_freed_before_the_work_of_a_dead_client_ends(self):
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

    def test_a_table_that_keeps_units_of_a_dead_client_is_found(self):
        self.fails("-DVICTIM=1", liveness=True, plant=("Forget, Draining, Always, Idle",
                                                       "Forget, Draining, Always, Draining"))
        self.fails("-DVICTIM=0", liveness=True, plant=("Forget, Leased, Always, Idle",
                                                       "Forget, Leased, Always, Leased"))


if __name__ == "__main__":
    unittest.main()
