#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Costs of vitamind for its clients: under attack, when it is killed, and when it is idle.

    node.py [--out FILE] [--tries N]
            [costs] [gate] [press] [flood] [delays] [idle] [home] [waits] [restarts] [programs]

    costs      request to grant, a launch under a held lease, decisions (daemon_bench)
    gate       from SIGKILL of a client until its gates are closed, with several sizes of its memory
               (upper bounds: vitamind's status is polled)
    press      an honest client's operations a second beside two attackers, one that floods vitamind
               with well-formed records and one that writes garbage to all memory that it shares
               with vitamind, both reconnecting whenever they are evicted; compared in short turns
               with the same two programs over private memory
    flood      the same beside an attacker that holds 10,000 connections open and sends nothing
               (press and flood take two minutes for --tries 100, and need at least ten CPUs)
    delays     how long requests of an honest client wait beside each of those attackers on two
               CPUs: vitamind has one of them alone; on the other the honest client has a higher
               real-time priority than the attackers, and sends a request about every
               millisecond, so that the wait is the time that vitamind spends on the attackers
    idle       CPU time of a vitamind with one client that does nothing
    home       from SIGKILL of vitamind until its clients, which submit without a pause, are on
               their fallback partitions: one client, a few, and 16 at once
    waits      the parts of that time: until vitamind has ended, until the client's thread that
               watches it runs, until the client is on its fallback partition, and CPU time in it
               (perf, as root)
    restarts   the daemon killed under the load of 16 clients, again and again
    programs   the same under 16 programs on the software device, whose results must be those of a
               run alone

Programs come from the tree that bench/install_tree made (VITAMIN_PREFIX, or dist/ beside bench/),
or from MEMBER and VITAMIND. Writes JSON lines, the first of which says where it ran. On a machine
that does other work, too, `chrt -r 20 python3 node.py gate` measures vitamind and not how long each
of three processes waits for a CPU.
"""
import argparse
import bisect
import contextlib
import datetime
import importlib.util
import json
import math
import os
import pathlib
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "bench"), str(ROOT / "tests")]
import harness  # noqa: E402  (needs the paths above)

# Its namesake of tests/daemon.
specification = importlib.util.spec_from_file_location("daemons",
                                                       ROOT / "tests" / "daemon" / "harness.py")
daemons = importlib.util.module_from_spec(specification)
specification.loader.exec_module(daemons)

os.environ.setdefault("MEMBER", harness.program("daemon_member"))
ATTACKER = os.environ.get("ATTACKER", harness.program("daemon_attacker"))
os.environ.setdefault("VITAMIND", str(harness.prefix() / "bin" / "vitamind"))


class Node(daemons.DaemonTest):
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
            # Filling the memory has used up time that the kernel grants to real-time tasks.
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


def on_core(index):
    """The CPU set of a process: a core of its own with 8 CPUs or more, else all CPUs."""
    cores = sorted(os.sched_getaffinity(0))
    return {cores[2 * index]} if len(cores) >= 8 else set(cores)


def press(node, tries):
    yield from beside(node, tries, ("press", "scribble"),
                      "honest client beside one that floods and one that scribbles")


def flood(node, tries):
    yield from beside(node, tries, ("crowd",), "honest client beside 10,000 half-open connections")


class Counting:
    """A client that submits all the time, and the counts of operations that it prints."""

    def __init__(self, process):
        self.process, self.at, self.submitted = process, [], []
        threading.Thread(target=self.read, daemon=True).start()

    def read(self):
        for line in self.process.stdout:
            if '"at"' in line:
                told = json.loads(line)
                self.submitted.append(told["submitted"])
                self.at.append(told["at"])

    def by(self, when):
        """Operations by that time, interpolated between two lines; waits for the later one."""
        while not self.at or self.at[-1] < when:
            time.sleep(0.002)
        i = bisect.bisect_left(self.at, when, 1)
        share = (when - self.at[i - 1]) / (self.at[i] - self.at[i - 1])
        return self.submitted[i - 1] + share * (self.submitted[i] - self.submitted[i - 1])


SLICE, SETTLE = 0.25, 0.02  # seconds: length of a turn; time before it is measured
DRAIN = 0.5  # seconds in which a busy vitamind with a CPU accepts 4,096 connections
# The honest client takes 5 us of CPU for each operation and requests a grant every 64 of them. No
# client waits for a lease, so a lower rate is due to vitamind's work for the attackers.
POLICY, OPERATION_NS = "random:every=64,whole=1,min_sms=132", 5_000


def interval_of_median(values):
    """95 % confidence interval, for any distribution."""
    ordered, n = sorted(values), len(values)
    low = max(0, math.floor(n / 2 - 0.98 * math.sqrt(n)))
    return [ordered[low], ordered[n - 1 - low]]


class Attack:
    """The attackers' processes, each on a core of its own."""

    def __init__(self, daemon, verbs):
        self.told = {}
        self.processes = [subprocess.Popen(
            [ATTACKER, str(daemon.socket), verb], stdin=subprocess.DEVNULL, text=True,
            stdout=subprocess.PIPE, preexec_fn=lambda: os.sched_setaffinity(0, on_core(3 + index)))
            for index, verb in enumerate(verbs)]

    def end(self):
        for process in self.processes:
            process.terminate()
        for process in self.processes:
            output, _ = process.communicate()
            for name, value in (json.loads(output) if output else {}).items():
                self.told[name] = self.told.get(name, 0) + value


def beside(node, tries, attack, what):
    """The rate of one honest client beside, in turns (A B B A ...), attackers and the same programs
    over private memory."""
    everywhere = os.sched_getaffinity(0)
    os.sched_setaffinity(0, on_core(1))  # which the daemon inherits
    daemon = node.daemon("--policy", POLICY, "--quiet")
    os.sched_setaffinity(0, everywhere)
    honest = Counting(node.member(daemon, "count", OPERATION_NS,
                                  before=lambda: os.sched_setaffinity(0, on_core(2))))
    # It connects first: new connections of a user who floods vitamind are told to try again.
    node.until(lambda: daemon.status()["clients"])
    arms = {"attack": attack, "alone": [f"{verb}-alone" for verb in attack]}
    rates, told = {arm: [] for arm in arms}, {}
    for index in range(2 * tries):
        arm = list(arms)[(index + index // 2) % 2]
        others = Attack(daemon, arms[arm])
        time.sleep(SETTLE)
        begin = time.monotonic()
        time.sleep(SLICE)
        end = time.monotonic()
        rates[arm].append((honest.by(end) - honest.by(begin)) / (end - begin))
        others.end()
        if arm == "attack":
            # Connections of ended processes must not delay the next turn in the accept queue.
            time.sleep(DRAIN if "crowd" in attack else 0)
            # An attacker that had no CPU in its turn reports nothing.
            for name, value in others.told.items():
                told[name] = told.get(name, 0) + value
    evicted = None
    while evicted is None:  # vitamind's accept queue may still be full
        with contextlib.suppress(OSError):
            evicted = daemon.status()["daemon"]["let_go"]
    ratios = [a / b for a, b in zip(rates["attack"], rates["alone"])]
    again = [b / a for a, b in zip(rates["alone"], rates["alone"][1:])]
    yield {"measurement": what, "pairs": tries, "seconds_each": SLICE, "policy": POLICY,
           "operation_ns": OPERATION_NS, "processors": len(everywhere), "let_go": evicted,
           "attackers": told,
           "per_second": {arm: percentile(values, 0.5) for arm, values in rates.items()},
           "median_of_ratios": percentile(ratios, 0.5),
           "interval_95": interval_of_median(ratios), "least": min(ratios), "most": max(ratios),
           "alone_against_itself": [percentile(again, 0.5), *interval_of_median(again)]}
    honest.process.kill()
    daemon.end()


def delays(node, tries):
    cores = sorted(os.sched_getaffinity(0))
    if len(cores) < 2 or subprocess.run(["chrt", "-f", "1", "true"], check=False,
                                        stderr=subprocess.DEVNULL).returncode != 0:
        yield {"measurement": "an honest request beside attackers", "skipped":
               "needs two processors and real-time priorities"}
        return

    def runs_at(core, priority):
        def before():
            os.sched_setaffinity(0, {core})
            os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(priority))
        return before
    for attack in ((), ("press",), ("scribble",), ("crowd",), ("press", "scribble")):
        daemon = node.daemon("--policy", POLICY, "--quiet", "--spin", "20000us")
        os.sched_setscheduler(daemon.process.pid, os.SCHED_FIFO, os.sched_param(20))
        for task in os.listdir(f"/proc/{daemon.process.pid}/task"):
            os.sched_setaffinity(int(task), {cores[0]})
        honest = node.member(daemon, "delay", 50 * tries, before=runs_at(cores[1], 30))
        honest.stdout.readline()
        others = [subprocess.Popen([ATTACKER, str(daemon.socket), verb], stdin=subprocess.DEVNULL,
                                   stdout=subprocess.DEVNULL,
                                   preexec_fn=lambda: os.sched_setaffinity(0, {cores[1]}))
                  for verb in attack]
        time.sleep(0.3)
        honest.stdin.write("\n")
        honest.stdin.flush()
        told = json.loads(honest.stdout.readline())
        for other in others:
            other.terminate()
            other.wait()
        yield {"measurement": "an honest request beside attackers", "attackers": list(attack),
               "policy": POLICY, **told}
        daemon.end()


def idle(node, _):
    daemon = node.daemon("--policy", "random:max_sms=32", "--quiet")
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


def deaths(node, clients, tries):
    """Kills vitamind again and again while its clients live on: for each kill its time, and when
    each client (by process) was on its fallback partition."""
    daemon = node.daemon("--policy", "random:max_sms=32", "--quiet")
    members = [node.member(daemon, "homes") for _ in range(clients)]
    lines = [[] for _ in members]

    def read(member, into):
        for line in member.stdout:
            into.append(json.loads(line))
    for member, into in zip(members, lines):
        threading.Thread(target=read, args=(member, into), daemon=True).start()
    for number in range(tries):
        node.until(lambda: len(daemon.status()["clients"]) == clients and all(
            "back_at" in into[-1] if into else number == 0 for into in lines), 60)
        time.sleep(0.005)
        at = time.monotonic()
        daemon.kill()

        def homes(since):
            return [next((line["home_at"] for line in into[-4:]
                          if line.get("home_at", 0) >= since), None) for into in lines]
        node.until(lambda: None not in homes(at), 60)
        yield at, dict(zip([member.pid for member in members], homes(at)))
        daemon.start()
    for member in members:
        member.kill()
    daemon.end()


def home(node, tries):
    for clients in (1, 2, 4, 16):
        delays_ms, slowest_ms = [], []
        for at, homes in deaths(node, clients, tries):
            delays = [(when - at) * 1e3 for when in homes.values()]
            delays_ms += delays
            slowest_ms.append(max(delays))
        yield {"measurement": "clients at home after SIGKILL of the daemon", "clients": clients,
               "restarts": tries, "p50_ms": percentile(delays_ms, 0.5),
               "p99_ms": percentile(delays_ms, 0.99), "max_ms": max(delays_ms),
               "slowest_of_each_restart_p50_ms": percentile(slowest_ms, 0.5),
               "within_50_ms": sum(delay <= 50 for delay in delays_ms) / len(delays_ms)}


class Scheduled:
    """Scheduling events of the kernel, recorded by perf."""
    LINE = re.compile(r"(\d+)/(\d+)\s+([\d.]+):\s+sched:(\w+):\s+(.*)")
    SWITCH = re.compile(r"prev_pid=(\d+) .*prev_state=(\w).* next_pid=(\d+) ")

    def __init__(self, directory):
        self.file = os.path.join(directory, "perf")
        self.perf = subprocess.Popen(
            ["perf", "record", "-q", "-a", "-k", "CLOCK_MONOTONIC", "-m", "4096", "-o", self.file,
             "-e", "sched:sched_switch", "-e", "sched:sched_process_exit"],
            stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        time.sleep(1)  # until perf records

    def end(self):
        self.perf.send_signal(signal.SIGINT)
        self.perf.wait()
        text = subprocess.run(["perf", "script", "-i", self.file, "-F", "pid,tid,time,event,trace"],
                              text=True, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
                              check=True).stdout
        self.threads, self.runs, self.exits = {}, {}, []  # of each process; of each thread
        self.blocked = {}  # uninterruptible in the kernel
        since, blocked = {}, {}
        for process, thread, when, event, what in self.LINE.findall(text):
            process, thread, when = int(process), int(thread), float(when)
            self.threads.setdefault(process, set()).add(thread)
            if event == "sched_process_exit" and process == thread:
                self.exits.append((when, process, what))
            elif event == "sched_switch" and (pair := self.SWITCH.search(what)):
                before, state, after = int(pair[1]), pair[2], int(pair[3])
                if before in since:
                    self.runs.setdefault(before, []).append((since.pop(before), when))
                if state == "D":
                    blocked[before] = when
                if after in blocked:
                    self.blocked.setdefault(after, []).append((blocked.pop(after), when))
                since[after] = when
        return self

    @staticmethod
    def sum(spans, begin, end):
        return sum(max(0, min(until, end) - max(since, begin)) for since, until in spans)

    def first_run(self, process, after):
        """Of the process's threads except the first."""
        return min((since for thread in self.threads.get(process, set()) - {process}
                    for since, _ in self.runs.get(thread, []) if since > after), default=None)


def waits(node, tries):
    if os.getuid() != 0 or shutil.which("perf") is None:
        yield {"measurement": "where the time to home goes", "skipped": "needs perf, as root"}
        return
    for clients in (1, 4, 16):
        scheduled = Scheduled(node.directory.name)
        seen = list(deaths(node, clients, tries))
        scheduled.end()
        death, blocked, notice, turn, own = [], [], [], [], []
        for at, homes in seen:
            ended, daemon = min(((when, process) for when, process, who in scheduled.exits
                                 if when > at and "vitamind" in who), default=(None, None))
            if ended is None:
                continue
            death.append((ended - at) * 1e3)
            blocked.append(1e3 * scheduled.sum(scheduled.blocked.get(daemon, []), ended,
                                               max(homes.values())))
            for process, when in homes.items():
                # The socket is closed a moment before the process is gone.
                woken = scheduled.first_run(process, at)
                if woken is not None and woken < when:
                    notice.append(max(0, woken - ended) * 1e3)
                    turn.append((when - woken) * 1e3)
                    own.append(1e3 * scheduled.sum(scheduled.runs.get(process, []), woken, when))
        yield {"measurement": "where the time to home goes", "clients": clients, "restarts": tries,
               "seen": len(turn), **{f"{name}_p50_p90_p99_most_ms": [
                   round(percentile(samples, share), 3) for share in (0.5, 0.9, 0.99, 1)]
                   for name, samples in (("kill_to_daemon_ending", death),
                                         ("to_its_thread_that_watches", notice),
                                         ("of_which_the_end_was_blocked", blocked),
                                         ("to_home", turn), ("of_which_it_ran", own))}}


def kill_again_and_again(node, daemon, tries, going_on):
    """Kills vitamind `tries` times; returns what was observed between the kills."""
    gaps_ms, overlaps, most = [], 0, 0
    begin = time.monotonic()
    while len(gaps_ms) < tries and going_on():
        time.sleep(0.02)
        before = time.monotonic()
        daemon.kill()
        daemon.start()
        gaps_ms.append((time.monotonic() - before) * 1e3)
        status = daemon.status()
        most = max(most, len(status["clients"]))
        try:
            node.check_disjoint(status)
        except AssertionError:
            overlaps += 1
    return {"restarts": len(gaps_ms), "seconds": time.monotonic() - begin, "overlaps": overlaps,
            "clients_back_at_most": most, "service_gap_p50_ms": percentile(gaps_ms, 0.5),
            "service_gap_p99_ms": percentile(gaps_ms, 0.99)}


def restarts(node, tries):
    """Restarts under clients that only submit."""
    clients = 16
    daemon = node.daemon("--policy", "random:max_sms=32", "--quiet")
    members = [node.member(daemon, "work", 0) for _ in range(clients)]  # until told
    node.until(lambda: len(daemon.status()["clients"]) == clients, 30)
    seen = kill_again_and_again(node, daemon, tries,
                                lambda: all(member.poll() is None for member in members))
    results = [node.result(member, timeout=60) for member in members]  # none of them is stuck
    yield {"measurement": "daemon killed under load", "clients": clients, **seen,
           "operations": sum(r["submitted"] for r in results),
           "at_home": sum(r["at_home"] for r in results),
           "granted": sum(r["granted"] for r in results),
           "malformed": sum(r["malformed"] for r in results)}
    daemon.end()


class Program:
    """Runs a demo program on the software device again and again, and keeps each run's result and
    number of launches."""
    STEPS = "400"

    def __init__(self, node, number, daemon=None):
        self.directory, self.number, self.daemon = node.directory.name, number, daemon
        self.runs, self.process = [], None

    def command(self):
        return [str(harness.prefix() / "bin" / "demo-train"), self.STEPS]

    def begin(self):
        self.report = os.path.join(self.directory, f"report{self.number}")
        self.process = subprocess.Popen(
            harness.vitamin("run", "--daemon", "--socket", str(self.daemon.socket), "--quiet",
                            "--report", self.report, "--", *self.command()),
            env=self.environment(), stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)

    def environment(self):
        return {**os.environ, "LD_LIBRARY_PATH": str(harness.prefix() / "lib" / "soft"),
                "VITAMIN_SOFT_LEDGER": os.path.join(self.directory, "ledger"),
                "VITAMIN_CONFIG": "/dev/null"}

    def native(self):
        said = subprocess.run(self.command(), env=self.environment(), text=True, check=True,
                              capture_output=True, timeout=120).stdout
        return said.split("hash ")[1].split(",")[0]

    def finish(self):
        output, _ = self.process.communicate(timeout=120)
        cover = harness.coverage(harness.read_report(self.report)) or {}
        self.runs.append((output.split("hash ")[1].split(",")[0] if "hash " in output else None,
                          cover.get("launches"), cover.get("bound")))

    def go_on(self):
        """Starts the program again if it has ended."""
        if self.process.poll() is not None:
            self.finish()
            self.begin()


def restarts_of_programs(node, tries):
    """Restarts under programs whose results show whether an operation was lost or ran twice."""
    clients = 16
    expected = Program(node, 0).native()
    daemon = node.daemon("--policy", "random:max_sms=32", "--quiet")
    programs = [Program(node, number, daemon) for number in range(clients)]
    for program in programs:
        program.begin()
    node.until(lambda: len(daemon.status()["clients"]) >= clients // 2, 60)

    def going_on():
        for program in programs:
            program.go_on()
        return True
    seen = kill_again_and_again(node, daemon, tries, going_on)
    for program in programs:
        program.finish()
    runs = [run for program in programs for run in program.runs]
    yield {"measurement": "daemon killed under programs", "clients": clients, **seen,
           "runs": len(runs), "equal": sum(bytes_ == expected for bytes_, _, _ in runs),
           "launches_each": sorted({launches or 0 for _, launches, _ in runs}),
           "launches": sum(launches or 0 for _, launches, _ in runs),
           "bound": sum(bound or 0 for _, _, bound in runs)}
    daemon.end()


def costs(node, tries):
    """Results of Google Benchmark: of each the best and the worst of a few repetitions."""
    out = os.path.join(node.directory.name, "costs")
    program = harness.program("daemon_bench")
    subprocess.run([program, f"--benchmark_repetitions={min(tries, 5)}", f"--benchmark_out={out}",
                    "--benchmark_out_format=json"], check=True, stdout=subprocess.DEVNULL,
                   env={**os.environ, "LD_LIBRARY_PATH": os.path.dirname(program)})
    runs = {}
    for one in json.loads(pathlib.Path(out).read_text())["benchmarks"]:
        if one["run_type"] == "iteration":
            runs.setdefault(one["run_name"].split("/real_time")[0], []).append(one)

    def both(name, key):
        values = [run[key] for run in runs[name]]
        return [round(min(values), 1), round(max(values), 1)]
    grant, line = both("request_to_grant", "p50_ns"), both("cache_line_round_trip", "p50_ns")
    yield {"measurement": "request to grant, daemon hot", "p50_ns": grant,
           "p99_ns": both("request_to_grant", "p99_ns"), "bare_round_trip_p50_ns": line,
           "ratio_of_best_p50": grant[0] / line[0]}
    yield {"measurement": "inline launch under a held lease",
           "daemon_ns": both("inline_launch_daemon", "cpu_time"),
           "in_process_ns": both("inline_launch_in_process", "cpu_time")}
    yield {"measurement": "decisions a second of processor time, fifo",
           **{f"clients_{n}": both(f"decisions/{n}", "items_per_second") for n in (1, 8, 64)}}
    for name, lanes in (("fifo", (16, 256, 1024)), ("throughput", (16, 64, 256, 1024)),
                        ("parts", (64, 1024))):
        yield {"measurement": f"a decision beside so many lanes that hold a grant, {name}", "ns": {
            n: [each / 2 for each in both(f"decision_beside/{name}/{n}", "cpu_time")]
            for n in lanes}}
    drains = [name for name in runs if name.startswith("decision_beside_drains/")]
    yield {"measurement": "a decision beside a client that has moved 256 lanes on as often as it "
                          "was let, and of which nothing ends",
           "ns": {name.split("/")[1]: both(name, "cpu_time") for name in drains},
           "grants": {name.split("/")[1]: both(name, "grants")[1] for name in drains},
           "most_of_a_lane": {name.split("/")[1]: both(name, "of_a_lane")[1] for name in drains}}
    floods = [name for name in runs if name.startswith("turn_beside_a_flood/")]
    yield {"measurement": "a turn with one request beside so many records of a flood, of 256 lanes",
           "ns": {name.split("/", 1)[1]: both(name, "cpu_time") for name in floods}}


PARTS = {"costs": costs, "gate": gate, "press": press, "flood": flood, "delays": delays,
         "idle": idle, "home": home, "waits": waits, "restarts": restarts,
         "programs": restarts_of_programs}


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("parts", nargs="*", default=list(PARTS))
    parser.add_argument("--out")
    parser.add_argument("--tries", type=int, default=20)
    parser.add_argument("--commit", default=harness.header()["commit"])
    options = parser.parse_args()
    model = [line for line in open("/proc/cpuinfo", encoding="utf-8") if "model name" in line]
    before = f"nice -n {os.nice(0)} " if os.nice(0) != 0 else ""
    before = f"chrt -r {os.sched_getparam(0).sched_priority} " if real_time() else before
    lines = [{"header": {"command": before + "bench/daemon/node.py "
                         + " ".join(sys.argv[1:]),
                         "commit": options.commit,
                         "cpu": f"{model[0].split(':')[1].strip()}, {os.cpu_count()} threads",
                         "load": os.getloadavg()[0],
                         "date": datetime.datetime.now(datetime.timezone.utc).strftime(
                             "%Y-%m-%d %H:%M UTC")}}]
    for part in options.parts:
        node = Node()
        node.directory = tempfile.TemporaryDirectory(prefix="vitamind-")
        for line in PARTS[part](node, options.tries):
            print(json.dumps(line), flush=True)
            lines.append(line)
        node.doCleanups()
        node.directory.cleanup()
    if options.out:
        pathlib.Path(options.out).write_text("".join(json.dumps(line) + "\n" for line in lines))


if __name__ == "__main__":
    main()
