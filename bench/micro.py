# SPDX-License-Identifier: Apache-2.0
"""The small measurements: calls, cold calls, launch path, chain, matrix product, streams, pool.

    micro.py [launch] [cold] [path] [chain] [gemm] [blocked] [pool] [--rounds N] [--out DIR]

Each measurement runs its program natively and under `vitamin run` in turn, `--rounds` times, and
compares medians over rounds. One that fails is reported and does not stop the others.
"""

import argparse
import os
import pathlib
import shutil
import signal
import subprocess
import tempfile
import time

import harness


class Measurement:
    """Runs arms in turn and keeps every line that they print."""

    def __init__(self, name, results, timeout=60):
        self.name, self.results, self.timeout = name, results, timeout
        self.lines = {}

    def run(self, arm, command, policy=None, window=None, environment=None, round_=0):
        with tempfile.TemporaryDirectory() as directory:
            path = pathlib.Path(directory) / "report.json"
            if policy:
                command = harness.under_vitamin(command, policy, path, window=window)
            result = harness.run(command, self.timeout, environment)
            report = harness.coverage(harness.read_report(path))
        self.results.add({"measurement": self.name, "arm": arm, "round": round_, "ok": result.ok,
                          "why": result.why(), "command": result.command,
                          "environment": environment or {}, "seconds": round(result.seconds, 2),
                          "lines": result.lines, "coverage": report})
        if not result.ok:
            print(f"{self.name}, {arm}: {result.why()[:200]}", flush=True)
        self.lines.setdefault(arm, []).append(result.lines if result.ok else [])
        return result, report

    def values(self, arm, key, **match):
        """One value a round: the first line of the arm's run that has `key` and matches."""
        found = []
        for lines in self.lines.get(arm, []):
            for line in lines:
                if key in line and all(line.get(k) == v for k, v in match.items()):
                    found.append(line[key])
                    break
        return found

    def median(self, arm, key, **match):
        return harness.median(self.values(arm, key, **match))


def number(value, digits=3):
    return "-" if value is None else f"{value:.{digits}f}"


def difference(a, b, digits=3):
    return "-" if a is None or b is None else f"{a - b:+.{digits}f}"


def ratio(a, b):
    return "-" if a is None or not b else f"{a / b:.4f}"


def launch(options, results):
    m = Measurement("launch call", results)
    command = [harness.program("launch_latency")]
    for i in range(options.rounds):
        m.run("native", command, round_=i)
        m.run("fifo", command, policy="fifo", round_=i)
        m.run("static", command, policy="static:units=0-7", round_=i)
    rows = []
    for stream in ("non-blocking", "legacy"):
        native = m.median("native", "batch_median_ns", stream=stream)
        for arm in ("native", "fifo", "static"):
            rows.append([arm, stream, number(m.median(arm, "median_ns", stream=stream), 0),
                         number(m.median(arm, "p95_ns", stream=stream), 0),
                         number(m.median(arm, "batch_median_ns", stream=stream), 0),
                         difference(m.median(arm, "batch_median_ns", stream=stream), native, 0)])
    return harness.table(rows, ["launch call", "stream", "median ns", "p95 ns", "in a row ns",
                                "above native ns"])


def cold(options, results):
    m = Measurement("cold calls", results)
    command = [harness.program("cold_calls")]
    for i in range(options.rounds):
        m.run("native", command, round_=i)
        m.run("fifo", command, policy="fifo", round_=i)
    calls = [line["call"] for line in (m.lines["native"] or [[]])[0]]
    rows = []
    for call in calls:
        row = [call]
        for key in ("warm_ns", "cold_ns"):
            native, fifo = (m.median(arm, key, call=call) for arm in ("native", "fifo"))
            row += [number(native, 0), difference(fifo, native, 0)]
        rows.append(row)
    return harness.table(rows, ["call", "warm ns", "fifo above", "cold ns", "fifo above"])


def path(options, results):
    m = Measurement("launch path", results)
    command = [harness.program("launch_path")]
    m.run("native", command)
    m.run("fifo", command, policy="fifo")
    m.run("static", command, policy="static:units=0-7")
    m.run("random", command, policy="random")
    rows = []
    for arm in ("native", "fifo", "static", "random"):
        for kernel in ("no parameters", "three parameters"):
            libraries = (m.values(arm, "by_library", kernel=kernel) or [{}])[0]
            rows.append([arm, kernel, number(m.median(arm, "instructions", kernel=kernel), 0),
                         number(sum(n for l, n in libraries.items() if "vitamin" in l), 0),
                         number(m.median(arm, "system_calls_max", kernel=kernel), 0),
                         number(m.median(arm, "allocations_max", kernel=kernel), 0)])
    return harness.table(rows, ["launch path", "kernel", "instructions", "of them ours",
                                "system calls", "allocations"])


def chain(options, results):
    m = Measurement("chain", results)
    command = [harness.program("chain")]
    arms = {"native": {}, "native again": {},
            "one entry (fifo)": {"policy": "fifo"},
            "one entry (static, 64 SMs)": {"policy": "static:units=0-7"},
            "a move every 4": {"policy": "random:every=4,min_sms=16"},
            "a move every time": {"policy": "random:min_sms=16"},
            "strict rule, one entry": {"policy": "fifo", "window": 0},
            "strict rule, a move every 4": {"policy": "random:every=4,min_sms=16", "window": 0}}
    for i in range(options.rounds):
        for arm, how in arms.items():
            m.run(arm, command, round_=i, **how)
    native = m.median("native", "per_kernel_us")
    rows = [[arm, number(m.median(arm, "per_kernel_us")), number(m.median(arm, "p90_us")),
             difference(m.median(arm, "per_kernel_us"), native),
             number(m.median(arm, "wall_per_kernel_us"))] for arm in arms]
    return harness.table(rows, ["chain of 1,000", "µs a kernel", "p90", "above native", "wall"])


def gemm(options, results):
    m = Measurement("gemm", results, timeout=90)
    program = harness.program("gemm_samples")
    arms = {"native": ([program], None), "native again": ([program], None),
            "vitamin, whole device (fifo)": ([program], "fifo"),
            "vitamin, 120 SMs anew each time": ([program], "random:min_sms=120,max_sms=120"),
            "vitamin, 132 green SMs": ([program], "static:units=0-15"),
            "vitamin, 132 SMs, green or not, anew each time": (
                [program], "random:min_sms=132,max_sms=132,whole=1"),
            "flat pool, 120 SMs": ([program, "--arm", "flat", "--units", "15"], None),
            "flat pool, 132 SMs": ([program, "--arm", "flat", "--units", "16"], None),
            "made on demand, 120 SMs": (
                [program, "--arm", "on-demand", "--units", "15", "--samples", "500"], None)}
    for i in range(min(options.rounds, 3)):
        for arm, (command, policy) in arms.items():
            if arm.startswith("made on demand") and i > 0:
                continue
            m.run(arm, command, policy=policy, round_=i)
    native = m.median("native", "wall_p95_us")
    native_device = m.median("native", "device_p95_us")
    bytes_of = lambda arm: (m.values(arm, "hash") or ["-"])[0][:8]
    rows = [[arm, number(m.median(arm, "wall_p50_us"), 1), number(m.median(arm, "wall_p95_us"), 1),
             ratio(m.median(arm, "wall_p95_us"), native),
             number(m.median(arm, "device_p95_us"), 1),
             ratio(m.median(arm, "device_p95_us"), native_device), bytes_of(arm)] for arm in arms]
    return harness.table(rows, ["GEMM 512 x 8192 x 28672", "p50 µs", "p95 µs", "p95 / native",
                                "device p95", "/ native", "bytes"])


class Mps:
    """An MPS daemon of our own, with its pipes and logs in a directory of our own."""

    def __init__(self):
        self.directory = tempfile.mkdtemp(prefix="vitamin-mps-")
        self.environment = {"CUDA_MPS_PIPE_DIRECTORY": f"{self.directory}/pipe",
                            "CUDA_MPS_LOG_DIRECTORY": f"{self.directory}/log"}
        for path_ in self.environment.values():
            os.makedirs(path_)
        self.control = shutil.which("nvidia-cuda-mps-control") or next(
            (str(p) for d in ("/usr/local/nvidia/bin", "/usr/bin", "/usr/local/bin")
             for p in [pathlib.Path(d) / "nvidia-cuda-mps-control"] if p.exists()), None)
        self.running = False

    def __enter__(self):
        if self.control:
            self.running = harness.run([self.control, "-d"], 20, self.environment).ok
            time.sleep(1)
        return self

    def __exit__(self, *_):
        if self.running:
            # `quit` is read from standard input. A server whose client hung may never answer.
            quit_ = harness.run(["sh", "-c", f"echo quit | {self.control}"], 10, self.environment)
            if not quit_.ok:
                self._kill()
        shutil.rmtree(self.directory, ignore_errors=True)

    def _kill(self):
        """Control daemon and servers: those processes whose environment names our directory."""
        mine = f"CUDA_MPS_PIPE_DIRECTORY={self.directory}/pipe".encode()
        for entry in pathlib.Path("/proc").iterdir():
            try:
                if b"nvidia-cuda-mps" in (entry / "cmdline").read_bytes() and \
                        mine in (entry / "environ").read_bytes().split(b"\0"):
                    os.kill(int(entry.name), signal.SIGKILL)
            except (OSError, ValueError):  # no process, gone, or another user's
                continue


def blocked(options, results):
    m = Measurement("blocked streams", results, timeout=40)
    program = harness.program("blocked_streams")
    rows = []

    def one(arm, arguments, policy, environment):
        result, _ = m.run(arm, [program, *arguments], policy=policy, environment=environment)
        line = result.lines[0] if result.lines else {}
        if "innocent_blocked" not in line:
            rows.append([arm, "-", "-", "-", result.why()[:60] or "no result"])
            return
        rows.append([arm, f"{line['innocent_blocked']} of {line['innocent']}",
                     number(line["innocent_max_ms"], 1), line["launched_before_release"],
                     "all ran" if line["every_kernel_ran"] else "KERNELS MISSING"])

    def all_arms(place, environment):
        for connections in ("8", "32"):
            env = dict(environment, CUDA_DEVICE_MAX_CONNECTIONS=connections)
            tag = f"{place}, {connections} connections"
            one(f"{tag}: native, kernel", ["--by", "kernel", "--hold-ms", "100"], None, env)
            one(f"{tag}: native with 59 contexts, host", ["--pool", "59"], None, env)
            one(f"{tag}: fifo, kernel", ["--by", "kernel", "--hold-ms", "100"], "fifo", env)
            for policy in ("fifo", "random"):
                one(f"{tag}: {policy}, host", [], policy, env)
            for launches in ("900", "5000"):
                one(f"{tag}: native, {launches} behind the gate", ["--launches", launches], None,
                    env)
                one(f"{tag}: random, {launches} behind the gate", ["--launches", launches],
                    "random", env)

    all_arms("alone", {})
    with Mps() as mps:
        if mps.running:
            all_arms("MPS", mps.environment)
        else:
            rows.append(["MPS", "-", "-", "-", "the daemon does not start here"])
    return harness.table(rows, ["blocked streams", "innocent blocked", "slowest ms",
                                "launched before", "kernels"])


def pool(options, results):
    m = Measurement("pool", results)
    program = harness.program("pool_memory")
    rows = []
    m.run("native", [program])
    _, report = m.run("fifo", [program], policy="fifo")
    native_used = m.median("native", "used_mib")
    native_resident = m.median("native", "resident_mib")
    made = (report or {}).get("pools") or [{}]
    entries = made[0].get("entries", 0)
    used = m.median("fifo", "used_mib")
    resident = m.median("fifo", "resident_mib")
    if used and native_used:
        rows.append([f"vitamin's own ({entries} entries, {made[0].get('queues', '?')} queues)",
                     number(made[0].get("creation_ns", 0) * 1e-6, 0),
                     number(used - native_used, 0), number(resident - native_resident, 0),
                     number((used - native_used) / max(entries, 1), 2)])
        rows.append(["  first use of the GPU, native / vitamin, ms",
                     number(m.median("native", "first_use_ms"), 0) + " / " +
                     number(m.median("fifo", "first_use_ms"), 0), "", "", ""])
    for count in (59, 127, 208):
        arm = f"{count} contexts, one stream each"
        m.run(arm, [program, "--kind", "green", "--entries", str(count)])
        mib = m.median(arm, "pool_mib")
        rows.append([arm, number(m.median(arm, "pool_ms"), 0), number(mib, 0),
                     number(m.median(arm, "pool_resident_mib"), 0),
                     number(mib / count if mib else None, 2)])
    with Mps() as mps:
        if mps.running:
            rows += pool_under_mps(m, results, mps.environment)
        else:
            rows.append(["under MPS: the daemon does not start here", "", "", "", ""])
    return harness.table(rows, ["pool", "ms", "GPU MiB", "resident MiB", "GPU MiB an entry"])


def device_mib():
    """Of all processes; nothing where there is no GPU."""
    answer = harness.run(["nvidia-smi", "--query-gpu=memory.used", "--format=csv,noheader,nounits"],
                         20)
    return float(answer.output.splitlines()[0]) if answer.ok else None


def pool_under_mps(m, results, environment):
    """The paper's other pool, of MPS contexts; and what a client of MPS holds, with and without
    vitamin."""
    rows = []
    for count in (8, 16, 32, 59):
        arm = f"{count} MPS contexts, one stream each"
        m.run(arm, [harness.program("pool_memory"), "--kind", "mps", "--entries",
                    str(count)], environment=environment)
        made, mib = m.median(arm, "entries"), m.median(arm, "pool_mib")
        note = "" if made in (count, None) else \
            f" (only {made:.0f}: error {m.median(arm, 'refused'):.0f})"
        rows.append([arm + note, number(m.median(arm, "pool_ms"), 0), number(mib, 0),
                     number(m.median(arm, "pool_resident_mib"), 0),
                     number(mib / made if mib and made else None, 2)])
    for name, words in (("a client of MPS", []),
                        ("a client of MPS under vitamin",
                         [*harness.vitamin("run", "--quiet", "--policy", "fifo"), "--"])):
        clients, used = [], [device_mib()]
        try:
            for _ in range(3):
                clients.append(subprocess.Popen(
                    [*words, harness.program("occupy")], stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
                    env=harness.environment_with(environment)))
                clients[-1].stdout.readline()  # it is ready
                used.append(device_mib())
        finally:
            for client in clients:
                client.stdin.close()
                client.wait(20)
        results.add({"measurement": "pool", "arm": name, "round": 0, "ok": None not in used,
                     "why": "", "lines": [], "device_mib": used})
        steps = [b - a for a, b in zip(used, used[1:])] if None not in used else [None] * 3
        rows.append([name + " (the first starts the server; each further one)", "",
                     " / ".join(number(s, 0) for s in steps), "", ""])
    return rows


MEASUREMENTS = {"launch": launch, "cold": cold, "path": path, "chain": chain, "gemm": gemm,
                "blocked": blocked, "pool": pool}


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("measurements", nargs="*", help=", ".join(MEASUREMENTS))
    parser.add_argument("--out", default=harness.default_output())
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    for name in options.measurements:
        if name not in MEASUREMENTS:
            parser.error(f"there is no measurement '{name}'")
    tables = []
    for name in options.measurements or MEASUREMENTS:
        results = harness.Results(options.out, f"micro_{name}")
        begin = time.monotonic()
        try:
            tables.append(MEASUREMENTS[name](options, results))
        except (OSError, KeyError, TypeError, ZeroDivisionError) as error:
            tables.append(f"{name}: {type(error).__name__}: {error}")
        print(f"{name}: {time.monotonic() - begin:.0f} s", flush=True)
    print("\n" + "\n\n".join(tables))


if __name__ == "__main__":
    main()
