# SPDX-License-Identifier: Apache-2.0
"""The HIP programs of this directory on ROCm of Debian sid, bare and under `vitamin run`.

    newer_rocm.py DIRECTORY --build build/release [--part gfx942]

By hand, as root, with mmdebstrap and network. Makes a chroot of 1.6 GB in DIRECTORY, or uses the
one that is there, builds the programs in it with sid's hipcc, and runs each of them over the
software AMD GPU (backends/soft/amdgpu). Prints a line for each program and policy. Exit code 1: a
bare run failed, or a run under `vitamin run` printed something else.
"""
import argparse
import contextlib
import os
import pathlib
import re
import shutil
import subprocess
import sys

SOURCES = pathlib.Path(__file__).parent / "programs"
PACKAGES = "libamdhip64-6,libamdhip64-dev,libhsa-runtime64-1,hipcc,rocminfo,libdrm-amdgpu1"
FLAGS = ["-std=c++17", "-O2", "-ffp-contract=off", "-w"]
PARTS = ("gfx90a", "gfx942", "gfx1030")
# Programs whose output differs under `vitamin run`, with the reason.
KNOWN = {
    "null_stream event_waits": "6.4 leaves no marker for an event that is complete; ours waits",
    "corners other_processes": "a wait for an interprocess event may return early, bare as well",
}
ONE_GPU = [
    "kernels vector_add reduction gemm softmax layernorm atomics halves integers mathematics lanes "
    "lookback stacks fills_and_copies pairs",
    "copies", "streams", "lanes",
    *(f"null_stream {check}" for check in ("queries", "synchronisations", "events", "event_waits",
                                           "chains", "threads", "masked")),
    *(f"corners {check}" for check in (
        "captured_graph", "built_graph", "asked_for_by_name", "last_error", "times_between_events",
        "devices", "other_processes")),
    "newer capture_to_graph", "newer proc_address",
    "obstacles own_mask", "obstacles unreadable_code", "masks try_masks",
]
TWO_GPUS = [f"several {check}" for check in (
    "alone_on_each", "threads_on_each", "events_between", "copies_between", "launch_over_all",
    "memory_of_two_processes", "event_of_two_processes")]


def make_chroot(directory):
    if (directory / "usr/bin/hipcc").exists():
        return
    subprocess.run(["mmdebstrap", "--variant=apt", "--mode=root",
                    # sid's index is older than it says where a mirror lags.
                    '--aptopt=Acquire::Check-Valid-Until "false"',
                    '--aptopt=APT::Install-Recommends "false"',
                    f"--include={PACKAGES}", "sid", directory], check=True)


def libraries_of(library):
    lines = subprocess.run(["ldd", library], text=True, capture_output=True, check=True).stdout
    return [pathlib.Path(path) for path in re.findall(r"=> (/\S+)", lines)]


class Chroot:
    def __init__(self, directory, build, part):
        self.directory = directory
        self.part = part
        self.opt = directory / "opt/programs"
        self.opt.mkdir(parents=True, exist_ok=True)
        driver = build / "lib/soft/libvitamin_soft_kfd.so"
        shutil.copy(driver, self.opt)
        # Libraries that the driver was linked with and that sid lacks.
        for library in libraries_of(driver):
            present = any((directory / path / library.name).exists()
                          for path in ("usr/lib/x86_64-linux-gnu", "lib64"))
            if not present:
                shutil.copy(library, self.opt)

    def run(self, *command, **settings):
        environment = {"PATH": os.environ["PATH"], "LD_LIBRARY_PATH": "/opt/programs",
                       "MODULE_FILE": "/opt/programs/module.co"} | settings
        line = ["chroot", self.directory, "/usr/bin/env", "-C", "/opt/programs", "-i",
                *(f"{name}={value}" for name, value in environment.items()), *command]
        return subprocess.run(line, text=True, capture_output=True, timeout=300)

    def over_device(self, *command, gpus):
        return self.run(*command, LD_PRELOAD="/opt/programs/libvitamin_soft_kfd.so",
                        VITAMIN_SOFT_AMDGPU=self.part, VITAMIN_SOFT_AMDGPU_COUNT=str(gpus))

    def compile(self, program, source, *flags):
        shutil.copytree(SOURCES, self.opt / "sources", dirs_exist_ok=True)
        result = self.run("hipcc", *FLAGS, f"--offload-arch={self.part}", *flags,
                          f"sources/{source}", "-o", program)
        if result.returncode != 0:
            sys.exit(result.stderr)


def compare(chroot, command, gpus):
    """Whether the bare program is right and prints the same under each policy."""
    words = ["./" + command.split()[0], *command.split()[1:]]
    bare = chroot.over_device(*words, gpus=gpus)
    right = bare.returncode == 0 and "WRONG" not in bare.stdout
    as_wanted = right
    for policy in ("random", "static"):
        ours = chroot.over_device("/opt/build/bin/vitamin", "run", "--policy", policy, "--", *words,
                                  gpus=gpus)
        same = (ours.returncode, ours.stdout) == (bare.returncode, bare.stdout)
        bound = re.search(r"\d+ of \d+ launches bound", ours.stderr)
        print(f"{'right' if right else 'WRONG'}, {'the same' if same else 'DIFFERS'} under "
              f"{policy}, {bound[0] if bound else 'no launch'}: {command}", flush=True)
        as_wanted = as_wanted and same
    for line in sorted(set(re.findall(r"the (?:DRM )?ioctl .* is not served", bare.stderr))):
        print(f"  {line}")
    if not as_wanted and command in KNOWN:
        print(f"  known: {KNOWN[command]}")
    return as_wanted or command in KNOWN


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("directory", type=pathlib.Path)
    parser.add_argument("--build", type=pathlib.Path, required=True)
    parser.add_argument("--part", choices=PARTS, default=PARTS[0])
    arguments = parser.parse_args()
    directory, build = arguments.directory.absolute(), arguments.build.absolute()
    make_chroot(directory)
    chroot = Chroot(directory, build, arguments.part)
    programs = {command.split()[0] for command in ONE_GPU + TWO_GPUS}
    with contextlib.ExitStack() as mounts:
        (directory / "opt/build").mkdir(parents=True, exist_ok=True)
        for source, target in ((build, "opt/build"), ("/proc", "proc"), ("/dev", "dev")):
            subprocess.run(["mount", "--bind", source, directory / target], check=True)
            mounts.callback(subprocess.run, ["umount", directory / target], check=True)
        for program in sorted(programs):
            chroot.compile(program, f"{program}.hip.cpp")
        chroot.compile("module.co", "module.hip.cpp", "--genco")
        results = [compare(chroot, command, 1) for command in ONE_GPU]
        results += [compare(chroot, command, 2) for command in TWO_GPUS]
    print(f"{results.count(True)} as wanted, {results.count(False)} not")
    return 0 if all(results) else 1


if __name__ == "__main__":
    sys.exit(main())
