# SPDX-License-Identifier: Apache-2.0
"""Prometheus itself, for tests: its tools, and a server that scrapes what a test says."""
import json
import os
import pathlib
import shutil
import subprocess
import tempfile
import urllib.parse
import urllib.request

from ports import reserved_port
from time_limit import time_limit, wait_until


def program(test, name):
    """`prometheus` or `promtool`: the installed one, or that of Debian's package prometheus, which
    is not installed for it (a server would start): fetched once for a build directory."""
    found = shutil.which(name)
    kept = pathlib.Path(os.environ["BUILD"], "tests/metrics", name)
    if found is not None or kept.exists():
        return found or str(kept)
    kept.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=kept.parent) as directory:
        fetched = subprocess.run(["apt-get", "-qq", "-o", "APT::Sandbox::User=root", "download",
                                  "prometheus"], cwd=directory, text=True, capture_output=True,
                                 timeout=time_limit(100))
        if fetched.returncode != 0:
            test.skipTest(f"no {name}, and none to be had: {fetched.stderr.strip()[-200:]}")
        (package,) = pathlib.Path(directory).glob("*.deb")
        subprocess.run(["dpkg-deb", "-x", package, directory], check=True)
        os.replace(pathlib.Path(directory, "usr/bin", name), kept)
    return str(kept)


class Prometheus:
    """A server that scrapes `targets` ("HOST:PORT") as job vitamin until the test ends. `url` is
    its address; `rules`: a file of rules that it evaluates."""

    def __init__(self, test, targets, rules):
        directory = tempfile.TemporaryDirectory(prefix="vitamin-prometheus-")
        test.addCleanup(directory.cleanup)
        configuration = pathlib.Path(directory.name, "prometheus.yml")
        configuration.write_text(json.dumps({  # which is YAML, too
            "global": {"scrape_interval": "500ms", "evaluation_interval": "500ms"},
            "rule_files": [str(rules)],
            "scrape_configs": [{"job_name": "vitamin", "static_configs": [{"targets": targets}]}]}))
        port = reserved_port(test)
        self.url = f"http://127.0.0.1:{port}"
        process = subprocess.Popen(
            [program(test, "prometheus"), f"--config.file={configuration}",
             f"--storage.tsdb.path={directory.name}/data", f"--web.listen-address=127.0.0.1:{port}",
             "--log.level=error"], stdin=subprocess.DEVNULL)
        test.addCleanup(process.wait)
        test.addCleanup(process.kill)
        wait_until(self.is_ready, "Prometheus", 60)

    def is_ready(self):
        try:
            with urllib.request.urlopen(f"{self.url}/-/ready", timeout=time_limit(10)):
                return True
        except OSError:
            return False

    def get(self, path, **parameters):
        """The data of the API's answer."""
        words = urllib.parse.urlencode(parameters)
        with urllib.request.urlopen(f"{self.url}/api/v1/{path}?{words}",
                                    timeout=time_limit(30)) as answer:
            return json.load(answer)["data"]
