# SPDX-License-Identifier: Apache-2.0
"""What sharing costs a program that is alone: E6, the dispatch of one matrix product; E8, chains of
short kernels; E7, the memory of a pool. Small programs of bench/programs; on the software device a
kernel of 0.2 ms stands for the product, and what needs contexts of the program's own is left
out."""

import contextlib
import dataclasses
import random

import harness
import modes
from processes import Job, JobFailed

SAMPLES, WARM = 20, 10  # of one turn
TURNS = 10  # of every arm, that make one round: a record of each
PROCESSORS = 132  # of an H100 or H200


@dataclasses.dataclass(frozen=True)
class Arm:
    name: str
    words: tuple = ()    # before the program
    more: tuple = ()     # behind it
    daemon: str = ""     # the policy of a vitamind of its own
    samples: int = SAMPLES
    apart: bool = False  # behind all others: it leaves the GPU idle, and its clock falls


def in_process(policy):
    return (*harness.vitamin("run", "--quiet", "--policy", policy), "--")


def arms(soft):
    anew = "random" if soft else f"random:min_sms={PROCESSORS},max_sms={PROCESSORS},whole=1"
    common = (Arm("native"), Arm("native again"),
              Arm("in process, one entry", in_process("fifo")),
              Arm("in process, anew each time", in_process(anew)),
              Arm("daemon, a standing grant", daemon="throughput"),
              Arm("daemon, asked each time", daemon=anew))
    if soft:
        return common
    whole = ("--units", "16")
    return (*common, Arm("flat pool", more=("--arm", "flat", *whole)),
            Arm("made on demand", more=("--arm", "on-demand", *whole), samples=SAMPLES // 4,
                apart=True))


class Dispatch:
    """E6: every arm is a resident process; turns of a few samples go through all of them, in
    another order each time (who comes behind whom shows by several per cent), so that each sees
    the same clocks. A round is the turns of one record."""
    name = "E6"
    subject = "GEMM 512 x 8192 x 28672"

    def __init__(self, session):
        self.session, self.options = session, session.options
        self.soft = self.options.device == "soft"

    def arms(self):
        return arms(self.soft)

    def program(self, arm):
        return [harness.program("occupy")] if self.soft else \
            [harness.program("gemm_samples"), *arm.more, "--resident"]

    def command(self, arm, turn):
        return f"samples {arm.samples} {WARM} " + \
            ("200000" if self.soft else "hash" if turn == 0 else "")

    def start(self, arm, stack):
        environment = self.session.surroundings.base()
        words = list(arm.words)
        if arm.daemon:
            name = f"{self.name}-{len(arm.name)}-{arm.name[-4:]}".replace(" ", "-")
            directory = f"{self.session.directory}/{name}"
            daemon = modes.Daemon(directory, environment)
            daemon.start(arm.daemon)
            stack.callback(daemon.stop)
            words = daemon.run("batch")
            environment = {**environment, "VITAMIN_CONFIG": str(daemon.file)}
        job = Job(arm.name, (), words, environment, self.program(arm))
        stack.callback(job.end)
        return job

    def run(self):
        s, o = self.session, self.options
        chosen, subject = self.arms(), self.subject
        todo = [r for r in range(o.rounds)
                if not all(s.is_done(self.name, subject, a.name, r) for a in chosen)]
        if not todo:
            return s.say(f"{self.name} {subject}: nothing left to run")
        s.cells += len(todo) * len(chosen)
        s.allow(10)
        jobs, broken = {}, {}
        with contextlib.ExitStack() as stack:
            for arm in chosen:
                try:
                    jobs[arm.name] = self.start(arm, stack)
                except (harness.Refusal, OSError) as error:
                    broken[arm.name] = str(error)
            for name, job in list(jobs.items()):
                try:
                    job.wait_ready(60)
                except JobFailed as error:
                    broken[name] = str(error)
                    del jobs[name]
            s.say(f"{self.name} {subject}: {len(jobs)} programs ready")
            for part in (False, True):
                self.rounds(todo, [a for a in chosen if a.apart is part], jobs, broken)

    def rounds(self, todo, chosen, jobs, broken):
        s = self.session
        for r in todo if chosen else ():
            begin, found = s.elapsed(), {arm.name: {} for arm in chosen}
            s.allow(2)
            for turn in range(2 if self.soft else TURNS):
                order = list(chosen)
                random.Random(f"{r} {turn}").shuffle(order)
                for arm in order:
                    self.turn(arm, jobs.get(arm.name), turn, found[arm.name], broken)
            for arm in chosen:
                s.add(self.name, self.subject, arm.name, r,
                      {"ok": False, "why": broken[arm.name]} if arm.name in broken else
                      {"ok": True, **found[arm.name]})
            if r % 10 == 0 or r == todo[-1]:
                s.say(f"{self.name} {self.subject}: round {r}",
                      (todo[-1] - r) * (s.elapsed() - begin))

    def turn(self, arm, job, turn, found, broken):
        if arm.name in broken:
            return
        try:
            answer = job.ask_text(self.command(arm, turn), 60)
        except JobFailed as error:
            broken[arm.name] = str(error)
            return
        for key, value in answer.items():
            found[key] = found.get(key, []) + value if isinstance(value, list) else value


class Chain(Dispatch):
    """E8: 1,000 kernels, each behind the one before, of about so many microseconds alone."""
    name = "E8"
    LENGTHS = {2: 750, 5: 2300, 20: 9800}  # us: multiplications in a row of each thread

    def __init__(self, session, length):
        super().__init__(session)
        self.length, self.subject = length, f"{length}-us chain"

    def arms(self):
        entry = "static:units=0" if self.soft else "static:units=0-7"
        return (Arm("native"), Arm("native again"),
                Arm("whole device (fifo)", in_process("fifo")),
                Arm("one entry, 64 SMs", in_process(entry)),
                Arm("a move every 4", in_process("random:every=4,min_sms=16")),
                Arm("a move every time", in_process("random:min_sms=16")),
                Arm("daemon, a standing grant", daemon="throughput"))

    def program(self, arm):
        return [harness.program("occupy")]

    def command(self, arm, turn):
        return f"chain {100 if self.soft else 1000} {self.LENGTHS[self.length]} 8 " \
            f"{1000 * self.length}"


class Memory:
    """E7: what a pool holds, each time in a process of its own, nothing else on the device."""
    name = "E7"
    subject = "pool"

    def __init__(self, session):
        self.session, self.options = session, session.options

    def arms(self):
        """name, surroundings ("mps" or not), words before the program, words behind it"""
        ours = (*harness.vitamin("run", "--quiet", "--policy", "fifo"), "--")
        yield "native", "", (), ()
        yield "vitamin", "", ours, ()
        for count in (8, 16, 32, 59, 127, 208):
            yield f"flat pool, {count}", "", (), ("--kind", "green", "--entries", str(count))
        yield "a client of MPS", "mps", (), ()
        yield "a client of MPS, vitamin", "mps", ours, ()
        for count in (8, 16, 32, 59):
            yield f"MPS-Pool, {count}", "mps", (), ("--kind", "mps", "--entries", str(count))

    def run(self):
        s, o = self.session, self.options
        chosen = list(self.arms())
        todo = [r for r in range(o.repeats)
                if not all(s.is_done(self.name, self.subject, a[0], r) for a in chosen)]
        if not todo:
            return s.say("E7: nothing left to run")
        s.cells += len(todo) * len(chosen)
        served = False
        for r in todo:
            for name, around, words, more in chosen:
                s.allow(2)
                try:
                    environment = s.surroundings.environment("mps" if around else "native")
                    command = [*words, harness.program("pool_memory"), *more]
                    if around and not served:
                        harness.run(command, 60, environment)  # starts the server, which stays
                        served = True
                    result = harness.run(command, 60, environment)
                    line = next((x for x in result.lines if x.get("name") == "pool"), None)
                    if not result.ok or line is None:
                        raise harness.Refusal(result.why() or "it said nothing")
                    record = {"ok": True, **line}
                    words_ = f"{line['used_mib']:.0f} MiB in use, {line['resident_mib']:.0f} " \
                        f"resident, {line['entries']} entries of its own"
                except harness.Refusal as error:
                    record, words_ = {"ok": False, "why": str(error)}, str(error)
                s.add(self.name, self.subject, name, r, record)
                s.say(f"E7 {name} {r}: {words_}")
