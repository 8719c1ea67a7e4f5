#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The DRA driver beside a real vitamind, with fakes of the kubelet and the API server."""
import copy
import json
import pathlib
import re
import signal
import subprocess
import sys
import unittest
import uuid

from machine import BUILD, tool
from time_limit import time_limit, wait_until

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent / "kubernetes"))
from cluster import ApiServer, self_signed, slice_problems  # noqa: E402
from dra import CLASSES, NODE, DraTest, claim_of  # noqa: E402


class Published(DraTest):
    def test_the_driver_registers_and_publishes_a_valid_slice(self):
        self.start_daemon()
        self.start_driver()
        info = self.kubelet.register()
        self.assertEqual((info.type, info.name, list(info.supported_versions)),
                         ("DRAPlugin", "vitamin.dev", ["v1.DRAPlugin"]))
        wait_until(lambda: self.api.published() == ["GPU-1", "GPU-2"], what="both GPUs")
        made = self.api.slice_of()
        self.assertEqual(slice_problems(made), [])
        self.assertEqual(self.api.refused, [])
        self.assertEqual(made["spec"]["pool"],
                         {"name": NODE, "generation": 1, "resourceSliceCount": 1})
        first, second = made["spec"]["devices"]
        self.assertTrue(first["allowMultipleAllocations"])
        self.assertEqual(first["capacity"]["share"]["value"], "100")
        self.assertEqual(first["capacity"]["memory"]["value"], str(16 << 30))
        self.assertNotIn("memory", second["capacity"])
        # Without a change nothing is written.
        version = made["metadata"]["resourceVersion"]
        self.start("vitamin", "status", "--socket", self.socket)
        self.processes.pop("vitamin").wait(time_limit(30))
        self.assertEqual(self.api.slice_of()["metadata"]["resourceVersion"], version)

    def test_a_slice_is_written_once_however_the_api_server_writes_its_quantities(self):
        self.start_all(gpus=("GPU-1=125Gi",))
        self.assertEqual(self.api.slice_of()["spec"]["devices"][0]["capacity"]["memory"]["value"],
                         "134217728k")
        self.looks()
        self.assertEqual(self.api.slice_of()["metadata"]["resourceVersion"], "1")

    def test_slices_are_read_when_something_changes_here_and_after_a_registration(self):
        self.start_daemon()
        self.start_driver(api_every=3600000)
        wait_until(lambda: self.api.published() == ["GPU-1", "GPU-2"], what="both GPUs")
        self.looks()
        self.assertEqual(self.api.reads["slices"], 1)
        self.devices.offered["nvidia.com/gpu"] = ["GPU-1"]
        wait_until(lambda: self.api.published() == ["GPU-2"], what="one GPU less")
        self.looks()
        self.assertEqual(self.api.reads["slices"], 2)
        self.api.slices.clear()  # as a kubelet does that starts
        self.kubelet.register()
        wait_until(lambda: self.api.published() == ["GPU-2"], what="a slice again")

    def test_an_api_server_without_the_feature_gate_is_one_line(self):
        self.api.consumable_capacity = False
        self.start_all()
        self.looks()
        self.assertEqual(self.api.slice_of()["metadata"]["resourceVersion"], "1")
        self.assertEqual(self.log().count("Enable the feature gate DRAConsumableCapacity"), 1)

    def test_a_slice_ends_with_its_node(self):
        self.start_all()
        self.end("vitamind")
        wait_until(lambda: self.api.published() == [], what="an empty slice")
        owner, = self.api.slice_of()["metadata"]["ownerReferences"]
        self.assertEqual((owner["kind"], owner["name"], owner["uid"]),
                         ("Node", NODE, "uid-of-node"))

    def test_wrong_slices_are_found(self):
        self.start_all()
        good = self.api.slice_of()
        for change, said in {
            lambda it: it["spec"]["devices"][0].update(name="GPU_1"): "no DNS label",
            lambda it: it["spec"]["devices"].append(it["spec"]["devices"][0]): "not unique",
            lambda it: it["spec"]["devices"][0].pop("allowMultipleAllocations"): "one allocation",
            lambda it: it["spec"]["devices"][0]["capacity"]["share"]["requestPolicy"].update(
                default="200"): "200",
            lambda it: it["spec"].update(nodeNames=[NODE]): "nodeNames",
            lambda it: it["spec"].pop("pool"): "'pool' is a required property",
        }.items():
            bad = copy.deepcopy(good)
            change(bad)
            self.assertIn(said, " ".join(slice_problems(bad)))

    def test_a_gpu_of_another_driver_is_published_once(self):
        other = {"apiVersion": "resource.k8s.io/v1", "kind": "ResourceSlice",
                 "metadata": {"name": "node-1-gpu.nvidia.com", "resourceVersion": "1"},
                 "spec": {"driver": "gpu.nvidia.com", "nodeName": NODE,
                          "pool": {"name": NODE, "generation": 1, "resourceSliceCount": 1},
                          "devices": [{"name": "gpu-0", "attributes": {
                              "uuid": {"string": "GPU-1"}}}]}}
        self.assertEqual(slice_problems(other), [])
        self.api.slices["node-1-gpu.nvidia.com"] = other
        self.start_all()
        self.assertEqual(self.api.published(), ["GPU-2"])
        self.assertEqual(self.log().count("GPU-1 is also published by gpu.nvidia.com"), 1)
        del self.api.slices["node-1-gpu.nvidia.com"]
        wait_until(lambda: self.api.published() == ["GPU-1", "GPU-2"], what="both GPUs")
        self.assertEqual(self.api.slice_of()["spec"]["pool"]["generation"], 2)

    def test_a_gpu_of_a_device_plugin_is_not_published(self):
        self.devices.offered["nvidia.com/gpu"] = ["GPU-1"]
        self.start_all()
        self.assertEqual(self.api.published(), ["GPU-2"])
        self.assertEqual(self.log().count("GPU-1 is also offered as nvidia.com/gpu, so"), 1)
        # The plugin is restarted while a pod has a replica of its GPU.
        self.devices.pods["team-a", "train"] = {"nvidia.com/gpu": ["GPU-1::0"]}
        self.devices.offered.clear()
        wait_until(lambda: "nvidia.com/gpu (in use by pod team-a/train), so" in self.log(),
                   what="a line that names the pod")
        self.looks()
        self.assertEqual(self.api.published(), ["GPU-2"])
        self.devices.pods.clear()
        wait_until(lambda: self.api.published() == ["GPU-1", "GPU-2"], what="both GPUs")

    def test_a_gpu_that_the_node_does_not_have_is_not_published(self):
        gpu = self.directory / "gpus/0000:01:00.0"
        gpu.mkdir(parents=True)
        (gpu / "information").write_text("Model: \t NVIDIA H200\nGPU UUID: \t GPU-2\n")
        self.start_all()
        self.assertEqual(self.api.published(), ["GPU-2"])
        self.looks()
        self.assertEqual(self.log().count("GPU-1 is not published: this node has no such GPU"), 1)
        self.assertIn("this node has no device gpu-1",
                      self.refused(self.api.add_claim(claim_of("a", 25))))

    def test_without_vitamind_nothing_is_published_and_nothing_prepared(self):
        claim = self.api.add_claim(claim_of("a", 25))
        self.start_all()
        self.end("vitamind")
        wait_until(lambda: self.api.published() == [], what="an empty slice")
        self.assertIn("no vitamind answers", self.refused(claim))
        self.assertFalse(self.cdi(claim).exists())
        self.start_daemon()
        wait_until(lambda: self.api.published() == ["GPU-1", "GPU-2"], what="both GPUs")
        self.prepared(claim)

    def test_containers_know_whether_they_may_run_without_vitamind(self):
        def variables(name):
            claim = self.api.add_claim(claim_of(name, 25))
            self.prepared(claim)
            made = json.loads(self.cdi(claim).read_text())
            return made["devices"][0]["containerEdits"]["env"]
        self.start_all()
        self.assertNotIn("VITAMIN_ABSENT=75", variables("a"))
        self.end("vitamind")
        wait_until(lambda: self.api.published() == [], what="an empty slice")
        (self.directory / "vitamin.toml").write_text('[failure]\nabsent = "closed"\n' + CLASSES)
        self.start_daemon()
        wait_until(lambda: self.api.published() == ["GPU-1", "GPU-2"], what="both GPUs")
        self.assertIn("VITAMIN_ABSENT=75", variables("b"))

    def test_a_conflict_and_a_silent_api_server_are_tried_again(self):
        self.start_all()
        self.api.conflicts = 3
        self.end("vitamind")
        wait_until(lambda: self.api.published() == [], what="an empty slice")
        self.assertIn("the API server answers 409", self.log())
        self.api.close()
        wait_until(lambda: "does not answer" in self.log(), what="a line about the API server")
        self.assertIsNone(self.processes["vitamin-dra-driver"].poll())

    def test_the_drivers_role_allows_what_it_asks_for_and_no_more(self):
        granted, self.api.granted = self.api.granted, set()
        claim = self.api.add_claim(claim_of("a", 25))
        self.start_daemon()
        self.start_driver()
        self.kubelet.register()
        wait_until(lambda: "the API server answers 403 to GET" in self.log(), what="a line")
        self.assertIn("the API server answers 403", self.refused(claim))
        self.assertIsNone(self.api.published())
        self.api.granted = granted
        wait_until(lambda: self.api.published() == ["GPU-1", "GPU-2"], what="both GPUs")
        self.prepared(claim)
        self.end("vitamind")
        wait_until(lambda: self.api.published() == [], what="an empty slice")
        self.assertEqual(self.api.used, granted)

    def test_tls_and_the_token_of_the_service_account(self):
        tool("openssl")
        self.api.close()
        made = self_signed(self.directory)
        self.api = ApiServer(token="secret", certificate=made)
        (self.directory / "token").write_text("wrong\n")
        self.start_daemon()
        self.start_driver("--ca", made[0], "--token", self.directory / "token")
        wait_until(lambda: "answers 401" in self.log(), what="a line about the token")
        (self.directory / "token").write_text("secret\n")
        wait_until(lambda: self.api.published() == ["GPU-1", "GPU-2"], what="both GPUs")
        self.end("vitamin-dra-driver")
        self.api.slices.clear()
        self.start_driver("--token", self.directory / "token")  # the certificate is not trusted
        wait_until(lambda: "does not answer: SSL" in self.log(),
                   what="a line about the certificate")
        self.assertIsNone(self.api.published())


class Prepared(DraTest):
    def test_a_claim_becomes_a_cdi_device_and_is_known_to_vitamind(self):
        self.start_all()
        claim = self.api.add_claim(claim_of("a", 25, 50, memory="2Gi",
                                            parameters={"class": "serving"}))
        uid = claim["metadata"]["uid"]
        devices = self.prepared(claim)
        self.assertEqual([(list(d.request_names), d.pool_name, d.device_name) for d in devices],
                         [(["r0"], NODE, "gpu-1"), (["r1"], NODE, "gpu-1")])
        # Two requests of one device: what tells them apart is the share.
        self.assertEqual([device.share_id for device in devices],
                         [each["shareID"] for each in
                          claim["status"]["allocation"]["devices"]["results"]])
        self.assertEqual(list(devices[1].cdi_device_ids),
                         [f"vitamin.dev/claim=claim-{uid}-1", "nvidia.com/gpu=GPU-1"])
        checked = subprocess.run([BUILD / "bin/vitamin", "cdi", "check", self.cdi(claim)],
                                 text=True, capture_output=True)
        self.assertEqual((checked.returncode, checked.stdout, checked.stderr), (0, "", ""))
        made = json.loads(self.cdi(claim).read_text())
        edits = made["devices"][0]["containerEdits"]
        variables = dict(line.split("=", 1) for line in edits["env"])
        self.assertEqual(variables["VITAMIN_SHARE"], "25")
        self.assertEqual(variables["VITAMIN_JOB"], f"{uid}.0")
        self.assertEqual(variables["VITAMIN_CLASS"], "serving")
        self.assertIn("libvitamin_", variables["LD_PRELOAD"])
        known = {each["claim"]: each for each in self.status()["claims"]}
        self.assertEqual(known[f"{uid}.1"],
                         {"claim": f"{uid}.1", "pods": ["pod-1"], "share": 50, "class": "serving",
                          "memory": 2 << 30, "devices": ["GPU-1"]})
        self.assertEqual(self.kubelet.unprepare(claim)[uid].error, "")
        self.assertFalse(self.cdi(claim).exists())
        self.assertEqual(self.claims(), {})

    def test_a_program_of_a_claim_is_kept_to_its_share(self):
        self.start_all()
        claim = self.api.add_claim(claim_of("a", 25, pods=()))
        self.prepared(claim)
        variables = dict(line.split("=", 1) for line in json.loads(
            self.cdi(claim).read_text())["devices"][0]["containerEdits"]["env"])
        self.start_member(variables["VITAMIN_JOB"])
        wait_until(lambda: self.status()["clients"], what="the member")
        client, = self.status()["clients"]
        processors = self.status()["devices"][0]["processors"]
        self.assertEqual(client["processors_most"], processors // 4)
        self.assertEqual(client["job"], f"{claim['metadata']['uid']}.0")

    def test_repeated_requests_have_no_further_effect(self):
        self.start_all()
        claim = self.api.add_claim(claim_of("a", 60))
        uid = claim["metadata"]["uid"]
        first = self.prepared(claim)
        text = self.cdi(claim).read_text()
        self.api.claims.clear()  # the driver must not ask the API server again
        self.assertEqual(self.prepared(claim), first)
        self.assertEqual(self.cdi(claim).read_text(), text)
        self.assertEqual(self.claims(), {f"{uid}.0": 60})
        for _ in range(2):
            self.assertEqual(self.kubelet.unprepare(claim)[uid].error, "")
        self.assertEqual(self.claims(), {})
        never = claim_of("b", 10)
        self.assertEqual(self.kubelet.unprepare(never)[never["metadata"]["uid"]].error, "")

    def test_restarts_of_the_driver_of_vitamind_and_of_the_node_forget_nothing(self):
        self.start_all()
        claim = self.api.add_claim(claim_of("a", 60, pods=()))
        uid = claim["metadata"]["uid"]
        first = self.prepared(claim)
        self.start_member(f"{uid}.0")
        client, = wait_until(self.clients, what="a client of the claim")
        self.end("vitamin-dra-driver")
        self.api.close()  # the driver restarts without an API server
        self.start_driver()
        self.kubelet.register()
        self.assertEqual(self.prepared(claim), first)
        self.assertEqual(self.clients(), [client])
        self.end("vitamind")
        self.start_daemon()
        wait_until(lambda: self.claims() == {f"{uid}.0": 60}, what="that vitamind is told again")
        wait_until(lambda: self.clients() == [client], what="the program as before", plenty=30)
        # A node that was restarted has an empty /var/run/cdi.
        self.cdi(claim).unlink()
        self.assertEqual(self.prepared(claim), first)
        self.assertTrue(self.cdi(claim).exists())
        self.assertEqual(self.end("vitamin-dra-driver", signal.SIGTERM), 0)
        self.start_driver()
        self.kubelet.register()
        self.assertEqual(self.kubelet.unprepare(claim)[uid].error, "")
        self.assertEqual(list((self.directory / "plugin").glob("*.json")), [])

    def test_a_kubelet_that_comes_back_to_empty_directories_is_served(self):
        self.start_all()
        claim = self.api.add_claim(claim_of("a", 60))
        first = self.prepared(claim)
        for socket in [*(self.directory / "registry").glob("*"),
                       self.directory / "plugin/dra.sock"]:
            socket.unlink()
        self.assertEqual(self.kubelet.register().name, "vitamin.dev")
        self.assertEqual(self.prepared(claim), first)

    def test_of_two_drivers_one_serves_and_the_other_when_that_one_ends(self):
        self.start_all()
        first = self.processes["vitamin-dra-driver"].pid
        self.start_driver(known_as="second")
        wait_until(lambda: "waits until it ends" in self.log("second"), what="a line that it waits")
        self.assertRegex(self.log("second"),
                         fr"another vitamin-dra-driver \(.+, process {first}\) serves")
        claim = self.api.add_claim(claim_of("a", 60))
        devices = self.prepared(claim)
        self.api.close()  # the second one knows the claim from the first
        self.end("vitamin-dra-driver")
        wait_until(lambda: "claims were prepared before" in self.log("second"), what="the second")
        self.kubelet.register()
        self.assertEqual(self.prepared(claim), devices)
        self.assertEqual(self.log("second").count("waits until it ends"), 1)
        self.start_driver(known_as="third")
        wait_until(lambda: "waits until it ends" in self.log("third"), what="a line that it waits")
        self.assertEqual(self.end("third", signal.SIGTERM), 0)

    def test_a_damaged_file_is_reported_and_the_claim_prepared_again(self):
        self.start_all()
        claim = self.api.add_claim(claim_of("a", 60))
        first = self.prepared(claim)
        self.end("vitamin-dra-driver")
        file = self.directory / f"plugin/claim-{claim['metadata']['uid']}.json"
        file.write_text(file.read_text()[:40])
        self.start_driver()
        self.kubelet.register()
        self.assertEqual(self.prepared(claim), first)
        self.assertEqual(self.log().count("is damaged"), 1)

    def test_a_claim_of_a_running_pod_whose_file_is_damaged_is_not_forgotten(self):
        self.start_all()
        claim = self.api.add_claim(claim_of("a", 60, memory="2Gi"))
        gone = self.api.add_claim(claim_of("b", 10))
        uid = claim["metadata"]["uid"]
        self.prepared(claim)
        self.prepared(gone)
        self.end("vitamin-dra-driver")
        for each in (claim, gone):
            (self.directory / f"plugin/claim-{each['metadata']['uid']}.json").write_text("{")
        del self.api.claims["team-a", "b"]
        self.devices.claims["team-a", "pod-1"] = [("team-a", "other"), ("team-a", "a")]
        self.api.add_claim(claim_of("other", 5))
        # The kubelet prepares nothing for a pod that runs.
        self.start_driver()
        wait_until(lambda: "claim team-a/a was read again" in self.log(), what="the claim")
        self.end("vitamind")
        self.start_daemon()
        wait_until(lambda: self.claims() == {f"{uid}.0": 60}, what="that vitamind is told again")
        self.assertEqual(self.status()["claims"][0]["memory"], 2 << 30)
        self.kubelet.register()
        for each in (claim, gone):
            self.assertEqual(self.kubelet.unprepare(each)[each["metadata"]["uid"]].error, "")
        self.assertEqual(list((self.directory / "plugin").glob("*.json")), [])

    def test_a_damaged_claim_is_read_again_after_errors(self):
        self.start_all()
        claim = self.api.add_claim(claim_of("a", 60))
        self.prepared(claim)
        self.end("vitamin-dra-driver")
        file = self.directory / f"plugin/claim-{claim['metadata']['uid']}.json"
        kept = file.read_text()
        file.write_text("{")
        self.devices.claims["team-a", "pod-1"] = [("team-a", "a")]
        self.api.claims_fail = 429
        self.start_driver()
        for status in (429, 503, 403):
            self.api.claims_fail = status
            self.looks()
        allocation = claim["status"].pop("allocation")
        self.api.claims_fail = None
        self.looks()
        self.assertEqual(file.read_text(), "{")
        claim["status"]["allocation"] = allocation
        wait_until(lambda: "claim team-a/a was read again" in self.log(), what="the claim")
        self.assertEqual(json.loads(file.read_text()), json.loads(kept))

    def test_a_claim_that_vitamind_refuses_is_one_line(self):
        self.start_all()
        claim = self.api.add_claim(claim_of("a", 60))
        self.prepared(claim)
        self.end("vitamin-dra-driver")
        kept = self.directory / f"plugin/claim-{claim['metadata']['uid']}.json"
        more = {**json.loads(kept.read_text()), "uid": str(uuid.uuid4()), "name": "b"}
        kept.with_name(f"claim-{more['uid']}.json").write_text(json.dumps(more))
        self.start_driver()
        wait_until(lambda: "claim team-a/b: device GPU-1 is over-committed" in self.log(),
                   what="a line about the second claim")
        self.looks()
        self.assertEqual(self.log().count("is over-committed"), 1)
        self.kubelet.register()
        self.kubelet.unprepare(claim)
        wait_until(lambda: "claim team-a/b: vitamind knows it now" in self.log(),
                   what="that vitamind takes it")
        self.assertEqual(self.claims(), {f"{more['uid']}.0": 60})


class Refused(DraTest):
    def test_claims_that_exceed_a_gpu_are_refused(self):
        self.start_all()
        first = self.api.add_claim(claim_of("a", 60))
        second = self.api.add_claim(claim_of("b", 50))
        third = self.api.add_claim(claim_of("c", 40, device="gpu-2"))
        self.prepared(first)
        answers = self.kubelet.prepare(second, third)
        self.assertIn("device GPU-1 is over-committed: other claims have 60 percent of it, and "
                      "this one asks for 50", answers[second["metadata"]["uid"]].error)
        self.assertEqual(answers[third["metadata"]["uid"]].error, "")
        self.assertFalse(self.cdi(second).exists())
        self.assertEqual(sorted(self.claims().values()), [40, 60])
        self.assertEqual(self.kubelet.unprepare(first)[first["metadata"]["uid"]].error, "")
        self.prepared(second)

    def test_claims_that_exceed_the_memory_of_a_gpu_are_refused(self):
        self.start_all()  # GPU-1 has 16 GiB
        first = self.api.add_claim(claim_of("a", 20, memory="10Gi"))
        self.prepared(first)
        second = self.api.add_claim(claim_of("b", 20, memory="8Gi"))
        self.assertIn("device GPU-1 is over-committed: other claims have 10240 MiB of its 16384 "
                      "MiB of memory, and this one asks for 8192 MiB", self.refused(second))
        self.prepared(self.api.add_claim(claim_of("c", 20)))  # which bounds none
        self.kubelet.unprepare(first)
        self.prepared(second)

    def test_parameters_choose_a_class_or_are_refused(self):
        self.start_all()
        for name, parameters, wanted in [
            ("a", {"class": "chat"}, "chat"), ("b", {"slo": "90ms"}, "chat"),
            ("c", {"slo": "50ms"}, "serving"), ("d", {"class": "serving", "slo": "1s"}, "serving"),
            ("e", {"isolation": "shared"}, ""),
        ]:
            claim = self.api.add_claim(claim_of(name, 5, parameters=parameters))
            self.prepared(claim)
            known = {each["claim"]: each["class"] for each in self.status()["claims"]}
            self.assertEqual(known[f"{claim['metadata']['uid']}.0"], wanted, parameters)
        for name, parameters, said in [
            ("f", {"class": "servng"}, "vitamin.toml has no class 'servng'; it has serving, chat"),
            ("g", {"slo": "10ms"}, "no class of vitamin.toml has a target of 10 ms or less"),
            ("h", {"slo": "soon"}, "parameters.slo: 'soon' is no duration"),
            ("i", {"isolation": "exclusive"}, "isolation is exclusive, but 5 percent"),
            ("j", {"clas": "chat"}, "parameters.clas: unknown; known are class, slo and isolation"),
        ]:
            claim = self.api.add_claim(claim_of(name, 5, parameters=parameters))
            self.assertIn(said, self.refused(claim))
            self.assertFalse(self.cdi(claim).exists())

    def test_claims_that_differ_from_the_kubelets_request_are_refused(self):
        self.start_all()
        self.assertIn("the API server answers 404", self.refused(claim_of("gone", 5)))
        old = self.api.add_claim(claim_of("a", 5))
        self.api.add_claim(claim_of("a", 5))
        self.assertIn("it was deleted, and another one has its name", self.refused(old))
        waiting = self.api.add_claim(claim_of("b", 5))
        del waiting["status"]["allocation"]
        self.assertIn("the claim is not allocated", self.refused(waiting))
        elsewhere = self.api.add_claim(claim_of("c", 5, device="gpu-9"))
        self.assertIn("this node has no device gpu-9", self.refused(elsewhere))
        # One line each on the driver's stderr.
        self.assertEqual(len(re.findall(r"(?m)^vitamin-dra-driver: claim team-a/", self.log())), 4)

    def test_a_node_without_the_requested_mps_refuses(self):
        self.start_daemon()
        self.start_driver("--mps", self.directory / "mps")
        self.kubelet.register()
        claim = self.api.add_claim(claim_of("a", 25))
        self.assertIn(f"no MPS runs at {self.directory}/mps", self.refused(claim))
        (self.directory / "mps").mkdir()
        (self.directory / "mps/control").touch()
        self.prepared(claim)
        self.assertIn(f"CUDA_MPS_PIPE_DIRECTORY={self.directory}/mps", self.cdi(claim).read_text())

    def test_a_memory_for_all_gpus_is_that_of_those_that_name_none(self):
        self.start_daemon()
        self.start_driver("--gpu-memory", "80Gi")
        self.kubelet.register()
        wait_until(lambda: self.api.published() == ["GPU-1", "GPU-2"], what="both GPUs")
        self.assertEqual([device["capacity"]["memory"]["value"]
                          for device in self.api.slice_of()["spec"]["devices"]],
                         [str(16 << 30), str(80 << 30)])

    def test_invalid_options_are_refused(self):
        for words, said in [((), "this is no pod of a cluster"),
                            (("--api-server", "http://x", "--gpu", "GPU-1=much"), "no whole quan"),
                            (("--api-server", "http://x", "--gpu", "GPU-1=8"), "write 141Gi"),
                            (("--api-server", "http://x", "--gpu-memory", "141"), "write 141Gi"),
                            (("--api-server", "http://x", "--gpu", "="), "no UUID of a GPU"),
                            (("--api-server", "http://x", "--gpu="), "no UUID of a GPU"),
                            (("--gpu-kind=", "--every=1"), "--every: Value 1 not in range")]:
            done = subprocess.run([BUILD / "bin/vitamin-dra-driver", *words], text=True,
                                  capture_output=True, env={"NODE_NAME": NODE})
            self.assertEqual((done.returncode, done.stderr.count("\n")), (1, 1))
            self.assertIn("[VIT-101]", done.stderr)
            self.assertRegex(done.stderr, said)


if __name__ == "__main__":
    unittest.main()
