#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Whole programs under `vitamin run --daemon`: their bits are those of a run alone."""
import contextlib
import json
import os
import pathlib
import re
import shutil
import signal
import socket
import subprocess
import threading
import time
import unittest

from harness import MAJOR, DaemonTest
from seed import takes_a_sample
from time_limit import time_limit

STEPS = {"demo-train": 50, "demo-serve": 14} if takes_a_sample() else {
    "demo-train": 150, "demo-serve": 40}


def parent_of(process):
    return int(pathlib.Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[1])


def hash_of(text):
    return re.search(r"hash (\w+)", text)[1]


class UnderDaemon(DaemonTest):
    def setUp(self):
        super().setUp()
        self.environment = os.environ | {
            "LD_LIBRARY_PATH": os.environ["DRIVER"],
            "VITAMIN_SOFT_LEDGER": os.path.join(self.directory.name, "ledger")}

    def run_under(self, daemon, name, number, socket=None):
        report = os.path.join(self.directory.name, f"report{number}")
        process = subprocess.Popen(
            [os.environ["VITAMIN"], "run", "--daemon", "--socket", str(socket or daemon.socket),
             "--strict", "--quiet", "--report", report, "--", *self.program(name)],
            env=self.environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)

        def end():
            process.kill()
            process.wait()
            process.stdout.close()
            process.stderr.close()
        self.addCleanup(end)
        process.report = report
        return process

    def started(self, daemon, names):
        """The programs of these names and their processes that are clients, when all of them are or
        one has ended."""
        processes = [self.run_under(daemon, name, i) for i, name in enumerate(names)]

        def clients():
            return [client["process"] for client in daemon.status()["clients"]]
        self.until(lambda: len(clients()) == len(names) or
                   any(process.poll() is not None for process in processes), 60)
        return processes, clients()

    def finish(self, process, code=0):
        output, errors = process.communicate(timeout=time_limit(120))
        self.assertEqual(process.returncode, code, errors)
        with open(process.report) as report:
            return output, json.load(report)

    def look_on(self, daemon, processes):
        """Watches the status until all have ended."""
        while any(process.poll() is None for process in processes):
            self.check_disjoint(daemon.status())
            time.sleep(0.01)


class Programs(UnderDaemon):
    times = 1  # how long programs are, in STEPS

    def program(self, name):
        return [os.path.join(os.environ["PROGRAMS"], name), str(self.times * STEPS[name])]

    def alone(self, name):
        return hash_of(subprocess.run(self.program(name), env=self.environment, text=True,
                                      capture_output=True,
                                      timeout=time_limit(60), check=True).stdout)

    def gathered(self, daemon, names, kill=None):
        """Starts programs that are all clients at the same time: longer ones until they are.
        `kill`: which of them is killed then."""
        for self.times in (4, 16, 64, 256):
            processes, clients = self.started(daemon, names)
            if len(clients) == len(names):
                if kill is not None:
                    of_parent = {parent_of(client): client for client in clients}
                    os.kill(of_parent[processes[kill].pid], signal.SIGKILL)
                return processes
            for process in processes:
                process.terminate()
                process.communicate(timeout=time_limit(60))
            self.until(lambda: not daemon.status()["clients"], 60)
        self.fail("the programs ended before all of them were clients")

    def share(self, names, policy="random:max_sms=32"):
        # A busy machine is no program that does not answer.
        daemon = self.daemon("--policy", policy, "--quiet", "--answer-within", "3600")
        processes = self.gathered(daemon, names)
        self.look_on(daemon, processes)
        expected = {name: self.alone(name) for name in set(names)}
        for name, process in zip(names, processes):
            output, report = self.finish(process)
            self.assertEqual(hash_of(output), expected[name])
            self.assertIn(policy, json.dumps(report))
        status = daemon.status()
        self.assertGreater(status["devices"][0]["grants"], 50)
        self.assertEqual(status["devices"][0]["overdue"], 0)
        return status

    def test_two_programs_share_the_device_and_keep_their_bits(self):
        self.share(["demo-train", "demo-serve"])

    def test_four_programs_share_the_device_and_keep_their_bits(self):
        self.share(["demo-train", "demo-serve", "demo-train", "demo-serve"])

    def test_two_programs_keep_their_bits_under_fifo(self):
        expected = self.alone("demo-train")
        daemon = self.daemon("--policy", "fifo", "--quiet")
        output, _ = self.finish(self.run_under(daemon, "demo-train", 0))
        self.assertEqual(hash_of(output), expected)

    def test_a_killed_program_does_not_affect_the_others(self):
        daemon = self.daemon("--policy", "random:max_sms=32", "--quiet")
        stays, goes = self.gathered(daemon, ["demo-train"] * 2, kill=1)
        goes.communicate(timeout=time_limit(60))
        output, _ = self.finish(stays)
        self.assertEqual(hash_of(output), self.alone("demo-train"))
        self.until(lambda: not daemon.status()["clients"])
        self.assertEqual(daemon.status()["devices"][0]["held"], [])

    def test_the_bits_stay_when_the_daemon_dies_and_restarts(self):
        daemon = self.daemon("--policy", "random:max_sms=32", "--quiet")
        processes = self.gathered(daemon, ["demo-train"] * 2)
        for _ in range(5):
            daemon.kill()
            time.sleep(0.05)
            daemon.start()
            time.sleep(0.1)
        expected = self.alone("demo-train")
        for process in processes:
            output, _ = self.finish(process)
            self.assertEqual(hash_of(output), expected)

    def test_without_a_daemon_the_program_starts_one_which_ends(self):
        expected = self.alone("demo-train")
        socket = os.path.join(self.directory.name, "own")
        # Of one GPU the machine has one vitamind, and all tests have the same GPU.
        self.environment["VITAMIN_CONFIG_DAEMON_LOCK_DIRECTORY"] = self.directory.name
        output, _ = self.finish(self.run_under(None, "demo-train", 0, socket=socket))
        self.assertEqual(hash_of(output), expected)
        self.assertTrue(os.path.exists(socket))
        status = self.end_daemon(socket)
        self.assertGreater(status["devices"][0]["grants"], 0, status)

    def end_daemon(self, socket):
        """The last status of one that a program started."""
        status = json.loads(subprocess.run(
            [os.environ["VITAMIN"], "status", "--json", "--socket", socket], text=True,
            capture_output=True, timeout=time_limit(10), check=True).stdout)
        os.kill(status["daemon"]["process"], signal.SIGTERM)
        self.until(lambda: not os.path.exists(socket))
        return status

    def test_a_daemon_that_is_slow_to_start_is_waited_for(self):
        """Longer than the 5 s after which it is said."""
        tree = pathlib.Path(self.directory.name) / "tree"
        (tree / "bin").mkdir(parents=True)
        real = pathlib.Path(os.environ["VITAMIN"]).resolve().parent
        (tree / "lib").symlink_to(real.parent / "lib")
        shutil.copy(real / "vitamin", tree / "bin")
        slow, said = tree / "bin/vitamind", tree / "said"
        slow.write_text(f'#!/bin/sh\nuntil test -e {said}; do sleep 0.1; done\n'
                        f'exec {real}/vitamind "$@"\n')
        slow.chmod(0o755)
        socket = os.path.join(self.directory.name, "own")
        environment = self.environment | {
            "VITAMIN_CONFIG_DAEMON_LOCK_DIRECTORY": self.directory.name}
        with subprocess.Popen([tree / "bin/vitamin", "run", "--daemon", "--socket", socket, "--",
                               *self.program("demo-train")], env=environment, text=True,
                              stdout=subprocess.DEVNULL, stderr=subprocess.PIPE) as process:
            self.addCleanup(process.kill)
            line = process.stderr.readline()
            said.touch()
            _, errors = process.communicate(timeout=time_limit(90))
        self.assertIn("vitamind was started and does not answer yet: waiting up to 30 s", line)
        self.assertEqual(process.returncode, 0, errors)
        status = self.end_daemon(socket)
        self.assertGreater(status["devices"][0]["grants"], 0, errors)

    def test_a_program_that_uses_no_device_does_not_connect(self):
        daemon = self.daemon("--policy", "random:max_sms=32")
        done = subprocess.run([os.environ["VITAMIN"], "run", "--daemon", "--socket",
                               str(daemon.socket), "--quiet", "--", "sh", "-c", "echo ran; ls /"],
                              env=self.environment, text=True, capture_output=True,
                              timeout=time_limit(60),
                              check=False)
        self.assertIn("ran", done.stdout)
        self.assertEqual(daemon.status()["devices"], [])  # no client has reported one
        self.assertNotIn("client 1", daemon.log())
        output, _ = self.finish(self.run_under(daemon, "demo-train", 0))
        self.assertIn("client 1", daemon.log())  # at the first use of the device

    def test_under_a_daemon_of_another_version_it_runs_natively_and_says_so(self):
        expected = self.alone("demo-train")
        path = os.path.join(self.directory.name, "another")
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.addCleanup(listener.close)
        listener.bind(path)
        listener.listen()

        def answer():
            while True:
                try:
                    connection, _ = listener.accept()
                except OSError:
                    return
                with connection, contextlib.suppress(OSError):  # a tool may hang up early
                    connection.recv(4096)
                    connection.send(b"vitamin\0" + bytes([MAJOR + 1, 0, 0, 0, 2, 0, 0, 0])
                                    + bytes(200))
        threading.Thread(target=answer, daemon=True).start()
        done = subprocess.run(
            [os.environ["VITAMIN"], "run", "--daemon", "--socket", path, "--",
             *self.program("demo-train")], env=self.environment, text=True, capture_output=True,
            timeout=time_limit(60), check=False)
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertEqual(hash_of(done.stdout), expected)
        self.assertIn(f"version {MAJOR + 1}.0", done.stderr)


class Asked(UnderDaemon):
    """Requested settings that do not apply are reported, and not shown as if they did."""

    def program(self, name):
        return [os.path.join(os.environ["PROGRAMS"], name), "4"]

    def vitamin(self, *words, **changes):
        return subprocess.run([os.environ["VITAMIN"], *words], env=self.environment | changes,
                              text=True, capture_output=True, timeout=time_limit(60), check=False)

    def train(self, daemon, *options, **changes):
        return self.vitamin("run", "--daemon", "--socket", str(daemon.socket), *options, "--",
                            *self.program("demo-train"), **changes)

    def test_a_policy_other_than_the_daemons_is_not_shown_as_the_one_in_force(self):
        daemon = self.daemon("--policy", "random:max_sms=32", "--seed", "5")
        done = self.train(daemon, "--policy", "fifo", "--seed", "6")
        self.assertEqual(done.returncode, 0, done.stderr)
        line, = [line for line in done.stderr.splitlines() if "[VIT-303]" in line]
        for part in ("--policy fifo, --seed 6 have no effect", str(daemon.socket),
                     "random:max_sms=32", "seed 5"):
            self.assertIn(part, line)
        self.assertIn("launches bound (100 %), policy random:max_sms=32", done.stderr)
        file = pathlib.Path(self.directory.name, "report")
        self.train(daemon, "--policy", "fifo", "--quiet", "--report", str(file))
        self.assertEqual(json.loads(file.read_text())["policy"], "random:max_sms=32")

    def test_a_policy_equal_to_the_daemons_is_no_problem(self):
        daemon = self.daemon("--policy", "random:max_sms=32")
        self.assertNotIn("VIT-303", self.train(daemon, "--policy", "random:max_sms=32").stderr)
        self.assertNotIn("VIT-303", self.train(daemon).stderr)

    def ignored(self, daemon, *options, **changes):
        """The line about what has no effect; empty: there is none."""
        done = self.train(daemon, *options, **changes)
        self.assertEqual(done.returncode, 0, done.stderr)
        return "".join(line for line in done.stderr.splitlines() if "[VIT-303]" in line)

    def test_a_class_that_the_daemon_does_not_have_is_reported(self):
        file = pathlib.Path(self.directory.name, "mine.toml")
        file.write_text('[policy]\nname = "slo"\nquantum = "2ms"\n[[class]]\nname = "serving"\n'
                        'kind = "latency"\ntpot = "30ms"\n')
        daemon = self.daemon("--policy", "fifo", "--set", "policy.quantum=3ms")
        named = ["--config", str(file), "--class", "serving"]
        for options in (named, [*named, "--quiet"]):
            line = self.ignored(daemon, *options)
            for part in ("--class serving, ", f'policy.quantum = "2ms" ({file}:3:1)',
                         f'policy.name = "slo" ({file}:2:1)', " have no effect: ",
                         str(daemon.socket), "with policy fifo and without a class 'serving'"):
                self.assertIn(part, line)
            self.assertNotIn("tpot", line)  # of a class that is not there
        self.assertIn("the class serving, ", self.ignored(daemon, VITAMIN_CONFIG=str(file)))

    def test_a_class_that_only_the_daemon_has_is_taken(self):
        file = pathlib.Path(self.directory.name, "theirs.toml")
        file.write_text('[[class]]\nname = "serving"\nkind = "latency"\n')
        daemon = self.daemon("--config", str(file))
        done = self.train(daemon, "--class", "serving")
        self.assertEqual(done.returncode, 0, done.stderr)
        wrong = self.train(daemon, "--class", "servin")
        self.assertEqual(wrong.returncode, 125)
        self.assertIn("Did you mean 'serving'?", wrong.stderr)

    def test_a_stopped_daemon_is_named_when_a_program_starts(self):
        daemon = self.daemon()
        daemon.process.send_signal(signal.SIGSTOP)
        try:
            closed = self.train(daemon, "--set", "failure.absent=closed")
            self.assertEqual(closed.returncode, 75, closed.stderr)
            self.assertIn("does not answer", closed.stderr)
            opened = self.train(daemon)
            self.assertEqual(opened.returncode, 0, opened.stderr)
            self.assertIn("does not answer", opened.stderr)
        finally:
            daemon.process.send_signal(signal.SIGCONT)

    def test_a_setting_that_the_daemon_has_otherwise_is_reported(self):
        file = pathlib.Path(self.directory.name, "theirs.toml")
        file.write_text('[[class]]\nname = "serving"\ncommand = "x"\nkind = "latency"\n'
                        'tpot = "30ms"\n[policy]\nname = "slo"\n')
        daemon = self.daemon("--config", str(file))
        # What the same file says, and what `vitamin run` applies by itself, is so.
        same = ["--config", str(file), "--class", "serving"]
        self.assertEqual(self.ignored(daemon, *same), "")
        self.assertEqual(self.ignored(daemon, *same, "--set", "failure.absent=closed",
                                      "--set", "daemon.clients=7"), "")
        self.assertEqual(self.ignored(daemon, *same, "--set", "class.serving.tpot=30ms"), "")
        line = self.ignored(daemon, *same, "--set", "class.serving.tpot=40ms")
        self.assertIn('class."serving".tpot = "40ms" (the command line) has no effect: ', line)
        self.assertIn('policy.seed = 3 (the environment variable VITAMIN_CONFIG_POLICY_SEED) has',
                      self.ignored(daemon, VITAMIN_CONFIG_POLICY_SEED="3"))
        many = [word for key in ("quantum=9ms", "seed=9", "overdue_after=9s", "reservation=9s")
                for word in ("--set", "policy." + key)]
        self.assertIn(" and 1 more have no effect",
                      self.ignored(daemon, *many, "--set", "pool.leaf_units=2"))

    def test_a_program_on_a_drained_device_reports_that_it_runs_uncoordinated(self):
        daemon = self.daemon()
        self.assertEqual(self.train(daemon).returncode, 0)
        drained = self.vitamin("drain", "0", "--socket", str(daemon.socket))
        self.assertEqual(drained.returncode, 0, drained.stderr)
        for options in ([], ["--quiet"]):
            open_one = self.train(daemon, *options)
            self.assertEqual(open_one.returncode, 0, open_one.stderr)
            line, = [line for line in open_one.stderr.splitlines() if "[VIT-302]" in line]
            self.assertIn("drained", line)
            self.assertIn("runs without coordination", line)
        for options in ([], ["--quiet"]):
            closed = self.train(daemon, "--set", "failure.absent=closed", *options)
            self.assertEqual((closed.returncode, closed.stdout), (75, ""), closed.stderr)
            line, = [line for line in closed.stderr.splitlines() if "[VIT-302]" in line]
            self.assertIn("drained", line)
            self.assertIn("failure.absent", line)
        self.assertEqual(self.vitamin("resume", "0", "--socket",
                                      str(daemon.socket)).returncode, 0)
        back = self.train(daemon, "--set", "failure.absent=closed")
        self.assertEqual(back.returncode, 0, back.stderr)
        self.assertEqual(len(re.findall(r"client \d+: demo-train", daemon.log())), 2)

    def test_an_index_that_names_no_device_is_refused(self):
        daemon = self.daemon()
        for index in ("7", "99999999999999999999"):
            wrong = self.vitamin("drain", index, "--socket", str(daemon.socket))
            self.assertEqual(wrong.returncode, 125)
            self.assertIn(f"there is no device {index}", wrong.stderr)
        none = self.vitamin("drain", "0", "--socket", str(daemon.socket),
                            LD_LIBRARY_PATH="/nonexistent")
        self.assertEqual(none.returncode, 125)
        self.assertIn("give the UUID", none.stderr)


class Graphs(UnderDaemon):
    """CUDA graphs (tests/interpose/programs/graph_scenarios.cpp) under leases."""

    # Many replays take minutes with sanitizers, whose findings do not need as many.
    LONG = "replays_of_kernels" if os.environ["SANITIZE"] else "thousands_of_replays"

    def program(self, name):
        return [os.environ["GRAPHS"], name]

    def alone(self, name):
        return subprocess.run(self.program(name), env=self.environment, text=True,
                              capture_output=True, timeout=time_limit(60), check=True).stdout

    def setUp(self):
        super().setUp()
        self.environment |= {"DRIVER_DOOR": "dlsym", "TEST_KERNELS": os.environ["TEST_KERNELS"]}

    def graphs_of(self, process):
        """Its output, and its graph launches: all, those on partitions, those moved."""
        output, errors = process.communicate(timeout=time_limit(120))
        self.assertIn(process.returncode, (0, 123), errors)  # 123: some used the whole device
        with open(process.report) as report:
            graphs = json.load(report)["totals"]["graphs"]
        return output, graphs

    @staticmethod
    def launched(graphs):
        return graphs["bound"] + sum(graphs["whole_device"].values())

    def beside_each_other(self, names, policy="random:max_sms=32"):
        expected = {name: self.alone(name) for name in set(names)}
        daemon = self.daemon("--policy", policy, "--quiet", "--answer-within", "3600")
        processes = [self.run_under(daemon, name, i) for i, name in enumerate(names)]
        self.look_on(daemon, processes)
        all_graphs = []
        for name, process in zip(names, processes):
            output, graphs = self.graphs_of(process)
            self.assertEqual(output, expected[name])
            all_graphs.append(graphs)
        device, = daemon.status()["devices"]
        self.assertEqual((device["overdue"], device["held"]), (0, []))
        return all_graphs

    def after_a_pause(self, holds, *what):
        """A graph runs whole while the executable for its part is made. Bits and leases are right
        however long the scenario pauses meanwhile; `holds`, of each program's graphs, after a
        pause long enough. Sanitizers make pauses longer than this test has time for."""
        if os.environ["SANITIZE"]:
            self.environment["PAUSE_MS"] = "2"
            self.beside_each_other(*what)
            self.skipTest("leases are not looked at under sanitizers")
        for self.environment["PAUSE_MS"] in ("2", "10", "50", "250"):
            graphs = self.beside_each_other(*what)
            if all(holds(one) for one in graphs):
                return graphs
        self.fail(f"no graph found a lease: {graphs}")

    def test_two_programs_of_graphs_share_the_device_and_keep_their_bits(self):
        self.after_a_pause(
            lambda graphs: graphs["bound"] > 0 and graphs["moved"] > 10,
            ["replays_of_kernels", self.LONG])

    def test_graphs_stay_within_a_lease(self):
        for graphs in self.after_a_pause(
                lambda graphs: graphs["bound"] > 0.95 * self.launched(graphs),
                [self.LONG] * 2, "static:parts=2"):
            self.assertLess(graphs["moved"], 10, graphs)  # first launches use the whole device

    def test_graphs_wait_for_their_turn(self):
        """Where one client has the device for itself, no launch of another one's graph runs."""
        expected = self.alone(self.LONG)
        daemon = self.daemon("--policy", "exclusive", "--quiet")
        processes = [self.run_under(daemon, self.LONG, i) for i in range(2)]
        for process in processes:
            output, graphs = self.graphs_of(process)
            self.assertEqual(output, expected)
            whole = graphs["whole_device"]
            self.assertNotIn("no_lease", whole)
            # While the executable for a part is made that a stream got because it starved.
            elsewhere = self.launched(graphs) - whole["policy"] - graphs["bound"]
            self.assertLess(elsewhere, 0.05 * self.launched(graphs), graphs)

    def test_executables_are_updated_and_destroyed_under_moving_leases(self):
        self.beside_each_other(["updates", "node_updates", "destroyed_in_flight"])

    def test_forks_between_graphs_take_no_lease_from_other_clients(self):
        for graphs in self.after_a_pause(lambda graphs: graphs["bound"] > 0,
                                         ["forks_around_replays"] * 2):
            self.assertEqual(self.launched(graphs), 800, graphs)

    def test_graphs_go_on_when_the_daemon_dies_and_restarts(self):
        expected = self.alone("thousands_of_replays")
        daemon = self.daemon("--policy", "random:max_sms=32", "--quiet")
        process = self.run_under(daemon, "thousands_of_replays", 0)
        self.until(lambda: len(daemon.status()["clients"]) == 1)
        while process.poll() is None:
            daemon.kill()
            daemon.start()
            time.sleep(0.1)
        self.assertEqual(self.graphs_of(process)[0], expected)

    def test_graphs_go_on_when_the_daemon_is_killed_for_good(self):
        expected = self.alone("thousands_of_replays")
        daemon = self.daemon("--policy", "random:max_sms=32", "--quiet")
        process = self.run_under(daemon, "thousands_of_replays", 0)
        self.until(lambda: len(daemon.status()["clients"]) == 1)
        daemon.kill()
        output, errors = process.communicate(timeout=time_limit(120))
        self.assertEqual((process.returncode, output), (0, expected), errors)
        self.assertEqual(len(errors.splitlines()), 1, errors)
        self.assertIn("vitamind is gone", errors)


if __name__ == "__main__":
    unittest.main()
