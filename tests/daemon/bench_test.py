#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What the daemon costs; results are kept in bench/results/daemon. Times are CPU time, in
units of the machine that the limits are for (tests/cost.h), and the least of some measurements.
"""
import json
import os
import re
import subprocess
import tempfile
import unittest

from time_limit import time_limit


SUFFIX = "(/real_time|/iterations:[0-9]+)?"


class Costs(unittest.TestCase):
    def measure(self, names):
        """Keeps the least cost of each measurement, since other load only adds."""
        chosen = "|".join(map(re.escape, ["machine", *names])) if names else "."
        with tempfile.NamedTemporaryFile() as out:
            subprocess.run([os.environ["BENCH"], "--benchmark_min_time=0.1",
                            f"--benchmark_filter=^({chosen}){SUFFIX}$" if names else
                            "--benchmark_filter=all",
                            f"--benchmark_out={out.name}", "--benchmark_out_format=json"],
                           stdout=subprocess.DEVNULL, timeout=time_limit(100), check=True)
            found = {re.sub(f"{SUFFIX}$", "", one["name"]): one
                     for one in json.loads(out.read())["benchmarks"]}
        slowness = max(1, found["machine"]["slowness"])
        for name, one in found.items():
            self.assertFalse(one.get("error_occurred"), (name, one))
            one["ns"] = one["cpu_time"] / slowness
            if name not in self.found or one["ns"] < self.found[name]["ns"]:
                self.found[name] = one

    def problems(self):
        """The limits that are exceeded, with the measurements."""
        def less(value, most, *names):
            if not value < most:
                problems.append((f"{names}: {value} is not less than {most}", names))
        found, problems = self.found, []
        ns = {name: one["ns"] for name, one in found.items()}
        less(ns["inline_launch_daemon"] - ns["inline_launch_in_process"], 20,
             "inline_launch_daemon", "inline_launch_in_process")
        less(ns["decisions/1"], 500, "decisions/1")  # two million a second
        # The cost of a decision is at most linear in the number of lanes.
        for name, few, many, most in (("fifo", 16, 1024, 8), ("throughput", 64, 1024, 28),
                                      ("parts", 64, 1024, 28)):
            few, many = (f"decision_beside/{name}/{count}" for count in (few, many))
            less(ns[many] / ns[few], most, few, many)
        # However often a client moves its lanes.
        alone = "turn_beside_a_flood/fifo/0"
        for name in ("fifo", "throughput", "random", "parts", "share"):
            beside = f"decision_beside_drains/{name}"
            self.assertLessEqual(found[beside]["of_a_lane"], 12, name)
            less(ns[beside], 60_000, beside)
        # Without a plan, a client that can only wait costs other clients nothing.
        for name in ("fifo", "throughput"):
            beside, flood = f"decision_beside_drains/{name}", f"turn_beside_a_flood/{name}/4"
            less(ns[beside], 40 * ns[alone], beside, alone)
            less(ns[flood], 100 * ns[alone], flood, alone)
        if len(os.sched_getaffinity(0)) >= 4:  # a grant needs two of them
            grant = found["request_to_grant"]
            less(grant["p50_ns"] / max(1, found["machine"]["slowness"]), 5_000, "request_to_grant")
        return problems

    def test_the_control_path_keeps_its_limits(self):
        self.found = {}
        self.measure([])
        for _ in range(10):
            problems = self.problems()
            if not problems:
                break
            self.measure({name for _, names in problems for name in names})
        for name, one in self.found.items():
            print(f"{name}: {one['ns']:.0f} ns")
        self.assertEqual([text for text, _ in self.problems()], [])


if __name__ == "__main__":
    unittest.main()
