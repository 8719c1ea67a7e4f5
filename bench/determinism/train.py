# SPDX-License-Identifier: Apache-2.0
"""Bit-identical training under colocation: loss, gradients and weights hashed at every step.

    train.py [--out DIR] [--steps 50] [--workloads qwen-train,resnet-train]

Alone natively twice, then under vitamin with a random width and place for every launch, beside a
tenant. The programs are those of bench/workloads.py. Writes training_WORKLOAD.jsonl, with every
hash, so that workloads may be run in commands of their own.
"""

import argparse
import pathlib
import sys

HERE = pathlib.Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parent), str(HERE)]

import harness  # noqa: E402
import plot  # noqa: E402
import tenants  # noqa: E402

# Treatment: options of vitamin run, or None; tenants.
TREATMENTS = {"native": (None, 0), "native again": (None, 0),
              "ours: random, tenant": (("--policy", "random", "--seed", "1", "--strict"), 1)}


def judge(workload, treatment, steps, reference, result, problem, covered, mps):
    hashes = result.hashes()
    differ = [a for (a, x), (b, y) in zip(reference, hashes) if (a, x) != (b, y)]
    good = result.ok and not problem and bool(hashes) and len(hashes) == len(reference)
    record = {"workload": workload, "treatment": treatment, "steps": steps, "hashes": len(hashes),
              "differing": len(differ), "first_difference": differ[0] if differ else None,
              "ok": good and not differ, "why": result.why() or problem,
              "seconds": round(result.seconds, 1), "mps": mps,
              **{key: covered[key] for key in ("launches", "bound", "moved_share") if covered}}
    if treatment == "native":
        record["values"] = hashes
    print(f"{workload}, {treatment}: {len(hashes)} hashes, {len(differ)} differ"
          f"{', first ' + differ[0] if differ else ''}, {result.seconds:.0f} s "
          f"{record['why'][:200]}", flush=True)
    return record


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", default=harness.default_output())
    parser.add_argument("--steps", type=int, default=50)
    parser.add_argument("--workloads", default="qwen-train,resnet-train")
    parser.add_argument("--arguments", default="", help="more words for every workload")
    parser.add_argument("--no-tenant", action="store_true", help="where there is no device")
    parser.add_argument("--timeout", type=float, default=240, help="of one run, seconds")
    options = parser.parse_args()
    failures = 0
    with tenants.daemon() as environment:
        for workload in options.workloads.split(","):
            results = harness.Results(options.out, f"training_{workload}")
            command = [sys.executable, str(HERE.parent / "workloads.py"), workload, "--steps",
                       str(options.steps), *options.arguments.split()]
            reference = None
            for treatment, (under, beside) in TREATMENTS.items():
                report = pathlib.Path(options.out) / "report.json"
                words = command if under is None else [
                    *harness.vitamin("run", "--report", str(report)), *under, "--", *command]
                with tenants.Tenants(0 if options.no_tenant else beside, environment) as others:
                    result = harness.run(words, options.timeout, environment)
                reference = result.hashes() if reference is None else reference
                covered = under and harness.coverage(harness.read_report(report))
                report.unlink(missing_ok=True)
                record = judge(workload, treatment, options.steps, reference, result,
                               others.problem, covered,
                               "CUDA_MPS_PIPE_DIRECTORY" in (environment or {}))
                results.add(record)
                failures += not record["ok"]
    plot.write(options.out)
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
