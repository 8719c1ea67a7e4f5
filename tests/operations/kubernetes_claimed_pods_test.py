#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The DaemonSet of overlays/dra and pods with claims of one GPU: run by podman, over the software
device. The driver, in its container, prepares the claims for a fake of the kubelet."""
import json
import os
import pathlib
import sys
import unittest
import uuid

import yaml

from machine import BUILD, SOURCE, tool
from time_limit import wait_until

sys.path[:0] = [str(pathlib.Path(__file__).resolve().parent / "kubernetes"),
                str(SOURCE / "deploy/kubernetes")]
import generate  # noqa: E402
from cluster import ApiServer, DraKubelet, PodResources, self_signed  # noqa: E402
from dra import NODE, claim_of  # noqa: E402
from played import DRIVER, GPU, IMAGE, POOL, TRAIN, PlayedTest, hash_alone  # noqa: E402
from pods import with_service_account  # noqa: E402

EXAMPLES = SOURCE / "deploy/kubernetes/examples"
KUBELET = "var/lib/kubelet"
TOKEN = "of the service account"
ACCOUNT = "/srv/service-account"
MEMORY = os.environ["MEMORY"]

# What NVIDIA's toolkit writes on a node, for the software device.
VENDOR = {"cdiVersion": "0.3.0", "kind": "nvidia.com/gpu", "devices": [{"name": GPU,
          "containerEdits": {"env": [f"LD_LIBRARY_PATH={DRIVER}"], "mounts": [
              {"hostPath": str(BUILD), "containerPath": str(BUILD), "options": ["ro", "bind"]}]}}]}


def claim_from(template, name, uid):
    """The claim of a pod, from an example's template, as the cluster makes and allocates it."""
    devices = template["spec"]["spec"]["devices"]
    capacity = devices["requests"][0]["exactly"]["capacity"]["requests"]
    parameters = [each["opaque"]["parameters"] for each in devices.get("config", [])]
    return claim_of(name, capacity["share"], memory=capacity.get("memory"), pods=(uid,),
                    parameters=parameters[0] if parameters else None, device=GPU.lower())


class ClaimedPods(PlayedTest):
    def setUp(self):
        super().setUp()
        tool("openssl")
        made = self_signed(self.machine.root / "tmp")
        self.machine.write(f"{ACCOUNT}/ca.crt", made[0].read_text())
        self.machine.write(f"{ACCOUNT}/token", TOKEN)
        self.api = ApiServer(TOKEN, made, network_of=self.machine.init)
        self.addCleanup(self.api.close)
        self.devices = PodResources(self.machine.root / KUBELET / "pod-resources/kubelet.sock")
        self.addCleanup(self.devices.close)
        self.kubelet = DraKubelet(self.machine.root / KUBELET / "plugins_registry",
                                  self.machine.root)
        self.machine.write("/etc/cdi/nvidia.json", json.dumps(VENDOR))

    def start_daemon_set(self):
        """Of overlays/dra, with the class that share-and-memory.yaml asks for."""
        example = yaml.safe_load((EXAMPLES / "share-and-memory.values.yaml").read_text())
        pool = {"gpus": [f"{GPU}=16Gi"], "config": example["pools"][0]["config"]}
        values = generate.overlay_values(
            generate.merged(generate.KUSTOMIZATIONS["overlays/dra"], {"pools": [pool]}))
        self.play_daemon_set(values, "dra-driver",
                             lambda pod: with_service_account(pod, self.api, ACCOUNT, NODE))
        self.kubelet.register()
        wait_until(lambda: self.api.published() == [GPU], "the GPU in a slice", 60)
        self.assertEqual(self.api.refused, [])

    def claimed(self, example, name, command, **capacity):
        """A pod of an example with a claim that is allocated: the pod, and its claim."""
        template, pod = yaml.safe_load_all((EXAMPLES / example).read_text())
        template["spec"]["spec"]["devices"]["requests"][0]["exactly"]["capacity"][
            "requests"].update(capacity)
        pod["metadata"].update(name=name, namespace="team-a", uid=str(uuid.uuid4()))
        pod["spec"]["containers"][0].update(image=IMAGE, command=command)
        self.podman_machine.pods.append(pod["metadata"]["uid"])
        return pod, self.api.add_claim(claim_from(template, name, pod["metadata"]["uid"]))

    def prepare(self, claim):
        """CDI devices of the claim, from the driver in its container."""
        answer = self.kubelet.prepare(claim)[claim["metadata"]["uid"]]
        self.assertEqual(answer.error, "")
        device, = answer.devices
        return list(device.cdi_device_ids)

    def start_client(self, pod, claim):
        devices = self.prepare(claim)
        return self.stopped_client(lambda: self.node.play_claimed(pod, devices))

    def jobs(self):
        return sorted(client["job"] for client in self.status()["clients"])

    def known(self):
        """Percent and class of the claims that vitamind knows, by UID."""
        return {each["claim"].removesuffix(".0"): (each["share"], each["class"])
                for each in self.status()["claims"]}

    def test_pods_with_claims_have_their_shares_and_memory_and_keep_their_bits(self):
        alone = hash_alone()
        self.start_daemon_set()
        quarter = self.claimed("quarter-of-a-gpu.yaml", "train-a", TRAIN)
        serving = self.claimed("share-and-memory.yaml", "train-b", TRAIN)
        first, second = self.start_client(*quarter), self.start_client(*serving)
        self.assertEqual(self.named(), {first: ("team-a", "train-a", "serve"),
                                        second: ("team-a", "train-b", "serve")})
        claims = [claim for _, claim in (quarter, serving)]
        uids = [claim["metadata"]["uid"] for claim in claims]
        known = dict(zip(uids, ((25, ""), (30, "serving"))))
        self.assertEqual(self.known(), known)
        jobs = sorted(f"{uid}.0" for uid in uids)
        self.assertEqual(self.jobs(), jobs)
        self.not_disturbed(claims, known)
        self.restart_vitamind([first, second])
        wait_until(lambda: self.known() == known, "that vitamind knows the claims again", 60)
        wait_until(lambda: self.jobs() == jobs, "the clients of the claims", 60)

        self.check_shares({first: 25, second: 30})
        self.check_bits(("train-a-serve", "train-b-serve"), alone)
        for uid, error in self.kubelet.unprepare(*claims).items():
            self.assertEqual(error.error, "", uid)
        self.assertEqual(self.known(), {})
        self.memory_of_a_claim()

    def not_disturbed(self, claims, known):
        """None of this affects running pods: a claim that does not fit, a driver that is restarted,
        a kubelet that comes back to empty directories."""
        devices = [self.prepare(claim) for claim in claims]
        _, third = self.claimed("quarter-of-a-gpu.yaml", "train-c", TRAIN, share="50")
        self.assertIn("is over-committed: other claims have 55 percent of it, and this one asks "
                      "for 50", self.kubelet.prepare(third)[third["metadata"]["uid"]].error)
        self.podman("restart", "--time=5", f"{POOL}-dra-driver")
        self.kubelet.register()
        self.assertEqual([self.prepare(claim) for claim in claims], devices)
        for socket in [*(self.machine.root / KUBELET / "plugins_registry").glob("*"),
                       self.machine.root / KUBELET / "plugins/vitamin.dev/dra.sock"]:
            socket.unlink()
        self.kubelet.register()
        self.assertEqual([self.prepare(claim) for claim in claims], devices)
        self.assertEqual(self.known(), known)

    def memory_of_a_claim(self):
        """A program that takes more than its claim has is refused by its own bound."""
        words = "".join(f"{line}\\n" for line in (
            "info", f"take cuMemAlloc {40 << 20} a", f"take cuMemAlloc {30 << 20} b"))
        pod, claim = self.claimed("share-and-memory.yaml", "memory",
                                  ["sh", "-c", f"printf '{words}' | {MEMORY}"], memory="64Mi")
        self.node.play_claimed(pod, self.prepare(claim))
        said, errors = self.output("memory-serve")
        self.assertEqual(said.split("\n")[:3], [f"0 {64 << 20} {64 << 20}", "0", "2"])
        self.assertRegex(errors, r"of the quota of claim .* \(64\.0 MiB\)")


if __name__ == "__main__":
    unittest.main()
