#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""vitamind as deploy/systemd/vitamind.service runs it, with this test as the service manager: the
unit's system calls, address families, capabilities, limits, user and umask, its watchdog, and its
restart. Mounts and cgroups (ProtectSystem, PrivateDevices, ...) are not tested here."""
import ctypes
import errno
import os
import pathlib
import pwd
import re
import resource
import shutil
import signal
import socket
import struct
import subprocess
import time
import unittest

from harness import DaemonTest, ask
from time_limit import time_limit

UNIT = pathlib.Path(os.environ["SOURCE"], "deploy/systemd/vitamind.service")
NUMBERS = pathlib.Path("/usr/include/x86_64-linux-gnu/asm/unistd_64.h")
ANALYZE = shutil.which("systemd-analyze")

PR_SET_SECCOMP, PR_SET_NO_NEW_PRIVS, PR_CAPBSET_DROP, PR_SET_MDWE = 22, 38, 24, 65
AUDIT_ARCH_X86_64 = 0xC000003E
LOAD, EQUAL, RETURN = 0x20, 0x15, 0x06
ALLOW, REFUSE, KILL = 0x7FFF0000, 0x00050000, 0x80000000


def settings():
    """{name: [values]} of the unit."""
    found = {}
    for line in UNIT.read_text().splitlines():
        if "=" in line and not line.startswith("#"):
            name, _, value = line.partition("=")
            found.setdefault(name, []).append(value)
    return found


def calls_of(group, known={}):
    """The system calls of one of systemd's groups, by name."""
    if not known:
        said = subprocess.run([ANALYZE, "syscall-filter"], capture_output=True, text=True,
                              check=True).stdout
        name = None
        for line in said.splitlines():
            if line.startswith("@"):
                name = line.strip()
                known[name] = []
            elif name and line.strip() and not line.strip().startswith("#"):
                known[name].append(line.strip())
    return {call for word in known[group]
            for call in (calls_of(word) if word.startswith("@") else {word})}


def seconds(text):
    value, unit = re.fullmatch(r"(\d+)(ms|s)", text).groups()
    return int(value) / (1000 if unit == "ms" else 1)


def program_of(unit):
    """The filter of the unit's SystemCallFilter and RestrictAddressFamilies, for the kernel."""
    allowed = calls_of("@default")
    for words in unit["SystemCallFilter"]:
        for word in words.lstrip("~").split():
            if words.startswith("~"):
                allowed -= calls_of(word) - calls_of("@default")
            else:
                allowed |= calls_of(word)
    numbers = dict(re.findall(r"#define __NR_(\w+) (\d+)", NUMBERS.read_text()))
    families = [getattr(socket, name) for name in unit["RestrictAddressFamilies"][0].split()]
    code = [(LOAD, 0, 0, 4), (EQUAL, 1, 0, AUDIT_ARCH_X86_64), (RETURN, 0, 0, KILL),
            (LOAD, 0, 0, 0), (EQUAL, 0, 2 + 2 * len(families), int(numbers["socket"])),
            (LOAD, 0, 0, 16)]
    for family in families:
        code += [(EQUAL, 0, 1, family), (RETURN, 0, 0, ALLOW)]
    code.append((RETURN, 0, 0, REFUSE | errno.EAFNOSUPPORT))
    for name in sorted(allowed & set(numbers)):
        code += [(EQUAL, 0, 1, int(numbers[name])), (RETURN, 0, 0, ALLOW)]
    code.append((RETURN, 0, 0, REFUSE | getattr(errno, unit["SystemCallErrorNumber"][0])))
    return b"".join(struct.pack("<HBBI", *one) for one in code)


@unittest.skipUnless(os.getuid() == 0 and ANALYZE and NUMBERS.exists(),
                     "needs root, systemd-analyze and the kernel's headers")
class Unit(DaemonTest):
    def setUp(self):
        super().setUp()
        os.chmod(self.directory.name, 0o755)
        self.unit = settings()
        self.runtime = pathlib.Path(self.directory.name, "run")
        self.runtime.mkdir(mode=int(self.unit["RuntimeDirectoryMode"][0], 8))
        user = pwd.getpwnam("nobody")  # the unit's user exists only once installed
        os.chown(self.runtime, user.pw_uid, user.pw_gid)
        self.program = pathlib.Path(self.directory.name, "vitamind")
        shutil.copy(os.environ["VITAMIND"], self.program)
        self.socket = self.runtime / "s"
        self.manager = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self.addCleanup(self.manager.close)
        self.manager.bind(str(self.runtime / "notify"))
        os.chmod(self.runtime / "notify", 0o777)
        self.filter = program_of(self.unit)
        self.libc = ctypes.CDLL(None, use_errno=True)
        self.user, self.process = user, None
        self.addCleanup(self.end)

    def end(self):
        if self.process is not None and self.process.poll() is None:
            self.process.kill()
            self.process.wait()

    def fence(self):
        """In the child: applies the unit's limits, as the service manager does before exec."""
        limit = int(self.unit["LimitNOFILE"][0])
        resource.setrlimit(resource.RLIMIT_NOFILE, (limit, limit))
        os.umask(int(self.unit["UMask"][0], 8))
        self.assertEqual(self.unit["CapabilityBoundingSet"], [""])
        for capability in range(41):
            self.libc.prctl(PR_CAPBSET_DROP, capability, 0, 0, 0)
        os.setgroups([])
        os.setgid(self.user.pw_gid)
        os.setuid(self.user.pw_uid)
        code = ctypes.create_string_buffer(self.filter)
        program = struct.pack("<H6xQ", len(self.filter) // 8, ctypes.addressof(code))
        if (self.libc.prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0
                or self.libc.prctl(PR_SET_SECCOMP, 2, program, 0, 0) != 0):
            os._exit(99)

    def begin(self, interval=None):
        """As Type=notify: returns when it reports READY=1."""
        words = self.unit["ExecStart"][0].split()[1:]
        self.assertEqual(self.unit["Type"], ["notify"])
        watchdog = interval or seconds(self.unit["WatchdogSec"][0])
        with open(self.runtime / "log", "ab") as log:
            self.process = subprocess.Popen(
                [self.program, *words, "--socket", self.socket, "--lock-directory", self.runtime,
                 "--policy", "random:max_sms=32"], stdout=log, stderr=log, preexec_fn=self.fence,
                env={"NOTIFY_SOCKET": str(self.runtime / "notify"), "VITAMIN_CONFIG": "/dev/null",
                     "WATCHDOG_USEC": str(int(1e6 * watchdog)), "PATH": os.environ["PATH"]})
        self.wait_for(b"READY=1", time_limit(10))

    def wait_for(self, word, within):
        self.manager.settimeout(within)
        while self.manager.recv(100) != word:
            pass

    def restart(self):
        """As Restart=always."""
        self.assertEqual(self.unit["Restart"], ["always"])
        self.process.wait()
        time.sleep(seconds(self.unit["RestartSec"][0]))
        self.begin()

    def status(self):
        return ask(self.socket, "status")

    def test_the_limits_are_in_force(self):
        # Otherwise the following tests would show nothing.
        with open(self.runtime / "log", "ab") as log:
            said = subprocess.run(
                ["python3", "-c", "import socket, os\n"
                 "for what in (lambda: socket.socket(socket.AF_INET), lambda: os.chroot('/'),\n"
                 "             lambda: os.sched_setaffinity(0, {0})):\n"
                 "    try: what(); print('went')\n"
                 "    except OSError as e: print(e.errno)"],
                preexec_fn=self.fence, stdout=subprocess.PIPE, stderr=log, text=True, check=False)
        self.assertEqual(said.stdout.split(), [str(errno.EAFNOSUPPORT), str(errno.EPERM),
                                               str(errno.EPERM)])

    def test_within_the_limits_everything_works_without_errors(self):
        self.begin()
        members = [self.member(self, "work", 2000) for _ in range(4)]
        for member in members:
            self.assertEqual(self.result(member)["at_home"], 0)
        for _ in range(200):  # usually the liveness futex reports a death first
            holder = self.member(self, "hold")
            holder.stdout.readline()
            holder.kill()
            self.until(lambda: not self.status()["clients"])
            if self.status()["daemon"]["deaths_by_life_line"] > 0:
                break
        self.assertGreater(self.status()["daemon"]["deaths_by_life_line"], 0)
        self.assertNotRegex((self.runtime / "log").read_text(), "warning|error|not permitted")

    def test_clients_use_the_fallback_partition_and_reconnect_when_it_is_killed_and_restarted(self):
        self.begin()
        members = [self.member(self, "work", 0) for _ in range(4)]
        self.until(lambda: len(self.status()["clients"]) == 4)
        for _ in range(3):
            epoch = self.status()["daemon"]["epoch"]
            self.process.kill()
            self.restart()
            self.assertNotEqual(self.status()["daemon"]["epoch"], epoch)
            self.until(lambda: len(self.status()["clients"]) == 4)
            before = self.status()["devices"][0]["grants"]
            self.until(lambda: self.status()["devices"][0]["grants"] > before + 100)
        for member in members:
            result = self.result(member)
            self.assertGreater(result["at_home"], 0)
            self.assertEqual(result["malformed"], 0)

    def test_the_watchdog_notices_a_daemon_that_hangs(self):
        self.begin(interval=0.3)
        for _ in range(3):
            self.wait_for(b"WATCHDOG=1", time_limit(5))
        member = self.member(self, "work", 0)
        self.until(lambda: len(self.status()["clients"]) == 1)
        self.process.send_signal(signal.SIGSTOP)
        with self.assertRaises(TimeoutError):
            while True:  # earlier notifications may still be queued
                self.wait_for(b"WATCHDOG=1", 0.5)
        self.process.send_signal(signal.SIGKILL)  # a stopped process cannot be aborted
        self.restart()
        self.until(lambda: len(self.status()["clients"]) == 1)
        self.assertGreater(self.result(member)["at_home"], 0)


if __name__ == "__main__":
    unittest.main()
