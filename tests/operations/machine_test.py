#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The throw-away machine of the other tests in this directory."""
import unittest

from machine import Machine


class ThrowAway(unittest.TestCase):
    def test_the_first_command_has_its_own_root(self):
        # A command that ran earlier would write into the machine that runs the tests.
        for _ in range(10):
            with Machine() as machine:
                self.assertIn("localhost machine", machine.run("cat", "/etc/hosts").stdout)


if __name__ == "__main__":
    unittest.main()
