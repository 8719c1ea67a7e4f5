# SPDX-License-Identifier: Apache-2.0
"""Bit-identical training under colocation: loss, gradients and weights hashed at every step.

    train.py [--out DIR] [--steps 50] [--workloads qwen-train,resnet-train]

Alone natively twice, then under vitamin with a random width and place for every launch, beside a
tenant. The programs are those of bench/workloads.py.
"""

import argparse
import pathlib
import subprocess
import sys

HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent))

import harness  # noqa: E402


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", default=harness.default_output())
    parser.add_argument("--steps", type=int, default=50)
    parser.add_argument("--workloads", default="qwen-train,resnet-train")
    parser.add_argument("--arguments", default="", help="more words for every workload")
    parser.add_argument("--timeout", type=float, default=200)
    options = parser.parse_args()
    results = harness.Results(options.out, "training")
    failures = 0
    for workload in options.workloads.split(","):
        command = [sys.executable, str(HERE.parent / "workloads.py"), workload, "--steps",
                   str(options.steps), *options.arguments.split()]
        reference = None
        for treatment, policy in (("native", None), ("native again", None),
                                  ("ours: random, tenant", "random")):
            words, tenant = command, None
            if policy:
                words = harness.under_vitamin(command, policy, seed=1, strict=True)
                tenant = subprocess.Popen(
                    [*harness.vitamin("run", "--quiet", "--policy", "random", "--seed", "9"), "--",
                     harness.program("determinism"), "--interfere", "600"],
                    stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
            try:
                result = harness.run(words, options.timeout)
            finally:
                if tenant:
                    tenant.terminate()
                    tenant.wait()
            hashes = result.hashes()
            reference = reference if reference is not None else hashes
            differ = [a for (a, x), (b, y) in zip(reference, hashes) if (a, x) != (b, y)]
            good = result.ok and bool(hashes) and len(hashes) == len(reference) and not differ
            failures += not good
            results.add({"workload": workload, "treatment": treatment, "steps": options.steps,
                         "hashes": len(hashes), "differing": len(differ),
                         "first_difference": differ[0] if differ else None, "ok": result.ok,
                         "why": result.why(), "seconds": round(result.seconds, 1)})
            print(f"{workload}, {treatment}: {len(hashes)} hashes, {len(differ)} differ"
                  f"{', first ' + differ[0] if differ else ''}, {result.seconds:.0f} s "
                  f"{result.why()[:200]}", flush=True)
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
