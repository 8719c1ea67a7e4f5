#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What the daemon costs, with limits for a machine that does other work: figures are kept in
bench/results/daemon. Times of one thread are processor time and hold anywhere; a grant needs two
processors at once."""
import json
import os
import subprocess
import tempfile
import unittest


class Costs(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        with tempfile.NamedTemporaryFile() as out:
            subprocess.run([os.environ["BENCH"], "--benchmark_min_time=0.2",
                            f"--benchmark_out={out.name}", "--benchmark_out_format=json"],
                           stdout=subprocess.DEVNULL, timeout=100, check=True)
            cls.found = {one["name"].split("/real_time")[0]: one
                         for one in json.loads(out.read())["benchmarks"]}
        for name, one in cls.found.items():
            assert not one.get("error_occurred"), (name, one)

    def test_the_control_path_costs_what_is_promised(self):
        inline = (self.found["inline_launch_daemon"]["cpu_time"]
                  - self.found["inline_launch_in_process"]["cpu_time"])
        self.assertLess(inline, 20, "ns more than in process")
        self.assertGreater(self.found["decisions/1"]["items_per_second"], 2e6)
        grant, line = self.found["request_to_grant"], self.found["cache_line_round_trip"]
        print(f"request to grant p50 {grant['p50_ns']:.0f} p99 {grant['p99_ns']:.0f} ns, "
              f"{grant['p50_ns'] / line['p50_ns']:.1f} bare round trips of {line['p50_ns']:.0f} ns;"
              f" a launch {inline:+.1f} ns; "
              f"{self.found['decisions/1']['items_per_second'] / 1e6:.1f} million decisions/s")
        # A decision costs what changes, or at most what there is, not the square of that.
        for name, few, many, most in (("fifo", 16, 1024, 8), ("throughput", 64, 1024, 28),
                                      ("parts", 64, 1024, 28)):
            one = self.found[f"decision_beside/{name}/{few}"]["cpu_time"]
            all_ = self.found[f"decision_beside/{name}/{many}"]["cpu_time"]
            print(f"{name}: two decisions beside {few} lanes {one:.0f} ns, beside {many} "
                  f"{all_:.0f}")
            self.assertLess(all_ / one, most, name)
        # However a client moves its lanes on.
        for name in ("fifo", "throughput", "whole", "parts", "share"):
            one = self.found[f"decision_beside_drains/{name}"]
            print(f"{name}: a decision beside {one['grants']:.0f} grants of one client, at most "
                  f"{one['of_a_lane']:.0f} of a lane, {one['cpu_time'] / 1e3:.1f} us")
            self.assertLessEqual(one["of_a_lane"], 12, name)
            self.assertLess(one["cpu_time"], 150_000, name)
        # Where nothing is planned, a client that can only wait costs others nothing.
        alone = self.found["turn_beside_a_flood/whole/0"]["cpu_time"]
        for name in ("fifo", "whole"):
            one = self.found[f"decision_beside_drains/{name}"]["cpu_time"]
            self.assertLess(one, 40 * alone, name)
            flood = self.found[f"turn_beside_a_flood/{name}/4"]["cpu_time"]
            print(f"{name}: beside a client that can only wait {one:.0f} ns, with four records of "
                  f"a flood {flood:.0f} ns, alone {alone:.0f} ns")
            self.assertLess(flood, 100 * alone, name)
        if len(os.sched_getaffinity(0)) >= 4:
            self.assertLess(grant["p50_ns"], 5_000)


if __name__ == "__main__":
    unittest.main()
