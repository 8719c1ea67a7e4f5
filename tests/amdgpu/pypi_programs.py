# SPDX-License-Identifier: Apache-2.0
"""CuPy and JAX for ROCm from PyPI over the software AMD GPU, bare and under `vitamin run`.

    pypi_programs.py cupy DIRECTORY --build build/release
    pypi_programs.py jax DIRECTORY --build build/release

By hand, with network. Makes a virtual environment in DIRECTORY, installs the program in it, and
runs programs/cupy_checks.py or programs/jax_checks.py: bare, under the policy random and under
static. Prints where each check stops, whether Vitamin changes a line, and how many launches it
bound. README.md, "Programs of others", has what was printed and why each check stops.

CuPy runs on this machine's ROCm 5.2.3 (Debian 12) as gfx908: its kernels are built for no other
part of the software GPU. JAX runs as gfx1030 in a chroot with ROCm 6.4.3 of Debian sid (rocm.py;
as root; 11 GB with its libraries). Both name libraries that Debian lacks. Stubs stand for these:
they export the functions and answer each call with an error, but hipBLASLt's with success, because
JAX ends where it cannot make a handle of it. So what needs them stops, and says so.

Exit code 1: a line differs under `vitamin run`, or no bare check is right; its errors follow.
"""
import argparse
import dataclasses
import pathlib
import re
import subprocess
import sys
import venv

import rocm

CHECKS = pathlib.Path(__file__).parent / "programs"
LIMIT = 1800  # seconds, for all checks of a program
POLICIES = ("random", "static")


@dataclasses.dataclass(frozen=True)
class Stub:
    library: str
    prefix: str = ""  # of the functions that it has; empty: none is called
    answer: int = 1


@dataclasses.dataclass(frozen=True)
class Program:
    packages: tuple
    part: str
    parts: tuple
    stubs: tuple
    preloaded: str = ""  # C code of a library that is preloaded


# ROCm 5.2 gave a surface another type than 5.0, for which CuPy's wheel is built.
SURFACES = """
int _Z22hipCreateSurfaceObjectPyPK15hipResourceDesc(void) { return 801; }
int _Z23hipDestroySurfaceObjecty(void) { return 801; }
"""
PROGRAMS = {
    # 13 asks for attributes of host pointers, which before ROCm 6 is an error (CuPy, pull 8335).
    "cupy": Program(
        ("cupy-rocm-5-0==12.3.0", "numpy==1.26.4"), "gfx908", ("gfx908",),
        (Stub("libhipblas.so.0", "hipblas"), Stub("librocblas.so.0", "rocblas"),
         Stub("librocsolver.so.0", "rocsolver"), Stub("libhipsparse.so.0", "hipsparse"),
         Stub("librocsparse.so.0", "rocsparse"), Stub("libhipfft.so", "hipfft"),
         Stub("librocfft.so.0"), Stub("libroctx64.so.1", "roctx")),
        SURFACES),
    "jax": Program(
        ("jax==0.5.0", "jax-rocm60-plugin==0.5.0"), "gfx1030", ("gfx1030", "gfx90a"),
        (Stub("librccl.so.1", "nccl"), Stub("libhipblaslt.so.0", "hipblasLt", 0),
         Stub("libhipsparselt.so.0"), Stub("libamd_comgr.so.2"), Stub("librocm_smi64.so.7"),
         Stub("librocprofiler-register.so.0"))),
}
LIBRARIES_OF_JAX = ("libhipblas2", "libhipfft0", "libhipsolver0", "libhipsparse1", "libmiopen1",
                    "librocsolver0")
# What JAX looks for below /opt/rocm, where Debian has it.
LINKS = {"llvm/bin": "usr/lib/llvm-*/bin",
         "amdgcn/bitcode": "usr/lib/llvm-*/lib/clang/*/amdgcn/bitcode"}
# Trying hundreds of kernels of rocBLAS for each product takes minutes here.
SETTINGS_OF_JAX = {"JAX_PLATFORMS": "rocm", "ROCM_PATH": "/opt/rocm", "TF_CPP_MIN_LOG_LEVEL": "3",
                   "XLA_FLAGS": "--xla_gpu_autotune_level=0",
                   "PATH": "/opt/rocm/llvm/bin:/usr/bin:/bin"}


def compile_library(path, code):
    path.parent.mkdir(parents=True, exist_ok=True)
    subprocess.run(["cc", "-shared", "-fPIC", "-w", "-x", "c", "-", "-o", path,
                    f"-Wl,-soname,{path.name}"], input=code, text=True, check=True)


def make_stubs(program, packages, directory):
    """A library for each stub, with the functions of its prefix that a library in `packages`
    names."""
    names = {stub: set() for stub in program.stubs}
    for library in packages.rglob("*.so*"):
        code = library.read_bytes()
        for stub in filter(lambda stub: stub.prefix, program.stubs):
            names[stub].update(re.findall(stub.prefix.encode() + rb"\w+(?=\0)", code))
    for stub, found in names.items():
        compile_library(directory / stub.library, "".join(
            f"int {name.decode()}(void) {{ return {stub.answer}; }}\n" for name in sorted(found)))
    if program.preloaded:
        compile_library(directory / "libpreloaded.so", program.preloaded)


def install(program, directory):
    """The Python of a virtual environment with the packages."""
    python = directory / "bin/python"
    if not python.exists():
        venv.create(directory, with_pip=True)
        subprocess.run([python, "-m", "pip", "install", "-q", *program.packages], check=True)
    return python


def prepare_chroot(chroot):
    """Installs the libraries of ROCm that JAX calls, and leads JAX to the compiler."""
    if not (chroot.directory / "usr/lib/x86_64-linux-gnu/libMIOpen.so.1").exists():
        for words in (("update",), ("install", "-y", "--no-install-recommends", *LIBRARIES_OF_JAX)):
            subprocess.run(["chroot", chroot.directory, "apt-get", "-o",
                            "Acquire::Check-Valid-Until=false", *words], check=True)
    for name, pattern in LINKS.items():
        link = chroot.directory / "opt/rocm" / name
        link.parent.mkdir(parents=True, exist_ok=True)
        if not link.is_symlink():
            target = next(chroot.directory.glob(pattern))
            link.symlink_to("/" / target.relative_to(chroot.directory))


class Runs:
    def __init__(self, place, directory, command, settings):
        self.place, self.directory = place, directory
        self.command, self.settings = command, settings

    def run(self, *before):
        return self.place.run(*before, *self.command, directory=self.directory, limit=LIMIT,
                              VITAMIN_SOFT_AMDGPU=self.place.part, **self.settings)

    def compare(self, title, vitamin):
        """Prints the lines. Whether every run printed the same."""
        bare = self.run()
        lines = bare.stdout.splitlines()
        right = sum(" right " in line for line in lines)
        print(f"{title}, {self.place.part}: {right} of {len(lines)} checks right, exit code "
              f"{bare.returncode}")
        for line in lines:
            if " right " not in line:
                print(f"  {line}")
        for line in re.findall(r"software AMD GPU: .*? failed: (.*)", bare.stderr):
            print(f"  software AMD GPU: {line}")
        if right == 0:
            sys.exit(bare.stderr)
        as_wanted = True
        for policy in POLICIES:
            ours = self.run(vitamin, "run", "--policy", policy, "--")
            same = (ours.returncode, ours.stdout) == (bare.returncode, bare.stdout)
            bound = re.search(r"\d+ of \d+ launches bound", ours.stderr)
            print(f"  {'the same' if same else 'DIFFERS'} under {policy}, "
                  f"{bound[0] if bound else 'no launch'}", flush=True)
            as_wanted = as_wanted and same
        return as_wanted


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("program", choices=PROGRAMS)
    parser.add_argument("directory", type=pathlib.Path, help="made if it is not there")
    parser.add_argument("--build", type=pathlib.Path, required=True)
    parser.add_argument("--part", help="JAX: gfx1030 (the default) or gfx90a")
    parser.add_argument("--chroot", type=pathlib.Path, help="of JAX; default: in DIRECTORY")
    arguments = parser.parse_args()
    program = PROGRAMS[arguments.program]
    part = arguments.part or program.part
    if part not in program.parts:
        parser.error(f"{arguments.program} runs as {' or '.join(program.parts)}")
    directory, build = arguments.directory.absolute(), arguments.build.absolute()
    python = install(program, directory / arguments.program)
    stubs = directory / f"stubs-{arguments.program}"
    make_stubs(program, directory / arguments.program, stubs)
    settings = {"HOME": str(directory), "LD_LIBRARY_PATH": str(stubs)}
    preloaded = [str(build / rocm.DRIVER)]
    if program.preloaded:
        preloaded.append(str(stubs / "libpreloaded.so"))
    settings["LD_PRELOAD"] = ":".join(preloaded)
    if arguments.program == "jax":
        place = rocm.Chroot((arguments.chroot or directory / "sid").absolute(), build, part)
        prepare_chroot(place)
        settings |= SETTINGS_OF_JAX
        settings["LD_LIBRARY_PATH"] += ":/opt/libraries"
        mounts = (sys.base_prefix, python.parent.parent, stubs, CHECKS.absolute(), build)
    else:
        place, mounts = rocm.Here(build, part), ()
    checks = CHECKS.absolute() / f"{arguments.program}_checks.py"
    runs = Runs(place, CHECKS.absolute(), [python, checks], settings)
    with place.ready(*mounts):
        as_wanted = runs.compare(program.packages[0], build / "bin/vitamin")
    return 0 if as_wanted else 1


if __name__ == "__main__":
    sys.exit(main())
