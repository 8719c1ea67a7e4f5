# SPDX-License-Identifier: Apache-2.0
"""ROCm's own tests over the software AMD GPU: each bare and under `vitamin run`.

    git clone --branch rocm-5.4.x https://github.com/ROCm/hip-tests
    hip_tests.py hip-tests --build build/release --objects DIRECTORY [--units stream,event]

Compiles the catch tests of each unit file by file with hipcc, links one program for each unit and
runs each of its cases in a process of its own: bare, then in each of --modes. A case whose results
differ is run twice more, and where they do not differ each time, bare until that ends otherwise,
too (at most 200 times and a minute). Everything is kept in --objects: objects, what hipcc said of a
file that it does not compile, and results.jsonl, which has a line for each case. Started again, the
script goes on where it stopped, and repeats what was over a smaller --limit or lacks one of
--modes; with nothing left to do it only prints the table.

With --chroot, as root: the ROCm of Debian sid in a chroot, which is made if it is not there (take a
newer branch of hip-tests, and other objects). Exit code: 0, or 1 if a case differs.
"""
import argparse
import contextlib
import dataclasses
import datetime
import fcntl
import json
import pathlib
import re
import shutil
import subprocess
import sys
import time

import rocm

sys.path.insert(0, str(pathlib.Path(__file__).parents[1]))
from time_limit import time_limit, wait_until  # noqa: E402

UNITS = ("stream", "event", "streamperthread", "kernel", "module", "executionControl",
         "cooperativeGrps", "multiThread", "graph", "memory")
MODES = ("random", "static", "vitamind")
FLAGS = ("-std=c++17", "-O1", "-w")
INCLUDES = ("include", "external/Catch2", "external/picojson", "kernels")
ROUNDS = 3  # of a case whose results differ
BARE_REPEATS, BARE_SECONDS = 200, 60  # the most, where a case does not differ each time
CLASSES = ("pass in all", "fail in all", "skipped", "over the limit bare", "varies bare",
           "differs")


class Stop(Exception):
    """Why the script cannot go on, and what to do."""


# What a case said.

FAILURE = re.compile(r"^(?:\S*/)?([^\s/]+:\d+: failed: .*)", re.M)
END_OF_FAILURE = re.compile(r"^(?:\S+:\d+: |Passed |Failed |=====)")
PASSED = re.compile(r"^(?:Passed|All tests passed)", re.M)

# What `vitamin run` says at its end.

LAUNCHES = re.compile(r"^vitamin\b.* ([\d,]+) of ([\d,]+) launches bound", re.M)
PARTS_OF_GRAPHS = re.compile(r"^  graphs: ([\d,]+) of ([\d,]+) launches bound", re.M)
WHOLE_GRAPHS = re.compile(r"^  graphs: ([\d,]+) launches on the whole device.*\((.*)\)$", re.M)


def first_failure(out):
    """The first assertion that failed as one line, from what Catch2's compact reporter printed."""
    found = FAILURE.search(out)
    if not found:
        return None
    lines = [found[1]]
    for line in out[found.end():].splitlines()[1:]:
        if END_OF_FAILURE.match(line):
            break
        lines.append(line)
    return " ".join(" ".join(lines).split())


def why(out, error, ending):
    """The first line of why a case did not pass: the software GPU's, that of Catch2, or the end."""
    lines = error.splitlines() or [""]
    of_gpu = next((line for line in lines if line.startswith("software AMD GPU:")), None)
    parts = [part for part in (of_gpu, first_failure(out)) if part]
    return ("; ".join(parts) or f"{ending}: {lines[0]}")[:400]


def outcome(code, out, error):
    """What a process of a case came to. `code`: None if it did not end within its limit."""
    if code is None:
        return {"verdict": "limit", "why": why(out, error, "it did not end within its limit")}
    if code > 128:  # `vitamin run` says so that its program ended by a signal
        code = 128 - code
    if code == 0 and PASSED.search(out):
        return {"verdict": "skip" if "HIP_SKIP_THIS_TEST" in out else "pass", "why": ""}
    ending = f"signal {-code}" if code < 0 else f"exit code {code}"
    if code == 0:
        ending += " before its end"
    return {"verdict": "fail", "why": why(out, error, ending)}


def counted(report):
    """From what `vitamin run` printed: launches bound, of all; launches of graphs bound, of all,
    and why the others were not."""

    def numbers(found):
        return [int(number.replace(",", "")) for number in found.groups()[:2]]

    counts = {}
    if launches := LAUNCHES.search(report):
        counts["bound"] = numbers(launches)
    parts, whole = PARTS_OF_GRAPHS.search(report), WHOLE_GRAPHS.search(report)
    if parts:
        counts["graphs"] = numbers(parts)
    elif whole:
        counts["graphs"] = [0, int(whole[1].replace(",", ""))]
    if whole:
        counts["whole"] = whole[2]
    return counts


def comparable(text):
    """A reason without what is different in each run: addresses and queues."""
    return re.sub(r"0x[0-9a-f]+|queue \d+", "N", text)


def classify(outcomes):
    """One of CLASSES, from one round; `outcomes`: by mode, with `bare`."""
    verdicts = {result["verdict"] for result in outcomes.values()}
    if outcomes["bare"]["verdict"] == "limit":
        return "over the limit bare"
    if len(verdicts) > 1:
        return "differs"
    if verdicts == {"fail"}:
        alike = len({comparable(result["why"]) for result in outcomes.values()}) == 1
        return "fail in all" if alike else "differs"
    return {"pass": "pass in all", "skip": "skipped"}[verdicts.pop()]


def class_of(row):
    """That of a case. Only one that differs in its first round has others."""
    bare = {outcomes["bare"]["verdict"] for outcomes in row["rounds"]}
    return "varies bare" if len(bare) > 1 else classify(row["rounds"][0])


def listed(text):
    """The names of `--list-test-names-only`."""
    return [line.strip() for line in text.splitlines() if line.strip()]


def as_filter(name):
    """The name as Catch2's command line takes it."""
    return re.sub(r"([\\,\[\]*])", r"\\\1", name)


def table(rows, units):
    lines = [f"| unit | {' | '.join(CLASSES)} |", "|---" * (len(CLASSES) + 1) + "|"]
    for unit in units:
        classes = [class_of(row) for row in rows if row["unit"] == unit]
        if classes:
            counts = " | ".join(str(classes.count(name)) for name in CLASSES)
            lines.append(f"| {unit} ({len(classes)}) | {counts} |")
    return "\n".join(lines)


def names(rows):
    """A line for each case that needs a reader, with why."""
    for row in rows:
        kind = class_of(row)
        if kind in ("pass in all", "skipped"):
            continue
        if len(row["rounds"]) > 1:
            found = [classify(outcomes) for outcomes in row["rounds"] if len(outcomes) > 1]
            kind += f" in {found.count('differs')} of {len(found)} rounds"
        yield f"{kind}: {row['test']} ({row['unit']})"
        for mode, result in row["rounds"][0].items():
            if mode == "bare" or len(row["rounds"]) > 1:
                yield f"    {mode}: {result['verdict']} {result['why']}".rstrip()


# The programs.

# A rule of a CMakeLists.txt that compiles code which cases load from their directory.
CODE = re.compile(r"COMMAND \$\{CMAKE_CXX_COMPILER\}(?P<flags>[^)]*--genco[^)]*?)"
                  r"\$\{CMAKE_CURRENT_SOURCE_DIR\}/(?P<source>\S+)\s+-o \S*?"
                  r"(?P<name>[\w-]+\.code)\s")


@dataclasses.dataclass
class Tests:
    place: rocm.Here
    checkout: pathlib.Path
    objects: pathlib.Path
    part: str

    def sources(self, directory):
        """But those that are commented out of the list of sources: they define what others do."""
        path = self.checkout / "catch" / directory
        lists = path / "CMakeLists.txt"
        lines = lists.read_text().splitlines() if lists.exists() else []
        names = re.compile(r"[\w-]+\.c\w+")
        built = {name for line in lines for name in names.findall(line.partition("#")[0])}
        commented = re.compile(rf"\s*#\s*({names.pattern})\s*(?:#.*)?")
        left_out = {found[1] for line in lines if (found := commented.fullmatch(line))} - built
        left_out |= {source for _, source, _ in self.codes(directory)}
        return [path for path in sorted(path.glob("*"))
                if path.suffix in (".cc", ".cpp") and path.name != "standalone_main.cc" and
                path.name not in left_out and
                (path.name == "main.cc" or
                 not re.search(r"^int main\(", path.read_text(errors="replace"), re.M))]

    def codes(self, directory):
        """Flags, source and name of each."""
        path = self.checkout / "catch" / directory / "CMakeLists.txt"
        text = path.read_text() if path.exists() else ""
        return [(found["flags"].replace("${OFFLOAD_ARCH_STR}", "").split(), found["source"],
                 found["name"]) for found in CODE.finditer(text)]

    def compile(self, source, target, label, flags=("-c",)):
        """Whether the object is there."""
        log = target.with_suffix(".log")
        made = max((path.stat().st_mtime for path in (target, log) if path.exists()), default=0)
        if made > source.stat().st_mtime:
            return target.exists()
        note(label)
        part = target.with_suffix(".part")
        started = time.monotonic()
        result = self.place.run(
            "hipcc", *FLAGS, f"--offload-arch={self.part}",
            f'-DKERNELS_PATH="{self.checkout}/catch/kernels/"',
            *(f"-Icatch/{path}" for path in INCLUDES), *flags, source.relative_to(self.checkout),
            "-o", part, directory=self.checkout, limit=time_limit(600))
        made = result.returncode == 0
        if made:
            part.rename(target)
        else:
            log.write_text(result.stderr or "it did not end\n")
        say(f"{source.name}: {'compiled' if made else f'hipcc FAILED, see {log}'}, "
            f"{time.monotonic() - started:.0f} s")
        return made

    def compiled(self, directory, unit):
        (self.objects / unit).mkdir(parents=True, exist_ok=True)
        sources = self.sources(directory)
        targets = [self.objects / unit / f"{source.stem}.o" for source in sources]
        for flags, source, name in self.codes(directory):
            self.compile(self.checkout / "catch" / directory / source, self.objects / unit / name,
                         unit, flags)
        return [target for number, (source, target) in enumerate(zip(sources, targets), 1)
                if self.compile(source, target, f"{unit} [{number}/{len(sources)}]")]

    def program(self, unit):
        """The unit's, of the files that hipcc compiles."""
        parts = [part for directory, name in (("hipTestMain", "main"), ("kernels", "kernels"),
                                              (f"unit/{unit}", unit))
                 for part in self.compiled(directory, name)]
        program = self.objects / unit / "tests"
        if not program.exists() or any(part.stat().st_mtime > program.stat().st_mtime
                                       for part in parts):
            result = self.place.run("hipcc", f"--offload-arch={self.part}", *parts, "-o", program,
                                    "-lpthread", "-ldl", directory=self.objects,
                                    limit=time_limit(600))
            if result.returncode != 0:
                say(f"{unit}: not linked: {result.stderr[:2000]}")
                return None
        return program

    def cases(self, program):
        result = self.place.over_device(program, "--list-test-names-only",
                                        directory=program.parent, limit=time_limit(60))
        # The exit code is the number of cases, as far as it goes.
        found = listed(result.stdout)
        if not found or result.returncode is None or result.returncode < 0:
            say(f"{program}: its cases cannot be listed: {result.stderr[:2000]}")
        return found


@dataclasses.dataclass
class Runs:
    tests: Tests
    vitamin: pathlib.Path
    modes: list
    limit: float
    socket: pathlib.Path

    def wrapped(self, mode):
        policy = ["--daemon", "--socket", self.socket] if mode == "vitamind" else ["--policy", mode]
        return [self.vitamin, "run", *policy, "--"]

    def run(self, program, command, limit, locks):
        directory = self.tests.objects / "run"
        shutil.rmtree(directory, ignore_errors=True)
        directory.mkdir()
        for code in program.parent.glob("*.code"):
            (directory / code.name).symlink_to(code)
        started = time.monotonic()
        result = self.tests.place.over_device(
            *command, directory=directory, limit=limit, HIP_CATCH_EXCLUDE_FILE="/nonexistent",
            VITAMIN_LOCK_DIRECTORY=str(locks or directory))
        found = outcome(result.returncode, result.stdout, result.stderr) | counted(result.stderr)
        return found | {"seconds": round(time.monotonic() - started, 1)}

    def round(self, program, name):
        words = [program, as_filter(name), "--reporter", "compact"]
        bare = self.run(program, words, time_limit(self.limit), None)
        outcomes = {"bare": bare}
        if bare["verdict"] != "limit":
            for mode in self.modes:
                locks = self.socket.parent if mode == "vitamind" else None
                limit = time_limit(self.limit) + 10 * bare["seconds"]
                outcomes[mode] = self.run(program, self.wrapped(mode) + words, limit, locks)
        return outcomes

    def other_ends(self, program, name, usual):
        """A bare run that does not end as usual, if one of many does not."""
        end = time.monotonic() + BARE_SECONDS
        for _ in range(BARE_REPEATS):
            if time.monotonic() > end:
                break
            bare = self.run(program, [program, as_filter(name), "--reporter", "compact"],
                            time_limit(self.limit), None)
            if bare["verdict"] != usual["verdict"]:
                return [{"bare": bare}]
        return []

    def case(self, program, unit, name):
        rounds = [self.round(program, name)]
        if classify(rounds[0]) == "differs":
            rounds += [self.round(program, name) for _ in range(ROUNDS - 1)]
        differ = [classify(outcomes) == "differs" for outcomes in rounds]
        if any(differ) and not all(differ):
            rounds += self.other_ends(program, name, rounds[0]["bare"])
        return {"unit": unit, "test": name, "rounds": rounds}

    @contextlib.contextmanager
    def daemon(self):
        """A vitamind for the mode of this name."""
        if "vitamind" not in self.modes:
            yield
            return
        directory = self.socket.parent
        shutil.rmtree(directory, ignore_errors=True)
        directory.mkdir()
        process = self.tests.place.start(
            self.vitamin.with_name("vitamind"), "--quiet", "--socket", self.socket,
            "--policy", "random", "--lock-directory", directory, directory=directory)
        try:
            wait_until(lambda: self.tests.place.run(
                self.vitamin, "status", "--socket", self.socket, directory=directory,
                limit=time_limit(10)).returncode == 0 or process.poll() is not None)
            yield
        finally:
            process.terminate()
            process.wait()


# The command.

def say(line):
    print(line, flush=True)


def note(text):
    """In front of the next line."""
    print(text, end=" ", flush=True)


def commit_of(directory):
    result = subprocess.run(["git", "-C", directory, "describe", "--always", "--dirty",
                             "--abbrev=12", "--exclude=*"], text=True, capture_output=True)
    return result.stdout.strip() or "unknown"


def subject(tests):
    """What is tested on what: the first line of the results."""
    result = tests.place.run("hipcc", "--version", directory="/", limit=time_limit(60))
    if result.returncode != 0:
        raise Stop(f"hipcc does not run: {result.stderr.strip()}; install ROCm (Debian: hipcc)")
    return {"hip_tests": commit_of(tests.checkout), "part": tests.part,
            "hip": result.stdout.splitlines()[0].removeprefix("HIP version: "),
            "flags": " ".join(FLAGS)}


def read_results(file, head):
    """The kept results, of what `head` says, by unit and case: the last one of each."""
    if not file.exists():
        file.write_text(json.dumps(head) + "\n")
        return {}
    first, *rows = map(json.loads, file.read_text().splitlines())
    for key, value in head.items():
        if first.get(key) != value:
            raise Stop(f"{file.parent} is of another {key} ({first.get(key)}, now {value}): name "
                       "another --objects, or remove it")
    return {(row["unit"], row["test"]): row for row in rows}


def is_done(row, modes, limit):
    if row is None:
        return False
    if class_of(row) == "over the limit bare":
        return limit <= row["limit"]
    return set(modes) <= set(row["rounds"][0])


def arguments_of(words):
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("checkout", type=pathlib.Path, help="a checkout of ROCm/hip-tests")
    parser.add_argument("--build", type=pathlib.Path, required=True,
                        help="a build of Vitamin with vitamin, vitamin_interpose_hip and soft_kfd")
    parser.add_argument("--objects", type=pathlib.Path, required=True,
                        help="where objects and results are kept (1 GB)")
    parser.add_argument("--units", default=",".join(UNITS),
                        help="directories of catch/unit (default: %(default)s)")
    parser.add_argument("--modes", default="random,static",
                        help=f"of {', '.join(MODES)} (default: %(default)s); the first two are "
                             "policies, the last is `vitamin run --daemon`")
    parser.add_argument("--only", default="", metavar="REGEX", help="cases whose names match")
    parser.add_argument("--limit", type=float, default=10, metavar="SECONDS",
                        help="of a case on an idle machine (default: %(default)s); at least 4 "
                             "times that, more on a busy one, and 10 times the bare run more when "
                             "wrapped")
    parser.add_argument("--part", choices=("gfx90a", "gfx908", "gfx942", "gfx1030"),
                        default="gfx90a")
    parser.add_argument("--compile-only", action="store_true")
    parser.add_argument("--chroot", type=pathlib.Path, metavar="DIRECTORY")
    return parser.parse_args(words)


def checked(arguments):
    """The arguments, absolute and found good."""
    for name in ("checkout", "build", "objects", "chroot"):
        if path := getattr(arguments, name):
            setattr(arguments, name, path.resolve())
    arguments.units = arguments.units.split(",")
    arguments.modes = arguments.modes.split(",")
    units = arguments.checkout / "catch/unit"
    if not units.is_dir():
        raise Stop(f"{arguments.checkout} has no catch/unit: it is no checkout of ROCm/hip-tests "
                   "(git clone --branch rocm-5.4.x https://github.com/ROCm/hip-tests)")
    for unit in arguments.units:
        if not (units / unit).is_dir():
            there = sorted(path.name for path in units.iterdir() if path.is_dir())
            raise Stop(f"there is no unit '{unit}'; there are {', '.join(there)}")
    for mode in arguments.modes:
        if mode not in MODES:
            raise Stop(f"there is no mode '{mode}'; there are {', '.join(MODES)}")
    for file in (rocm.DRIVER, "bin/vitamin", "lib/libvitamin_hip.so"):
        if not (arguments.build / file).exists():
            raise Stop(f"{arguments.build} lacks {file}: build vitamin, vitamind, "
                       "vitamin_interpose_hip and soft_kfd there")
    if arguments.chroot is None and not shutil.which("hipcc"):
        raise Stop("there is no hipcc here: install ROCm (Debian: hipcc), or name a --chroot")
    return arguments


def run_unit(runs, unit, only, results, rows):
    of_today = {"limit": runs.limit, "vitamin": commit_of(pathlib.Path(__file__).parent),
                "date": datetime.datetime.now(datetime.timezone.utc).date().isoformat()}
    program = runs.tests.program(unit)
    found = runs.tests.cases(program) if program else []
    left = [name for name in found if re.search(only, name) and
            not is_done(rows.get((unit, name)), runs.modes, runs.limit)]
    say(f"{unit}: {len(found)} cases, {len(left)} to run")
    for number, name in enumerate(left, 1):
        note(f"{unit} [{number}/{len(left)}]")
        row = runs.case(program, unit, name) | of_today
        rows[unit, name] = row
        with results.open("a", encoding="utf-8") as file:
            file.write(json.dumps(row) + "\n")
        say(f"{class_of(row)}, {row['rounds'][0]['bare']['seconds']} s bare: {name}")


@contextlib.contextmanager
def alone(objects):
    """Runs share the place where cases run, and its vitamind."""
    with (objects / "lock").open("w", encoding="utf-8") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise Stop(f"another run uses {objects}: wait for it, or name other "
                       "--objects") from None
        yield


def run(arguments):
    place = (rocm.Chroot(arguments.chroot, arguments.build, arguments.part) if arguments.chroot
             else rocm.Here(arguments.build, arguments.part))
    tests = Tests(place, arguments.checkout, arguments.objects, arguments.part)
    arguments.objects.mkdir(parents=True, exist_ok=True)
    runs = Runs(tests, arguments.build / "bin/vitamin", arguments.modes, arguments.limit,
                arguments.objects / "daemon/socket")
    with place.ready(arguments.checkout, arguments.build, arguments.objects):
        head = subject(tests)
        results = arguments.objects / "results.jsonl"
        rows = read_results(results, head)
        if arguments.compile_only:
            for unit in arguments.units:
                tests.program(unit)
            return 0
        with alone(arguments.objects), runs.daemon():
            for unit in arguments.units:
                run_unit(runs, unit, arguments.only, results, rows)
    rows = rows.values()
    commits, dates = (sorted({row[key] for row in rows}) for key in ("vitamin", "date"))
    say(f"\nhip-tests {head['hip_tests']} on HIP {head['hip']}, {head['part']}; Vitamin "
        f"{', '.join(commits)}; {' to '.join(dates[:1] + dates[1:][-1:])}\n")
    say(table(rows, arguments.units))
    for line in names(rows):
        say(line)
    return 1 if any(class_of(row) == "differs" for row in rows) else 0


def main(words=None):
    try:
        return run(checked(arguments_of(words)))
    except Stop as stop:
        print(f"hip_tests.py: {stop}", file=sys.stderr)
        return 2


if __name__ == "__main__":
    rocm.end_by_signals()
    sys.exit(main())
