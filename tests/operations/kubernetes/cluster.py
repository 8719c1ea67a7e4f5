# SPDX-License-Identifier: Apache-2.0
"""Stand-ins for the kubelet and the API server, by their published protocols."""
import collections
import concurrent.futures
import copy
import ctypes
import http.server
import importlib
import json
import os
import pathlib
import re
import ssl
import subprocess
import sys
import threading
import urllib.parse

import grpc
import yaml

from machine import BUILD, SOURCE, alone
from schema import problems
from time_limit import time_limit, wait_until

PROTOS = [SOURCE / "deploy/kubernetes/dra/dra_plugin.proto",
          SOURCE / "deploy/kubernetes/dra/plugin_registration.proto",
          SOURCE / "deploy/kubernetes/device_plugin.proto",
          SOURCE / "deploy/kubernetes/pod_resources.proto"]


def messages(name):
    """The Python module of one of PROTOS."""
    directory = BUILD / "tests/operations/kubernetes_messages"
    with alone(directory):
        for proto in PROTOS:
            made = directory / f"{proto.stem}_pb2.py"
            if not made.exists() or made.stat().st_mtime < proto.stat().st_mtime:
                subprocess.run(["protoc", f"--python_out={directory}",
                                f"--proto_path={proto.parent}", proto], check=True)
    if str(directory) not in sys.path:
        sys.path.append(str(directory))
    return importlib.import_module(f"{name}_pb2")


def call(socket, method, request, answer):
    """One unary call: "package.Service/Method"."""
    with grpc.insecure_channel(f"unix://{socket}") as channel:
        return channel.unary_unary(f"/{method}", type(request).SerializeToString,
                                   answer.FromString)(request, timeout=time_limit(30),
                                                      wait_for_ready=True)


class DraKubelet:
    """Looks into the registry for sockets, and calls the driver behind one."""
    SERVICE = "k8s.io.kubelet.pkg.apis.dra.v1.DRAPlugin"

    def __init__(self, registry, root=""):
        """`root`: where the root directory of the driver is for this process."""
        self.registry, self.root = pathlib.Path(registry), root
        self.dra = messages("dra_plugin")
        self.registration = messages("plugin_registration")

    def register(self):
        """The information of the driver in the registry."""
        wait_until(lambda: list(self.registry.glob("*.sock")), what="a socket in the registry")
        socket, = self.registry.glob("*.sock")
        info = call(socket, "pluginregistration.Registration/GetInfo",
                    self.registration.InfoRequest(), self.registration.PluginInfo)
        call(socket, "pluginregistration.Registration/NotifyRegistrationStatus",
             self.registration.RegistrationStatus(plugin_registered=True),
             self.registration.RegistrationStatusResponse)
        self.endpoint = f"{self.root}{info.endpoint}"
        return info

    def _call(self, method, request, answer, claims):
        for claim in claims:
            request.claims.add(namespace=claim["metadata"]["namespace"],
                               name=claim["metadata"]["name"], uid=claim["metadata"]["uid"])
        return dict(call(self.endpoint, f"{self.SERVICE}/{method}", request, answer).claims)

    def prepare(self, *claims):
        """Answers by the claims' UIDs."""
        return self._call("NodePrepareResources", self.dra.NodePrepareResourcesRequest(),
                          self.dra.NodePrepareResourcesResponse, claims)

    def unprepare(self, *claims):
        return self._call("NodeUnprepareResources", self.dra.NodeUnprepareResourcesRequest(),
                          self.dra.NodeUnprepareResourcesResponse, claims)


class PodResources:
    """What the kubelet says of the devices of its node and of the pods that have them."""

    def __init__(self, socket):
        self.messages = messages("pod_resources")
        self.offered = {}  # IDs of devices, by resource
        self.pods = {}  # by (namespace, name): the same
        self.claims = {}  # (namespace, name) of claims, by those of a pod
        self.asked = 0
        self.server = grpc.server(concurrent.futures.ThreadPoolExecutor(2))
        self.server.add_generic_rpc_handlers([grpc.method_handlers_generic_handler(
            "v1.PodResourcesLister", {"List": self._method("ListPodResources", self._list),
                                      "GetAllocatableResources": self._method(
                                          "AllocatableResources", self._allocatable)})])
        self.server.add_insecure_port(f"unix://{socket}")
        self.server.start()

    def close(self):
        self.server.stop(None).wait()

    def _method(self, name, function):
        return grpc.unary_unary_rpc_method_handler(
            function, getattr(self.messages, f"{name}Request").FromString,
            getattr(self.messages, f"{name}Response").SerializeToString)

    def _allocatable(self, *_):
        answer = self.messages.AllocatableResourcesResponse()
        for resource, ids in self.offered.items():
            answer.devices.add(resource_name=resource, device_ids=ids)
        return answer

    def _list(self, *_):
        self.asked += 1
        answer = self.messages.ListPodResourcesResponse()
        for (namespace, name), devices in self.pods.items():
            container = answer.pod_resources.add(namespace=namespace, name=name).containers.add()
            for resource, ids in devices.items():
                container.devices.add(resource_name=resource, device_ids=ids)
        for (namespace, name), claims in self.claims.items():
            container = answer.pod_resources.add(namespace=namespace, name=name).containers.add()
            for claim_namespace, claim_name in claims:
                container.dynamic_resources.add(claim_namespace=claim_namespace,
                                                claim_name=claim_name)
        return answer


# Rules of the API server beyond names and types, as its documentation of each field states them.
LABEL = re.compile(r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?")


def slice_problems(thing):
    found = problems(thing)
    if found:
        return found
    spec = thing["spec"]
    names = [device["name"] for device in spec["devices"]]
    for name in names:
        if not LABEL.fullmatch(name):
            found.append(f"device {name}: no DNS label")
    if len(set(names)) < len(names) or len(names) > 128:
        found.append("devices: not unique, or more than 128")
    for device in spec["devices"]:
        if len(device.get("attributes", {})) + len(device.get("capacity", {})) > 32:
            found.append(f"device {device['name']}: more than 32 attributes and capacities")
        for value in device.get("attributes", {}).values():
            if len(value) != 1 or len(value.get("string", "")) > 64:
                found.append(f"device {device['name']}: attribute {value}")
        for capacity in device.get("capacity", {}).values():
            policy = capacity.get("requestPolicy")
            if policy is None:
                continue
            if not device.get("allowMultipleAllocations"):
                found.append(f"device {device['name']}: a policy, but one allocation")
            low, high = (int(policy["validRange"][word]) for word in ("min", "max"))
            if not low <= int(policy["default"]) <= high <= int(capacity["value"]):
                found.append(f"device {device['name']}: {policy}")
    return found


def canonical(quantity):
    """"134217728000" is "134217728k"."""
    number, suffixes = int(quantity), iter(["k", "M", "G", "T", "P"])
    suffix = ""
    while number and number % 1000 == 0:
        number, suffix = number // 1000, next(suffixes)
    return f"{number}{suffix}"


OVERLAY = SOURCE / "deploy/kubernetes/overlays/dra/vitamin.yaml"
PATH = re.compile(r"/(?:api|apis/(?P<group>[^/]+))/v1/(?:namespaces/[^/]+/)?(?P<resource>[^/]+)"
                  r"(?P<name>/[^/]+)?")


def rules_of_the_driver():
    """Of the role that the manifests give the driver's service account."""
    return next(thing["rules"] for thing in yaml.safe_load_all(OVERLAY.read_text())
                if thing["kind"] == "ClusterRole")


def grants(rules):
    """What such rules (RBAC) allow: (verb, API group, resource) of each."""
    return {(verb, group, resource) for rule in rules for verb in rule["verbs"]
            for group in rule["apiGroups"] for resource in rule["resources"]}


def grant_of(method, path):
    """What a request needs."""
    asked = PATH.fullmatch(path)
    if asked is None:
        return method, path
    verb = {"GET": "get" if asked["name"] else "list", "POST": "create", "PUT": "update"}[method]
    return verb, asked["group"] or "", asked["resource"]


def in_network_of(process, make):
    """What make() returns; the sockets that it makes are in the network of that process."""
    clone_newnet = 0x40000000  # linux/sched.h
    libc = ctypes.CDLL(None, use_errno=True)

    def entered():
        with open(f"/proc/{process}/ns/net", encoding="ascii") as network:
            if libc.setns(network.fileno(), clone_newnet) != 0:
                raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
        return make()
    with concurrent.futures.ThreadPoolExecutor(1) as thread:  # a thread has a network of its own
        return thread.submit(entered).result()


def self_signed(directory):
    """Files of a certificate for a server at 127.0.0.1 and of its key. Needs openssl."""
    made, key = directory / "certificate", directory / "key"
    subprocess.run(["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-keyout", key,
                    "-out", made, "-days", "1", "-subj", "/CN=127.0.0.1", "-addext",
                    "subjectAltName=IP:127.0.0.1"], check=True, capture_output=True)
    return made, key


class ApiServer:
    """Slices and claims of resource.k8s.io/v1. What is written is checked, and who asks may ask
    what the driver's role allows."""
    SLICES = "/apis/resource.k8s.io/v1/resourceslices"

    def __init__(self, token=None, certificate=None, network_of=None):
        """`network_of`: the process from whose network it is reached; None: this one."""
        self.slices, self.claims = {}, {}
        self.refused = []  # what the schema or a rule refused
        self.conflicts = 0  # PUTs to answer with 409
        self.claims_fail = None  # the status that reads of claims are answered with instead
        self.consumable_capacity = True  # the feature gate
        self.reads = collections.Counter()  # GETs: "claims", "slices"
        self.lock = threading.Lock()
        self.token = token
        self.granted = grants(rules_of_the_driver())
        self.used = set()  # of those
        handler = type("Handler", (_Handler,), {"api": self})
        def make():
            return http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
        self.server = make() if network_of is None else in_network_of(network_of, make)
        scheme = "http"
        if certificate is not None:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.load_cert_chain(*certificate)
            self.server.socket = context.wrap_socket(self.server.socket, server_side=True)
            scheme = "https"
        self.port = self.server.server_address[1]
        self.url = f"{scheme}://127.0.0.1:{self.port}"
        self.thread = threading.Thread(target=self.server.serve_forever, args=(0.05,), daemon=True)
        self.thread.start()

    def close(self):
        self.server.shutdown()
        self.server.server_close()
        self.thread.join()

    def add_claim(self, claim):
        found = problems(claim)
        assert not found, found
        metadata = claim["metadata"]
        self.claims[metadata["namespace"], metadata["name"]] = claim
        return claim

    def slice_of(self, driver="vitamin.dev"):
        with self.lock:
            return next((s for s in self.slices.values() if s["spec"]["driver"] == driver), None)

    def published(self):
        """UUIDs in the driver's slice; None: it has none."""
        found = self.slice_of()
        return None if found is None else sorted(
            device["attributes"]["uuid"]["string"] for device in found["spec"]["devices"])

    def answer(self, method, path, body):
        path = urllib.parse.urlsplit(path).path
        needed = grant_of(method, path)
        if needed not in self.granted:
            return 403, {"message": f"the role does not allow {method} {path}"}
        self.used.add(needed)
        claim = re.fullmatch(r"/apis/resource.k8s.io/v1/namespaces/([^/]+)/resourceclaims/([^/]+)",
                             path)
        if method == "GET" and claim and claim.groups() in self.claims:
            self.reads["claims"] += 1
            if self.claims_fail is not None:
                return self.claims_fail, {"message": "not now"}
            return 200, self.claims[claim.groups()]
        if method == "GET" and path.startswith("/api/v1/nodes/"):
            return 200, {"kind": "Node", "metadata": {"name": path.split("/")[-1],
                                                      "uid": "uid-of-node"}}
        if method == "GET" and path == self.SLICES:
            self.reads["slices"] += 1
            return 200, {"kind": "ResourceSliceList", "items": list(self.slices.values())}
        name = path.removeprefix(self.SLICES).strip("/")
        if method == "PUT" and name in self.slices or method == "POST" and path == self.SLICES:
            return self.write(method, json.loads(body))
        return 404, {"message": "not found"}

    def write(self, method, thing):
        found = slice_problems(thing)
        if found:
            self.refused += found
            return 422, {"message": found[0]}
        name = thing["metadata"]["name"]
        before = self.slices.get(name)
        if (method == "POST") == (before is not None):
            return 409, {"message": "exists already" if before else "not found"}
        version = before["metadata"]["resourceVersion"] if before else "0"
        if before and (self.conflicts > 0 or thing["metadata"].get("resourceVersion") != version):
            self.conflicts -= 1
            return 409, {"message": "the object has been modified"}
        thing["metadata"]["resourceVersion"] = str(int(version) + 1)
        thing = self.slices[name] = self.kept(thing)
        return 201 if before is None else 200, thing

    def kept(self, thing):
        """As the API server stores a slice: quantities in their canonical form, and nothing of a
        feature that is off."""
        thing = copy.deepcopy(thing)
        for device in thing["spec"]["devices"]:
            if not self.consumable_capacity:
                device.pop("allowMultipleAllocations")
            for capacity in device["capacity"].values():
                capacity["value"] = canonical(capacity["value"])
                policy = capacity["requestPolicy"]
                policy["default"] = canonical(policy["default"])
                policy["validRange"] = {key: canonical(value)
                                        for key, value in policy["validRange"].items()}
                if not self.consumable_capacity:
                    del capacity["requestPolicy"]
        return thing


class _Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        length = int(self.headers.get("Content-Length") or 0)
        body = self.rfile.read(length)
        api = self.api
        if api.token and self.headers.get("Authorization") != f"Bearer {api.token}":
            status, thing = 401, {"message": "Unauthorized"}
        else:
            with api.lock:
                status, thing = api.answer(self.command, self.path, body)
        text = json.dumps(thing).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text)

    do_POST = do_PUT = do_GET

    def handle(self):
        try:
            super().handle()
        except (BrokenPipeError, ConnectionResetError, ssl.SSLError):
            pass  # the driver was ended

    def log_message(self, *_):
        pass
