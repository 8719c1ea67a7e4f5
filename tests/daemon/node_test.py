#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The measurements of bench/daemon/node.py that need more CPUs than a CI machine has: that
they run, and that the attackers attack. Their results mean nothing here."""
import json
import os
import pathlib
import subprocess
import sys
import unittest

from time_limit import time_limit

NODE = pathlib.Path(os.environ["SOURCE"]) / "bench" / "daemon" / "node.py"


class Node(unittest.TestCase):
    def measure(self, part, tries):
        done = subprocess.run([sys.executable, str(NODE), part, "--tries", str(tries)],
                              text=True, capture_output=True, timeout=time_limit(110), check=False)
        self.assertEqual(done.returncode, 0, done.stderr)
        return [json.loads(line) for line in done.stdout.splitlines()]

    def measure_client(self, part, attacked):
        """With more tries where the correct client or the attackers had no turn of a busy CPU."""
        for tries in (3, 9, 27):
            line, = self.measure(part, tries)
            if line["per_second"]["attack"] > 0 and attacked(line):
                return line
        self.fail(line)

    def test_attackers_flood_and_reconnect_and_the_correct_client_goes_on(self):
        # A client that scribbles is repeatedly evicted.
        line = self.measure_client("press", lambda line: line["attackers"]["records"] > 1000
                                   and line["let_go"] > 3)
        self.assertGreaterEqual(line["attackers"]["sessions"], line["let_go"])
        low, high = line["interval_95"]
        self.assertTrue(low <= line["median_of_ratios"] <= high)

    def test_half_open_connections_are_held_and_renewed_and_the_correct_client_goes_on(self):
        line = self.measure_client("flood", lambda line: line["attackers"]["connections"] > 1000)
        self.assertEqual(line["let_go"], 0)

    def test_clients_enter_the_fallback_partition_in_every_restart(self):
        one, *_, many = self.measure("home", 3)
        self.assertEqual((one["clients"], many["clients"], many["restarts"]), (1, 16, 3))
        self.assertGreater(many["p50_ms"], 0)


if __name__ == "__main__":
    unittest.main()
