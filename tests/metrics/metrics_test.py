# SPDX-License-Identifier: Apache-2.0
"""The figures of vitamind: there, named well, documented, and what dashboard and alerts ask for.

Needs in the environment: VITAMIND, MEMBER (a client of the daemon), SOURCE (the tree), BUILD (the
build directory).
"""
import http.client
import json
import os
import pathlib
import re
import socket
import subprocess
import sys
import tempfile
import unittest
import urllib.request

from time_limit import time_limit

SOURCE = pathlib.Path(os.environ["SOURCE"])
sys.path.insert(0, str(SOURCE / "tests/daemon"))
from harness import DaemonTest  # noqa: E402
from prometheus import program  # noqa: E402

SAMPLE = re.compile(r'^([a-z_]+)(?:\{(.*)\})? ([0-9.e+-]+|NaN)$')
LABEL = re.compile(r'(\w+)="((?:[^"\\]|\\.)*)"')


def parse(text):
    """{name: [(labels, value)]} of the text format, {family: type}."""
    samples, types = {}, {}
    family = None
    for line in text.splitlines():
        if line.startswith("# TYPE "):
            _, _, family, kind = line.split()
            if family in types:
                raise ValueError(f"{family} comes twice")
            types[family] = kind
        elif line.startswith("# HELP "):
            if line.split()[2] in types or len(line.split()) < 4:
                raise ValueError(line)
        else:
            match = SAMPLE.match(line)
            if not match or not match[1].startswith(family):
                raise ValueError(f"no sample of {family}: {line}")
            samples.setdefault(match[1], []).append((dict(LABEL.findall(match[2] or "")),
                                                     float(match[3])))
    return samples, types


def documented():
    text = (SOURCE / "docs/metrics.md").read_text()
    return dict(re.findall(r"^\| `(\w+)` \| (\w+) \|", text, re.M))


class Metrics(DaemonTest):
    def serve(self, address="0", *options):
        daemon = self.daemon("--metrics", address, *options)
        log = pathlib.Path(self.directory.name, "log").read_text()
        found = re.search(r"metrics at (\S+)", log)
        self.assertTrue(found, log)
        return daemon, found[1]

    def after_a_run(self):
        daemon, url = self.serve("0", "--policy", "random")
        members = [self.member(daemon, "work", 60) for _ in range(2)]
        for member in members:
            self.result(member)
        with urllib.request.urlopen(url, timeout=time_limit(20)) as answer:
            self.assertEqual(answer.headers["Content-Type"].split(";")[0], "text/plain")
            return answer.read().decode()

    def test_every_figure_of_the_page_is_there_after_a_run_and_no_other(self):
        samples, types = parse(self.after_a_run())
        isolated = {"vitamind_domain_ready", "vitamind_domain_faults_total",
                    "vitamind_domain_starts_total"}  # tests/daemon/isolation_test.py has these
        self.assertEqual(types, {family: kind for family, kind in documented().items()
                                 if family not in isolated})
        for family, kind in types.items():
            # No class has a quota; tests/daemon/memory_quotas_test.py has some.
            if family.startswith(("vitamin_memory_", "vitamin_usage_memory_")):
                self.assertNotIn(family, samples)
                continue
            name = family + ("_count" if kind == "histogram" else "")
            self.assertIn(name, samples, "no sample")
            for labels, value in samples[name]:
                self.assertGreaterEqual(value, 0)
                if family.startswith("vitamin_gpu_"):
                    self.assertEqual(set(labels), {"gpu", "UUID", "model"})
                if family.startswith("vitamin_usage_"):
                    self.assertEqual(set(labels),
                                     {"UUID", "user", "class", "hpc_job", "namespace", "pod"})
        for name in ("vitamin_gpu_requests_total", "vitamin_gpu_grants_total",
                     "vitamin_gpu_processors", "vitamind_connections_total",
                     "vitamin_gpu_wait_seconds_count"):
            self.assertGreater(samples[name][0][1], 0, name)

    def test_a_histogram_is_cumulative_and_ends_with_its_count(self):
        samples, _ = parse(self.after_a_run())
        buckets = samples["vitamin_gpu_wait_seconds_bucket"]
        values = [value for _, value in buckets]
        self.assertEqual(values, sorted(values))
        bounds = [float(labels["le"]) for labels, _ in buckets]
        self.assertEqual(bounds, sorted(bounds))
        self.assertEqual(buckets[-1][0]["le"], "+Inf")
        self.assertEqual(values[-1], samples["vitamin_gpu_wait_seconds_count"][0][1])

    def test_counters_never_go_back_and_figures_agree_with_status(self):
        daemon, url = self.serve()
        earlier = {}
        for _ in range(3):
            self.result(self.member(daemon, "work", 20))
            with urllib.request.urlopen(url, timeout=time_limit(20)) as answer:
                samples, types = parse(answer.read().decode())
            for name in types:
                if types[name] == "counter":
                    for labels, value in samples[name]:
                        key = name, tuple(sorted(labels.items()))
                        self.assertGreaterEqual(value, earlier.get(key, 0), key)
                        earlier[key] = value
        device = daemon.status()["devices"][0]
        for key in ("requests", "grants", "moves", "overdue"):
            self.assertEqual(samples[f"vitamin_gpu_{key}_total"][0][1], device[key])
        self.assertEqual(samples["vitamin_gpu_processors"][0][1], device["processors"])

    def test_usage_is_counted_for_those_who_had_it_also_after_their_end(self):
        file = pathlib.Path(self.directory.name, "vitamin.toml")
        file.write_text('[[class]]\nname = "one"\ncommand = "no-such"\n')
        daemon, url = self.serve("0", "--config", str(file))
        self.result(self.member(daemon, "work", 30, environment={"MEMBER_CLASS": "one"}))
        self.result(self.member(daemon, "work", 30))
        self.until(lambda: not daemon.status()["clients"])
        with urllib.request.urlopen(url, timeout=time_limit(20)) as answer:
            samples, _ = parse(answer.read().decode())
        for name in ("grants", "sm_seconds", "held_seconds"):
            found = {labels["class"]: (labels["user"], value)
                     for labels, value in samples[f"vitamin_usage_{name}_total"]}
            self.assertEqual(set(found), {"one", ""})
            for user, value in found.values():
                self.assertEqual(user, str(os.getuid()))
                self.assertGreater(value, 0, name)
        for name in ("clients", "processors"):  # no client is left
            self.assertEqual([value for _, value in samples[f"vitamin_usage_{name}"]], [0, 0])

    def test_promtool_accepts_the_names(self):
        tool = program(self, "promtool")
        result = subprocess.run([tool, "check", "metrics"], input=self.after_a_run(), text=True,
                                capture_output=True, timeout=time_limit(60))
        self.assertEqual((result.returncode, result.stdout + result.stderr), (0, ""))

    def test_a_socket_in_the_file_system_serves_too_and_goes_with_the_daemon(self):
        path = os.path.join(self.directory.name, "metrics")
        daemon, where = self.serve(path)
        self.assertEqual(where, path)
        connection = http.client.HTTPConnection("localhost")
        connection.sock = socket.socket(socket.AF_UNIX)
        connection.sock.settimeout(time_limit(20))
        connection.sock.connect(path)
        connection.request("GET", "/metrics")
        self.assertIn("vitamind_build_info", parse(connection.getresponse().read().decode())[0])
        daemon.end()
        self.assertFalse(os.path.exists(path))

    def test_a_socket_that_the_service_manager_opened_is_served(self):
        with socket.create_server(("127.0.0.1", 0)) as listener:
            port = listener.getsockname()[1]
            path = os.path.join(self.directory.name, "s")
            # As sd_listen_fds(3) has it: descriptor 3, for this very process.
            daemon = subprocess.Popen(
                ["bash", "-c", f'exec 3<&{listener.fileno()}; export LISTEN_FDS=1 LISTEN_PID=$$; '
                 'exec "$0" "$@"', os.environ["VITAMIND"], "--socket", path, "--lock-directory",
                 self.directory.name, "--metrics", "systemd", "--quiet"],
                pass_fds=[listener.fileno()])
        self.addCleanup(daemon.wait)
        self.addCleanup(daemon.kill)
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics",
                                    timeout=time_limit(60)) as answer:
            self.assertIn(b"vitamind_build_info", answer.read())

    def test_what_is_no_scrape_is_told_so_and_disturbs_no_one_else(self):
        _, url = self.serve()
        host, port = re.match(r"http://(.*):(\d+)/", url).groups()
        for request, status in ((b"GET /else HTTP/1.1\r\n\r\n", b"404"),
                                (b"POST /metrics HTTP/1.1\r\n\r\n", b"405"),
                                (b"nonsense\r\n\r\n", b"400"),
                                (b"HEAD /metrics HTTP/1.1\r\n\r\n", b"200")):
            with socket.create_connection((host, int(port)), timeout=time_limit(20)) as connection:
                connection.sendall(request)
                self.assertEqual(connection.recv(4096).split()[1], status, request)
        # One that says nothing, one that says too much, one that goes away.
        silent = socket.create_connection((host, int(port)), timeout=time_limit(20))
        self.addCleanup(silent.close)
        with socket.create_connection((host, int(port)), timeout=time_limit(20)) as connection:
            try:
                connection.sendall(b"x" * 20000)
            except OSError:
                pass
        socket.create_connection((host, int(port)), timeout=time_limit(20)).close()
        with urllib.request.urlopen(url, timeout=time_limit(60)) as answer:
            self.assertIn(b"vitamind_build_info", answer.read())

    def test_a_port_that_is_taken_is_one_line_and_no_daemon(self):
        with socket.create_server(("127.0.0.1", 0)) as taken:
            port = taken.getsockname()[1]
            daemon = self.daemon("--metrics", str(port), "--quiet")
            self.assertEqual(daemon.process.wait(time_limit(20)), 1)
        log = pathlib.Path(self.directory.name, "log").read_text()
        self.assertEqual(len(log.splitlines()), 1, log)
        self.assertRegex(log, rf"the metrics cannot be served at {port} \(.*in use.*\[VIT-404\]")
        self.assertFalse(os.path.exists(daemon.socket))

    def test_an_address_that_is_none_is_one_line_and_no_daemon(self):
        for address in ("no-such-host.invalid:1", "127.0.0.1:99999", "x:y", "/no/such/directory/s",
                        "systemd"):
            daemon = self.daemon("--metrics", address, "--quiet")
            self.assertEqual(daemon.process.wait(time_limit(60)), 1, address)
            log = pathlib.Path(self.directory.name, "log").read_text()
            self.assertRegex(log.splitlines()[-1], r"\[VIT-404\]", address)

    def test_names_of_clients_cannot_break_the_format(self):
        # Nothing that a client says becomes a label but the device's name, which is escaped.
        _, url = self.serve()
        with urllib.request.urlopen(url, timeout=time_limit(20)) as answer:
            parse(answer.read().decode())


class Dashboard(Metrics):
    """Expressions of the dashboard and the rules against a live scrape."""

    def expressions(self):
        dashboard = json.loads((SOURCE / "deploy/grafana/vitamin.json").read_text())
        for panel in dashboard["panels"]:
            for target in panel["targets"]:
                yield target["expr"], target["legendFormat"]
        rules = (SOURCE / "deploy/prometheus/vitamin.rules.yml").read_text()
        for expression in re.findall(r"expr: (?:>\n((?:          .*\n)+)|(.*)\n)", rules):
            yield "".join(expression), ""

    def test_every_expression_asks_for_what_is_there(self):
        samples, _ = parse(self.after_a_run())
        labels = {name: set().union(*(set(found) for found, _ in there)) | {"instance", "job"}
                  for name, there in samples.items()}
        for name in ("quota", "used"):  # no class has a quota; tests/daemon has some
            labels[f"vitamin_memory_{name}_bytes"] = {"UUID", "class", "instance", "job"}
        for name in ("ready", "faults_total"):  # no class is isolated here
            labels[f"vitamind_domain_{name}"] = {"domain", "instance", "job"}
        seen = 0
        for expression, legend in self.expressions():
            names = re.findall(r"\bvitamind?_\w+", expression)
            self.assertTrue(names or "up{" in expression, expression)
            known = {"instance", "job"}
            for name in names:
                self.assertIn(name, labels, expression)
                known |= labels[name]
            asked = re.findall(r'(\w+)=~?"', expression)
            asked += re.findall(r"\w+", " ".join(re.findall(r"\bby \(([^)]*)\)", expression)))
            asked += re.findall(r"\{\{(\w+)\}\}", legend)
            self.assertLessEqual(set(asked), known, expression)
            seen += 1
        self.assertGreater(seen, 20)

    def test_a_label_that_is_not_there_would_be_noticed(self):
        samples, _ = parse(self.after_a_run())
        self.assertNotIn("device", {label for labels, _ in samples["vitamin_gpu_clients"]
                                    for label in labels})

    def test_promtool_parses_every_expression(self):
        tool = program(self, "promtool")
        with tempfile.NamedTemporaryFile("w", suffix=".yml") as rules:
            rules.write("groups:\n  - name: dashboard\n    rules:\n")
            for i, (expression, _) in enumerate(self.expressions()):
                for variable, value in (("$__rate_interval", "5m"), ("$instance", ".*"),
                                        ("$uuid", ".*"), ("\n", " ")):
                    expression = expression.replace(variable, value)
                rules.write(f"      - record: e{i}\n        expr: {json.dumps(expression)}\n")
            rules.flush()
            result = subprocess.run([tool, "check", "rules", rules.name], text=True,
                                    capture_output=True, timeout=time_limit(60))
            self.assertEqual(result.returncode, 0, result.stdout + result.stderr)

    def test_the_alerts_fire_when_they_should(self):
        directory = SOURCE / "deploy/prometheus"
        words = [program(self, "promtool"), "test", "rules", "vitamin.rules_test.yml"]
        result = subprocess.run(words, cwd=directory, text=True, capture_output=True,
                                timeout=time_limit(60))
        self.assertEqual(result.returncode, 0, result.stdout + result.stderr)

    def test_the_page_names_every_alert(self):
        rules = (SOURCE / "deploy/prometheus/vitamin.rules.yml").read_text()
        page = (SOURCE / "docs/metrics.md").read_text()
        self.assertEqual(set(re.findall(r"alert: (\w+)", rules)),
                         set(re.findall(r"^\| (V\w+) \|", page, re.M)))


class JsonLog(DaemonTest):
    def test_the_log_as_json_is_one_object_a_line(self):
        daemon = self.daemon("--log", "json")
        self.result(self.member(daemon, "work", 5))
        daemon.end()
        lines = pathlib.Path(self.directory.name, "log").read_text().splitlines()
        self.assertGreater(len(lines), 3)
        for line in lines:
            record = json.loads(line)
            self.assertEqual(record["process"], daemon.process.pid)
            self.assertRegex(record["ts"], r"^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{6}Z$")
            self.assertIn(record["level"], ("info", "warning"))
        self.assertTrue(any("listens at" in line for line in lines))

    def test_a_code_is_a_field_of_its_own(self):
        daemon = self.daemon("--log", "json", "--metrics", "/no/such/directory/s")
        self.assertEqual(daemon.process.wait(time_limit(20)), 1)
        last = json.loads(pathlib.Path(self.directory.name, "log").read_text().splitlines()[-1])
        self.assertEqual((last["code"], last["level"]), ("VIT-404", "error"))
        self.assertNotIn("VIT", last["text"])

    def test_another_format_is_refused(self):
        result = subprocess.run([os.environ["VITAMIND"], "--log", "xml"], capture_output=True,
                                text=True, timeout=time_limit(20))
        self.assertNotEqual(result.returncode, 0)
        self.assertIn("json", result.stdout + result.stderr)


if __name__ == "__main__":
    unittest.main()
