#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The chart's DaemonSet and two pods that share a GPU: run by podman, over the software device."""
import json
import pathlib
import sys
import time
import unittest

import yaml

from machine import BUILD, SOURCE
from time_limit import wait_until

sys.path[:0] = [str(pathlib.Path(__file__).resolve().parent / "kubernetes"),
                str(SOURCE / "deploy/kubernetes")]
import generate  # noqa: E402
from played import DRIVER, GPU, IMAGE, POOL, TRAIN, PlayedTest, hash_alone, hash_of  # noqa: E402
from pods import Kubelet, playable, with_allocations  # noqa: E402

RESOURCE = "vitamin.dev/share"


class Pods(PlayedTest):
    def setUp(self):
        super().setUp()
        self.kubelet = Kubelet(self.machine.root)
        self.addCleanup(self.kubelet.stop)

    def start_daemon_set(self):
        pool = {**generate.values_with()["pools"][0], "gpus": [f"{GPU}=4"]}
        self.play_daemon_set(generate.values_with({"pools": [pool]}), "device-plugin")
        wait_until(lambda: len(self.kubelet.healthy(RESOURCE)) == 4, "four healthy shares", 60)

    def pod(self, name, namespace):
        """deploy/kubernetes/examples/half-a-gpu.yaml with the program of a test."""
        pod, _ = yaml.safe_load_all(
            (SOURCE / "deploy/kubernetes/examples/half-a-gpu.yaml").read_text())
        pod["metadata"].update(name=name, namespace=namespace)
        pod["spec"]["volumes"] = [{"name": "build", "hostPath": {"path": str(BUILD)}}]
        pod["spec"]["containers"][0].update(
            image=IMAGE, command=TRAIN, env=[{"name": "LD_LIBRARY_PATH", "value": DRIVER}],
            volumeMounts=[{"name": "build", "mountPath": str(BUILD), "readOnly": True}])
        return pod

    def start_client(self, name, namespace):
        pod = with_allocations(self.pod(name, namespace), self.kubelet)
        return self.stopped_client(lambda: self.node.play(playable(pod)))

    def test_two_pods_have_half_a_gpu_each_and_keep_their_bits(self):
        alone = hash_alone()
        begun = time.monotonic()
        self.start_daemon_set()
        first = self.start_client("train-a", "team-a")
        print(json.dumps({"what": "from the image to the first pod that shares",
                          "seconds": round(time.monotonic() - begun, 1)}), flush=True)
        second = self.start_client("train-b", "team-b")
        self.assertEqual(self.named(), {first: ("team-a", "train-a", "train"),
                                        second: ("team-b", "train-b", "train")})
        # None of this affects running pods.
        self.kubelet.registered.clear()
        self.podman("restart", "--time=5", f"{POOL}-device-plugin")
        self.kubelet.await_registration()
        self.kubelet.restart()
        self.kubelet.await_registration()
        self.restart_vitamind([first, second])
        wait_until(lambda: len(self.kubelet.healthy(RESOURCE)) == 4, "four healthy shares", 60)

        self.check_shares({first: 50, second: 50})
        self.check_bits(("train-a-train", "train-b-train"), alone)
        self.kubelet.given.clear()  # both pods have ended
        self.without_the_directory_of_the_socket(alone)

    def without_the_directory_of_the_socket(self, alone):
        """The program runs, and prints one line."""
        pod = with_allocations(self.pod("train-c", "team-c"), self.kubelet)
        pod["spec"]["containers"][0]["volumeMounts"] = [
            mount for mount in pod["spec"]["containers"][0]["volumeMounts"]
            if mount["mountPath"] != "/run/vitamin"]
        self.node.play(playable(pod))
        said, errors = self.output("train-c-train")
        self.assertEqual(hash_of(said), alone)
        self.assertRegex(errors, r"\A.*/run/vitamin/vitamind\.sock.*\n\Z")


if __name__ == "__main__":
    unittest.main()
