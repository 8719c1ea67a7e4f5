# SPDX-License-Identifier: Apache-2.0
"""MPS's own limit of memory beside ours, for bench/memory.py: two processes that take what they get
(programs/memory_limits.cpp) without a limit, under CUDA_MPS_PINNED_DEVICE_MEM_LIMIT, in one run
with `--memory`, and with a quota for each process of a class."""
import contextlib
import pathlib
import sys

import harness
import micro

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent / "daemon"))

from common import Daemon  # noqa: E402

OUT_OF_MEMORY = 2
HEADINGS = ["limit", "process", "by", "told free", "told total", "taken GiB", "code", "left",
            "usable", "intact"]


def mps(smoke):
    made = micro.Mps()
    if smoke:
        made.control = str(harness.prefix() / "tests" / "daemon" / "mps_control")
        if not pathlib.Path(made.control).exists():
            made.control = None
    return made


@contextlib.contextmanager
def arms(options, quota, directory, environment):
    """(name, words before the program, environment; None: it cannot be run here) of each."""
    file = pathlib.Path(directory) / "limits.toml"
    file.write_text(f'[[class]]\nname = "each"\nmemory = "{options.memory}"\n'
                    'memory_of = "process"\n')
    with mps(options.smoke) as server:
        of_mps = dict(server.environment) if server.running else None
        limit = {"CUDA_MPS_PINNED_DEVICE_MEM_LIMIT": f"0={quota >> 20}M"}
        daemon = Daemon("fifo", environment, "--config", str(file), watch=False)
        try:
            yield [("none", [], {}),
                   ("none, under MPS", [], of_mps),
                   ("MPS's", [], None if of_mps is None else of_mps | limit),
                   ("ours, together", [*harness.vitamin("run", "--quiet", "--policy", "fifo",
                                                        "--memory", options.memory), "--"], {}),
                   ("ours, each", [*harness.vitamin("run", "--quiet", "--daemon", "--socket",
                                                    str(daemon.socket), "--class", "each"), "--"],
                    {"VITAMIN_CONFIG": str(file)})]
        finally:
            daemon.end()


def beyond(name, quota, piece, lines):
    """What is wrong with an arm of ours; empty: nothing. MPS's are reported as they are."""
    if not name.startswith("ours"):
        return ""
    together, taken = name == "ours, together", 0
    for line in lines:
        # Each process has a piece from the beginning.
        others = piece + (taken if line["who"] == "neighbour" else 0) if together else 0
        if line["told_total"] > quota or piece + others + line["taken"] > quota:
            return f"{line['who']} was told of {line['told_total']} and took {line['taken']}"
        if line["refused"] != OUT_OF_MEMORY:
            return f"{line['who']}, {line['step']}: code {line['refused']}, not {OUT_OF_MEMORY}"
        if not line["usable"] or not line["intact"]:
            return f"{line['who']}, {line['step']}: its context or its memory is lost"
        taken = line["taken"]
    return "" if len(lines) == 5 else f"{len(lines)} lines, not 5"


def run(options, quota, directory, environment, results):
    """Rows of a table, and how many arms are bad."""
    rows, bad, piece = [], 0, quota // 16
    command = [harness.program("memory_limits"), str(quota + quota // 3), str(piece)]
    with arms(options, quota, directory, environment) as all_arms:
        for name, words, more in all_arms:
            if more is None:
                results.add({"limit": name, "why": "no MPS here"})
                rows.append([name, "not run", *["-"] * 8])
                continue
            result = harness.run([*words, *command], options.timeout, {**environment, **more})
            why = result.why() or beyond(name, quota, piece, result.lines)
            results.add({"limit": name, "quota": quota, "why": why, "lines": result.lines,
                         "command": result.command, "environment": more})
            bad += bool(why)
            if why:
                print(f"{name}: {why}", file=sys.stderr)
            rows += [[name, line["who"], line["step"], *(
                f"{line[key] / (1 << 30):.2f}" for key in ("told_free", "told_total", "taken")),
                line["refused"], f"{line['left'] / (1 << 30):.2f}", line["usable"],
                line["intact"]] for line in result.lines]
    return rows, bad
