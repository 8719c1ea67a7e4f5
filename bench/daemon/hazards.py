#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Programs that could hang when a device is shared in space; none of them may.

    hazards.py [NAME ...] [--policy random] [--out DIR]

Each program (bench/programs/hazards.cpp) runs natively, without and with MPS, then under a vitamind
whose other client computes all the time. A kernel whose blocks wait for each other without being
cooperative may hang on a small partition the first time: then the watchdog must have named it, and
a second run, with the profile of the first, must end; with `--cautious` the first one must, too.
Each run must have the right result and the native exit status; its coverage shows how the hazard
was avoided. Every run has an MPS and a vitamind of its own, because a program that hangs or faults
also ends its MPS server.
"""
import argparse
import pathlib
import shutil
import subprocess
import sys
import tempfile
import time

HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent))

import harness  # noqa: E402
from common import Daemon, Job, Surroundings, brief, occupant  # noqa: E402

UNSAID = ("barrier", "stream_k")
# A fault under MPS ends all clients of the server, natively too, so it runs without another client.
ALONE = ("fault",)
HAZARDS = ("cooperative", "cooperative_too_large", "clusters_2", "clusters_8", "clusters_16",
           "persistent", "host_gated", "meeting_streams", *UNSAID, *ALONE)


def done(cover, result, native):
    """How the hazard was avoided, as a text for the table."""
    if result.timed_out:
        return "HUNG"
    if native and native["status"] != 0:
        return "answered as natively"
    if not cover or not cover["launches"]:
        return "nothing was seen"
    widest = max(w["processors"] for w in cover["widths"])
    whole = sum(cover["whole_device"].values())
    if whole:
        reasons = ", ".join(f"{k.replace('_', ' ')} {v}" for k, v in cover["whole_device"].items())
        return f"{whole} of {cover['launches']} on the whole device ({reasons})"
    narrow = min(w["processors"] for w in cover["widths"])
    return f"on {narrow} to {widest} processors"


def stacks(process):
    """Where the threads of a process and of what it started are, by whatever debugger is here."""
    program = next(filter(shutil.which, ("gdb", "cuda-gdb")), None)
    found = {}
    try:
        listed = subprocess.run(["pgrep", "-g", str(process)], capture_output=True, text=True)
        for number in listed.stdout.split():
            if program is None:
                found[number] = [f"{(task / 'wchan').read_text()} {(task / 'syscall').read_text()}"
                                 for task in pathlib.Path("/proc", number, "task").iterdir()]
                continue
            said = subprocess.run(
                [program, "-p", number, "-batch", "-ex", "thread apply all bt 24"],
                capture_output=True, text=True, timeout=60, stdin=subprocess.DEVNULL).stdout
            found[number] = "\n".join(line for line in said.splitlines()
                                      if line.startswith(("#", "Thread")))[-12_000:]
    except (OSError, subprocess.TimeoutExpired) as error:
        found["why not"] = str(error)
    return found


def words_of(said):
    return f"{said['right']} of {said['repeats']}, status {said['status']}" if said else \
        "did not end"


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("names", nargs="*", default=list(HAZARDS))
    parser.add_argument("--policy", default="random")
    parser.add_argument("--repeats", type=int, default=20)
    parser.add_argument("--timeout", type=float, default=12)
    parser.add_argument("--device", choices=["cuda", "soft"], default="cuda")
    parser.add_argument("--out", default=harness.default_output())
    options = parser.parse_args()
    results = harness.Results(options.out, "hazards")
    rows = []
    headings = ["hazard", "native", "under MPS", "under vitamind", "what was done", "s", "problem"]
    said = lambda result: next((line for line in result.lines if "hazard" in line), None)
    command = lambda name: [harness.program("hazards"), name, str(options.repeats),
                            str(max(1, int(options.timeout * 0.75)))]

    def shared(name, known, scene, caution=()):
        """Runs the program under vitamind beside another client. Returns result, coverage, whether
        the other client lives, log. Stacks of a program that hangs go to `scene`."""
        with Surroundings(options.device) as surroundings:
            environment = surroundings.environment
            daemon = Daemon(options.policy, environment, watch=False)
            neighbour = None
            try:
                if name not in ALONE:
                    neighbour = occupant(environment, daemon)
                    neighbour.tell("compute 0 20000 256 100000 20 300")
                job = Job(command(name), environment, daemon,
                          ("--wide-only", str(known), *caution))
                result = job.wait(options.timeout, lambda process: scene.update(
                    status=daemon.status(), stacks=stacks(process)))
                lives = neighbour and neighbour.process.poll() is None
                return result, job.coverage, lives, surroundings.words
            finally:
                if neighbour:
                    neighbour.kill()
                log.append(daemon.end()[-2000:])

    with tempfile.TemporaryDirectory() as directory:
        for name in options.names:
            log = []
            alone = {}
            for mode in ("native", "MPS") if options.device == "cuda" else ("native",):
                with Surroundings(options.device, mps=mode == "MPS") as surroundings:
                    result = Job(command(name), surroundings.environment).wait(options.timeout)
                    alone[mode] = said(result)
                    results.add({"hazard": name, "mode": mode, "said": alone[mode],
                                 "surroundings": surroundings.words, "why": result.why()})
            native = alone["native"]
            known = pathlib.Path(directory) / f"{name}.wide-only"
            attempts = [(0, ())]
            if name in UNSAID:
                attempts = [(0, ("--cautious",)), (0, ()), (1, ())]
            for attempt, caution in attempts:
                suffix = ", with caution" if caution else ", again" if attempt else ""
                begin = time.monotonic()
                before = known.read_text().split() if known.exists() else []
                try:
                    scene = {}
                    result, cover, lives, words = shared(name, known, scene, caution)
                except (RuntimeError, OSError) as error:  # the neighbour did not start
                    rows.append([name, words_of(native), "", "not run", "", "", str(error)[:60]])
                    results.add({"hazard": name, "mode": options.policy, "why": str(error)})
                    break
                # A job that was killed leaves no report.
                found = said(result)
                after = known.read_text().split() if known.exists() else []
                same = bool(found and native and found["right"] == found["repeats"]
                            and found["status"] == native["status"])
                what = done(cover, result, native)
                if result.timed_out and after:
                    what = f"hung; named and remembered: {' '.join(after)}"
                results.add({"hazard": name, "mode": options.policy, "attempt": attempt,
                             "cautious": bool(caution), "said": found, "same": same,
                             "hung": result.timed_out,
                             "known": before, "remembered": after, "why": result.why(),
                             "done": what, "coverage": brief(cover), "surroundings": words,
                             "errors": result.errors[-800:], "neighbour_runs": lives,
                             "log": log, **({"scene": scene} if scene else {})})
                rows.append([name + suffix, words_of(native),
                             words_of(alone["MPS"]) if "MPS" in alone else "-", words_of(found),
                             what, f"{time.monotonic() - begin:.1f}",
                             "" if same else result.why()[:80]])
                print("  ".join(map(str, rows[-1])), flush=True)
                if not (result.timed_out or caution):
                    break
    print("\n" + harness.table(rows, headings))


if __name__ == "__main__":
    main()
