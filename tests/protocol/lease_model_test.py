#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The lease protocol under spin: every interleaving of the model in lease.pml."""
import os
import re
import subprocess
import tempfile
import unittest

MODEL, SPIN = os.environ["MODEL"], os.environ["SPIN"]


class Model(unittest.TestCase):
    def verify(self, *defines, liveness=False):
        """(number of errors, states)"""
        with tempfile.TemporaryDirectory() as folder:
            subprocess.run([SPIN, "-a", *defines, MODEL], cwd=folder, check=True,
                           capture_output=True)
            build = ["gcc", "-w", "-O1", "-o", "pan", "pan.c"]
            build += [] if liveness else ["-DSAFETY", "-DNOCLAIM"]
            subprocess.run(build, cwd=folder, check=True)
            words = ["./pan", "-m1000000"] + (["-a", "-f"] if liveness else [])
            output = subprocess.run(words, cwd=folder, check=True, capture_output=True,
                                    text=True).stdout
        self.assertNotIn("max search depth too small", output)
        return (int(re.search(r"errors: (\d+)", output)[1]),
                int(re.search(r"(\d+) states, stored", output)[1]))

    def test_no_two_clients_are_on_the_same_units(self):
        errors, states = self.verify()
        self.assertEqual(errors, 0)
        self.assertGreater(states, 100)

    def test_nor_when_one_of_them_dies_at_any_step(self):
        errors, _ = self.verify("-DDEATHS")
        self.assertEqual(errors, 0)

    def test_who_waits_is_served_though_its_ancestor_is_not_submitted_yet(self):
        errors, _ = self.verify(liveness=True)
        self.assertEqual(errors, 0)

    def test_the_model_finds_a_grant_over_a_draining_lease(self):
        errors, _ = self.verify("-DGRANT_WHILE_DRAINING")
        self.assertGreater(errors, 0)

    def test_the_model_finds_a_reservation_that_starves_its_own_ancestor(self):
        errors, _ = self.verify("-DNO_INHERITANCE", "-DNO_EXPIRY", liveness=True)
        self.assertGreater(errors, 0)


if __name__ == "__main__":
    unittest.main()
