# SPDX-License-Identifier: Apache-2.0
"""A node of a cluster, as far as podman can be one: it runs pods of the chart, and a stand-in of
the kubelet gives containers what the device plugin allocates, by the published protocol."""
import concurrent.futures
import copy
import json
import pathlib

import grpc
import yaml

from cluster import call, messages
from time_limit import wait_until

DEVICE_PLUGINS = "var/lib/kubelet/device-plugins"
LOGS = "/var/log/containers"

# Of a pod, what podman 4.3 has no word for. hostPID is given to it by its configuration.
UNKNOWN_TO_PODMAN = ("hostPID", "priorityClassName", "nodeSelector", "tolerations",
                     "serviceAccountName", "automountServiceAccountToken", "runtimeClassName")
UNKNOWN_OF_A_CONTAINER = ("livenessProbe", "readinessProbe", "resources", "ports")


class Kubelet:
    """Takes registrations, follows the devices of each resource and allocates them."""

    def __init__(self, root):
        self.api = messages("device_plugin")
        self.directory = pathlib.Path(root) / DEVICE_PLUGINS
        self.directory.mkdir(parents=True, exist_ok=True)
        self.given = {}  # resource: devices in use
        self.start()

    def start(self):
        """As the kubelet: whatever socket lies in the directory goes."""
        for socket in self.directory.glob("*.sock"):
            socket.unlink()
        self.registered = {}  # resource: socket of its plugin
        self.server = grpc.server(concurrent.futures.ThreadPoolExecutor(4))
        self.server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(
            "v1beta1.Registration", {"Register": grpc.unary_unary_rpc_method_handler(
                self.register, self.api.RegisterRequest.FromString,
                self.api.Empty.SerializeToString)}),))
        self.server.add_insecure_port(f"unix://{self.directory}/kubelet.sock")
        self.server.start()

    def stop(self):
        self.server.stop(0).wait()

    def restart(self):
        self.stop()
        self.start()

    def register(self, request, _):
        self.registered[request.resource_name] = self.directory / request.endpoint
        return self.api.Empty()

    def await_registration(self):
        """One that comes after this call's beginning or the last start()."""
        wait_until(lambda: self.registered, "the registration of a plugin", 60)

    def healthy(self, resource):
        """IDs of devices, from the first answer of the plugin's stream."""
        if resource not in self.registered:
            return []
        with grpc.insecure_channel(f"unix://{self.registered[resource]}") as channel:
            stream = channel.unary_stream(
                "/v1beta1.DevicePlugin/ListAndWatch", self.api.Empty.SerializeToString,
                self.api.ListAndWatchResponse.FromString)(self.api.Empty(), wait_for_ready=True)
            answer = next(iter(stream))
            stream.cancel()
        return [device.ID for device in answer.devices if device.health == "Healthy"]

    def allocate(self, resource, count):
        """What a container gets for so many of the resource. Raises grpc.RpcError."""
        used = self.given.setdefault(resource, set())
        free = [device for device in self.healthy(resource) if device not in used]
        if len(free) < count:
            raise RuntimeError(f"Insufficient {resource}")  # the scheduler's word
        request = self.api.AllocateRequest()
        request.container_requests.add().devices_ids.extend(free[:count])
        answer = call(self.registered[resource], "v1beta1.DevicePlugin/Allocate", request,
                      self.api.AllocateResponse)
        used.update(free[:count])
        return answer.container_responses[0]


def playable(pod, image=None, name=None):
    """The pod as podman understands it; `image`: of all its containers."""
    pod = copy.deepcopy(pod)
    spec = pod["spec"]
    for word in UNKNOWN_TO_PODMAN:
        spec.pop(word, None)
    spec["hostNetwork"] = True  # the machine of a test has no other
    for container in spec.get("initContainers", []) + spec["containers"]:
        for word in UNKNOWN_OF_A_CONTAINER:
            container.pop(word, None)
        if image is not None:
            container["image"] = image
    if name is not None:
        pod["metadata"]["name"] = name
    return {"apiVersion": "v1", "kind": "Pod", "metadata": pod["metadata"], "spec": spec}


def with_allocations(pod, kubelet):
    """The pod with what the device plugin gives for its limits, as the kubelet adds it."""
    pod = copy.deepcopy(pod)
    volumes = pod["spec"].setdefault("volumes", [])
    for container in pod["spec"]["containers"]:
        limits = container.get("resources", {}).get("limits", {})
        for resource, count in limits.items():
            if "/" not in resource:
                continue
            given = kubelet.allocate(resource, int(count))
            container.setdefault("env", []).extend(
                {"name": key, "value": value} for key, value in sorted(given.envs.items()))
            for mount in given.mounts:
                volume = f"given-{len(volumes)}"
                volumes.append({"name": volume, "hostPath": {"path": mount.host_path}})
                container.setdefault("volumeMounts", []).append(
                    {"name": volume, "mountPath": mount.container_path,
                     "readOnly": mount.read_only})
    return pod


def with_service_account(pod, api, directory, node):
    """The pod as the kubelet of the node completes it for programs that ask the API server: the
    name of its node, the server's address, and the files of its service account, which lie in that
    directory of the node."""
    pod = copy.deepcopy(pod)
    assert pod["spec"]["automountServiceAccountToken"]
    pod["spec"].setdefault("volumes", []).append(
        {"name": "service-account", "hostPath": {"path": directory}})
    for container in pod["spec"]["containers"]:
        for variable in container.setdefault("env", []):
            field = variable.pop("valueFrom", {}).get("fieldRef", {}).get("fieldPath")
            if field == "spec.nodeName":
                variable["value"] = node
        container["env"] += [{"name": "KUBERNETES_SERVICE_HOST", "value": "127.0.0.1"},
                             {"name": "KUBERNETES_SERVICE_PORT", "value": str(api.port)}]
        container["volumeMounts"].append(
            {"name": "service-account", "readOnly": True,
             "mountPath": "/var/run/secrets/kubernetes.io/serviceaccount"})
    return pod


class Node:
    """`podman`: runs it in the machine; `machine`: the throw-away copy that is the node."""

    def __init__(self, machine, podman):
        self.machine, self.podman = machine, podman
        self.machine.run("mkdir", "-p", LOGS, "/var/lib/kubelet/pod-resources",
                         "/var/lib/kubelet/plugins_registry")

    def play(self, pod, config_maps=(), host_pids=False):
        """Starts a pod; `config_maps`: of its volumes."""
        name = pod["metadata"]["name"]
        self.machine.write(f"/tmp/{name}.yaml", yaml.safe_dump_all([*config_maps, pod]))
        self.podman("kube", "play", "--start=false", f"/tmp/{name}.yaml", host_pids=host_pids)
        self.start(pod, host_pids)

    def play_claimed(self, pod, devices):
        """Starts a pod of one container that has these CDI devices, in control groups that name
        the pod's UID as the kubelet's do. `kube play` of podman 4.3 has no words for either."""
        metadata, container = pod["metadata"], pod["spec"]["containers"][0]
        self.podman("pod", "create", f"--name={metadata['name']}", "--network=host",
                    f"--cgroup-parent=/pod{metadata['uid']}")
        self.podman("create", f"--pod={metadata['name']}",
                    f"--name={metadata['name']}-{container['name']}",
                    *(f"--device={device}" for device in devices), container["image"],
                    *container["command"])
        self.start(pod)

    def start(self, pod, host_pids=False):
        """Starts a pod that is made. Links of its containers' logs, which the kubelet keeps, name
        them."""
        name, namespace = pod["metadata"]["name"], pod["metadata"].get("namespace", "default")
        for container in pod["spec"]["containers"]:
            known = self.inspect(f"{name}-{container['name']}")
            link = f"{LOGS}/{name}_{namespace}_{container['name']}-{known['Id']}.log"
            self.machine.run("ln", "-s", "/dev/null", link)
        self.podman("pod", "start", name, host_pids=host_pids)

    def inspect(self, container):
        return json.loads(self.podman("container", "inspect", container).stdout)[0]
