#!/usr/bin/python3 -IS
# SPDX-License-Identifier: Apache-2.0
"""A fake of nvidia-cuda-mps-control, which behaves as its manual describes.

-d starts a control daemon in $CUDA_MPS_PIPE_DIRECTORY (pid file, a socket named control). Else
each line of standard input is a command for that daemon, with its answer on
standard output, exit code 1 when there is none. The test writes to the file `world` there which
servers and clients exist: {"servers": {"PID": {"status": "ACTIVE", "clients": [1]}}}. Programs over
the software driver are clients, too (backends/soft/libcuda/mps_client.h).
"""
import json
import os
import pathlib
import socket
import sys

DIRECTORY = pathlib.Path(os.environ["CUDA_MPS_PIPE_DIRECTORY"])
CONTROL = DIRECTORY / "control"


def runs(pid):
    try:
        return pathlib.Path(f"/proc/{pid}/stat").read_text().rsplit(") ")[-1][0] not in "ZX"
    except OSError:
        return False


def soft_server():
    try:
        number, fault, *clients = (DIRECTORY / "soft-server").read_text().split()
    except (OSError, ValueError):
        return {}
    left = [int(pid) for pid in clients if runs(pid)]
    if not left:
        return {}  # a server ends with its last client, also after a fault
    return {number: {"status": "ACTIVE" if fault == "0" else "FAULT", "clients": left}}


def world():
    try:
        told = json.loads((DIRECTORY / "world").read_text())
    except (OSError, ValueError):
        told = {}
    return told | {"servers": told.get("servers", {}) | soft_server()}


def obey(command):
    words = command.split()
    servers = world().get("servers", {})
    with open(DIRECTORY / "commands", "a", encoding="ascii") as log:
        log.write(command + "\n")
    if not words:
        return ""
    if words[0] == "get_server_list":
        return "".join(pid + "\n" for pid in servers)
    if words[0] == "get_server_status":
        return servers[words[1]]["status"] + "\n" if words[1] in servers else "Server not found\n"
    if words[0] == "get_client_list":
        return "".join(f"{pid}\n" for pid in servers.get(words[1], {"clients": []})["clients"])
    if words[0] == "terminate_client":
        known = servers.get(words[1], {"clients": []})["clients"]
        return "" if int(words[2]) in known else "Client not found\n"
    if words[0] == "get_default_active_thread_percentage":
        return world().get("share", "100.0") + "\n"
    return f"Unrecognized command: {words[0]}\n" if words[0] != "quit" else ""


def serve():
    if world().get("refuse"):
        sys.exit("Cannot find MPS control daemon's device")
    try:
        with socket.socket(socket.AF_UNIX) as old:
            old.connect(str(CONTROL))
        sys.exit("An instance of this daemon is already running")
    except OSError:
        CONTROL.unlink(missing_ok=True)
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(str(CONTROL))
    listener.listen()
    if os.fork() != 0:
        os._exit(0)
    os.setsid()
    nothing = os.open("/dev/null", os.O_RDWR)
    for stream in range(3):
        os.dup2(nothing, stream)
    (DIRECTORY / "nvidia-cuda-mps-control.pid").write_text(str(os.getpid()))
    (DIRECTORY / "world").unlink(missing_ok=True)  # a new daemon has no servers yet
    while True:
        connection, _ = listener.accept()
        with connection:
            command = connection.recv(4096).decode()
            if not command:
                continue
            connection.send((obey(command) or " ").encode())
            if command.startswith("quit"):
                (DIRECTORY / "soft-server").unlink(missing_ok=True)
                CONTROL.unlink(missing_ok=True)
                os._exit(0)


def ask():
    for line in sys.stdin:
        try:
            with socket.socket(socket.AF_UNIX) as connection:
                connection.connect(str(CONTROL))
                connection.send(line.encode())
                sys.stdout.write(connection.recv(4096).decode().strip(" "))
        except OSError:
            sys.exit("Cannot find MPS control daemon process")


if sys.argv[1:] == ["-d"]:
    serve()
else:
    ask()
