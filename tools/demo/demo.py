#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Two unmodified programs share one device under `vitamin run`; are the bits still theirs?

Runs the two demo programs one after the other without Vitamin, then both at once under
`vitamin run --policy random`, and compares. Works in a build directory and in an installed tree.
Exit code 0: bits equal and every launch bound.
"""
import argparse
import contextlib
import dataclasses
import json
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import time

PROGRAMS = ("train", "serve")
SOFTWARE_AMD = "lib/soft/libvitamin_soft_kfd.so"
LIMIT_S = 300
RESULT = re.compile(r"^(\w+): hash ([0-9a-f]{16}), (\d+) launches, ([0-9.]+) seconds$", re.M)


class DemoError(Exception):
    """What went wrong, as a sentence."""


def has_gpu():
    """An NVIDIA driver that answers and has a device."""
    if not shutil.which("nvidia-smi"):
        return False
    try:
        listing = subprocess.run(["nvidia-smi", "-L"], capture_output=True, text=True, timeout=60)
    except subprocess.TimeoutExpired:
        return False
    return listing.returncode == 0 and "GPU " in listing.stdout


@contextlib.contextmanager
def private_mps(directory):
    """An MPS control daemon of our own, without which processes take turns on an NVIDIA GPU."""
    control = shutil.which("nvidia-cuda-mps-control")
    if control is None:
        print("note: nvidia-cuda-mps-control is missing: the programs will take turns")
        yield {}
        return
    variables = {"CUDA_MPS_PIPE_DIRECTORY": str(directory / "mps-pipe"),
                 "CUDA_MPS_LOG_DIRECTORY": str(directory / "mps-log")}
    for path in variables.values():
        os.mkdir(path)
    environment = os.environ | variables
    started = subprocess.run([control, "-d"], env=environment, capture_output=True, text=True,
                             timeout=60)
    if started.returncode != 0:
        print(f"note: MPS does not start ({started.stderr.strip()}): the programs will take turns")
        yield {}
        return
    try:
        yield variables
    finally:
        subprocess.run([control], input="quit\n", env=environment, text=True, capture_output=True,
                       timeout=60)


@dataclasses.dataclass
class Device:
    """Under `environment` both programs find the same device. `work`: steps, then requests."""
    words: str
    environment: dict
    work: tuple
    suffix: str = ""  # of the programs' names
    processors: str = "processors"  # what the vendor calls them

    def command(self, prefix, name):
        work = self.work[PROGRAMS.index(name)]
        return [prefix / f"bin/demo-{name}{self.suffix}", str(work)]


def search_path(first, variable):
    return ":".join([str(first), *filter(None, [os.environ.get(variable)])])


def amd_is_built(prefix):
    files = ("bin/demo-train-hip", "bin/demo-serve-hip", SOFTWARE_AMD)
    return all((prefix / file).exists() for file in files)


def software_amd(prefix, reason, directory):
    if not amd_is_built(prefix):
        raise DemoError("the software AMD GPU was not built: install hipcc and the other AMD "
                        "packages of scripts/packages.txt, or use --device cuda")
    return Device(
        f"a SOFTWARE AMD GPU ({reason}): a stand-in for the kernel driver that interprets AMD\n"
        "  machine code on this CPU, under the real ROCm runtime and programs of hipcc. It shows\n"
        "  placement and bits; its times say nothing of AMD silicon, on which this never ran.",
        {"LD_PRELOAD": search_path(prefix / SOFTWARE_AMD, "LD_PRELOAD"),
         "VITAMIN_SOFT_AMDGPU_LEDGER": str(directory / "ledger"),
         "VITAMIN_LOCK_DIRECTORY": str(directory)},
        (20, 100), "-hip", "compute units")


def software_cuda(prefix, reason, directory):
    driver = prefix / "lib/soft"
    if not (driver / "libcuda.so.1").exists():
        raise DemoError(f"the software driver is missing ({driver}/libcuda.so.1)")
    return Device(f"a SOFTWARE device behind the CUDA driver's interface ({reason})",
                  {"LD_LIBRARY_PATH": search_path(driver, "LD_LIBRARY_PATH"),
                   "VITAMIN_SOFT_LEDGER": str(directory / "ledger")}, (600, 1000))


@contextlib.contextmanager
def device(prefix, vendor, software, directory):
    """The device that the user asked for, or the best one that is here."""
    if vendor != "amd" and not software and has_gpu():
        if not (prefix / "lib/vitamin/demo/kernels.fatbin").exists():
            raise DemoError("this machine has a GPU, but the demo's kernels were built without "
                            "nvcc: install the CUDA toolkit, or use --software")
        with private_mps(directory) as variables:
            yield Device("the NVIDIA GPU" + (", shared through MPS" if variables else ""),
                         variables, (12_000, 20_000))
        return
    reason = "asked for" if software or vendor == "amd" else "no NVIDIA driver with a device here"
    amd = vendor == "amd" or (vendor == "auto" and amd_is_built(prefix))
    yield (software_amd if amd else software_cuda)(prefix, reason, directory)


class Run:
    """One program, started; `finish` waits and reads its result line."""

    def __init__(self, name, words, environment):
        self.name = name
        self.process = subprocess.Popen(words, env=os.environ | environment, text=True,
                                        stdin=subprocess.DEVNULL, stdout=subprocess.PIPE)

    def finish(self, end):
        try:
            output, _ = self.process.communicate(timeout=max(1.0, end - time.monotonic()))
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
            raise DemoError(f"{self.name} did not end within {LIMIT_S} s") from None
        found = RESULT.search(output)
        if self.process.returncode != 0 or not found:
            raise DemoError(f"{self.name} failed (exit code {self.process.returncode})")
        self.hash, self.launches, self.seconds = found[2], int(found[3]), float(found[4])
        return self


def run_alone(prefix, device):
    runs = {}
    for name in PROGRAMS:
        end = time.monotonic() + LIMIT_S
        runs[name] = Run(name, device.command(prefix, name), device.environment).finish(end)
    return runs


def run_together(prefix, device, seed, directory):
    end = time.monotonic() + LIMIT_S
    runs = {}
    for number, name in enumerate(PROGRAMS):
        runs[name] = Run(name, [prefix / "bin/vitamin", "run", "--quiet", "--policy", "random",
                                "--seed", str(seed + number),
                                "--report", directory / f"{name}.json",
                                "--", *device.command(prefix, name)], device.environment)
    try:
        for run in runs.values():
            run.finish(end)
    finally:
        for run in runs.values():
            if run.process.poll() is None:
                run.process.kill()
                run.process.wait()
    for name, run in runs.items():
        run.report = json.loads((directory / f"{name}.json").read_text())
    return runs


def bars(report, processors):
    """One line a width: processors, launches, a bar."""
    widths = report["totals"]["widths"]
    whole = max((d["processors"] for p in report["processes"] for d in p["devices"]), default=0)
    reasons = ", ".join(f"{reason.replace('_', ' ')} {count:,}"
                        for reason, count in report["totals"]["whole_device"].items())
    most = max((w["launches"] for w in widths), default=1)
    utf8 = (sys.stdout.encoding or "").lower().startswith("utf")
    for w in widths:
        length = max(1, round(44 * w["launches"] / most))
        mark = f"  whole device ({reasons})" if w["processors"] == whole else ""
        print(f"    {w['processors']:>5} {processors} {w['launches']:>7,}  "
              f"{('█' if utf8 else '#') * length}{mark}")


def show(alone, together, processors):
    """The table; true when everything is as it must be."""
    good = True
    print()
    print(f"  {'program':<8} {'launches bound':>18} {'moved':>8} {'widths':>7}   "
          f"{'bits against alone':<19} {'alone':>8} {'together':>9}")
    for name in PROGRAMS:
        before, after = alone[name], together[name]
        totals, coverage = after.report["totals"], after.report["coverage"]
        equal = before.hash == after.hash
        complete = coverage["complete"] and coverage["launches"] == after.launches
        good = good and equal and complete
        bound = f"{coverage['bound']:,} of {after.launches:,}"
        print(f"  {name:<8} {bound:>18} {totals['launches']['moved']:>8,} "
              f"{len(totals['widths']):>7}   {'equal' if equal else 'DIFFERENT':<19} "
              f"{before.seconds:>6.2f} s {after.seconds:>7.2f} s")
    for name in PROGRAMS:
        print(f"\n  {name}: hash {alone[name].hash} alone, {together[name].hash} shared; "
              f"where its launches ran:")
        bars(together[name].report, processors)
    for name in PROGRAMS:
        problem = together[name].report["problem"]
        if problem:
            print(f"\n  {name}: {problem}")
    print()
    return good


def main():
    here = pathlib.Path(__file__).resolve()
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--prefix", type=pathlib.Path, default=here.parents[3],
                        help="build directory or installed tree (default: the one this file is in)")
    parser.add_argument("--device", choices=("auto", "cuda", "amd"), default="auto",
                        help="auto: the NVIDIA GPU where there is one, else the software AMD GPU "
                             "if it was built, else the software device for CUDA programs; cuda: "
                             "without the software AMD GPU; amd: the software AMD GPU")
    parser.add_argument("--software", action="store_true",
                        help="a software device even where there is a GPU")
    parser.add_argument("--seed", type=int, default=1, help="seed of the placement (default 1)")
    arguments = parser.parse_args()
    prefix = arguments.prefix.resolve()
    with tempfile.TemporaryDirectory(prefix="vitamin-demo-") as name:
        directory = pathlib.Path(name)
        try:
            with device(prefix, arguments.device, arguments.software, directory) as chosen:
                print(f"device: {chosen.words}")
                print("each program alone, without vitamin …", flush=True)
                alone = run_alone(prefix, chosen)
                print("both at once, under vitamin run --policy random …", flush=True)
                together = run_together(prefix, chosen, arguments.seed, directory)
        except DemoError as error:
            print(f"demo: {error}", file=sys.stderr)
            return 1
    if show(alone, together, chosen.processors):
        print("Every launch was bound when it was made, and every bit is the same.")
        return 0
    print("demo: the bits differ or a launch was not bound (see above).", file=sys.stderr)
    return 1


if __name__ == "__main__":
    sys.exit(main())
