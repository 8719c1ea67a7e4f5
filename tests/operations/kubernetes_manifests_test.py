#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The Helm chart and the kustomizations: rendered by kubectl and Helm, checked against the API's
schema."""
import copy
import json
import os
import pathlib
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
import tomllib
import unittest

import jsonschema
import yaml

from machine import BUILD, SOURCE, VERSION

HERE = pathlib.Path(__file__).resolve().parent
DEPLOY = SOURCE / "deploy/kubernetes"
sys.path[:0] = [str(HERE / "kubernetes"), str(DEPLOY)]
import generate  # noqa: E402
from helm import Helm  # noqa: E402
from kubectl import kubectl  # noqa: E402
from schema import problems  # noqa: E402


VALUES = sorted((DEPLOY / "examples").glob("*.values.yaml"))


def of(texts):
    return generate.objects(texts)


class Rendered(unittest.TestCase):
    def setUp(self):
        os.environ["KUBECTL"] = str(kubectl())

    def render(self, *overs):
        return of(generate.rendered(generate.values_with(*overs)))

    def pool(self, **changes):
        default = generate.values_with()["pools"][0]
        return {**copy.deepcopy(default), **changes}


class Files(Rendered):
    def test_written_files_are_what_the_chart_renders(self):
        for path, text in generate.files().items():
            self.assertTrue(path.exists(), path)
            self.assertEqual(path.read_text(), text, f"{path}: run generate.py write")

    def test_kubectl_builds_each_kustomization_to_what_the_chart_renders(self):
        for directory, over in generate.KUSTOMIZATIONS.items():
            built = subprocess.run([kubectl(), "kustomize", DEPLOY / directory], text=True,
                                   capture_output=True)
            self.assertEqual(built.returncode, 0, built.stderr)
            self.assertEqual(of({"all": built.stdout}),
                             of(generate.rendered(generate.overlay_values(over))), directory)

    def test_the_chart_and_the_change_log_are_of_the_version_that_is_built(self):
        chart = yaml.safe_load((DEPLOY / "chart/Chart.yaml").read_text())
        self.assertEqual((chart["version"], chart["appVersion"]), (VERSION, VERSION))
        self.assertEqual(generate.values_with()["image"]["tag"], VERSION)
        latest = re.search(r"^## (\S+), ", (SOURCE / "CHANGELOG.md").read_text(), re.M)[1]
        self.assertEqual(latest, VERSION)

    def test_alerts_and_dashboard_are_those_of_the_tree(self):
        things = self.render({"monitoring": {"enabled": True}})
        rules = yaml.safe_load((SOURCE / "deploy/prometheus/vitamin.rules.yml").read_text())
        self.assertEqual(things["PrometheusRule", "vitamin"]["spec"], rules)
        board = things["ConfigMap", "vitamin-dashboard"]["data"]["vitamin.json"]
        self.assertEqual(json.loads(board),
                         json.loads((SOURCE / "deploy/grafana/vitamin.json").read_text()))
        # The alerts name the job that the ServiceMonitor gives its targets.
        relabelings = things["ServiceMonitor", "vitamin"]["spec"]["endpoints"][0]["relabelings"]
        self.assertIn({"targetLabel": "job", "replacement": "vitamin"}, relabelings)
        self.assertIn('job="vitamin"', json.dumps(rules).replace("\\", ""))

    def test_templates_use_what_both_helm_and_kubectl_have(self):
        known = {"if", "else", "true", "false", "end", "range", "template", "define", "printf",
                 "not", "and", "or", "eq", "index"}
        for path in (DEPLOY / "chart/templates").iterdir():
            for action in re.findall(r"\{\{-?\s*(.*?)\s*-?\}\}", path.read_text(), re.S):
                words = re.sub(r'"[^"]*"|/\*.*?\*/', "", action, flags=re.S)
                for word in re.findall(r"(?<![\w.$])[a-z]\w*", words):
                    self.assertIn(word, known, f"{path.name}: {action}")


class Schema(Rendered):
    CLAIMS = {"devicePlugin": {"enabled": False}, "dra": {"enabled": True}}
    # Strings that YAML would read as something else.
    ODD = {"tolerations": [{"key": "true", "operator": "Equal", "value": "true"},
                           {"key": "1", "value": "1e3", "effect": "NoExecute",
                            "tolerationSeconds": 2000000},
                           {"operator": "Exists"}],
           "pools": [{"name": "7", "runtimeClassName": "0", "nodeSelector": {"on": "yes"}}],
           "monitoring": {"enabled": True, "labels": {"null": "no"}}}
    VARIANTS = [*generate.KUSTOMIZATIONS.values(), {"priorityClasses": {"enabled": False}},
                {"tolerations": []}, {"imagePullSecrets": [{"name": "a"}, {"name": "b"}]}, ODD]

    def test_every_object_of_every_variant_is_valid(self):
        for over in self.VARIANTS:
            for thing in of(generate.rendered(generate.overlay_values(over))).values():
                self.assertEqual(problems(thing), [], over)
        for path in set((DEPLOY / "examples").glob("*.yaml")) - set(VALUES):
            for thing in yaml.safe_load_all(path.read_text()):
                self.assertEqual(problems(thing), [], path.name)

    def test_errors_are_found(self):
        good = self.render()["DaemonSet", "vitamin-default"]

        def damaged(change):
            thing = copy.deepcopy(good)
            change(thing)
            return problems(thing)
        pod = ["spec", "template", "spec"]
        self.assertEqual(damaged(lambda thing: None), [])
        for change, said in {
            lambda it: it["spec"].update(replicas=1): "'replicas' was unexpected",
            lambda it: it["spec"].pop("selector"): "'selector' is a required property",
            lambda it: it[pod[0]][pod[1]][pod[2]].update(hostPID="yes"): "is not of type 'boolean'",
            lambda it: it[pod[0]][pod[1]][pod[2]]["containers"][0].pop("name"):
                "'name' is a required property",
            lambda it: it.update(apiVersion="apps/v1beta1"): "apps/v1beta1",
            lambda it: it.update(kind="DaemonSets"): "no kind",
        }.items():
            self.assertIn(said, " ".join(damaged(change)))
        queue = {"apiVersion": "kueue.x-k8s.io/v1beta2", "kind": "ClusterQueue",
                 "spec": {"resourceGroups": [{"coveredResources": ["cpu"], "flavors": [
                     {"name": "one", "resources": [{"name": "cpu", "nominalQuota": "4x"}]}]}]}}
        self.assertIn("4x", " ".join(problems(queue)))
        queue["spec"] = {"cohort": "of v1beta1"}
        self.assertIn("'cohort' was unexpected", " ".join(problems(queue)))

    def test_values_that_are_wrong_are_refused(self):
        for over, said in [
            ({"pool": []}, "'pool' was unexpected"),
            ({"pools": []}, "too short|non-empty"),
            ({"pools": [self.pool(shares=0)]}, "less than the minimum"),
            ({"pools": [self.pool(gpus=["GPU-1=0"])]}, "does not match"),
            # A count is none of memory, and the other way round.
            ({"pools": [self.pool(gpus=["GPU-1=141Gi"])]}, "does not match"),
            ({"pools": [self.pool(gpuMemory="141Gi")]}, "was expected"),
            ({**self.CLAIMS, "pools": [self.pool(gpus=["GPU-1=8"])]}, "does not match"),
            ({**self.CLAIMS, "pools": [self.pool(gpuMemory="141")]}, "does not match"),
            ({"pools": [self.pool(name="A b")]}, "does not match"),
            ({"imagePullSecrets": ["name"]}, "is not of type 'object'"),
            ({"image": {"tag": "a/b"}}, "does not match"),
            ({"monitoring": {"enabled": "yes"}}, "is not of type 'boolean'"),
            ({"pools": [self.pool(), self.pool(shares=8)]}, "two pools have the name 'default'"),
            # Its ConfigMap would have the name of the dashboard's.
            ({"pools": [self.pool(name="dashboard")]}, "should not be valid|is not allowed"),
            # A GPU is offered either by shares or by claims.
            ({"dra": {"enabled": True}}, "should not be valid|is not allowed"),
        ]:
            with self.assertRaisesRegex(jsonschema.ValidationError, said, msg=over):
                generate.values_with(over)


    def test_strings_stay_strings(self):
        things = of(generate.rendered(generate.overlay_values(self.ODD)))
        spec = things["DaemonSet", "vitamin-7"]["spec"]
        pod = spec["template"]["spec"]
        self.assertEqual(pod["tolerations"], self.ODD["tolerations"])
        self.assertEqual(pod["runtimeClassName"], "0")
        self.assertEqual(pod["nodeSelector"]["on"], "yes")
        self.assertEqual(spec["selector"]["matchLabels"]["vitamin.dev/pool"], "7")
        self.assertEqual(things["PrometheusRule", "vitamin"]["metadata"]["labels"]["null"], "no")
        for wrong in ({"key": "a", "value": True}, {"key": "a", "tolerationSeconds": "5"},
                      {"kye": "a"}):
            with self.assertRaises(jsonschema.ValidationError, msg=wrong):
                generate.values_with({"tolerations": [wrong]})


class Charts(Rendered):
    """Helm itself, of PyPI: lints the chart, and renders it as kubectl does."""

    def helm(self, *overs):
        return Helm(DEPLOY / "chart").template(overs, generate.NAMESPACE)

    def overs(self):
        """Values files that are given to Helm, which adds the chart's defaults."""
        changes = [*Schema.VARIANTS, *(yaml.safe_load(path.read_text()) for path in VALUES)]
        return [generate.merged({"namespace": {"create": True}}, generate.with_whole_pools(over))
                for over in changes]

    def test_helm_lint_has_no_warning(self):
        self.assertEqual(Helm(DEPLOY / "chart").lint(), [(1, "icon is recommended")])

    def test_helm_renders_each_variant_as_kubectl_does(self):
        overs = self.overs()
        for over, texts in zip(overs, self.helm(*overs), strict=True):
            self.assertIsInstance(texts, dict, f"{over}: {texts}")
            known = generate.rendered(generate.values_with(over))
            self.assertEqual({name: text.strip() for name, text in texts.items()
                              if name.endswith(".yaml")},
                             {name: text.strip() for name, text in known.items()}, over)

    def test_helm_refuses_what_the_schema_refuses(self):
        wrong = [{"pool": []}, {"dra": {"enabled": True}}, {"pools": [self.pool(shares=0)]}]
        for over, said in zip(wrong, self.helm(*wrong), strict=True):
            self.assertIsInstance(said, str, over)
            self.assertIn("schema", said)


    def test_helm_refuses_two_pools_of_one_name(self):
        pools = [[self.pool(name="a"), self.pool(name="b"), self.pool(name="a", shares=8)],
                 [self.pool(name="a"), self.pool(name="b")]]
        twice, fine = self.helm(*({"pools": each} for each in pools))
        self.assertIsInstance(twice, str)
        self.assertIn("two pools have one name", twice)
        self.assertIsInstance(fine, dict)


class Meaning(Rendered):
    """Rules that are not in the schema."""

    def pods(self):
        examples = [yaml.safe_load(path.read_text()) for path in VALUES]
        for over in [*generate.KUSTOMIZATIONS.values(), *examples]:
            things = of(generate.rendered(generate.overlay_values(over)))
            for (kind, _), thing in things.items():
                if kind == "DaemonSet":
                    yield things, thing, thing["spec"]["template"]["spec"]

    def test_what_is_named_is_there(self):
        for things, daemons, pod in self.pods():
            labels = daemons["spec"]["template"]["metadata"]["labels"]
            for selector in (daemons["spec"]["selector"]["matchLabels"],
                             things["Service", "vitamin-metrics"]["spec"]["selector"]):
                self.assertLessEqual(selector.items(), labels.items())
            self.assertIn(("ServiceAccount", pod["serviceAccountName"]), things)
            volumes = {volume["name"] for volume in pod["volumes"]}
            used = set()
            ports = set()
            for container in pod["initContainers"] + pod["containers"]:
                mounts = container["volumeMounts"]
                used |= {mount["name"] for mount in mounts}
                self.assertEqual(len({mount["mountPath"] for mount in mounts}), len(mounts))
                ports |= {port["name"] for port in container.get("ports", [])}
                context = container["securityContext"]
                self.assertEqual(context["capabilities"], {"drop": ["ALL"]})
                self.assertNotIn("privileged", context)
            self.assertEqual(used, volumes)
            self.assertIn(things["Service", "vitamin-metrics"]["spec"]["ports"][0]["targetPort"],
                          ports)

    def test_programs_know_the_options_that_they_are_given(self):
        seen = set()
        for _, _, pod in self.pods():
            for container in pod["containers"]:
                program = BUILD / "bin" / pathlib.Path(container["command"][0]).name
                if container["name"] == "mps":
                    continue  # NVIDIA's
                known = subprocess.run([program, "--help"], text=True, capture_output=True).stdout
                for option in container["command"][1:]:
                    self.assertRegex(known, rf"{re.escape(option.split('=')[0])}\b")
                seen.add(program.name)
        self.assertLessEqual({"vitamind", "vitamin-k8s-plugin"}, seen)

    def test_directories_that_a_program_is_told_are_mounted(self):
        for _, _, pod in self.pods():
            for container in pod["containers"]:
                mounts = [mount["mountPath"] for mount in container["volumeMounts"]]
                for option in container["command"][1:]:
                    path = option.partition("=")[2]
                    # What containers are given is mounted from the node, not from this container.
                    if path.startswith("/") and not option.startswith("--mps"):
                        self.assertTrue(any(path == mount or path.startswith(mount + "/")
                                            for mount in mounts), option)

    def test_pools_have_counts_and_names_of_their_own(self):
        big = self.pool(name="big", shares=8, nodeSelector={"pool": "h200"},
                        resource="vitamin.dev/percent-{percent}", config='[policy]\nname = "fifo"')
        some = self.pool(name="some", gpus=["GPU-1=2", "GPU-2=10@vitamin.dev/tenth"])
        things = self.render({"pools": [big, some]})
        for thing in things.values():
            self.assertEqual(problems(thing), [])
        pods = {name: things["DaemonSet", f"vitamin-{name}"]["spec"]["template"]["spec"]
                for name in ("big", "some")}
        plugin = {name: next(c["command"] for c in pod["containers"]
                             if c["name"] == "device-plugin") for name, pod in pods.items()}
        self.assertEqual(pods["big"]["nodeSelector"], {"pool": "h200"})
        self.assertIn("--per-gpu=8", plugin["big"])
        self.assertIn("--resource=vitamin.dev/percent-{percent}", plugin["big"])
        self.assertLessEqual({"--gpu=GPU-1=2", "--gpu=GPU-2=10@vitamin.dev/tenth"},
                             set(plugin["some"]))
        self.assertEqual(things["ConfigMap", "vitamin-big"]["data"]["vitamin.toml"], big["config"])
        self.assertNotIn(("ConfigMap", "vitamin-some"), things)

    def test_memory_and_classes_of_claims_reach_the_driver(self):
        values = generate.values_with(yaml.safe_load(VALUES[0].read_text()))
        things = of(generate.rendered(values))
        pod = things["DaemonSet", "vitamin-default"]["spec"]["template"]["spec"]
        driver = next(c for c in pod["containers"] if c["name"] == "dra-driver")
        self.assertIn("--gpu-memory=141Gi", driver["command"])
        self.assertIn("--config=/etc/vitamin/vitamin.toml", driver["command"])
        self.assertIn({"name": "config", "mountPath": "/etc/vitamin", "readOnly": True},
                      driver["volumeMounts"])
        # What the example of these values asks for is there.
        template, _ = yaml.safe_load_all(
            (DEPLOY / "examples/share-and-memory.yaml").read_text())
        devices = template["spec"]["spec"]["devices"]
        self.assertEqual(devices["requests"][0]["exactly"]["capacity"]["requests"],
                         {"share": "30", "memory": "10Gi"})
        classes = tomllib.loads(things["ConfigMap", "vitamin-default"]["data"]["vitamin.toml"])
        self.assertIn(devices["config"][0]["opaque"]["parameters"]["class"],
                      [each["name"] for each in classes["class"]])
        one = self.render({"devicePlugin": {"enabled": False}, "dra": {"enabled": True},
                           "pools": [self.pool(gpus=["GPU-1=80Gi", "GPU-2"])]})
        pod = one["DaemonSet", "vitamin-default"]["spec"]["template"]["spec"]
        driver = next(c for c in pod["containers"] if c["name"] == "dra-driver")
        self.assertIn("--gpu=GPU-1=80Gi", driver["command"])
        self.assertNotIn("--gpu-memory", " ".join(driver["command"]))

    def test_each_container_is_of_the_image_of_the_values_which_may_need_a_secret(self):
        values = {"image": {"repository": "registry.example:5000/v", "tag": "1",
                            "pullPolicy": "Never"},
                  "imagePullSecrets": [{"name": "login"}]}
        for change in ({}, Schema.CLAIMS, {"pools": [self.pool(mps=True)]}):
            things = self.render(values, change)
            pod = things["DaemonSet", "vitamin-default"]["spec"]["template"]["spec"]
            self.assertEqual(pod["imagePullSecrets"], [{"name": "login"}])
            for container in pod["initContainers"] + pod["containers"]:
                self.assertEqual((container["image"], container["imagePullPolicy"]),
                                 ("registry.example:5000/v:1", "Never"))
        without = self.render()["DaemonSet", "vitamin-default"]["spec"]["template"]["spec"]
        self.assertNotIn("imagePullSecrets", without)

    def test_an_update_does_not_end_mps_by_itself(self):
        with_mps = self.render({"pools": [self.pool(mps=True)]})["DaemonSet", "vitamin-default"]
        self.assertEqual(with_mps["spec"]["updateStrategy"], {"type": "OnDelete"})
        without = self.render()["DaemonSet", "vitamin-default"]
        self.assertEqual(without["spec"]["updateStrategy"]["type"], "RollingUpdate")

    def test_with_mps_pods_are_given_its_pipes_and_vitamind_its_state(self):
        things = self.render({"pools": [self.pool(mps=True, runtimeClassName="nvidia")]})
        pod = things["DaemonSet", "vitamin-default"]["spec"]["template"]["spec"]
        commands = {container["name"]: container["command"] for container in pod["containers"]}
        self.assertEqual(pod["runtimeClassName"], "nvidia")
        self.assertLessEqual({"--set=mps.mode=external", "--set=mps.directory=/run/vitamin-mps"},
                             set(commands["vitamind"]))
        # vitamind runs MPS's control program, which NVIDIA's runtime gives only to who asks.
        environment = {each["name"]: each["value"] for each in next(
            c for c in pod["containers"] if c["name"] == "vitamind")["env"]}
        self.assertEqual(environment, {"NVIDIA_VISIBLE_DEVICES": "none",
                                       "NVIDIA_DRIVER_CAPABILITIES": "compute"})
        self.assertIn("--mps=/run/vitamin-mps", commands["device-plugin"])
        self.assertEqual(commands["mps"][0], "nvidia-cuda-mps-control")
        without = self.render()["DaemonSet", "vitamin-default"]["spec"]["template"]["spec"]
        self.assertNotIn("runtimeClassName", without)
        self.assertNotIn("mps", json.dumps(without["volumes"]))


class Page(Rendered):
    """docs/kubernetes*.md: runs each command that needs no cluster; checks that what the others
    name exists. kubernetes_pods_test.py runs what the pages install."""

    TEXT = "".join(page.read_text() for page in sorted((SOURCE / "docs").glob("kubernetes*.md"))) \
        .replace(":VERSION", f":{generate.values_with()['image']['tag']}")

    def commands(self):
        blocks = re.findall(r"^```sh\n(.*?)^```", self.TEXT, re.M | re.S)
        lines = "".join(blocks).replace("\\\n", " ").splitlines()
        return [line.split("#")[0].strip() for line in lines if line.split("#")[0].strip()]

    def test_each_command_of_the_page_does_what_it_says(self):
        seen = set()
        for line in self.commands():
            for part in line.split(" | "):
                words = shlex.split(part)
                check = next((check for begin, check in self.CHECKS.items()
                              if part.startswith(begin)), None)
                self.assertIsNotNone(check, f"no check of: {part}")
                check(self, words)
                seen.add(check)
        self.assertEqual(seen, set(self.CHECKS.values()), "a check without a command")

    def test_each_manifest_of_the_page_is_valid(self):
        blocks = re.findall(r"^```yaml\n(.*?)^```", self.TEXT, re.M | re.S)
        self.assertTrue(blocks)
        for text in blocks:
            for thing in yaml.safe_load_all(text):
                self.assertEqual(problems(thing), [])

    def test_the_queue_of_the_page_counts_what_a_pool_offers(self):
        """Rules of Kueue that are not in the schema."""
        text, = (block for block in re.findall(r"^```yaml\n(.*?)^```", self.TEXT, re.M | re.S)
                 if "kind: ClusterQueue" in block)
        things = of({"page": text})
        queue, flavor, local = (things[kind, name] for kind, name in (
            ("ClusterQueue", "team-a"), ("ResourceFlavor", "shared-gpus"),
            ("LocalQueue", "gpu-shares")))
        group, = queue["spec"]["resourceGroups"]
        for each in group["flavors"]:
            self.assertEqual(each["name"], flavor["metadata"]["name"])
            self.assertEqual([one["name"] for one in each["resources"]],
                             group["coveredResources"])
        self.assertEqual(local["spec"]["clusterQueue"], queue["metadata"]["name"])
        self.assertEqual(queue["spec"]["namespaceSelector"]["matchLabels"],
                         {"kubernetes.io/metadata.name": local["metadata"]["namespace"]})
        pool = generate.values_with()["pools"][0]
        self.assertEqual(flavor["spec"]["nodeLabels"], pool["nodeSelector"])
        self.assertIn(f"vitamin.dev/percent-{100 // pool['shares']}", group["coveredResources"])
        self.assertIn(f"queue-name: {local['metadata']['name']}`", self.TEXT)

    def test_the_two_pods_of_the_page_fit_on_one_gpu_of_one_node(self):
        first, second = yaml.safe_load_all((DEPLOY / "examples/half-a-gpu.yaml").read_text())
        default = generate.values_with()["pools"][0]
        asked = [int(pod["spec"]["containers"][0]["resources"]["limits"][default["resource"]])
                 for pod in (first, second)]
        self.assertEqual(sum(asked), default["shares"])
        term, = second["spec"]["affinity"]["podAffinity"][
            "requiredDuringSchedulingIgnoredDuringExecution"]
        self.assertLessEqual(term["labelSelector"]["matchLabels"].items(),
                             first["metadata"]["labels"].items())
        self.assertEqual(term["topologyKey"], "kubernetes.io/hostname")

    def test_priority_classes_of_the_page_are_those_of_the_chart(self):
        classes = {name: thing for (kind, name), thing in self.render().items()
                   if kind == "PriorityClass"}
        self.assertEqual(set(re.findall(r"`priorityClassName: (\S+)`", self.TEXT)), set(classes))
        latency, batch = classes["vitamin-latency"], classes["vitamin-batch"]
        self.assertGreater(latency["value"], batch["value"])
        self.assertNotIn("preemptionPolicy", latency)  # so it preempts
        self.assertEqual(batch["preemptionPolicy"], "Never")

    def test_the_line_for_a_kustomization_names_the_image(self):
        line, = re.findall(r"`(images: \[.*?\])`", self.TEXT)
        for directory in generate.KUSTOMIZATIONS:
            with tempfile.TemporaryDirectory() as copied:
                for name in ("kustomization.yaml", "vitamin.yaml"):
                    shutil.copy(DEPLOY / directory / name, copied)
                with open(pathlib.Path(copied) / "kustomization.yaml", "a") as file:
                    file.write(f"{line}\n")
                built = subprocess.run([kubectl(), "kustomize", copied], text=True,
                                       capture_output=True)
            self.assertEqual(built.returncode, 0, built.stderr)
            self.assertIn("image: YOURS:VERSION\n", built.stdout)
            self.assertNotIn("registry.example", built.stdout)

    def builds_packages(self, words):
        self.assertEqual(words, ["ninja", "-C", "build/release", "packages"])
        self.assertIn("add_custom_target(packages\n",
                      (SOURCE / "deploy/packages.cmake").read_text())

    def builds_the_image(self, words):
        """kubernetes_image_test.py builds it."""
        done = subprocess.run([SOURCE / words[0]], text=True, capture_output=True)
        self.assertEqual(done.returncode, 1)
        self.assertIn("usage: deploy/image/build PACKAGES ARCHIVE [NAME]", done.stderr)
        self.assertEqual(len(words), 4)
        self.assertEqual(words[3], self.image())

    def copies_the_image(self, words):
        self.assertEqual(words[3], f"docker://{self.image()}")

    def image(self):
        """The image that the chart's pods name."""
        pod = self.render()["DaemonSet", "vitamin-default"]["spec"]["template"]["spec"]
        return pod["containers"][0]["image"]

    def labels_a_node(self, words):
        label, value = words[4].split("=")
        pod = self.render()["DaemonSet", "vitamin-default"]["spec"]["template"]["spec"]
        self.assertEqual(pod["nodeSelector"], {label: value})

    def applies_a_kustomization(self, words):
        built = subprocess.run([kubectl(), "kustomize", SOURCE / words[3]], text=True,
                               capture_output=True)
        self.assertEqual(built.returncode, 0, built.stderr)
        things = of({"all": built.stdout}).values()
        self.assertIn("DaemonSet", {thing["kind"] for thing in things})
        for thing in things:
            self.assertEqual(problems(thing), [])

    def applies_a_file(self, words):
        if words[3] == "-":
            return  # the commands ahead of it in the pipe are checked there
        for thing in yaml.safe_load_all((SOURCE / words[3]).read_text()):
            self.assertEqual(problems(thing), [])

    def empties_a_node(self, words):
        self.assertIn(words[1:], (["drain", "NODE", "--ignore-daemonsets", "--delete-emptydir-data",
                                   "--force"], ["uncordon", "NODE"]))

    def restarts_a_pool(self, words):
        kind, name = words[5].split("/")
        self.assertEqual((words[2:5], kind), ([generate.NAMESPACE, "rollout", "restart"],
                                              "daemonset"))
        self.assertIn(("DaemonSet", name), self.render())

    def executes_in_the_daemon(self, words):
        namespace, (kind, name) = words[2], words[4].split("/")
        self.assertEqual((namespace, kind), (generate.NAMESPACE, "ds"))
        pod = self.render()["DaemonSet", name]["spec"]["template"]["spec"]
        self.assertIn(words[6], {container["name"] for container in pod["containers"]})
        self.assertEqual(words[7], "--")
        if words[8] == "sh":  # PID is a number of the node's
            self.assertEqual(words[9:], ["-c", "kill -HUP PID"])
            self.assertTrue(pod["hostPID"])
        else:
            self.assertEqual(words[8:10], ["vitamin", "status"])

    def installs_the_chart(self, words):
        self.assertEqual(words[:4], ["helm", "upgrade", "--install", "vitamin"])
        chart = yaml.safe_load((SOURCE / words[4] / "Chart.yaml").read_text())
        self.assertEqual((chart["apiVersion"], chart["name"]), ("v2", "vitamin"))
        values = words[words.index("--values") + 1] if "--values" in words else "my.yaml"
        over = {}  # of my.yaml, the reader's own
        if values != "my.yaml":
            over = yaml.safe_load((SOURCE / values).read_text())
        repository, tag = words[words.index("--set") + 1].split(",")
        self.assertEqual((repository, tag), ("image.repository=YOURS", "image.tag=VERSION"))
        image = {"repository": "YOURS", "tag": "VERSION"}
        pod = self.render(over, {"image": image})["DaemonSet", "vitamin-default"]["spec"][
            "template"]["spec"]
        self.assertEqual(pod["containers"][0]["image"], "YOURS:VERSION")

    def creates_the_namespace(self, words):
        """As access.yaml does where the chart is not used."""
        manifests = self.render({"namespace": {"create": True}})
        namespace = manifests["Namespace", words[3]]
        if words[1] == "label":
            label, value = words[4].split("=")
            self.assertEqual(namespace["metadata"]["labels"][label], value)

    def generates_cdi(self, words):
        """NVIDIA's program, which is not here. The drivers name GPUs by UUID."""
        self.assertIn("--device-name-strategy=uuid", words)

    def renders(self, words):
        with tempfile.TemporaryDirectory() as directory:
            values = pathlib.Path(directory) / "my.yaml"
            values.write_text("monitoring: {enabled: true}\n")
            words = [str(values) if word == "my.yaml" else word for word in words]
            done = subprocess.run([sys.executable, SOURCE / words[1], *words[2:]], text=True,
                                  capture_output=True)
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertIn(("ServiceMonitor", "vitamin"), of({"all": done.stdout}))

    def advises(self, words):
        """kubernetes_advice_test.py runs it on recorded jobs."""
        known = subprocess.run([sys.executable, SOURCE / words[1], "--help"], text=True,
                               capture_output=True).stdout
        for word in words[2:]:
            if word.startswith("--"):
                self.assertIn(word, known)
            elif word.startswith("bench/"):
                self.assertTrue((SOURCE / word).exists(), word)

    CHECKS = {"ninja": builds_packages, "deploy/image/build": builds_the_image,
              "skopeo copy": copies_the_image, "kubectl label node": labels_a_node,
              "kubectl apply -k": applies_a_kustomization, "kubectl apply -f": applies_a_file,
              "kubectl drain": empties_a_node, "kubectl uncordon": empties_a_node,
              "kubectl -n vitamin-system rollout": restarts_a_pool,
              "kubectl -n vitamin-system exec": executes_in_the_daemon,
              "helm upgrade": installs_the_chart,
              "kubectl create namespace": creates_the_namespace,
              "kubectl label namespace": creates_the_namespace,
              "nvidia-ctk cdi generate": generates_cdi,
              "python3 deploy/kubernetes/generate.py": renders,
              "python3 deploy/kubernetes/advise.py": advises}


if __name__ == "__main__":
    unittest.main()
