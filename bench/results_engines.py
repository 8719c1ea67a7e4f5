# SPDX-License-Identifier: Apache-2.0
"""The rows of docs/results.md about engines: what calls cost, and vLLM's server beside training."""
import pathlib
import sys

HERE = pathlib.Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE / "evaluation"), str(HERE / "decision")]

import call_costs  # noqa: E402
import harness  # noqa: E402
import moving_steps  # noqa: E402
import serving_report  # noqa: E402
from results_kept import RESULTS, met, within  # noqa: E402

CALLS, SERVING = "engines/call_costs.jsonl", "engines/serving.jsonl"
STEP_COST, MOVING = "engines/step_cost.txt", "engines/moving_steps.jsonl"


def sessions_of(files, *arms):
    """The calls of each run that has these arms."""
    for header, records in files.sessions(CALLS):
        of_calls = [r for r in records if "us" in r]
        if set(arms) <= {r["arm"] for r in of_calls}:
            files.use(CALLS, header)
            yield of_calls


def kinds_of(files, *arms):
    """call_costs.by_kind() of the newest of these."""
    return call_costs.by_kind(list(sessions_of(files, *arms))[-1])


def ratio_of(ours, native):
    """Median over rounds of the ratio in the same round, and its 95 % interval."""
    ratios = [a / b for a, b in zip(ours, native)]
    return call_costs.bootstrap(len(ratios),
                                lambda drawn: harness.median([ratios[i] for i in drawn]))


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
               f"{itself})", met(within(found.low, found.high, target)), files.cite(CALLS)]
    runs = [ratio_of(kinds[step]["random"], kinds[step]["native"])
            for kinds in map(call_costs.by_kind, sessions_of(files, "random", "native"))]
    verdicts = {within(run.low, run.high, 1.3) for run in runs}
    yield ["step of 5 copies, 100 small kernels and `tolist()`, other SMs with every kernel",
           "≤ 1.3 × native", "; ".join(f"{r.value:.2f} ({r.low:.2f} to {r.high:.2f}) ×"
                                       for r in runs) + ", by session",
           met(verdicts.pop() if len(verdicts) == 1 else False if False in verdicts else None),
           files.cite(CALLS)]
    ratios = step_cost("decode-like step, eager")
    yield ["the same right behind the first launches of a graph, in a process of 34 streams",
           "≤ 1.3 × native", " and ".join(f"{r:.2f} ×" for r in ratios),
           met(max(ratios) <= 1.3), files.cite(STEP_COST)]


def step_cost(name):
    """Of the newest table of step_cost.txt, each `random` / the native process before it."""
    lines = (RESULTS / STEP_COST).read_text().splitlines()
    at, heads = [(i, line.replace("no exec.", "-").split()) for i, line in enumerate(lines)
                 if line.startswith("  ") and "native" in line][-1]
    of = next(line for line in lines[at:] if line.startswith(name))[len(name):].split()
    native, ratios = None, []
    for head, microseconds in zip(heads, map(float, of)):
        native = microseconds if head == "native" else native
        if head == "random":
            ratios.append(microseconds / native)
    return ratios


def moving_rows(files):
    """What holds up steps of launches: bench/moving_steps.py."""
    newest_of = lambda kind: files.records(MOVING, lambda r: r.get("measurement") == kind)
    of = moving_steps.beside(newest_of("beside"))
    steps = moving_steps.graphs(newest_of("graphs"))
    for what, words in (("executables", "makes executables of a graph"),
                        ("parameters of nodes", "asks for parameters of a graph's nodes")):
        yield [f"step of 100 launches beside a thread that {words} all the time, natively",
               "reported", "; ".join(
                   f"{of[what, queues][0] / of['nothing', queues][0]:.2f} × on "
                   + ("one queue" if queues == 1 else f"{queues} queues") for queues in (1, 59)),
               "–", files.cite(MOVING)]
    behind = {arm: steps[arm][moving_steps.BEHIND] / steps[arm]["before"]
              for arm in ("native", "random")}
    yield ["the same under `random` right behind the first launches of a graph, against before it",
           "reported", f"{behind['random']:.2f} × (natively {behind['native']:.2f} ×)", "–",
           files.cite(MOVING)]


def serving_rows(files):
    """vLLM's server beside training, in one line for each arm."""
    records = files.every(SERVING, lambda r: "arm" in r or "serving" in r)
    yield from serving_report.rows(records)


def calls_table(files):
    """Every kind of call, for the page of costs: of the newest run of all policies."""
    records = list(sessions_of(files, "native", "fifo", "static", "random", "daemon"))[-1]
    return call_costs.heads(records), list(call_costs.rows(records))
