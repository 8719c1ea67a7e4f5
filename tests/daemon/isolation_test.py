#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Isolation domains: a fault of one client ends its domain's clients and no other's.

Programs run over the software driver, whose faults spread among the clients of one MPS server
(backends/soft/libcuda/mps_client.h); mps_control.cpp is the control program.
"""
import contextlib
import json
import os
import pathlib
import signal
import subprocess
import tempfile
import unittest

from harness import MINOR, DaemonTest
from raw_client import connected, hello, parsed, taken
from time_limit import time_limit

CONTROL, VITAMIN, FAULTS = (os.environ[name] for name in ("CONTROL", "VITAMIN", "FAULTS"))
LONG = 600  # seconds: until the test ends the program
LOST = 700, 719  # CUDA's illegal address and launch failure


def classes(*named, top=None):
    """A configuration with classes of these names; NAME=ISOLATION sets a class's own."""
    text = f'isolation = "{top}"\n' if top else ""
    for each in named:
        name, _, own = each.partition("=")
        text += f'[[class]]\nname = "{name}"\ncommand = "no-such-{name}"\n'
        text += f'isolation = "{own}"\n' if own else ""
    return text


class Isolation(DaemonTest):
    def setUp(self):
        super().setUp()
        self.base = pathlib.Path(self.directory.name)
        self.file = self.base / "vitamin.toml"
        self.addCleanup(self.end_controls)

    def end_controls(self):
        for directory in self.base.glob("mps*"):
            try:
                os.kill(self.control_of(directory.name), signal.SIGKILL)
            except (OSError, ValueError):
                pass

    def control_of(self, directory):
        return int((self.base / directory / "nvidia-cuda-mps-control.pid").read_text())

    def configured(self, text, *settings, control=CONTROL):
        self.file.write_text(text)
        words = [f"mps.control={control}", "mps.check_every=50ms", "daemon.answer_within=1h",
                 *settings]
        return self.daemon("--config", str(self.file),
                           *[part for word in words for part in ("--set", word)])

    def environment(self, **more):
        dropped = ("CUDA_MPS_PIPE_DIRECTORY", "LD_PRELOAD")
        kept = {name: value for name, value in os.environ.items() if name not in dropped}
        return kept | {"LD_LIBRARY_PATH": os.environ["DRIVER"], "VITAMIN_CONFIG": str(self.file)} \
            | more

    def start(self, daemon, workload_class, *words, command=(FAULTS,), **environment):
        asked = ["--class", workload_class] if workload_class else []
        output = tempfile.TemporaryFile("w+", dir=self.base)
        process = subprocess.Popen(
            [VITAMIN, "run", "--daemon", "--quiet", "--socket", str(daemon.socket), *asked, "--",
             *command, *map(str, words)], text=True, stdin=subprocess.PIPE, stdout=output,
            stderr=subprocess.PIPE, env=self.environment(**environment), process_group=0)
        process.output = output

        def end():
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)  # the program, too
            process.wait()
            for stream in (process.stdin, output, process.stderr):
                stream.close()
        self.addCleanup(end)
        return process

    def printed(self, process):
        """The whole lines that it has printed so far."""
        size = os.fstat(process.output.fileno()).st_size  # its place is the program's, too
        text = os.pread(process.output.fileno(), size, 0).decode()
        return [json.loads(line) for line in text.splitlines(True) if line.endswith("\n")]

    def prints(self, process, count):
        """Waits for so many lines."""
        self.until(lambda: len(self.printed(process)) >= count or process.poll() is not None, 60)
        lines = self.printed(process)
        self.assertGreaterEqual(len(lines), count)
        return lines

    def steps(self, daemon, workload_class, seconds=LONG, linger=0):
        """A program that computes; its first step has ended."""
        process = self.start(daemon, workload_class, "step", seconds, 1, 8, 1_000_000, linger)
        self.assertIn("hash", self.prints(process, 1)[0])
        return process

    def faulty(self, daemon, workload_class, kind):
        process = self.start(daemon, workload_class, kind)
        self.assertIn("ready", self.prints(process, 1)[0])
        return process

    def fault(self, process):
        process.stdin.write("\n")
        process.stdin.flush()

    def lines(self, process):
        """What it printed, after it has ended."""
        _, process.errors = process.communicate(timeout=time_limit(60))
        return self.printed(process)

    def native(self):
        if not hasattr(self, "_native"):
            ran = subprocess.run([FAULTS, "step", "1", "1", "8", "1000", "0"], text=True,
                                 stdout=subprocess.PIPE, check=True, env=self.environment())
            self._native = [json.loads(line)["hash"] for line in ran.stdout.splitlines()]
        return self._native

    def check_lost(self, process):
        """It got the error, with native results until then."""
        *steps, last = self.lines(process)
        self.assertEqual(process.returncode, 4, process.errors)
        self.assertIn(last["error"], LOST)
        self.check_native(steps)

    def check_native(self, steps):
        hashes = [step["hash"] for step in steps]
        count = min(len(hashes), len(self.native()))
        self.assertGreater(count, 0)
        self.assertEqual(hashes[:count], self.native()[:count])

    def progress(self, process):
        """It makes further steps."""
        lines = self.prints(process, len(self.printed(process)) + 5)
        self.assertIn("hash", lines[-1])

    def check_lives(self, process):
        """It makes progress, and all of its results are native."""
        self.progress(process)
        os.kill(self.client_of(process), signal.SIGTERM)
        self.check_native(self.lines(process))

    def client_of(self, process):
        """Of the command that this `vitamin run` has started."""
        children = pathlib.Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text()
        return int(children.split()[0])

    def domain(self, daemon, name):
        return next(each for each in daemon.status()["domains"] if each["class"] == name)

    def domains_of(self, daemon):
        return {client["process"]: client["domain"] for client in daemon.status()["clients"]}

    # --- faults ------------------------------------------------------------------------------

    def test_a_fault_spares_the_clients_of_other_classes(self):
        for kind in ("illegal", "trap"):
            with self.subTest(kind):
                daemon = self.configured(classes("a", "b", top="class"))
                same, other = self.steps(daemon, "a"), self.steps(daemon, "b")
                culprit = self.faulty(daemon, "a", kind)
                self.assertEqual(sorted(self.domains_of(daemon).values()),
                                 ["class a", "class a", "class b"])
                self.fault(culprit)
                self.assertNotEqual(self.lines(culprit)[-1]["status"], 0)
                self.check_lost(same)
                again = self.steps(daemon, "a", seconds=0)
                self.check_native(self.lines(again))
                self.check_lives(other)
                self.until(lambda: self.domain(daemon, "a")["faults"] == 1, 60)
                self.assertEqual(self.domain(daemon, "b")["faults"], 0)
                self.assertEqual(daemon.status()["mps"]["faults"], 0)
                self.assertIn("MPS of class 'a': a client's fault", daemon.log())
                self.assertNotIn("MPS of class 'b': a client's fault", daemon.log())
                daemon.end()

    def test_without_isolation_a_fault_ends_the_clients_of_all_classes(self):
        daemon = self.configured(classes("a", "b"))
        one, two = self.steps(daemon, "a"), self.steps(daemon, "b")
        culprit = self.faulty(daemon, "a", "illegal")
        self.fault(culprit)
        self.check_lost(one)
        self.check_lost(two)
        self.assertEqual(daemon.status()["domains"], [])
        self.assertNotIn("vitamind_domain", daemon.ask("metrics")["text"])

    def test_clients_that_only_linger_do_not_keep_their_class_from_restarting(self):
        daemon = self.configured(classes("a", "b=class"))
        self.file.write_text(classes("a=class", "b=class"))
        daemon.process.send_signal(signal.SIGHUP)  # the domain of a class may come later
        self.until(lambda: len(daemon.status()["domains"]) == 2, 60)
        lingers = self.steps(daemon, "a", linger=LONG)
        culprit, other = self.faulty(daemon, "a", "illegal"), self.steps(daemon, "b")
        self.fault(culprit)
        self.until(lambda: self.domain(daemon, "a")["starts"] == 2, 60)
        self.until(lambda: self.domain(daemon, "a")["state"] == "ready", 60)
        self.assertIsNone(lingers.poll())
        self.check_native(self.lines(self.steps(daemon, "a", seconds=0)))
        self.assertEqual(self.domain(daemon, "b")["starts"], 1)
        self.check_lives(other)
        text = subprocess.run([VITAMIN, "status", "--socket", str(daemon.socket)], text=True,
                              stdout=subprocess.PIPE, check=True).stdout
        self.assertRegex(text, r"MPS of class a: ready, \d clients?, restarted 1 time, the last "
                               r"one .* ago\nMPS of class a: 1 fault on the GPU so far")
        metrics = daemon.ask("metrics")["text"]
        for line in ('vitamind_domain_faults_total{domain="class a"} 1',
                     'vitamind_domain_starts_total{domain="class a"} 2',
                     'vitamind_domain_ready{domain="class b"} 1'):
            self.assertIn("\n" + line + "\n", metrics)

    def test_a_killed_hang_spares_the_other_class(self):
        daemon = self.configured(classes("a", "b", top="class"))
        other, culprit = self.steps(daemon, "b"), self.faulty(daemon, "a", "hang")
        self.fault(culprit)
        self.progress(other)
        os.kill(self.client_of(culprit), signal.SIGKILL)
        culprit.wait(time_limit(60))
        self.check_native(self.lines(self.steps(daemon, "a", seconds=0)))
        self.check_lives(other)

    def test_an_exclusive_process_shares_its_fault_with_none(self):
        daemon = self.configured(classes("a=exclusive"))
        one, two = self.steps(daemon, "a"), self.steps(daemon, "a")
        unclassified, culprit = self.steps(daemon, ""), self.faulty(daemon, "a", "trap")
        domains = self.domains_of(daemon)
        for process in (one, two, culprit):
            client = self.client_of(process)
            self.assertEqual(domains[client], f"process {client}")
        self.assertEqual(domains[self.client_of(unclassified)], "")
        self.fault(culprit)
        self.assertNotEqual(self.lines(culprit)[-1]["status"], 0)
        for process in (one, two, unclassified):
            self.check_lives(process)
        self.until(lambda: not daemon.status()["clients"], 60)
        self.assertEqual([device["domain"] for device in daemon.status()["devices"]], [""])

    # --- leases ------------------------------------------------------------------------------

    def hold(self, daemon, workload_class, directory):
        member = self.member(daemon, "hold", environment={
            "MEMBER_CLASS": workload_class, "CUDA_MPS_PIPE_DIRECTORY": str(directory)})
        return member

    def test_leases_are_decided_inside_of_a_domain_only(self):
        daemon = self.configured(classes("a", "b", top="class"), "policy.name=static:units=0-3")
        for name in "ab":
            self.assertTrue(self.hold(daemon, name, self.base / f"mps.{name}").stdout.readline())
        status = daemon.status()
        self.assertEqual({device["domain"]: [hold["units"] for hold in device["held"]]
                          for device in status["devices"]},
                         {"class a": [0xf], "class b": [0xf]})
        self.assertEqual([device["views_in_use"] for device in status["devices"]], [1, 1])
        def of(domain):
            device, = (d for d in daemon.status()["devices"] if d["domain"] == domain)
            return device

        held, = of("class b")["held"]
        self.hold(daemon, "a", self.base / "mps.a")
        # The two of class a have their SMs from each other, shared or in turns.
        self.until(lambda: of("class a")["waiting"] + len(of("class a")["held"]) == 2)
        later, = of("class b")["held"]
        self.assertGreater(later.pop("age_ms"), held.pop("age_ms"))  # the same grant
        self.assertEqual(later, held)
        self.assertNotIn("do not separate", daemon.log())
        self.assertIn(',domain="class a"} ', daemon.ask("metrics")["text"])

    def test_a_client_with_another_directory_is_in_the_shared_domain(self):
        daemon = self.configured(classes("a", "b", top="class"))
        for directory in ("", self.base / "mps", self.base / "mps.b"):
            member = self.hold(daemon, "a", directory)
            self.assertIn("entry", member.stdout.readline())
            self.assertEqual(self.domains_of(daemon)[member.pid], "")
        self.assertEqual(daemon.log().count("[VIT-407]"), 3)
        self.assertIn(f"CUDA_MPS_PIPE_DIRECTORY is {self.base}/mps.a: it has {self.base}/mps.b.",
                      daemon.log())

    def test_a_client_of_the_release_before_is_in_the_shared_domain(self):
        daemon = self.configured(classes("a=class"))
        with connected(daemon) as client:
            client.send(hello(MINOR - 1, less=128, workload_class=b"a"))
            answer, files = taken(client)
            self.assertEqual((parsed(answer)[0], files), (2, 2))
            self.assertEqual([one["domain"] for one in daemon.status()["clients"]], [""])
        self.assertIn("of an earlier release", daemon.log())

    # --- a client that lies about its MPS ----------------------------------------------------

    def claims(self, daemon, directory, *verb):
        """A client of class a that names this directory, whatever MPS it is a client of."""
        member = self.member(daemon, *(verb or ("hold",)), environment={
            "MEMBER_CLASS": "a", "CUDA_MPS_PIPE_DIRECTORY": str(self.base / directory)})
        self.until(lambda: member.pid in self.domains_of(daemon), 60)
        return member

    def mps_names(self, directory, *processes):
        """The MPS of this directory has these clients."""
        world = {"servers": {"99": {"status": "ACTIVE", "clients": list(processes)}}}
        new = self.base / directory / "world.new"
        new.write_text(json.dumps(world))
        new.rename(self.base / directory / "world")

    def ready(self, *named, **more):
        daemon = self.configured(classes(*named, **more))
        self.until(lambda: all(each["state"] == "ready" for each in daemon.status()["domains"]), 60)
        return daemon

    def passes(self, daemon, checks=5):
        """Waits until each MPS was asked so many times more."""
        def counts():
            status = daemon.status()
            return [each["checks"] for each in (status["mps"], *status["domains"])]
        before = counts()
        self.until(lambda: all(now >= old + checks for now, old in zip(counts(), before)), 60)

    def check_moved(self, daemon, member, why):
        self.until(lambda: self.domains_of(daemon).get(member.pid) == "", 60)
        self.assertIn(f"process {member.pid}, user {os.getuid()}) should be in the isolation "
                      "domain", daemon.log())
        self.assertIn("it named that directory, and MPS does not have it there", daemon.log())
        self.passes(daemon)
        self.assertEqual(self.domains_of(daemon)[member.pid], "")  # also when it says so again
        self.assertEqual(daemon.log().count(f"(member, process {member.pid}, user {os.getuid()}) "
                                            f"{why}, not in the isolation domain"), 1)
        self.assertEqual(daemon.status()["daemon"]["let_go"], 0)

    def test_a_client_that_mps_has_in_another_domain_is_moved_to_the_shared_one(self):
        for where, name in ("mps.b", "class b"), ("mps", "the shared domain"):
            with self.subTest(where):
                daemon = self.ready("a", "b", top="class")
                honest, lies = self.claims(daemon, "mps.a"), self.claims(daemon, "mps.a")
                self.assertTrue(honest.stdout.readline())
                self.mps_names("mps.a", honest.pid)
                self.passes(daemon)
                self.assertEqual(self.domains_of(daemon)[lies.pid], "class a")  # none has it yet
                self.mps_names(where, lies.pid)
                self.check_moved(daemon, lies, f"is a client of the MPS of {name}")
                self.assertEqual(self.domains_of(daemon)[honest.pid], "class a")
                device, = (d for d in daemon.status()["devices"] if d["domain"] == "class a")
                self.assertLessEqual({hold["client"] for hold in device["held"]}, {
                    client["client"] for client in daemon.status()["clients"]
                    if client["process"] == honest.pid})
                self.assertEqual(device["overdue"], 0)
                for process in (honest, lies):
                    process.kill()
                self.mps_names(where)
                daemon.end()

    def test_an_exclusive_client_that_mps_has_is_moved_to_the_shared_domain(self):
        daemon = self.ready("a=exclusive", "b=class")
        lies = self.claims(daemon, "mps-none")
        self.passes(daemon)
        self.assertEqual(self.domains_of(daemon)[lies.pid], f"process {lies.pid}")
        self.mps_names("mps", lies.pid)
        self.check_moved(daemon, lies, "is a client of the MPS of the shared domain")

    def test_a_client_of_a_domain_that_came_later_is_moved_as_soon(self):
        daemon = self.ready("a", top="class")
        lies = self.claims(daemon, "mps.a")
        self.passes(daemon, 20)
        self.file.write_text(classes("a", "b", top="class"))
        daemon.process.send_signal(signal.SIGHUP)
        self.until(lambda: [each["state"] for each in daemon.status()["domains"]] == 2 * ["ready"],
                   60)
        self.mps_names("mps.b", lies.pid)
        before = daemon.status()["domains"][0]["checks"]
        checks = 0  # of the new domain, when the client was last seen in its former one

        def moved():
            nonlocal checks
            status = daemon.status()
            if any(client["process"] == lies.pid and client["domain"] == ""
                   for client in status["clients"]):
                return True
            checks = status["domains"][1]["checks"]
            return False
        self.until(moved, 60)
        self.assertLess(checks, before)

    def test_a_client_that_no_mps_names_or_that_foreign_numbers_name_stays(self):
        daemon = self.ready("a", "b", top="class")
        client = self.claims(daemon, "mps.a", "work", 0)
        foreign = 1  # no client's number here: of another PID namespace
        # One after the other: vitamind asks both MPS at different times.
        for directory, processes in (("mps.a", []), ("mps.b", []), ("mps.a", [foreign]),
                                     ("mps.b", [client.pid]), ("mps.a", [client.pid]),
                                     ("mps.b", [client.pid, foreign]), ("mps.a", []),
                                     ("mps.b", [])):
            self.mps_names(directory, *processes)
            self.passes(daemon)
            self.assertEqual(self.domains_of(daemon)[client.pid], "class a",
                             (directory, processes))
        (self.base / "mps.a/world").unlink()  # it has no server
        self.passes(daemon)
        self.assertEqual(self.domains_of(daemon)[client.pid], "class a")

    def test_clients_that_say_the_truth_are_never_moved(self):
        daemon = self.ready("a", "b=exclusive", top="class")
        processes = [self.steps(daemon, "a"), self.steps(daemon, "a"), self.steps(daemon, "b")]
        wanted = self.domains_of(daemon)
        self.assertEqual(sorted(wanted.values())[:2], ["class a", "class a"])
        self.passes(daemon, 8)
        self.assertEqual(self.domains_of(daemon), wanted)
        self.assertNotIn("not in the isolation domain", daemon.log())
        for process in processes:
            self.check_lives(process)

    def test_a_client_cannot_choose_the_domain_of_a_class_that_names_other_users(self):
        daemon = self.configured(classes("a", "b", top="class").replace(
            'command = "no-such-b"', 'user = "no-such-user"'))
        member = self.hold(daemon, "b", self.base / "mps.b")
        self.assertIn("entry", member.stdout.readline())
        client, = daemon.status()["clients"]
        self.assertEqual((client["class"], client["domain"]), ("", ""))

    def test_explain_names_the_isolation_domain(self):
        daemon = self.configured(classes("a=class"))
        own, shared = self.steps(daemon, "a"), self.steps(daemon, "")

        def explained(*words):
            return subprocess.run([VITAMIN, "explain", "--socket", str(daemon.socket), *words],
                                  text=True, stdout=subprocess.PIPE, check=True).stdout
        devices = json.loads(explained("--json"))["devices"]
        self.assertEqual({device["domain"]: [(client["process"], client["domain"])
                                             for client in device["clients"]]
                          for device in devices},
                         {"": [(self.client_of(shared), "")],
                          "class a": [(self.client_of(own), "class a")]})
        heads = [line for line in explained().splitlines() if "SMs, policy" in line]
        self.assertEqual(len(heads), 2)
        self.assertEqual([head.endswith(", isolation domain 'class a'") for head in heads].count(
            True), 1)

    # --- vitamind and MPS --------------------------------------------------------------------

    def test_a_program_gets_the_directory_of_its_domain(self):
        daemon = self.configured(classes("a", "b=shared", "c=exclusive", "odd/name", top="class"))

        def told(name, **more):
            process = self.start(daemon, name, "-c", "echo $CUDA_MPS_PIPE_DIRECTORY",
                                 command=("sh",), **more)
            _, errors = process.communicate(timeout=time_limit(60))
            size = os.fstat(process.output.fileno()).st_size
            return os.pread(process.output.fileno(), size, 0).decode().strip(), errors
        self.assertEqual([told(name)[0] for name in ("a", "b", "c", "")],
                         [f"{self.base}/mps{end}" for end in (".a", "", "-none", "")])
        self.assertRegex(told("odd/name")[0], r"/mps\.class\.[0-9a-f]{16}$")
        self.assertFalse((self.base / "mps-none").exists())
        directory, errors = told("a", CUDA_MPS_PIPE_DIRECTORY="/elsewhere")
        self.assertEqual(directory, "/elsewhere")
        self.assertIn("not in its isolation domain 'class a'", errors)

    def test_programs_stay_in_their_domains_when_vitamind_is_replaced(self):
        daemon = self.configured(classes("a", "b", top="class"))
        processes = {name: self.steps(daemon, name) for name in "ab"}
        controls = [self.control_of(f"mps.{name}") for name in "ab"]
        daemon.kill()
        daemon.start()
        wanted = {self.client_of(process): f"class {name}" for name, process in processes.items()}
        self.until(lambda: self.domains_of(daemon) == wanted, 60)
        self.until(lambda: all(each["state"] == "ready" for each in daemon.status()["domains"]), 60)
        self.assertEqual([each["starts"] for each in daemon.status()["domains"]], [0, 0])
        self.assertEqual([self.control_of(f"mps.{name}") for name in "ab"], controls)
        culprit = self.faulty(daemon, "a", "illegal")
        self.fault(culprit)
        self.check_lost(processes["a"])
        self.check_lives(processes["b"])

    def test_a_control_program_that_ends_is_restarted_and_no_other(self):
        daemon = self.configured(classes("a", "b", top="class"))
        self.until(lambda: all(each["state"] == "ready" for each in daemon.status()["domains"]), 60)
        first, other = self.control_of("mps.a"), self.control_of("mps.b")
        os.kill(first, signal.SIGKILL)
        self.until(lambda: self.domain(daemon, "a")["starts"] == 2, 60)
        self.assertNotEqual(self.control_of("mps.a"), first)
        self.assertEqual(self.control_of("mps.b"), other)
        self.assertEqual(self.domain(daemon, "b")["starts"], 1)
        daemon.end()
        for name in ("mps", "mps.a", "mps.b"):
            self.assertIn("quit", (self.base / name / "commands").read_text())

    def test_without_the_control_program_programs_run_and_status_says_why(self):
        daemon = self.configured(classes("a", top="class"), control="no-such-mps")
        self.assertEqual(self.domain(daemon, "a")["state"], "failed")
        self.assertIn("no-such-mps is not there", self.domain(daemon, "a")["problem"])
        process = self.steps(daemon, "a", seconds=0)
        self.check_native(self.lines(process))
        self.assertIn("MPS of the isolation domain 'class a': no-such-mps is not there",
                      process.errors)

    # --- configuration -----------------------------------------------------------------------

    def problems(self, text):
        self.file.write_text(text)
        ran = subprocess.run([VITAMIN, "config", "check", "--json", "--config", str(self.file)],
                             text=True, stdout=subprocess.PIPE, check=False,
                             env=self.environment(VITAMIN_CONFIG="/dev/null"))
        found = json.loads(ran.stdout)
        self.assertEqual(ran.returncode, 1 if found["problems"] or found["no_effect"] else 0)
        return [(each["line"], each["message"]) for each in found["problems"] + found["no_effect"]]

    def test_wrong_isolation_is_explained(self):
        self.assertEqual(self.problems(classes("a=exclusive", "b", top="class")), [])
        (line, message), = self.problems('isolation = "clas"\n')
        self.assertEqual((line, message), (1, "'isolation' must be one of \"shared\" \"class\" "
                                              "\"exclusive\"; did you mean 'class'?"))
        (line, message), = self.problems(classes("a=exlusive"))
        self.assertIn("did you mean 'exclusive'?", message)
        (line, message), = self.problems('isolation = "class"\n')
        self.assertIn("there is no class: it has no effect", message)
        (line, message), = self.problems(classes("a", "b", top="class") + '[mps]\nmode = "off"\n')
        self.assertEqual(line, 1)
        self.assertIn("needs MPS, and mps.mode is \"off\": set mps.mode", message)
        (line, message), = self.problems(classes("a=class", "b") + '[mps]\nmode = "off"\n')
        self.assertEqual(line, 4)
        self.assertIn("'isolation' of the class 'a'", message)
        long = "/" + "d" * 98
        (line, message), = self.problems(classes("a=class") + f'[mps]\ndirectory = "{long}"\n')
        self.assertIn("longer than 99 characters: take a shorter mps.directory", message)


if __name__ == "__main__":
    unittest.main()
