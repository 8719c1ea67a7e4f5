# SPDX-License-Identifier: Apache-2.0
"""vitamin park and resume over the software driver, whose checkpoints go through its ledger.

Needs in the environment: PREFIX (build directory), FAULT_KERNELS, FAKE_DRIVER, FAKE_NVML, FIRST
(what must be preloaded ahead of a library of the build: the runtime of a sanitizer, or nothing).
"""
import json
import os
import pathlib
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import unittest

from time_limit import time_limit

PREFIX = pathlib.Path(os.environ["PREFIX"])
VITAMIN = PREFIX / "bin/vitamin"
PROGRAM = pathlib.Path(__file__).with_name("park_program.py")
OUT_OF_MEMORY = 2
MOST, MUCH = 10_000, 8_000  # MiB of 16 GiB: two of them do not fit together
DONE, LATER, FAILED = 0, 75, 125


def child_of(process):
    """The program that this `vitamin run` started; empty: none yet."""
    try:
        children = pathlib.Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text()
    except OSError:
        return ""
    return children.strip()


class Held:
    """A program that holds memory and answers."""

    def __init__(self, test, mib, before=(), **changes):
        self.process = subprocess.Popen(
            [*before, sys.executable, PROGRAM, str(mib), os.environ["FAULT_KERNELS"]],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
            env=test.environment(**changes))
        test.addCleanup(self.end)
        self.pid = self.process.stdout.readline().strip()
        test.assertTrue(self.pid.isdigit(), self.pid)

    def send(self, command):
        self.process.stdin.write(command + "\n")
        self.process.stdin.flush()

    def answer(self):
        return self.process.stdout.readline().strip()

    def ask(self, command):
        self.send(command)
        return self.answer()

    def end(self):
        self.process.stdin.close()
        try:
            self.process.wait(time_limit(20))
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        self.process.stdout.close()


class SoftTest(unittest.TestCase):
    def setUp(self):
        directory = tempfile.TemporaryDirectory(prefix="vitamin-park-", ignore_cleanup_errors=True)
        self.addCleanup(directory.cleanup)
        self.directory = pathlib.Path(directory.name)

    def environment(self, **changes):
        result = {name: value for name, value in os.environ.items()
                  if not name.startswith(("VITAMIN", "LD_", "CUDA_", "FAKE"))}
        result |= {"LD_LIBRARY_PATH": str(PREFIX / "lib/soft"), "LC_ALL": "C.UTF-8",
                   "LD_PRELOAD": os.environ["FIRST"], "ASAN_OPTIONS": "detect_leaks=0",
                   "VITAMIN_SOFT_LEDGER": str(self.directory / "ledger"),
                   "VITAMIN_LOCK_DIRECTORY": str(self.directory),
                   "XDG_RUNTIME_DIR": str(self.directory)}
        result |= changes
        return {name: value for name, value in result.items() if value is not None}

    def call(self, *words, **changes):
        return subprocess.run([VITAMIN, *words], capture_output=True, text=True,
                              stdin=subprocess.DEVNULL, timeout=time_limit(100),
                              env=self.environment(**changes))

    def done(self, *words, **changes):
        result = self.call(*words, **changes)
        self.assertEqual((result.returncode, result.stderr), (DONE, ""))
        return result.stdout

    def refused(self, code, words, *parts, **changes):
        self.check_refused(self.call(*words, **changes), code, *parts)

    def check_refused(self, result, code, *parts):
        self.assertEqual((result.returncode, result.stdout), (code, ""), result.stderr)
        self.assertEqual(len(result.stderr.splitlines()), 1, result.stderr)
        for part in parts:
            self.assertIn(part, result.stderr)

    def library(self, name, variable):
        """The directory of a fake of this name."""
        directory = self.directory / variable
        directory.mkdir()
        shutil.copy(os.environ[variable], directory / name)
        return f"{directory}:{PREFIX / 'lib/soft'}"


class Park(SoftTest):
    def test_memory_is_free_while_parked_and_the_same_at_the_same_address_afterwards(self):
        for before in ((), (VITAMIN, "run", "--quiet", "--")):
            with self.subTest(under="vitamin run" if before else "natively"):
                held, other = Held(self, MOST, before), Held(self, 1)
                first = held.ask("sum")
                self.assertEqual(int(other.ask(f"take {MUCH}")), OUT_OF_MEMORY)
                self.assertRegex(self.done("park", held.pid), rf"^process {held.pid} \(.*\) parked")
                self.assertEqual(int(other.ask(f"take {MUCH}")), 0)
                other.end()
                self.assertRegex(self.done("resume", held.pid),
                                 rf"^process {held.pid} \(.*\) resumed")
                self.assertEqual(held.ask("sum"), first)
                held.end()

    def test_resume_without_room_says_so_and_loses_nothing(self):
        held, other = Held(self, MOST), Held(self, 1)
        first = held.ask("sum")
        self.done("park", held.pid)
        self.assertEqual(int(other.ask(f"take {MUCH}")), 0)
        for _ in range(2):
            self.refused(LATER, ("resume", held.pid), "no room", "it stays parked", "[VIT-112]")
        other.end()
        self.done("resume", "--timeout", "60", held.pid)
        self.assertEqual(held.ask("sum"), first)

    def test_resume_waits_for_room(self):
        held, other = Held(self, MOST), Held(self, 1)
        self.done("park", held.pid)
        self.assertEqual(int(other.ask(f"take {MUCH}")), 0)
        resume = subprocess.Popen([VITAMIN, "resume", "--timeout", "300", held.pid],
                                  env=self.environment(), stdout=subprocess.DEVNULL)
        time.sleep(0.3)
        self.assertIsNone(resume.poll())
        other.end()
        self.assertEqual(resume.wait(time_limit(60)), DONE)

    def test_calls_of_a_parked_process_wait_until_it_is_resumed(self):
        held = Held(self, 1)
        before = int(held.ask("launch"))
        self.done("park", held.pid)
        held.send("launch")
        time.sleep(0.3)
        self.refused(FAILED, ("park", held.pid), "parked already")
        self.done("resume", held.pid)
        self.assertEqual(int(held.answer()), before + 1)

    def test_a_program_that_computes_has_its_bits_when_it_was_parked_meanwhile(self):
        train = PREFIX / "bin/demo-train"
        for policy in ("fifo", "random"):
            with self.subTest(policy=policy):
                for steps in ("400", "1600", "6400"):  # more if it ended before it was parked
                    wanted = re.search(r"hash \w+", subprocess.run(
                        [train, steps], env=self.environment(), capture_output=True, text=True,
                        timeout=time_limit(200), check=True).stdout)[0]
                    run = subprocess.Popen(
                        [VITAMIN, "run", "--quiet", "--policy", policy, "--", train, steps],
                        stdout=subprocess.PIPE, text=True, env=self.environment())
                    parked = 0
                    while run.poll() is None:
                        program = child_of(run)
                        if program and self.call("park", program).returncode == DONE:
                            parked += self.call("resume", program).returncode == DONE
                        time.sleep(0.02)
                    self.assertEqual(run.returncode, 0)
                    self.assertIn(wanted, run.stdout.read())
                    run.stdout.close()
                    if parked > 0:
                        break
                self.assertGreater(parked, 0)

    def test_the_answer_as_json(self):
        held = Held(self, 1)
        nvml = self.library("libnvidia-ml.so.1", "FAKE_NVML")
        known = {"LD_LIBRARY_PATH": nvml, "FAKE_NVML_PROCESSES": f"{held.pid}:{3 << 30}"}
        for verb, state in (("park", "parked"), ("resume", "resumed")):
            answer = json.loads(self.done(verb, "--json", held.pid, **known))
            self.assertEqual(answer["schema"], 1)
            [process] = answer["processes"]
            self.assertEqual((process["process"], process["state"], process["bytes"]),
                             (int(held.pid), state, 3 << 30))
            self.assertGreater(process["bytes_per_second"], 0)
        self.assertRegex(self.done("park", held.pid, **known), r"parked: 3,072 MiB in .* GB/s\n$")

    def test_memory_that_processes_share_is_refused_and_both_go_on(self):
        for before in ((), (VITAMIN, "run", "--quiet", "--")):
            with self.subTest(under="vitamin run" if before else "natively"):
                owner, peer = Held(self, 1, before), Held(self, 1, before)
                self.assertEqual(peer.ask("open " + owner.ask("export")), "0")
                for each in owner, peer:
                    self.refused(FAILED, ("park", each.pid),
                                 "does not checkpoint it (CUDA_ERROR_NOT_SUPPORTED)",
                                 "IPC handles", "it runs on", "[VIT-112]")
                    self.refused(FAILED, ("resume", each.pid), "it is not parked")
                    # Neither lost the other.
                    self.assertEqual(owner.ask("launch"), peer.ask("peek"))
                self.assertEqual(peer.ask("close"), "0")
                self.done("park", peer.pid)
                self.done("resume", peer.pid)
                owner.end()
                peer.end()

    def refused_for_sharing(self, held):
        before = held.ask("sum")
        self.refused(FAILED, ("park", held.pid), f"process {held.pid}: ", "IPC handles",
                     "it runs on", "[VIT-112]")
        self.assertEqual(held.ask("sum"), before)

    def parked_and_resumed(self, held):
        before = held.ask("sum")
        for verb in ("park", "resume"):
            self.done(verb, held.pid)
        self.assertEqual(held.ask("sum"), before)

    def test_processes_are_parked_again_once_they_share_no_memory_any_more(self):
        for before in ((), (VITAMIN, "run", "--quiet", "--")):
            with self.subTest(under="vitamin run" if before else "natively"):
                owner, peer = Held(self, 1, before), Held(self, 1, before)
                self.parked_and_resumed(owner)
                handle = owner.ask("lend")
                self.refused_for_sharing(owner)  # any process may open it
                self.parked_and_resumed(peer)
                self.assertEqual(peer.ask(f"open {handle}"), "0")
                seen = peer.ask("seen")
                for each in (owner, peer):
                    self.refused_for_sharing(each)
                self.assertEqual(peer.ask("seen"), seen)
                self.assertEqual(peer.ask("close"), "0")
                self.parked_and_resumed(peer)
                self.refused_for_sharing(owner)
                self.assertEqual(owner.ask("unlend"), "0")
                self.parked_and_resumed(owner)
                owner.end()
                peer.end()

    def test_memory_whose_owner_has_ended_is_not_lost_by_a_peer(self):
        owner, peer = Held(self, 1), Held(self, 1)
        self.assertEqual(peer.ask("open " + owner.ask("export")), "0")
        seen = peer.ask("seen")
        owner.end()
        self.refused_for_sharing(peer)
        self.assertEqual(peer.ask("seen"), seen)
        self.assertEqual(peer.ask("close"), "0")
        self.parked_and_resumed(peer)

    def test_what_a_process_has_open_or_mapped_that_no_checkpoint_carries_is_named(self):
        held = Held(self, 1)
        for place, part in (("dev/infiniband/uverbs0", "RDMA"), ("dev/shm/nccl-1", "NCCL")):
            with self.subTest(part):
                path = self.directory / place
                path.parent.mkdir(parents=True)
                path.write_text("contents")
                self.assertEqual(held.ask(f"hold {path}"), "0")
                self.refused(FAILED, ("park", held.pid), part, "do not carry", "or end")
                self.refused(FAILED, ("resume", held.pid), "it is not parked")
                self.assertEqual(held.ask("drop"), "0")
                self.parked_and_resumed(held)

    def test_a_client_of_mps_is_refused_before_it_is_locked(self):
        held = Held(self, 1)
        nvml = self.library("libnvidia-ml.so.1", "FAKE_NVML")
        self.refused(FAILED, ("park", held.pid), "it is a client of MPS", "run it without MPS",
                     LD_LIBRARY_PATH=nvml, FAKE_NVML_MPS=f"{held.pid}:{1 << 30}")
        self.refused(FAILED, ("resume", held.pid), "not parked")

    def test_more_than_the_host_has_room_for_is_refused(self):
        held = Held(self, 1)
        nvml = self.library("libnvidia-ml.so.1", "FAKE_NVML")
        self.refused(LATER, ("park", held.pid), "free host memory first", LD_LIBRARY_PATH=nvml,
                     FAKE_NVML_PROCESSES=f"{held.pid}:{1 << 60}")

    def test_processes_that_cannot_be_parked_are_named(self):
        self.refused(FAILED, ("park", "999999999"), "there is no process 999999999")
        self.refused(FAILED, ("park", str(os.getpid())), "the driver does not know it")
        self.refused(FAILED, ("park", "training"), "'training' is no number of a process",
                     "[VIT-301]")

    def test_a_state_that_does_not_fit_is_named(self):
        held = Held(self, 1)
        self.refused(FAILED, ("resume", held.pid), "it is not parked")
        self.done("park", held.pid)
        self.refused(FAILED, ("park", held.pid), "it is parked already")
        self.done("resume", held.pid)

    def test_a_step_that_fails_is_undone(self):
        held = Held(self, 1)
        first = held.ask("sum")
        self.refused(FAILED, ("park", held.pid),
                     "does not checkpoint it (CUDA_ERROR_NOT_SUPPORTED)", "managed memory",
                     "it runs on",
                     VITAMIN_SOFT_FAULTS="cuCheckpointProcessCheckpoint@1=801")
        self.assertEqual(held.ask("sum"), first)
        self.refused(LATER, ("park", "--timeout", "0.1", held.pid), "it was not idle within 0.1 s",
                     "it runs on", VITAMIN_SOFT_FAULTS="cuCheckpointProcessLock@1=600")
        self.done("park", held.pid)
        self.refused(FAILED, ("resume", held.pid), "does not restore it", "it stays parked",
                     VITAMIN_SOFT_FAULTS="cuCheckpointProcessRestore@1=999")
        self.refused(FAILED, ("resume", held.pid), "does not unlock it", "it is locked",
                     VITAMIN_SOFT_FAULTS="cuCheckpointProcessUnlock@1=999")
        self.done("resume", held.pid)  # unlocks it
        self.assertEqual(held.ask("sum"), first)

    def test_a_driver_without_the_interface_is_refused_with_the_version_that_has_it(self):
        driver = self.library("libcuda.so.1", "FAKE_DRIVER")
        self.refused(FAILED, ("park", str(os.getpid())), "CUDA 12.8 (570) or later",
                     "has CUDA 12.4", LD_LIBRARY_PATH=driver, FAKE_VERSION="12040")


class UnderVitamind(SoftTest):
    """A client of vitamind that is parked keeps its session and nothing from other clients."""

    def setUp(self):
        super().setUp()
        self.socket = self.directory / "vitamind.sock"
        daemon = subprocess.Popen(
            [PREFIX / "bin/vitamind", "--socket", self.socket, "--policy", "exclusive", "--quiet",
             "--lock-directory", self.directory], env=super().environment())
        self.addCleanup(daemon.wait)
        self.addCleanup(daemon.terminate)
        self.wait_until(self.socket.exists)

    def environment(self, **changes):
        return super().environment(VITAMIN_DAEMON=str(self.socket), **changes)

    def wait_until(self, holds):
        until = time.monotonic() + time_limit(60)
        while not holds() and time.monotonic() < until:
            time.sleep(0.02)

    def client(self, mib=1):
        held = Held(self, mib, (VITAMIN, "run", "--daemon", "--quiet", "--"))
        self.addCleanup(self.call, "resume", held.pid)
        return held

    def status(self):
        return json.loads(self.done("status", "--json"))

    def test_an_idle_client_is_parked_by_its_name_and_another_one_runs(self):
        held = self.client(MOST)
        before = int(held.ask("launch"))
        program = next(client["program"] for client in self.status()["clients"]
                       if client["process"] == int(held.pid))
        self.done("park", program)
        other = self.client(MOST)
        self.assertEqual(int(other.ask("launch")), int(other.ask("launch")) - 1)
        status = self.status()
        self.assertIn(int(held.pid), [client["process"] for client in status["clients"]])
        # Its runtime cannot look whether work has ended: what it was granted is taken once.
        self.assertLessEqual(sum(device["overdue"] for device in status["devices"]), 1)
        other.end()
        self.done("resume", "--timeout", "60", held.pid)
        self.assertEqual(int(held.ask("launch")), before + 1)

    def test_a_job_is_parked_as_a_whole_or_not_at_all(self):
        job = [self.client() for _ in range(3)]
        for each in job:
            each.ask("launch")
        # In the order in which they are parked; the last one shares memory.
        order = [client["process"] for client in self.status()["clients"]]
        job.sort(key=lambda each: order.index(int(each.pid)))
        sums = [each.ask("sum") for each in job]
        program = self.client_status(job[0])["program"]
        peer = Held(self, 1)
        self.assertEqual(peer.ask("open " + job[2].ask("lend")), "0")
        seen = peer.ask("seen")
        self.refused(FAILED, ("park", program), f"process {job[2].pid}: ", "IPC handles",
                     "it runs on")
        for each in job:
            self.assertIs(self.client_status(each)["parked"], False)
            self.refused(FAILED, ("resume", each.pid), "it is not parked")
        self.assertEqual([each.ask("sum") for each in job], sums)
        self.assertEqual(peer.ask("seen"), seen)
        self.assertEqual(job[2].ask("unlend"), "0")
        self.assertEqual(len(self.done("park", program).splitlines()), 3)
        self.assertEqual(len(self.done("resume", program).splitlines()), 3)
        self.assertEqual([each.ask("sum") for each in job], sums)

    def client_status(self, held):
        return next(client for client in self.status()["clients"]
                    if client["process"] == int(held.pid))

    def test_status_and_explain_say_that_a_client_is_parked(self):
        held = self.client()
        before = int(held.ask("launch"))
        self.assertIs(self.client_status(held)["parked"], False)
        self.assertNotIn("parked", self.done("status"))
        self.done("park", held.pid)
        self.assertIs(self.client_status(held)["parked"], True)
        self.assertRegex(self.done("status"), rf"(?m)^ .* {held.pid} +\d+ +parked ")
        self.assertIn("is parked (vitamin resume ends that) and has", self.done("explain"))
        self.done("resume", held.pid)
        self.assertIs(self.client_status(held)["parked"], False)
        self.assertEqual(int(held.ask("launch")), before + 1)

    def test_a_vitamind_that_does_not_know_it_is_told_again(self):
        held = self.client()
        held.ask("launch")
        self.done("park", "--socket", self.directory / "none", held.pid)
        self.assertIs(self.client_status(held)["parked"], False)
        self.refused(FAILED, ("park", held.pid), "it is parked already")
        self.assertIs(self.client_status(held)["parked"], True)

    def test_who_was_resumed_by_another_program_is_parked_no_longer(self):
        held = self.client()
        held.ask("launch")
        self.done("park", held.pid)
        self.done("resume", "--socket", self.directory / "none", held.pid)
        self.assertIs(self.client_status(held)["parked"], True)  # nothing was said so far
        held.ask("launch")
        self.wait_until(lambda: not self.client_status(held)["parked"])

    def test_a_client_that_works_is_not_parked_and_goes_on(self):
        train = subprocess.Popen(
            [VITAMIN, "run", "--daemon", "--quiet", "--",
             PREFIX / "bin/demo-train", "20000"], env=self.environment(),
            stdout=subprocess.DEVNULL)
        self.addCleanup(train.wait)
        self.addCleanup(train.kill)
        self.wait_until(lambda: child_of(train) and self.status()["clients"])
        program = child_of(train)
        self.addCleanup(os.kill, int(program), signal.SIGKILL)
        # On a machine that gives it no CPU for a while it is idle, and parked.
        while (result := self.call("park", "--timeout", "0.3", program)).returncode == DONE:
            self.done("resume", program)
        self.check_refused(result, LATER, "it was not idle within", "it runs on")

    def test_resume_of_a_device_ends_its_drain(self):
        held = self.client()
        held.ask("launch")
        self.done("drain")
        self.assertIn("takes clients", self.done("resume"))


if __name__ == "__main__":
    unittest.main()
