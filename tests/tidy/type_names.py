# SPDX-License-Identifier: Apache-2.0
"""One name of a type has one meaning: which names two namespaces may both define, and why.

Looked at are classes, structs, unions and enumerations of named namespaces, outside tests/; types
inside a type and of unnamed namespaces are their owner's business.
"""
import re

# Name -> what it is in each of the namespaces that define it.
SHARED = {
    "Api": "the functions of a vendor's driver, one table for each vendor",
    "Backoff": "what a thread does between two polls",
    "Context": "a context of CUDA, in the software driver and as a program is seen to use it",
    "CurrentContext": "makes a context current for its lifetime",
    "Device": "a GPU: the interface, the software device, the software driver's, a benchmark's",
    "DeviceOptions": "how a back end opens a GPU",
    "Driver": "a driver of CUDA or of the kernel's KFD, and the table of its functions",
    "ErrorClassifier": "hal::ErrorClassifier and its implementations",
    "Event": "hal::Event and the software device's",
    "FaultPoint": "a call of a software device that can be made to fail",
    "Gate": "a word of memory that streams wait for",
    "Grant": "leave to run on a partition, in the scheduler's ledger and in the message of it",
    "Graph": "a graph of CUDA or HIP",
    "GreenContext": "a green context of CUDA or HIP",
    "Kernel": "a kernel as a program registered it",
    "KernelInspector": "hal::KernelInspector and its implementations",
    "Operation": "an operation of a stream or queue",
    "ProcessState": "CUprocessState",
    "Queue": "hal::Queue and those of the software devices",
    "Random": "a small generator with a seed",
    "ScriptedFault": "a fault that a test asks of a software device",
    "Settings": "what a component was told by its environment or configuration",
    "Stream": "a stream of CUDA or HIP",
    "StreamQueue": "hal::Queue over a native stream",
}
DIRECTORIES = ("backends/", "bench/", "daemon/", "deploy/", "hal/", "interpose/", "runtime/",
               "scheduler/", "tools/")
COMMENT = re.compile(r"//[^\n]*|/\*.*?\*/|\"(?:[^\"\\\n]|\\.)*\"|'(?:[^'\\\n]|\\.)+'", re.S)
TOKEN = re.compile(
    r"\bnamespace(?P<namespace>\s+[\w:]+|)\s*\{"
    r"|\b(?:class|struct|union|enum(?:\s+(?:class|struct))?)\s+(?:\[\[[^\]]*\]\]\s*)?"
    r"(?:alignas\s*\([^)]*\)\s*)?(?P<type>\w+)(?:\s+final)?\s*(?::(?!:)[^;{()]*)?\{"
    r"|[{}]")


def defined(text):
    """(namespace, name, line) of each type that a named namespace has."""
    text = COMMENT.sub(lambda match: "\n" * match[0].count("\n"), text)
    scopes = []  # name of a namespace, "" of an unnamed one, or None for any other block
    for token in TOKEN.finditer(text):
        if token["namespace"] is not None:
            scopes.append(token["namespace"].strip())
        elif token["type"]:
            if scopes and all(scopes):
                yield "::".join(scopes), token["type"], text.count("\n", 0, token.start()) + 1
            scopes.append(None)
        elif token[0] == "{":
            scopes.append(None)
        elif scopes:
            scopes.pop()


def problems(files, shared):
    """`files`: name -> text of the tree; `shared`: as SHARED."""
    places = {}  # name of a type -> namespace -> where
    for name, text in files.items():
        if name.startswith(DIRECTORIES) and name.endswith((".h", ".cpp", ".cu")):
            for namespace, type_, line in defined(text):
                places.setdefault(type_, {}).setdefault(namespace, f"{name}:{line}")
    for type_, found in sorted(places.items()):
        if len(found) > 1 and type_ not in shared:
            (_, first), *others = sorted(found.items())
            for namespace, where in others:
                yield (f"{where}: '{type_}' of {namespace} is a type of {first} too: another "
                       f"name, or one meaning (SHARED in tests/tidy/type_names.py)")
    for type_ in sorted(shared):
        if len(places.get(type_, ())) < 2:
            yield f"tests/tidy/type_names.py:1: '{type_}' is not in two namespaces any more"
