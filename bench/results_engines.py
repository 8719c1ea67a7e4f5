# SPDX-License-Identifier: Apache-2.0
"""The rows of docs/results.md about engines: what calls cost, and vLLM's server beside training."""
import pathlib
import sys

HERE = pathlib.Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE / "evaluation"), str(HERE / "decision")]

import call_costs  # noqa: E402
import harness  # noqa: E402
import serving_report  # noqa: E402
from results_kept import RESULTS, met  # noqa: E402

CALLS, SERVING = "engines/call_costs.jsonl", "engines/serving.jsonl"
STEP_COST = "engines/step_cost.txt"


def kinds_of(files, *arms):
    """call_costs.by_kind() of the newest run that has these arms."""
    for header, records in reversed(files.sessions(CALLS)):
        of_calls = [r for r in records if "us" in r]
        if set(arms) <= {r["arm"] for r in of_calls}:
            files.use(CALLS, header)
            return call_costs.by_kind(of_calls)
    raise KeyError(arms)


def within(found, target):
    """Whether a difference is at most the target: None where its interval holds the target."""
    return True if found.high <= target else False if found.low > target else None


def call_rows(files):
    """What a graph launch and moves cost the host of a PyTorch program."""
    graph, step = "graph of 50 kernels, 10 in a row", "step: 5 copies, 100 kernels, `tolist()`"
    launch = "launch, 100 in a row"
    for words, kind, arm, base, target in (
            ("launch of a graph of 50 kernels, whole device, above native", graph, "fifo",
             "native", 1),
            ("the same as the only client of vitamind", graph, "daemon", "native", 1),
            ("launch of a graph of 50 kernels on a part, above a green context of the program's "
             "own", graph, "static", "green", 2),
            ("launch of a small kernel with other SMs than the one before, above native", launch,
             "random", "native", 1)):
        of_arms = kinds_of(files, arm, base, "native again")[kind]
        found = call_costs.difference_of(of_arms[arm], of_arms[base])
        itself = call_costs.difference(of_arms["native again"], of_arms["native"])
        yield [words, f"≤ {target} µs", f"{call_costs.words(found)} µs (native against itself "
               f"{itself})", met(within(found, target)), files.cite(CALLS)]
    kinds = kinds_of(files, "random", "native")
    ratio = harness.median([a / b for a, b in zip(kinds[step]["random"], kinds[step]["native"])])
    yield ["step of 5 copies, 100 small kernels and `tolist()`, other SMs with every kernel",
           "≤ 1.3 × native", f"{ratio:.2f} ×", met(ratio <= 1.3), files.cite(CALLS)]
    ratios = step_cost("decode-like step, eager")
    yield ["the same right behind the first launches of a graph, in a process of 34 streams",
           "≤ 1.3 × native", " and ".join(f"{r:.2f} ×" for r in ratios),
           met(max(ratios) <= 1.3), files.cite(STEP_COST)]


def step_cost(name):
    """Of step_cost.txt, random / native on each of the two GPUs."""
    lines = (RESULTS / STEP_COST).read_text().splitlines()
    words = next(line for line in lines if line.startswith(name))[len(name):].split()
    native, random = words[0::4], words[2::4]
    return [float(r) / float(n) for r, n in zip(random, native)]


def serving_rows(files):
    """vLLM's server beside training, in one line for each arm."""
    records = files.every(SERVING, lambda r: "arm" in r or "serving" in r)
    yield from serving_report.rows(records)


def calls_table(files):
    """Every kind of call, for the page of costs."""
    records = files.records(CALLS, lambda r: "us" in r)
    return call_costs.heads(records), list(call_costs.rows(records))
