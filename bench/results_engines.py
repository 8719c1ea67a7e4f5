# SPDX-License-Identifier: Apache-2.0
"""The rows of docs/results.md about engines: what calls cost, and vLLM's server beside training."""
import pathlib
import sys

HERE = pathlib.Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE / "evaluation"), str(HERE / "decision")]

import call_costs  # noqa: E402
import harness  # noqa: E402
import serving_report  # noqa: E402
from results_kept import met  # noqa: E402

CALLS, SERVING = "engines/call_costs.jsonl", "engines/serving.jsonl"


def difference(kinds, kind, arm, base):
    """[median of the difference in the same round, in words]."""
    ours, theirs = kinds[kind][arm], kinds[kind][base]
    return (harness.median([a - b for a, b in zip(ours, theirs)]),
            call_costs.difference(ours, theirs))


def call_rows(files):
    """What a graph launch and moves cost the host of a PyTorch program."""
    kinds = call_costs.by_kind(files.records(CALLS, lambda r: "us" in r))
    itself = lambda kind: difference(kinds, kind, "native again", "native")[1]
    graph, step = "graph of 50 kernels, 10 in a row", "step: 5 copies, 100 kernels, `tolist()`"
    for words, arm, base, target in (
            ("launch of a graph of 50 kernels, whole device, above native", "fifo", "native", 1),
            ("launch of a graph of 50 kernels on a part, above a green context of the program's "
             "own", "static", "green", 2)):
        value, text = difference(kinds, graph, arm, base)
        yield [words, f"≤ {target} µs", f"{text} µs (native against itself {itself(graph)})",
               met(value <= target), files.cite(CALLS)]
    ratio = harness.median([a / b for a, b in zip(kinds[step]["random"], kinds[step]["native"])])
    yield ["step of 5 copies, 100 small kernels and `tolist()`, other SMs with every kernel",
           "≤ 1.3 × native", f"{ratio:.2f} ×", met(ratio <= 1.3), files.cite(CALLS)]


def serving_rows(files):
    """vLLM's server beside training, in one line for each arm."""
    records = files.every(SERVING, lambda r: "arm" in r or "serving" in r)
    yield from serving_report.rows(records)


def calls_table(files):
    """Every kind of call, for the page of costs."""
    records = files.records(CALLS, lambda r: "us" in r)
    return call_costs.heads(records), list(call_costs.rows(records))
