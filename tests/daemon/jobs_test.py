#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Jobs that a cluster's scheduler has registered: their share bounds vitamind's grants."""
import collections
import os
import pathlib
import subprocess
import sys
import unittest

from harness import DaemonTest, open_width
from time_limit import time_limit

MINE = os.getuid()


class Jobs(DaemonTest):
    def begin(self, daemon, step, share, user=MINE, workload_class="-"):
        answer = daemon.ask(f"job-begin {step} {user} {share} {workload_class} -")
        self.assertNotIn("error", answer)

    def hold(self, daemon, enter=None, **claim):
        """Starts a client that holds a lease and never returns it; returns its status."""
        member = self.member(daemon, "hold", before=enter, environment={
            f"MEMBER_{name.upper()}": str(value) for name, value in claim.items()})
        self.assertIn("entry", member.stdout.readline())
        client = daemon.status()["clients"][-1]
        return client, member

    def width(self, daemon, *clients):
        """SMs that these clients hold together; of all clients when none is named."""
        (device,) = daemon.status()["devices"]
        units = 0
        for hold in device["held"]:
            if not clients or hold["client"] in clients:
                units |= ~0 if hold["whole"] else hold["units"]
        return sum(width for unit, width in enumerate(device["processors_per_unit"])
                   if units >> unit & 1)

    def test_a_registered_share_bounds_its_client(self):
        daemon = self.daemon("--policy", "throughput")
        self.begin(daemon, "12.0", 25)
        client, member = self.hold(daemon, job="12.0")
        self.assertEqual((client["job"], client["processors_most"]), ("12.0", 33))
        self.assertLessEqual(self.width(daemon), 33)
        member.kill()
        self.until(lambda: not daemon.status()["clients"])
        daemon.ask("job-end 12")
        client, _ = self.hold(daemon, job="12.0")
        self.assertEqual((client["job"], client["processors_most"]), ("", 0))
        self.assertGreater(self.width(daemon), 33)

    def test_the_end_of_a_job_reports_the_usage_of_its_clients(self):
        daemon = self.daemon("--policy", "throughput")
        self.begin(daemon, "12.0", 25)
        self.begin(daemon, "12.1", 25)
        _, ended = self.hold(daemon, job="12.0")
        ended.kill()
        self.until(lambda: not daemon.status()["clients"])
        record, = daemon.ask("accounting")["clients"]
        self.assertGreater(record["sm_seconds"], 0)
        _, running = self.hold(daemon, job="12.1")  # counts until now
        answer = daemon.ask("job-end 12")
        self.assertEqual(answer["steps"], 2)
        self.assertGreater(answer["sm_seconds"], record["sm_seconds"])
        running.kill()
        self.assertEqual(daemon.ask("job-end 12")["sm_seconds"], 0)

    def test_the_processes_of_a_job_have_its_share_together(self):
        daemon = self.daemon("--policy", "throughput", "--set", "policy.starving_after=1h")
        self.begin(daemon, "12.0", 50)
        self.begin(daemon, "13.0", 50)
        workers = [self.member(daemon, "work", 0, environment={"MEMBER_JOB": step})
                   for step in ("12.0", "12.0", "13.0")]
        seen = collections.Counter()

        def shared_for_long():
            """Until then none ends: of a number of launches a worker may be done before another
            one has begun, or between two looks."""
            status = daemon.status()
            self.check_disjoint(status)
            work = [client["usage"]["operations"] for client in status["clients"]]
            for step in ("12.0", "13.0"):
                of_step = [client["client"] for client in status["clients"]
                           if client["job"] == step]
                width = open_width(status, of_step) if of_step else 0
                self.assertLessEqual(width, 66)
                seen[step] += width > 0
            return min(seen.values()) >= 100 and len(work) == 3 and min(work) >= 100_000
        self.until(shared_for_long, 60)
        for worker in workers:
            self.assertGreaterEqual(self.result(worker)["submitted"], 100_000)

    def test_a_claim_reduces_the_share_and_never_raises_it(self):
        daemon = self.daemon("--policy", "throughput")
        self.begin(daemon, "12.0", 25)
        for claim, job, most in (({}, "12.0", 33),  # no claim
                                 ({"job": "99.0"}, "12.0", 33),  # a job that is not registered
                                 ({"job": "12.0", "share": 100}, "12.0", 33),
                                 ({"job": "12.0", "share": 10}, "12.0", 13),
                                 ({"job": "12.0", "share": 400}, "12.0", 33)):
            client, member = self.hold(daemon, **claim)
            self.assertEqual((client["job"], client["processors_most"]), (job, most), claim)
            member.kill()
            self.until(lambda: not daemon.status()["clients"])
        daemon.ask("job-end 12")
        for share, most in ((20, 26), (100, 0), (400, 0)):
            client, member = self.hold(daemon, job="12.0", share=share)
            self.assertEqual((client["job"], client["processors_most"]), ("", most))
            member.kill()
            self.until(lambda: not daemon.status()["clients"])

    def test_the_control_group_decides_and_not_the_claim(self):
        daemon = self.daemon("--policy", "throughput")
        self.begin(daemon, "12.0", 25)
        self.begin(daemon, "13.0", 75)
        client, member = self.hold(daemon, job="13.0")
        self.assertEqual((client["job"], client["processors_most"]), ("13.0", 99))
        member.kill()
        self.until(lambda: not daemon.status()["clients"])
        client, member = self.hold(
            daemon, job="13.0",
            enter=self.control_group("slurm-test", "uid_0", "job_12", "step_0"))
        self.assertEqual((client["job"], client["processors_most"]), ("12.0", 33))
        member.kill()
        member.wait()

    def test_the_root_user_of_a_container_is_not_an_operator(self):
        daemon = self.daemon("--policy", "throughput")
        _, member = self.hold(daemon)
        enter = self.control_group("operators", "libpod-" + 64 * "e")
        for verb in ("drain all", f"job-begin 12.0 {MINE} 25 - -", "claim-end c1"):
            answer = subprocess.run(
                [sys.executable, "-c", "import sys, harness; print(harness.ask(*sys.argv[1:]))",
                 daemon.socket, verb],
                cwd=pathlib.Path(__file__).parent, preexec_fn=enter, text=True,
                capture_output=True, timeout=time_limit(30), check=False)
            self.assertIn("is in a container: do it on the host", answer.stdout, answer.stderr)
        self.assertFalse(daemon.status()["devices"][0]["drained"])
        self.assertEqual(daemon.ask("drain all")["devices"], 1)
        member.kill()

    def test_a_claim_of_another_users_job_is_ignored(self):
        daemon = self.daemon("--policy", "throughput")
        self.begin(daemon, "12.0", 25, user=MINE + 1)
        client, _ = self.hold(daemon, job="12.0")
        self.assertEqual((client["job"], client["processors_most"]), ("", 0))

    def test_the_smaller_share_of_class_and_job_applies_and_the_jobs_class_is_used(self):
        daemon = self.daemon("--policy", "throughput", "--config", self.file(
            '[[class]]\nname = "small"\ncommand = "no-such-program"\nshare = 20\n'
            '[[class]]\nname = "large"\ncommand = "no-such-program"\nshare = 80\n'))
        self.begin(daemon, "12.0", 50, workload_class="large")
        client, member = self.hold(daemon, job="12.0", **{"class": "small"})
        self.assertEqual((client["class"], client["processors_most"]), ("large", 66))
        member.kill()
        self.begin(daemon, "12.0", 50, workload_class="small")
        client, _ = self.hold(daemon, job="12.0")
        self.assertEqual((client["class"], client["processors_most"]), ("small", 26))

    def file(self, text):
        path = os.path.join(self.directory.name, "vitamin.toml")
        with open(path, "w", encoding="ascii") as file:
            file.write(text)
        return path


if __name__ == "__main__":
    unittest.main()
