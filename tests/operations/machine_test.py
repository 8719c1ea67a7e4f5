#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The throw-away machine that other tests of this directory run in."""
import unittest

from machine import Machine


class ThrowAway(unittest.TestCase):
    def test_the_first_command_already_has_a_root_of_its_own(self):
        # A command that came before would write into the machine that runs the tests.
        for _ in range(10):
            with Machine() as machine:
                self.assertIn("localhost machine", machine.run("cat", "/etc/hosts").stdout)


if __name__ == "__main__":
    unittest.main()
