# SPDX-License-Identifier: Apache-2.0
"""A client of vitamind whose messages are built byte by byte."""
import contextlib
import mmap
import os
import socket
import struct

from harness import DaemonTest, MAJOR, MINOR
from time_limit import time_limit


def hello(minor, more=b"", less=0, workload_class=b"", job=b"", uuid=b"GPU-member",
          program=b"skewed", units=(8,) * 15 + (12,), device=b"member"):
    """The Hello of a client of another minor version."""
    text = b"vitamin\0" + struct.pack("<HHHH", MAJOR, minor, 1, 0)
    text += struct.pack("<IIII", 0, sum(units), len(units), 0)  # vendor: software
    text += struct.pack("<64I", *units, *[0] * (64 - len(units)))
    for word in (uuid, device, program, workload_class, job):
        text += word.ljust(64, b"\0")
    text += bytes(128)  # mps_directory
    return text[:len(text) - less] + more


def connected(daemon):
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    connection.settimeout(time_limit(5))
    connection.connect(str(daemon.socket))
    return connection


def taken(connection):
    """An answer, and how many descriptors were sent with it."""
    answer, files, _, _ = socket.recv_fds(connection, 4096, 4)
    for file in files:
        os.close(file)
    return answer, len(files)


def parsed(answer):
    return struct.unpack("<H", answer[12:14])[0], answer[16:].split(b"\0")[0]


@contextlib.contextmanager
def session(daemon):
    """A client's socket, its segment and the daemon's (daemon/protocol/segment.h)."""
    with connected(daemon) as client:
        client.send(hello(MINOR))
        _, files, _, _ = socket.recv_fds(client, 4096, 4)
        own = mmap.mmap(files[0], os.fstat(files[0]).st_size)
        daemons = mmap.mmap(files[1], os.fstat(files[1]).st_size, prot=mmap.PROT_READ)
        for file in files:
            os.close(file)
        yield client, own, daemons


class RawClientTest(DaemonTest):
    def works(self, daemon):
        self.assertEqual(self.result(self.member(daemon, "work", 50))["submitted"], 50)

    def held(self, daemon):
        return daemon.status()["devices"][0]["held"]
