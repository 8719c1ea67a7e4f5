# SPDX-License-Identifier: Apache-2.0
"""Base of the tests in which podman plays the chart's DaemonSet, and pods that share a software
device."""
import json
import os
import pathlib
import re
import subprocess
import sys
import unittest

from kubernetes_image_test import CONTAINERS, IMAGE, PodmanMachine
from machine import BUILD, SOURCE, tool
import seed
from time_limit import time_limit, wait_until

HERE = pathlib.Path(__file__).resolve().parent
sys.path[:0] = [str(SOURCE / "deploy/kubernetes"), str(HERE.parents[1] / "daemon")]
import generate  # noqa: E402
from harness import open_width  # noqa: E402
from kubectl import kubectl  # noqa: E402
from pods import Node, playable  # noqa: E402

STEPS = "1500"  # enough to find and stop the program on a busy machine
TRAIN = [str(BUILD / "bin/demo-train"), STEPS]
GPU = "GPU-56697461-6d69-6e00-536f-667400000000"  # the software device's
DRIVER = str(BUILD / "lib/soft")
POOL = "vitamin-default"
# Not of NVIDIA's driver, which a machine with GPUs has.
NO_GPUS = "--nvidia-gpus=/none"


def hash_of(text):
    return re.search(r"hash (\w+)", text)[1]


def hash_alone():
    """Of a run of TRAIN without Vitamin."""
    return hash_of(subprocess.run(TRAIN, text=True, capture_output=True, check=True,
                                  timeout=time_limit(120),
                                  env={"LD_LIBRARY_PATH": DRIVER}).stdout)


class PlayedTest(unittest.TestCase):
    def setUp(self):
        if not seed.long_form():
            self.skipTest("pods are played in the long form")
        tool("catatonit")  # podman makes the first container of a pod of it
        os.environ["KUBECTL"] = str(kubectl())
        self.podman_machine = PodmanMachine(self)
        self.machine = self.podman_machine.machine
        self.machine.write("/etc/containers/host_pids.conf",
                           CONTAINERS.replace("[engine]", 'pidns = "host"\n[engine]'))
        self.node = Node(self.machine, self.podman)

    def podman(self, *words, check=True, host_pids=False):
        environment = {"CONTAINERS_CONF": "/etc/containers/host_pids.conf"} if host_pids else None
        return self.machine.run("podman", *words, check=check, timeout=200, env=environment)

    def play_daemon_set(self, values, offers, change=lambda pod: pod):
        """The chart's DaemonSet without what podman does not support, and with options for tests:
        programs that are stopped for a while are not overdue, and grants have many SM counts.
        `offers`: its container that offers the GPUs. `change`: what the kubelet adds to the pod."""
        things = generate.objects(generate.rendered(values))
        pod = playable(change(things["DaemonSet", POOL]["spec"]["template"]), IMAGE, POOL)
        # podman 4.3 fails when it removes an init container that it still takes for running.
        pod["metadata"]["annotations"]["io.podman.annotations.init.container.type"] = "always"
        pod["spec"]["restartPolicy"] = "OnFailure"  # or podman starts it over and over
        commands = {each["name"]: each["command"] for each in pod["spec"]["containers"]}
        commands[offers].append(NO_GPUS)
        commands["vitamind"] += ["--answer-within=3600", "--policy=random:max_sms=32"]
        self.node.play(pod, [thing for (kind, _), thing in things.items() if kind == "ConfigMap"],
                       host_pids=True)
        self.vitamind = self.node.inspect(f"{POOL}-vitamind")["State"]["Pid"]

    def restart_vitamind(self, processes):
        """Its container, as an update of the DaemonSet does, beside these stopped programs. They
        are clients of the new one when this returns, and stopped."""
        before = self.vitamind
        self.podman("restart", "--time=5", f"{POOL}-vitamind")
        self.vitamind = self.node.inspect(f"{POOL}-vitamind")["State"]["Pid"]
        self.assertNotEqual(self.vitamind, before)
        wait_until(lambda: "devices" in self.status(), "vitamind", 60)
        all_of_them = " ".join(map(str, processes))
        self.machine.run("sh", "-c", f"kill -CONT {all_of_them}")
        wait_until(lambda: set(self.named()) == set(processes), "the clients of before", 60)
        self.machine.run("sh", "-c", f"kill -STOP {all_of_them}")

    def status(self):
        """`vitamin status` in vitamind's container, as `kubectl exec` runs it. Not by `podman
        exec`, which enters the root of a mount namespace, which is not the container's here."""
        done = self.machine.run("nsenter", "--target", self.vitamind, "--mount", "--root",
                                "vitamin", "status", "--json", check=False)
        return json.loads(done.stdout) if done.returncode == 0 else {"clients": [], "claims": []}

    def stopped_client(self, play):
        """The process of the program that play() starts, stopped at its first use of the device."""
        known = {client["process"] for client in self.status()["clients"]}
        play()

        def newest():
            return [client["process"] for client in self.status()["clients"]
                    if client["process"] not in known]
        process, = wait_until(newest, "a client", 60)
        self.machine.run("kill", "-STOP", process)
        return process

    def named(self):
        """Namespace, pod and container of each client, by process."""
        return {client["process"]: (client["namespace"], client["pod"], client["container"])
                for client in self.status()["clients"]}

    def check_shares(self, percents):
        """Lets these stopped programs (percent of the SMs by process) work for moments until one
        has ended, and then to their end. None ever has more than its share."""
        status, moment = self.status(), 0.02
        most = {process: status["devices"][0]["processors"] * percent // 100
                for process, percent in percents.items()}
        processes = " ".join(map(str, percents))
        self.assertEqual({client["process"] for client in status["clients"]}, set(percents))
        while len(status["clients"]) == len(percents):
            for client in status["clients"]:
                self.assertEqual(client["processors_most"], most[client["process"]])
                self.assertLessEqual(open_width(status, [client["client"]]),
                                     most[client["process"]])
            # All work for a moment and are stopped while the status is read.
            self.machine.run("sh", "-c", f"kill -CONT {processes}; sleep {moment}; "
                             f"kill -STOP {processes} 2>/dev/null", check=False)
            moment *= 2
            status = self.status()
        self.machine.run("sh", "-c", f"kill -CONT {processes}", check=False)

    def output(self, name):
        """The output of a container's program, which must have succeeded."""
        self.assertEqual(self.podman("wait", name).stdout.strip(), "0")
        done = self.podman("logs", name)
        return done.stdout, done.stderr

    def check_bits(self, names, alone):
        for name in names:
            said, errors = self.output(name)
            self.assertEqual(hash_of(said), alone)
            # A program that is stopped while it waits for an answer takes vitamind for lost.
            self.assertRegex(errors, r"\A(vitamin: vitamind is (gone|back).*\[VIT-502\]\n)*\Z")
        self.assertEqual(self.status()["devices"][0]["overdue"], 0)
