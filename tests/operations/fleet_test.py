#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Many nodes: one vitamin.toml for a thousand of them, and what Prometheus says of all."""
import http.server
import json
import pathlib
import re
import resource
import subprocess
import sys
import tempfile
import threading
import unittest
import urllib.parse

from machine import BUILD, SOURCE
from ports import reserved_port
from time_limit import time_limit, wait_until

sys.path[:0] = [str(SOURCE / "tests/daemon"), str(SOURCE / "tests/metrics")]
from harness import Daemon, DaemonTest  # noqa: E402
from prometheus import Prometheus  # noqa: E402

NODES = 1000
RULES = SOURCE / "deploy/prometheus/vitamin.rules.yml"
DASHBOARD = SOURCE / "deploy/grafana/vitamin.json"


def section_of(number):
    return (f'[nodes."node{number}.cluster"]\npolicy.quantum = "{number % 7 + 1}ms"\n'
            f'[nodes."node{number}.cluster".failure]\n'
            f'absent = "{"closed" if number % 2 else "open"}"\n')


class Configuration(unittest.TestCase):
    def setUp(self):
        directory = tempfile.TemporaryDirectory(prefix="vitamin-fleet-")
        self.addCleanup(directory.cleanup)
        self.file = pathlib.Path(directory.name) / "vitamin.toml"

    def write(self, nodes):
        self.file.write_text('policy.quantum = "9ms"\n' + "".join(map(section_of, nodes)) +
                             '[nodes."node[1-500].cluster"]\npool.leaf_units = 2\n')

    def resolved(self, host):
        """The settings that apply to that node."""
        done = subprocess.run([BUILD / "bin/vitamin", "config", "show", "--json", "--config",
                               self.file, "--host", host], text=True, capture_output=True)
        self.assertEqual(done.returncode, 0, done.stderr)
        settings = json.loads(done.stdout)["settings"]
        return {line["key"]: line["value"].strip('"') for line in settings}

    def seconds(self):
        """CPU time of the whole command for the last node, the least of several runs."""
        def used():
            usage = resource.getrusage(resource.RUSAGE_CHILDREN)
            return usage.ru_utime + usage.ru_stime
        costs = []
        for _ in range(5):
            before = used()
            self.resolved(f"node{NODES}.cluster")
            costs.append(used() - before)
        return min(costs)

    def test_each_of_a_thousand_nodes_has_what_its_section_says(self):
        self.write(range(1, NODES + 1))
        for number in (1, 7, 500, 501, NODES):
            settings = self.resolved(f"node{number}.cluster")
            self.assertEqual((settings["policy.quantum"], settings["failure.absent"],
                              settings["pool.leaf_units"]),
                             (f"{number % 7 + 1}ms", "closed" if number % 2 else "open",
                              "2" if number <= 500 else settings["pool.leaf_units"]))
        self.assertEqual(self.resolved("node1001.cluster")["policy.quantum"], "9ms")
        self.assertNotEqual(self.resolved("node501.cluster")["pool.leaf_units"], "2")

    def test_a_thousand_sections_take_no_longer_than_promised(self):
        self.write(range(1, NODES + 1))
        all_of_them = self.seconds()
        print(json.dumps({"what": "one vitamin.toml for many nodes, resolved for one",
                          "nodes": NODES, "ms": round(1000 * all_of_them, 1)}))
        self.assertLess(all_of_them, time_limit(0.05))

    def test_an_error_in_one_section_names_its_line_on_every_node(self):
        self.write(range(1, NODES + 1))
        section = '[nodes."node900.cluster".failure]\n'
        self.file.write_text(self.file.read_text().replace(section + "absent", section + "absnt"))
        line = self.file.read_text().splitlines().index('absnt = "open"') + 1
        done = subprocess.run([BUILD / "bin/vitamin", "config", "check", "--config", self.file,
                               "--host", "node1.cluster"], text=True, capture_output=True)
        self.assertEqual(done.returncode, 1)
        self.assertRegex(done.stdout + done.stderr, rf"vitamin\.toml:{line}:\d+: .*absnt")


def status(url, *words):
    return subprocess.run([BUILD / "bin/vitamin", "status", "--prometheus", url, *words], text=True,
                          capture_output=True, timeout=time_limit(60))


class Scraped(DaemonTest):
    """Three nodes, one of which is down, and a Prometheus that scrapes them."""

    def setUp(self):
        super().setUp()
        self.nodes = {}
        for name in ("busy", "idle"):
            directory = pathlib.Path(self.directory.name, name)
            directory.mkdir()
            daemon = Daemon(directory, "--metrics", "0")
            self.addCleanup(daemon.end)
            self.nodes[name] = daemon, re.search(r"metrics at http://([^/]+)/", daemon.log())[1]
        self.down = f"127.0.0.1:{reserved_port(self)}"
        addresses = [address for _, address in self.nodes.values()]
        self.prometheus = Prometheus(self, [*addresses, self.down], RULES)
        self.member(self.nodes["busy"][0], "hold")

    def seen(self):
        """Nodes by their addresses, of `vitamin status`; none while Prometheus knows none."""
        done = status(self.prometheus.url, "--json")
        return {node["node"]: node for node in json.loads(done.stdout or '{"nodes": []}')["nodes"]}

    def test_status_shows_every_node_and_gpu_and_what_is_down(self):
        busy, idle = (address for _, address in self.nodes.values())

        def all_there():
            seen = self.seen()
            return len(seen) == 3 and seen[busy]["gpus"] and seen[busy]["gpus"][0].get(
                "leased_processors") and seen[idle]["answers"] and seen
        seen = wait_until(all_there, "three nodes and a lease", 60)
        gpu, = seen[busy]["gpus"]
        device, = self.nodes["busy"][0].status()["devices"]
        self.assertEqual((gpu["uuid"], gpu["processors"], gpu["clients"], gpu["drained"]),
                         (device["uuid"], device["processors"], 1, 0))
        self.assertRegex(seen[busy]["release"], r"^\d+\.\d+\.\d+$")
        self.assertEqual((seen[idle]["gpus"], seen[self.down]["answers"]), ([], False))
        leased = int(gpu["leased_processors"])

        def shown():
            """A node is down, too, while a scrape of it takes longer than Prometheus waits."""
            lines = status(self.prometheus.url).stdout.splitlines()
            return lines and lines[0] == ("2 of 3 nodes answer; GPUs 1, clients 1, SMs leased "
                                          f"{leased} of {device['processors']}") and lines
        lines = wait_until(shown, "the same in words")
        of_node = {line.split()[0]: line for line in lines[3:]}
        self.assertRegex(of_node[busy], rf" {leased} of {device['processors']} .* {device['uuid']}")
        self.assertRegex(of_node[idle], "no client has used a GPU yet$")
        self.assertRegex(of_node[self.down], "does not answer$")
        self.nodes["busy"][0].kill()
        wait_until(lambda: not self.seen()[busy]["answers"], "that the node is down", 60)
        self.assertEqual(self.seen()[busy]["gpus"], [])

    def test_dashboard_and_alerts_have_values_for_every_expression(self):
        dashboard = json.loads(DASHBOARD.read_text())
        missing = {target["expr"] for panel in dashboard["panels"] for target in panel["targets"]
                   if "vitamin_memory_" not in target["expr"]}  # only programs have quotas
        self.assertGreater(len(missing), 25)

        def all_have_values():
            for expression in sorted(missing):
                asked = expression.replace("$__rate_interval", "1m").replace(
                    "$instance", ".*").replace("$uuid", ".*")
                if self.prometheus.get("query", query=asked)["result"]:
                    missing.remove(expression)
            return not missing
        try:
            wait_until(all_have_values, "values", 60, every=0.2)
        finally:
            self.assertEqual(missing, set())

        def evaluated():
            rules = self.prometheus.get("rules")["groups"][0]["rules"]
            # Rules may be evaluated before the first scrape, and see no node then.
            alerts = {rule["name"]: rule["alerts"] for rule in rules if rule["health"] == "ok"}
            # Two are down for a moment where a scrape takes longer than Prometheus waits.
            return len(alerts) == len(rules) and len(alerts["VitamindDown"]) == 1 and alerts
        alerts = wait_until(evaluated, "that all alerts are evaluated and one node is down", 60)
        self.assertEqual(list(alerts), re.findall(r"alert: (\w+)", RULES.read_text()))
        down, = alerts["VitamindDown"]
        self.assertEqual((down["labels"]["instance"], down["state"]), (self.down, "pending"))


class StandIn(unittest.TestCase):
    """`vitamin status` before a server that answers what a test says."""

    def serve(self, answer):
        """URL of a server; `answer(expression)` gives status and body."""
        class Handler(http.server.BaseHTTPRequestHandler):
            def do_GET(self):
                _, _, query = self.path.partition("/api/v1/query?query=")
                code, body = answer(urllib.parse.unquote(query))
                self.send_response(code)
                self.end_headers()
                self.wfile.write(body.encode())

            def log_message(self, *_):
                pass
        server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        thread = threading.Thread(target=server.serve_forever, args=(0.02,))
        thread.start()
        self.addCleanup(thread.join)
        self.addCleanup(server.server_close)
        self.addCleanup(server.shutdown)
        return f"http://127.0.0.1:{server.server_address[1]}"

    def test_a_thousand_nodes_of_eight_gpus_are_summed_up(self):
        def text(samples):
            return json.dumps({"status": "success", "data": {"result": [
                {"metric": labels, "value": [0, str(value)]} for labels, value in samples]}})
        # Made before they are asked for: `vitamin status` waits 10 s for an answer.
        quantiles = text([({"instance": f"node{n}", "UUID": f"GPU-{n}-0"}, 0.002 if n else "NaN")
                          for n in range(NODES)])
        others = text([({"__name__": f"vitamin_gpu_{name}", "instance": f"node{n}", "model": "H200",
                         "gpu": str(gpu), "UUID": f"GPU-{n}-{gpu}", "job": "vitamin"}, value)
                       for name, value in (("processors", 132), ("leased_processors", 96),
                                           ("clients", 3), ("waiting_lanes", 0), ("drained", 0))
                       for n in range(NODES) for gpu in range(8)]
                      + [({"__name__": "up", "instance": f"node{n}"}, 1) for n in range(NODES)])

        def answer(expression):
            return 200, quantiles if expression.startswith("histogram_quantile") else others
        done = status(self.serve(answer) + "/")
        self.assertEqual(done.returncode, 0, done.stderr)
        lines = done.stdout.splitlines()
        self.assertEqual((lines[0], len(lines)),
                         ("1000 of 1000 nodes answer; GPUs 8000, clients 24000, "
                          "SMs leased 768000 of 1056000", 8003))
        waits = {line.split()[-2]: line for line in lines if re.search(r"GPU-[01]-0 ", line)}
        self.assertIn(" 2.0 ms ", waits["GPU-1-0"])
        self.assertNotIn("ms", waits["GPU-0-0"])  # no wait, not one of 0

    def test_what_is_no_answer_of_prometheus_is_one_line(self):
        wrong = '{"status": "error", "errorType": "bad_data", "error": "parse error"}'
        for answer, said in [((404, "page not found"), "answers HTTP/1.0 404 .* no JSON"),
                             ((200, "<html>"), "answers HTTP/1.0 200 .* no JSON"),
                             ((200, '{"data": {"result": [{"value": 1}]}}'),
                              "answers .* no samples"),
                             ((400, wrong), "answers HTTP/1.0 400 .*parse error"),
                             ((200, '{"data": {"result": []}}'), "scrapes no vitamind: none of its "
                                                                 "jobs is named 'vitamin'")]:
            url = self.serve(lambda _, answer=answer: answer)
            done = status(url)
            self.assertEqual((done.returncode, done.stdout, done.stderr.count("\n")), (125, "", 1))
            self.assertRegex(done.stderr, rf"^vitamin: Prometheus at {url} {said}.*\[VIT-301\]$")

    def test_addresses_that_are_none_are_one_line(self):
        down = f"http://127.0.0.1:{reserved_port(self)}"
        for url, said in [(down, r"does not answer \(.*refused\).*VIT-301"),
                          ("http://no-such-host.invalid:1", r"does not answer.*VIT-301"),
                          ("http://127.0.0.1:1x", r"does not answer.*VIT-301"),
                          ("https://localhost", r"without TLS: name a proxy.*VIT-101"),
                          ("localhost:9090", r"is no http://HOST:PORT.*VIT-101"),
                          ("http://", r"is no http://HOST:PORT.*VIT-101"),
                          ("http://[::1]:", r"is no http://HOST:PORT.*VIT-101")]:
            done = status(url)
            self.assertEqual((done.returncode, done.stderr.count("\n")), (125, 1), url)
            self.assertRegex(done.stderr, said)
        done = status("http://localhost", "--socket", "/run/s")
        self.assertEqual(done.returncode, 125)
        self.assertIn("--socket", done.stderr)


if __name__ == "__main__":
    unittest.main()
