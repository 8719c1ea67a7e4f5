#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""docs/results.md from the results that are kept under bench/results.

    results_page.py            prints the page
    results_page.py --write    writes docs/results.md

Every number is computed from a kept file or copied from a kept report (bench/results/decide/
report.md, which bench/decide.py makes from its raw samples). A table names the file of each row;
the list of files at the end has command, commit, GPU and date of each.
"""
import pathlib
import re
import sys

HERE = pathlib.Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE / "evaluation"), str(HERE / "decision")]

import load  # noqa: E402
import serving_report  # noqa: E402
from comparisons import by_session, cells, middle, neighbours  # noqa: E402
from results_engines import call_rows, calls_table, moving_rows, serving_rows  # noqa: E402
from results_kept import (  # noqa: E402
    EVALUATION, Files, JOBS, MIXED, MODES, PAIRS, ROW, met, newest, percent, span, table)
from results_rows import (  # noqa: E402
    bits_rows, cost_rows, decide_report, fleet_rows, in_words, isolation_rows, markdown_tables,
    scheduling_rows, speeds)
from sections import drifted, normalised  # noqa: E402

PAGE = HERE.parent / "docs" / "results.md"


# ------------------------------------------------------------------------------- sharing


def alone_rows(files):
    for r in cells(newest(files, "E0")):
        busy = r["profile"]["busy_share"]
        yield [r["subject"], JOBS[r["subject"]], f"{1e3 * r['step_s']:.1f}", percent(busy),
               f"{r['most_mib'] / 1024:.1f}"]


def training(files):
    """[pair, jobs, ratio to MPS text, ratio, speeds...] of each pair of training jobs."""
    rows, ratios = [], {}
    total = lambda r: sum(r["each"])
    for _, subject, found in by_session(newest(files, "E3")):
        runs, _ = normalised(found)
        if "ours" not in runs or "mps" not in runs:
            continue
        of = neighbours(runs["ours"], runs["mps"], total)
        ratios[subject] = middle(of)
        sums = [f"{middle(map(total, runs[c])):.2f}" if c in runs else "–"
                for c in ("mps", "ours", "static", "temporal")]
        rows.append([f"{subject}: {PAIRS[subject]}" if PAIRS[subject] != subject else subject,
                     span(of), met(middle(of) >= 0.98), *sums])
    return sorted(rows), ratios


def mixed(files):
    rows = []
    rate, late = lambda r: r["train"]["per_s"], lambda r: r["infer"]["p99"]
    for _, subject, found in by_session(newest(files, "E4")):
        base = found.get("exclusive", [])
        if drifted([late(r) for r in base]):
            rows.append([MIXED[subject.split()[0]], "–", "–", "–",
                         "not comparable: p99 alone drifted during the run"])
            continue
        for cell in ("mps", "mps-priority", "static", "ours", "ours-tpot-first"):
            if runs := found.get(cell):
                p99, share = (middle(neighbours(runs, base, v)) for v in (late, rate))
                if p99 is not None:
                    rows.append([MIXED[subject.split()[0]], MODES[cell], f"{p99:.2f}",
                                 f"{share:.2f}", sum(r["infer"]["answered"] for r in runs)])
    return rows


# Rows of mixed() that the replay of measured service times replaces: pair -> job of `slo`.
REPLAYED = {"BERT beside the 8B decoder": "BE"}


def replayed(job):
    """mode -> (p99 / alone, training / alone) of the row `slo`, beside this training job."""
    kept = next(markdown_tables(decide_report(), "## Must be shown"))
    text = next((row[2] for row in kept if row[0].startswith("`slo`")), "")
    part = next((p for p in text.split("<br>") if p.startswith(f"{job}: ")), "")
    names = {"ours:tpot-first": "ours-tpot-first", "ours:throughput": "ours"}
    found = re.findall(r"([\w:-]+) p99 ([\d.]+) × alone, training ([\d.]+)", part)
    return {MODES.get(names.get(name, name)): (p99, share) for name, p99, share in found}


def withdrawn(rows):
    """Rows of mixed() that stand, and lines about those that are withdrawn."""
    stand, lines = [], []
    for row in rows:
        better = replayed(REPLAYED[row[0]]) if row[0] in REPLAYED else {}
        if not better or len(row) < 5 or row[2] == "–":
            stand.append(row)
        elif row[1] in better:
            p99, share = better[row[1]]
            lines.append(f"* {row[0]}, {row[1]}: p99 {row[2]} × alone with training at {row[3]} "
                         f"({row[4]} requests); replayed: {p99} × at {share}.")
        else:
            lines.append(f"* {row[0]}, {row[1]}: p99 {row[2]} × alone with training at {row[3]} "
                         f"({row[4]} requests); not replayed yet.")
    return stand, lines


def traces(files):
    text = decide_report()
    rows = next(markdown_tables(text, "## prefill and decode as two processes, on traces"))
    name = "evaluation/E5-policies.jsonl.gz"
    for header, _ in files.sessions(name):
        files.use(name, header)
    kept = [[row[0], MODES[row[1]], *row[2:]] for row in rows[1:] if row[1] in MODES]
    return in_words(table(["trace, load", "mode", *rows[0][2:]], kept))


# ------------------------------------------------------------------- control path, prediction


def node_rows(files):
    name = "daemon/node_costs.jsonl"
    by = {r["measurement"]: r for r in files.records(name)}
    r = by["request to grant, daemon hot"]
    yield ["request to grant, daemon polling", "p50 1 µs, p99 3 µs",
           f"p50 {max(r['p50_ns']) / 1e3:.2f} µs, p99 {max(r['p99_ns']) / 1e3:.2f} µs",
           met(max(r["p50_ns"]) <= 1000 and max(r["p99_ns"]) <= 3000), files.cite(name)]
    r = by["inline launch under a held lease"]
    yield ["launch under a held lease, the scheduler's part", "within 20 ns of in process",
           f"{max(r['daemon_ns']):.1f} ns, in process {max(r['in_process_ns']):.1f} ns",
           met(max(r["daemon_ns"]) - min(r["in_process_ns"]) <= 20), files.cite(name)]
    name = "daemon/node_gate.jsonl"
    records = files.records(name)
    yield ["lease revoked after SIGKILL of its client of up to 2 GiB", "p99 ≤ 1 ms",
           f"p99 {max(r['p99_us'] for r in records) / 1e3:.2f} ms",
           met(max(r["p99_us"] for r in records) <= 1000), files.cite(name)]
    name = "daemon/node_home.jsonl"
    for which, where in ((0, "2 cores at a load of 18"), (1, "12 cores")):
        header, records = files.sessions(name)[which]
        files.use(name, header)
        r = max((r for r in records if "clients" in r), key=lambda r: r["clients"])
        yield [f"all of {r['clients']} clients go on by themselves after SIGKILL of vitamind, "
               f"{r['restarts']:,} restarts, {where}", "p99 ≤ 50 ms",
               f"p50 {r['p50_ms']:.1f} ms, p99 {r['p99_ms']:.0f} ms", met(r["p99_ms"] <= 50),
               files.cite(name)]
    name = "daemon/node_restarts.jsonl"
    for r in files.records(name):
        text = f"{r['equal']} of {r['runs']} runs with the bytes of a run alone" if "runs" in r \
            else f"{r['operations']:,} operations, {r['malformed']} records malformed"
        yield [f"{r['measurement']}: {r['restarts']:,} restarts under {r['clients']} clients",
               "nothing lost, no overlap", f"{text}, {r['overlaps']} overlaps",
               met(not r["overlaps"] and r.get("equal") == r.get("runs")), files.cite(name)]
    name = "daemon/node_attack.jsonl"
    for r in files.records(name):
        yield [r["measurement"] + f", {r['processors']} cores", "≥ 99 % of its rate without",
               f"{percent(r['median_of_ratios'])} ({percent(r['interval_95'][0])} to "
               f"{percent(r['interval_95'][1])})", met(r["median_of_ratios"] >= 0.99),
               files.cite(name)]
    name = "daemon/node_idle.jsonl"
    r = files.records(name)[0]
    yield ["CPU of vitamind with one idle client", "≤ 0.1 % of a core",
           percent(r["share_of_a_processor"]), met(r["share_of_a_processor"] <= 0.001),
           files.cite(name)]
    name = "daemon/fuzz_decode.jsonl"
    r = files.records(name)[-1]
    yield ["fuzzing of the protocol's decoding", "10⁸ executions, 0 crashes",
           f"{r['executions_so_far']:,} executions, {r['crashes']} crashes",
           met(r["executions_so_far"] >= 1e8 and not r["crashes"]), files.cite(name)]


def prediction_rows(files):
    name = "policies/predictions.jsonl"
    found = [r["summary"] for r in files.records(name, lambda r: "summary" in r)]
    for s in [s for s in found if s["mode"] == "all pairs" and s["what"] in ("throughput", "p99")]:
        what = {"throughput": "steps/s of pairs", "p99": "p99 of requests beside training"}
        yield [f"`vitamin simulate --job`: {what[s['what']]}", "within 15 %",
               f"{s['within_15']} of {s['n']}, median error {percent(s['median'])} (two measured "
               f"repeats differ by {percent(s['repeats_differ'], 0)})",
               met(s["within_15"] == s["n"]), files.cite(name)]
    name = "policies/profiles.jsonl"
    r = files.records(name, lambda r: r.get("part") == "criterion")[-1]
    yield [f"kernel times learned beside another job against alone, {r['kernels']} kernels at "
           f"{len(r['widths'])} SM counts", "median error ≤ 10 %", percent(r["median_error"]),
           met(r["reached"]), files.cite(name)]


# ------------------------------------------------------------------------------- the page


HEAD = """# Results

<!-- Made by bench/results_page.py from bench/results; do not edit. A test compares both. -->

Measured on one NVIDIA H200 (132 SMs, driver 580.159.04), unless a row says otherwise, in virtual
machines whose CPU speed drifts. Models have the shapes of those named. Vitamin was
never run on AMD silicon. *Target* was set before measuring; **missed** means that the measured
value does not reach it. Values in brackets are the middle 95 % of the median's distribution.
*Alone* is the same program with the GPU to itself, without Vitamin. The last table has command,
commit and date of each file; commands name scripts as they were called then.

## In short

"""


def in_short(ratios):
    worst = min(ratios, key=ratios.get)
    mean = load.geometric_mean(list(ratios.values()))
    return "\n".join([
        f"* **On pairs of training jobs `throughput` equals MPS**: {mean:.3f} × MPS (geometric "
        f"mean of {len(ratios)} pairs), {min(ratios.values()):.3f} ({worst}) to "
        f"{max(ratios.values()):.3f}. Nothing is gained in speed there.",
        "* What is gained is **bits** (results equal those of a run alone under every policy, "
        "where MPS with a thread percentage changes them), **isolation** (a job that keeps its SMs "
        "runs as on a static partition) and **placement** (SMs can follow demand from one launch "
        "to the next, and partitions beat MPS where a decoder runs beside prefills).",
        *(["* No policy was measured by the method of paired blocks yet, only fixed partitions; "
           "the first table says so row by row."] if "found after" not in decide_report() else []),
        "* Memory bandwidth and caches are shared by all jobs; partitions of SMs do not change "
        "that."])


def sources(files):
    rows = []
    for name, headers in sorted(files.used.items()):
        if not headers:
            where = "evaluation/report.md has its commands" if name.startswith("evaluation/") \
                else "made from the files beside it"
            rows.append([files.cite(name), where, "–", "–", "–"])
        for h in headers:
            rows.append([files.cite(name), f"`{h['command']}`", f"`{h['commit'][:12]}`",
                         h.get("gpu", "none").replace("none", "no GPU: " + h.get("cpu", "")),
                         h["date"]])
    return table(["file", "command", "commit", "machine", "date"], rows)


def page():
    files = Files()
    rows, ratios = training(files)
    stand, lines = withdrawn(mixed(files))
    section = lambda title, text: f"## {title}\n\n{text}"
    parts = [HEAD + in_short(ratios), section(
        "Targets of scheduling", "Small effects need paired blocks in the same living processes "
        "(`bench/decide.py`, `bench/decision/README.md`); ± is that method's 95 % interval.\n\n"
        + table(ROW, scheduling_rows(files))),
        section("Decoding beside other work, closed loops", "Speed relative to alone of each job "
                "under each arrangement, and the sum and the geometric mean over the jobs.\n\n"
                + speeds(files)),
        section("Bits", table(ROW, bits_rows(files)) + "\n\n"
                "[Compatibility](compatibility.md) has the same for programs that people run."),
        section("Isolation and failures", table(ROW, isolation_rows(files))),
        section("Cost", table(ROW, [*cost_rows(files), *call_rows(files),
                                     *moving_rows(files)]) + "\n\n"
                "Calls of one PyTorch program, in µs: natively, and the difference to that in the "
                "same round.\n\n" + table(*calls_table(files))),
        section("vLLM's server beside a training job", "An 8B model, 4 requests a second that "
                "arrive at random, and Qwen3-0.6B training; then 16 clients that ask without a "
                "pause. [The recipe](share-vllm-and-training.md) says what follows.\n\n"
                + table(serving_report.HEADS, serving_rows(files))),
        section("Workloads alone", table(["short", "workload", "step or request, ms", "GPU busy",
                                          "most GPU memory, GiB"], alone_rows(files))),
        section("Training beside training", "Both jobs' speeds in sum, alone = 1 each; the ratio "
                "is between neighbouring runs. Target: at least 0.98 × MPS. Jobs alone drifted by "
                "more than 2 % in most runs, so the ratios hold and the sums are uncertain.\n\n"
                + table(["pair", "`throughput` / MPS", "", "sum under MPS", "under `throughput`",
                         "static partitions", "time-slicing"], rows)),
        section("Training beside a decoder at half its load", "Target: p99 at most 1.15 × alone "
                "with training at 0.70 × alone or more. **Windows of some hundred requests do not "
                "decide a p99**: two repeats of one setting differ by the percentage that the "
                "table of predictions has. The row `slo` above replays measured service times.\n\n"
                + table(["pair", "mode", "p99 / alone", "training / alone", "requests"], stand)
                + "\n\nWithdrawn, because the replay contradicts them or stands in their place:"
                "\n\n" + "\n".join(lines)),
        section("Prefill and decode as two processes, on traces", "Requests above the limits of "
                "TTFT and TPOT, the same requests in both arms, against `throughput`; p by "
                "McNemar's exact test.\n\n" + traces(files) + "\n\n" + OF_TRACES),
        section("Control path, without a GPU", table(ROW, node_rows(files))),
        section("Fleet, without a GPU", table(ROW, fleet_rows(files))),
        section("Prediction", table(ROW, prediction_rows(files))),
        section("Not here", NOT_HERE), section("Files", sources(files)), ""]
    return "\n\n".join(parts).rstrip() + "\n"


OF_TRACES = """Since `e47defa7595e` all lengths of prompts are prefilled before a window. In
the windows before, the first prefill of each length took 40 to 60 ms more, under MPS, too, and
these are compared only where both arms, or neither, were the first of their processes to meet the
lengths: no window of `slo` is.

Where the decoder's steps are CUDA graphs, as in serving engines (`graphs` in the first column),
less than half as many requests violate TPOT on all four traces, and fewer violate TTFT on three; on
BurstGPT, whose prompts come in bursts that no arrangement serves in time, 7 to 9 points more do.
Where the host launches each kernel of a step, half as many are reached on no trace: there a step
alone takes 7.4 to 14.3 ms, with the speed of the host in that window, and decides more than the
policy. The requests of a window share that speed, so the number of windows says more than p
([record 25](decisions/0025-two-services-have-a-side-each.md)).

"Decodes alone": the part of the same requests that would violate TPOT if no prefill ran beside
decodes. Of the requests that violated it under `throughput` in the earlier windows, 38 of 67 on
Azure had 2 to 5 tokens: their gaps hold the rest of the step under way when the prefill ends, the
hand-over, and steps of 8 ms or more, at 15 ms a gap. On BurstGPT 9 of 31 waited for one of the 32
slots. Nearly all others were slowed beside prefills."""

NOT_HERE = """* What no kept file proves is left out, among it earlier timings of vitamind on
  busy machines and the p99 of windows of 80 requests that earlier versions of the README gave.
* LithOS and MIG were not measured: the scheduler of the first is not public, the second needs the
  right to reconfigure the GPU.
* All runs of the paper's experiments, earlier ones included, with figures:
  `bench/results/evaluation/report.md`. All blocks of the
  paired measurements: `bench/results/decide/report.md`.
  Simulated policies: `bench/results/policies/README.md`."""


def main():
    if sys.argv[1:] not in ([], ["--write"]):
        print(__doc__, file=sys.stderr)
        return 2
    text = page()
    if sys.argv[1:]:
        PAGE.write_text(text)
    else:
        print(text, end="")
    return 0


if __name__ == "__main__":
    sys.exit(main())
