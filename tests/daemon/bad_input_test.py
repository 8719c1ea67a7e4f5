#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Bad input and broken surroundings of a daemon: one clear line each, no other client affected."""
import ctypes
import errno
import json
import os
import pathlib
import pwd
import socket
import struct
import subprocess
import time
import unittest

from harness import Daemon, MAJOR, MINOR, answers, settled_descriptors
from raw_client import RawClientTest, connected, hello, parsed, taken
from time_limit import time_limit

MEMBER = os.environ["MEMBER"]
ROOT = os.getuid() == 0


class BadInput(RawClientTest):
    def refused(self, daemon, **more):
        output, _ = self.member(daemon, "work", 1, **more).communicate(timeout=time_limit(20))
        return json.loads(output).get("refused", "")

    def as_other_user(self, *words, env=None):
        """Runs a program as another user, with files of its own."""
        user = pwd.getpwnam("nobody")
        return subprocess.run(words, user=user.pw_uid, group=user.pw_gid, extra_groups=[],
                              text=True, capture_output=True, timeout=time_limit(30), check=False,
                              env=os.environ | {"VITAMIN_CONFIG": "/dev/null"} | (env or {}))

    # --- sockets and users -----------------------------------------------------------------

    def test_a_stale_socket_counts_as_no_daemon_and_is_replaced(self):
        daemon = self.daemon()
        daemon.kill()
        self.assertTrue(daemon.socket.exists())
        self.assertIn("no vitamind answers", self.refused(daemon))
        daemon.start()
        self.works(daemon)

    def test_a_file_that_is_no_socket_is_kept(self):
        (pathlib.Path(self.directory.name) / "s").write_text("mine")
        daemon = self.daemon()
        self.assertEqual(daemon.process.wait(time_limit(10)), 1)
        self.assertEqual(daemon.socket.read_text(), "mine")
        self.assertIn(str(daemon.socket), daemon.log())

    def test_a_directory_that_does_not_exist_is_named(self):
        ended = subprocess.run([os.environ["VITAMIND"], "--socket",
                                f"{self.directory.name}/a/b/c/s"], text=True, capture_output=True,
                               timeout=time_limit(20), check=False)
        self.assertEqual(ended.returncode, 1)
        self.assertIn(f"{self.directory.name}/a/b/c ", ended.stderr)

    @unittest.skipUnless(ROOT, "another user is needed")
    def test_another_users_daemon_refuses_clients_and_the_machines_accepts_them(self):
        os.chmod(self.directory.name, 0o755)
        own = self.daemon()
        copy = self.readable_member()
        answer = self.as_other_user(copy, str(own.socket), "work", "1")
        self.assertEqual(answer.returncode, 3)
        self.assertRegex(answer.stdout, "Permission denied|belongs to another user")
        # The socket's mode admits all users: the daemon refuses by the peer's user id.
        os.chmod(own.socket, 0o666)
        answer = self.as_other_user(copy, str(own.socket), "work", "1")
        self.assertIn("belongs to another user", answer.stdout)
        own.end()
        shared = self.daemon("--system")
        answer = self.as_other_user(copy, str(shared.socket), "work", "5")
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
        answer = self.as_other_user(self.readable_member(), str(theirs / "s"), "work", "1")
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

    def test_a_lock_directory_that_cannot_be_used_is_named_to_the_client(self):
        daemon = self.daemon("--lock-directory", f"{self.directory.name}/none")
        self.assertIn("the lock of the device cannot be made", self.refused(daemon))
        self.assertEqual(daemon.status()["devices"], [])

    # --- versions --------------------------------------------------------------------------

    def greet(self, daemon, message):
        with connected(daemon) as connection:
            connection.send(message)
            return parsed(taken(connection)[0])

    def test_a_client_of_another_minor_version_is_accepted(self):
        daemon = self.daemon()
        welcome, refusal = 2, 3
        self.assertEqual(self.greet(daemon, hello(0, less=256))[0], welcome)  # before classes
        self.assertEqual(self.greet(daemon, hello(1, less=192))[0], welcome)
        self.assertEqual(self.greet(daemon, hello(2, less=192))[0], welcome)  # before jobs
        self.assertEqual(self.greet(daemon, hello(3, less=128))[0], welcome)  # before progress
        self.assertEqual(self.greet(daemon, hello(9, less=128))[0], welcome)  # before domains
        self.assertEqual(self.greet(daemon, hello(MINOR))[0], welcome)
        self.assertEqual(self.greet(daemon, hello(MINOR + 1, more=b"news" * 50))[0], welcome)
        kind, why = self.greet(daemon, hello(MINOR, less=64))  # our version, but truncated
        self.assertEqual((kind, why), (refusal, b"the peer sent a message that was not expected"))
        self.assertEqual(self.greet(daemon, hello(0, less=528))[0], refusal)

    def test_messages_of_any_size_and_sent_descriptors_leave_nothing_in_the_daemon(self):
        daemon = self.daemon("--policy", "random:max_sms=32")
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
        """As greet(), but keeps the connection."""
        connection = connected(daemon)
        self.addCleanup(connection.close)
        connection.send(message)
        return connection, *parsed(taken(connection)[0])

    def test_names_that_are_not_utf8_are_shown_and_do_no_harm(self):
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

    def test_without_futex_waitv_it_sleeps_and_notices_deaths(self):
        # Containers' seccomp filters answer unknown system calls with EPERM.
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
        # Measure only when it has gone to sleep.
        self.until(lambda: share_of_a_second() < 0.1)
        holder.kill()
        self.until(lambda: not daemon.status()["clients"])
        self.works(daemon)

    def test_long_answers_are_complete(self):
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

        def said():  # a loaded machine may take longer than `vitamin status` waits
            done = subprocess.run([os.environ["VITAMIN"], "status", "--json", "--socket",
                                   str(daemon.socket)], capture_output=True, text=True)
            return done.returncode == 0 and json.loads(done.stdout)
        self.assertEqual(len(self.until(said, 60)["clients"]), 640)
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

    def test_invented_devices_are_bounded_and_forgotten(self):
        daemon = self.daemon("--policy", "random:max_sms=32", "--quiet")
        self.works(daemon)
        descriptors, resident = settled_descriptors(daemon), daemon.resident_kib()
        for i in range(1000):
            self.assertEqual(self.greet(daemon, hello(MINOR, uuid=b"GPU-%d" % i))[0], 2)
        self.until(lambda: not daemon.status()["clients"])
        self.assertLessEqual(len(daemon.status()["devices"]), 64)
        self.assertEqual(self.locks(), 0)
        self.until(lambda: daemon.descriptors() <= descriptors)
        if not os.environ["VITAMIN_TEST_SANITIZERS"]:  # sanitizers keep freed memory for a while
            self.assertLess(daemon.resident_kib(), resident + 32 * 1024)
        self.works(daemon)

    @unittest.skipUnless(ROOT, "another user is needed")
    def test_a_user_of_many_devices_does_not_use_up_other_users_devices(self):
        os.chmod(self.directory.name, 0o755)
        daemon = self.daemon("--system", "--quiet")
        kept = [self.stay(daemon, hello(MINOR, uuid=b"GPU-%d" % i)) for i in range(64)]
        self.assertEqual({kind for _, kind, _ in kept}, {2})
        self.assertIn("uses as many devices (64) as one user may", self.refused(daemon))
        answer = self.as_other_user(self.readable_member(), str(daemon.socket), "work", "5")
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

    def test_a_client_that_describes_a_device_differently_does_not_affect_others(self):
        daemon = self.daemon("--policy", "static:units=0-15,parts=1")
        # It describes the real device with one unit, and holds all of it.
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
        self.assertRegex(daemon.log(), r"with 132 SMs in 16 units, .* with 8 in 1: leases do not .*"
                                       r"thread percentage.*\[VIT-511\]")
        samples = [line.rpartition(" ")[0] for line in daemon.ask("metrics")["text"].splitlines()
                   if not line.startswith("#")]
        self.assertEqual(len(samples), len(set(samples)))  # Prometheus requires it
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

    def test_an_unused_device_can_be_used_by_another_daemon(self):
        first = self.daemon()
        self.works(first)
        self.until(lambda: not first.status()["clients"])
        directory = pathlib.Path(self.directory.name, "second")
        directory.mkdir()
        second = Daemon(directory, "--lock-directory", self.directory.name)
        self.addCleanup(second.end)
        self.member(second, "hold").stdout.readline()
        self.assertIn("another vitamind arbitrates", self.refused(first))
        second.end()
        self.works(first)

    def test_a_daemon_that_ends_during_the_handshake_is_reported(self):
        path = pathlib.Path(self.directory.name) / "s"
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener:
            listener.bind(str(path))
            listener.listen()
            words = [os.environ["MEMBER"], str(path), "work", "1"]
            with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as member:
                connection, _ = listener.accept()
                connection.recv(4096)
                connection.close()
                self.assertIn("hung up", member.communicate(timeout=time_limit(10))[0])

    # --- processes -------------------------------------------------------------------------


if __name__ == "__main__":
    unittest.main()
