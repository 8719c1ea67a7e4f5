# SPDX-License-Identifier: Apache-2.0
"""What the scripts of the evaluation share.

Where the installed tree is, where the machine's CUDA libraries are, how a command is run (a time
limit, its own process group, its JSON lines), and how results are written: one JSON object a line,
the first of them a header that says what was run on which machine and which commit.
"""

import datetime
import contextlib
import fcntl
import json
import os
import pathlib
import shlex
import shutil
import signal
import site
import socket
import subprocess
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent


class Refusal(Exception):
    """What makes a run impossible, as a sentence for the user who started it."""


def prefix():
    """The tree that `cmake --install` made: $VITAMIN_PREFIX, or dist/ beside bench/."""
    return pathlib.Path(os.environ.get("VITAMIN_PREFIX", ROOT / "dist")).resolve()


def program(name):
    return str(prefix() / "libexec" / "vitamin" / "bench" / name)


def vitamin(*words):
    return [str(prefix() / "bin" / "vitamin"), *words]


def free_port():
    """Free when it was looked for."""
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return one.getsockname()[1]


def library_path():
    """Directories of cuBLAS, cuDNN, cuFFT, NVRTC, CUDA's runtime: pip's wheels, then a toolkit."""
    places = [*site.getsitepackages(), site.getusersitepackages(), *sys.path]
    roots = [pathlib.Path(p) for p in places if p]
    found = []
    for root in roots:
        for directory in [*sorted(root.glob("nvidia/*/lib")), *sorted(root.glob("nvidia/*/lib64"))]:
            if directory not in found:
                found.append(directory)
    for toolkit in [os.environ.get("CUDA_HOME"), "/usr/local/cuda"]:
        if toolkit and (pathlib.Path(toolkit) / "lib64").is_dir():
            found.append(pathlib.Path(toolkit) / "lib64")
    inherited = os.environ.get("LD_LIBRARY_PATH")
    return ":".join([*map(str, found), *([inherited] if inherited else [])])


class Result:
    """How one command ended."""

    def __init__(self, command, code, output, errors, seconds, timed_out):
        self.command, self.code = command, code
        self.output, self.errors = output, errors
        self.seconds, self.timed_out = seconds, timed_out
        self.lines = []
        for line in output.splitlines():
            if line.startswith("{"):
                try:
                    self.lines.append(json.loads(line))
                except ValueError:
                    pass

    @property
    def ok(self):
        return self.code == 0 and not self.timed_out

    def why(self):
        if self.ok:
            return ""
        tail = (self.errors.strip() or self.output.strip()).splitlines()[-3:]
        head = "no answer in time" if self.timed_out else f"exit code {self.code}"
        return head + (": " + " / ".join(tail) if tail else "")

    def hashes(self):
        return [(line["name"], line["hash"]) for line in self.lines if "hash" in line]


def answers_by_lines():
    """A function that writes a record as a line of this process's output. What libraries print
    goes to the errors from now on: it must not be taken for answers."""
    output = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)

    def answer(record):
        output.write(json.dumps(record) + "\n")
        output.flush()
    return answer


class Output:
    """What a program says, given to it as its output, that can be read while it runs. The program
    shares the place in the file with the script that reads it, so what it writes is appended."""

    def __init__(self):
        self._file = tempfile.TemporaryFile("w+", errors="replace")
        flags = fcntl.fcntl(self._file, fcntl.F_GETFL)
        fcntl.fcntl(self._file, fcntl.F_SETFL, flags | os.O_APPEND)

    def fileno(self):
        return self._file.fileno()

    def text(self):
        self._file.seek(0)
        return self._file.read()

    def lines(self):
        """Its JSON lines; the last line, where it is not whole yet, is left out."""
        return [json.loads(line) for line in self.text().split("\n")[:-1] if line.startswith("{")]


def environment_with(changes):
    """The environment of a command: ours, where the libraries are, and the changes."""
    return {**os.environ, "LD_LIBRARY_PATH": library_path(), "PYTHONUNBUFFERED": "1",
            "HF_HUB_OFFLINE": "1", **(changes or {})}


class Interruption:
    """Whether SIGTERM or ^C came. Python drops the exception of a signal handler that runs in a
    destructor, and code that is interrupted may raise another one in its place."""
    came = held = pending = False


def _interrupt(*_):
    """Once: what ends jobs and daemons is not interrupted."""
    if Interruption.came:
        return
    Interruption.came, Interruption.pending = True, Interruption.held
    if not Interruption.held:
        raise KeyboardInterrupt


@contextlib.contextmanager
def not_interrupted():
    """While a process is started: an interruption comes at the end of it, when the process is known
    and can be ended."""
    Interruption.held = True
    try:
        yield
    finally:
        Interruption.held = False
    if Interruption.pending:
        Interruption.pending = False
        raise KeyboardInterrupt


def check_interruption():
    """Between two measurements: a KeyboardInterrupt that was dropped."""
    if Interruption.came:
        raise KeyboardInterrupt


@contextlib.contextmanager
def interruptible():
    """Within it SIGTERM and ^C are a KeyboardInterrupt, at the latest at its end, whatever came of
    it: jobs, vitamind and MPS are ended on the way out, results stay."""
    # One that is ignored stays so: ^C in a terminal is not meant for what runs in the background.
    before = {number: signal.signal(number, _interrupt)
              for number in (signal.SIGTERM, signal.SIGINT)
              if signal.getsignal(number) not in (signal.SIG_IGN, None)}
    try:
        yield
    except BaseException as error:
        if not Interruption.came:
            raise
        raise KeyboardInterrupt from error
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    check_interruption()


def run(command, timeout, environment=None, cpus=None):
    """Runs a command; never raises for what the command does. A command that takes too long is
    killed with everything it started."""
    env = environment_with(environment)
    if cpus and shutil.which("taskset"):
        command = ["taskset", "-c", cpus, *command]
    begin = time.monotonic()
    with tempfile.TemporaryFile("w+", errors="replace") as out, \
            tempfile.TemporaryFile("w+", errors="replace") as err:
        process, timed_out = None, False
        try:
            with not_interrupted():
                process = subprocess.Popen(command, stdout=out, stderr=err, env=env,
                                           stdin=subprocess.DEVNULL, start_new_session=True)
            code = process.wait(timeout)
        except BaseException as ended:  # also of this script: it leaves nothing on the device
            if process is None:
                if isinstance(ended, OSError):
                    return Result(command, 127, "", str(ended), 0.0, False)
                raise
            timed_out = isinstance(ended, subprocess.TimeoutExpired)
            with contextlib.suppress(ProcessLookupError):  # wait() has seen its end meanwhile
                os.killpg(process.pid, signal.SIGKILL)
            code = process.wait()
            if not timed_out:
                raise
        seconds = time.monotonic() - begin
        out.seek(0), err.seek(0)
        return Result(command, code, out.read(), err.read(), seconds, timed_out)


def under_vitamin(command, policy, report=None, strict=False, seed=None, window=None):
    words = ["run", "--policy", policy]
    if seed is not None:
        words += ["--seed", str(seed)]
    if window is not None:
        words += ["--window", str(window)]
    if strict:
        words.append("--strict")
    if report:
        words += ["--report", str(report)]
    return [*vitamin(*words), "--", *command]


def read_report(path):
    try:
        return json.loads(pathlib.Path(path).read_text())
    except (OSError, ValueError):
        return None


def coverage(report):
    """The numbers of a coverage report that the tables show, or None."""
    if not report:
        return None
    launches = report["totals"]["launches"]
    seen = report["coverage"]["launches"]
    share = lambda part, whole: part / whole if whole else None
    return {
        "launches": seen,
        "bound": launches["bound"],
        "bound_share": share(launches["bound"], seen),
        "narrow_share": share(launches["narrow"], launches["narrow_eligible"]),
        "moved_share": share(launches["moved"], launches["successors"]),
        "whole_device": report["totals"]["whole_device"],
        "not_bound": report["totals"]["not_bound"],
        "libraries": report["totals"]["libraries"],
        "widths": report["totals"]["widths"],
        "edges": report["totals"]["other"]["edges"],
        "graph_launches": report["totals"]["other"]["graph_launches"],
        "graphs": report["totals"]["graphs"],
        "deferred": launches["deferred"],
        "pools": [d["pool"] for p in report["processes"] for d in p["devices"]],
        "warnings": [w for p in report["processes"] for w in p["warnings"]],
        "problem": report["problem"],
    }


def _answer(command):
    try:
        return subprocess.run(command, capture_output=True, text=True, timeout=20,
                              cwd=ROOT).stdout.strip()
    except (OSError, subprocess.SubprocessError):
        return ""


def header():
    stamp = prefix() / "share" / "vitamin" / "commit"
    commit = stamp.read_text().strip() if stamp.exists() else _answer(["git", "rev-parse", "HEAD"])
    gpu = _answer(["nvidia-smi", "--query-gpu=name,driver_version", "--format=csv,noheader"])
    name, _, driver = (gpu.splitlines() or [""])[0].partition(", ")
    model = ""
    try:
        for line in pathlib.Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                model = line.partition(":")[2].strip()
                break
    except OSError:
        pass
    script = pathlib.Path(sys.argv[0]).resolve()
    script = script.relative_to(ROOT) if script.is_relative_to(ROOT) else script.name
    return {
        "command": shlex.join([str(script), *sys.argv[1:]]),
        "commit": commit or "unknown",
        "gpu": name or "none",
        "driver": driver or "none",
        "cpu": f"{model}, {os.cpu_count()} threads",
        "date": datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%d %H:%M UTC"),
    }


class Results:
    """DIR/NAME.jsonl: the header, then one object a line, each written at once. `more` keeps what
    is there, and a further header begins what this command adds."""

    def __init__(self, directory, name, more=False):
        directory = pathlib.Path(directory)
        directory.mkdir(parents=True, exist_ok=True)
        self.path = directory / f"{name}.jsonl"
        self._file = open(self.path, "a" if more else "w")
        self.add({"header": header()})

    def add(self, record):
        # Commands as one types them in the repository: where things lie on a machine is no result.
        line = json.dumps(record).replace(f"{ROOT}/", "").replace(sys.executable, "python3")
        self._file.write(line + "\n")
        self._file.flush()


def default_output():
    return os.environ.get("OUT", str(ROOT / "bench" / "results"))


def median(values):
    values = sorted(values)
    if not values:
        return None
    middle = len(values) // 2
    return values[middle] if len(values) % 2 else (values[middle - 1] + values[middle]) / 2


def table(rows, headings):
    """A plain text table; numbers are the caller's to format."""
    cells = [[str(c) for c in row] for row in [headings, *rows]]
    widths = [max(len(row[i]) for row in cells) for i in range(len(headings))]
    lines = ["  ".join(c.ljust(w) for c, w in zip(row, widths)).rstrip() for row in cells]
    return "\n".join([lines[0], "  ".join("-" * w for w in widths), *lines[1:]])


def percent(share):
    if share is None:
        return "-"
    return "100 %" if share == 1 else f"{100 * share:.2f} %"
