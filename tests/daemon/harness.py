# SPDX-License-Identifier: Apache-2.0
"""Daemons and clients for the tests of this directory."""
import json
import os
import pathlib
import re
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import time
import unittest

from time_limit import time_limit, wait_until

sys.path.append(str(pathlib.Path(__file__).resolve().parents[2] / "bench" / "daemon"))

from holds import held_twice  # noqa: E402

MAJOR, MINOR = 1, 10  # daemon/protocol/version.h


def open_width(status, clients):
    """SMs that these clients of the only device may submit to, without the whole device."""
    device, = status["devices"]
    units = 0
    for hold in device["held"]:
        if hold["client"] in clients and hold["open"] and not hold["whole"]:
            units |= hold["units"]
    return sum(width for unit, width in enumerate(device["processors_per_unit"])
               if units >> unit & 1)


def ask(path, verb, plenty=5, until_closed=False):
    """The answer of the daemon at this socket to a tool. `plenty`: seconds, see time_limit.
    `until_closed`: waits until the daemon has closed the connection, too, which it does some time
    after it has sent the answer."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as connection:
        connection.settimeout(time_limit(plenty))
        connection.connect(str(path))
        preamble = b"vitamin\0" + struct.pack("<HHHH", MAJOR, 0, 4, 0)
        connection.send(preamble + verb.encode().ljust(256, b"\0"))
        answer, files, _, _ = socket.recv_fds(connection, 200_000, 1)
        if until_closed:
            connection.recv(1)
    if len(answer) < 16:
        raise OSError("no answer")
    if files:  # too long for a message
        with open(files[0], "rb") as file:
            file.seek(0)
            return json.loads(file.read())
    return json.loads(answer[16:])


def answers(path):
    try:
        ask(path, "ping")
    except OSError:
        return False
    return True


def signal_is_expected(pid, number):
    """Whether the process blocks or handles it."""
    try:
        status = pathlib.Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return False
    masks = re.findall(r"^Sig(?:Blk|Cgt):\s+(\w+)", status, re.M)
    return any(int(mask, 16) >> (number - 1) & 1 for mask in masks)


class Daemon:
    """A vitamind of this test, in a directory of its own."""

    def __init__(self, directory, *options, program=None, environment=None, start=True):
        self.directory = pathlib.Path(directory)
        self.socket = self.directory / "s"
        self.words = [program or os.environ["VITAMIND"], "--socket", str(self.socket),
                      "--lock-directory", str(self.directory), *options]
        # Do not read the machine's own configuration.
        self.environment = {"VITAMIN_CONFIG": "/dev/null"} | (environment or {})
        self.process = None
        if start:
            self.start()

    def start(self, wait=True):
        with open(self.directory / "log", "ab") as log:
            self.process = subprocess.Popen(self.words, env=os.environ | self.environment,
                                            stdout=log, stderr=log)
        if wait:
            wait_until(lambda: answers(self.socket) or self.process.poll() is not None,
                       "the daemon's first answer", every=0.002)

    def ask(self, verb, plenty=5):
        return ask(self.socket, verb, plenty)

    def status(self):
        return self.ask("status")

    def kill(self):
        self.process.kill()
        self.process.wait()

    def log(self):
        return (self.directory / "log").read_text()

    def descriptors(self):
        return len(os.listdir(f"/proc/{self.process.pid}/fd"))

    def shared_maps(self):
        """How many segments of clients it has mapped."""
        maps = pathlib.Path(f"/proc/{self.process.pid}/maps").read_text()
        return sum("memfd:" in line for line in maps.splitlines())

    def resident_kib(self):
        status = pathlib.Path(f"/proc/{self.process.pid}/status").read_text()
        for line in status.splitlines():
            if line.startswith("VmRSS"):
                return int(line.split()[1])
        return 0

    def end(self):
        if self.process is not None and self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
            try:
                self.process.wait(time_limit(10))
            except subprocess.TimeoutExpired:
                self.kill()


def settled_descriptors(daemon):
    """How many it has without clients: the fewest seen in a while, since ending sessions have
    descriptors for a moment."""
    wait_until(lambda: not daemon.status()["clients"], "the end of all clients", every=0.002)
    ask(daemon.socket, "ping", until_closed=True)  # the last connection is ours
    counts = []
    for _ in range(50):
        counts.append(daemon.descriptors())
        time.sleep(0.002)
    return min(counts)


def counted(path):
    """The shared accesses of the life that has just ended normally; one without a session made
    none."""
    changes = int(path.read_text()) if path.exists() else 0
    path.unlink(missing_ok=True)
    return changes


class DaemonTest(unittest.TestCase):
    def setUp(self):
        self.directory = tempfile.TemporaryDirectory(prefix="vitamind-")
        self.addCleanup(self.directory.cleanup)

    def daemon(self, *options, **more):
        daemon = Daemon(self.directory.name, *options, **more)
        self.addCleanup(daemon.end)
        return daemon

    def member(self, daemon, *words, program="MEMBER", environment=None, before=None):
        # A machine that stands still is no daemon that is silent: tests of silence say how long.
        environment = {"MEMBER_SILENCE": "3600000"} | (environment or {})
        process = subprocess.Popen([os.environ[program], str(daemon.socket), *map(str, words)],
                                   env=os.environ | environment, stdin=subprocess.PIPE,
                                   stdout=subprocess.PIPE, text=True, preexec_fn=before)

        def end():
            process.kill()
            process.wait()
            process.stdin.close()
            process.stdout.close()
        self.addCleanup(end)
        return process

    def control_group(self, *names):
        """Makes a control group of this path, and enters it. To be called in a new process."""
        for root in ("/sys/fs/cgroup", "/sys/fs/cgroup/unified", "/sys/fs/cgroup/freezer"):
            top = pathlib.Path(root, f"{names[0]}-{os.getpid()}")
            paths = [top.joinpath(*names[1:length + 1]) for length in range(len(names))]
            try:
                if not pathlib.Path(root, "cgroup.procs").exists():
                    continue
                paths[-1].mkdir(parents=True)
            except OSError:
                continue
            for path in paths:  # the innermost first
                self.addCleanup(self.remove_control_group, path)
            procs = paths[-1] / "cgroup.procs"
            return lambda: procs.write_text(str(os.getpid()))
        self.skipTest("no control group can be made here")

    def remove_control_group(self, path):
        self.until(lambda: not (path / "cgroup.procs").read_text())
        path.rmdir()

    def result(self, process, timeout=60):
        output, _ = process.communicate(timeout=time_limit(timeout))
        self.assertEqual(process.returncode, 0, output)
        return json.loads(output.splitlines()[-1])

    def until(self, what, seconds=10):
        """Waits until what() is true, and returns that; `seconds` are plenty on an idle machine."""
        return wait_until(what, plenty=seconds, every=0.002)

    def check_disjoint(self, status):
        """No unit is leased to two clients in this snapshot of the daemon's own state."""
        for device in status["devices"]:
            self.assertEqual(list(held_twice(device)), [])
