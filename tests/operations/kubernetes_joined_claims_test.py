#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Claims that pods join while they are prepared: what the DRA driver notices, and when it reads."""
import json
import pathlib
import sys
import unittest

from time_limit import wait_until

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent / "kubernetes"))
from dra import DraTest, claim_of  # noqa: E402


class Joined(DraTest):
    def test_a_pod_that_joins_a_claim_later_can_use_it(self):
        self.start_all()
        claim = self.api.add_claim(claim_of("a", 60))
        self.prepared(claim)
        claim["status"]["reservedFor"].append({"resource": "pods", "name": "x", "uid": "pod-2"})
        wait_until(lambda: self.status()["claims"][0]["pods"] == ["pod-1", "pod-2"],
                   what="that vitamind knows the second pod")

    def test_a_pod_that_vitamind_was_not_told_of_is_told_again(self):
        relay = self.start_relayed()
        claim = self.api.add_claim(claim_of("a", 60))
        self.prepared(claim)
        relay.fail = "pod-2"
        claim["status"]["reservedFor"].append({"resource": "pods", "name": "x", "uid": "pod-2"})
        wait_until(lambda: relay.failed >= 2, what="further tries")
        self.assertEqual(self.status()["claims"][0]["pods"], ["pod-1"])
        self.assertEqual(self.log().count("claim team-a/a: not now"), 1)
        relay.fail = None
        wait_until(lambda: "claim team-a/a: vitamind knows it now" in self.log(),
                   what="a line that it worked")
        self.assertEqual(self.status()["claims"][0]["pods"], ["pod-1", "pod-2"])

    def test_a_claim_whose_file_cannot_be_written_is_told_and_kept_later(self):
        self.start_all()
        claim = self.api.add_claim(claim_of("a", 60))
        self.prepared(claim)
        file = self.directory / f"plugin/claim-{claim['metadata']['uid']}.json"
        file.unlink()
        file.mkdir()  # which no file replaces
        claim["status"]["reservedFor"].append({"resource": "pods", "name": "x", "uid": "pod-2"})
        wait_until(lambda: self.status()["claims"][0]["pods"] == ["pod-1", "pod-2"],
                   what="that vitamind knows the second pod")
        self.looks()
        self.assertEqual(self.log().count(f"cannot write {file}"), 1)
        file.rmdir()
        wait_until(file.exists, what="the file")
        self.assertEqual(json.loads(file.read_text())["pods"], ["pod-1", "pod-2"])

    def test_a_claim_is_read_again_when_the_kubelet_names_another_pod(self):
        self.start_all(api_every=3600000)
        claim = self.api.add_claim(claim_of("a", 60))
        self.prepared(claim)
        self.devices.claims["team-a", "pod-1"] = [("team-a", "a")]
        self.looks()
        reads = self.api.reads["claims"]
        self.looks()
        self.assertEqual(self.api.reads["claims"], reads)
        claim["status"]["reservedFor"].append({"resource": "pods", "name": "x", "uid": "pod-2"})
        self.devices.claims["team-a", "x"] = [("team-a", "a")]
        wait_until(lambda: self.status()["claims"][0]["pods"] == ["pod-1", "pod-2"],
                   what="that vitamind knows the second pod")

    def test_a_claim_is_read_again_when_a_pod_made_anew_under_its_name_uses_a_gpu(self):
        relay = self.start_relayed(api_every=3600000)
        claim = self.api.add_claim(claim_of("a", 60, pods=("pod-1", "pod-2")))
        self.prepared(claim)
        for name in ("x", "y"):
            self.devices.claims["team-a", name] = [("team-a", "a")]
        self.looks()
        # The kubelet says the same of the new pod x as of the one before.
        claim["status"]["reservedFor"][1]["uid"] = "pod-3"
        relay.clients = [{"pod_uid": "pod-3", "job": ""}]
        wait_until(lambda: "pod-3" in self.status()["claims"][0]["pods"],
                   what="that vitamind knows the new pod")
        # A pod of another claim may have this one, too; each pod is a reason once.
        reads = self.api.reads["claims"]
        self.looks()
        self.assertEqual(self.api.reads["claims"], reads)
        relay.clients += [{"pod_uid": "", "job": ""}]
        self.looks()
        self.assertEqual(self.api.reads["claims"], reads)
        relay.clients += [{"pod_uid": "pod-4", "job": "another"}]
        self.looks()
        self.assertEqual(self.api.reads["claims"], reads + 1)

    def test_claims_that_cannot_be_read_are_read_ever_less_often(self):
        self.start_all()
        claim = self.api.add_claim(claim_of("a", 60))
        damaged = self.api.add_claim(claim_of("b", 10))
        self.prepared(claim)
        self.prepared(damaged)
        self.end("vitamin-dra-driver")
        (self.directory / f"plugin/claim-{damaged['metadata']['uid']}.json").write_text("{")
        for name in "ab":
            self.devices.claims["team-a", name] = [("team-a", name)]
        self.api.claims_fail = 403
        reads = self.api.reads["claims"]
        self.start_driver(api_every=3600000)
        self.looks(50)
        # 20 ms, 40 ms, ...: for 20 of a claim they would have to last for 3 hours.
        self.assertLess(self.api.reads["claims"] - reads, 40)
        self.api.claims_fail = None
        claim["status"]["reservedFor"].append({"resource": "pods", "name": "x", "uid": "pod-2"})
        # Another pod is a reason to read at once.
        self.devices.claims["team-a", "x"] = [("team-a", "a"), ("team-a", "b")]
        wait_until(lambda: "claim team-a/b was read again" in self.log(), what="the damaged claim")
        wait_until(lambda: ["pod-1", "pod-2"] in [each["pods"] for each in self.status()["claims"]],
                   what="that vitamind knows the second pod")

    def test_a_claim_of_one_pod_is_read_once(self):
        self.start_all()
        claim = claim_of("a", 60)
        claim["metadata"]["ownerReferences"] = [{"apiVersion": "v1", "kind": "Pod", "name": "a",
                                                 "uid": "pod-1", "controller": True}]
        self.api.add_claim(claim)
        self.prepared(claim)
        self.end("vitamind")
        self.start_daemon()
        wait_until(lambda: self.claims() == {f"{claim['metadata']['uid']}.0": 60},
                   what="that vitamind is told again")
        self.assertEqual(self.api.reads["claims"], 1)


if __name__ == "__main__":
    unittest.main()
