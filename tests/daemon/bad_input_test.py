#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Everything that goes wrong around a daemon: a clear line each, nobody else affected."""
import contextlib
import ctypes
import errno
import json
import mmap
import os
import pathlib
import pwd
import re
import signal
import socket
import struct
import subprocess
import time
import unittest

from harness import MAJOR, MINOR, Daemon, DaemonTest, answers, ask, settled_descriptors
from time_limit import time_limit, wait_until

MEMBER = os.environ["MEMBER"]
ROOT = os.getuid() == 0


def may_unshare(*options):
    return subprocess.run(["unshare", *options, "true"], capture_output=True,
                          check=False).returncode == 0


def hello(minor, more=b"", less=0, workload_class=b"", job=b"", uuid=b"GPU-member",
          program=b"skewed", units=(8,) * 15 + (12,), device=b"member"):
    """What a client of another minor version says."""
    text = b"vitamin\0" + struct.pack("<HHHH", MAJOR, minor, 1, 0)
    text += struct.pack("<IIII", 0, sum(units), len(units), 0)  # of the software's vendor
    text += struct.pack("<64I", *units, *[0] * (64 - len(units)))
    for word in (uuid, device, program, workload_class, job):
        text += word.ljust(64, b"\0")
    return text[:len(text) - less] + more


def connected(daemon):
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    connection.settimeout(time_limit(5))
    connection.connect(str(daemon.socket))
    return connection


def taken(connection):
    """An answer, and how many descriptors came with it."""
    answer, files, _, _ = socket.recv_fds(connection, 4096, 4)
    for file in files:
        os.close(file)
    return answer, len(files)


def parsed(answer):
    return struct.unpack("<H", answer[12:14])[0], answer[16:].split(b"\0")[0]


@contextlib.contextmanager
def session(daemon):
    """A client's socket, its segment and the daemon's (daemon/protocol/segment.h)."""
    with connected(daemon) as client:
        client.send(hello(MINOR))
        _, files, _, _ = socket.recv_fds(client, 4096, 4)
        own = mmap.mmap(files[0], os.fstat(files[0]).st_size)
        daemons = mmap.mmap(files[1], os.fstat(files[1]).st_size, prot=mmap.PROT_READ)
        for file in files:
            os.close(file)
        yield client, own, daemons


class BadInput(DaemonTest):
    def refused(self, daemon, **more):
        output, _ = self.member(daemon, "work", 1, **more).communicate(timeout=time_limit(20))
        return json.loads(output).get("refused", "")

    def works(self, daemon):
        self.assertEqual(self.result(self.member(daemon, "work", 50))["submitted"], 50)

    def held(self, daemon):
        return daemon.status()["devices"][0]["held"]

    def nobody(self, *words, env=None):
        """As another user, with files of its own."""
        user = pwd.getpwnam("nobody")
        return subprocess.run(words, user=user.pw_uid, group=user.pw_gid, extra_groups=[],
                              text=True, capture_output=True, timeout=time_limit(30), check=False,
                              env=os.environ | {"VITAMIN_CONFIG": "/dev/null"} | (env or {}))

    # --- sockets and users -----------------------------------------------------------------

    def test_a_stale_socket_is_no_daemon_and_in_nobodys_way(self):
        daemon = self.daemon()
        daemon.kill()
        self.assertTrue(daemon.socket.exists())
        self.assertIn("no vitamind answers", self.refused(daemon))
        daemon.start()
        self.works(daemon)

    def test_a_file_that_is_no_socket_is_left_alone(self):
        (pathlib.Path(self.directory.name) / "s").write_text("mine")
        daemon = self.daemon()
        self.assertEqual(daemon.process.wait(time_limit(10)), 1)
        self.assertEqual(daemon.socket.read_text(), "mine")
        self.assertIn(str(daemon.socket), daemon.log())

    def test_a_folder_that_does_not_exist_is_named(self):
        ended = subprocess.run([os.environ["VITAMIND"], "--socket",
                                f"{self.directory.name}/a/b/c/s"], text=True, capture_output=True,
                               timeout=time_limit(20), check=False)
        self.assertEqual(ended.returncode, 1)
        self.assertIn("/a/b/c/s", ended.stderr)

    @unittest.skipUnless(ROOT, "another user is needed")
    def test_another_users_daemon_cannot_be_joined_and_the_machines_can(self):
        os.chmod(self.directory.name, 0o755)
        own = self.daemon()
        copy = self.readable_member()
        answer = self.nobody(copy, str(own.socket), "work", "1")
        self.assertEqual(answer.returncode, 3)
        self.assertRegex(answer.stdout, "Permission denied|belongs to another user")
        # The kernel's word on the user, though the socket's mode lets everybody in.
        os.chmod(own.socket, 0o666)
        answer = self.nobody(copy, str(own.socket), "work", "1")
        self.assertIn("belongs to another user", answer.stdout)
        own.end()
        shared = self.daemon("--system")
        answer = self.nobody(copy, str(shared.socket), "work", "5")
        self.assertEqual(json.loads(answer.stdout)["submitted"], 5)

    @unittest.skipUnless(ROOT, "another user is needed")
    def test_another_users_daemon_may_not_arbitrate_the_same_device(self):
        os.chmod(self.directory.name, 0o777)
        own = self.daemon()
        self.member(own, "hold").stdout.readline()
        theirs = pathlib.Path(self.directory.name, "theirs")
        theirs.mkdir()
        user = pwd.getpwnam("nobody")
        os.chown(theirs, user.pw_uid, user.pw_gid)
        daemon = self.readable(os.environ["VITAMIND"], "vitamind")
        second = subprocess.Popen([daemon, "--socket", str(theirs / "s"), "--lock-directory",
                                   self.directory.name], user=user.pw_uid, group=user.pw_gid,
                                  extra_groups=[], stderr=subprocess.DEVNULL)
        self.addCleanup(second.wait)
        self.addCleanup(second.kill)
        self.until(lambda: answers(theirs / "s"))
        answer = self.nobody(self.readable_member(), str(theirs / "s"), "work", "1")
        self.assertIn("another vitamind arbitrates device GPU-member", answer.stdout)
        self.assertIn("made by user 0", answer.stdout)
        self.works(own)

    def readable(self, program, name):
        """A copy that another user can execute, wherever the build is."""
        copy = pathlib.Path(self.directory.name, name)
        copy.write_bytes(pathlib.Path(program).read_bytes())
        copy.chmod(0o755)
        return str(copy)

    def readable_member(self):
        return self.readable(MEMBER, "member")

    def test_a_lock_folder_that_cannot_be_used_is_named_to_the_client(self):
        daemon = self.daemon("--lock-directory", f"{self.directory.name}/none")
        self.assertIn("the lock of the device cannot be made", self.refused(daemon))
        self.assertEqual(daemon.status()["devices"], [])

    # --- versions --------------------------------------------------------------------------

    def greet(self, daemon, message):
        with connected(daemon) as connection:
            connection.send(message)
            return parsed(taken(connection)[0])

    def test_a_client_of_another_minor_version_is_welcome(self):
        daemon = self.daemon()
        welcome, refusal = 2, 3
        self.assertEqual(self.greet(daemon, hello(0, less=128))[0], welcome)  # before classes
        self.assertEqual(self.greet(daemon, hello(1, less=64))[0], welcome)
        self.assertEqual(self.greet(daemon, hello(2, less=64))[0], welcome)  # before jobs
        self.assertEqual(self.greet(daemon, hello(3))[0], welcome)  # before progress
        self.assertEqual(self.greet(daemon, hello(MINOR))[0], welcome)
        self.assertEqual(self.greet(daemon, hello(9, more=b"news" * 50))[0], welcome)
        kind, why = self.greet(daemon, hello(MINOR, less=64))  # ours, and cut off
        self.assertEqual((kind, why), (refusal, b"the peer sent a message that was not expected"))
        self.assertEqual(self.greet(daemon, hello(0, less=400))[0], refusal)

    def test_messages_of_any_size_and_foreign_descriptors_leave_nothing_in_the_daemon(self):
        daemon = self.daemon("--policy", "random:max=32")
        honest = self.member(daemon, "work", 0)
        self.until(lambda: daemon.status()["devices"])
        counts = [daemon.descriptors() for _ in range(20)]
        with open("/dev/zero", "rb") as foreign:
            for size in (1, 15, 16, 500, 4096, 60_000):
                for descriptors in (0, 1, 100, 253):
                    for begin in (b"", hello(MINOR)):
                        with connected(daemon) as connection:
                            message = (begin + bytes(size))[:max(size, len(begin))]
                            try:
                                socket.send_fds(connection, [message],
                                                [foreign.fileno()] * descriptors)
                            except PermissionError:  # since Linux 6.16
                                self.assertGreater(descriptors, 0)
                                connection.send(message)
                            taken(connection)  # answered or hung up, but not left waiting
        held = os.listdir(f"/proc/{daemon.process.pid}/fd")
        targets = []
        for name in held:
            try:
                targets.append(os.readlink(f"/proc/{daemon.process.pid}/fd/{name}"))
            except OSError:
                pass
        self.assertNotIn("/dev/zero", targets)
        self.until(lambda: daemon.descriptors() <= max(counts))
        result = self.result(honest)
        self.assertEqual((result["at_home"], result["malformed"]), (0, 0))

    def stay(self, daemon, message):
        """As greet(), and the connection stays."""
        connection = connected(daemon)
        self.addCleanup(connection.close)
        connection.send(message)
        return connection, *parsed(taken(connection)[0])

    def test_names_that_are_no_utf8_are_shown_and_harm_nobody(self):
        daemon = self.daemon("--metrics", str(pathlib.Path(self.directory.name) / "m"))
        kept = []
        for name in (b"caf\xe9", "caf\u00e9".encode(), b"\xf0\x9f", b"\xc2\x9bm", b"\xed\xa0\x80",
                     b"x" * 62 + b"\xc3"):
            kept.append(self.stay(daemon, hello(MINOR, program=name, uuid=b"GPU-" + name[-9:])))
        self.assertEqual([kind for _, kind, _ in kept], [2] * 6)
        names = [client["program"] for client in daemon.status()["clients"]]
        self.assertEqual(names, ["caf?", "caf\u00e9", "??", "??m", "???", "x" * 62 + "?"])
        self.assertIn("GPU-caf?", daemon.ask("metrics")["text"])
        with socket.socket(socket.AF_UNIX) as scrape:
            scrape.connect(str(pathlib.Path(self.directory.name) / "m"))
            scrape.sendall(b"GET /metrics HTTP/1.1\r\n\r\n")
            with scrape.makefile("rb") as file:
                self.assertIn('UUID="GPU-caf\u00e9"', file.read().decode())
        for verb in (b"\xff", b"job-end \xff", b"drain \xc3"):
            preamble = b"vitamin\0" + struct.pack("<HHHH", MAJOR, MINOR, 4, 0)
            self.assertEqual(self.greet(daemon, preamble + verb.ljust(256, b"\0"))[0], 5)
        self.works(daemon)

    def test_where_futex_waitv_is_refused_it_sleeps_and_sees_deaths_all_the_same(self):
        # As filters of containers answer what they do not know: with EPERM.
        code = b"".join(struct.pack("<HBBI", *one) for one in (
            (0x20, 0, 0, 0), (0x15, 0, 1, 449), (0x06, 0, 0, 0x50000 | errno.EPERM),
            (0x06, 0, 0, 0x7fff0000)))
        buffer, libc = ctypes.create_string_buffer(code), ctypes.CDLL(None, use_errno=True)
        program = struct.pack("<H6xQ", len(code) // 8, ctypes.addressof(buffer))

        def fence():
            if libc.prctl(38, 1, 0, 0, 0) != 0 or libc.prctl(22, 2, program, 0, 0) != 0:
                os._exit(99)
        daemon = self.daemon("--policy", "static:units=0-7,parts=1", "--quiet")
        daemon.end()
        daemon.process = subprocess.Popen(daemon.words, preexec_fn=fence,
                                          env=os.environ | daemon.environment)
        self.until(lambda: answers(daemon.socket))
        holder = self.member(daemon, "hold")
        holder.stdout.readline()
        tasks = pathlib.Path(f"/proc/{daemon.process.pid}/task")

        def used_ns():
            return sum(int((task / "schedstat").read_text().split()[0]) for task in tasks.iterdir())

        def share_of_a_second():
            begin, before = time.monotonic_ns(), used_ns()
            time.sleep(1)
            return (used_ns() - before) / (time.monotonic_ns() - begin)
        # Not before it has come to rest.
        self.until(lambda: share_of_a_second() < 0.1)
        holder.kill()
        self.until(lambda: not daemon.status()["clients"])
        self.works(daemon)

    def test_an_answer_is_whole_however_long_it_is(self):
        configuration = pathlib.Path(self.directory.name, "vitamin.toml")
        configuration.write_text("[daemon]\nclients = 700\nclients_of_user = 700\n")
        scrape = str(pathlib.Path(self.directory.name, "m"))
        daemon = self.daemon("--quiet", "--metrics", scrape,
                             environment={"VITAMIN_CONFIG": str(configuration)})
        for i in range(640):
            message = hello(MINOR, program=b"p" * 63, uuid=b"GPU-%059d" % (i % 64))
            self.assertEqual(self.stay(daemon, message)[1], 2)
        status = daemon.status()
        self.assertEqual((len(status["clients"]), len(status["devices"])), (640, 64))
        self.assertGreater(len(json.dumps(status)), 200_000)
        said = subprocess.run([os.environ["VITAMIN"], "status", "--json", "--socket",
                               str(daemon.socket)], capture_output=True, text=True, check=True)
        self.assertEqual(len(json.loads(said.stdout)["clients"]), 640)
        text = daemon.ask("metrics")["text"]
        self.assertGreater(len(text), 200_000)
        with socket.socket(socket.AF_UNIX) as connection:
            connection.settimeout(time_limit(10))
            connection.connect(scrape)
            connection.sendall(b"GET /metrics HTTP/1.1\r\n\r\n")
            with connection.makefile("rb") as file:
                body = file.read().decode().partition("\r\n\r\n")[2]
        self.assertEqual(body.count("\nvitamin_gpu_wait_seconds_count"), 64)

    def locks(self):
        return len(list(pathlib.Path(self.directory.name).glob("vitamin-*.lock")))

    def test_devices_that_are_made_up_are_bounded_and_forgotten(self):
        daemon = self.daemon("--policy", "random:max=32", "--quiet")
        self.works(daemon)
        descriptors, resident = settled_descriptors(daemon), daemon.resident_kib()
        for i in range(1000):
            self.assertEqual(self.greet(daemon, hello(MINOR, uuid=b"GPU-%d" % i))[0], 2)
        self.until(lambda: not daemon.status()["clients"])
        self.assertLessEqual(len(daemon.status()["devices"]), 64)
        self.assertEqual(self.locks(), 0)
        self.until(lambda: daemon.descriptors() <= descriptors)
        if not os.environ["VITAMIN_TEST_SANITIZERS"]:  # which keep freed memory for a while
            self.assertLess(daemon.resident_kib(), resident + 32 * 1024)
        self.works(daemon)

    @unittest.skipUnless(ROOT, "another user is needed")
    def test_a_user_of_many_devices_leaves_the_others_theirs(self):
        os.chmod(self.directory.name, 0o755)
        daemon = self.daemon("--system", "--quiet")
        kept = [self.stay(daemon, hello(MINOR, uuid=b"GPU-%d" % i)) for i in range(64)]
        self.assertEqual({kind for _, kind, _ in kept}, {2})
        self.assertIn("uses as many devices (64) as one user may", self.refused(daemon))
        answer = self.nobody(self.readable_member(), str(daemon.socket), "work", "5")
        self.assertEqual(json.loads(answer.stdout)["submitted"], 5)
        daemon.ask("drain GPU-1")
        for connection, _, _ in kept:
            connection.close()
        self.until(lambda: not daemon.status()["clients"])
        self.works(daemon)
        devices = {device["uuid"]: device["drained"] for device in daemon.status()["devices"]}
        self.assertTrue(devices["GPU-1"])
        self.assertEqual(self.greet(daemon, hello(MINOR, uuid=b"GPU-1"))[0], 3)

    def views(self, daemon):
        return {(device["processors"], device["view"]) for device in daemon.status()["devices"]}

    def test_who_says_other_things_of_a_device_decides_nothing_for_others(self):
        daemon = self.daemon("--policy", "static:units=0-15,parts=1")
        # It names the real device, with one unit; and holds all of that.
        liar, kind, _ = self.stay(daemon, hello(MINOR, units=[8]))
        self.assertEqual((kind, self.locks()), (2, 1))
        other, kind, _ = self.stay(daemon, hello(MINOR, device=b"another model"))
        self.assertEqual((kind, self.locks()), (2, 1))
        member = self.member(daemon, "work", 0)
        self.until(lambda: any(device["processors"] == 132 and device["name"] == "member" and
                               device["grants"] > 0 for device in daemon.status()["devices"]))
        status = daemon.status()
        self.assertEqual([device["views_in_use"] for device in status["devices"]], [3] * 3)
        self.assertEqual({client["view"] for client in status["clients"]}, {1, 2, 3})
        self.assertRegex(daemon.log(), r"of 132 processors in 16 units.* of 8 in 1: no lease .*"
                                       r"thread percentage.*\[VIT-511\]")
        samples = [line.rpartition(" ")[0] for line in daemon.ask("metrics")["text"].splitlines()
                   if not line.startswith("#")]
        self.assertEqual(len(samples), len(set(samples)))  # as Prometheus wants it
        self.assertEqual(daemon.ask("drain GPU-member")["devices"], 3)
        self.assertIn("is drained", self.refused(daemon))
        self.assertIn(b"is drained", self.greet(daemon, hello(MINOR, units=[4]))[1])
        daemon.ask("resume GPU-member")
        for connection in (liar, other):
            connection.close()
        self.until(lambda: len(daemon.status()["devices"]) == 1)
        self.assertEqual((self.views(daemon), self.locks()), ({(132, 3)}, 1))
        result = json.loads(member.communicate(timeout=time_limit(20))[0])
        self.assertEqual((result["at_home"], result["whole"], result["malformed"]), (0, 0, 0))
        self.assertGreater(result["submitted"], 0)
        self.until(lambda: not daemon.status()["clients"])
        self.assertEqual(self.locks(), 0)

    def test_a_device_that_nobody_uses_is_anybodys(self):
        first = self.daemon()
        self.works(first)
        self.until(lambda: not first.status()["clients"])
        folder = pathlib.Path(self.directory.name, "second")
        folder.mkdir()
        second = Daemon(folder, "--lock-directory", self.directory.name)
        self.addCleanup(second.end)
        self.member(second, "hold").stdout.readline()
        self.assertIn("another vitamind arbitrates", self.refused(first))
        second.end()
        self.works(first)

    def test_a_daemon_that_ends_in_the_middle_of_a_greeting_has_gone_away(self):
        path = pathlib.Path(self.directory.name) / "s"
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener:
            listener.bind(str(path))
            listener.listen()
            words = [os.environ["MEMBER"], str(path), "work", "1"]
            with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as member:
                connection, _ = listener.accept()
                connection.recv(4096)
                connection.close()
                self.assertIn("went away", member.communicate(timeout=time_limit(10))[0])

    # --- processes -------------------------------------------------------------------------

    def test_the_thread_that_connected_may_end_before_its_process(self):
        daemon = self.daemon("--policy", "random:max=32")
        self.assertEqual(self.result(self.member(daemon, "first", 500))["submitted"], 500)
        self.until(lambda: not daemon.status()["clients"])
        self.assertEqual(self.held(daemon), [])

    def test_a_process_that_turns_into_another_gives_its_lease_back(self):
        daemon = self.daemon("--policy", "temporal")
        member = self.member(daemon, "exec")
        member.stdout.readline()
        self.assertEqual(len(self.held(daemon)), 1)
        member.stdin.close()
        self.until(lambda: not daemon.status()["clients"])
        self.assertIsNone(member.poll())  # the process lives, as something else
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
        # It is told to give its lease up after a quantum; then the bound; then the machine.
        self.assertGreater(time.monotonic() - begin, 0.2)
        self.assertLess(time.monotonic() - begin, time_limit(5))
        # The other one, too, where the machine leaves it no processor.
        self.assertGreaterEqual(daemon.status()["devices"][0]["overdue"], 1)
        member.send_signal(signal.SIGCONT)
        self.works(daemon)
        self.assertEqual(len(daemon.status()["clients"]), 1)  # which was not let go for it

    def test_what_a_client_that_was_stopped_gives_back_too_late_is_counted_and_harms_nobody(self):
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
            except AssertionError:  # it was another one that was overdue
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

    def test_a_daemon_that_was_only_silent_keeps_what_its_clients_work_on_for_them(self):
        daemon = self.daemon("--policy", "static:units=0-7,parts=1")
        member = self.member(daemon, "away")
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
        # Closed, and there as long as the work is; and what began at home.
        self.assertIn((lease["units"], False),
                      [(hold["units"], hold["open"]) for hold in device["held"]])

    def passing_on(self, daemon):
        """A process with a session, and another descriptor of its socket."""
        here, there = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
        process = os.fork()
        if process == 0:
            os.closerange(3, there.fileno())  # others' are not its own
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

    def test_who_comes_while_others_go_is_not_taken_for_one_of_them(self):
        daemon = self.daemon("--quiet")
        gone = [self.passing_on(daemon) for _ in range(4)]
        self.until(lambda: len(daemon.status()["clients"]) == 4)

        def end(process):
            os.kill(process, signal.SIGKILL)
            os.waitpid(process, 0)
        # All of this lies before the daemon when it goes on. Each of the four is gone twice, and
        # who comes in between has their descriptors.
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
        for _ in range(50):  # each answer is one of its turns
            self.assertEqual(len(daemon.status()["clients"]), 6)

    def test_tools_that_ask_all_at_once_wait_and_the_clients_do_not(self):
        daemon = self.daemon("--quiet", "--set", "daemon.spin=0s")
        with session(daemon) as (_, _, daemons):
            def turns():  # of the daemon: in each it reads the rings
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

    def test_a_life_line_that_changes_all_the_time_keeps_nobody_busy(self):
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
            beat(20_000)  # the daemon may look at some
            begin, before = time.thread_time_ns(), used_ns()
            while time.thread_time_ns() - begin < 500_000_000:
                beat(1000)
            spent = time.thread_time_ns() - begin
            self.assertLess(used_ns() - before, spent / 20)
            del life

    def said(self, session, records):
        """These records, 64 bytes each at most, as many as the ring takes at a time; all taken."""
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

    def test_a_client_with_thousands_of_holds_is_shown_at_once(self):
        daemon = self.daemon("--quiet", "--answer-within", "600", "--policy",
                             "random:max=64")
        with session(daemon) as client:
            # Ready, moving on: each lane has all the grants that a lane may have.
            self.said(client, [struct.pack("<BxxxIQQQQQIHBB", 1, lane, 0, 0, 0, 0, 0, 1, 0xffff,
                                           1, 0) for _ in range(40) for lane in range(256)])
            held = self.held(daemon)
            self.assertGreater(sum(hold["lanes"] for hold in held), 2000)
            self.assertLess(len(held), 120)
        self.until(lambda: not daemon.status()["clients"])
        self.assertEqual(self.held(daemon), [])

    def test_no_client_holds_parts_by_telling_of_work_that_never_was(self):
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

    def test_after_a_restart_work_is_waited_for_of_processes_that_had_it_and_of_no_other(self):
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
        daemon = self.daemon("--policy", "random:max=32")
        ran = subprocess.run(["unshare", *options, MEMBER, str(daemon.socket), "work", "300"],
                             text=True, capture_output=True, timeout=time_limit(60), check=False)
        self.assertEqual(json.loads(ran.stdout)["submitted"], 300, ran.stderr)
        self.until(lambda: not daemon.status()["clients"])
        self.assertEqual(self.held(daemon), [])
        device = daemon.status()["devices"][0]
        self.assertEqual((device["overdue"], device["stale"]), (0, 0))

    def test_no_clock_that_can_be_set_is_asked(self):
        # So a clock that is changed changes nothing. What the log says of the time is spdlog's.
        asked = re.compile(r"CLOCK_REALTIME|CLOCK_TAI|system_clock|gettimeofday|\btime\(nullptr\)")
        source = pathlib.Path(os.environ["SOURCE"])
        files = [path for path in (source / "daemon").rglob("*") if path.suffix in (".h", ".cpp")]
        self.assertGreater(len(files), 90)
        self.assertEqual([str(f) for f in files if asked.search(f.read_text())], [])

    @unittest.skipUnless(may_unshare("--time"), "no time namespaces here")
    def test_a_client_whose_clock_is_eleven_days_ahead_is_like_any_other(self):
        self.in_namespace("--time", "--monotonic", "1000000", "--fork")

    @unittest.skipUnless(may_unshare("--pid", "--fork"), "no pid namespaces here")
    def test_a_client_in_a_pid_namespace_is_like_any_other(self):
        self.in_namespace("--pid", "--fork")

    @unittest.skipUnless(may_unshare("--user", "--map-root-user", "--net", "--ipc", "--mount"),
                         "no user namespaces here")
    def test_a_client_in_a_container_of_namespaces_is_like_any_other(self):
        self.in_namespace("--user", "--map-root-user", "--net", "--ipc", "--mount")

    @unittest.skipUnless(may_unshare("--pid", "--fork"), "no pid namespaces here")
    def test_a_daemon_that_cannot_name_its_clients_processes_sees_them_end_all_the_same(self):
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
            # Before Linux 6.5 the kernel cannot show it the process at all: it says so.
            self.assertIn("cannot be watched", line)
            return
        member.kill()
        member.wait()
        self.works(outside)
        # One of them breaks the protocol: it cannot be told from the others, who go on.
        self.member(outside, "scribble", 300).wait(time_limit(30))
        self.until(lambda: ask(path, "status")["daemon"]["let_go"] > 0)
        self.works(outside)

    # --- the log ---------------------------------------------------------------------------

    def test_a_full_disk_under_the_log_stops_nobody(self):
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
