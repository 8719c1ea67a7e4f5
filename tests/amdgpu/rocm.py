# SPDX-License-Identifier: Apache-2.0
"""Where HIP programs are built and run over the software AMD GPU: the ROCm of this machine, or that
of Debian sid in a chroot."""
import contextlib
import ctypes
import os
import pathlib
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time

OF_USERS = ("VITAMIN", "HSA_", "HIP_", "ROC_", "GPU_", "LD_")
DRIVER = "lib/soft/libvitamin_soft_kfd.so"
CHROOT_PACKAGES = "libamdhip64-6,libamdhip64-dev,libhsa-runtime64-1,hipcc,rocminfo,libdrm-amdgpu1"


def without_settings(environment):
    """The environment without what its user set for a GPU."""
    return {name: value for name, value in environment.items() if not name.startswith(OF_USERS)}


signals_to_end = []  # that have come


def end_by_signals():
    """From now on SIGTERM and SIGINT end this process when the program that it waits for, and what
    that one has started, has been ended."""
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda number, _: signals_to_end.append(number))


def exit_code(process, limit):
    """None: it did not end within `limit` seconds, or a signal asks this process to end."""
    end = time.monotonic() + limit
    while not signals_to_end and (left := end - time.monotonic()) > 0:
        with contextlib.suppress(subprocess.TimeoutExpired):
            return process.wait(min(left, 0.1))
    return None


def end_group(process):
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)


class Here:
    """This machine's ROCm. All paths are the same within."""

    def __init__(self, build, part):
        self.driver = build / DRIVER
        self.part = part

    @contextlib.contextmanager
    def ready(self, *_):
        yield

    def start(self, *command, directory, out=subprocess.DEVNULL, error=subprocess.DEVNULL,
              **settings):
        """The process, a group of its own."""
        words, arguments = self.within(command, directory, settings)
        return subprocess.Popen([str(word) for word in words], stdin=subprocess.DEVNULL,
                                stdout=out, stderr=error, start_new_session=True, **arguments)

    def within(self, command, directory, settings):
        """The words and arguments with which a process starts there."""
        return command, {"cwd": directory, "env": without_settings(os.environ) | settings}

    def run(self, *command, directory, limit, **settings):
        """The completed process, whose exit code is None if it did not end within `limit` s. Ends
        the processes that it leaves."""
        with (tempfile.TemporaryFile("w+", errors="replace") as out,
              tempfile.TemporaryFile("w+", errors="replace") as error):
            process = self.start(*command, directory=directory, out=out, error=error, **settings)
            try:
                code = exit_code(process, limit)
            finally:
                end_group(process)
                process.wait()
            if signals_to_end:
                sys.exit(128 + signals_to_end[0])
            out.seek(0)
            error.seek(0)
            return subprocess.CompletedProcess(command, code, out.read(), error.read())

    def over_device(self, *command, gpus=1, **arguments):
        return self.run(*command, LD_PRELOAD=str(self.driver), VITAMIN_SOFT_AMDGPU=self.part,
                        VITAMIN_SOFT_AMDGPU_COUNT=str(gpus), **arguments)


def libraries_of(library):
    lines = subprocess.run(["ldd", library], text=True, capture_output=True, check=True).stdout
    return [pathlib.Path(path) for path in re.findall(r"=> (/\S+)", lines)]


def have_private_mounts():
    """What this process mounts ends with it, however it ends. Removing the directory of a chroot
    would remove what is still mounted in it."""
    new_namespace = 0x20000  # CLONE_NEWNS
    if ctypes.CDLL(None, use_errno=True).unshare(new_namespace) != 0:
        raise OSError(ctypes.get_errno(), "no mount namespace of its own")
    subprocess.run(["mount", "--make-rprivate", "/"], check=True)


class Chroot(Here):
    """ROCm of Debian sid in a chroot of 1.6 GB, which is made if it is not there. Needs root,
    mmdebstrap and, to make it, network."""

    def __init__(self, directory, build, part):
        super().__init__(build, part)
        self.directory = directory
        self.make()
        self.libraries = directory / "opt/libraries"
        self.libraries.mkdir(parents=True, exist_ok=True)
        # Those that the driver was linked with and that sid lacks.
        for library in libraries_of(self.driver):
            present = any((directory / path / library.name).exists()
                          for path in ("usr/lib/x86_64-linux-gnu", "lib64"))
            if not present:
                # Not over one that a program of another script may have mapped.
                copy = self.libraries / f"{library.name}.{os.getpid()}"
                shutil.copy(library, copy)
                copy.replace(self.libraries / library.name)

    def make(self):
        if (self.directory / "usr/bin/hipcc").exists():
            return
        part = self.directory.with_name(f"{self.directory.name}.part")
        shutil.rmtree(part, ignore_errors=True)  # of a run that was interrupted
        subprocess.run(["mmdebstrap", "--variant=apt", "--mode=root",
                        # sid's index is older than it says where a mirror lags.
                        '--aptopt=Acquire::Check-Valid-Until "false"',
                        '--aptopt=APT::Install-Recommends "false"',
                        f"--include={CHROOT_PACKAGES}", "sid", part], check=True)
        part.rename(self.directory)

    @contextlib.contextmanager
    def ready(self, *directories):
        """Mounts the directories in it, under the paths that they have here, for this process and
        those that it starts."""
        have_private_mounts()
        with contextlib.ExitStack() as mounts:
            for source in ("/proc", "/dev", *map(str, directories)):
                target = self.directory / source[1:]
                target.mkdir(parents=True, exist_ok=True)
                subprocess.run(["mount", "--bind", source, target], check=True)
                mounts.callback(subprocess.run, ["umount", "--lazy", target], check=True)
            yield

    def within(self, command, directory, settings):
        settings = {"PATH": os.environ["PATH"], "LD_LIBRARY_PATH": "/opt/libraries"} | settings
        return ["chroot", self.directory, "/usr/bin/env", "-C", directory, "-i",
                *(f"{name}={value}" for name, value in settings.items()), *command], {}
