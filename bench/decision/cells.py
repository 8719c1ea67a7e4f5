# SPDX-License-Identifier: Apache-2.0
"""The cells: jobs that share a GPU, the arms that are compared in each, and of which tier it is.

*decision*: the GPU is busy with each job alone, so that what an arrangement gives is the GPU's.
*reality*: the jobs of bench/evaluation (E3, E4), whatever bounds them.
"""

import dataclasses
import pathlib
import sys

import harness
import modes

HERE = pathlib.Path(__file__).resolve().parent

# Complementary parts of an H200 (16 units): 36, 64, 68, 96 SMs for job 0, the rest for job 1.
SPLITS = ("parts:12-15/0-11", "parts:0-7/8-15", "parts:8-15/0-7", "parts:0-11/12-15")
PAIR = ("mps", "alone:0", "alone:1", "shared", *SPLITS)


@dataclasses.dataclass(frozen=True)
class JobSpec:
    kind: str  # gpu_work.py
    name: str
    class_: str = "plain"  # modes.CLASSES

    def program(self):
        return [sys.executable, str(HERE / "worker.py")]


@dataclasses.dataclass(frozen=True)
class Definition:
    jobs: tuple
    arms: tuple
    tier: str
    row: str  # of issue "Decide", "Must be shown": the words that its first cell begins with
    phases: tuple = ()  # active jobs of each
    trim: bool = False  # paused jobs give back what memory they cache: two groups need too much


def closed(*jobs, arms=PAIR, tier="decision", row="", **more):
    return Definition(tuple(JobSpec(*j.split()) for j in jobs), arms, tier, row, **more)


def training(first, second, tier="reality", **more):
    return closed(f"train {first} batch", f"train {second} batch", tier=tier,
                  arms=("mps", "alone:0", "alone:1", "shared", "ours:throughput"),
                  row="training pairs", **more)


def service(trained):
    return closed("infer I-L8 latency", f"train {trained} batch", tier="reality", row="`slo`",
                  arms=("alone:0", "alone:1", "mps", "mps-priority", "ours:tpot-first", "shared",
                         *SPLITS))


DECODE_PREFILL = "decode beside prefill"
CELLS = {
    "decode-prefill": closed("decode I-L8", "prefill I-L8", row=DECODE_PREFILL),
    "rollout-learner": closed("rollout I-L8", "train D1.7", row=DECODE_PREFILL),
    "decode-score": closed("decode I-L8", "score BERT", row=DECODE_PREFILL),
    "graph-prefill": closed("decode-graph I-L8", "prefill I-L8",
                            row="the same with the decoder's"),
    "phases": closed("decode I-L8", "prefill I-L8", "prefill I-L8", "train D0.6",
                     arms=("ours:throughput", "shared",  # two groups need too much memory
                           "parts:8-15/0-7/8-15/0-7", "parts:0-7/8-15/0-7/8-15"),
                     row="phases that change", phases=((0, 1), (1, 2), (0, 3))),
    "three": closed("decode I-L8", "prefill I-L8", "train D0.6", row="three and four clients",
                    arms=("mps", "alone:0", "alone:1", "alone:2", "shared", "ours:throughput",
                          "parts:8-15/0-3/4-7", "parts:0-7/8-11/12-15")),
    "four": closed("decode I-L8", "prefill I-L8", "train D0.6", "score BERT",
                   row="three and four clients",
                   trim=True,
                   arms=("mps", "alone:0", "alone:1", "alone:2", "alone:3", "shared",
                         "ours:throughput", "parts:8-15/4-7/0-1/2-3")),
    "large": training("RN-big", "BE-big", tier="decision"),
    "W1": training("D0.6", "D0.6"), "W2": training("D0.6", "D1.7"), "W3": training("L4", "L4"),
    "W4": training("D1.7", "L8", trim=True), "W5": training("Q8", "D0.6"),
    "W6": training("Q8", "Q8"),
    "RN+D0.6": training("RN", "D0.6"), "BE+D1.7": training("BE", "D1.7"),
    "slo-BE": service("BE"), "slo-RN": service("RN"), "slo-D0.6": service("D0.6"),
    "slo-D1.7": service("D1.7"),
}


def definition(name, device):
    if name not in CELLS:
        raise harness.Refusal(f"there is no cell '{name}': {', '.join(CELLS)}")
    found = CELLS[name]
    if device == "soft":
        found = dataclasses.replace(found, jobs=tuple(
            dataclasses.replace(j, name="demo") for j in found.jobs))
    assert all(j.class_ in modes.CLASSES for j in found.jobs)
    return found
