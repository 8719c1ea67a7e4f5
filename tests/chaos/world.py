# SPDX-License-Identifier: Apache-2.0
"""What a storm meets: directories, programs under `vitamin run`, and daemons.

KINDS says what clients run.
"""
import contextlib
import dataclasses
import os
import pathlib
import re
import shlex
import shutil
import signal
import subprocess
import time

import harness
import time_limit


class Broken(AssertionError):
    """Something did not hold."""


def read(path):
    try:
        return pathlib.Path(path).read_bytes()
    except OSError:
        return b""


def children(pid):
    words = read(f"/proc/{pid}/task/{pid}/children").split()
    return [int(word) for word in words]


def descriptors(pid):
    try:
        return len(os.listdir(f"/proc/{pid}/fd"))
    except OSError:
        return 0


def state_of(pid):
    """One letter (proc(5)); none when there is no such process."""
    return read(f"/proc/{pid}/stat").rpartition(b")")[2][1:2].decode()


def send(pid, number):
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, number)


def number_in_status(pid, name):
    found = re.search(rf"^{name}:\s+(\d+)", read(f"/proc/{pid}/status").decode(), re.M)
    return int(found[1]) if found else 0


class Place:
    """A directory that can be full: a small file system of its own where that may be made."""

    def __init__(self, path, mebibytes):
        self.path = pathlib.Path(path)
        self.path.mkdir(exist_ok=True)
        self.small = subprocess.run(
            ["mount", "-t", "tmpfs", "-o", f"size={mebibytes}m,nr_inodes=400", "none",
             str(self.path)], capture_output=True, check=False).returncode == 0

    def fill(self, names):
        """No byte left, and no name either if so asked."""
        fill = self.path / "fill"
        with contextlib.suppress(OSError):  # where even this has no room, the place is full
            fill.mkdir()
        with contextlib.suppress(OSError), open(fill / "bytes", "wb", buffering=0) as file:
            while file.write(bytes(4096)) == 4096:
                pass
        with contextlib.suppress(OSError):
            for number in range(500 if names else 0):
                (fill / str(number)).touch()
        return lambda: shutil.rmtree(fill, ignore_errors=True)


class World:
    """Directories, the environment of clients, and what this machine lets us do."""

    def __init__(self, directory, programs):
        self.directory = pathlib.Path(directory)
        self.programs = programs
        self.root = os.geteuid() == 0 and bool(os.environ.get("CHAOS_OWN_MOUNTS"))
        self.places = {}
        for name, mebibytes in (("run", 1), ("state", 2), ("locks", 1), ("trace", 2)):
            (self.directory / name).mkdir()
            if self.root:
                self.places[name] = Place(self.directory / name, mebibytes)
        if self.root:
            self.places["shm"] = Place("/dev/shm", 4)
        self.full = self.root and all(place.small for place in self.places.values())
        self.namespaces = self.root and subprocess.run(
            ["unshare", "-T", "--monotonic", "1", "--fork", "true"], capture_output=True,
            check=False).returncode == 0
        self.clock = self.directory / "clock"
        self.clock.write_text("0")
        self.amd = os.path.exists(programs.get("train_hip", ""))
        self.environment = {name: value for name, value in os.environ.items()
                            if not name.startswith(("VITAMIN", "CUDA_", "LD_"))}
        self.environment |= {
            "LD_LIBRARY_PATH": programs["driver"], "XDG_RUNTIME_DIR": str(self.directory / "run"),
            "HOME": str(self.directory / "state"), "XDG_STATE_HOME": str(self.directory / "state"),
            "VITAMIN_LOCK_DIRECTORY": str(self.directory / "locks"), "VITAMIN_CONFIG": "/dev/null",
            "VITAMIN_SOFT_LEDGER": str(self.directory / "ledger"),
            "VITAMIN_SOFT_AMDGPU_LEDGER": str(self.directory / "ledger-amd"),
            "DRIVER_DOOR": "dlsym", "TEST_KERNELS": programs["kernels"]}

    def unmount(self):
        for place in self.places.values():
            if place.small:
                subprocess.run(["umount", "--lazy", str(place.path)], check=False)

    def limits(self):
        """What is not tried on this machine, in words."""
        wanted = {"full": "no small file systems: nothing is ever full (needs root)",
                  "namespaces": "no time namespaces (needs root)",
                  "amd": "the AMD programs are not built"}
        return [text for name, text in wanted.items() if not getattr(self, name)]


@dataclasses.dataclass(frozen=True)
class Kind:
    """`command`: words, natively; {names} are programs. `options`: what stands before it, under
    Vitamin."""
    command: str
    options: str = "run --daemon --socket {socket}"
    needs: str = ""


KINDS = {
    "train": Kind("{train} 900"),
    "serve": Kind("{serve} 400"),
    "graphs": Kind("{graphs} thousands_of_replays"),
    "graph updates": Kind("{graphs} updates"),
    "forks": Kind("{graphs} forks_around_replays"),
    "no daemon": Kind("{train} 500", "run --policy random"),
    "quick": Kind("{train} 1"),
    "shell": Kind("sh -c '{train} 200; {serve} 50; exit 3'"),
    "children": Kind("sh -c '{train} 300 >/dev/null & {serve} 100; wait; exit 4'"),
    "few descriptors": Kind("sh -c 'ulimit -n 20; exec {train} 300'"),
    "small files": Kind("sh -c 'ulimit -f 200; exec {train} 300 >/dev/null'"),
    "another time": Kind("unshare -T --monotonic 1000000 --fork {train} 300", needs="namespaces"),
    "learns": Kind("{train} 300",
                   "run --daemon --socket {socket} --profiles {directory}/state/times"),
    "records": Kind("{train} 300", "trace record --daemon --output {directory}/trace/{number}"),
    "own daemon": Kind("{serve} 100", "run --daemon --socket {directory}/run/own"),
    "no driver": Kind("sh -c 'exit 5'"),
    "fails": Kind("{train} 0"),
    "amd": Kind("{train_hip} 20", needs="amd"),
}
SECONDS = re.compile(r"[0-9.]+ seconds")
# What `vitamin trace record` says with exit code 125 where the trace had no room.
NO_TRACE = ("the trace cannot be written to", "there is no trace")


class Client:
    """One command under `vitamin run`, and what it may still end as."""

    def __init__(self, world, number, kind, daemon_socket, chance):
        self.kind, self.number = kind, number
        self.output = world.directory / "clients" / str(number)
        names = world.programs | {"socket": daemon_socket, "directory": world.directory,
                                  "number": number}
        environment = dict(world.environment)
        if chance.random() < 0.3:  # a clock that jumps
            environment |= {"LD_PRELOAD": world.programs["clock"],
                            "JUMPING_CLOCK": str(world.clock)}
        words = [*KINDS[kind].options.format(**names).split(), "--"]
        with open(f"{self.output}.out", "wb") as out, open(f"{self.output}.err", "wb") as err:
            self.process = subprocess.Popen(
                [world.programs["vitamin"], *words, *command_of(world, kind)], stdout=out,
                stderr=err, stdin=subprocess.DEVNULL, env=environment,
                **({"start_new_session": True} if chance.random() < 0.5 else
                   {"process_group": 0}))
        self.started = time.monotonic()
        self.signals = set()  # that it, or its program, was sent
        self.undisturbed = 0.0  # from when on it must come to its end

    def program(self):
        """The process of the command; None when it is not there (any more)."""
        for child in children(self.process.pid):
            with contextlib.suppress(OSError):
                if not os.readlink(f"/proc/{child}/exe").endswith("/vitamin"):
                    return child
        return None

    def told(self):
        return read(f"{self.output}.out").decode(errors="replace")

    def errors(self):
        return read(f"{self.output}.err").decode(errors="replace")

    def check(self, native):
        """Of its end, whether it may be so."""
        code, (native_code, native_told) = self.process.returncode, native
        who = f"client {self.number} ({self.kind})"
        if code == native_code and not self.signals:
            if SECONDS.sub("", self.told()) != native_told:
                raise Broken(f"{who} said {self.told()!r}, natively {native_told!r}")
        elif code == native_code or -code in self.signals or code - 128 in self.signals:
            return  # a signal may come too late
        elif self.kind == "records" and code == 125 and any(
                words in self.errors() for words in NO_TRACE):
            # The program was not started, or has ended as natively.
            if self.told() and SECONDS.sub("", self.told()) != native_told:
                raise Broken(f"{who} said {self.told()!r}, natively {native_told!r}")
        else:
            raise Broken(f"{who} ended with {code}, natively {native_code}: "
                         f"{self.errors()[-2000:]}")


def command_of(world, kind):
    return [word.format(**world.programs) for word in shlex.split(KINDS[kind].command)]


def natively(world, kind):
    done = subprocess.run(command_of(world, kind), env=world.environment, capture_output=True,
                          text=True, stdin=subprocess.DEVNULL, check=False,
                          timeout=time_limit.time_limit(60))
    return done.returncode, SECONDS.sub("", done.stdout)


class Daemons:
    """Those of one socket. One of them answers; when several are started, one stays."""

    def __init__(self, world):
        self.world = world
        self.socket = world.directory / "run/s"
        self.file = world.directory / "vitamin.toml"
        self.log = world.directory / "daemon.log"
        self.running = {}  # process -> signals it was sent
        self.limited = set()  # processes whose limits were lowered
        self.retry_at = 0.0

    def start(self):
        self.file.write_text('policy.name = "random"\npolicy.parameters = { max_sms = 32 }\n')
        environment = self.world.environment | {"LD_PRELOAD": self.world.programs["clock"],
                                                "JUMPING_CLOCK": str(self.world.clock)}
        with open(self.log, "ab") as log:
            process = subprocess.Popen(
                [self.world.programs["vitamind"], "--socket", str(self.socket), "--config",
                 str(self.file), "--lock-directory", str(self.world.directory / "locks"),
                 "--quiet"],
                stdout=log, stderr=log, stdin=subprocess.DEVNULL, env=environment)
        self.running[process] = set()
        return process

    def any(self, chance):
        living = [process for process in self.running if process.poll() is None]
        return chance.choice(living) if living else None

    def send(self, process, number):
        self.running[process].add(number)
        send(process.pid, number)

    def answers(self):
        """Its status; None when there is none, or it takes long: a daemon may be stopped."""
        try:
            return harness.ask(self.socket, "status", plenty=0.1)
        except (OSError, ValueError):
            return None

    def check_ended(self):
        """Who ended by himself may have: a second one, or one that found no room."""
        for process in [p for p in self.running if p.poll() is not None]:
            sent, code = self.running.pop(process), process.returncode
            # 1: another one is there already, or there was no room for what it needs. 127: of the
            # loader, for which a limit came too early.
            if code == 127 and process in self.limited:
                code = 1
            if code != 1 and -code not in sent and not (code == 0 and signal.SIGTERM in sent):
                raise Broken(f"vitamind ended with {code}: {read(self.log)[-2000:].decode()}")
            if code == 1 and not self.running:
                self.retry_at = time.monotonic() + 0.2

    def look(self):
        self.check_ended()
        if not self.running and time.monotonic() >= self.retry_at:
            self.start()
