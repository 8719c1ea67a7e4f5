#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""docs/compatibility.md from the kept results of compat.py, start.py and turns.py.

    table.py [DIR]              prints the page; DIR: default bench/results/compat
    table.py [DIR] --write      writes docs/compatibility.md

Of each program the newest run stands in the table; a line "not run" gives way to any run.
"""

import argparse
import json
import pathlib
import sys

HERE = pathlib.Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent), str(HERE.parent / "evaluation"),
                str(HERE.parent / "daemon")]

import compat  # noqa: E402
import harness  # noqa: E402
import overhead  # noqa: E402
import programs  # noqa: E402
import start  # noqa: E402
import turns  # noqa: E402

PAGE = harness.ROOT / "docs" / "compatibility.md"
RESULTS = harness.ROOT / "bench" / "results" / "compat"
REASONS = {  # why a launch of a graph, or a launch, was on the whole device
    "fresh": "new or changed, not looked at yet",
    "not_made": "no executable for the part yet",
    "unfollowed": "the program changed the graph in a way that is not followed",
    "branches": "the graph has branches (HIP)",
    "host_gated": "behind a wait that the host ends",
    "no_queue": "no queue was free", "cluster": "its cluster fits on no part",
    "cooperative": "cooperative launch", "policy": "the policy gave the whole device",
    "no_lease": "no lease was at hand",
    "flushed": "flushed while it waited for a grant or its window",
}
INTRODUCTION = """\
# Compatibility

<!-- Made by bench/compat/table.py from bench/results/compat; not edited by hand. -->

Programs that people run, unmodified, natively twice and under Vitamin: `vitamin run --policy
random` gives nearly every launch another part, `--policy static` keeps the program on a fixed half
of the device, *vitamind* is `vitamin run --daemon` with the program as the only client (policy
`throughput`). *Equal*: same exit code, same hashes of all results (tokens, losses, weights, arrays)
as the native run. Where a library chooses kernels by time (autotuning), values are small integers,
which are exact in any order. `bench/compat/README.md` says how to run it; the programs are in
`bench/compat/programs.py`.
"""


def read(directory):
    """[(name of the file, header, versions, records)] of each command, oldest first."""
    runs = []
    for path in sorted(pathlib.Path(directory).glob("*.jsonl")):
        for line in path.read_text().splitlines():
            record = json.loads(line)
            if "header" in record:
                runs.append((path.name, record["header"], {}, []))
            elif "versions" in record:
                runs[-1][2].update(record)
            else:
                runs[-1][3].append(record)
    return sorted(runs, key=lambda run: run[1]["date"])


def newest(runs):
    """{program: (header, versions, {mode: record})}; a run goes before a line that says not run."""
    found = {}
    for _, header, versions, records in runs:
        of_run = {}
        for record in records:
            if "program" in record:
                of_run.setdefault(record["program"], {})[record["mode"]] = record
        for name, modes in of_run.items():
            if name not in found or modes["native"]["verdict"] != "not run" \
                    or found[name][2]["native"]["verdict"] == "not run":
                found[name] = (header, versions, modes)
    return found


def known_programs():
    """{name: Program}, in the order of the suite."""
    options = compat.parse([])
    return {p.name: p for p in programs.chosen(options)}


def version_of(program, versions):
    """Of the first package that the program needs, and of what it runs on."""
    named = versions.get("versions", {})
    shown = []
    for module in program.modules if program else ():
        for package in (module, f"{module}-cuda13x", f"{module}-cuda12x"):
            if package in named:
                shown.append(f"{package} {named[package]}")
    if "vllm" in (program.modules if program else ()) and "torch" in named:
        shown.append(f"torch {named['torch']}")
    return ", ".join(shown)


def causes(cover):
    """Why launches and graph launches ran on the whole device."""
    if not cover:
        return ""
    told = [f"{n} {what}: {REASONS.get(why, why.replace('_', ' '))}"
            for what, found in (("kernel launches", cover["whole_device"]),
                                ("graph launches", cover["graphs"]["whole_device"]))
            for why, n in sorted(found.items(), key=lambda item: -item[1])]
    return "; ".join(told)


def word(modes, mode):
    if mode not in modes:
        return "–"
    found = modes[mode]["verdict"]
    return found if found in ("equal", "runs") else f"**{found}**"


def counts(cover, what):
    if not cover:
        return "–"
    if what == "launches":
        on_parts = sum(library["narrow"] for library in cover["libraries"])
        return f"{on_parts:,} of {cover['launches']:,}" if cover["launches"] else "–"
    if not cover["graph_launches"]:
        return "–"
    return f"{cover['graphs']['narrow']:,} of {cover['graph_launches']:,}"


def programs_table(found):
    rows, below, absent = [], [], []
    known = known_programs()
    for name in [*[n for n in known if n in found], *[n for n in found if n not in known]]:
        header, versions, modes = found[name]
        if modes["native"]["verdict"] == "not run":
            absent.append(f"* {name}: {modes['native']['why']}")
            continue
        cover = (modes.get("random") or {}).get("coverage")
        ratios = [f"{r:.2f}" if r else "–" for r in overhead.of_modes(modes)]
        rows.append([name, version_of(known.get(name), versions),
                     *(word(modes, m) for m in ("native again", "random", "static", "daemon")),
                     counts(cover, "launches"), counts(cover, "graphs"), *ratios,
                     header["date"][:10]])
        below += [f"* {name}, {mode}: {modes[mode]['verdict']}: {modes[mode]['why']}"
                  for mode in modes if modes[mode]["verdict"] not in ("equal", "runs")]
        if causes(cover):
            below.append(f"* {name}, random, on the whole device: {causes(cover)}.")
    return rows, below, absent


HEADINGS = ["program", "version", "natively again", "random", "static", "vitamind",
            "launches on parts (random)", "graph launches on parts (random)",
            "first second, vitamind / native", "steady", "date"]


def markdown(headings, rows):
    return "\n".join("| " + " | ".join(map(str, row)) + " |"
                     for row in [headings, ["---"] * len(headings), *rows])


def machines(runs):
    """Where and how the results were made, a line for each command."""
    lines = []
    for name, header, _, records in runs:
        if records:
            lines.append(f"* `{name}`: {header['date']}, {header['gpu']}, driver "
                         f"{header['driver']}, {header['cpu']}, commit `{header['commit'][:12]}`: "
                         f"`{header['command']}`")
    return lines


def start_sections(runs):
    """What the first second of a process costs, for each run of start.py."""
    lines = []
    for name, header, versions, records in runs:
        if not any("arm" in r for r in records):
            continue
        found = start.analyse(records)
        rows = [[arm, *(start.show(r[k]) for k in (
                    "first_raw", "first_normalized", "steady_raw", "steady_normalized"))]
                for arm, r in found["ratios"].items()]
        lines += ["", f"{versions.get('program', name)}, {header['date'][:10]} (`{name}`), "
                  f"{found['rounds']} rounds:", "",
                  markdown(["arm", "first second, as measured", "at one speed of the host",
                            "steady, as measured", "at one speed of the host"], rows), "",
                  markdown(["arm", "moments with a slow host", "batches above 1.2 × their median",
                            "host at these", "host at the others"],
                           [[arm, harness.percent(found["host_share"][arm]),
                             f"{r['slow']} of {r['batches']}",
                             *(f"{r[k]:.2f}" if r[k] else "–" for k in ("host_slow", "host_other"))]
                            for arm, r in found["slow_batches"].items()]), "",
                  "Correlation of a batch's time with the host's slowness: "
                  f"{found['correlation']:.2f}."]
        if found["others"]:
            lines += ["", markdown(
                ["CPU seconds a second of batches", "other threads of the process", "vitamind",
                 "elsewhere on the machine", "taken by its host"],
                [[arm, *(f"{r[k]:.3f}" for k in ("threads", "vitamind", "elsewhere", "steal"))]
                 for arm, r in found["others"].items()])]
    return lines


def turns_section(runs):
    """What Vitamin adds to batches, for each run of turns.py."""
    rows = []
    for name, header, versions, records in runs:
        counted = turns.counted(records)
        rows += [[versions.get("program", name), *row,
                  *([turns.share_text(*counted[row[0]]),
                     f"{counted[row[0]][1] / counted['native'][1]:.2f}"] if counted
                    else ["–", "–"]),
                  header["date"][:10], f"`{name}`"] for row in turns.rows(turns.analyse(records))]
    if not rows:
        return []
    return ["", "## Speed, turn by turn", "",
            "`turns.py`: one fresh process of each arm in a round; they take turns, in an order "
            "drawn for each turn. Seconds as a ratio to `native`, with intervals from eight "
            "rounds on; *native again* is the noise. Samples are taken of the process at each "
            "tick of its CPU time; the interval is that of independent ones.", "",
            markdown(["program", *turns.HEADINGS, "samples in Vitamin's library",
                      "all samples / native", "date", "file"], rows), *notes("turns")]


def notes(topic):
    """What people found in the measurements."""
    path = HERE / f"notes_{topic}.md"
    return ["", path.read_text().strip()] if path.exists() else []


def page(directory):
    runs = read(directory)
    rows, below, absent = programs_table(newest(runs))
    lines = [INTRODUCTION, markdown(HEADINGS, rows), "",
             "Where several programs ran at once (`--jobs` in the command) no overhead is told, "
             "and short programs may end before executables of their graphs are made for parts."]
    if below:
        lines += ["", "## What fails or stays on the whole device, and why", "", *below,
                  *notes("programs")]
    if absent:
        lines += ["", "## Not run", "", *absent]
    lines += turns_section(runs)
    begins = start_sections(runs)
    if begins:
        lines += ["", "## The first second of a process", "",
                  "`start.py`: fresh processes in random order, fixed work on the host before "
                  "each batch. Ratios to the native process of the same round, and in brackets "
                  "the middle 95 % of the median's distribution; *native again* is the "
                  "noise.", *begins]
        lines += notes("start")
    lines += ["", "## Runs", "", *machines(runs)]
    return "\n".join(lines) + "\n"


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("directory", nargs="?", default=str(RESULTS))
    parser.add_argument("--write", action="store_true", help=f"write {PAGE.name}")
    options = parser.parse_args()
    text = page(options.directory)
    if options.write:
        PAGE.write_text(text)
    else:
        print(text, end="")
    return 0


if __name__ == "__main__":
    sys.exit(main())
