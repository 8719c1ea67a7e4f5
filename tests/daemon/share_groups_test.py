#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""SM quotas that the processes of a group have together, and what `vitamin` shows of them."""
import json
import os
import pathlib
import signal
import subprocess
import unittest

from harness import DaemonTest
from time_limit import time_limit

ME = os.getuid()
MINE = f'[[class]]\nname = "mine"\nuser = "{ME}"\nshare = 25\nshare_of = "user"\n'
FREE = '[[class]]\nname = "free"\n'
QUARTER = 33  # of 132 SMs


def policies():
    listed = subprocess.run([os.environ["VITAMIN"], "policy", "list", "--json"], check=True,
                            capture_output=True, timeout=time_limit(20))
    return [one["name"] for one in json.loads(listed.stdout)["policies"]] + ["static:parts=2"]


class ShareGroups(DaemonTest):
    def configured(self, text, *options):
        self.file = pathlib.Path(self.directory.name, "vitamin.toml")
        self.file.write_text(text)
        return self.daemon("--config", str(self.file), *options)

    def width(self, status):
        """SMs on which any client has a grant, open or draining."""
        device, = status["devices"]
        units = 0
        for hold in device["held"]:
            units |= ~0 if hold["whole"] else hold["units"]
        return sum(width for unit, width in enumerate(device["processors_per_unit"])
                   if units >> unit & 1)

    def vitamin(self, daemon, *words):
        shown = subprocess.run([os.environ["VITAMIN"], *words, "--socket", str(daemon.socket)],
                               text=True, capture_output=True, timeout=time_limit(20))
        self.assertEqual(shown.returncode, 0, shown.stderr)
        return shown.stdout

    def beside_each_other(self, daemon, launches):
        """Ten workers: most SMs and most clients that any status showed."""
        workers = [self.member(daemon, "work", launches) for _ in range(10)]
        seen = most = 0
        while any(worker.poll() is None for worker in workers):
            status = daemon.status()
            if status["devices"]:
                most = max(most, self.width(status))
                seen = max(seen, len(status["clients"]))
            self.assertLessEqual(most, QUARTER)
        for worker in workers:
            self.assertEqual(self.result(worker)["submitted"], launches)
        return most, seen

    def test_ten_processes_of_a_user_never_exceed_the_users_share(self):
        for policy in policies():
            with self.subTest(policy=policy):
                daemon = self.configured(MINE, "--policy", policy, "--set",
                                         "policy.starving_after=20ms")
                # On a quick machine a worker may end before the next one begins, and a grant
                # between two looks.
                for launches in (2000, 8000, 32_000, 128_000):
                    most, seen = self.beside_each_other(daemon, launches)
                    if most > 0 and seen > 1:
                        break
                self.assertGreater(most, 0)
                self.assertGreater(seen, 1)
                daemon.end()

    def test_a_program_that_names_another_class_is_still_bounded(self):
        daemon = self.configured(MINE + FREE, "--policy", "throughput")
        for workload_class, whose in (("mine", "mine"), ("free", "free"), ("", "mine")):
            member = self.member(daemon, "hold", environment={"MEMBER_CLASS": workload_class})
            self.assertIn("entry", member.stdout.readline())
            status = daemon.status()
            client = status["clients"][-1]
            self.assertEqual(client["class"], whose)
            self.assertEqual(client["shares"],
                             [{"whose": f"of user {ME}", "share": 25, "processors": QUARTER}])
            self.assertEqual(client["processors_most"], QUARTER)
            self.assertLessEqual(self.width(status), QUARTER)
            self.assertIn(f"25 % of user {ME}", self.vitamin(daemon, "status"))
            member.kill()
            self.until(lambda: not daemon.status()["clients"])

    def shares(self, daemon, environment=None, before=None):
        """The shares that bound a new client, which then ends."""
        member = self.member(daemon, "hold", environment=environment, before=before)
        self.assertIn("entry", member.stdout.readline())
        status = daemon.status()
        client, = status["clients"]
        self.assertLessEqual(self.width(status), client["processors_most"] or 132)
        member.kill()
        member.wait()
        self.until(lambda: not daemon.status()["clients"])
        return {share["whose"]: share["share"] for share in client["shares"]}

    def test_quotas_of_all_groups_of_a_user_hold_whatever_class_a_program_names(self):
        daemon = self.configured("".join(
            f'[[class]]\nname = "{group}s"\nuser = "*"\nshare = {share}\nshare_of = "{group}"\n'
            for group, share in (("user", 60), ("container", 50), ("job", 40), ("class", 75),
                                 ("process", 30))) + FREE, "--policy", "throughput")
        mine = f"of user {ME}"
        # A program in no job is in its user's group.
        named = {"MEMBER_CLASS": "free"}
        alone = self.shares(daemon, named)
        self.assertEqual(alone, {mine: 40, "of class classs": 75})
        container = 64 * "c"
        self.assertEqual(self.shares(daemon, named,
                                     self.control_group("docker-test", container)),
                         {mine: 40, "of class classs": 75, f"of container {container[:12]}": 50})
        enter = self.control_group("slurm-test", "uid_0", "job_12", "step_0")
        in_job = {mine: 50, "of class classs": 75, "of job 12": 40}
        self.assertEqual(self.shares(daemon, named, enter), in_job)
        self.assertNotIn("error", daemon.ask(f"job-begin 13.0 {ME} 100 - -"))
        self.assertEqual(self.shares(daemon, named | {"MEMBER_JOB": "13.0"}, enter), in_job)

    def test_processes_of_a_container_or_of_a_job_have_its_share_together(self):
        for group, path, whose in (
                ("container", ("docker-test", 64 * "d"), f"of container {12 * 'd'}"),
                ("job", ("slurm-test", "uid_0", "job_14", "step_0"), "of job 14")):
            with self.subTest(group):
                daemon = self.configured(f'[[class]]\nname = "each"\nuser = "*"\nshare = 25\n'
                                         f'share_of = "{group}"\n', "--policy", "throughput")
                enter = self.control_group(*path)
                workers = [self.member(daemon, "work", 5000, before=enter) for _ in range(3)]
                while any(worker.poll() is None for worker in workers):
                    status = daemon.status()
                    if status["devices"]:
                        self.assertLessEqual(self.width(status), QUARTER)
                    for client in status["clients"]:
                        self.assertEqual(client["shares"][0]["whose"], whose)
                for worker in workers:
                    self.assertEqual(self.result(worker)["submitted"], 5000)
                daemon.end()

    def test_busy_sm_seconds_are_of_the_measured_time(self):
        daemon = self.configured("", "--policy", "throughput")
        self.result(self.member(daemon, "work", 50))  # a single client measures nothing
        workers = [self.member(daemon, "work", 0) for _ in range(2)]  # until their input ends

        def measured():
            """One of them, and the other has had a lease, too: it may begin later."""
            used = [client["usage"] for client in daemon.status()["clients"]]
            return (len(used) == 2 and min(each["sm_seconds"] for each in used) > 0
                    and any((each["busy_sm_seconds"] or 0) > 0 for each in used))
        self.until(measured)
        for worker in workers:
            worker.communicate("", timeout=time_limit(20))
        self.until(lambda: not daemon.status()["clients"])
        alone, *both = daemon.ask("accounting")["clients"]
        self.assertEqual((alone["measured_sm_seconds"], alone["busy_sm_seconds"]), (0, None))
        for record in both:
            self.assertGreater(record["sm_seconds"], 0)
            self.assertLessEqual(record["measured_sm_seconds"], record["sm_seconds"])
        record = max(both, key=lambda one: one["busy_sm_seconds"] or 0)
        self.assertGreater(record["busy_sm_seconds"], 0)
        self.assertLessEqual(record["busy_sm_seconds"], record["measured_sm_seconds"])
        first = self.vitamin(daemon, "accounting").splitlines()[1].split()
        self.assertEqual(first[5], "-")

    def test_a_class_with_a_further_condition_bounds_only_its_programs(self):
        daemon = self.configured(MINE + 'command = "other"\n' + FREE, "--policy", "throughput")
        member = self.member(daemon, "hold", environment={"MEMBER_CLASS": "free"})
        self.assertIn("entry", member.stdout.readline())
        client, = daemon.status()["clients"]
        self.assertEqual((client["shares"], client["processors_most"]), ([], 0))
        self.assertGreater(self.width(daemon.status()), QUARTER)

    def test_the_share_of_a_named_group_is_for_all_of_its_processes(self):
        daemon = self.configured('[[class]]\nname = "group"\nshare = 50\nshare_of = "class"\n',
                                 "--policy", "throughput", "--set", "policy.starving_after=20ms")
        workers = [self.member(daemon, "work", 5000) for _ in range(3)]
        while any(worker.poll() is None for worker in workers):
            status = daemon.status()
            if status["devices"]:
                self.assertLessEqual(self.width(status), 66)
            for client in status["clients"]:
                self.assertEqual(client["shares"][0]["whose"], "of class group")
        for worker in workers:
            self.assertEqual(self.result(worker)["submitted"], 5000)

    def test_a_changed_share_applies_to_running_clients(self):
        daemon = self.configured(MINE, "--policy", "throughput")
        worker = self.member(daemon, "work", 0)  # until its input ends
        self.until(lambda: daemon.status()["clients"] and self.width(daemon.status()) > 0)
        for share, most in ((10, 13), (50, 66)):
            self.file.write_text(MINE.replace("share = 25", f"share = {share}"))
            daemon.process.send_signal(signal.SIGHUP)
            self.until(lambda: daemon.status()["clients"][0]["processors_most"] == most)
            self.until(lambda: 0 < self.width(daemon.status()) <= most)
        self.until(lambda: self.width(daemon.status()) > 13)
        output, _ = worker.communicate("", timeout=time_limit(20))
        self.assertEqual(json.loads(output)["at_home"], 0)

    def test_a_client_that_ends_leaves_a_record_also_in_the_file(self):
        file = pathlib.Path(self.directory.name, "accounting")
        daemon = self.configured(MINE + f'[metrics]\naccounting = "{file}"\n')
        for number in (1, 2):
            self.result(self.member(daemon, "work", 50))
            self.until(lambda: not daemon.status()["clients"])
            lines = [json.loads(line) for line in file.read_text().splitlines()]
            self.assertEqual(len(lines), number)
        record = lines[-1]
        self.assertEqual((record["user"], record["class"], record["operations"]), (ME, "mine", 50))
        self.assertEqual(record["shares"], [{"whose": f"of user {ME}", "share": 25,
                                             "processors": QUARTER}])
        self.assertGreaterEqual(record["grants"], 1)
        self.assertGreater(record["sm_seconds"], 0)
        self.assertLessEqual(record["sm_seconds"], QUARTER * record["seconds"])
        self.assertLessEqual(record["held_seconds"], record["seconds"])
        self.assertEqual(json.loads(self.vitamin(daemon, "accounting", "--json"))["clients"], lines)
        shown = self.vitamin(daemon, "accounting").splitlines()
        self.assertEqual(len(shown), 3)
        self.assertRegex(shown[-1], r"^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ .* mine .* member$")

    def test_a_file_that_cannot_be_written_is_logged_once_and_loses_no_record(self):
        daemon = self.configured('[metrics]\naccounting = "/no/such/directory/file"\n')
        for _ in range(2):
            self.result(self.member(daemon, "work", 5))
        self.until(lambda: not daemon.status()["clients"])
        self.assertEqual(len(daemon.ask("accounting")["clients"]), 2)
        self.assertEqual(daemon.log().count("cannot be written to /no/such/directory/file"), 1)

    def test_two_clients_that_share_the_whole_device_are_shown_on_it(self):
        daemon = self.configured("", "--policy", "fifo")
        members = [self.member(daemon, "hold") for _ in range(2)]
        for member in members:
            self.assertIn("entry", member.stdout.readline())
        self.assertEqual([client["processors_now"] for client in daemon.status()["clients"]],
                         [132, 132])
        shown = self.vitamin(daemon, "status")
        self.assertIn("[" + 16 * "+" + "]", shown)
        self.assertRegex(daemon.ask("metrics")["text"],
                         r"\nvitamin_gpu_leased_processors\{[^}]*\} 132\n")
        members[1].kill()
        self.until(lambda: len(daemon.status()["clients"]) == 1)
        left, = daemon.status()["clients"]
        letter = " ab"[left["client"]]
        self.assertIn("[" + 16 * letter + "]", self.vitamin(daemon, "status"))


if __name__ == "__main__":
    unittest.main()
