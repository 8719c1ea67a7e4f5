#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Advice to Kubernetes' scheduler from simulated pairs of recorded jobs."""
import json
import pathlib
import subprocess
import sys
import tempfile
import unittest

import yaml

from machine import BUILD, SOURCE

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent / "kubernetes"))
from schema import problems  # noqa: E402

ERRORS = SOURCE / "bench/results/policies/predictions.jsonl"


def job(name, blocks, kernel_ns, host_ns):
    """A recorded job: 200 kernels in each step, each launched after `host_ns` of host time."""
    return (f"vitamin-job 1\nname {name}\nprocessors 132\nlaunch 4000\nreturn 5000\ngap 1000\n"
            f"kernel 0 {blocks} 8 0 1 64:{2 * kernel_ns} 132:{kernel_ns} k\npart step\n"
            + f"k 0 {host_ns} {kernel_ns} -1\n" * 200 + "end 0\n")


class Advice(unittest.TestCase):
    def setUp(self):
        directory = tempfile.TemporaryDirectory(prefix="vitamin-advice-")
        self.addCleanup(directory.cleanup)
        self.directory = pathlib.Path(directory.name)
        self.files = []
        for name, *shape in (("busy", 132 * 8, 9000, 2000), ("idle", 132 * 2, 3000, 20000)):
            self.files.append(self.directory / f"{name}.job")
            self.files[-1].write_text(job(name, *shape))

    def advise(self, *words):
        return subprocess.run(
            [sys.executable, SOURCE / "deploy/kubernetes/advise.py", "--vitamin",
             BUILD / "bin/vitamin", "--seconds", "1",
             *(word for file in self.files for word in ("--job", file)), *words],
            text=True, capture_output=True)

    def pod(self, name):
        path = self.directory / "pod.yaml"
        path.write_text(yaml.safe_dump({
            "apiVersion": "v1", "kind": "Pod",
            "metadata": {"name": "p", "labels": {"vitamin.dev/job": name}},
            "spec": {"containers": [{"name": "main", "image": "x"}]}}))
        return path

    def test_pairs_are_predicted_with_the_measured_error_beside(self):
        done = self.advise("--errors", ERRORS)
        self.assertEqual(done.returncode, 0, done.stderr)
        pairs = {tuple(pair["jobs"]): pair for pair in json.loads(done.stdout)["pairs"]}
        self.assertEqual(set(pairs), {("busy", "busy"), ("busy", "idle"), ("idle", "idle")})
        # Two jobs that each fill the GPU take twice as long; one that waits for its host does not.
        self.assertFalse(pairs["busy", "busy"]["share"])
        self.assertGreater(min(pairs["busy", "busy"]["slowdown"]), 1.5)
        self.assertTrue(pairs["busy", "idle"]["share"])
        self.assertGreater(pairs["busy", "idle"]["together"], 1.5)
        measured = [json.loads(line) for line in ERRORS.read_text().splitlines()]
        rates = [line for line in measured if line.get("mode", "").startswith("ours")
                 and " steps/s" in line["what"]]
        self.assertEqual(pairs["busy", "busy"]["measured_predictions"], len(rates))
        self.assertGreater(pairs["busy", "busy"]["measured_error"], 0)

    def test_a_pod_says_to_the_scheduler_beside_whom_it_runs_well(self):
        done = self.advise("--errors", ERRORS, "--pod", self.pod("busy"))
        self.assertEqual(done.returncode, 0, done.stderr)
        pod = yaml.safe_load(done.stdout)
        self.assertEqual(problems(pod), [])
        annotations = pod["metadata"]["annotations"]
        self.assertEqual(annotations["advice.vitamin.dev/do-not-share-with-busy"], "true")
        self.assertRegex(annotations["advice.vitamin.dev/slowdown-beside-idle"],
                         r"^1\.\d+ \(median error of \d+ such predictions: \d+ %\)$")
        affinity = pod["spec"]["affinity"]
        avoided, = affinity["podAntiAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
        self.assertEqual(avoided["labelSelector"]["matchExpressions"][0]["values"], ["busy"])
        preferred, = affinity["podAffinity"]["preferredDuringSchedulingIgnoredDuringExecution"]
        self.assertEqual(
            preferred["podAffinityTerm"]["labelSelector"]["matchExpressions"][0]["values"],
            ["idle"])
        self.assertEqual(pod["spec"]["containers"], [{"name": "main", "image": "x"}])

    def test_what_cannot_be_advised_is_one_line(self):
        done = self.advise("--pod", self.pod("other"))
        self.assertEqual((done.returncode, done.stderr.count("\n")), (1, 1))
        self.assertIn("the label vitamin.dev/job of the pod is 'other'; recorded are busy, idle",
                      done.stderr)
        self.files[1].write_text(job("idle/job", 132 * 2, 3000, 20000))
        done = self.advise()
        self.assertEqual((done.returncode, done.stderr.count("\n")), (1, 1))
        self.assertIn("the job's name 'idle/job' is no value of a label", done.stderr)
        self.files[1] = self.directory / "none.job"
        done = self.advise()
        self.assertEqual((done.returncode, done.stderr.count("\n")), (1, 1))
        self.assertIn("none.job", done.stderr)


if __name__ == "__main__":
    unittest.main()
