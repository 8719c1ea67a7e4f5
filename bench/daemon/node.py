#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What a node's daemon costs its clients when things go wrong, and when nothing happens.

    node.py [--out FILE] [--tries N] [gate] [scribbler] [idle] [home] [restarts]

    gate       SIGKILL of a client to its gates seen closed, at several sizes of it (upper bounds:
               the daemon's status is asked again and again)
    scribbler  an honest client's operations a second beside one that scribbles over all it can
               write, against beside one that does the same to memory of its own
    idle       processor time of a daemon with one client and nothing to do
    home       SIGKILL of the daemon to its clients, which submit without a pause, at home: one
               client, and 16 at once
    restarts   the daemon killed under the load of 16 clients, again and again

Needs MEMBER and VITAMIND, the paths of the built programs. Writes JSON lines, the first of which
says where it ran. On a machine that does other work, too, `chrt -r 20 python3 node.py gate` measures
the daemon and not how long each of three processes waits for a processor.
"""
import argparse
import datetime
import json
import os
import pathlib
import sys
import tempfile
import time

sys.path.insert(0, str(pathlib.Path(__file__).parents[2] / "tests" / "daemon"))
from harness import DaemonTest  # noqa: E402  (needs the path above)


class Node(DaemonTest):
    def runTest(self):
        pass


def real_time():
    return os.sched_getscheduler(0) in (os.SCHED_FIFO, os.SCHED_RR)


def percentile(samples, share):
    ordered = sorted(samples)
    return ordered[min(len(ordered) - 1, int(len(ordered) * share))]


def gate(node, tries):
    for mebibytes in (0, 512, 1024, 2048):
        daemon = node.daemon("--policy", "static:units=0-15", "--quiet")
        closed_us, looks_us = [], []
        for _ in range(tries):
            member = node.member(daemon, "hold", mebibytes)
            member.stdout.readline()
            # What filling the memory took counts against the time that real-time tasks may use.
            time.sleep(1 if mebibytes and real_time() else 0)
            begin = time.monotonic_ns()
            daemon.status()
            looks_us.append((time.monotonic_ns() - begin) / 1e3)
            begin = time.monotonic_ns()
            member.kill()
            while True:
                clients = daemon.status()["clients"]
                if not clients or clients[0]["dying"]:
                    break
            closed_us.append((time.monotonic_ns() - begin) / 1e3)
            node.until(lambda: not daemon.status()["clients"])
        daemon.end()
        yield {"measurement": "gate closed after SIGKILL", "rss_mib": mebibytes, "tries": tries,
               "p50_us": percentile(closed_us, 0.5), "p99_us": percentile(closed_us, 0.99),
               "max_us": max(closed_us), "one_look_p50_us": percentile(looks_us, 0.5)}


def scribbler(node, tries):
    rates = {"scribble": [], "hog": []}
    for index in range(2 * tries):
        arm = ("scribble", "hog")[(index + index // 2) % 2]  # A B B A ...
        daemon = node.daemon("--policy", "random:max=32", "--quiet")
        other = node.member(daemon, arm, 60_000)
        time.sleep(0.2)
        honest = node.result(node.member(daemon, "work", 30_000), timeout=120)
        rates[arm].append(honest["submitted"] / honest["seconds"])
        other.kill()
        daemon.end()
    ratios = [a / b for a, b in zip(rates["scribble"], rates["hog"])]
    yield {"measurement": "honest client beside a scribbler", "tries": tries,
           "per_second": {arm: percentile(values, 0.5) for arm, values in rates.items()},
           "ratio_of_medians": percentile(rates["scribble"], 0.5) / percentile(rates["hog"], 0.5),
           "ratio_of_best": max(rates["scribble"]) / max(rates["hog"]), "ratios": ratios}


def idle(node, _):
    daemon = node.daemon("--policy", "random:max=32", "--quiet")
    holder = node.member(daemon, "hold")
    holder.stdout.readline()
    time.sleep(1)

    def used_ns():
        tasks = pathlib.Path(f"/proc/{daemon.process.pid}/task").iterdir()
        return sum(int((task / "schedstat").read_text().split()[0]) for task in tasks)
    begin, before = time.monotonic_ns(), used_ns()
    time.sleep(10)
    yield {"measurement": "idle daemon, one client that drains", "seconds": 10,
           "share_of_a_processor": (used_ns() - before) / (time.monotonic_ns() - begin)}
    daemon.end()


def home(node, tries):
    for clients in (1, 16):
        delays_ms = []
        for _ in range(tries):
            daemon = node.daemon("--policy", "random:max=32", "--quiet")
            members = [node.member(daemon, "latency") for _ in range(clients)]
            for member in members:
                member.stdout.readline()
            time.sleep(0.05)
            at = time.monotonic()
            daemon.kill()
            delays_ms += [(node.result(member)["home_at"] - at) * 1e3 for member in members]
            os.unlink(daemon.socket)
        yield {"measurement": "clients at home after SIGKILL of the daemon", "clients": clients,
               "tries": tries, "p50_ms": percentile(delays_ms, 0.5),
               "p99_ms": percentile(delays_ms, 0.99), "max_ms": max(delays_ms)}


def restarts(node, tries):
    clients, each = 16, 1_000_000
    daemon = node.daemon("--policy", "random:max=32", "--quiet")
    members = [node.member(daemon, "work", each * max(1, tries // 25)) for _ in range(clients)]
    done, begin, gaps_ms = 0, time.monotonic(), []
    while done < tries and all(member.poll() is None for member in members):
        time.sleep(0.02)
        before = time.monotonic()
        daemon.kill()
        daemon.start()
        gaps_ms.append((time.monotonic() - before) * 1e3)
        done += 1
    seconds = time.monotonic() - begin
    results = [node.result(member, timeout=600) for member in members]
    wanted = each * max(1, tries // 25)
    yield {"measurement": "daemon killed under load", "restarts": done, "clients": clients,
           "seconds": seconds, "operations_each": wanted,
           "lost_or_done_twice": sum(abs(r["submitted"] - wanted) for r in results),
           "at_home": sum(r["at_home"] for r in results),
           "malformed": sum(r["malformed"] for r in results),
           "service_gap_p50_ms": percentile(gaps_ms, 0.5),
           "service_gap_p99_ms": percentile(gaps_ms, 0.99)}
    daemon.end()


PARTS = {"gate": gate, "scribbler": scribbler, "idle": idle, "home": home,
         "restarts": restarts}


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("parts", nargs="*", default=list(PARTS))
    parser.add_argument("--out")
    parser.add_argument("--tries", type=int, default=20)
    parser.add_argument("--commit", default="")
    options = parser.parse_args()
    model = [line for line in open("/proc/cpuinfo", encoding="utf-8") if "model name" in line]
    lines = [{"header": {"command": ("chrt -r 20 " if real_time() else "") + "bench/daemon/node.py "
                         + " ".join(sys.argv[1:]),
                         "commit": options.commit,
                         "cpu": f"{model[0].split(':')[1].strip()}, {os.cpu_count()} threads",
                         "load": os.getloadavg()[0],
                         "date": datetime.datetime.now(datetime.timezone.utc).strftime(
                             "%Y-%m-%d %H:%M UTC")}}]
    for part in options.parts:
        node = Node()
        node.folder = tempfile.TemporaryDirectory(prefix="vitamind-")
        for line in PARTS[part](node, options.tries):
            print(json.dumps(line), flush=True)
            lines.append(line)
        node.doCleanups()
        node.folder.cleanup()
    if options.out:
        pathlib.Path(options.out).write_text("".join(json.dumps(line) + "\n" for line in lines))


if __name__ == "__main__":
    main()
