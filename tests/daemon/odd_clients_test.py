#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Clients that end, stop, lie or run in namespaces: no other client is affected."""
import ctypes
import json
import os
import pathlib
import re
import signal
import socket
import struct
import subprocess
import time
import unittest

from harness import MAJOR, MINOR, answers, ask
from raw_client import RawClientTest, connected, hello, session, taken
from time_limit import time_limit, wait_until

MEMBER = os.environ["MEMBER"]


def may_unshare(*options):
    return subprocess.run(["unshare", *options, "true"], capture_output=True,
                          check=False).returncode == 0


class Clients(RawClientTest):
    def test_the_thread_that_connected_may_end_before_its_process(self):
        daemon = self.daemon("--policy", "random:max_sms=32")
        self.assertEqual(self.result(self.member(daemon, "first", 500))["submitted"], 500)
        self.until(lambda: not daemon.status()["clients"])
        self.assertEqual(self.held(daemon), [])

    def test_exec_returns_the_lease(self):
        daemon = self.daemon("--policy", "temporal")
        member = self.member(daemon, "exec")
        member.stdout.readline()
        self.assertEqual(len(self.held(daemon)), 1)
        member.stdin.close()
        self.until(lambda: not daemon.status()["clients"])
        self.assertIsNone(member.poll())  # the process runs on as another program
        self.works(daemon)

    def test_a_forked_child_that_outlives_its_parent_holds_nothing(self):
        daemon = self.daemon("--policy", "temporal")
        member = self.member(daemon, "fork")
        member.stdout.readline()
        child = json.loads(member.stdout.readline())
        self.addCleanup(os.kill, child["process"], signal.SIGKILL)
        self.assertEqual((child["admitted"], child["entry"]), (0, 0))
        self.assertEqual(len(daemon.status()["clients"]), 1)
        member.kill()
        member.wait()
        self.until(lambda: not daemon.status()["clients"])
        os.kill(child["process"], 0)  # it is still there
        self.works(daemon)

    def test_a_client_stopped_for_long_costs_the_others_its_lease_only_until_it_is_overdue(self):
        daemon = self.daemon("--policy", "temporal", "--answer-within", "0.2")
        member = self.member(daemon, "hold")
        member.stdout.readline()
        member.send_signal(signal.SIGSTOP)
        begin = time.monotonic()
        self.works(daemon)
        # Its lease is revoked after a quantum, and overdue after the bound.
        self.assertGreater(time.monotonic() - begin, 0.2)
        self.assertLess(time.monotonic() - begin, time_limit(5))
        # The other client may be overdue, too, if it gets no CPU time.
        self.assertGreaterEqual(daemon.status()["devices"][0]["overdue"], 1)
        member.send_signal(signal.SIGCONT)
        self.works(daemon)
        self.assertEqual(len(daemon.status()["clients"]), 1)  # the stopped client keeps its session

    def test_late_returns_of_a_stopped_client_are_counted_and_do_no_harm(self):
        daemon = self.daemon("--policy", "temporal", "--answer-within", "0.1")
        late = self.member(daemon, "work", 0)
        self.until(lambda: daemon.status()["devices"])

        def device():
            return daemon.status()["devices"][0]

        def is_stopped_where_it_holds_something():  # mostly
            self.until(lambda: self.held(daemon))
            overdue, stale = device()["overdue"], device()["stale"]
            late.send_signal(signal.SIGSTOP)
            self.works(daemon)
            late.send_signal(signal.SIGCONT)
            if device()["overdue"] == overdue:
                return False
            try:
                wait_until(lambda: device()["stale"] > stale, plenty=1)
            except AssertionError:  # another client was overdue
                return False
            return True
        self.until(is_stopped_where_it_holds_something, 60)
        last = device()
        self.assertGreater(last["overdue"], 0)
        self.assertGreater(last["stale"], 0)
        result = self.result(late)
        self.assertEqual((result["at_home"], result["malformed"]), (0, 0))
        self.until(lambda: not daemon.status()["clients"])
        self.assertEqual(self.held(daemon), [])

    def test_a_daemon_that_was_stopped_keeps_leases_for_the_work_of_its_clients(self):
        daemon = self.daemon("--policy", "static:units=0-7,parts=1", "--answer-within", "3600")
        # Not so short that a daemon without CPU time is taken for lost before it is stopped.
        silence = str(round(1000 * time_limit(0.3)))
        member = self.member(daemon, "away", environment={"MEMBER_SILENCE": silence})
        member.stdout.readline()
        before = daemon.status()
        lease, = before["devices"][0]["held"]
        daemon.process.send_signal(signal.SIGSTOP)
        try:
            member.stdin.write("\n")
            member.stdin.flush()
            self.assertEqual(json.loads(member.stdout.readline()), {"at_home": 1})
        finally:
            daemon.process.send_signal(signal.SIGCONT)
        back = []
        self.until(lambda: back.append(daemon.status()) or
                   len(back[-1]["devices"][0]["held"]) >= 2 and len(back[-1]["clients"]) == 1 and
                   back[-1]["clients"][0]["client"] != before["clients"][0]["client"])
        device, = back[-1]["devices"]
        self.assertEqual((device["overlaps"], device["stale"]), (0, 0))
        # The closed grants of the work, and of the work in the fallback partition.
        self.assertIn((lease["units"], False),
                      [(hold["units"], hold["open"]) for hold in device["held"]])

    def passing_on(self, daemon):
        """A process with a session, and another descriptor of its socket."""
        here, there = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
        process = os.fork()
        if process == 0:
            os.closerange(3, there.fileno())  # descriptors that belong to other code
            with connected(daemon) as connection:
                connection.send(hello(MINOR))
                connection.recv(4096)
                socket.send_fds(there, [b"."], [connection.fileno()])
            there.recv(1)
            os._exit(0)
        there.close()
        self.addCleanup(here.close)
        _, files, _, _ = socket.recv_fds(here, 1, 1)
        return process, socket.socket(fileno=files[0])

    def test_a_new_client_is_not_confused_with_clients_that_end(self):
        daemon = self.daemon("--quiet")
        gone = [self.passing_on(daemon) for _ in range(4)]
        self.until(lambda: len(daemon.status()["clients"]) == 4)

        def end(process):
            os.kill(process, signal.SIGKILL)
            os.waitpid(process, 0)
        # The daemon finds all of this when it continues. Each of the four has two end events, and
        # the new clients get their descriptor numbers.
        daemon.process.send_signal(signal.SIGSTOP)
        come = []
        try:
            for i, (process, connection) in enumerate(gone):
                if i % 2 == 0:
                    connection.close()
                else:
                    end(process)
            for _ in range(6):
                connection = connected(daemon)
                self.addCleanup(connection.close)
                connection.send(hello(MINOR))
                come.append(connection)
            for i, (process, connection) in enumerate(gone):
                if i % 2 == 0:
                    end(process)
                else:
                    connection.close()
        finally:
            daemon.process.send_signal(signal.SIGCONT)
        for connection in come:
            self.assertEqual(taken(connection)[1], 2)
        self.until(lambda: len(daemon.status()["clients"]) == 6)
        for _ in range(50):  # each answer takes a turn of the loop
            self.assertEqual(len(daemon.status()["clients"]), 6)

    def test_many_tools_at_once_wait_and_clients_do_not(self):
        daemon = self.daemon("--quiet", "--set", "daemon.spin=0s")
        with session(daemon) as (_, _, daemons):
            def turns():  # turns of the daemon's loop
                return struct.unpack_from("<Q", daemons, 192)[0]
            tools = []
            daemon.process.send_signal(signal.SIGSTOP)
            before = turns()
            for _ in range(14):
                tool = connected(daemon)
                self.addCleanup(tool.close)
                tool.send(b"vitamin\0" + struct.pack("<HHHH", MAJOR, 0, 4, 0) +
                          b"metrics".ljust(256, b"\0"))
                tools.append(tool)
            daemon.process.send_signal(signal.SIGCONT)
            for tool in tools:
                self.assertGreater(len(tool.recv(200_000)), 1000)
            self.assertGreaterEqual(turns() - before, 14)

    def test_a_liveness_futex_that_changes_all_the_time_costs_no_cpu_time(self):
        daemon = self.daemon("--quiet", "--set", "daemon.spin=0s")

        def used_ns():
            tasks = pathlib.Path(f"/proc/{daemon.process.pid}/task").iterdir()
            return sum(int((task / "schedstat").read_text().split()[0]) for task in tasks)
        with session(daemon) as (_, own, _):
            life = ctypes.c_uint32.from_buffer(own, 0)
            call = ctypes.CDLL(None).syscall

            def beat(times):
                for i in range(times):
                    life.value = 1 + i % 2
                    call(202, ctypes.byref(life), 1, 1, None, None, 0)  # futex: wake one
            beat(20_000)  # the daemon may notice some
            begin, before = time.thread_time_ns(), used_ns()
            while time.thread_time_ns() - begin < 500_000_000:
                beat(1000)
            spent = time.thread_time_ns() - begin
            self.assertLess(used_ns() - before, spent / 20)
            del life

    def said(self, session, records):
        """Sends these records, 64 bytes each at most, and waits until the daemon has read them."""
        client, own, daemons = session
        ring = 256
        tail = ctypes.c_uint64.from_buffer(own, 64)
        for begin in range(0, len(records), ring):
            for record in records[begin:begin + ring]:
                at = 256 + 64 * (tail.value % ring)
                own[at:at + 64] = record.ljust(64, b"\0")
                tail.value += 1
            client.send(b"\0")
            self.until(lambda: struct.unpack_from("<Q", daemons, 64)[0] == tail.value)
            own[128:136] = daemons[0:8]  # all grants are read
        del tail

    def test_the_status_of_a_client_with_thousands_of_grants_is_fast(self):
        daemon = self.daemon("--quiet", "--answer-within", "600", "--policy",
                             "random:max_sms=64")
        with session(daemon) as client:
            # Ready, moving on: each lane has all the grants that a lane may have.
            self.said(client, [struct.pack("<BxxxIQQQQQIHBB", 1, lane, 0, 0, 0, 0, 0, 1, 0xffff,
                                           1, 0) for _ in range(40) for lane in range(256)])
            held = self.held(daemon)
            self.assertGreater(sum(hold["lanes"] for hold in held), 2000)
            self.assertLess(len(held), 120)
        self.until(lambda: not daemon.status()["clients"])
        self.assertEqual(self.held(daemon), [])

    def test_no_client_holds_partitions_by_reporting_work_that_does_not_exist(self):
        daemon = self.daemon("--policy", "static:units=0-15,parts=1")
        with session(daemon) as liar:
            entries = range(1, 50)
            for epoch in (0, 0x5eed):
                self.said(liar, [struct.pack("<BxxxIQII", 5, lane, epoch << 32 | 0x101, entry, 1)
                                 for lane in range(4) for entry in entries])
            self.assertEqual(self.held(daemon), [])
            self.assertEqual(daemon.status()["devices"][0]["stale"], 2 * 4 * len(entries))
            result = self.result(self.member(daemon, "work", 300))
            self.assertEqual((result["submitted"], result["whole"]), (300, 0))

    def test_after_a_restart_only_reports_of_recorded_processes_are_accepted(self):
        daemon = self.daemon("--policy", "static:units=0-7,parts=1", "--quiet")
        member = self.member(daemon, "hold")
        member.stdout.readline()
        lease, = self.held(daemon)
        self.assertEqual(len(list(pathlib.Path(self.directory.name).glob("*.leases"))), 1)
        daemon.kill()
        daemon.start()
        with session(daemon) as liar:
            self.said(liar, [struct.pack("<BxxxIQII", 5, 0, 0x5eed00000101, entry, 1)
                             for entry in range(1, 50)])
            self.until(lambda: self.held(daemon))
            held, = self.held(daemon)
            self.assertEqual((held["entry"], held["open"]), (lease["entry"], False))
            client, = [client for client in daemon.status()["clients"]
                       if client["client"] == held["client"]]
            self.assertEqual(client["process"], member.pid)
        member.kill()
        member.wait()
        self.until(lambda: not daemon.status()["clients"])
        daemon.end()
        self.assertEqual(list(pathlib.Path(self.directory.name).glob("*.leases*")), [])

    # --- clocks and namespaces -------------------------------------------------------------

    def in_namespace(self, *options):
        daemon = self.daemon("--policy", "random:max_sms=32", "--answer-within", "3600")
        ran = subprocess.run(["unshare", *options, MEMBER, str(daemon.socket), "work", "300"],
                             text=True, capture_output=True, timeout=time_limit(60), check=False)
        self.assertEqual(json.loads(ran.stdout)["submitted"], 300, ran.stderr)
        self.until(lambda: not daemon.status()["clients"])
        self.assertEqual(self.held(daemon), [])
        device = daemon.status()["devices"][0]
        self.assertEqual((device["overdue"], device["stale"]), (0, 0))

    def test_it_reads_no_clock_that_can_be_set(self):
        # So changing a clock has no effect. The log's times are spdlog's;
        # records of clients that ended have calendar times.
        asked = re.compile(r"CLOCK_REALTIME|CLOCK_TAI|system_clock|gettimeofday|\btime\(nullptr\)")
        source = pathlib.Path(os.environ["SOURCE"])
        files = [path for path in (source / "daemon").rglob("*") if path.suffix in (".h", ".cpp")]
        self.assertGreater(len(files), 90)
        self.assertEqual([f.name for f in files if asked.search(f.read_text())],
                         ["accounting.cpp"])

    @unittest.skipUnless(may_unshare("--time"), "no time namespaces here")
    def test_a_client_whose_clock_is_eleven_days_ahead_works(self):
        self.in_namespace("--time", "--monotonic", "1000000", "--fork")

    @unittest.skipUnless(may_unshare("--pid", "--fork"), "no pid namespaces here")
    def test_a_client_in_a_pid_namespace_works(self):
        self.in_namespace("--pid", "--fork")

    @unittest.skipUnless(may_unshare("--user", "--map-root-user", "--net", "--ipc", "--mount"),
                         "no user namespaces here")
    def test_a_client_in_a_container_of_namespaces_works(self):
        self.in_namespace("--user", "--map-root-user", "--net", "--ipc", "--mount")

    @unittest.skipUnless(may_unshare("--pid", "--fork"), "no pid namespaces here")
    def test_a_daemon_that_cannot_see_its_clients_process_ids_notices_their_end(self):
        path = os.path.join(self.directory.name, "s")
        daemon = subprocess.Popen(["unshare", "--pid", "--fork", "--kill-child",
                                   os.environ["VITAMIND"], "--socket", path, "--lock-directory",
                                   self.directory.name], stderr=subprocess.DEVNULL)
        self.addCleanup(daemon.wait)
        self.addCleanup(daemon.kill)
        self.until(lambda: answers(path))
        outside = type("Outside", (), {"socket": path})()
        member = self.member(outside, "hold")
        line = member.stdout.readline()
        if "refused" in line:
            # Before Linux 6.5 the kernel cannot report the process at all: the daemon says so.
            self.assertIn("cannot be watched", line)
            return
        member.kill()
        member.wait()
        self.works(outside)
        # One of them breaks the protocol: the ban must not hit the others.

        def evicted():
            self.member(outside, "scribble", 300).wait(time_limit(30))
            return ask(path, "status")["daemon"]["let_go"] > 0
        # It may end before a daemon that gets no CPU time has read anything.
        self.until(evicted)
        self.works(outside)

    # --- the log ---------------------------------------------------------------------------

    def test_a_full_disk_under_the_log_stops_no_client(self):
        daemon = self.daemon()
        daemon.end()
        with open("/dev/full", "wb") as full:
            daemon.process = subprocess.Popen(daemon.words, stdout=full, stderr=full,
                                              env=os.environ | daemon.environment)
        self.until(lambda: answers(daemon.socket))
        for _ in range(3):
            self.works(daemon)
        self.assertIsNone(daemon.process.poll())
        self.assertEqual(daemon.status()["daemon"]["connections"] >= 3, True)


if __name__ == "__main__":
    unittest.main()
