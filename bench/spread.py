#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Runs the commands of a plan at once, each on GPUs and processors of its own.

    spread.py PLAN [--only NAME,...] [--minutes N] [--gpus UUID,...] [--out DIR]

A plan is TOML, a table for each command (bench/plans has the whole evaluation):

    [E6]
    run = "bench/evaluate.py E6 --budget 200 --out {out}"   # {out}: its directory, DIR/E6
    gpus = 1        # how many; 0: processors only
    cores = 16      # how many; without it, an even part of the machine's for each of its GPUs
    minutes = 4     # at most: then it is killed, with what it started

In the plan's order: a command begins when GPUs and processors are free for it, unless it may take
longer than --minutes leave. Its output is in DIR/NAME/log, how each ended in DIR/spread.jsonl and
in a table at the end. Run again, it does what has not ended with 0. Exit code: 0 all did, 1 some
did not, 2 the plan cannot be run.

GPUs are named by UUID, because under MPS their numbers change. What runs beside shares the host's
memory and the links to it, and the results' headers say nothing of that: keep jobs apart that
depend on it.
"""
import argparse
import json
import os
import pathlib
import shlex
import signal
import subprocess
import sys
import time

import harness

try:
    import tomllib
except ImportError:
    sys.exit("spread.py needs Python 3.11 or newer (tomllib)")

ROOT = pathlib.Path(__file__).resolve().parent.parent
KEYS = {"run": str, "gpus": int, "cores": int, "minutes": (int, float)}


class Command:
    def __init__(self, name, table):
        self.name = name
        self.run = table["run"]
        self.gpus = table.get("gpus", 1)
        self.cores = table.get("cores")
        self.minutes = table["minutes"]
        self.process = None


def commands_of(path):
    """The plan's commands; what is wrong with it, all of it, ends the program."""
    try:
        plan = tomllib.loads(pathlib.Path(path).read_text())
    except (OSError, tomllib.TOMLDecodeError) as error:
        refuse(f"{path}: {error}")
    wrong = []
    for name, table in plan.items():
        if not isinstance(table, dict):
            wrong.append(f"{name}: a command is a table, [{name}]")
            continue
        wrong += [f"{name}.{key}: there is no such key; there are {', '.join(KEYS)}"
                  for key in table if key not in KEYS]
        wrong += [f"{name}.{key}: it is missing" for key in ("run", "minutes") if key not in table]
        wrong += [f"{name}.{key}: it cannot be {table[key]!r}" for key, kind in KEYS.items()
                  if key in table and (not isinstance(table[key], kind) or table[key] is True)]
    if wrong:
        refuse("\n".join(f"{path}: {line}" for line in wrong))
    return [Command(name, table) for name, table in plan.items()]


def refuse(why):
    print(why, file=sys.stderr)
    sys.exit(2)


def gpus_here():
    try:
        said = subprocess.run(["nvidia-smi", "--query-gpu=uuid", "--format=csv,noheader"],
                              capture_output=True, text=True, check=True, timeout=60).stdout
    except (OSError, subprocess.SubprocessError):
        return []
    return [line.strip() for line in said.splitlines() if line.strip()]


class Machine:
    """Which GPUs and processors are free."""

    def __init__(self, gpus):
        self.gpus = list(gpus)
        self.cores = sorted(os.sched_getaffinity(0))
        self.share = len(self.cores) // max(1, len(gpus))

    def needs(self, command):
        cores = command.cores or self.share * max(1, command.gpus)
        return command.gpus, max(1, cores)

    def give(self, command):
        """GPUs and processors for it, or None: not now."""
        gpus, cores = self.needs(command)
        if gpus > len(self.gpus) or cores > len(self.cores):
            return None
        mine = self.gpus[:gpus], self.cores[:cores]
        self.gpus, self.cores = self.gpus[gpus:], self.cores[cores:]
        return mine

    def take_back(self, mine):
        self.gpus = sorted(self.gpus + mine[0])
        self.cores = sorted(self.cores + mine[1])


def start(command, mine, directory):
    gpus, cores = mine
    directory.mkdir(parents=True, exist_ok=True)
    words = shlex.split(command.run.replace("{out}", shlex.quote(str(directory))))
    if words[0].endswith(".py"):
        words = [sys.executable, *words]
    env = {**os.environ, "PYTHONUNBUFFERED": "1", "CUDA_VISIBLE_DEVICES": ",".join(gpus)}
    command.mine = mine
    command.begin = time.monotonic()
    with open(directory / "log", "a") as log, harness.not_interrupted():
        command.process = subprocess.Popen(
            words, cwd=ROOT, env=env, stdin=subprocess.DEVNULL, stdout=log, stderr=log,
            start_new_session=True, preexec_fn=lambda: os.sched_setaffinity(0, cores))


def ended(command, results, out):
    """Whether it has ended; if so it is written down. One that takes too long is ended."""
    code = command.process.poll()
    seconds = time.monotonic() - command.begin
    late = code is None and seconds > 60 * command.minutes
    if code is None and not late:
        return False
    stop(command)
    log = (out / command.name / "log").read_text(errors="replace").strip().splitlines()
    line = {"name": command.name, "run": command.run, "code": None if late else code,
            "seconds": round(seconds, 1), "gpus": command.mine[0], "cores": len(command.mine[1]),
            "said": log[-1][:200] if log else ""}
    results.write(json.dumps(line) + "\n")
    results.flush()
    command.line = line
    print(f"{command.name}: {'killed' if late else code} after {seconds:.0f} s", flush=True)
    return True


def stop(command):
    """Ends what it started: kindly, so that MPS and daemons end too, then for good."""
    for number, wait in ((signal.SIGTERM, 10), (signal.SIGKILL, 10)):
        try:
            os.killpg(command.process.pid, number)
        except ProcessLookupError:
            pass
        try:
            command.process.wait(wait)
        except subprocess.TimeoutExpired:
            continue
        if number == signal.SIGTERM:
            time.sleep(0.2)  # its children have heard it as well


def done_before(out):
    try:
        lines = [json.loads(line) for line in (out / "spread.jsonl").read_text().splitlines()]
    except OSError:
        return {}
    return {line["name"]: line for line in lines if line["code"] == 0}


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("plan")
    parser.add_argument("--only", help="these commands of the plan")
    parser.add_argument("--minutes", type=float, default=9.5, help="for all (9.5)")
    parser.add_argument("--gpus", help="their UUIDs; without it, those that nvidia-smi names")
    parser.add_argument("--out", default="spread")
    options = parser.parse_args()

    commands = commands_of(options.plan)
    if options.only:
        wanted = options.only.split(",")
        for name in set(wanted) - {command.name for command in commands}:
            refuse(f"{options.plan} has no {name}; it has "
                   f"{', '.join(command.name for command in commands)}")
        commands = [command for command in commands if command.name in wanted]
    machine = Machine(options.gpus.split(",") if options.gpus else gpus_here())
    everything = Machine(machine.gpus)
    for command in commands:
        gpus, cores = machine.needs(command)
        if gpus > len(everything.gpus) or cores > len(everything.cores):
            refuse(f"{command.name} needs {gpus} GPUs and {cores} processors; there are "
                   f"{len(everything.gpus)} and {len(everything.cores)}. --only leaves it out")

    out = pathlib.Path(options.out).resolve()
    out.mkdir(parents=True, exist_ok=True)
    before = done_before(out)
    table = [line for name, line in before.items() if name in {c.name for c in commands}]
    waiting = [c for c in commands if c.name not in before]
    running, begin, late = [], time.monotonic(), []
    with open(out / "spread.jsonl", "a") as results:
        try:
            with harness.interruptible():
                try:
                    while waiting or running:
                        harness.check_interruption()
                        for command in [c for c in running if ended(c, results, out)]:
                            running.remove(command)
                            machine.take_back(command.mine)
                            table.append(command.line)
                        left = options.minutes - (time.monotonic() - begin) / 60
                        late += [c for c in waiting if c.minutes > left]
                        waiting = [c for c in waiting if c.minutes <= left]
                        for command in list(waiting):
                            mine = machine.give(command)
                            if mine is None:
                                continue
                            waiting.remove(command)
                            running.append(command)
                            start(command, mine, out / command.name)
                            print(f"{command.name}: {len(mine[0])} GPUs, {len(mine[1])} processors",
                                  flush=True)
                        time.sleep(0.2)
                except KeyboardInterrupt:
                    print("interrupted: run it again to go on", file=sys.stderr)
                    for command in running:
                        if command.process:
                            stop(command)
                    raise
        except KeyboardInterrupt:
            sys.exit(130)

    for line in sorted(table, key=lambda line: line["name"]):
        code = "killed" if line["code"] is None else line["code"]
        print(f"{line['name']:24} {code!s:>6} {line['seconds']:7.0f} s  {line['said']}")
    for command in late:
        print(f"{command.name:24} not begun: it may take {command.minutes:g} minutes")
    sys.exit(0 if not late and all(line["code"] == 0 for line in table) else 1)


if __name__ == "__main__":
    main()
