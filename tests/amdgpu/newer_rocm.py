# SPDX-License-Identifier: Apache-2.0
"""The HIP programs of this directory on ROCm of Debian sid, bare and under `vitamin run`.

    newer_rocm.py DIRECTORY --build build/release [--part gfx942]

As root, with mmdebstrap and network. Makes the chroot in DIRECTORY (rocm.py), or uses the
one that is there, builds the programs in it with sid's hipcc, and runs each of them over the
software AMD GPU (backends/soft/amdgpu). Prints a line for each program and policy. Exit code 1: a
bare run failed, or a run under `vitamin run` printed something else.
"""
import argparse
import pathlib
import re
import shutil
import sys

import rocm

SOURCES = pathlib.Path(__file__).parent / "programs"
PROGRAMS = "/opt/programs"  # in the chroot
LIMIT = 300  # seconds, for a program
FLAGS = ["-std=c++17", "-O2", "-ffp-contract=off", "-w"]
PARTS = ("gfx90a", "gfx908", "gfx942", "gfx1030", "gfx1100")
LIBRARIES = {"blas": ["-lrocblas"]}  # what programs are linked with
# Lines of programs that may be wrong bare, and differ under `vitamin run` then, with the reason.
KNOWN = {
    "corners other_processes": ("(ok|WRONG) an event for other processes ",
                                "a wait for an interprocess event may return early, bare as well"),
}
ONE_GPU = [
    "kernels vector_add reduction gemm softmax layernorm atomics halves integers mathematics lanes "
    "lookback stacks fills_and_copies pairs",
    "copies", "streams", "lanes", "managed",
    *(f"null_stream {check}" for check in ("queries", "synchronisations", "events", "event_waits",
                                           "chains", "threads", "masked", "calls")),
    *(f"corners {check}" for check in (
        "captured_graph", "copies_in_captures", "built_graph", "asked_for_by_name", "last_error",
        "attachments", "times_between_events", "devices", "other_processes")),
    "corners refused_launches", "graphs chains nested changes branches copies",
    "newer capture_to_graph", "newer proc_address", "newer launches_by_c_name",
    "obstacles own_mask", "obstacles unreadable_code", "masks try_masks",
]
# Programs for parts on which the software GPU stores to images.
OF_IMAGES = {"null_stream array_calls": ("gfx90a", "gfx908")}
TWO_GPUS = [f"several {check}" for check in (
    "alone_on_each", "threads_on_each", "events_between", "copies_between",
    "copies_without_a_stream", "launch_over_all",
    "memory_of_two_processes", "event_of_two_processes")]


def build_programs(chroot, programs):
    shutil.copytree(SOURCES, chroot.directory / PROGRAMS[1:] / "sources", dirs_exist_ok=True)
    builds = [(f"{name}.hip.cpp", name, LIBRARIES.get(name, [])) for name in sorted(programs)]
    for source, target, flags in [*builds, ("module.hip.cpp", "module.co", ["--genco"])]:
        result = chroot.run("hipcc", *FLAGS, f"--offload-arch={chroot.part}",
                            f"sources/{source}", *flags, "-o", target, directory=PROGRAMS,
                            limit=LIMIT)
        if result.returncode != 0:
            sys.exit(result.stderr)


def compare(chroot, vitamin, command, gpus):
    """Whether the bare program is right and prints the same under each policy, but for the lines
    that may differ."""
    words = ["./" + command.split()[0], *command.split()[1:]]
    settings = {"gpus": gpus, "directory": PROGRAMS, "limit": LIMIT,
                "MODULE_FILE": f"{PROGRAMS}/module.co"}
    may_differ, reason = KNOWN.get(command, ("$.", ""))  # matches no line

    def certain(result):
        """Whether it ended, and what it printed that may not differ."""
        lines = [line for line in result.stdout.splitlines() if not re.match(may_differ, line)]
        return result.returncode in ((0, 1) if reason else (0,)), lines

    bare = chroot.over_device(*words, **settings)
    right = bare.returncode == 0 and "WRONG" not in bare.stdout
    ended, lines = certain(bare)
    as_wanted = ended and "WRONG" not in "".join(lines)
    all_same = True
    for policy in ("random", "static"):
        ours = chroot.over_device(vitamin, "run", "--policy", policy, "--", *words, **settings)
        same = (ours.returncode, ours.stdout) == (bare.returncode, bare.stdout)
        bound = re.search(r"\d+ of \d+ launches bound", ours.stderr)
        print(f"{'right' if right else 'WRONG'}, {'the same' if same else 'DIFFERS'} under "
              f"{policy}, {bound[0] if bound else 'no launch'}: {command}", flush=True)
        as_wanted = as_wanted and certain(ours) == (ended, lines)
        all_same = all_same and same
    for line in sorted(set(re.findall(r"the (?:DRM )?ioctl .* is not served", bare.stderr))):
        print(f"  {line}")
    if as_wanted and not (right and all_same):
        print(f"  known: {reason}")
    return as_wanted


def main(words=None):
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("directory", type=pathlib.Path)
    parser.add_argument("--build", type=pathlib.Path, required=True)
    parser.add_argument("--part", choices=PARTS, default=PARTS[0])
    arguments = parser.parse_args(words)
    directory, build = arguments.directory.absolute(), arguments.build.absolute()
    chroot = rocm.Chroot(directory, build, arguments.part)
    vitamin = build / "bin/vitamin"
    one_gpu = ONE_GPU + [program for program, parts in OF_IMAGES.items() if chroot.part in parts]
    # librocblas-dev, installed by hand: it brings 3 GB.
    if (directory / "usr/include/rocblas").exists():
        one_gpu.append("blas")
    with chroot.ready(build):
        build_programs(chroot, {command.split()[0] for command in one_gpu + TWO_GPUS})
        results = [compare(chroot, vitamin, command, 1) for command in one_gpu]
        results += [compare(chroot, vitamin, command, 2) for command in TWO_GPUS]
    print(f"{results.count(True)} as wanted, {results.count(False)} not")
    return 0 if all(results) else 1


if __name__ == "__main__":
    sys.exit(main())
