# SPDX-License-Identifier: Apache-2.0
"""The DRA driver as a test has it: beside a real vitamind, with fakes of kubelet and API server."""
import contextlib
import json
import os
import pathlib
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import threading
import unittest
import uuid

sys.path.append(str(pathlib.Path(__file__).resolve().parents[2] / "daemon"))
from cluster import ApiServer, DraKubelet, PodResources  # noqa: E402
from harness import MAJOR, MINOR, ask  # noqa: E402
from machine import BUILD  # noqa: E402
from time_limit import time_limit, wait_until  # noqa: E402

NODE = "node-1"
ANSWER = 5  # daemon/protocol/handshake.h
CLASSES = """
[[class]]
name = "serving"
command = ["serve*"]
kind = "latency"
tpot = "30ms"

[[class]]
name = "chat"
command = ["chat*"]
kind = "latency"
tpot = "80ms"
"""


def claim_of(name, *shares, parameters=None, pods=("pod-1",), device="gpu-1", memory=None):
    """An allocated claim with a request r0, r1, ... for each share."""
    consumed = [{"share": str(share), **({"memory": memory} if memory else {})}
                for share in shares]
    devices = {"results": [{"request": f"r{i}", "driver": "vitamin.dev", "pool": NODE,
                            "device": device, "shareID": str(uuid.uuid4()),
                            "consumedCapacity": what} for i, what in enumerate(consumed)]}
    if parameters is not None:
        devices["config"] = [{"source": "FromClaim", "requests": [],
                              "opaque": {"driver": "vitamin.dev", "parameters": {
                                  "apiVersion": "vitamin.dev/v1alpha1", "kind": "ShareParameters",
                                  **parameters}}}]
    return {"apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaim",
            "metadata": {"name": name, "namespace": "team-a", "uid": str(uuid.uuid4())},
            "spec": {}, "status": {
                "allocation": {"devices": devices},
                "reservedFor": [{"resource": "pods", "name": pod, "uid": pod} for pod in pods]}}


class Relay:
    """A socket whose requests vitamind answers, but for what a test changes."""

    def __init__(self, path, daemon):
        self.daemon = daemon
        self.fail = None  # requests that have this word fail
        self.failed = 0
        self.clients = []  # that vitamind is said to have beside its own
        self.listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.listener.bind(str(path))
        self.listener.listen()
        self.thread = threading.Thread(target=self._serve)
        self.thread.start()

    def close(self):
        self.listener.shutdown(socket.SHUT_RDWR)  # ends accept()
        self.thread.join()
        self.listener.close()

    def _serve(self):
        while True:
            try:
                connection, _ = self.listener.accept()
            except OSError:
                return
            with connection, contextlib.suppress(OSError):  # the driver or vitamind was ended
                message = connection.recv(4096)
                self._send(connection, self._answer(message[16:].rstrip(b"\0").decode()))

    def _answer(self, verb):
        if self.fail is not None and self.fail in verb.split():
            self.failed += 1
            return {"schema": 1, "error": "not now"}
        answer = ask(self.daemon, verb)
        if verb == "status":
            answer["clients"] += self.clients
        return answer

    @staticmethod
    def _send(connection, answer):
        with os.fdopen(os.memfd_create("answer"), "wb") as memory:
            memory.write(json.dumps(answer).encode())
            memory.flush()
            preamble = b"vitamin\0" + struct.pack("<HHHH", MAJOR, MINOR, ANSWER, 0)
            socket.send_fds(connection, [preamble], [memory.fileno()])


class DraTest(unittest.TestCase):
    def setUp(self):
        directory = tempfile.TemporaryDirectory(prefix="vitamin-dra-")
        self.addCleanup(directory.cleanup)
        self.directory = pathlib.Path(directory.name)
        for name in ("registry", "plugin", "cdi", "daemon"):
            (self.directory / name).mkdir()
        (self.directory / "vitamin.toml").write_text(CLASSES)
        self.socket = self.directory / "daemon/vitamind.sock"
        self.processes = {}
        self.addCleanup(lambda: [self.end(name) for name in list(self.processes)])
        self.api = ApiServer()
        self.addCleanup(lambda: self.api.close())
        self.kubelet = DraKubelet(self.directory / "registry")
        self.devices = PodResources(self.directory / "pods.sock")
        self.addCleanup(self.devices.close)

    def start(self, name, *words, known_as=None):
        with open(self.directory / f"{known_as or name}.log", "a", encoding="utf-8") as log:
            self.processes[known_as or name] = subprocess.Popen(
                [BUILD / "bin" / name, *map(str, words)], stdin=subprocess.DEVNULL, stdout=log,
                stderr=log, env={**os.environ, "NODE_NAME": NODE})

    def end(self, name, by=signal.SIGKILL):
        process = self.processes.pop(name)
        process.send_signal(by)
        return process.wait(time_limit(30))

    def start_daemon(self):
        self.start("vitamind", "--socket", self.socket, "--lock-directory", self.directory,
                   "--quiet", "--config", self.directory / "vitamin.toml")
        wait_until(self.status, what="vitamind")

    def start_driver(self, *more, gpus=("GPU-1=16Gi", "GPU-2"), known_as=None, api_every=20,
                     vitamind=None):
        self.start("vitamin-dra-driver", "--api-server", self.api.url, "--registry",
                   self.directory / "registry", "--directory", self.directory / "plugin",
                   "--cdi-directory", self.directory / "cdi", "--socket", vitamind or self.socket,
                   "--libraries", BUILD / "lib", "--config", self.directory / "vitamin.toml",
                   "--nvidia-gpus", self.directory / "gpus", "--every", 20,
                   "--pod-resources", self.directory / "pods.sock", "--api-every", api_every,
                   *(f"--gpu={gpu}" for gpu in gpus), *more, known_as=known_as)

    def start_all(self, **options):
        self.start_daemon()
        self.start_driver(**options)
        self.kubelet.register()
        wait_until(lambda: self.api.published() is not None, what="a slice")

    def start_relayed(self, **options):
        """As start_all(); the driver has vitamind behind a relay, which is returned."""
        relay = Relay(self.directory / "relay.sock", self.socket)
        self.addCleanup(relay.close)
        self.start_all(vitamind=self.directory / "relay.sock", **options)
        return relay

    def looks(self, more=5):
        """Waits until the driver has looked some more times."""
        enough = self.devices.asked + more
        wait_until(lambda: self.devices.asked >= enough, what="further looks of the driver")

    def log(self, of="vitamin-dra-driver"):
        return (self.directory / f"{of}.log").read_text()

    def status(self):
        said = subprocess.run([BUILD / "bin/vitamin", "status", "--json", "--socket", self.socket],
                              text=True, capture_output=True)
        return json.loads(said.stdout) if said.returncode == 0 else None

    def claims(self):
        """The claims that vitamind knows: percent by name."""
        return {each["claim"]: each["share"] for each in self.status()["claims"]}

    def start_member(self, job):
        """A program of that claim. It speaks the protocol itself, and leaves its share out."""
        member = subprocess.Popen([BUILD / "tests/daemon/daemon_member", self.socket, "serve"],
                                  env={**os.environ, "MEMBER_JOB": job, "MEMBER_DEVICE": "GPU-1"},
                                  stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, bufsize=0)
        self.addCleanup(member.communicate)
        self.addCleanup(member.kill)
        member.stdin.write(b".")  # which begins its work

    def clients(self):
        """What vitamind knows: process, claim and bound of each."""
        return [(each["process"], each["job"], each["processors_most"])
                for each in self.status()["clients"]]

    def prepared(self, claim):
        answer = self.kubelet.prepare(claim)[claim["metadata"]["uid"]]
        self.assertEqual(answer.error, "")
        return answer.devices

    def refused(self, claim):
        error = self.kubelet.prepare(claim)[claim["metadata"]["uid"]].error
        self.assertNotEqual(error, "")
        self.assertIn(f"claim team-a/{claim['metadata']['name']}: ", error)
        return error

    def cdi(self, claim):
        return self.directory / f"cdi/vitamin.dev-claim-{claim['metadata']['uid']}.json"
