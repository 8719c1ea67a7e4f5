# SPDX-License-Identifier: Apache-2.0
"""What does a program lose that has the GPU for itself? Native against `--policy fifo`.

    timing.py [--pairs N] [--workloads qwen-train,...] [--out DIR]

The time of a run is its quiet step (workloads.py, Clock). Pairs of runs, natively and under
vitamin, one after the other with the order turned in every other pair; the answer is the median
of the pairs' ratios, not the ratio of medians, because host-bound programs drift by several per
cent within minutes. Beside it: native against native, from the native runs of neighbouring pairs,
which is the noise that the answer must be read against.
"""

import argparse
import pathlib
import sys
import tempfile

import harness

HERE = pathlib.Path(__file__).resolve().parent


def one(mode, options, results, pair):
    command = [sys.executable, str(HERE / "workloads.py"), "--timed", *options.workloads.split(",")]
    command += options.arguments.split()
    if options.steps:
        command += ["--steps", str(options.steps)]
    with tempfile.TemporaryDirectory() as folder:
        path = pathlib.Path(folder) / "report.json"
        if mode != "native":
            command = harness.under_vitamin(command, mode, path, window=options.window)
        result = harness.run(command, options.timeout, cpus=options.cpus)
        report = harness.coverage(harness.read_report(path))
    if report:
        report = {k: report[k] for k in ("launches", "bound", "edges", "deferred", "pools")}
    record = {"pair": pair, "mode": mode, "seconds": result.seconds, "ok": result.ok,
              "why": result.why(), "coverage": report,
              "steps": {l["name"]: l["quiet_ms"] for l in result.lines if "quiet_ms" in l}}
    results.add(record)
    print(f"pair {pair} {mode}: " + ", ".join(f"{n} {s:.3f} ms" for n, s in record["steps"].items())
          + f" (process {result.seconds:.1f} s) {result.why()[:80]}", flush=True)
    return record


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", default=harness.default_output())
    parser.add_argument("--pairs", type=int, default=5)
    parser.add_argument("--policy", default="fifo")
    parser.add_argument("--window", default=None)
    parser.add_argument("--workloads", default="qwen-train,resnet-train,llama-generate")
    parser.add_argument("--steps", type=int, default=0)
    parser.add_argument("--arguments", default="", help="more words for workloads.py")
    parser.add_argument("--timeout", type=float, default=120)
    parser.add_argument("--cpus", default="0-7", help="cores that every run is pinned to")
    options = parser.parse_args()
    results = harness.Results(options.out, "timing")

    pairs = []
    for i in range(options.pairs):
        order = ["native", options.policy] if i % 2 == 0 else [options.policy, "native"]
        pairs.append({mode: one(mode, options, results, i) for mode in order})

    rows = []
    names = list(pairs[0]["native"]["steps"])
    for name in names:
        ratios = [p[options.policy]["steps"][name] / p["native"]["steps"][name] for p in pairs
                  if name in p["native"]["steps"] and name in p[options.policy]["steps"]]
        native = [p["native"]["steps"][name] for p in pairs if name in p["native"]["steps"]]
        noise = [b / a for a, b in zip(native, native[1:])]
        record = {"name": name, "policy": options.policy, "median_ratio": harness.median(ratios),
                  "ratios": ratios, "native_against_native": noise}
        results.add(record)
        show = lambda v: f"{v:.4f}" if v else "-"
        rows.append([name, len(ratios), show(record["median_ratio"]),
                     show(min(ratios, default=None)), show(max(ratios, default=None)),
                     show(min(noise, default=None)), show(max(noise, default=None))])
    print()
    print(harness.table(rows, ["workload", "pairs", f"{options.policy} / native, median", "least",
                               "most", "native / native, least", "most"]))


if __name__ == "__main__":
    main()
