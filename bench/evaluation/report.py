# SPDX-License-Identifier: Apache-2.0
"""Tables and figures of the evaluation; needs no GPU.

    report.py [DIR] [--markdown FILE]     reads DIR/E*.jsonl and DIR/micro_*.jsonl

Writes a section for each experiment, what was not run with its command among them, and figures
(SVG and PNG, where matplotlib is). Ratios are formed within one session of a command; where its
exclusive runs disagree by more than 2 %, the row says so.
"""

import argparse
import json
import pathlib
import sys

HERE = pathlib.Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parent), str(HERE)]

import harness  # noqa: E402
import load  # noqa: E402

AGREE = 0.02
RESULTS = harness.ROOT / "bench" / "results"

SECTIONS = {
    "E0": ("Calibration", "evaluate.py E0", "not in the paper"),
    "E1": ("Operators, matched inputs", "determinism/run.py", "0 drift; reshaping drifts"),
    "E2": ("Decoding", "determinism/decode.py", "0 of 100; reshaping 5 of 100"),
    "E3": ("Colocated training", "evaluate.py E3 --pairs W1,W2",
           "geo-mean 1.38 to 1.63 x the baselines; 1.08 to 1.11 x the strongest on dense pairs, up "
           "to 1.84 x with offload"),
    "E4": ("Training beside inference", "evaluate.py E4 --pairs M1",
           "p99 -8.1 to -58.4 %, up to -62.5 %; training 1.05 to 1.36 x, up to 1.43 x"),
    "E5": ("Policies on traces", "evaluate.py E5",
           "TPOT violations -21.2 % (Azure), -23.4 % (LongBench), -46.1 % (BurstGPT)"),
    "E6": ("Dispatch overhead, GEMM", "evaluate.py E6",
           "p95: hierarchical +0.7 %, flat +6.9 %, on demand +412 %"),
    "E7": ("Memory of the pool", "evaluate.py E7",
           "1,163 MiB GPU and 318 MiB resident; MPS-Pool 2,533 and 552"),
    "E8": ("Chains of short kernels, decode alone", "evaluate.py E8", "not in the paper"),
    "E9": ("Bitwise training beside others, SIGKILL", "evaluate.py E9", "not in the paper"),
}
ELSEWHERE = {"E1": "bench/results/determinism (table in bench/determinism/README.md)",
             "E2": "bench/results/determinism (table in bench/determinism/README.md)",
             "E6": "bench/results/slice/micro_gemm.jsonl (table in the README)",
             "E7": "bench/results/slice/micro_pool.jsonl (table in the README)"}
NEVER = (
    "E3 W7 and W8 (two GPUs, DDP and FSDP): no job of the harness spans devices yet",
    "E7 MPS-Pool: no program makes MPS contexts by cuCtxCreate with an execution affinity yet",
    "E9 hazards: tests/cuda and tests/daemon/rendezvous_test.cpp hold them on the software device; "
    "none was run here",
    "MIG: needs the right to reconfigure the GPU",
    "a serving engine of others (vLLM, SGLang): not on the machine",
)


def read(directory, name):
    """Records of DIR/NAME.jsonl without headers; of a cell that was run twice, the last of each
    session."""
    path = pathlib.Path(directory) / f"{name}.jsonl"
    records = []
    for line in path.read_text().splitlines() if path.exists() else []:
        try:
            records.append(json.loads(line))
        except ValueError:  # the last line of a run that was cut off
            continue
    return [r for r in records if "header" not in r]


def headers(directory, name):
    path = pathlib.Path(directory) / f"{name}.jsonl"
    for line in path.read_text().splitlines() if path.exists() else []:
        if line.startswith('{"header"'):
            yield json.loads(line)["header"]


def cells(records):
    return [r for r in records if r.get("ok") and "cell" in r]


def by_subject(records):
    found = {}
    for r in records:
        found.setdefault(r["subject"], {}).setdefault(r["cell"], []).append(r)
    return found


def spread(values):
    return (max(values) / min(values) - 1) if values and min(values) > 0 else None


def middle(values):
    return harness.median([v for v in values if v is not None])


def number(value, digits=2, scale=1, unit=""):
    return "–" if value is None else f"{scale * value:.{digits}f}{unit}"


def percent(value):
    return number(value, 1, 100, " %")


def table(heads, rows):
    return "\n".join(["| " + " | ".join(heads) + " |", "|" + "---|" * len(heads),
                      *("| " + " | ".join(map(str, row)) + " |" for row in rows)])


# ------------------------------------------------------------------------------- experiments


def normalised(records):
    """subject -> cell -> one value a run: [normalised rates of the jobs]; and the spread of the
    exclusive runs of every subject."""
    answer, agree = {}, {}
    for subject, found in by_subject(cells(records)).items():
        alone = {}
        for r in found.get("exclusive", []):
            for i, job in enumerate(r["jobs"]):
                alone.setdefault((r["session"], i), []).append(job["per_s"])
        agree[subject] = max((spread(v) for v in alone.values() if spread(v) is not None),
                             default=None)
        for cell, runs in found.items():
            for r in runs:
                base = [middle(alone.get((r["session"], i), [])) for i in range(len(r["jobs"]))]
                if all(base):
                    answer.setdefault(subject, {}).setdefault(cell, []).append(
                        [job["per_s"] / b for job, b in zip(r["jobs"], base)])
    return answer, agree


def training_section(records, figure):
    ratios, agree = normalised(records)
    lines, rows, bars = [], [], {}
    for subject, found in ratios.items():
        sums = {c: [sum(x) for x in runs] for c, runs in found.items()}
        mps = middle(sums.get("mps", []))
        for cell, runs in found.items():
            alone = cell in ("exclusive", "ours-alone", "mps-alone")
            total = middle(sums[cell])
            each = " + ".join(number(middle([r[i] for r in runs])) for i in range(len(runs[0])))
            rows.append([subject, cell, each, "–" if alone else number(total, 3),
                         "–" if alone else f"{min(sums[cell]):.3f} to {max(sums[cell]):.3f}",
                         "–" if alone or not mps else number(total / mps, 3), len(runs)])
            if not alone:
                bars.setdefault(subject, {})[cell] = total
        if agree[subject] is not None and agree[subject] > AGREE:
            lines.append(f"* {subject}: the exclusive runs differ by {percent(agree[subject])}: "
                         "**not usable** (at most 2 % was asked).")
    text = table(["pair", "mode", "each / alone", "sum", "least to most", "/ MPS", "runs"], rows)
    modes = list(dict.fromkeys(c for b in bars.values() for c in b))
    for ours in [m for m in modes if m.startswith("ours")]:
        for other in [m for m in modes if not m.startswith("ours")]:
            both = [b[ours] / b[other] for b in bars.values() if ours in b and other in b]
            if both:
                lines.append(f"* {ours} / {other}: geo-mean {load.geometric_mean(both):.3f} over "
                             f"{len(both)} pairs, least {min(both):.3f}.")
    if figure and bars:
        figure.bars("E3", bars, "sum of normalised training throughput",
                    "1.0: two jobs in perfect turns; the paper: 1.38 to 1.63 x the baselines")
    return text + "\n\n" + "\n".join(lines)


def mixed_section(records, figure):
    rows, lines, points = [], [], {}
    for subject, found in by_subject(cells(records)).items():
        alone, agreed = {}, {}
        for r in found.get("exclusive", []):
            alone.setdefault(r["session"], []).append(r)
        for session, runs in alone.items():
            agreed[session] = spread([r["train"]["per_s"] for r in runs])
        for cell, runs in found.items():
            value = lambda key: middle([r["infer"][key] for r in runs])
            share, p99 = [], []
            for r in runs:
                base = alone.get(r["session"], [])
                rate = middle([b["train"]["per_s"] for b in base])
                slow = middle([b["infer"]["p99"] for b in base])
                if rate:
                    share.append(r["train"]["per_s"] / rate)
                if slow and r["infer"]["p99"]:
                    p99.append(r["infer"]["p99"] / slow)
            unanswered = sum(r["infer"]["asked"] - r["infer"]["answered"] for r in runs)
            rows.append([subject, cell, number(middle(share), 3), number(value("p50"), 1, 1e3),
                         number(value("p95"), 1, 1e3), number(value("p99"), 1, 1e3),
                         number(middle(p99), 2), sum(r["infer"]["answered"] for r in runs),
                         unanswered, len(runs)])
            if p99 and share:
                points.setdefault(subject, {})[cell] = (middle(p99), middle(share))
        if any(a is not None and a > AGREE for a in agreed.values()):
            lines.append(f"* {subject}: the exclusive runs differ by over 2 %: **not usable**.")
    if figure and points:
        figure.scatter("E4", points, "p99 latency / exclusive", "training / exclusive",
                       "upper left is better; the paper: p99 -8.1 to -58.4 % against baselines")
    return table(["pair, arrivals, load", "mode", "training / alone", "p50 ms", "p95 ms", "p99 ms",
                  "p99 / alone", "requests", "not answered", "runs"], rows) + "\n\n" + \
        "\n".join(lines)


def serving_section(records, figure):
    rows, bars, lines = [], {}, []
    for subject, found in by_subject(cells(records)).items():
        share = {}
        for cell, runs in found.items():
            v = lambda *path: middle([_dig(r["serving"], path) for r in runs])
            share[cell] = v("violations", "interactive", "tpot")
            rows.append([
                subject + (" (synthetic)" if runs[0]["cut"]["synthetic"] else ""), cell,
                *(number(v("ttft", k), 0, 1e3) for k in ("p50", "p99")),
                *(number(v("tpot", k), 1, 1e3) for k in ("p50", "p90", "p99")),
                number(v("itl", "p99"), 1, 1e3), percent(v("violations", "interactive", "ttft")),
                percent(share[cell]), percent(v("violations", "server", "tpot")),
                number(v("violations", "interactive", "goodput")),
                sum(r["serving"]["requests"] for r in runs)])
            bars.setdefault(subject, {})[cell] = 100 * (share[cell] or 0)
        if share.get("ours") and share.get("ours-tpot-first") is not None:
            lines.append(f"* {subject}: TPOT violations {percent(share['ours'])} under throughput, "
                         f"{percent(share['ours-tpot-first'])} under tpot-first: "
                         f"{percent(share['ours-tpot-first'] / share['ours'] - 1)}.")
    if figure and bars:
        figure.bars("E5", bars, "requests with TPOT > 30 ms, %",
                    "the paper: tpot-first against throughput -21.2 / -23.4 / -46.1 %")
    return table(["trace, load", "mode", "TTFT p50 ms", "p99", "TPOT p50 ms", "p90", "p99",
                  "ITL p99 ms", "TTFT > 0.5 s", "TPOT > 30 ms", "TPOT > 100 ms", "goodput /s",
                  "requests"], rows) + "\n\n" + "\n".join(lines)


def _dig(record, path):
    for key in path:
        record = (record or {}).get(key)
    return record


def calibration_section(records, figure):
    rows, bars = [], {}
    for r in cells(records):
        samples = r["samples"]
        rows.append([r["subject"], r["cell"], number(r["ready"]["build_s"], 0),
                     number(r["step_s"], 1, 1e3),
                     number(middle(samples.get("prefill", [])), 1, 1e3),
                     number(middle(samples.get("decode_step", [])), 2, 1e3),
                     r["profile"]["launches"] or "–", percent(r["profile"]["busy_share"]),
                     number(r["most_mib"], 1, 1 / 1024)])
        bars.setdefault(r["subject"], {})[r["cell"]] = 1e3 * r["step_s"]
    if figure and bars:
        figure.bars("E0", bars, "step or request alone, ms", "not in the paper")
    return table(["workload", "mode", "built in s", "step or request ms", "prefill ms",
                  "decode step ms", "launches", "GPU busy", "most GiB"], rows)


def alone_section(records, figure):
    rows, bars = [], {}
    for subject, found in by_subject([r for r in cells(records) if "decode_step_s" in r]).items():
        native = middle([r["decode_step_s"] for r in found.get("exclusive", [])])
        for cell, runs in found.items():
            steps = [r["decode_step_s"] for r in runs]
            rows.append([subject, cell, number(middle(steps), 3, 1e3),
                         f"{1e3 * min(steps):.3f} to {1e3 * max(steps):.3f}",
                         number(middle(steps) / native if native else None, 4),
                         number(middle([r["prefill_s"] for r in runs]), 2, 1e3), len(runs)])
            bars.setdefault(subject, {})[cell] = 1e3 * middle(steps)
    if figure and bars:
        figure.bars("E8", bars, "decode step alone, ms", "asked: at most 1.01 x native")
    return table(["model", "mode", "decode step ms", "least to most", "/ native", "prefill ms",
                  "runs"], rows) + micro_text(records)


def micro_text(records):
    """What bench/micro.py printed: its own tables."""
    tables = [r["table"] for r in cells(records) if r["subject"] == "micro"]
    return "\n\n" + "\n".join(f"```\n{t.strip()}\n```" for t in tables[-1:]) if tables else ""


def bitwise_section(records, figure):
    rows, bars = [], {}
    for r in cells(records):
        rows.append([r["cell"], "equal" if r["equal"] else "**different**",
                     ", ".join(f"{n}: {r['differing'][n]} of {c}"
                               for n, c in r["compared"].items()),
                     ", ".join(f"{n} {s:.0f} s" for n, s in r["seconds"].items())])
        bars.setdefault("hashes that differ", {})[r["cell"]] = sum(r["differing"].values())
    if figure and bars:
        figure.bars("E9", bars, "hashes that differ from exclusive", "not in the paper")
    return table(["mode", "bits", "hashes that differ", "lasted"], rows)


WRITERS = {"E0": calibration_section, "E3": training_section, "E4": mixed_section,
           "E5": serving_section, "E6": lambda r, _: micro_text(r).strip(),
           "E7": lambda r, _: micro_text(r).strip(), "E8": alone_section, "E9": bitwise_section}


class Figures:
    def __init__(self, directory):
        import matplotlib
        matplotlib.use("Agg")
        import matplotlib.pyplot as plt
        plt.rcParams.update({"font.size": 11, "svg.hashsalt": "vitamin"})
        self.plt, self.directory = plt, pathlib.Path(directory)

    def _save(self, figure, name):
        figure.tight_layout()
        figure.savefig(self.directory / f"{name}.svg", metadata={"Date": None})
        figure.savefig(self.directory / f"{name}.png", dpi=110)
        self.plt.close(figure)

    def bars(self, name, groups, label, note):
        modes = list(dict.fromkeys(m for g in groups.values() for m in g))
        figure, axes = self.plt.subplots(
            figsize=(max(6, 1.5 + 0.42 * len(modes) * len(groups)), 4.2))
        width = 0.8 / max(1, len(modes))
        for i, mode in enumerate(modes):
            at = [x + (i - (len(modes) - 1) / 2) * width for x in range(len(groups))]
            drawn = axes.bar(at, [g.get(mode) or 0 for g in groups.values()], width, label=mode)
            axes.bar_label(drawn, fmt="%.2f", fontsize=8, rotation=90, padding=2)
        axes.set_xticks(range(len(groups)), list(groups))
        axes.set_ylabel(label)
        axes.margins(y=0.2)
        axes.set_title(f"{name}: {SECTIONS[name][0]}\n{note}", fontsize=10)
        axes.legend(fontsize=8, ncols=2)
        self._save(figure, name)

    def scatter(self, name, groups, x, y, note):
        figure, axes = self.plt.subplots(figsize=(7, 4.6))
        for mark, (group, points) in zip("osD^v<>*" * 4, groups.items()):
            for mode, (a, b) in points.items():
                axes.plot([a], [b], mark, label=f"{group} {mode}" if len(groups) > 1 else mode)
                axes.annotate(mode, (a, b), fontsize=8, xytext=(4, 4), textcoords="offset points")
        axes.set_xlabel(x)
        axes.set_ylabel(y)
        axes.set_title(f"{name}: {SECTIONS[name][0]}\n{note}", fontsize=10)
        self._save(figure, name)


def write(directory, markdown=None):
    """DIR/report.md (or `markdown`) and the figures; returns the text."""
    directory = pathlib.Path(directory)
    directory.mkdir(parents=True, exist_ok=True)
    markdown = pathlib.Path(markdown or directory / "report.md")
    try:
        figures = Figures(directory)
    except ImportError as error:
        figures = None
        print(f"report: no figures: the Python package '{error.name}' is missing",
              file=sys.stderr)
    out = ["# Results", "", "Every experiment of the paper and what it does not show. Written by "
           "`bench/evaluation/report.py` from the raw samples; do not edit.", ""]
    for name, (title, command, paper) in SECTIONS.items():
        out += [f"## {name} {title}", "", f"The paper: {paper}.", ""]
        records = read(directory, name)
        if not any("cell" in r for r in records):
            out += [f"Elsewhere: {ELSEWHERE[name]}." if name in ELSEWHERE else
                    "**Not run.**", "", f"Command: `python3 bench/{command}`", ""]
            continue
        for h in headers(directory, name):
            out += [f"`{h['command']}`, commit {h['commit'][:12]}, {h['gpu']}, driver "
                    f"{h['driver']}, {h['date']}", ""]
        out += [WRITERS[name](records, figures).strip(), ""]
        if figures and (directory / f"{name}.svg").exists():
            where = directory / f"{name}.svg"
            try:
                where = where.relative_to(markdown.parent.resolve())
            except ValueError:
                pass
            out += [f"![{name}: {title}]({where})", ""]
        failed = {(r["subject"], r["cell"]): r["why"] for r in records if r.get("ok") is False}
        good = {(r["subject"], r["cell"]) for r in cells(records)}
        for (subject, cell), why in failed.items():
            if (subject, cell) not in good:
                out += [f"* could not be run: {subject} {cell}: {why}"]
        out += [""]
    out += ["## Not there", "", *(f"* {line}" for line in NEVER), ""]
    text = "\n".join(out).replace("\n\n\n", "\n\n")
    markdown.write_text(text)
    return text


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("directory", nargs="?", default=RESULTS / "evaluation")
    parser.add_argument("--markdown", default=harness.ROOT / "bench" / "RESULTS.md")
    options = parser.parse_args()
    write(pathlib.Path(options.directory).resolve(), pathlib.Path(options.markdown).resolve())


if __name__ == "__main__":
    main()
