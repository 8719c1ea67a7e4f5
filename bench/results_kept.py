# SPDX-License-Identifier: Apache-2.0
"""Kept results under bench/results, and how docs/results.md writes what is in them."""
import gzip
import json
import pathlib
import sys

HERE = pathlib.Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE / "evaluation")]

import report  # noqa: E402
from comparisons import interval, middle  # noqa: E402

RESULTS = HERE / "results"
EVALUATION = RESULTS / "evaluation"

# What the short names of workloads stand for.
JOBS = {"D0.6": "Qwen3-0.6B", "D1.7": "Qwen3-1.7B", "L4": "LoRA of a 4B model",
        "L8": "LoRA of an 8B model", "Q8": "QLoRA of an 8B model, weights in host memory",
        "F8": "FSDP of an 8B model, weights in host memory", "RN": "ResNet-152", "BE": "BERT",
        "I-L8": "8B decoder", "I-J6": "6B decoder"}
PAIRS = {"W1": "D0.6 + D0.6", "W2": "D0.6 + D1.7", "W3": "L4 + L4", "W5": "Q8 + D0.6",
         "W6": "Q8 + Q8", "W7": "D1.7 + D0.6, data parallel, two GPUs",
         "W8": "F8 + D1.7, two GPUs", "RN+D0.6": "RN+D0.6", "BE+D1.7": "BE+D1.7"}
MIXED = {"M1": "ResNet-152 beside the 8B decoder", "M2": "ResNet-152 beside the 6B decoder",
         "M3": "BERT beside the 8B decoder", "M4": "BERT beside the 6B decoder"}
# Modes of sharing, as the page calls them.
MODES = {"exclusive": "alone", "mps": "MPS", "mps-priority": "MPS with priorities",
         "mps50": "MPS with a thread percentage of 50",
         "static": "static partitions, 64 + 68 SMs", "ours": "`throughput`",
         "ours-tpot-first": "`tpot-first`", "temporal": "time-slicing"}

OWN_CELLS = ("orion", "salus", "temporal-leases")  # beside those that begin with "ours"

# Words of the kept reports, and the page's.
WORDS = (("decode-graph I-L8", "decode as CUDA graphs (8B)"), ("decode I-L8", "decode (8B)"),
         ("prefill I-L8", "prefill (8B)"), ("score BERT", "scoring (BERT)"),
         ("rollout I-L8", "rollout (8B)"), ("train D1.7", "training (Qwen3-1.7B)"),
         ("ours:tpot-first", "`tpot-first`"), ("ours:slo", "`slo`"),
         ("ours:throughput", "`throughput`"), ("mps-priority", "MPS with priorities"),
         ("mps p99", "MPS p99"), ("azure2024_conv_synth", "Azure 2024"),
         ("burstgpt_conv_synth", "BurstGPT"), ("longbench_synth_poisson1", "LongBench"),
         (" calibrated", ", load found by trial"), ("Vitamin, whole device shared",
                                                    "whole device shared, by Vitamin"))


class Files:
    """Kept files; remembers which were used."""

    def __init__(self):
        self.used = {}

    @staticmethod
    def has(name):
        return (RESULTS / name).exists()

    def sessions(self, name):
        """[(header, records)] of RESULTS/NAME, one of each command that wrote into it."""
        found = []
        kept = (RESULTS / name).read_bytes()
        for line in (gzip.decompress(kept) if name.endswith(".gz") else kept).splitlines():
            record = json.loads(line)
            if "header" in record:
                found.append((record["header"], []))
            else:
                found[-1][1].append(record)
        return found

    def records(self, name, wanted=lambda r: True):
        """Records of the last session that has some that are wanted."""
        for header, records in reversed(self.sessions(name)):
            if some := [r for r in records if wanted(r)]:
                self.use(name, header)
                return some
        return []

    def every(self, name, wanted):
        """Records of all sessions that are wanted."""
        found = []
        for header, records in self.sessions(name):
            some = [r for r in records if wanted(r)]
            if some:
                self.use(name, header)
            found += some
        return found

    def use(self, name, header):
        if header not in self.used.setdefault(name, []):
            self.used[name].append(header)

    def cite(self, name):
        self.used.setdefault(name, [])
        return f"`bench/results/{name}`"


def table(heads, rows):
    line = lambda row: "| " + " | ".join(map(str, row)) + " |"
    return "\n".join([line(heads), "|" + "---|" * len(heads), *map(line, rows)])


def met(condition):
    return "–" if condition is None else "met" if condition else "**missed**"


def within(low, high, target):
    """Whether an interval is at most the target; None where the target lies in it."""
    return True if high <= target else False if low > target else None


def percent(share, digits=1):
    return "–" if share is None else f"{100 * share:.{digits}f} %"


def span(values, digits=3):
    found = interval(values)
    return f"{middle(values):.{digits}f}" + (
        f" ({found[0]:.{digits}f} to {found[1]:.{digits}f})" if found else "")


def thousands(value):
    return f"{value:,}"


ROW = ["measurement", "target", "measured", "", "file"]


def newest(files, name):
    """Cells of the last run of each subject; its commands stand in the evaluation's report."""
    files.cite(f"evaluation/{name}.jsonl" + (".gz" if name == "E5" else ""))
    records = report.gathered(EVALUATION, name)
    chosen = report.newest(records)
    return [r for r in records if "cell" in r and (r["subject"], r["session"]) in chosen]
