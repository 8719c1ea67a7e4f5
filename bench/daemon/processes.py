#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Several processes on one GPU under one vitamind: are the bits, the leases and the speed right?

    processes.py [jobs] [loops] [kill] [--policies random,throughput] [--steps N] [--out DIR]

jobs     two and four PyTorch jobs at once for each policy: bytes against each job's run alone,
         and in every look at the daemon that no two open leases overlap
loops    two loops of kernels that fill their processors: rate beside the other against the rate
         alone on as many processors
kill     SIGKILL of one of two jobs in mid-step, again and again: the other's bytes, and how long
         the dead job's leases stand

Everything runs under an MPS daemon of our own; without one processes take turns, which is said.
"""
import argparse
import json
import os
import pathlib
import signal
import subprocess
import sys
import tempfile
import threading
import time

HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent))

import harness  # noqa: E402
import micro  # noqa: E402

JOBS = {"qwen": ["qwen-train"], "resnet": ["resnet-train"], "llama": ["llama-generate"]}


class Daemon:
    """A vitamind with a socket of its own, looked at all the time."""

    def __init__(self, policy, environment, *options):
        self.folder = tempfile.TemporaryDirectory(prefix="vitamind-")
        self.socket = pathlib.Path(self.folder.name) / "s"
        self.log = open(pathlib.Path(self.folder.name) / "log", "w+")
        self.process = subprocess.Popen(
            [str(harness.prefix() / "bin" / "vitamind"), "--socket", str(self.socket),
             "--lock-directory", self.folder.name, "--policy", policy, "--set", "mps.mode=off",
             *options], stdout=self.log, stderr=self.log,
            env=harness.environment_with(environment | {"VITAMIN_CONFIG": "/dev/null"}))
        self.looks, self.overlaps, self.last, self.most = 0, [], {}, 0
        self.seen = []  # (when, clients, leases by client)
        self.over = threading.Event()
        until = time.monotonic() + 10
        while not self.socket.exists() and time.monotonic() < until:
            time.sleep(0.01)
        self.watcher = threading.Thread(target=self.watch, daemon=True)
        self.watcher.start()

    def status(self):
        answer = subprocess.run(harness.vitamin("status", "--json", "--socket", str(self.socket)),
                                capture_output=True, text=True, timeout=20, check=False)
        return json.loads(answer.stdout) if answer.returncode == 0 and answer.stdout else None

    def watch(self):
        while not self.over.wait(0.02):
            now = time.monotonic()
            status = self.status()
            if status is None or not status["devices"]:
                continue
            self.looks += 1
            self.last = status
            device = status["devices"][0]
            held = [h for h in device["held"] if not h["whole"]]
            self.most = max(self.most, len({h["client"] for h in held}))
            for i, a in enumerate(held):
                for b in held[i + 1:]:
                    if a["client"] != b["client"] and a["units"] & b["units"]:
                        self.overlaps.append([a, b])
            self.seen.append((now, [c["process"] for c in status["clients"]]))

    def counters(self):
        device = (self.last.get("devices") or [{}])[0]
        return {k: device.get(k) for k in ("grants", "moves", "gates_closed", "recalled", "overdue",
                                           "stale", "undelivered", "requests")}

    def end(self):
        self.over.set()
        self.watcher.join()
        self.process.terminate()
        try:
            self.process.wait(10)
        except subprocess.TimeoutExpired:
            self.process.kill()
        self.log.seek(0)
        text = self.log.read()
        self.folder.cleanup()
        return text


def words_of(job, options):
    words = [sys.executable, str(HERE.parent / "workloads.py"), *JOBS[job]]
    return words + (["--steps", str(options.steps)] if options.steps else [])


class Job:
    """A command in the background and what it says."""

    def __init__(self, command, environment, daemon=None, words=()):
        self.folder = tempfile.TemporaryDirectory()
        self.report = pathlib.Path(self.folder.name) / "report.json"
        if daemon is not None:
            command = [*harness.vitamin("run", "--quiet", "--daemon", "--socket",
                                        str(daemon.socket), "--report", str(self.report), *words),
                       "--", *command]
        self.out, self.err = tempfile.TemporaryFile("w+"), tempfile.TemporaryFile("w+")
        self.begin = time.monotonic()
        self.process = subprocess.Popen(command, stdout=self.out, stderr=self.err,
                                        stdin=subprocess.DEVNULL, start_new_session=True,
                                        env=harness.environment_with(environment))

    def lines(self):
        self.out.seek(0)
        return [json.loads(line) for line in self.out.read().splitlines() if line.startswith("{")]

    def wait(self, timeout):
        timed_out = False
        try:
            code = self.process.wait(timeout)
        except subprocess.TimeoutExpired:
            timed_out = True
            os.killpg(self.process.pid, signal.SIGKILL)
            code = self.process.wait()
        seconds = time.monotonic() - self.begin
        self.out.seek(0), self.err.seek(0)
        result = harness.Result([], code, self.out.read(), self.err.read(), seconds, timed_out)
        self.coverage = harness.coverage(harness.read_report(self.report))
        self.folder.cleanup()
        return result


def brief(cover):
    return {k: cover[k] for k in ("launches", "bound", "bound_share", "narrow_share", "moved_share",
                                  "deferred", "whole_device", "widths", "warnings", "problem")
            } if cover else None


def jobs(options, results, mps):
    alone = {}
    for job in {job for names in options.sets for job in names}:
        for _ in range(2):
            result = Job(words_of(job, options), mps).wait(options.timeout)
            results.add({"part": "jobs", "job": job, "mode": "alone", "ok": result.ok,
                         "why": result.why(), "seconds": result.seconds,
                         "hashes": len(result.hashes())})
            if job in alone and alone[job] != result.hashes():
                print(f"{job}: differs from itself natively", flush=True)
            alone[job] = result.hashes()
    rows = []
    for policy in options.policies.split(","):
        for names in options.sets:
            daemon = Daemon(policy, mps)
            started = time.monotonic()
            running = [Job(words_of(job, options), mps, daemon) for job in names]
            ended = [job.wait(options.timeout) for job in running]
            seconds = time.monotonic() - started
            counters = daemon.counters()
            log = daemon.end()
            for job, process, result in zip(names, running, ended):
                cover = process.coverage
                same = sum(a == b for a, b in zip(alone[job], result.hashes()))
                record = {"part": "jobs", "job": job, "mode": policy, "beside": len(names) - 1,
                          "ok": result.ok, "why": result.why(), "seconds": result.seconds,
                          "hashes": len(alone[job]), "equal": same, "coverage": brief(cover),
                          "said": result.errors[-600:]}
                results.add(record)
                rows.append([policy, len(names), job, f"{same} of {len(alone[job])}",
                             harness.percent(cover and cover["bound_share"]),
                             harness.percent(cover and cover["moved_share"]),
                             f"{result.seconds:.1f}", result.why()[:60]])
            results.add({"part": "jobs", "mode": policy, "jobs": names, "seconds": seconds,
                         "looks": daemon.looks, "overlaps": daemon.overlaps[:3],
                         "clients_holding_at_once": daemon.most, "daemon": counters,
                         "log": log[-1500:]})
            rate = (counters.get("moves") or 0) / seconds
            rows.append([policy, len(names), "daemon", f"{len(daemon.overlaps)} overlaps",
                         f"{daemon.looks} looks", f"{rate:.0f} moves/s", f"{seconds:.1f}", ""])
    return harness.table(rows, ["policy", "jobs", "job", "equal", "bound", "moved", "s", "problem"])


def loops(options, results, mps):
    """Kernels of as many blocks as the whole device has room for, each of equal length."""
    def rate(command, daemon=None, words=()):
        return Job([*words, *command], mps, daemon)

    rows = []
    for cycles in (18_000, 180_000):
        # As many blocks as 64 processors hold at once, so that 68 are no faster.
        command = [harness.program("chain"), "--kernels", "500", "--cycles", str(cycles),
                   "--blocks", "1024", "--repeats"]
        repeats = 100 if cycles < 100_000 else 20
        for round_ in range(2):
            static = [*harness.vitamin("run", "--quiet", "--policy", "static:units=0-7"), "--"]
            alone = Job([*static, *command, str(repeats)], mps).wait(120)
            daemon = Daemon("throughput", mps)
            neighbour = Job([*command, str(100 * repeats)], mps, daemon)
            time.sleep(3)  # it runs by now
            beside = Job([*command, str(repeats)], mps, daemon)
            ended = beside.wait(120)
            still = neighbour.process.poll() is None
            counters = daemon.counters()
            os.killpg(neighbour.process.pid, signal.SIGKILL)
            neighbour.wait(20)
            log = daemon.end()
            value = lambda r: next((line["per_kernel_us"] for line in r.lines
                                    if "per_kernel_us" in line), None)
            record = {"part": "loops", "cycles": cycles, "round": round_, "alone_us": value(alone),
                      "beside_us": value(ended), "neighbour_ran_to_the_end": not still,
                      "coverage": brief(beside.coverage),
                      "daemon": counters, "why": [alone.why(), ended.why()], "log": log[-500:]}
            results.add(record)
            share = value(alone) / value(ended) if value(alone) and value(ended) else None
            rows.append([cycles, round_, value(alone), value(ended), harness.percent(share)])
    return harness.table(rows, ["cycles", "round", "alone on half, us", "beside another, us",
                                "rate"])


def kill(options, results, mps):
    rows = []
    reference = Job(words_of("qwen", options), mps).wait(options.timeout).hashes()
    daemon = Daemon(options.policies.split(",")[0], mps)
    survivor = Job([*words_of("qwen", options)[:-1], str(options.kill_steps)]
                   if options.steps else words_of("qwen", options), mps, daemon)
    gone = []
    for number in range(options.kills):
        if survivor.process.poll() is not None:
            break
        victim = Job(words_of("resnet", options), mps, daemon)
        limit = time.monotonic() + 60
        while time.monotonic() < limit and victim.process.poll() is None and \
                not any("loss" in line["name"] for line in victim.lines()):
            time.sleep(0.02)
        clients = {c["process"]: c for c in (daemon.status() or {"clients": []})["clients"]}
        mine = [pid for pid in clients if pid != survivor.process.pid]
        os.killpg(victim.process.pid, signal.SIGKILL)
        begin = time.monotonic()
        while time.monotonic() < begin + 10:
            status = daemon.status()
            left = [c for c in status["clients"] if c["process"] in mine and
                    not pathlib.Path(f"/proc/{c['process']}").exists()]
            alive = [p for p in mine if pathlib.Path(f"/proc/{p}").exists() and
                     p != survivor.process.pid]
            pids = {c["process"] for c in status["clients"]}
            if len(pids) <= 1 and not left:
                break
        gone.append(1e3 * (time.monotonic() - begin))
        victim.process.wait()
        results.add({"part": "kill", "number": number, "leases_gone_ms": gone[-1],
                     "still_there": len(alive)})
    result = survivor.wait(options.timeout)
    counters = daemon.counters()
    log = daemon.end()
    got = result.hashes()
    common = min(len(reference), len(got))
    equal = sum(a == b for a, b in zip(reference, got[:common]) if "final" not in a[0])
    of = sum("final" not in a[0] for a in reference[:common])
    results.add({"part": "kill", "kills": len(gone), "equal": equal, "of": of, "ok": result.ok,
                 "why": result.why(), "coverage": brief(survivor.coverage), "daemon": counters,
                 "log": log[-1500:], "said": result.errors[-600:]})
    rows.append([len(gone), f"{equal} of {of}", f"{harness.median(gone) or 0:.0f}",
                 f"{max(gone, default=0):.0f}", result.why()[:80]])
    return harness.table(rows, ["kills", "survivor equal", "client gone ms p50", "max", "problem"])


PARTS = {"jobs": jobs, "loops": loops, "kill": kill}


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("parts", nargs="*", default=list(PARTS))
    parser.add_argument("--policies", default="random,throughput")
    parser.add_argument("--sets", default="qwen+resnet,qwen+resnet+qwen+resnet")
    parser.add_argument("--steps", type=int, default=8)
    parser.add_argument("--kills", type=int, default=10)
    parser.add_argument("--kill-steps", type=int, default=300)
    parser.add_argument("--timeout", type=float, default=150)
    parser.add_argument("--out", default=harness.default_output())
    options = parser.parse_args()
    options.sets = [names.split("+") for names in options.sets.split(",")]
    results = harness.Results(options.out, "processes")
    tables = []
    with micro.Mps() as mps:
        environment = mps.environment if mps.running else {}
        print("under MPS" if mps.running else "no MPS: processes take turns", flush=True)
        for part in options.parts:
            begin = time.monotonic()
            try:
                tables.append(PARTS[part](options, results, environment))
            except Exception as error:  # the other parts are still wanted
                tables.append(f"{part}: {type(error).__name__}: {error}")
            print(f"{part}: {time.monotonic() - begin:.0f} s", flush=True)
    print("\n" + "\n\n".join(tables))


if __name__ == "__main__":
    main()
