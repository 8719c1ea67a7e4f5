#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The chart's DaemonSet and two pods that share a GPU: run by podman, over the software device."""
import copy
import json
import os
import pathlib
import re
import subprocess
import sys
import time
import unittest

import yaml

from kubernetes_image_test import CONTAINERS, IMAGE, PodmanMachine
from machine import BUILD, SOURCE, tool
import seed
from time_limit import time_limit, wait_until

HERE = pathlib.Path(__file__).resolve().parent
sys.path[:0] = [str(HERE / "kubernetes"), str(SOURCE / "deploy/kubernetes"),
                str(HERE.parent / "daemon")]
import generate  # noqa: E402
from harness import open_width  # noqa: E402
from kubectl import kubectl  # noqa: E402
from pods import Node, playable, with_allocations  # noqa: E402

STEPS = "1500"  # enough to find and stop the program on a busy machine
TRAIN = [str(BUILD / "bin/demo-train"), STEPS]
GPU = "GPU-56697461-6d69-6e00-536f-667400000000"  # the software device's
SOFT = [{"name": "LD_LIBRARY_PATH", "value": str(BUILD / "lib/soft")}]
DAEMON, PLUGIN = "vitamin-default-vitamind", "vitamin-default-device-plugin"


def hash_of(text):
    return re.search(r"hash (\w+)", text)[1]


class Pods(unittest.TestCase):
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
        self.addCleanup(self.node.kubelet.stop)

    def podman(self, *words, check=True, host_pids=False):
        environment = {"CONTAINERS_CONF": "/etc/containers/host_pids.conf"} if host_pids else None
        return self.machine.run("podman", *words, check=check, timeout=200, env=environment)

    def start_daemon_set(self):
        """The chart's DaemonSet without what podman does not support, and with options for tests:
        programs that are stopped for a while are not overdue, and grants have many SM counts."""
        pool = {**generate.values_with()["pools"][0], "gpus": [f"{GPU}=4"]}
        things = generate.objects(generate.rendered(generate.values_with({"pools": [pool]})))
        pod = playable(things["DaemonSet", "vitamin-default"]["spec"]["template"], IMAGE,
                       "vitamin-default")
        # podman 4.3 fails when it removes an init container that it still takes for running.
        pod["metadata"]["annotations"]["io.podman.annotations.init.container.type"] = "always"
        pod["spec"]["restartPolicy"] = "OnFailure"  # or podman starts it over and over
        plugin = next(c for c in pod["spec"]["containers"] if c["name"] == "device-plugin")
        plugin["command"] += ["--nvidia-gpus=/none"]  # of a machine that has GPUs
        daemon = next(c for c in pod["spec"]["containers"] if c["name"] == "vitamind")
        daemon["command"] += ["--answer-within=3600", "--policy=random:max_sms=32"]
        self.node.play(pod, host_pids=True)
        self.vitamind = self.node.inspect(DAEMON)["State"]["Pid"]
        wait_until(lambda: len(self.node.kubelet.healthy("vitamin.dev/share")) == 4,
                   "four healthy shares", 60)

    def pod(self, name, namespace):
        """deploy/kubernetes/examples/half-a-gpu.yaml with the program of a test."""
        pod, _ = yaml.safe_load_all(
            (SOURCE / "deploy/kubernetes/examples/half-a-gpu.yaml").read_text())
        pod["metadata"].update(name=name, namespace=namespace)
        pod["spec"]["volumes"] = [{"name": "build", "hostPath": {"path": str(BUILD)}}]
        pod["spec"]["containers"][0].update(
            image=IMAGE, command=TRAIN, env=copy.deepcopy(SOFT),
            volumeMounts=[{"name": "build", "mountPath": str(BUILD), "readOnly": True}])
        return pod

    def status(self):
        """`vitamin status` in vitamind's container, as `kubectl exec` runs it. Not by `podman
        exec`, which enters the root of a mount namespace, which is not the container's here."""
        return json.loads(self.machine.run("nsenter", "--target", self.vitamind, "--mount",
                                           "--root", "vitamin", "status", "--json").stdout)

    def start_client(self, name, namespace):
        """The process of a pod's program, stopped at its first use of the device."""
        known = {client["process"] for client in self.status()["clients"]}
        self.node.play(playable(with_allocations(self.pod(name, namespace), self.node.kubelet)))

        def newest():
            return [client["process"] for client in self.status()["clients"]
                    if client["process"] not in known]
        process, = wait_until(newest, f"the client {name}", 60)
        self.machine.run("kill", "-STOP", process)
        return process

    def output(self, name):
        """The output of a pod's program, which must have succeeded."""
        self.assertEqual(self.podman("wait", name).stdout.strip(), "0")
        done = self.podman("logs", name)
        return done.stdout, done.stderr

    def test_two_pods_have_half_a_gpu_each_and_keep_their_bits(self):
        alone = hash_of(subprocess.run(TRAIN, text=True, capture_output=True, check=True,
                                       timeout=time_limit(120), env={
                                           "LD_LIBRARY_PATH": SOFT[0]["value"]}).stdout)
        begun = time.monotonic()
        self.start_daemon_set()
        first = self.start_client("train-a", "team-a")
        print(json.dumps({"what": "from the image to the first pod that shares",
                          "seconds": round(time.monotonic() - begun, 1)}), flush=True)
        second = self.start_client("train-b", "team-b")

        status = self.status()
        self.assertEqual({client["process"]: (client["namespace"], client["pod"],
                                              client["container"])
                          for client in status["clients"]},
                         {first: ("team-a", "train-a", "train"),
                          second: ("team-b", "train-b", "train")})
        # None of this affects running pods.
        self.node.kubelet.registered.clear()
        self.podman("restart", "--time=5", PLUGIN)
        self.node.kubelet.await_registration()
        self.node.kubelet.restart()
        self.node.kubelet.await_registration()
        self.assertEqual(len(self.node.kubelet.healthy("vitamin.dev/share")), 4)

        half, moment = status["devices"][0]["processors"] // 2, 0.02
        while len(status["clients"]) == 2:
            for client in status["clients"]:
                self.assertEqual(client["processors_most"], half)
                self.assertLessEqual(open_width(status, [client["client"]]), half)
            # Both work for a moment and are stopped while the status is read.
            self.machine.run("sh", "-c", f"kill -CONT {first} {second}; sleep {moment}; "
                             f"kill -STOP {first} {second} 2>/dev/null", check=False)
            moment *= 2
            status = self.status()
        self.machine.run("kill", "-CONT", first, second, check=False)
        for name in ("train-a-train", "train-b-train"):
            said, errors = self.output(name)
            self.assertEqual(hash_of(said), alone)
            # A program that is stopped while it waits for an answer takes vitamind for lost.
            self.assertRegex(errors, r"\A(vitamin: vitamind is (gone|back).*\[VIT-502\]\n)*\Z")
        self.assertEqual(self.status()["devices"][0]["overdue"], 0)
        self.node.kubelet.given.clear()  # both pods have ended
        self.without_the_directory_of_the_socket(alone)

    def without_the_directory_of_the_socket(self, alone):
        """The program runs, and prints one line."""
        pod = with_allocations(self.pod("train-c", "team-c"), self.node.kubelet)
        pod["spec"]["containers"][0]["volumeMounts"] = [
            mount for mount in pod["spec"]["containers"][0]["volumeMounts"]
            if mount["mountPath"] != "/run/vitamin"]
        self.node.play(playable(pod))
        said, errors = self.output("train-c-train")
        self.assertEqual(hash_of(said), alone)
        self.assertRegex(errors, r"\A.*/run/vitamin/vitamind\.sock.*\n\Z")


if __name__ == "__main__":
    unittest.main()
