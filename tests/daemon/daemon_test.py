#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""vitamind as a process: clients connect, die, stop and lie; it dies itself; clients go on.

VITAMIN_TEST_RESTARTS=n: how often the daemon is killed under load (default 30);
VITAMIN_TEST_CLIENTS=n: by how many clients (default 4).
"""
import collections
import contextlib
import json
import os
import pathlib
import pty
import re
import select
import signal
import socket
import subprocess
import threading
import time
import unittest

from harness import (MAJOR, MINOR, Daemon, DaemonTest, answers, ask, counted,
                     settled_descriptors)
from time_limit import time_limit, wait_until

RESTARTS = int(os.environ.get("VITAMIN_TEST_RESTARTS", "30"))
CLIENTS = int(os.environ.get("VITAMIN_TEST_CLIENTS", "4"))


def no_clients(daemon):
    return lambda: not daemon.status()["clients"]


class Clients(DaemonTest):
    def test_four_clients_share_and_their_leases_never_overlap(self):
        # A client that gets no CPU time for long is not overdue.
        daemon = self.daemon("--policy", "random:max_sms=32", "--answer-within", "3600")
        moves = {"MEMBER_MOVES": "101"}  # many grants can be of one partition: others hold the rest
        members = [self.member(daemon, "work", 0, environment=moves) for _ in range(4)]
        # Until all four had many grants beside each other, however slow the machine is.
        def had_grants():
            status = daemon.status()
            self.check_disjoint(status)
            # A grant that is not used in time is returned: operations count, too.
            return sum(min(client["usage"]["grants"], client["usage"]["operations"]) > 400
                       for client in status["clients"]) == 4
        self.until(had_grants)
        for member in members:
            result = self.result(member)
            self.assertGreater(result["submitted"], 400)
            self.assertEqual((result["at_home"], result["malformed"]), (0, 0))
            self.assertGreater(result["moves"], 100)
        self.until(no_clients(daemon))
        self.assertEqual(daemon.status()["devices"][0]["held"], [])
        self.assertEqual(daemon.status()["devices"][0]["stale"], 0)

    # A policy that compares clients needs reports of all, also of the one that connected first.
    def test_all_clients_report_completions_once_there_are_several(self):
        daemon = self.daemon("--policy", "throughput")
        members = [self.member(daemon, "work", 0) for _ in range(3)]
        self.until(lambda: sum(client["completed"] > 0
                               for client in daemon.status()["clients"]) == 3)
        self.until(lambda: any(candidate["blocks"] > 0 for device in daemon.status()["devices"]
                               for candidate in device["found"]["candidates"]))
        for member in members:
            self.result(member)

    def test_a_single_client_reports_nothing(self):
        daemon = self.daemon("--policy", "throughput")
        member = self.member(daemon, "work", 0)
        self.until(lambda: daemon.status()["devices"] and daemon.status()["devices"][0]["held"])
        time.sleep(0.1)
        self.assertEqual([client["completed"] for client in daemon.status()["clients"]], [0])
        self.result(member)

    def test_the_lease_of_a_killed_client_is_free_again(self):
        daemon = self.daemon("--policy", "static:units=0-15")

        def by_life_line():
            return daemon.status()["daemon"]["deaths_by_life_line"]
        # The liveness futex usually reports a death first: the kernel signals the pidfd later.
        # A daemon that gets no CPU time meanwhile finds both.
        deaths = 0
        while deaths < 10 or by_life_line() == 0:
            deaths += 1
            self.assertLessEqual(deaths, 200)
            member = self.member(daemon, "hold")
            member.stdout.readline()
            self.assertEqual(len(daemon.status()["devices"][0]["held"]), 1)
            member.kill()
            self.until(no_clients(daemon))
            self.assertEqual(daemon.status()["devices"][0]["held"], [])

    def test_the_gates_of_a_large_client_are_closed_long_before_it_is_gone(self):
        # The kernel frees its memory before it closes its files, which takes time.
        daemon = self.daemon("--policy", "static:units=0-15")

        def closed_before_gone():
            """Whether the gates are closed before the process is gone."""
            member = self.member(daemon, "hold", 512)
            member.stdout.readline()
            end = os.pidfd_open(member.pid)
            self.addCleanup(os.close, end)
            member.kill()
            before = 0  # answers that show it as dying
            while True:
                clients = daemon.status()["clients"]
                if select.select([end], [], [], 0)[0]:
                    break
                before += not clients or clients[0]["dying"]
            self.until(no_clients(daemon))
            return before > 0
        # A daemon that gets no CPU time meanwhile may be late: one of several tries is enough.
        self.assertTrue(any(closed_before_gone() for _ in range(20)))

    def test_a_client_killed_at_every_shared_access_leaves_nothing_behind(self):
        daemon = self.daemon("--policy", "random:max_sms=32", "--quiet")
        count = pathlib.Path(self.directory.name, "count")

        def life(**more):
            return self.member(daemon, "work", 20, program="MEMBER_FAULTY",
                               environment={"VITAMIN_FAULT_COUNT": str(count)} | more)
        changes = []
        for _ in range(3):  # the number varies with how often it has to wait
            self.result(life())
            changes.append(counted(count))
        self.assertGreater(min(changes), 100)
        descriptors, maps = settled_descriptors(daemon), daemon.shared_maps()
        honest = self.member(daemon, "work", 0)  # until the end of the test
        # A point that five shorter lives do not reach is skipped; no life that reaches its point
        # survives it.
        reached = 0
        for point in range(1, max(changes) + 1):
            for _ in range(5):
                member = life(VITAMIN_KILL_AT=str(point))
                member.communicate(timeout=time_limit(30))
                if member.returncode == -signal.SIGKILL:
                    reached += 1
                    break
                self.assertLess(counted(count), point)
        self.assertGreater(reached, 100, changes)
        self.until(lambda: len(daemon.status()["clients"]) <= 1)
        self.check_disjoint(daemon.status())
        result = self.result(honest)
        self.assertEqual((result["at_home"], result["malformed"]), (0, 0))
        self.until(no_clients(daemon))
        self.assertEqual(daemon.status()["devices"][0]["held"], [])
        self.until(lambda: daemon.descriptors() == descriptors)
        self.until(lambda: daemon.shared_maps() == maps)

    def test_a_stopped_client_is_overdue_and_its_lease_granted_again(self):
        # One client at a time: the second one needs the first one's lease.
        daemon = self.daemon("--policy", "temporal", "--answer-within", "0.3")
        holder = self.member(daemon, "hold")
        holder.stdout.readline()
        holder.send_signal(signal.SIGSTOP)
        result = self.result(self.member(daemon, "work", 50), timeout=30)
        self.assertEqual(result["submitted"], 50)
        self.until(lambda: daemon.status()["devices"][0]["overdue"] >= 1)
        holder.send_signal(signal.SIGCONT)
        self.until(lambda: daemon.process.poll() is None and
                   len(daemon.status()["clients"]) == 1)

    def test_a_client_that_scribbles_is_evicted_and_the_others_are_not_affected(self):
        daemon = self.daemon("--policy", "random:max_sms=32", "--quiet")
        honest = [self.member(daemon, "work", 3000) for _ in range(2)]

        def evicted():
            for _ in range(3):
                self.member(daemon, "scribble", 300).wait(time_limit(30))
            return daemon.status()["daemon"]["let_go"] >= 1
        # It may end before a daemon that gets no CPU time has read anything.
        self.until(evicted)
        for member in honest:
            self.assertEqual(self.result(member)["submitted"], 3000)
        self.until(no_clients(daemon))
        self.assertEqual(daemon.status()["devices"][0]["held"], [])

    def test_a_user_whose_clients_are_repeatedly_evicted_waits_and_is_named(self):
        daemon = self.daemon("--policy", "random:max_sms=32")
        honest = self.member(daemon, "work", 0)
        self.until(lambda: daemon.status()["clients"])
        begin = time.monotonic()
        attacker = subprocess.Popen([os.environ["ATTACKER"], str(daemon.socket), "scribble"],
                                    stdout=subprocess.DEVNULL)
        self.addCleanup(attacker.wait)
        self.addCleanup(attacker.kill)
        user, = self.until(lambda: [user for user in daemon.status()["let_go_users"]
                                    if user["waits_ns"] > 0])
        time.sleep(1)
        status = daemon.status()
        seconds = time.monotonic() - begin
        self.assertEqual(user["user"], os.getuid())
        self.assertRegex(user["last"], r"^attacker \(process \d+\)$")
        # Eight at once, then ten a second.
        self.assertLess(status["daemon"]["let_go"], 8 + 10 * seconds + 2)
        # The ninth eviction, or a later one if the attacker is slow.
        said = re.findall(r"evicted (\d+) times in a row, last attac", daemon.log())
        self.assertGreaterEqual(int(said[0]), 9)
        for verb, line in (("status", r"^user \d+: \d+ clients evicted lately"),
                           ("doctor", r"^problem +daemon +user \d+: \d+ clients evicted lately")):
            # Again after an attacker without CPU time, which is not evicted, is forgotten.
            self.until(lambda verb=verb, line=line: re.search("(?m)" + line, subprocess.run(
                [os.environ["VITAMIN"], verb], text=True, check=False, stdout=subprocess.PIPE,
                env=os.environ | {"VITAMIN_DAEMON": str(daemon.socket)}).stdout))
        self.assertIn("member", [client["program"] for client in daemon.status()["clients"]])
        attacker.kill()
        attacker.wait()
        # New clients do not wait once the attacker has ended.
        self.until(lambda: not daemon.status()["let_go_users"])
        self.assertEqual(self.result(self.member(daemon, "work", 50))["submitted"], 50)
        honest.stdin.close()
        honest.wait(time_limit(20))

    def test_ten_thousand_half_open_connections_do_not_grow_its_memory(self):
        daemon = self.daemon("--policy", "random:max_sms=32", "--quiet")
        self.result(self.member(daemon, "work", 10))
        before, resident = settled_descriptors(daemon), daemon.resident_kib()
        flood = self.member(daemon, "greet", 10_000)
        most = 0
        while flood.poll() is None:
            most = max(most, daemon.descriptors())
            time.sleep(0.01)
        self.assertLess(most, before + 300)
        self.until(lambda: daemon.descriptors() == before)  # its user may connect again
        self.assertEqual(self.result(self.member(daemon, "work", 100))["submitted"], 100)
        self.until(lambda: daemon.descriptors() == before)
        if not os.environ["VITAMIN_TEST_SANITIZERS"]:  # sanitizers keep freed memory for a while
            self.assertLess(daemon.resident_kib(), resident + 8192)

    def test_another_version_is_refused_by_its_number(self):
        daemon = self.daemon()
        answer = self.result(self.member(daemon, "skew"))
        self.assertIn(f"version {MAJOR}.{MINOR}:", answer["refused"])
        self.assertIn(f"version {MAJOR + 1}.{MINOR} ", answer["refused"])

    def test_a_daemon_of_another_version_is_refused_by_the_client(self):
        path = os.path.join(self.directory.name, "s")
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.addCleanup(listener.close)
        listener.bind(path)
        listener.listen()

        class Place:
            socket = path
        member = self.member(Place, "work", 1)
        connection, _ = listener.accept()
        self.addCleanup(connection.close)
        connection.recv(4096)
        connection.send(b"vitamin\0" + bytes([MAJOR + 1, 0, 0, 0, 2, 0, 0, 0]) + bytes(200))
        output, _ = member.communicate(timeout=time_limit(10))
        self.assertEqual(member.returncode, 3)
        self.assertIn(f"version {MAJOR + 1}.0", output)


class Daemons(DaemonTest):
    def test_every_operation_is_submitted_though_the_daemon_dies_repeatedly(self):
        daemon = self.daemon("--policy", "random:max_sms=32", "--quiet")
        members = [self.member(daemon, "work", 0) for _ in range(CLIENTS)]
        # A client that finds no daemon when it starts says so and ends.
        self.until(lambda: len(daemon.status()["clients"]) == CLIENTS or
                   any(member.poll() is not None for member in members))
        for _ in range(RESTARTS):
            time.sleep(0.05)
            daemon.kill()
            daemon.start()
        # A client that waited for a lost daemon would end with another code and say where it is
        # stuck: each must do all of its operations.
        # Until each has had many grants of the last one, however slow the machine is.
        self.until(lambda: sum(min(client["usage"]["grants"], client["usage"]["operations"]) > 100
                               for client in daemon.status()["clients"]) == CLIENTS, 60)
        results = [self.result(member, timeout=600) for member in members]
        for result in results:
            self.assertGreater(result["submitted"], 100)
            self.assertEqual(result["malformed"], 0)
        self.assertGreater(sum(result["at_home"] for result in results), 0)
        self.until(no_clients(daemon))

    def test_clients_enter_the_fallback_partition_within_fifty_milliseconds(self):
        # Not by a time-out, which is an hour here. One of many tries is enough: on a busy machine
        # a client may get CPU time late.
        delays = [1]
        while min(delays) >= 0.05 and len(delays) <= 50:
            daemon = self.daemon("--policy", "static:units=0-15", "--quiet")
            member = self.member(daemon, "latency", environment={"MEMBER_SILENCE": "3600000"})
            member.stdout.readline()
            time.sleep(0.02)
            at = time.clock_gettime(time.CLOCK_MONOTONIC)
            daemon.kill()
            delays.append(self.result(member)["home_at"] - at)
            os.unlink(daemon.socket)
        self.assertGreater(min(delays), 0)
        self.assertLess(min(delays), 0.05, delays)

    def test_a_daemon_killed_at_every_shared_access_costs_no_operation(self):
        count = pathlib.Path(self.directory.name, "count")
        daemon = self.daemon("--policy", "random:max_sms=32", "--quiet",
                             program=os.environ["VITAMIND_FAULTY"],
                             environment={"VITAMIN_FAULT_COUNT": str(count)})

        # The number of changes in a life depends on how busy the daemon is, which depends on the
        # machine. So the points are those of the longest of four lives. A point that five lives do
        # not reach is skipped; every life that was not killed must have been shorter than its
        # point: no point is missed.
        lives = []
        for _ in range(4):
            if lives:
                daemon.start()
            self.result(self.member(daemon, "work", 20))
            daemon.end()
            lives.append(counted(count))
        bad, reached = [], 0
        for point in range(1, max(lives) + 1):
            daemon.environment["VITAMIN_KILL_AT"] = str(point)
            for _ in range(5):
                daemon.start()
                member = self.member(daemon, "work", 20)
                output, _ = member.communicate(timeout=time_limit(60))
                # It had no session yet: a refusal is a valid answer, too.
                if member.returncode not in (0, 3):
                    bad.append((point, member.returncode, output))
                daemon.end()  # its end makes the last changes
                if daemon.process.returncode == -signal.SIGKILL:
                    reached += 1
                    break
                self.assertLess(counted(count), point)
        self.assertEqual(bad, [])
        self.assertGreater(reached, 100, lives)

    def test_a_stopped_daemon_delays_no_client(self):
        daemon = self.daemon("--policy", "random:max_sms=32", "--quiet")
        member = self.member(daemon, "count", environment={"MEMBER_SILENCE": "200"})

        def submitted():
            return json.loads(member.stdout.readline())["submitted"]
        while submitted() == 0:
            pass
        daemon.process.send_signal(signal.SIGSTOP)
        try:
            # Far more than it has grants for: it has taken the daemon for lost.
            enough = submitted() + 5000
            while submitted() < enough:
                pass
            output, _ = member.communicate(timeout=time_limit(60))
        finally:
            daemon.process.send_signal(signal.SIGCONT)
        self.assertEqual(member.returncode, 0, output)
        self.assertGreater(json.loads(output.splitlines()[-1])["at_home"], 0)

    def test_a_second_daemon_on_the_same_device_refuses_and_names_the_lock(self):
        first = self.daemon()
        holder = self.member(first, "hold")
        holder.stdout.readline()
        other = os.path.join(self.directory.name, "other")
        second = subprocess.Popen([os.environ["VITAMIND"], "--socket", other, "--lock-directory",
                                   self.directory.name, "--quiet"])
        self.addCleanup(second.wait)
        self.addCleanup(second.kill)
        self.until(lambda: answers(other))

        class Place:
            socket = other
        member = self.member(Place, "work", 1)
        output, _ = member.communicate(timeout=time_limit(10))
        self.assertEqual(member.returncode, 3)
        self.assertIn("another vitamind arbitrates", output)
        self.assertIn(f"(process {first.process.pid}, lock {self.directory.name}", output)

    def test_a_second_daemon_at_the_same_socket_ends_with_a_reason(self):
        first = self.daemon()
        second = subprocess.run(first.words, capture_output=True, text=True, timeout=time_limit(10),
                                check=False)
        self.assertEqual(second.returncode, 1)
        self.assertIn("another vitamind listens", second.stderr)

    def test_one_of_two_that_commands_start_at_once_is_no_error(self):
        first = self.daemon()
        second = subprocess.run([*first.words, "--if-none"], capture_output=True, text=True,
                                timeout=time_limit(10), check=False)
        self.assertEqual(second.returncode, 0)
        self.assertIn("this one is not needed", second.stderr)
        self.assertNotIn("VIT-402", second.stderr)

    def test_a_socket_directory_that_cannot_be_made_is_named(self):
        path = os.path.join(self.directory.name, "none", "d", "s")
        wrong = subprocess.run([os.environ["VITAMIND"], "--socket", path], capture_output=True,
                               text=True, timeout=time_limit(10), check=False)
        self.assertEqual(wrong.returncode, 1)
        self.assertIn(f"the directory {os.path.dirname(path)} of the socket cannot be made",
                      wrong.stderr)

    def test_a_time_that_is_none_names_its_option(self):
        wrong = subprocess.run([os.environ["VITAMIND"], "--exit-when-idle", "abc"],
                               capture_output=True, text=True, timeout=time_limit(10), check=False)
        self.assertEqual(wrong.returncode, 1)
        self.assertIn("--exit-when-idle: 'abc' is no time", wrong.stderr)

    def test_a_daemon_that_ends_leaves_the_socket_of_another_one(self):
        first = self.daemon()
        os.unlink(first.socket)
        second = Daemon(self.directory.name)
        self.addCleanup(second.end)
        first.end()
        self.assertEqual(first.process.returncode, 0)
        self.assertEqual(ask(first.socket, "status")["daemon"]["process"], second.process.pid)
        second.end()
        self.assertFalse(os.path.exists(second.socket))

    def test_it_uses_no_cpu_time_while_asleep(self):
        daemon = self.daemon("--policy", "random:max_sms=32")
        holder = self.member(daemon, "hold")
        holder.stdout.readline()

        def times_on_a_processor():  # context switches of all its threads
            tasks = pathlib.Path(f"/proc/{daemon.process.pid}/task").iterdir()
            return sum(int((task / "schedstat").read_text().split()[2]) for task in tasks)

        def in_three_seconds():
            before = times_on_a_processor()
            time.sleep(3)
            return times_on_a_processor() - before
        # Measure only when it has gone to sleep.
        wait_until(lambda: in_three_seconds() <= 30, "a daemon that is woken ten times a second")

    def test_it_ends_when_it_is_idle(self):
        daemon = self.daemon("--exit-when-idle", "1")

        def had_a_client():
            if daemon.process.poll() is not None:  # it began late, on a busy machine
                daemon.start()
            return self.member(daemon, "work", 10).wait(time_limit(20)) == 0
        self.until(had_a_client)
        self.assertEqual(daemon.process.wait(time_limit(10)), 0)
        self.assertFalse(os.path.exists(daemon.socket))

    def test_it_tells_the_service_manager(self):
        path = os.path.join(self.directory.name, "notify")
        manager = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self.addCleanup(manager.close)
        manager.bind(path)
        manager.settimeout(time_limit(5))
        # Three reports in this interval. What finds the queue of ten full is dropped.
        daemon = self.daemon(environment={"NOTIFY_SOCKET": path, "WATCHDOG_USEC": "1500000"})
        self.assertEqual(manager.recv(100), b"READY=1")
        self.assertEqual([manager.recv(100) for _ in range(3)], 3 * [b"WATCHDOG=1"])
        daemon.end()
        said = set()
        while b"STOPPING=1" not in said:
            said.add(manager.recv(100))


class Tools(DaemonTest):
    def vitamin(self, *words):
        return subprocess.run([os.environ["VITAMIN"], *words], capture_output=True, text=True,
                              timeout=time_limit(20), check=False)

    def test_status_names_devices_and_clients(self):
        daemon = self.daemon("--policy", "static:units=0-3")
        holder = self.member(daemon, "hold")
        holder.stdout.readline()
        shown = self.vitamin("status", "--socket", str(daemon.socket))
        self.assertEqual(shown.returncode, 0, shown.stderr)
        self.assertIn("GPU-member", shown.stdout)
        self.assertIn("[aaaa............]", shown.stdout)
        live = self.vitamin("top", "--rounds", "1", "--socket", str(daemon.socket))
        self.assertIn("[aaaa............]", live.stdout)

    def test_a_drained_device_takes_no_new_client_until_resumed(self):
        daemon = self.daemon()
        first = self.member(daemon, "hold")
        first.stdout.readline()
        self.assertEqual(self.vitamin("drain", "--socket", str(daemon.socket)).returncode, 0)
        refused = self.member(daemon, "work", 1)
        output, _ = refused.communicate(timeout=time_limit(10))
        self.assertIn("drained", output)
        self.assertEqual(self.vitamin("resume", "--socket", str(daemon.socket)).returncode, 0)
        self.assertEqual(self.result(self.member(daemon, "work", 1))["submitted"], 1)
        wrong = self.vitamin("drain", "GPU-none", "--socket", str(daemon.socket))
        self.assertEqual(wrong.returncode, 125)
        self.assertIn("GPU-none", wrong.stderr)

    def test_a_drain_that_its_tool_gave_up_is_withdrawn(self):
        daemon = self.daemon()
        first = self.member(daemon, "hold")
        first.stdout.readline()
        daemon.process.send_signal(signal.SIGSTOP)
        try:
            failed = self.vitamin("drain", "--socket", str(daemon.socket))
        finally:
            daemon.process.send_signal(signal.SIGCONT)
        self.assertEqual(failed.returncode, 125)
        self.until(lambda: "'drain all' of process" in daemon.log())
        self.assertIn("is withdrawn", daemon.log())
        self.assertFalse(daemon.status()["devices"][0]["drained"])

    def test_a_drain_before_the_first_client_fails_and_says_what_to_do(self):
        daemon = self.daemon()
        drained = self.vitamin("drain", "--socket", str(daemon.socket))
        self.assertEqual((drained.returncode, drained.stdout), (125, ""))
        self.assertIn("no client has used a device yet, so none is drained", drained.stderr)
        self.assertIn("systemctl stop vitamind", drained.stderr)
        self.assertEqual(self.result(self.member(daemon, "work", 1))["submitted"], 1)
        self.assertEqual(self.vitamin("drain", "--socket", str(daemon.socket)).stdout,
                         "1 device takes no new client; those that run go on\n")

    def test_a_tool_that_is_refused_says_why(self):
        daemon = self.daemon()
        over = threading.Event()

        def crowd():
            """Keeps as many connections without a message as one user may have."""
            held = collections.deque(maxlen=64)
            while not over.is_set():
                connection = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
                with contextlib.suppress(OSError):
                    connection.connect(str(daemon.socket))
                if len(held) == held.maxlen:
                    held[0].close()
                held.append(connection)
                time.sleep(0.002)
            for connection in held:
                connection.close()
        thread = threading.Thread(target=crowd)
        thread.start()
        self.addCleanup(thread.join)
        self.addCleanup(over.set)

        def refusals():
            shown = self.vitamin("status", "--socket", str(daemon.socket))
            if shown.returncode == 0:
                return 0
            # On a slow machine the answer may be late, but a refusal must not be lost.
            self.assertRegex(shown.stderr, "too many connect|does not answer")
            return "too many connect" in shown.stderr
        seen = 0

        def enough():
            nonlocal seen
            seen += refusals()
            return seen >= 12
        wait_until(enough, "twelve refusals", 60)

    def test_without_a_daemon_the_commands_say_so_and_what_to_do(self):
        for verb in ("status", "top", "drain", "resume"):
            shown = self.vitamin(verb, "--socket", os.path.join(self.directory.name, "none"))
            self.assertEqual(shown.returncode, 125)
            self.assertIn("no vitamind answers", shown.stderr)
            for step in ("vitamin run --daemon", "systemctl start vitamind", "--socket"):
                self.assertIn(step, shown.stderr)

    def test_the_live_view_finds_a_restarted_daemon(self):
        daemon = self.daemon()
        live = subprocess.Popen([os.environ["VITAMIN"], "top", "--every", "0.01", "--socket",
                                 str(daemon.socket)], stdout=subprocess.PIPE, text=True)
        self.addCleanup(live.stdout.close)
        self.addCleanup(live.wait)
        self.addCleanup(live.kill)

        def until_it_shows(words):
            for line in live.stdout:
                if words in line:
                    return
            self.fail(f"top ended before it showed {words}")
        until_it_shows(f"process {daemon.process.pid}")
        daemon.kill()
        until_it_shows("waiting for it")
        daemon.start()
        until_it_shows(f"process {daemon.process.pid}")
        live.send_signal(signal.SIGINT)
        live.communicate(timeout=time_limit(10))  # it may be writing
        self.assertEqual(live.returncode, 0)

    def test_the_live_view_leaves_no_old_text_on_a_screen(self):
        daemon = self.daemon()
        screen, terminal = pty.openpty()
        self.addCleanup(os.close, screen)
        with subprocess.Popen([os.environ["VITAMIN"], "top", "--rounds", "1", "--socket",
                               str(daemon.socket)], stdout=terminal) as live:
            os.close(terminal)
            shown = b""
            with contextlib.suppress(OSError):  # the other end is closed
                while part := os.read(screen, 65536):
                    shown += part
            self.assertEqual(live.wait(time_limit(10)), 0)
        self.assertTrue(shown.startswith(b"\033[H"), shown)
        self.assertTrue(shown.endswith(b"\033[J"), shown)
        lines = shown.split(b"\r\n")[:-1]
        self.assertGreater(len(lines), 2)
        for line in lines:
            self.assertTrue(line.endswith(b"\033[K"), line)

    def test_the_log_says_its_time_zone(self):
        self.assertRegex(self.daemon().log(),
                         r"(?m)^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{6}[+-]\d\d:\d\d vitamind info ")


if __name__ == "__main__":
    unittest.main()
