#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Renders the chart with kubectl's template engine; writes what the kustomizations contain.

    generate.py write      vitamin.yaml, overlays/ and the template of the alerts
    generate.py check      1 when a written file is not what `write` writes
    generate.py render [--values FILE]... [--namespace NAME]    the manifests, on stdout

KUBECTL names the program, else `kubectl` of the path. No cluster is asked.
"""
import argparse
import copy
import json
import os
import pathlib
import subprocess
import sys
import tempfile

import jsonschema
import yaml

HERE = pathlib.Path(__file__).resolve().parent
CHART = HERE / "chart"
RULES = HERE.parent / "prometheus/vitamin.rules.yml"
DASHBOARD = HERE.parent / "grafana/vitamin.json"
ALERTS = CHART / "templates/alerts.yaml"
NAMESPACE = "vitamin-system"
LICENSE = "# SPDX-License-Identifier: Apache-2.0\n"
WRITTEN = LICENSE + "# Written by generate.py from the chart.\n"

KUSTOMIZATION = WRITTEN + """\
apiVersion: kustomize.config.k8s.io/v1beta1
kind: Kustomization
resources: [vitamin.yaml]
"""

# The kustomizations, and the values of the chart that each stands for.
KUSTOMIZATIONS = {
    ".": {},
    "overlays/mps": {"pools": [{"runtimeClassName": "nvidia", "mps": True}]},
    "overlays/cdi": {"cdi": {"enabled": True}},
    "overlays/dra": {"devicePlugin": {"enabled": False}, "dra": {"enabled": True}},
    "overlays/monitoring": {"monitoring": {"enabled": True}},
}


def merged(base, over):
    """As Helm merges: maps key by key, anything else replaced."""
    if not isinstance(base, dict) or not isinstance(over, dict):
        return copy.deepcopy(over)
    return {key: merged(base[key], over[key]) if key in base and key in over
            else copy.deepcopy(over.get(key, base.get(key))) for key in {**base, **over}}


def values_with(*overs):
    """Defaults, then each of `overs`. jsonschema.ValidationError: not a value of the chart."""
    values = yaml.safe_load((CHART / "values.yaml").read_text())
    for over in overs:
        values = merged(values, over)
    jsonschema.validate(values, json.loads((CHART / "values.schema.json").read_text()))
    names = [pool["name"] for pool in values["pools"]]
    for name in names:
        if names.count(name) > 1:  # which no schema can say; daemonset.yaml refuses it for Helm
            raise jsonschema.ValidationError(f"two pools have the name {name!r}", path=["pools"])
    return values


def rendered(values, namespace=NAMESPACE):
    """{template: text}. As `helm template vitamin CHART --namespace NAMESPACE` would."""
    chart = yaml.safe_load((CHART / "Chart.yaml").read_text())
    context = {"apiVersion": "vitamin.dev/v1", "kind": "Context", "metadata": {"name": "context"},
               "Values": values,
               "Release": {"Name": "vitamin", "Namespace": namespace, "Service": "Helm"},
               "Chart": {key[0].upper() + key[1:]: value for key, value in chart.items()}}
    helpers = (CHART / "templates/_helpers.tpl").read_text()
    texts = {}
    with tempfile.TemporaryDirectory() as directory:
        data, template = pathlib.Path(directory) / "data.json", pathlib.Path(directory) / "template"
        data.write_text(json.dumps(context))
        for path in sorted((CHART / "templates").glob("*.yaml")):
            template.write_text(helpers + path.read_text())
            done = subprocess.run(
                [os.environ.get("KUBECTL", "kubectl"), "annotate", "--local", "--filename", data,
                 "rendered=now", "--output", f"go-template-file={template}"],
                text=True, capture_output=True, env={**os.environ, "KUBECONFIG": "/dev/null"})
            if done.returncode != 0:
                raise RuntimeError(f"{path.name}: {done.stderr.strip()}")
            if "<no value>" in done.stdout:
                raise RuntimeError(f"{path.name}: names a value that the chart does not have")
            texts[path.name] = done.stdout
    return texts


def objects(texts):
    """The rendered objects, by (kind, name). ValueError: two are of one kind and name."""
    found = {}
    for text in texts.values():
        for thing in yaml.safe_load_all(text):
            if thing is not None:
                name = thing["kind"], thing["metadata"]["name"]
                if name in found:
                    raise ValueError("two objects: {} {}".format(*name))
                found[name] = thing
    return found


def with_whole_pools(over):
    """Lists are replaced whole: a pool of an overlay is the default pool with these keys."""
    over = copy.deepcopy(over)
    if "pools" in over:
        default = yaml.safe_load((CHART / "values.yaml").read_text())["pools"][0]
        over["pools"] = [merged(default, pool) for pool in over["pools"]]
    return over


def overlay_values(over):
    """The chart's values for an overlay."""
    return values_with({"namespace": {"create": True}}, with_whole_pools(over))


def block(text, indent):
    """The text, moved to the right."""
    return "".join(" " * indent + line if line.strip() else "\n"
                   for line in text.splitlines(keepends=True))


def monitoring_template():
    """The alert rules and the dashboard, with the braces of their own templates escaped."""
    def escaped(text):
        return text.replace("{{", '{{ "{{" }}')
    rules = RULES.read_text().replace(LICENSE, "")
    return f"""\
{{{{- if .Values.monitoring.enabled }}}}
---
{WRITTEN}apiVersion: monitoring.coreos.com/v1
kind: PrometheusRule
metadata:
  name: vitamin
  namespace: {{{{ .Release.Namespace }}}}
  labels:
    {{{{- range $key, $value := .Values.monitoring.labels }}}}
    {{{{ printf "%q" $key }}}}: {{{{ printf "%q" $value }}}}
    {{{{- end }}}}
    app.kubernetes.io/name: vitamin
spec:
{escaped(block(rules, 2))}---
apiVersion: v1
kind: ConfigMap
metadata:
  name: vitamin-dashboard
  namespace: {{{{ .Release.Namespace }}}}
  labels: {{grafana_dashboard: "1", app.kubernetes.io/name: vitamin}}
data:
  vitamin.json: |
{escaped(block(DASHBOARD.read_text(), 4))}
{{{{- end }}}}
"""


def together(texts):
    """One file of all templates, without empty lines."""
    documents = [part for text in texts.values() for part in text.split("\n---\n")]
    lines = ["\n".join(line for line in part.removeprefix("---\n").splitlines()
                       if line.strip() and line + "\n" != LICENSE)
             for part in documents]
    return WRITTEN + "\n---\n".join(part for part in lines if part) + "\n"


def files():
    """{path: text} of all that is written."""
    wanted = {ALERTS: monitoring_template()}
    for directory, over in KUSTOMIZATIONS.items():
        wanted[HERE / directory / "vitamin.yaml"] = together(rendered(overlay_values(over)))
        wanted[HERE / directory / "kustomization.yaml"] = KUSTOMIZATION
    return wanted


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("what", choices=["write", "check", "render"])
    parser.add_argument("--values", action="append", default=[], type=pathlib.Path)
    parser.add_argument("--namespace", default=NAMESPACE)
    options = parser.parse_args()
    if options.what == "render":
        overs = [yaml.safe_load(path.read_text()) for path in options.values]
        try:
            print(together(rendered(values_with(*overs), options.namespace)), end="")
        except jsonschema.ValidationError as error:
            where = ".".join(map(str, error.absolute_path)) or "values"
            sys.exit(f"generate.py: {where}: {error.message}")
        return 0
    if options.what == "write":
        ALERTS.write_text(monitoring_template())  # the other files are rendered from it
    wrong = 0
    for path, text in files().items():
        if options.what == "write":
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        elif not path.exists() or path.read_text() != text:
            print(f"{path.relative_to(HERE)} is not what generate.py writes", file=sys.stderr)
            wrong = 1
    return wrong


if __name__ == "__main__":
    sys.exit(main())
