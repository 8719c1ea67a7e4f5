# SPDX-License-Identifier: Apache-2.0
"""Do the bits depend on the allocation? And was every launch caught?

    bits.py [--out DIR] [--only WORD] [--jobs N] [--part programs|workloads]

Every program runs natively twice, then under `vitamin run --strict` with a random entry for every
launch (two seeds) and with `fifo`. All bytes that it prints a hash of must be equal in every run;
native twice comes first, so that a program which differs from itself is not blamed on us.
"""

import argparse
import concurrent.futures
import pathlib
import sys
import tempfile

import harness

HERE = pathlib.Path(__file__).resolve().parent
PYTHON = sys.executable

SECTIONS = ["default-streams", "threads", "events", "copies", "host-functions", "malloc-async",
            "cooperative", "clusters", "graphs"]

PROGRAMS = {
    "cuBLAS": [harness.program("use_cublas")],
    "cuBLASLt": [harness.program("use_cublaslt")],
    "cuDNN": [harness.program("use_cudnn")],
    "cuFFT": [harness.program("use_cufft")],
    "NVRTC": [harness.program("use_nvrtc")],
    "Triton": [PYTHON, str(HERE / "use_triton.py")],
    "shared runtime": [harness.program("use_runtime_shared")],
    "per-thread default stream": [harness.program("use_runtime_per_thread")],
    **{f"static runtime, {s}": [harness.program("use_runtime_static"), "--section", s]
       for s in SECTIONS},
}
WORKLOADS = {
    "Qwen3-0.6B training, 20 steps": [PYTHON, str(HERE / "workloads.py"), "qwen-train"],
    "ResNet-152 training, 10 steps": [PYTHON, str(HERE / "workloads.py"), "resnet-train"],
    "Llama-3.1-8B prefill, 64 tokens": [PYTHON, str(HERE / "workloads.py"), "llama-generate"],
}
# Mode: policy, seed. A workload takes the time of four runs, so it runs with one seed.
MODES = {"native": None, "native again": None, "random": ("random", 1), "random 2": ("random", 2),
         "fifo": ("fifo", None)}
WORKLOAD_MODES = ["native", "native again", "random", "fifo"]


def run_one(command, mode, timeout):
    if MODES[mode] is None:
        return harness.run(command, timeout), None
    policy, seed = MODES[mode]
    with tempfile.TemporaryDirectory() as directory:
        path = pathlib.Path(directory) / "report.json"
        # Strictness is judged here, from the report: a run that is not complete must still be seen.
        result = harness.run(harness.under_vitamin(command, policy, path, strict=True, seed=seed),
                             timeout)
        return result, harness.read_report(path)


def differences(expected, got):
    """Names of the results that differ, in order."""
    if [name for name, _ in expected] != [name for name, _ in got]:
        return ["(other results were printed)"]
    return [name for (name, a), (_, b) in zip(expected, got) if a != b]


def judge(subject, outcomes, results):
    native, _ = outcomes["native"]
    rows = []
    for mode, (result, report) in outcomes.items():
        differ = differences(native.hashes(), result.hashes())
        covered = harness.coverage(report)
        record = {
            "subject": subject, "mode": mode, "command": result.command, "ok": result.ok,
            "why": result.why(), "seconds": round(result.seconds, 2),
            "results": len(result.hashes()), "equal": bool(result.hashes()) and not differ,
            "differ": len(differ), "first_difference": differ[0] if differ else None,
            "coverage": covered,
        }
        if mode == "native":
            record["hashes"] = native.hashes()
        results.add(record)
        rows.append(record)
    return rows


def verdict(record):
    if not record["results"]:
        return "no result"
    return ("equal" if record["equal"] else "DIFFERS") + ("" if record["ok"] else ", failed")


def summary(subject, records):
    """One row: what every mode gave, and the coverage of the random one."""
    by_mode = {r["mode"]: r for r in records}
    c = (by_mode.get("random") or {}).get("coverage") or {}
    others = [m for m in by_mode if m != "native"]
    return [subject, *[verdict(by_mode[m]) for m in others], c.get("launches", "-"),
            *[harness.percent(c.get(k)) for k in ("bound_share", "narrow_share", "moved_share")],
            sum(c.get("whole_device", {}).values()) if c else "-", graphs(c),
            f"{max(r['seconds'] for r in records):.0f} s"]


def graphs(c):
    """Launches of graphs bound of all, and how many moved; why the others ran on the whole device
    is in the records."""
    if not c or not c["graph_launches"]:
        return "-"
    return f"{c['graphs']['bound']}/{c['graph_launches']}, {c['graphs']['moved']} moved"


def libraries(records):
    """Coverage by library over all random runs."""
    total = {}
    for record in records:
        if record["mode"].startswith("random") and record["coverage"]:
            for library in record["coverage"]["libraries"]:
                row = total.setdefault(library["name"], [0, 0, 0, 0])
                for i, key in enumerate(("seen", "bound", "narrow", "moved")):
                    row[i] += library[key]
    return [[name, *row] for name, row in sorted(total.items(), key=lambda item: -item[1][0])]


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", default=harness.default_output())
    parser.add_argument("--only", default="", help="subjects whose name holds this word")
    parser.add_argument("--modes", default="", help="comma-separated, of: " + ", ".join(MODES))
    parser.add_argument("--jobs", type=int, default=4)
    parser.add_argument("--timeout", type=float, default=0)
    parser.add_argument("--part", choices=["programs", "workloads"], default="programs")
    parser.add_argument("--arguments", default="", help="more words for every command")
    options = parser.parse_args()

    subjects = PROGRAMS if options.part == "programs" else WORKLOADS
    subjects = {s: [*c, *options.arguments.split()] for s, c in subjects.items()
                if options.only.lower() in s.lower()}
    modes = [m.strip() for m in options.modes.split(",") if m.strip()] or (
        list(MODES) if options.part == "programs" else WORKLOAD_MODES)
    if "native" not in modes:
        modes.insert(0, "native")
    timeout = options.timeout or (60 if options.part == "programs" else 150)
    results = harness.Results(options.out, f"bits_{options.part}")

    pending = {}
    rows = []
    table = []
    with concurrent.futures.ThreadPoolExecutor(options.jobs) as pool:
        for subject, command in subjects.items():
            pending[subject] = {m: pool.submit(run_one, command, m, timeout) for m in modes}
        for subject, futures in pending.items():
            records = judge(subject, {m: f.result() for m, f in futures.items()}, results)
            rows += records
            table.append(summary(subject, records))
            for record in records:
                if record["why"] or record["first_difference"]:
                    print(f"{subject}, {record['mode']}: {record['why'][:200]} "
                          f"{record['first_difference'] or ''}", flush=True)

    print("\n" + harness.table(libraries(rows), ["library", "seen", "bound", "narrow", "moved"]))
    print("\n" + harness.table(table, ["subject", *[m for m in modes if m != "native"], "launches",
                                       "bound", "narrow", "moved", "whole", "graphs",
                                       "slowest run"]))
    bad = [r for r in rows if not (r["equal"] and r["ok"])]
    print(f"\n{len(rows)} runs, {len(bad)} not as they should be")
    sys.exit(1 if bad else 0)


if __name__ == "__main__":
    main()
