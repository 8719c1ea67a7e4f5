# SPDX-License-Identifier: Apache-2.0
"""Ports of this machine for tests, which run beside other tests."""

import socket


def reserved_port(test):
    """A port where nothing listens, and which the kernel gives to no other program until the test
    ends. A server that the test tells of it may still listen there: it sets SO_REUSEADDR, as most
    do."""
    held = socket.socket()
    test.addCleanup(held.close)
    held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    held.bind(("127.0.0.1", 0))
    return held.getsockname()[1]
