# SPDX-License-Identifier: Apache-2.0
"""Arms: the ways to run the jobs of a cell that are compared, and the processes that each needs.

An arm belongs to a group of processes, which are built once and live to the end of the cell.

| arm | group | what runs |
|---|---|---|
| `mps` | mps | every job, under MPS, without Vitamin |
| `mps-connections` | mps-connections | the same, as many hardware connections as with Vitamin |
| `mps-priority` | mps-priority | the same with CUDA_MPS_CLIENT_PRIORITY |
| `alone:J` | mps | job J; the others are paused |
| `alone:J@ours` | ours | the same under Vitamin |
| `shared` | ours | every job on the whole device (policy `fifo`) |
| `parts:A/B` | ours | job 0 on units A, job 1 on units B (first-last), by fixed_parts.c |
| `ours:POLICY` | ours | any policy of vitamind |
"""

import dataclasses
import pathlib
import subprocess

import harness

HERE = pathlib.Path(__file__).resolve().parent
CONNECTIONS = "8"  # daemon/config/configuration.h: mps.connections
GROUPS = ("mps", "mps-connections", "mps-priority", "ours")
# Units of an H200's pool: 15 of 8 SMs, and the last of 12.
UNITS, UNIT_SMS, LAST_UNIT_SMS = 16, 8, 12


@dataclasses.dataclass(frozen=True)
class Arm:
    name: str
    group: str
    policy: str = ""  # of vitamind; of `parts` it is made when the clients' numbers are known
    parts: tuple = ()  # units of each job
    only: int = -1  # the job that runs; -1: all

    @property
    def label(self):
        if self.parts:
            return " + ".join(str(sm_count(p)) for p in self.parts) + " SMs"
        return {"shared": "Vitamin, whole device shared", "mps": "MPS",
                "mps-connections": f"MPS, {CONNECTIONS} connections",
                "mps-priority": "MPS with priorities"}.get(self.name, self.name)


def sm_count(units):
    """Of an H200: of units FIRST-LAST."""
    first, last = map(int, units.split("-"))
    return (last - first + 1) * UNIT_SMS + (
        LAST_UNIT_SMS - UNIT_SMS if last == UNITS - 1 else 0)


def arm(name, jobs):
    """The arm of this name in a cell of `jobs` jobs."""
    head, _, rest = name.partition(":")
    if name in GROUPS and name != "ours":
        return Arm(name, name)
    if name == "shared":
        return Arm(name, "ours", policy="fifo")
    if head == "alone":
        job, _, group = rest.partition("@")
        if job.isdigit() and int(job) < jobs and (group or "mps") in GROUPS:
            return Arm(name, group or "mps", policy="fifo" if group == "ours" else "",
                       only=int(job))
    if head == "parts":
        units = tuple(rest.split("/"))
        if len(units) == jobs and all(is_units(u) for u in units):
            return Arm(name, "ours", parts=units)
    if head == "ours" and rest:
        return Arm(name, "ours", policy=rest)
    raise harness.Refusal(f"there is no arm '{name}' for {jobs} jobs: mps, mps-connections, "
                          "mps-priority, alone:J[@GROUP], shared, parts:A-B/C-D, ours:POLICY")


def is_units(text):
    first, _, last = text.partition("-")
    return first.isdigit() and last.isdigit() and int(first) <= int(last) < 64


def place(surroundings, group, index, class_, preferred):
    """Words before a worker's command, and its environment. Without a GPU processes overlap as they
    are, and `mps` is without MPS."""
    if surroundings.device != "cuda" and group != "ours":
        return [], surroundings.base()
    if group == "mps-connections":
        words, environment = surroundings.place("mps", index, class_, preferred)
        return words, {**environment, "CUDA_DEVICE_MAX_CONNECTIONS": CONNECTIONS}
    return surroundings.place(group, index, class_, preferred)


def fixed_parts_library(directory):
    """The shared object of fixed_parts.c: of the tree, else compiled into `directory`."""
    built = harness.prefix() / "lib" / "vitamin" / "bench" / "fixed_parts.so"
    if built.exists():
        return built
    library = pathlib.Path(directory) / "fixed_parts.so"
    include = harness.ROOT / "scheduler" / "policies"
    result = subprocess.run(["cc", "-O2", "-shared", "-fPIC", f"-I{include}", "-o", str(library),
                             str(HERE / "fixed_parts.c")], capture_output=True, text=True)
    if result.returncode:
        raise harness.Refusal("fixed_parts.c cannot be compiled here: " + result.stderr.strip())
    return library


def policy_of(arm_, library, clients):
    """The policy of vitamind under which the arm runs. `clients`: by job its number in vitamind's
    status, None where it is not known (programs that come and go)."""
    if not arm_.parts:
        return arm_.policy
    plan = "/".join(units if client is None else f"{client}@{units}"
                    for units, client in zip(arm_.parts, clients))
    return f"{library}:plan={plan}"
