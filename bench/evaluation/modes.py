# SPDX-License-Identifier: Apache-2.0
"""The ways of sharing a GPU that are compared, and what each needs around the jobs.

A mode is a setting of processes (environment and what they are started under) and, for ours, the
policy of their vitamind. Modes of one setting share the processes: only the policy is changed, by
SIGHUP. `alone` means one job at a time.
"""

import contextlib
import dataclasses
import json
import os
import pathlib
import signal
import subprocess
import threading
import time

import harness
import load
import micro


HANGS_S = 120  # what vitamind has not done by then it never does


@dataclasses.dataclass(frozen=True)
class Answers:
    """Of a vitamind to signals to read its configuration again."""
    taken: int
    refused: int


@dataclasses.dataclass(frozen=True)
class Mode:
    name: str
    setting: str
    label: str
    alone: bool = False
    policy: str = ""  # of vitamind
    kill: bool = False  # one of the jobs ends by SIGKILL: the last cell of a setting


SETTINGS = {
    "native": "processes as they are",
    "mps": "under an MPS daemon",
    "mps50": "under MPS, CUDA_MPS_ACTIVE_THREAD_PERCENTAGE=50 for each job (mps25: 25)",
    "mps-priority": "under MPS, CUDA_MPS_CLIENT_PRIORITY 1 for the best-effort job, or the second",
    "ours-priority": "the same, with the priorities of mps-priority",
    "ours-equal": "the same, all of one priority",
    "in-process": "`vitamin run --policy fifo`, without MPS",
    "static": "under MPS, each job bound to fixed halves by `vitamin run --policy static`",
    "ours": "under MPS, `vitamin run --daemon` with one vitamind; best-effort jobs are MPS "
            "clients of the lower priority",
    "green": "a green context of 64 SMs is current, before libraries make their handles",
    "green-after": "the same, after that",
}
MODES = {m.name: m for m in (
    Mode("exclusive", "native", "each job alone, no Vitamin", alone=True),
    Mode("temporal", "native", "time-sliced by the driver, no MPS"),
    Mode("mps", "mps", "MPS default"),
    Mode("mps50", "mps50", "MPS, 50 % of the SMs each (changes bits)"),
    Mode("mps-priority", "mps-priority", "MPS with client priorities"),
    Mode("static", "static", "static green partition, 64 + 68 SMs"),
    Mode("ours", "ours", "Vitamin, throughput", policy="throughput"),
    Mode("ours-tpot-first", "ours", "Vitamin, tpot-first", policy="tpot-first"),
    Mode("ours-slo", "ours", "Vitamin, slo", policy="slo"),
    Mode("ours-parts", "ours", "Vitamin, the paper's Algorithm 1, always on parts",
         policy="throughput:model=algorithm1"),
    Mode("ours-fifo", "ours", "Vitamin, fifo", policy="fifo"),
    Mode("ours-static", "ours", "Vitamin's daemon, static partition", policy="static"),
    Mode("orion", "ours", "Orion's policy, from its description, on our mechanism",
         policy="orion"),
    Mode("salus", "ours", "Salus' policy, from its description, on our mechanism",
         policy="salus"),
    Mode("temporal-leases", "ours", "turns of 2 ms on our mechanism", policy="temporal"),
    Mode("ours-alone", "ours", "each job alone under Vitamin", alone=True, policy="throughput"),
    Mode("ours-priority", "ours-priority", "Vitamin, throughput, under MPS client priorities",
         policy="throughput"),
    Mode("ours-equal", "ours-equal", "Vitamin, throughput, MPS clients of one priority",
         policy="throughput"),
    Mode("ours-random", "ours", "Vitamin, a random part for every launch", policy="random"),
    Mode("ours-kill", "ours", "Vitamin, one job is killed", policy="throughput", kill=True),
    Mode("mps-kill", "mps", "MPS, one job is killed", kill=True),
    Mode("mps25", "mps25", "MPS, 25 % of the SMs each (changes bits)"),
    Mode("green", "green", "a green context of 64 SMs", alone=True),
    Mode("green-after", "green-after", "a green context of 64 SMs, libraries ready", alone=True),
    Mode("in-process", "in-process", "each job alone under `vitamin run`, no daemon, no MPS",
         alone=True),
    Mode("mps-alone", "mps", "each job alone under MPS", alone=True),
)}
# The paper's baselines that no mode stands for, and why.
MISSING = {
    "LithOS": "its scheduler is not public, and library kernels cannot be sliced from outside; "
              "what slicing and reshaping do to bits is in E1",
    "MIG": "needs the right to reconfigure the GPU",
    "stream priorities in one process": "two Python jobs there measure the interpreter's lock",
    "a serving engine of others": "vLLM and SGLang are not on the machine, none was tested; the "
                                  "decoder here is ours",
}


def mode(name):
    """MODES, and `ours:SPECIFICATION` for any policy, `static:UNITS+UNITS` for any partition."""
    if name in MODES:
        return MODES[name]
    head, _, rest = name.partition(":")
    if head == "ours" and rest:
        return Mode(name, "ours", f"Vitamin, {rest}", policy=rest)
    if head == "static" and rest.count("/") == 1:
        return Mode(name, name, f"static green partition, units {rest.replace('/', ' and ')}")
    raise harness.Refusal(f"there is no mode '{name}': {', '.join(MODES)}, ours:POLICY, "
                          "static:UNITS/UNITS")


def parts(policy):
    """Of a specification: its name, and its parameters in whatever order."""
    name, _, parameters = policy.partition(":")
    return name, sorted(parameters.split(","))


# Of workload, as vitamin.toml has them. "latency": as fast as it would be alone; "tokens": each
# within the target; "prompts": the first token within its target; "steps": each announced step
# within the target of its kind; "batch": best effort, and of MPS's lower priority; "plain": none of
# these.
CLASSES = {"latency": 'kind = "latency"\n', "tokens": 'kind = "latency"\ntpot = "{tpot}"\n',
           "prompts": 'kind = "latency"\nttft = "{ttft}"\n',
           "steps": 'kind = "latency"\nttft = "{ttft}"\ntpot = "{tpot}"\n'
                    'percentile = {percentile}\n',
           "batch": 'kind = "batch"\n', "plain": ""}
URGENT = ("latency", "tokens", "steps")  # before others, where a mode knows such a thing


class Daemon:
    """A vitamind of our own, its policy changed while it runs."""

    def __init__(self, directory, environment, slo=load.SLO["interactive"]):
        self.directory, self.socket = pathlib.Path(directory), f"{directory}/vitamind.sock"
        self.slo, self.percentile = slo, 99  # of the class "steps"
        self.file, self.policy = self.directory / "vitamin.toml", None
        self.environment = harness.environment_with(environment)
        self.process = None

    def _write(self, policy):
        name, _, parameters = policy.partition(":")
        pairs = [p.split("=", 1) for p in parameters.split(",") if p]
        quoted = ", ".join(f'{k} = {v if v.lstrip("-").isdigit() else json.dumps(v)}'
                           for k, v in pairs)
        ttft, tpot = (f"{1e3 * bound:g}ms" for bound in self.slo)
        self.file.write_text(
            f'[policy]\nname = "{name}"\nparameters = {{ {quoted} }}\n\n[mps]\nmode = "external"\n'
            + "".join(f'\n[[class]]\nname = "{class_}"\ncommand = ["no-program"]\n'
                      + more.format(ttft=ttft, tpot=tpot, percentile=self.percentile)
                      for class_, more in CLASSES.items()))

    def _log(self):
        return (self.directory / "vitamind.log").read_text(errors="replace")

    def start(self, policy):
        self.directory.mkdir(exist_ok=True)
        self._write(policy)
        self.policy = policy
        log = open(self.directory / "vitamind.log", "w")
        with harness.not_interrupted():
            self.process = subprocess.Popen(
                [str(harness.prefix() / "bin" / "vitamind"), "--socket", self.socket, "--config",
                 str(self.file), "--lock-directory", str(self.directory)], stdout=log, stderr=log,
                stdin=subprocess.DEVNULL, env=self.environment)
        limit = time.monotonic() + HANGS_S
        while not self.status():  # the socket is there a moment before vitamind listens
            if self.process.poll() is not None or time.monotonic() > limit:
                raise harness.Refusal("vitamind does not start: "
                                      + " / ".join(self._log().strip().splitlines()[-3:]))
            time.sleep(0.05)

    def status(self):
        """Empty where the daemon does not answer."""
        return self._ask("status")

    def explain(self):
        """Why each client has what it has; empty where the daemon does not answer."""
        return self._ask("explain")

    def _ask(self, verb):
        try:
            answer = subprocess.run(harness.vitamin(verb, "--socket", self.socket, "--json"),
                                    capture_output=True, text=True, timeout=HANGS_S,
                                    env=self.environment)
            return json.loads(answer.stdout)
        except (ValueError, OSError, subprocess.TimeoutExpired):
            return {}

    def use(self, policy):
        """Every device under this policy, or a Refusal. One that has no client yet takes that of
        the configuration with its first."""
        answers = self._answers()
        if policy != self.policy:
            self._write(policy)
            self.process.send_signal(signal.SIGHUP)
        limit = time.monotonic() + HANGS_S
        while True:
            devices, now = self.status().get("devices"), self._answers()
            if all(parts(d.get("policy", "")) == parts(policy) for d in devices or []) and \
                    devices is not None and (devices or policy == self.policy
                                             or now.taken > answers.taken):
                self.policy = policy
                return
            if now.refused > answers.refused or time.monotonic() > limit:
                raise self._not_taken(policy)
            time.sleep(0.05)

    def switch(self, policy, timeout=HANGS_S):
        """As use(), within about a millisecond: until the daemon has read its configuration again,
        without asking what its devices do. Its seconds."""
        begin, before = time.monotonic(), self._answers()
        self._write(policy)
        self.process.send_signal(signal.SIGHUP)
        while (now := self._answers()).taken == before.taken:
            if now.refused > before.refused or self.process.poll() is not None or \
                    time.monotonic() > begin + timeout:
                raise self._not_taken(policy)
            time.sleep(0.0002)
        self.policy = policy
        return time.monotonic() - begin

    def _answers(self):
        """How often the daemon has taken a configuration that it read again, and refused one."""
        log = self._log()
        return Answers(log.count("the configuration was read again"),
                       log.count("the configuration is invalid"))

    def _not_taken(self, policy):
        return harness.Refusal(f"vitamind does not take the policy '{policy}': "
                               + " / ".join(self._log().strip().splitlines()[-2:]))

    def run(self, class_):
        """What stands before a command that is to be a client."""
        return [*harness.vitamin("run", "--quiet", "--daemon", "--socket", self.socket, "--class",
                                 class_), "--"]

    def restart(self, policy):
        self.stop()
        self.start(policy)

    def stop(self):
        if self.process and self.process.poll() is None:
            self.process.terminate()
            try:
                self.process.wait(20)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()


class Watch:
    """What vitamind counted over a cell (its warm-up included), and the widths that were held at a
    few moments of it."""
    COUNTERS = ("requests", "grants", "moves", "gates_closed", "served_by_age", "overdue", "stale")

    def __init__(self, daemon, seconds, samples=6):
        self.daemon, self.pause = daemon, seconds / samples
        self.samples, self.stop = samples, threading.Event()
        self.held, self.groups, self.counted, self.explained = [], {}, [], {}

    @staticmethod
    def _sums(status):
        return status and {k: sum(d[k] for d in status["devices"]) for k in Watch.COUNTERS}

    def _look(self):
        for _ in range(self.samples):
            at = time.monotonic()
            status = self.daemon.status()
            for c in status.get("clients", []):
                try:  # a job and whatever it starts are a process group
                    self.groups[c["client"]] = os.getpgid(c["process"])
                except OSError:  # gone
                    continue
            self.held.append([round(at - self.begin, 3), [
                [h["client"], h["processors"], h["open"]]
                for d in status.get("devices", []) for h in d["held"]]])
            if self.stop.wait(self.pause):
                return

    def __enter__(self):
        self.counted = [self._sums(self.daemon.status())]
        self.begin = time.monotonic()
        self.thread = threading.Thread(target=self._look)
        self.thread.start()
        return self

    def __exit__(self, kind, *problem):
        self.stop.set()
        self.thread.join()
        if kind is None:
            self.counted.append(self._sums(self.daemon.status()))
            self.explained = self.daemon.explain()

    def record(self, processes):
        """`held`: [seconds, [[job, processors, open]]]; a job is its index in `processes` (those it
        was started as), or the client's number where it is none of them. `explain`: what the policy
        had measured by the end, and chose."""
        index = {c: processes.index(p) for c, p in self.groups.items() if p in processes}
        before, after = self.counted
        counted = {k: after[k] - before[k] for k in after} if before and after else None
        return {"counted": counted, "explain": self.explained,
                "held": [[at, [[index.get(c, f"client {c}"), *more] for c, *more in holds]]
                         for at, holds in self.held]}


@contextlib.contextmanager
def awake(cores):
    """A virtual machine's processor that sleeps takes long to wake, now more and now less. One that
    always has something to do, of the least priority, does not sleep. For the first `cores`."""
    keeper = None
    if cores:
        keeper = subprocess.Popen([harness.program("keep_awake"), f"0-{cores - 1}"],
                                  stdin=subprocess.PIPE)
    try:
        yield
    finally:
        if keeper:
            keeper.stdin.close()
            keeper.wait(10)


class Surroundings:
    """MPS and vitamind, each started when the first job needs it, ended with the run."""

    def __init__(self, directory, device, slo=load.SLO["interactive"]):
        """`slo`: the targets of the classes "prompts" and "tokens", in s."""
        self.directory, self.device, self.slo = pathlib.Path(directory), device, slo
        self.mps = self.daemon = None

    def __enter__(self):
        return self

    def __exit__(self, *problem):
        if self.daemon:
            self.daemon.stop()
        if self.mps:
            self.mps.__exit__(*problem)

    def _mps(self):
        if self.mps is None:
            self.mps = micro.Mps()
            self.mps.__enter__()
        if not self.mps.control:
            raise harness.Refusal("no MPS binary here (nvidia-cuda-mps-control)")
        if not self.mps.running:
            raise harness.Refusal("the MPS daemon does not start here")
        return dict(self.mps.environment)

    def base(self):
        if self.device != "soft":
            return {}
        soft = str(harness.prefix() / "lib" / "soft")
        return {"LD_LIBRARY_PATH": ":".join(filter(None, [soft, harness.library_path()])),
                "VITAMIN_SOFT_LEDGER": str(self.directory / "ledger")}

    def environment(self, setting):
        """Of a process of this setting, MPS started where it needs one."""
        return {**self.base(), **(self._mps() if setting.startswith("mps") else {})}

    def place(self, setting, index, class_, preferred=False):
        """Words before a job's command, and its environment. `index`: of the job in its pair;
        `class_`: one of CLASSES; `preferred`: it must not wait, or is the first of equals."""
        environment = self.base()
        if setting == "in-process":
            return [*harness.vitamin("run", "--quiet", "--policy", "fifo"), "--"], environment
        if setting == "native" or setting.startswith("green"):
            return [], environment
        if self.device != "soft" or setting.startswith("mps"):
            # Processes overlap on the software device as they are.
            environment.update(self._mps())
        if setting == "mps":
            return [], environment
        if setting in ("mps50", "mps25"):
            return [], {**environment, "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE": setting[3:]}
        if setting == "mps-priority":
            return [], {**environment, "CUDA_MPS_CLIENT_PRIORITY": "0" if preferred else "1"}
        if setting.startswith("static"):
            units = (setting.partition(":")[2] or "0-7/8-15").split("/")[index % 2]
            return [*harness.vitamin("run", "--quiet", "--policy", f"static:units={units}"),
                    "--"], environment
        if self.daemon is None:
            self.daemon = Daemon(self.directory, environment, self.slo)
            self.daemon.start("throughput")
        if setting == "ours-priority":
            environment["CUDA_MPS_CLIENT_PRIORITY"] = "0" if preferred else "1"
        if setting == "ours-equal":
            environment["CUDA_MPS_CLIENT_PRIORITY"] = "0"
        return self.daemon.run(class_), \
            {**environment, "VITAMIN_CONFIG": str(self.daemon.file)}

    def use(self, mode_):
        if mode_.policy:
            self.daemon.use(mode_.policy)

    def watch(self, mode_, seconds):
        """Around a cell: a Watch for a mode with vitamind, else nothing (None)."""
        return Watch(self.daemon, seconds) if mode_.policy else contextlib.nullcontext()
