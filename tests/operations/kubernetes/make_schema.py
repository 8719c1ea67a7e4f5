#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Makes schema.json: names, types and required fields of the Kubernetes objects that are used here.

    make_schema.py WHEEL >schema.json

WHEEL is the Kubernetes project's Python client (Apache-2.0), release 37, whose models are generated
from the API's OpenAPI description. Only facts are taken: field names, types, which are required.
"""
import ast
import json
import re
import sys
import zipfile

KINDS = {  # kind: (apiVersion, model)
    "Namespace": ("v1", "V1Namespace"),
    "ServiceAccount": ("v1", "V1ServiceAccount"),
    "ConfigMap": ("v1", "V1ConfigMap"),
    "Service": ("v1", "V1Service"),
    "Pod": ("v1", "V1Pod"),
    "ResourceQuota": ("v1", "V1ResourceQuota"),
    "DaemonSet": ("apps/v1", "V1DaemonSet"),
    "PriorityClass": ("scheduling.k8s.io/v1", "V1PriorityClass"),
    "ClusterRole": ("rbac.authorization.k8s.io/v1", "V1ClusterRole"),
    "ClusterRoleBinding": ("rbac.authorization.k8s.io/v1", "V1ClusterRoleBinding"),
    "DeviceClass": ("resource.k8s.io/v1", "V1DeviceClass"),
    "ResourceSlice": ("resource.k8s.io/v1", "V1ResourceSlice"),
    "ResourceClaim": ("resource.k8s.io/v1", "ResourceV1ResourceClaim"),
    "ResourceClaimTemplate": ("resource.k8s.io/v1", "V1ResourceClaimTemplate"),
}
PLAIN = {"str": {"type": "string"}, "int": {"type": "integer"}, "bool": {"type": "boolean"},
         "float": {"type": "number"}, "object": {}, "Any": {}, "datetime": {"type": "string"},
         "bytes": {"type": "string"}}


def schema_of(kind, wanted):
    """Of a type as the models name it; models that it needs are added to `wanted`."""
    inner = re.fullmatch(r"(?:List|list)\[(.*)\]", kind)
    if inner:
        return {"type": "array", "items": schema_of(inner[1], wanted)}
    inner = re.fullmatch(r"(?:Dict|dict)[\[(]str, (.*)[\])]", kind)
    if inner:
        return {"type": "object", "additionalProperties": schema_of(inner[1], wanted)}
    if kind in PLAIN:
        return PLAIN[kind]
    wanted.append(kind)
    return {"$ref": f"#/definitions/{kind}"}


def table(text, name):
    """A class's dictionary of strings."""
    found = re.search(rf"^    {name}: ClassVar.*? = (\{{.*?^    \}})", text, re.S | re.M)
    return ast.literal_eval(found[1])


def main():
    wheel = zipfile.ZipFile(sys.argv[1])
    models = {}
    for path in wheel.namelist():
        if path.startswith("kubernetes/client/models/") and path.endswith(".py"):
            text = wheel.read(path).decode()
            for name in re.findall(r"^class (\w+)\(BaseModel\)", text, re.M):
                models[name] = text
    wanted, definitions = [model for _, model in KINDS.values()], {}
    while wanted:
        name = wanted.pop()
        if name in definitions:
            continue
        text = models[name]
        keys = table(text, "attribute_map")
        definitions[name] = {
            "type": "object", "additionalProperties": False,
            "properties": {keys[field]: schema_of(kind, wanted)
                           for field, kind in sorted(table(text, "openapi_types").items())}}
        required = sorted(keys[field] for field in keys
                          if re.search(rf"^    {field}: (?!Optional|ClassVar)", text, re.M))
        if required:
            definitions[name]["required"] = required
    print(json.dumps({"kinds": {kind: {"apiVersion": version, "$ref": f"#/definitions/{model}"}
                                for kind, (version, model) in sorted(KINDS.items())},
                      "definitions": dict(sorted(definitions.items()))},
                     indent=None, separators=(",", ":"), sort_keys=True).replace(
                         '},"V1', '},\n"V1'))


if __name__ == "__main__":
    main()
