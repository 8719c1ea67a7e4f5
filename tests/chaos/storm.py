# SPDX-License-Identifier: Apache-2.0
"""A storm: programs under `vitamin run`, daemons, and what happens to them, drawn from a seed.

Three tables say everything: KINDS of clients with what they run (world.py), EVENTS with what each
injects and how it is undone, and the checks of `Storm.calm`, which say what must be as before when
the storm is over. The sequence of events is the seed's; which client an event meets, and when, is
also the machine's.
"""
import collections
import contextlib
import ctypes
import heapq
import os
import random
import resource
import shutil
import signal
import socket
import subprocess
import time

import hang
import harness
import holds
import time_limit
from world import (Broken, Client, Daemons, KINDS, children, descriptors, natively,
                   number_in_status, read, send, state_of)

PR_SET_CHILD_SUBREAPER = 36
# What an undisturbed program takes, on an idle machine with four of them.
USUAL_SECONDS = 20
CLIENTS = 4
EVENTS = {}


def event(weight, needs=None):
    """A method of Storm that makes something happen, and returns how it is undone, or None; what
    it answers False to did not happen. `needs`: an attribute of World that must be true."""
    def register(method):
        EVENTS[method.__name__] = (weight, needs, method)
        return method
    return register


class Storm:
    def __init__(self, world, seed, say=None):
        self.world, self.seed = world, seed
        (world.directory / "clients").mkdir(exist_ok=True)
        ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
        self.begin = time.monotonic()
        self.say = say
        self.happened = []
        self.counts = collections.Counter()
        self.undos = []  # (when, number, words, how)
        self.clients, self.ended, self.number = [], 0, 0
        self.looks = 0  # at leases, while programs ran
        self.hostile = []  # processes without any promise
        self.kinds = [name for name, kind in KINDS.items()
                      if not kind.needs or getattr(world, kind.needs, False)]
        self.native = {}  # kind -> its exit code and output
        self.daemons = Daemons(world)
        self.before = {}

    # What happens.

    @event(30)
    def start_client(self, chance):
        if len(self.clients) >= CLIENTS:
            return False
        self.number += 1
        client = self.client(self.number, chance.choice(self.kinds), chance)
        self.note(f"client {client.number} is {client.kind}, process {client.process.pid}")
        self.clients.append(client)
        return None

    def client(self, number, kind, chance):
        if kind not in self.native:
            self.continue_clients()
            self.native[kind] = natively(self.world, kind)
        return Client(self.world, number, kind, self.daemons.socket, chance)

    def continue_clients(self):
        """A stopped one may hold a lock of the software driver, which other programs need."""
        for client in self.clients:
            for pid in (client.process.pid, client.program()):
                if pid is not None:
                    send(pid, signal.SIGCONT)

    def signal_client(self, chance, number):
        if not self.clients:
            return None
        client = chance.choice(self.clients)
        program = client.program()
        whom = chance.choice([[client.process.pid], [program], [client.process.pid, program],
                              [program, client.process.pid]])
        whom = [pid for pid in whom if pid is not None]
        for pid in whom:
            send(pid, number)
        self.note(f"signal {int(number)} to {whom} of client {client.number}")
        return client, whom

    @event(4)
    def kill_client(self, chance):
        found = self.signal_client(chance, signal.SIGKILL)
        if found is None:
            return False
        found[0].signals.add(signal.SIGKILL)
        return None

    @event(4)
    def end_client(self, chance):
        number = chance.choice([signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
        found = self.signal_client(chance, number)
        if found is None:
            return False
        found[0].signals.add(number)
        return None

    @event(12)
    def stop_client(self, chance):
        number = chance.choice([signal.SIGSTOP, signal.SIGSTOP, signal.SIGTSTP])
        found = self.signal_client(chance, number)
        if found is None:
            return False
        client, whom = found

        def go_on():
            for pid in chance.sample(whom, len(whom)):
                send(pid, signal.SIGCONT)
            client.started = time.monotonic()
        return go_on

    @event(3)
    def kill_daemon(self, chance):
        process = self.daemons.any(chance)
        if process is None:
            return False
        self.daemons.send(process, signal.SIGKILL)
        return None

    @event(3)
    def end_daemon(self, chance):
        process = self.daemons.any(chance)
        if process is None:
            return False
        self.daemons.send(process, signal.SIGTERM)
        return None

    @event(4)
    def stop_daemon(self, chance):
        process = self.daemons.any(chance)
        if process is None:
            return False
        send(process.pid, signal.SIGSTOP)

        def go_on():
            send(process.pid, signal.SIGCONT)
            for client in self.clients:
                client.started = time.monotonic()
        return go_on

    @event(3)
    def race_daemons(self, chance):
        process = self.daemons.any(chance)
        if process is not None and chance.random() < 0.5:
            self.daemons.send(process, chance.choice([signal.SIGKILL, signal.SIGTERM]))
        for _ in range(chance.randrange(1, 3)):
            self.daemons.start()

    @event(2)
    def lose_socket(self, chance):
        with contextlib.suppress(OSError):
            self.daemons.socket.unlink()
        # No client finds the daemons that listened there: their operator has to end them.
        for process in list(self.daemons.running):
            self.daemons.send(process, signal.SIGTERM)
        self.daemons.start()

    @event(5)
    def reload_valid(self, chance):
        policy, parameters = chance.choice([
            ("fifo", ""), ("random", "max_sms = 16"), ("throughput", ""), ("static", "parts = 2"),
            ("tpot-first", "")])
        classes = ('[[class]]\nname = "one"\ncommand = "demo-train"\nshare = 50\n'
                   if chance.random() < 0.3 and policy == "throughput" else "")
        self.reload(f'policy.name = "{policy}"\n'.encode()
                    + (f"policy.parameters = {{ {parameters} }}\n" if parameters else "").encode()
                    + classes.encode())

    @event(3)
    def reload_invalid(self, chance):
        self.reload(chance.choice([
            b"", b"policy.name = \"no-such\"\n", b"[[[", b"pool.leaf_units = 0\n",
            chance.randbytes(chance.randrange(1, 5000)), b"a = [" * 5000,
            b"daemon.clients = -1\n", b"policy = 1e999\n"]))

    def reload(self, text):
        self.daemons.file.write_bytes(text)
        for process in self.daemons.running:
            # One that has not begun to read signals is ended by this one, as any program is.
            if harness.signal_is_expected(process.pid, signal.SIGHUP):
                send(process.pid, signal.SIGHUP)

    @event(3)
    def drain(self, chance):
        self.tool("drain")
        return lambda: self.tool("resume")

    @event(4)
    def ask(self, chance):
        self.tool(chance.choice(["status", "status --json"]))

    def tool(self, words):
        done = subprocess.run(
            [self.world.programs["vitamin"], *words.split(), "--socket",
             str(self.daemons.socket)], env=self.world.environment, capture_output=True,
            text=True, stdin=subprocess.DEVNULL, check=False,
            timeout=time_limit.time_limit(15))
        lines = done.stderr.splitlines()
        if done.returncode != 0 and (len(lines) != 1 or "[VIT-" not in lines[0]):
            raise Broken(f"vitamin {words} ended with {done.returncode}: {done.stderr!r}")

    @event(8, needs="full")
    def fill_place(self, chance):
        name = chance.choice(sorted(self.world.places))
        self.note(f"the place is {name}")
        return self.world.places[name].fill(names=chance.random() < 0.5)

    @event(3)
    def few_descriptors(self, chance):
        process = self.daemons.any(chance)
        return process is not None and self.limit(
            process, resource.RLIMIT_NOFILE, descriptors(process.pid) + chance.randrange(4))

    @event(2)
    def small_files(self, chance):
        process = self.daemons.any(chance)
        return process is not None and self.limit(process, resource.RLIMIT_FSIZE,
                                                  chance.choice([0, 1000, 100_000]))

    def limit(self, process, what, value):
        try:
            before = resource.prlimit(process.pid, what)
            resource.prlimit(process.pid, what, (value, before[1]))
            self.daemons.limited.add(process)
        except OSError:
            return False

        def undo():
            with contextlib.suppress(OSError):
                resource.prlimit(process.pid, what, before)
        return undo

    @event(6)
    def odd_connections(self, chance):
        made = []
        for _ in range(chance.choice([1, 5, 80])):
            connection = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            connection.setblocking(False)
            with contextlib.suppress(OSError):
                connection.connect(str(self.daemons.socket))
                match chance.randrange(4):
                    case 0:
                        connection.send(b"vitamin\0"[:chance.randrange(1, 9)])
                    case 1:
                        connection.send(chance.randbytes(chance.randrange(1, 3000)))
                    case 2:
                        files = [0] * chance.randrange(1, 200)
                        socket.send_fds(connection, [chance.randbytes(100)], files)
            made.append(connection)
        return lambda: [connection.close() for connection in made]

    @event(3)
    def hostile_client(self, chance):
        program, verb = chance.choice([("member", "scribble"), ("attacker", "press"),
                                       ("attacker", "scribble"), ("attacker", "crowd"),
                                       ("member", "hold"), ("member", "work")])
        process = subprocess.Popen(
            [self.world.programs[program], str(self.daemons.socket), verb, "300"],
            start_new_session=True, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL, env=self.world.environment)
        self.note(f"it is {program} {verb}")
        self.hostile.append(process)

        def end():
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            self.hostile.remove(process)
        return end

    @event(3)
    def busy_loop(self, chance):
        process = subprocess.Popen(["sh", "-c", "while :; do :; done"], start_new_session=True)
        self.hostile.append(process)

        def end():
            process.kill()
            process.wait()
            self.hostile.remove(process)
        return end

    @event(4)
    def jump_clock(self, chance):
        temporary = self.world.directory / "clock.new"
        temporary.write_text(str(chance.choice([-1, 1]) * chance.choice([1, 3600, 10 ** 9])))
        temporary.rename(self.world.clock)

    # The storm.

    def note(self, words):
        line = f"{time.monotonic() - self.begin:8.3f} {words}"
        self.happened.append(line)
        if self.say:
            self.say(line)

    def happen(self, index):
        """The event of this number; nothing else draws from its chance."""
        chance = random.Random(f"{self.seed}:{index}")
        usable = {name: (weight, method) for name, (weight, needs, method) in EVENTS.items()
                  if needs is None or getattr(self.world, needs)}
        name, = chance.choices(list(usable), [weight for weight, _ in usable.values()])
        lasts = chance.uniform(0, 1.5)
        self.note(f"{index}: {name}")
        undo = usable[name][1](self, chance)
        if undo is False:
            return
        self.counts[name] += 1
        if undo is not None:
            heapq.heappush(self.undos, (time.monotonic() + lasts, index, name, undo))

    def undo(self, until):
        while self.undos and self.undos[0][0] <= until:
            _, index, name, undo = heapq.heappop(self.undos)
            self.note(f"{index}: {name} is over")
            undo()

    def look(self):
        """Who ended, and whether as he may; who should have."""
        self.daemons.look()
        for client in [c for c in self.clients if c.process.poll() is not None]:
            self.clients.remove(client)
            client.check(self.native[client.kind])
            shutil.rmtree(self.world.directory / "trace" / str(client.number), ignore_errors=True)
            self.ended += 1
        for client in self.clients:
            seconds = time.monotonic() - client.started
            if seconds > time_limit.time_limit(USUAL_SECONDS):
                raise Broken(f"client {client.number} ({client.kind}) has not ended after "
                             f"{seconds:.0f} s: {self.processes_of(client)}")
        status = self.daemons.answers() if self.counts.total() % 16 == 0 else None
        self.looks += status is not None
        for device in (status or {}).get("devices", ()):
            if twice := list(holds.held_twice(device)):
                raise Broken(f"two clients hold one unit: {twice}")
        self.reap()

    def processes_of(self, client):
        pids = [client.process.pid, *children(client.process.pid)]
        return [(pid, state_of(pid), read(f"/proc/{pid}/cmdline").replace(b"\0", b" ")[:80])
                for pid in pids]

    def reap(self):
        """Descendants whose parent was killed come to us when they end."""
        known = {c.process.pid for c in self.clients} | {p.pid for p in self.hostile}
        known |= {process.pid for process in self.daemons.running}
        for child in children(os.getpid()):
            if child not in known and state_of(child) == "Z":
                with contextlib.suppress(ChildProcessError):
                    os.waitpid(child, os.WNOHANG)

    def run(self, seconds=0, events=0, ends=0):
        """For that long, and that many, and until so many clients have ended and leases were
        looked at, however slow the machine is."""
        try:
            self.before = self.measure()
            self.begin = time.monotonic()
            index, due = 0, 0.0
            rhythm = random.Random(self.seed)
            while ((now := time.monotonic()) < self.begin + seconds or index < events
                   or ends > 0 and (self.ended <= ends or self.looks == 0)):
                self.undo(now)
                self.look()
                if now >= due:
                    self.happen(index)
                    index += 1
                    due = now + rhythm.expovariate(1 / 0.15)
                time.sleep(0.02)
            self.note("calm")
            self.calm()
        except Exception as problem:
            self.end()
            raise Broken(self.account(problem)) from problem
        self.end()

    def calm(self):
        """Everything is undone, every process ends, and everything is as it was."""
        self.undo(float("inf"))
        while self.clients or self.hostile:
            self.look()
            time.sleep(0.02)
        self.end_daemons()
        after = self.measure()
        for name, value in after.items():
            before = self.before[name]
            if value > before + (16 << 10 if name.endswith("KiB") else 0) if \
                    isinstance(value, int) else value != before:
                raise Broken(f"{name}: {value} after the storm, {before} before it")

    def measure(self):
        """A calm client of a fresh daemon, then of the same: what is there, and what is left."""
        self.world.clock.write_text("0")
        time_limit.wait_until(lambda: self.daemons.look() or self.daemons.answers(),
                              "vitamind's answer")
        for _ in range(2):
            client = self.client(0, "quick", random.Random(0))
            client.process.wait(time_limit.time_limit(USUAL_SECONDS))
            client.check(self.native["quick"])
        daemon = next(iter(self.daemons.running))
        time_limit.wait_until(lambda: not (self.daemons.answers() or {"clients": 1})["clients"],
                              "the end of every session")
        status = time_limit.wait_until(self.daemons.answers, "vitamind's status")
        measured = {
            "leases held": [device["held"] for device in status["devices"]],
            "descriptors of vitamind": self.settled_descriptors(daemon),
            "threads of vitamind": number_in_status(daemon.pid, "Threads"),
            "memory of vitamind in KiB": number_in_status(daemon.pid, "VmRSS"),
            "memories shared with clients": read(f"/proc/{daemon.pid}/maps").count(b"memfd:"),
        }
        self.daemons.send(daemon, signal.SIGTERM)
        if daemon.wait(time_limit.time_limit(10)) != 0:
            raise Broken(f"vitamind ended with {daemon.returncode}")
        del self.daemons.running[daemon]
        try:
            time_limit.wait_until(self.is_alone, "the end of every process")
        except AssertionError as problem:
            raise Broken("\n".join(map(self.account_of, children(os.getpid())))) from problem
        inodes = {str(path.stat().st_ino) for path in (self.world.directory / "locks").iterdir()}
        locks = [line for line in read("/proc/locks").decode().splitlines()
                 if line.split()[-3].rpartition(":")[2] in inodes]
        return measured | {
            "descriptors of this process": descriptors(os.getpid()),
            "locks held": locks,
            "directories of runs": self.files("run", "vitamin-run-*"),
            "sockets": self.files("run", "s"),
            "shared memory": sorted(os.listdir("/dev/shm")) if self.world.root else [],
        }

    def settled_descriptors(self, daemon):
        """Connections that ended, ours among them, are closed when the daemon gets to it."""
        few, limit = descriptors(daemon.pid), time.monotonic() + time_limit.time_limit(5)
        wanted = self.before.get("descriptors of vitamind", 0)
        calm = time.monotonic() + 0.5
        while time.monotonic() < (limit if wanted and few > wanted else calm):
            few = min(few, descriptors(daemon.pid))
            time.sleep(0.002)
        return few

    def end_daemons(self):
        """Ours, and those that a `vitamin run` started, which wait half a minute for others."""
        for process in self.daemons.running:
            self.daemons.send(process, signal.SIGTERM)
            process.wait(time_limit.time_limit(10))
        self.daemons.check_ended()
        # One of those still listens at the socket, and would be measured for ours.
        time_limit.wait_until(self.end_foreign_daemons, "the end of every other vitamind")

    def end_foreign_daemons(self):
        """True when there is none."""
        self.reap()
        # Between fork() and exec() it is still named as the `vitamin run` that starts it.
        foreign = [child for child in children(os.getpid())
                   if read(f"/proc/{child}/cmdline").split(b"\0")[0].endswith((b"/vitamind",
                                                                              b"/vitamin"))]
        for child in foreign:
            send(child, signal.SIGTERM)
        return not foreign

    def account_of(self, pid):
        words = read(f"/proc/{pid}/cmdline").replace(b"\0", b" ").decode(errors="replace")
        return f"process {pid} ({words}) has not ended: {state_of(pid)}\n{hang.stacks_of(pid)}"

    def is_alone(self):
        # `vitamin run` hands SIGTSTP on: when it is killed then, its program stays stopped.
        for child in children(os.getpid()):
            send(child, signal.SIGCONT)
        self.reap()
        return not children(os.getpid())

    def files(self, place, pattern):
        return sorted(path.name for path in (self.world.directory / place).glob(pattern))

    def end(self):
        """Whatever is still there."""
        with contextlib.suppress(Exception):
            self.undo(float("inf"))
        for process in [*self.hostile, *self.daemons.running, *(c.process for c in self.clients)]:
            process.kill()
            process.wait()
        for _ in range(200):
            for child in children(os.getpid()):
                send(child, signal.SIGKILL)
                with contextlib.suppress(ChildProcessError):
                    os.waitpid(child, 0)
            if not children(os.getpid()):
                break

    def account(self, problem):
        lines = ["what happened:", *self.happened[-300:],
                 "the daemons' last lines:",
                 read(self.daemons.log)[-3000:].decode(errors="replace"),
                 f"seed {self.seed}, repeat with VITAMIN_TEST_SEED={self.seed}",
                 f"{type(problem).__name__}: {problem}"]
        return "\n".join(lines)
