#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Containers that podman starts from claims that the DRA driver prepared; a software device.

Kubelet and API server are fakes; the containers are in control groups of pods.
"""
import json
import os
import pathlib
import re
import subprocess
import sys
import unittest
import uuid

import containers_test
from kubernetes_image_test import CONTAINERS, GROUPS
from machine import BUILD
from time_limit import time_limit, wait_until

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent / "kubernetes"))
from cluster import ApiServer, DraKubelet, PodResources  # noqa: E402
from dra import NODE, claim_of  # noqa: E402

GPU = "GPU-56697461-6d69-6e00-536f-667400000000"  # the software device's
SOFT = {"LD_LIBRARY_PATH": str(BUILD / "lib/soft")}
KUBELET = "var/lib/kubelet"


def train(steps):
    return [str(BUILD / "bin/demo-train"), str(steps)]


def hash_of(text):
    return re.search(r"hash (\w+)", text)[1]


class Claimed(containers_test.PodmanTest):
    LIBRARIES = (*containers_test.PodmanTest.LIBRARIES,
                 "libstdc++.so.6", "libgcc_s.so.1")  # of the program's kernels
    NETWORK = True  # for the driver to reach the fake of the API server

    def setUp(self):
        super().setUp()
        self.pods = []
        self.machine.run("sh", "-ec", GROUPS)
        self.addCleanup(self.remove_groups)
        self.machine.write("/etc/containers/containers.conf", CONTAINERS)
        self.machine.run("mkdir", "-p", "/var/run/cdi", *(f"/{KUBELET}/{name}" for name in (
            "plugins/vitamin.dev", "plugins_registry", "pod-resources")))
        self.api = ApiServer()
        self.addCleanup(self.api.close)
        self.devices = PodResources(self.machine.root / KUBELET / "pod-resources/kubelet.sock")
        self.addCleanup(self.devices.close)
        self.start_daemon()
        self.log = open(self.machine.root / "tmp/driver.log", "w+", encoding="utf-8")
        self.addCleanup(self.log.close)
        driver = self.machine.start(
            BUILD / "bin/vitamin-dra-driver", "--api-server", self.api.url, "--gpu", f"{GPU}=16Gi",
            "--nvidia-gpus=/none", "--gpu-kind", "", "--every=20", "--api-every=3600000",
            f"--pod-resources=/{KUBELET}/pod-resources/kubelet.sock", log=self.log,
            env={"NODE_NAME": NODE})
        self.addCleanup(driver.wait)
        self.addCleanup(driver.kill)
        self.kubelet = DraKubelet(self.machine.root / KUBELET / "plugins_registry",
                                  self.machine.root)
        self.kubelet.register()

    def remove_groups(self):
        """Ends what runs in the pods; their control groups are those of all machines."""
        for pod in self.pods:
            self.machine.run("sh", "-c", f"""
                for group in $(find /sys/fs/cgroup -depth -type d -path '*/pod{pod}*'); do
                  xargs -r kill -9 <$group/cgroup.procs
                  while grep -q . $group/cgroup.procs; do sleep 0.01; done
                  rmdir $group
                done""", check=False)

    def words(self, claim, pod, steps):
        """The command that starts a program in a container of this claim and pod."""
        device, = self.kubelet.prepare(claim)[claim["metadata"]["uid"]].devices
        self.pods.append(pod)
        return self.podman_words(
            *device.cdi_device_ids, *train(steps), options=(
                "--cgroups=enabled", f"--cgroup-parent=/pod{pod}", f"--volume={BUILD}:{BUILD}:ro",
                *(f"--env={name}={value}" for name, value in SOFT.items())))

    def told(self, verb):
        return json.loads(self.machine.run("vitamin", verb, "--json").stdout)

    def test_a_container_has_the_share_and_the_memory_of_its_claim(self):
        alone = subprocess.run(train(20), text=True, capture_output=True, check=True, env=SOFT,
                               timeout=time_limit(60)).stdout
        pod = str(uuid.uuid4())
        claim = self.api.add_claim(claim_of("a", 25, memory="2Gi", pods=(pod,),
                                            device=GPU.lower()))
        done = self.machine.run(*self.words(claim, pod, 20))
        self.assertEqual(hash_of(done.stdout), hash_of(alone))
        self.assertNotIn("vitamin:", done.stderr)
        record, = wait_until(lambda: self.told("accounting")["clients"], what="the record")
        uid = claim["metadata"]["uid"]
        self.assertEqual(record["job"], f"{uid}.0")
        self.assertIn((f"of claim {uid}.0", 25),
                      [(each["whose"], each["share"]) for each in record["shares"]])
        self.assertGreater(record["memory_peak_bytes"], 0)  # known where it is bounded

    def test_a_pod_made_anew_under_its_name_gets_the_share_of_its_claim(self):
        first, second, anew = (str(uuid.uuid4()) for _ in range(3))
        claim = self.api.add_claim(claim_of("a", 25, pods=(first, second), device=GPU.lower()))
        words = self.words(claim, anew, 100_000)  # until it is ended
        for name in ("x", "y"):
            self.devices.claims["team-a", name] = [("team-a", "a")]
        enough = self.devices.asked + 5
        wait_until(lambda: self.devices.asked >= enough, what="further looks of the driver")
        # What the kubelet says does not change.
        claim["status"]["reservedFor"][1]["uid"] = anew
        container = self.machine.start(*words)
        self.addCleanup(container.wait)
        self.addCleanup(container.kill)
        job = f"{claim['metadata']['uid']}.0"
        client, = wait_until(lambda: [client for client in self.told("status")["clients"]
                                      if client["job"] == job], "the share of the new pod", 60)
        self.assertEqual(client["pod_uid"], anew)
        self.assertEqual(client["processors_most"],
                         self.told("status")["devices"][0]["processors"] // 4)


if __name__ == "__main__":
    unittest.main()
