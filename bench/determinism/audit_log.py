# SPDX-License-Identifier: Apache-2.0
"""Reads the logs of the structure audit (runtime/audit/log.h)."""

import collections
import pathlib
import struct

HEADER = struct.Struct("<QIIIIQQ24x")
RECORD = struct.Struct("<IIIIQQQII")
MAGIC, VERSION = 0x766974616D696E41, 2
LAUNCH, EVENT, WAIT, OTHER, RESULT, NAME, GRAPH = range(7)
CHANGED, UNCOVERED, UNREADABLE = 1, 2, 4

Operation = collections.namedtuple(
    "Operation", "kind kernel lane flags structure content edges processors blocks")


def read(path):
    data = pathlib.Path(path).read_bytes()
    magic, version, record_bytes, _, _, count, _ = HEADER.unpack_from(data)
    if (magic, version, record_bytes) != (MAGIC, VERSION, RECORD.size):
        raise ValueError(f"{path} is not a log of this version")
    names, operations, i = {}, [], 0
    while i < count:
        at = HEADER.size + i * RECORD.size
        kind, index, lane, *rest = RECORD.unpack_from(data, at)
        if kind == NAME:
            text = data[at + RECORD.size:at + RECORD.size + lane]
            names[index] = text.decode(errors="replace")
            i += 1 + (lane + RECORD.size - 1) // RECORD.size
            continue
        kernel = names.get(index) if kind == LAUNCH else None
        operations.append(Operation(kind, kernel, lane, *rest))
        i += 1
    return operations


def widths(logs):
    """For each kernel, by its own name: the processors at which its launches ran, in order."""
    found = {}
    for operation in (o for log in logs for o in log if o.kind == LAUNCH):
        found.setdefault(operation.kernel.split(": ")[-1], []).append(operation.processors)
    return found


def widths_text(by_kernel):
    """As the suite's program reads them."""
    return "".join(f"{width} {kernel}\n" for kernel, all_ in by_kernel.items() for width in all_)


def read_directory(directory):
    return [read(path) for path in sorted(pathlib.Path(directory).glob("*.audit"))]
