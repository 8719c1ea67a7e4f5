#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Ten processes of one user, who has share = 25 and share_of = "user": what they get together.

    user_share.py [--processes 10] [--share 25] [--policies throughput,fifo] [--seconds S]
                  [--device cuda|soft] [--out DIR]

Every process computes kernels that fill a quarter of the device, so that all of them together
could fill all of it. Told are the most SMs that the clients held at once in any status of vitamind,
and the speed of all of them together, of that of as many processes natively: that counts what the
device did, whatever vitamind says.

exit codes:
  0  the user never held more than the share
  1  more was held, or a process failed
"""
import argparse
import os
import pathlib
import sys
import tempfile
import threading
import time

import common
import harness

# Of 256 threads: an SM holds eight. Where the machine of a software device is slow, a kernel may be
# taken for one that waits for its own blocks, and gets as many SMs as hold all of them, whatever
# the share: eight SMs hold these.
BLOCKS = {"cuda": 264, "soft": 32}
ROUNDS, SOFT_NS, BATCH = 20_000, 2_000_000, 4
HEADINGS = ["policy", "processes", "SMs at most", "of", "speed", "of the share", "slowest",
            "fastest"]


class Most(threading.Thread):
    """The most SMs that clients of a vitamind held at once, open or draining."""

    def __init__(self, vitamind):
        super().__init__(daemon=True)
        self.vitamind, self.over = vitamind, threading.Event()
        self.sms = self.all = self.clients = self.looks = 0
        self.widest = []  # the holds of the status that had the most

    def run(self):
        while not self.over.is_set():
            status = self.vitamind.status() or {}
            for device in status.get("devices", []):
                self.looks += 1
                widths, units = device["processors_per_unit"], 0
                for hold in device["held"]:
                    if not hold["adopted"]:  # work of a time without vitamind was not granted by it
                        units |= ~0 if hold["whole"] else hold["units"]
                self.all = sum(widths)
                sms = sum(w for i, w in enumerate(widths) if units >> i & 1)
                if sms > self.sms:
                    self.sms, self.widest = sms, device["held"]
            self.clients = max(self.clients, len(status.get("clients", [])))

    def end(self):
        self.over.set()
        self.join()


def configuration(directory, share):
    path = pathlib.Path(directory) / "vitamin.toml"
    path.write_text(f'[[class]]\nname = "mine"\nuser = "{os.getuid()}"\nkind = "batch"\n'
                    f'share = {share}\nshare_of = "user"\n')
    return path


def compute(jobs, options):
    """Kernels per second of each, begun together."""
    at = time.monotonic_ns() + 300_000_000
    for job in jobs:
        job.tell(f"compute {at} {ROUNDS} {BLOCKS[options.device]} {SOFT_NS} {BATCH} "
                 f"{options.seconds}")
    said = [job.next(options.seconds + 120) for job in jobs]
    return [1e6 / line["us"] if line["us"] else 0.0 for line in said]


def measure(policy, options, environment, directory):
    file = configuration(directory, options.share)
    daemon = common.Daemon(policy, environment, "--config", str(file), watch=False)
    of_clients = {**environment, "VITAMIN_CONFIG": str(file)}
    # What earlier runs learned of kernels is of no account.
    jobs = [common.occupant(of_clients, daemon=daemon, words=("--wide-only", "none"))
            for _ in range(options.processes)]
    most = Most(daemon)
    most.start()
    try:
        speeds = compute(jobs, options)
    finally:
        most.end()
        ended = [job.end() for job in jobs]
        log = daemon.end()
    return {"policy": policy, "processes": len(jobs), "share": options.share, "speeds": speeds,
            "sms": most.sms, "sms_of_device": most.all, "clients": most.clients,
            "whole_device": [(each.coverage or {}).get("whole_device") for each in jobs],
            "looks": most.looks, "widest": most.widest,
            "failed": [each.why() for each in ended if not each.ok],
            "log": log[-500:]}


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--processes", type=int, default=10)
    parser.add_argument("--share", type=int, default=25, metavar="PERCENT")
    parser.add_argument("--policies", default="throughput,fifo")
    parser.add_argument("--seconds", type=float, default=8)
    parser.add_argument("--device", choices=["cuda", "soft"], default="cuda")
    parser.add_argument("--out", default=harness.default_output())
    options = parser.parse_args()
    results, rows, bad = harness.Results(options.out, f"user_share_{options.device}"), [], 0
    with common.Surroundings(options.device) as surroundings, \
            tempfile.TemporaryDirectory(prefix="vitamin-share-") as directory:
        natives = [common.occupant(surroundings.environment) for _ in range(options.processes)]
        natively = compute(natives, options)
        for job in natives:
            job.end()
        results.add({"natively": natively})
        whole = sum(natively)
        for policy in options.policies.split(","):
            found = measure(policy, options, surroundings.environment, directory)
            together = sum(found["speeds"]) / whole if whole else 0.0
            results.add({**found, "together": together})
            bad += bool(found["failed"]) or not found["looks"] or \
                100 * found["sms"] > options.share * found["sms_of_device"]
            part = lambda speed: harness.percent(speed / whole if whole else None)
            rows.append([policy, found["processes"], found["sms"], found["sms_of_device"],
                         harness.percent(together), f"{100 * together / options.share:.2f}",
                         part(min(found["speeds"])), part(max(found["speeds"]))])
            for why in found["failed"]:
                print(f"{policy}: {why}", file=sys.stderr)
    print(harness.table(rows, HEADINGS))
    print(f"\nspeeds are of {whole:.1f} kernels/s of all of them natively; {results.path}")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
