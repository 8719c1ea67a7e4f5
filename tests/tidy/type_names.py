# SPDX-License-Identifier: Apache-2.0
"""One name of a type has one meaning: which names several namespaces may define, and why.

Looked at are classes, structs, unions and enumerations of named namespaces, outside tests/; types
inside a type and of unnamed namespaces are their owner's business, and aliases name another type.
"""
import re

# Name -> the namespaces that may define it, and what it is in each of them.
SHARED = {
    "Api": (
        "vitamin::cuda vitamin::hip",
        "the functions of a vendor's driver, one table for each vendor"),
    "Backoff": (
        "vitamin::runtime vitamin::soft::amdgpu",
        "what a thread does between two polls"),
    "Context": (
        "vitamin::interpose vitamin::soft::driver",
        "a context of CUDA, in the software driver and as a program is seen to use it"),
    "CurrentContext": (
        "vitamin::cuda vitamin::interpose",
        "makes a context current for its lifetime"),
    "Device": (
        "bench vitamin::hal vitamin::soft vitamin::soft::driver",
        "a GPU: the interface, the software device, the software driver's, a benchmark's"),
    "DeviceOptions": (
        "vitamin::cuda vitamin::hip",
        "how a back end opens a GPU"),
    "Driver": (
        "bench vitamin::soft::amdgpu::kfd vitamin::soft::driver",
        "a driver of CUDA or of the kernel's KFD, and the table of its functions"),
    "ErrorClassifier": (
        "vitamin::cuda vitamin::hal vitamin::hip",
        "hal::ErrorClassifier and its implementations"),
    "Event": (
        "vitamin::hal vitamin::soft",
        "hal::Event and the software device's"),
    "FaultPoint": (
        "vitamin::soft vitamin::soft::amdgpu",
        "a call of a software device that can be made to fail"),
    "Gate": (
        "bench vitamin::soft",
        "a word of memory that streams wait for"),
    "Grant": (
        "vitamin::protocol vitamin::scheduler",
        "leave to run on a partition, in the scheduler's ledger and in the message of it"),
    "Graph": (
        "vitamin::runtime vitamin::soft::driver",
        "a graph of CUDA or HIP"),
    "GreenContext": (
        "vitamin::cuda vitamin::hip vitamin::soft::driver",
        "a green context of CUDA or HIP"),
    "Kernel": (
        "vitamin::hip vitamin::runtime",
        "a kernel as a program registered it"),
    "KernelInspector": (
        "vitamin::cuda vitamin::hal vitamin::hip",
        "hal::KernelInspector and its implementations"),
    "Operation": (
        "vitamin::runtime vitamin::soft",
        "an operation of a stream or queue"),
    "ProcessState": (
        "vitamin::soft vitamin::tools",
        "CUprocessState"),
    "Queue": (
        "vitamin::hal vitamin::soft vitamin::soft::amdgpu",
        "hal::Queue and those of the software devices"),
    "Random": (
        "vitamin::scheduler vitamin::soft",
        "a small generator with a seed"),
    "ScriptedFault": (
        "vitamin::soft::amdgpu vitamin::soft::driver",
        "a fault that a test asks of a software device"),
    "Settings": (
        "vitamin::daemon vitamin::hip vitamin::soft::amdgpu vitamin::soft::driver",
        "what a component was told by its environment or configuration"),
    "Stream": (
        "vitamin::runtime vitamin::soft::driver",
        "a stream of CUDA or HIP"),
    "StreamQueue": (
        "vitamin::cuda vitamin::hip",
        "hal::Queue over a native stream"),
}
DIRECTORIES = ("backends/", "bench/", "daemon/", "deploy/", "hal/", "interpose/", "runtime/",
               "scheduler/", "tools/")
# What is no code, from its beginning: comments, raw and other strings, numbers with separators,
# characters, and the marks and macros between the key of a type and its name.
NO_CODE = re.compile(
    r'//[^\n]*|/\*.*?\*/|R"(?P<mark>[^(\s]*)\(.*?\)(?P=mark)"|"(?:[^"\\\n]|\\.)*"'
    r"|\b\d[\w.']*|'(?:[^'\\\n]|\\.)+'|\[\[[^\]]*\]\]"
    r"|\b(?:__attribute__|alignas)\s*\((?:[^()]|\((?:[^()]|\([^()]*\))*\))*\)"
    r"|\binline(?=\s+namespace\b)|^[ \t]*#(?:[^\n\\]|\\.)*",
    re.S | re.M)
TOKEN = re.compile(
    r"\bnamespace(?P<namespace>[\s\w:]*)\{"
    r"|\b(?:class|struct|union|enum(?:\s+(?:class|struct))?)\s+(?:[A-Z][A-Z_]+\s+)?"
    r"(?P<type>\w+)(?:\s+final)?\s*(?::(?!:)[^;{]*)?\{"
    r"|[{}]")


class Unbalanced(Exception):
    pass


def defined(text):
    """(namespace, name, line) of each type that a named namespace has."""
    text = NO_CODE.sub(lambda match: "\n" * match[0].count("\n"), text)
    scopes = []  # name of a namespace, "" of an unnamed one, or None for any other block
    for token in TOKEN.finditer(text):
        if token["namespace"] is not None:
            names = [name.split()[-1] for name in token["namespace"].split("::") if name.strip()]
            scopes.append("::".join(names))
        elif token["type"]:
            if scopes and all(scopes):
                yield "::".join(scopes), token["type"], text.count("\n", 0, token.start()) + 1
            scopes.append(None)
        elif token[0] == "{":
            scopes.append(None)
        elif scopes:
            scopes.pop()
        else:
            raise Unbalanced
    if scopes:
        raise Unbalanced


def problems(files, shared):
    """`files`: name -> text of the tree; `shared`: as SHARED."""
    places = {}  # name of a type -> namespace -> where
    for name, text in files.items():
        if name.startswith(DIRECTORIES) and name.endswith((".h", ".cpp", ".cu")):
            try:
                for namespace, type_, line in defined(text):
                    places.setdefault(type_, {}).setdefault(namespace, f"{name}:{line}")
            except Unbalanced:
                yield f"{name}:1: its braces do not match as tests/tidy/type_names.py reads them"
    for type_, found in sorted(places.items()):
        permitted = set(shared.get(type_, ("",))[0].split())
        others = sorted(set(found) - permitted)
        if not permitted:
            first, *others = others
            permitted = {first}
        for namespace in others:
            yield (f"{found[namespace]}: '{type_}' of {namespace} is a type of "
                   f"{', '.join(sorted(permitted))} too: another name, or one meaning (SHARED in "
                   "tests/tidy/type_names.py)")
    for type_, (namespaces, _) in sorted(shared.items()):
        for namespace in sorted(set(namespaces.split()) - set(places.get(type_, ()))):
            yield f"tests/tidy/type_names.py:1: {namespace} has no '{type_}' any more"
