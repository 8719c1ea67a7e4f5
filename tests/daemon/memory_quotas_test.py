#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Quotas of device memory of vitamin.toml's classes, which vitamind keeps for groups of processes.

Environment: see CMakeLists.txt; LIBRARY (libvitamin_cuda.so), MEMORY (the program of
tests/interpose that takes memory), DRIVER (directory of the software driver), FIRST (what must be
preloaded ahead: the runtime of a sanitizer, or nothing).
"""
import json
import os
import pathlib
import signal
import subprocess
import tempfile
import unittest

from harness import DaemonTest
from time_limit import time_limit

OK, NO_MEMORY = 0, 2
ROOT = os.getuid() == 0
MIB = 1 << 20


class Quotas(DaemonTest):
    def configured(self, text):
        file = pathlib.Path(self.directory.name, "vitamin.toml")
        file.write_text(text)
        return self.daemon("--config", str(file))

    def program(self, daemon, enter=None, ahead=(), **environment):
        errors = tempfile.TemporaryFile("w+")
        process = subprocess.Popen(
            [*ahead, os.environ["MEMORY"]], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
            stderr=errors, text=True, preexec_fn=enter, env=os.environ | {
                "LD_PRELOAD": f"{os.environ['FIRST']} {os.environ['LIBRARY']}",
                "LD_LIBRARY_PATH": os.environ["DRIVER"],
                "VITAMIN_SOFT_LEDGER": os.path.join(self.directory.name, "ledger"),
                "VITAMIN_LOCK_DIRECTORY": "", "VITAMIN_DAEMON": str(daemon.socket)} | environment)

        def end():
            process.kill()
            process.wait()
            process.stdin.close()
            process.stdout.close()
            errors.close()
        self.addCleanup(end)
        process.errors = errors
        return process

    def ask(self, program, command):
        program.stdin.write(command + "\n")
        program.stdin.flush()
        answer = [int(word) for word in program.stdout.readline().split()]
        return answer[0] if len(answer) == 1 else answer

    def connect(self, program):
        """It becomes a client, by a launch that takes no memory."""
        for command in ("graph g build", "graph g launch 0", "sync"):
            self.assertEqual(self.ask(program, command), OK)

    def memory(self, daemon):
        return daemon.status()["memory"]

    def shown(self, daemon, *options, **environment):
        """What `vitamin status` prints."""
        done = subprocess.run(
            [os.environ["VITAMIN"], "status", "--socket", str(daemon.socket), *options], text=True,
            capture_output=True, timeout=time_limit(20), env=os.environ | environment)
        self.assertEqual(done.returncode, 0, done.stderr)
        return done.stdout

    def test_the_processes_of_a_user_have_one_quota_together(self):
        daemon = self.configured('[[class]]\nname = "small"\ncommand = "memory"\n'
                                 'memory = "64MiB"\nmemory_of = "user"\n')
        first, second = self.program(daemon), self.program(daemon)
        self.assertEqual(self.ask(first, "info"), [OK, 64 * MIB, 64 * MIB])
        self.assertEqual(self.ask(first, f"take cuMemAlloc {40 * MIB} a"), OK)
        self.assertEqual(self.ask(second, "info"), [OK, 24 * MIB, 64 * MIB])
        self.assertEqual(self.ask(second, f"take cuMemCreate {40 * MIB} a"), NO_MEMORY)
        self.assertEqual(self.ask(second, f"take cuMemAlloc {24 * MIB} a"), OK)
        one, = self.memory(daemon)
        self.assertEqual((one["class"], one["whose"], one["quota"], one["used"], one["processes"]),
                         ("small", f"of user {os.getuid()}", 64 * MIB, 64 * MIB, 2))
        second.errors.seek(0)
        self.assertIn(f"of the quota of user {os.getuid()} (64.0 MiB)", second.errors.read())
        shown = self.shown(daemon)
        self.assertRegex(shown, rf"memory of user {os.getuid()} \(class small\) on GPU-\S+: "
                                       r"64 MiB of 64 MiB, 2 processes\n")
        metrics = daemon.ask("metrics")["text"]
        for name in ("quota", "used"):
            self.assertRegex(metrics, rf'(?m)^vitamin_memory_{name}_bytes{{UUID="GPU-[^"]+",'
                                      rf'class="small"}} {64 * MIB}$')
        # A process that is killed leaves nothing in the ledger; the last one takes it along.
        second.kill()
        second.wait()
        self.assertEqual((self.memory(daemon)[0]["used"], self.memory(daemon)[0]["processes"]),
                         (40 * MIB, 1))
        first.kill()
        first.wait()
        self.assertEqual(self.memory(daemon), [])

    @unittest.skipUnless(ROOT, "a pid namespace is needed")
    def test_what_a_process_of_another_pid_namespace_had_is_free_when_it_ends(self):
        daemon = self.configured('[[class]]\nname = "small"\ncommand = "memory"\n'
                                 'memory = "64MiB"\nmemory_of = "user"\n')
        contained = ("unshare", "--pid", "--fork", "--kill-child")
        killed, ended, survivor = (self.program(daemon, ahead=contained) for _ in range(3))
        for program in (killed, ended):
            self.assertEqual(self.ask(program, f"take cuMemAlloc {32 * MIB} a"), OK)
        self.assertEqual(self.ask(survivor, "info"), [OK, 0, 64 * MIB])
        self.assertEqual(self.ask(survivor, f"take cuMemAlloc {MIB} a"), NO_MEMORY)
        killed.kill()
        # vitamind is not asked for anything meanwhile.
        self.until(lambda: self.ask(survivor, "info") == [OK, 32 * MIB, 64 * MIB])
        self.assertEqual(self.ask(survivor, f"take cuMemAlloc {32 * MIB} a"), OK)
        ended.stdin.close()
        self.assertEqual(ended.wait(time_limit(20)), 0)
        self.until(lambda: self.ask(survivor, "info") == [OK, 32 * MIB, 64 * MIB])
        self.assertEqual(self.ask(self.program(daemon, ahead=contained), "info"),
                         [OK, 32 * MIB, 64 * MIB])

    def test_what_a_client_had_at_most_is_in_its_record_and_what_it_has_in_the_metrics(self):
        daemon = self.configured('[[class]]\nname = "small"\ncommand = "memory"\n'
                                 'memory = "64MiB"\nmemory_of = "user"\n'
                                 '[[class]]\nname = "free"\n')
        killed, ended, free = (self.program(daemon, VITAMIN_CLASS=name)
                               for name in ("small", "small", "free"))
        self.assertEqual(self.ask(killed, f"take cuMemAlloc {40 * MIB} a"), OK)
        for size in (24, 8):
            self.assertEqual(self.ask(ended, f"take cuMemAlloc {size * MIB} a"), OK)
            self.assertEqual(self.ask(ended, "give a"), OK)
        self.assertEqual(self.ask(free, f"take cuMemAlloc {MIB} a"), OK)
        for program in (killed, ended, free):
            self.connect(program)
        self.assertEqual(len(daemon.status()["clients"]), 3)
        samples = [line for line in daemon.ask("metrics")["text"].splitlines()
                   if line.startswith("vitamin_usage_memory_bytes{")]
        self.assertEqual(len(samples), 1)
        self.assertRegex(samples[0], rf'user="{os.getuid()}",class="small",.*}} {40 * MIB}$')
        killed.kill()
        killed.wait()
        for program in (ended, free):
            program.stdin.close()
            program.wait()
        self.until(lambda: not daemon.status()["clients"])
        self.assertEqual({record["process"]: record["memory_peak_bytes"]
                          for record in daemon.ask("accounting")["clients"]},
                         {killed.pid: 40 * MIB, ended.pid: 24 * MIB, free.pid: None})

    def test_what_another_quota_or_the_driver_refused_is_in_no_record(self):
        daemon = self.configured('[[class]]\nname = "small"\ncommand = "x"\nmemory = "64MiB"\n'
                                 '[[class]]\nname = "all"\nuser = "*"\nmemory = "32MiB"\n'
                                 'memory_of = "class"\n')
        bounded = self.program(daemon, VITAMIN_CLASS="small")
        self.assertEqual(self.ask(bounded, f"take cuMemAlloc {6 * MIB} a"), OK)
        self.assertEqual(self.ask(bounded, f"take cuMemAlloc {40 * MIB} b"), NO_MEMORY)
        refused = self.program(daemon, VITAMIN_CLASS="small",
                               VITAMIN_SOFT_FAULTS="cuMemAlloc_v2@2=2")
        self.assertEqual(self.ask(refused, f"take cuMemAlloc {5 * MIB} a"), OK)
        self.assertEqual(self.ask(refused, f"take cuMemAlloc {20 * MIB} b"), NO_MEMORY)
        for program in (bounded, refused):
            self.connect(program)
            program.stdin.close()
            program.wait()
        self.until(lambda: not daemon.status()["clients"])
        self.assertEqual({record["process"]: record["memory_peak_bytes"]
                          for record in daemon.ask("accounting")["clients"]},
                         {bounded.pid: 6 * MIB, refused.pid: 5 * MIB})

    def status_with_nvml(self, daemon, device, processes, *options):
        library = pathlib.Path(self.directory.name, "libnvidia-ml.so.1")
        if not library.exists():
            library.symlink_to(os.environ["FAKE_NVML"])
        listed = ",".join(f"{process}:{used}" for process, used in processes.items())
        return self.shown(daemon, *options, LD_LIBRARY_PATH=self.directory.name,
                          FAKE_NVML_UUID=device, FAKE_NVML_USED=str(3 << 30),
                          FAKE_NVML_PROCESSES=listed)

    def test_status_names_processes_with_memory_that_no_quota_has(self):
        daemon = self.configured('[[class]]\nname = "small"\ncommand = "memory"\n'
                                 'memory = "64MiB"\nmemory_of = "user"\n')
        program = self.program(daemon)
        self.assertEqual(self.ask(program, f"take cuMemAlloc {40 * MIB} a"), OK)
        device = self.memory(daemon)[0]["device"]
        # Its context and code are not charged; another process has no quota; one cannot be seen.
        processes = {program.pid: 300 * MIB, os.getpid(): 2 << 30, 4194303: 2**64 - 1}
        text = self.status_with_nvml(daemon, device, processes)
        self.assertIn(f"memory of {device}: 3072 MiB of 16984 MiB in use\n", text)
        self.assertIn(f"  process {program.pid} (memory): 300 MiB, 40 MiB of it charged to its "
                      "quota\n", text)
        self.assertRegex(text, rf"  process {os.getpid()} \(\S+\): 2048 MiB, no quota\n")
        self.assertIn("  process 4194303: NVML does not say how much, no quota\n", text)
        one, = json.loads(self.status_with_nvml(daemon, device, processes,
                                                "--json"))["device_memory"]
        self.assertEqual((one["device"], one["used_bytes"]), (device, 3 << 30))
        self.assertEqual({each["process"]: (each["bytes"], each["charged_bytes"])
                          for each in one["processes"]},
                         {program.pid: (300 * MIB, 40 * MIB), os.getpid(): (2 << 30, None),
                          4194303: (None, None)})
        # More than the first question has room for; a device that vitamind does not know.
        many = {10_000 + number: MIB for number in range(150)}
        one, = json.loads(self.status_with_nvml(daemon, device, many, "--json"))["device_memory"]
        self.assertEqual(len(one["processes"]), 150)
        self.assertNotIn("in use", self.status_with_nvml(daemon, "GPU-other", processes))

    def test_by_default_each_process_has_a_quota_of_its_own(self):
        daemon = self.configured('[[class]]\nname = "small"\nmemory = "25%"\n')
        programs = [self.program(daemon) for _ in range(2)]
        for program in programs:
            status, free, total = self.ask(program, "info")
            self.assertEqual((status, free, total), (OK, 4 << 30, 4 << 30))
            self.assertEqual(self.ask(program, f"take cuMemAlloc {3 << 30} a"), OK)
            self.assertEqual(self.ask(program, f"take cuMemAlloc {2 << 30} b"), NO_MEMORY)
        self.assertEqual(sorted(each["whose"] for each in self.memory(daemon)),
                         sorted(f"of process {program.pid}" for program in programs))

    def test_quotas_of_a_users_groups_hold_whatever_class_a_program_names(self):
        daemon = self.configured(
            '[[class]]\nname = "each"\nuser = "*"\nmemory = "64MiB"\nmemory_of = "user"\n'
            '[[class]]\nname = "all"\nuser = "*"\nmemory = "96MiB"\nmemory_of = "class"\n'
            '[[class]]\nname = "tiny"\ncommand = "other"\nmemory = "32MiB"\n'
            '[[class]]\nname = "free"\n')
        free, tiny = (self.program(daemon, VITAMIN_CLASS=name) for name in ("free", "tiny"))
        self.assertEqual(self.ask(free, "info"), [OK, 64 * MIB, 64 * MIB])
        self.assertEqual(self.ask(tiny, "info"), [OK, 32 * MIB, 32 * MIB])
        self.assertEqual(self.ask(free, f"take cuMemAlloc {40 * MIB} a"), OK)
        self.assertEqual(self.ask(tiny, f"take cuMemAlloc {32 * MIB} a"), NO_MEMORY)
        self.assertEqual(self.ask(tiny, f"take cuMemAlloc {24 * MIB} a"), OK)
        self.assertEqual({each["whose"]: each["used"] // MIB for each in self.memory(daemon)},
                         {f"of user {os.getuid()}": 64, "of class all": 64,
                          f"of process {tiny.pid}": 24})

    def test_a_program_of_no_class_with_a_quota_sees_all_of_the_memory(self):
        daemon = self.configured('[[class]]\nname = "small"\ncommand = "other"\nmemory = "64MiB"\n'
                                 '[[class]]\nname = "free"\ncommand = "mem*"\n')
        program = self.program(daemon)
        status, free, total = self.ask(program, "info")
        self.assertEqual((status, free, total), (OK, self.ask(program, "native"), 16 << 30))
        self.assertEqual(self.ask(program, f"take cuMemAlloc {1 << 30} a"), OK)
        self.assertEqual(self.memory(daemon), [])
        # It may only name classes of its user.
        named = self.program(daemon, VITAMIN_CLASS="small")
        self.assertEqual(self.ask(named, "info"), [OK, 64 * MIB, 64 * MIB])

    def test_a_step_and_a_claim_have_their_registered_memory_quota(self):
        daemon = self.configured("")
        uid, container = "1b1ebb02-5ff4-4bd0-bd0a-0d1d1e2f3a4b", "c" * 64
        self.assertNotIn("error", daemon.ask(f"job-begin 12.0 {os.getuid()} 25 - - 64MiB"))
        self.assertNotIn("error", daemon.ask(f"claim-begin C.0 {uid} 25 - {32 * MIB} GPU-1"))
        of_step = self.program(daemon)
        self.assertEqual(self.ask(of_step, "info"), [OK, 64 * MIB, 64 * MIB])
        self.assertEqual(self.ask(of_step, f"take cuMemAlloc {40 * MIB} a"), OK)
        self.assertEqual(self.ask(self.program(daemon), f"take cuMemAlloc {40 * MIB} a"), NO_MEMORY)
        self.assertNotIn("error", daemon.ask("job-end 12"))
        of_claim = self.program(daemon, self.control_group("kubepods", f"pod{uid}", container))
        self.assertEqual(self.ask(of_claim, "info"), [OK, 32 * MIB, 32 * MIB])
        daemon.process.send_signal(signal.SIGHUP)  # the file does not mention them
        self.until(lambda: "the configuration was read again" in daemon.log())
        self.assertEqual({each["whose"]: each["quota"] for each in self.memory(daemon)},
                         {"of job 12.0": 64 * MIB, "of claim C.0": 32 * MIB})
        shown = self.shown(daemon)
        self.assertRegex(shown, r"memory of job 12\.0 on GPU-\S+: 40 MiB of 64 MiB")

    def test_a_changed_quota_applies_at_once(self):
        text = '[[class]]\nname = "small"\nmemory = "{}"\nmemory_of = "class"\n'
        daemon = self.configured(text.format("64MiB"))
        program = self.program(daemon)
        self.assertEqual(self.ask(program, f"take cuMemAlloc {40 * MIB} a"), OK)
        for size, total, free in (("32MiB", 32 * MIB, 0), ("1%", (16 << 30) // 100, None)):
            pathlib.Path(self.directory.name, "vitamin.toml").write_text(text.format(size))
            daemon.process.send_signal(signal.SIGHUP)
            self.until(lambda: self.memory(daemon)[0]["quota"] == total)
            if free is None:
                free = total - 40 * MIB
            self.assertEqual(self.ask(program, "info"), [OK, free, total])

    def reload(self, daemon, text):
        """Has vitamind read another configuration."""
        before = daemon.log().count("the configuration was read again")
        pathlib.Path(self.directory.name, "vitamin.toml").write_text(text)
        daemon.process.send_signal(signal.SIGHUP)
        self.until(lambda: daemon.log().count("the configuration was read again") > before)

    def said(self, program):
        program.errors.seek(0)
        return program.errors.read()

    def test_a_quota_lowered_below_what_is_in_use_takes_nothing_away_and_gives_nothing_more(self):
        text = '[[class]]\nname = "small"\nmemory = "{}MiB"\nmemory_of = "class"\n'
        daemon = self.configured(text.format(64))
        program = self.program(daemon)
        for name, size in (("a", 30), ("b", 10)):
            self.assertEqual(self.ask(program, f"take cuMemAlloc {size * MIB} {name}"), OK)
        self.reload(daemon, text.format(20))
        self.assertEqual(self.ask(program, "info"), [OK, 0, 20 * MIB])
        self.assertEqual(self.ask(program, f"take cuMemAlloc {2 * MIB} c"), NO_MEMORY)
        self.assertRegex(self.said(program),
                         r"of the quota of class small \(20.0 MiB\) on device GPU-\S+ 40.0 MiB are "
                         r"in use, 40.0 MiB by this process.*\[VIT-513\]")
        late = self.program(daemon)
        self.assertEqual(self.ask(late, "info"), [OK, 0, 20 * MIB])
        self.assertEqual(self.ask(late, f"take cuMemAlloc {2 * MIB} a"), NO_MEMORY)
        self.assertIn("40 MiB of 20 MiB, 2 processes", self.shown(daemon))
        self.assertEqual(self.ask(program, "give a"), OK)
        for each in (program, late):
            self.assertEqual(self.ask(each, "info"), [OK, 10 * MIB, 20 * MIB])
        self.assertEqual(self.ask(late, f"take cuMemAlloc {10 * MIB} a"), OK)
        self.reload(daemon, text.format(64))
        self.assertEqual(self.ask(program, f"take cuMemAlloc {44 * MIB} c"), OK)

    def test_a_class_that_loses_its_quota_bounds_nothing_and_is_shown_with_none(self):
        text = '[[class]]\nname = "small"\nmemory_of = "class"\n'
        daemon = self.configured(text + 'memory = "64MiB"\n')
        program = self.program(daemon)
        self.assertEqual(self.ask(program, f"take cuMemAlloc {40 * MIB} a"), OK)
        self.reload(daemon, text)
        self.assertEqual(self.ask(program, "info"),
                         [OK, self.ask(program, "native"), 16 << 30])
        self.assertEqual(self.ask(program, f"take cuMemAlloc {100 * MIB} b"), OK)
        self.assertEqual(self.memory(daemon), [])
        self.assertNotIn("class small", self.shown(daemon))
        self.assertNotIn("vitamin_memory_quota_bytes{", daemon.ask("metrics")["text"])
        self.reload(daemon, text + 'memory = "64MiB"\n')
        self.assertEqual(self.memory(daemon)[0]["used"], 140 * MIB)
        self.assertEqual(self.ask(program, f"take cuMemAlloc {MIB} c"), NO_MEMORY)

    def test_a_class_with_a_quota_above_the_device_is_bounded_by_the_device(self):
        daemon = self.configured('[[class]]\nname = "large"\nmemory = "1TiB"\n'
                                 'memory_of = "class"\n')
        program = self.program(daemon)
        self.assertEqual(self.ask(program, "info"), [OK, 16 << 30, 16 << 30])
        self.assertRegex(self.said(program),
                         r"the quota of class large \(1.0 TiB\) is more than device \S+ has "
                         r"\(16.0 GiB\): the device bounds it \[VIT-513\]")
        self.assertEqual(self.ask(program, f"take cuMemAlloc {17 << 30} a"), NO_MEMORY)
        self.assertEqual(self.ask(program, f"take cuMemAlloc {15 << 30} a"), OK)

    def test_what_a_program_says_of_its_job_or_class_gets_it_no_other_groups_memory(self):
        daemon = self.configured('[[class]]\nname = "all"\nuser = "*"\nmemory = "96MiB"\n'
                                 'memory_of = "class"\n[[class]]\nname = "free"\n')
        uid, container = "1b1ebb02-5ff4-4bd0-bd0a-0d1d1e2f3a4b", "c" * 64
        for verb in (f"job-begin 12.0 {os.getuid()} 25 - - 64MiB",
                     f"job-begin 13.0 {os.getuid()} 50 - - 128MiB",
                     f"job-begin 14.0 {os.getuid() + 1} 50 - - 1GiB",
                     f"claim-begin C.0 {uid} 25 - {32 * MIB} GPU-1"):
            self.assertNotIn("error", daemon.ask(verb))
        step = self.control_group("slurm-test", "uid_0", "job_12", "step_0")
        for job in ("13.0", "14.0", "12.0", "none"):
            with self.subTest(job=job):
                program = self.program(daemon, step, VITAMIN_JOB=job, VITAMIN_CLASS="free")
                self.assertEqual(self.ask(program, "info"), [OK, 64 * MIB, 64 * MIB])
                program.kill()
                program.wait()
        # Outside of a step a user's process may be of any job of the user, and of no other's.
        outside = self.program(daemon, VITAMIN_JOB="14.0", VITAMIN_CLASS="free")
        self.assertEqual(self.ask(outside, "info"), [OK, 96 * MIB, 96 * MIB])
        self.assertIn("of job 13.0", [each["whose"] for each in self.memory(daemon)])
        for job in ("12", "13"):
            self.assertNotIn("error", daemon.ask(f"job-end {job}"))
        pod = self.control_group("kubepods", f"pod{uid}", container)
        of_claim = self.program(daemon, pod, VITAMIN_JOB="14.0", VITAMIN_CLASS="free")
        self.assertEqual(self.ask(of_claim, "info"), [OK, 32 * MIB, 32 * MIB])

    def test_memory_of_a_program_without_our_library_is_not_free_and_its_process_is_named(self):
        daemon = self.configured('[[class]]\nname = "large"\nmemory = "15GiB"\n'
                                 'memory_of = "class"\n')
        unseen = self.program(daemon, LD_PRELOAD=os.environ["FIRST"])
        self.assertEqual(self.ask(unseen, f"take cuMemAlloc {10 << 30} a"), OK)
        program = self.program(daemon)
        self.assertEqual(self.ask(program, "info"), [OK, 6 << 30, 15 << 30])
        self.assertEqual(self.ask(program, f"take cuMemAlloc {7 << 30} a"), NO_MEMORY)
        self.assertRegex(self.said(program),
                         r"device GPU-\S+ itself has no room for 7.0 GiB: 6.0 GiB are free there, "
                         r"while the quota leaves 15.0 GiB; processes .* outside of Vitamin")
        self.assertEqual(self.ask(program, f"take cuMemAlloc {6 << 30} a"), OK)
        one, = self.memory(daemon)
        self.assertEqual((one["used"], one["processes"]), (6 << 30, 1))
        text = self.status_with_nvml(daemon, one["device"],
                                     {program.pid: 6 << 30, unseen.pid: 10 << 30})
        self.assertIn(f"process {unseen.pid} (memory): 10240 MiB, no quota\n", text)
        self.assertIn(f"process {program.pid} (memory): 6144 MiB, 6144 MiB of it charged", text)

    def test_a_class_that_gains_a_quota_bounds_new_programs_and_the_log_names_others(self):
        daemon = self.configured('[[class]]\nname = "small"\n')
        before = self.program(daemon)
        self.assertEqual(self.ask(before, f"take cuMemAlloc {100 * MIB} a"), OK)
        self.connect(before)
        pathlib.Path(self.directory.name, "vitamin.toml").write_text(
            '[[class]]\nname = "small"\nmemory = "64MiB"\n')
        daemon.process.send_signal(signal.SIGHUP)
        self.until(lambda: "the configuration was read again" in daemon.log())
        self.assertRegex(daemon.log(), r"class 'small' has a memory quota, but 1 processes that "
                                       rf"run, such as {before.pid}, .*\[VIT-513\]")
        self.assertEqual(self.ask(before, f"take cuMemAlloc {100 * MIB} b"), OK)
        after = self.program(daemon)
        self.assertEqual(self.ask(after, "info"), [OK, 64 * MIB, 64 * MIB])
        self.connect(after)
        # With a quota from the beginning nothing is said.
        lines = daemon.log().count("VIT-513")
        before.kill()
        before.wait()
        self.until(lambda: before.pid not in
                   [client["process"] for client in daemon.status()["clients"]])
        daemon.process.send_signal(signal.SIGHUP)
        self.until(lambda: daemon.log().count("the configuration was read again") == 2)
        self.assertEqual(daemon.log().count("VIT-513"), lines)

    def test_a_reload_names_whom_another_class_bounds_and_not_who_has_not_allocated_yet(self):
        each = '[[class]]\nname = "each"\nuser = "*"\nmemory = "96MiB"\nmemory_of = "user"\n'
        gains = '[[class]]\nname = "gains"\ncommand = "other"\n'
        has = '[[class]]\nname = "has"\nmemory = "48MiB"\n'
        daemon = self.configured(each + gains + has)
        bounded, early = (self.program(daemon, VITAMIN_CLASS=name) for name in ("gains", "has"))
        self.assertEqual(self.ask(bounded, f"take cuMemAlloc {MIB} a"), OK)
        for program in (bounded, early):
            self.connect(program)
        pathlib.Path(self.directory.name, "vitamin.toml").write_text(
            each + gains + 'memory = "64MiB"\n' + has)
        daemon.process.send_signal(signal.SIGHUP)
        self.until(lambda: "the configuration was read again" in daemon.log())
        self.assertRegex(daemon.log(), r"class 'gains' has a memory quota, but 1 processes that "
                                       rf"run, such as {bounded.pid}, .*\[VIT-513\]")
        self.assertEqual(daemon.log().count("VIT-513"), 1)
        # The quota holds when it allocates.
        self.assertEqual(self.ask(early, f"take cuMemAlloc {64 * MIB} a"), NO_MEMORY)

    def test_a_program_without_its_quota_ends_where_nothing_runs_without_vitamind(self):
        daemon = self.configured('[[class]]\nname = "small"\nmemory = "64MiB"\n')
        daemon.process.send_signal(signal.SIGSTOP)
        try:
            closed = self.program(daemon, VITAMIN_ABSENT="75")
            closed.stdin.write("info\n")
            closed.stdin.flush()
            self.assertEqual(closed.wait(time_limit(60)), 75)
            opened = self.program(daemon)
            self.assertEqual(self.ask(opened, "info")[0], OK)
        finally:
            daemon.process.send_signal(signal.SIGCONT)
        for program, part in ((closed, "failure.absent"), (opened, "bounds no memory")):
            program.errors.seek(0)
            self.assertEqual(program.errors.read().count(part), 1)

    def test_the_quota_of_a_run_and_that_of_its_class_both_hold(self):
        daemon = self.configured('[[class]]\nname = "small"\nmemory = "64MiB"\n')
        for run, least in ((32 * MIB, 32 * MIB), (128 * MIB, 64 * MIB)):
            program = self.program(daemon, VITAMIN_MEMORY=str(run))
            self.assertEqual(self.ask(program, "info"), [OK, least, least])
            self.assertEqual(self.ask(program, f"take cuMemAlloc {least + 1} a"), NO_MEMORY)
            self.assertEqual(self.ask(program, f"take cuMemAlloc {least} a"), OK)

    def test_an_invalid_size_is_a_problem_of_the_file(self):
        for size in ("40", "40G", "0%", "101%", "-1MiB"):
            daemon = self.configured(f'[[class]]\nname = "small"\nmemory = "{size}"\n')
            self.assertEqual(daemon.process.wait(time_limit(10)), 1)
            self.assertIn("'memory' must be a size like", daemon.log())


if __name__ == "__main__":
    unittest.main()
