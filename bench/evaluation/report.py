# SPDX-License-Identifier: Apache-2.0
"""Tables and figures of the evaluation; needs no GPU.

    report.py [DIR] [--markdown FILE]     reads DIR/E*.jsonl[.gz], pairs.jsonl

Writes what was asked beside what was found; a section for each experiment, what was not run with
its command among them; and figures (SVG and PNG, where matplotlib is). Of each subject (a pair, a
trace) the newest run that has MPS and ours stands first, earlier ones are folded away below it.

A line {"note": TEXT} in the results is printed below the tables; with "session" and "cells" (modes)
it is about those, and with "void" they are in no table: they are not what their name says.
"""

import argparse
import pathlib
import sys

HERE = pathlib.Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parent), str(HERE)]

import harness  # noqa: E402
import modes  # noqa: E402
from comparisons import (between, by_session, cells, differ, headers, neighbours,  # noqa: E402,F401
                         read, spread, table, verdict)
from sections import WRITERS, frontier, normalised  # noqa: E402,F401

RESULTS = harness.ROOT / "bench" / "results"

SECTIONS = {  # title, command, the paper, what was to be reached
    "E0": ("Calibration", "evaluate.py E0", "not in the paper", ""),
    "E1": ("Operators, matched inputs", "determinism/run.py", "0 drift; reshaping drifts",
           "0 differing bytes, all kernels"),
    "E2": ("Decoding", "determinism/decode.py", "0 of 100; reshaping 5 of 100",
           "0 of 100, 0 of 1,000 states, 0 of 64 x 256 tokens"),
    "E3": ("Colocated training",
           "evaluate.py E3 --pairs W3,W4,W5,W6` and `bench/evaluate.py pairs --pairs W1,W2,RN+D0.6",
           "geo-mean 1.38 to 1.63 x the baselines; 1.08 to 1.11 x the strongest on dense pairs, up "
           "to 1.84 x with offload",
           "1.4 x the baselines' geo-mean, 1.10 x the strongest, 1.5 x on W5 and W6; no pair more "
           "than 2 % below MPS"),
    "E4": ("Training beside inference", "evaluate.py E4 --pairs M1 --frontier",
           "p99 -8.1 to -58.4 %, up to -62.5 %; training 1.05 to 1.36 x, up to 1.43 x",
           "p99 at most 1.15 x exclusive at load 0.5 with training at least 0.70 of exclusive; "
           "above the whole frontier of static partitions"),
    "E5": ("Policies on traces", "evaluate.py E5",
           "TPOT violations -21.2 % (Azure), -23.4 % (LongBench), -46.1 % (BurstGPT)",
           "at least 50 % fewer than throughput, TTFT violations at most 1 percentage point more"),
    "E6": ("Dispatch overhead, GEMM", "evaluate.py E6",
           "p95: hierarchical +0.7 %, flat +6.9 %, on demand +412 %", "at most +0.3 %"),
    "E7": ("Memory of the pool", "evaluate.py E7",
           "1,163 MiB GPU and 318 MiB resident; MPS-Pool 2,533 and 552",
           "at most 400 and 120 MiB"),
    "E8": ("Chains of short kernels, decode alone", "evaluate.py E8", "not in the paper",
           "at most +0.1 us a kernel in one entry; a decode step at most 1.01 x native"),
    "E9": ("Bitwise training beside others, SIGKILL", "evaluate.py E9", "not in the paper",
           "50 steps equal; every hazard refused, widened or gang-scheduled"),
}
ELSEWHERE = {"E1": "0 of 1,000 trials of 10 kernels differ in a byte (table in "
                   "bench/determinism/README.md, samples in bench/results/determinism)",
             "E2": "0 of 100, 0 of 6,400 selections, 0 of 64 prompts (table in "
                   "bench/determinism/README.md, samples in bench/results/determinism)"}


def remarks(records):
    """Lines: what could not be run and why, what was run and is not what it should have been,
    and what was noted."""
    good = {}
    for r in cells(records):
        good.setdefault((r["run"], r["subject"], r["cell"]), set()).add(r["repeat"])
    failed, names = {}, lambda found: ", ".join(dict.fromkeys(found))
    for r in records:
        if r.get("ok") is False:
            run = good.get((r["run"], r["subject"], r["cell"]), ())
            if r["repeat"] in run:
                continue
            job, _, why = r["why"].partition(": ")
            why = why.split(". ")[0] if why else job
            # A mode that could be run at other times is named with the repeat that is missing.
            cell = f"{r['cell']} (repeat {r['repeat']})" if run else r["cell"]
            failed.setdefault((r["run"], r["subject"], why), []).append(cell)
    for (run, subject, why), found in failed.items():
        yield f"* run {run}, {subject}, could not be run: {names(found)}: {why}"
    for note in [r for r in records if "note" in r]:
        about = [r for r in records if "cell" in r and r.get("session") == note.get("session")
                 and r["cell"] in note.get("cells", ())]
        head = ""
        if about:
            head = f"run {about[0]['run']}, {names(r['cell'] for r in about)}: "
        if note.get("void"):
            head = f"not in the tables: {head}"
        yield f"* {head}{note['note']}"


def gathered(directory, name):
    """Records of an experiment, those of `pairs` among them."""
    more = [{**r, "run": f"p{r['run']}"} for r in read(directory, "pairs")
            if r.get("experiment") == name or "note" in r]
    return [*read(directory, name), *(more if name in ("E3", "E4") else ())]


def newest(records):
    """(subject, session) of the cells that answer: of each pair or trace (a subject's first word)
    the last session that has ours beside MPS, with priorities or without, else the last."""
    modes = {}
    for r in cells(records):
        of = modes.setdefault(r["subject"].split()[0], {})
        of.setdefault((r["session"], r["subject"]), set()).add(r["cell"])
    chosen = set()
    for sessions in modes.values():
        whole = [s for s, seen in sessions.items()
                 if "ours" in seen and seen & {"mps", "mps-priority"}]
        session, subject = max(whole or sessions)
        chosen.add((subject, session))
    return chosen


def section(name, records, figures, directory, markdown):
    """Lines of one experiment, and its headline."""
    title, chosen = SECTIONS[name][0], newest(records)
    sessions = {session for _, session in chosen}
    older = {r["session"] for r in records if "cell" in r} - sessions
    # A note belongs to the session that it names, or else to what was run before.
    stands = lambda r: not chosen or ((r["subject"], r["session"]) in chosen if "cell" in r else
                                      r["session"] in sessions if "session" in r else not older)
    now = [r for r in records if stands(r)]
    then = [r for r in records if r not in now]
    runs = lambda part: {r["run"] for r in part if "cell" in r}
    told = [*(("", h) for h in headers(directory, name)),
            *(("p", h) for h in headers(directory, "pairs") if name in ("E3", "E4"))]
    numbers = {"": 0, "p": 0}
    commands = {}
    for kind, h in told:
        numbers[kind] += 1
        run = f"{kind}{numbers[kind]}" if kind else numbers[kind]
        commands[run] = f"Run {run}: `{h['command']}`, commit {h['commit'][:12]}, {h['gpu']}, " \
            f"driver {h['driver']}, {h['date']}"
    text, headline = WRITERS[name](now, figures)
    out = [text.strip(), ""]
    where = directory / f"{name}.svg"
    if figures and where.exists():
        try:
            where = where.relative_to(markdown.parent.resolve())
        except ValueError:
            pass
        out += [f"![{name}: {title}]({where})", ""]
    out += [*remarks(now), ""]
    for run in commands:
        if run in runs(now):
            out += [commands[run], ""]
    if any("cell" in r or "note" in r for r in then):
        earlier = WRITERS[name](then, None)[0].strip() if cells(then) else ""
        out += ["<details><summary>Earlier runs, and what was learnt from them</summary>", "",
                earlier, "", *remarks(then), "",
                *(line for run in commands if run in runs(then) - runs(now)
                  for line in (commands[run], "")), "</details>", ""]
    return out, headline


def modes_section(names):
    """Lines: what the modes are, and which of the plan's are not there."""
    rows = []
    for name in names:
        try:
            mode = modes.mode(name)
        except harness.Refusal:  # no mode: "all" hazards
            continue
        ours = mode.setting.partition(":")[0] in ("ours", "static", "in-process")
        rows.append([name, mode.label, "Vitamin" if ours else "NVIDIA's own"])
    out = ["## Modes", "", table(["mode", "what", "mechanism"], rows), ""] if rows else []
    return [*out, "Not there:", "", *(f"* {what}: {why}" for what, why in modes.MISSING.items())]


def write(directory, markdown=None):
    """DIR/report.md (or `markdown`) and the figures; returns the text."""
    directory = pathlib.Path(directory)
    directory.mkdir(parents=True, exist_ok=True)
    markdown = pathlib.Path(markdown or directory / "report.md")
    try:
        from figures import Figures
        figures = Figures(directory, {name: s[0] for name, s in SECTIONS.items()})
    except ImportError as error:
        figures = None
        print(f"report: no figures: the Python package '{error.name}' is missing",
              file=sys.stderr)
    parts, found, names = [], [], {}
    for name, (title, command, paper, asked) in SECTIONS.items():
        parts += [f"## {name} {title}", "",
                  f"The paper: {paper}." + (f" Asked: {asked}." if asked else ""), ""]
        records = gathered(directory, name)
        names |= dict.fromkeys(r["cell"] for r in cells(records) if name not in ("E6", "E7")
                               and not r["subject"].endswith("chain"))
        if any("cell" in r for r in records):
            lines, headline = section(name, records, figures, directory, markdown)
            parts += lines
        else:
            headline = ELSEWHERE.get(name, "**not run**")
            parts += [f"{headline}." if name in ELSEWHERE else "**Not run.**", ""]
        parts += [f"To repeat: `python3 bench/{command}`", ""]
        found.append(f"| {name} {title} | {paper} | {asked or '–'} | {headline or '–'} |")
    out = ["# Results", "", "Every experiment of the paper and what it does not show. Written by "
           "`bench/evaluation/report.py` from the raw samples; do not edit. Ratios are those of "
           "neighbouring cells (in turn, within one run), in brackets the middle 95 % of their "
           "median; \"not usable\" stands where jobs alone differed by more than 2 % between the "
           "halves of a run, as they mostly do on such a virtual machine: what is compared with "
           "exclusive is then as uncertain as that.", "",
           "| | the paper | asked | found |", "|---|---|---|---|", *found, "", *parts,
           *modes_section(names), ""]
    text = "\n".join(out)
    while "\n\n\n" in text:
        text = text.replace("\n\n\n", "\n\n")
    markdown.write_text(text)
    return text


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("directory", nargs="?", default=RESULTS / "evaluation")
    parser.add_argument("--markdown", default=RESULTS / "evaluation" / "report.md")
    options = parser.parse_args()
    write(pathlib.Path(options.directory).resolve(), pathlib.Path(options.markdown).resolve())


if __name__ == "__main__":
    main()
