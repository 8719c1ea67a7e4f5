# SPDX-License-Identifier: Apache-2.0
"""Programs and tests of others, by their outcomes; nothing of them is kept here.

    outcomes.py executables DIR    every program below DIR: its exit code
    outcomes.py pytest FILE        every test of a file of PyTorch's: its outcome
    outcomes.py text COMMAND...    one program: exit code and standard output

What they print holds times, so except for `text` the outcome alone is compared. What is not done
after --within SECONDS is ended, and the last line says so: {"unfinished": reason}.
"""

import argparse
import concurrent.futures
import os
import pathlib
import signal
import subprocess
import sys
import tempfile
import time

import steps

HERE = pathlib.Path(__file__).resolve().parent
PROCESSES = 20  # of pytest, for one file: one more for each test that ends the process


def run(command, seconds, directory=None, environment=None):
    """The exit code, or "hung"; everything that the command started has ended."""
    process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
                               stderr=subprocess.DEVNULL, cwd=directory, env=environment,
                               start_new_session=True)
    try:
        return process.wait(max(seconds, 0))
    except subprocess.TimeoutExpired:
        return "hung"
    finally:
        try:
            os.killpg(process.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
        process.wait()


def is_program(path):
    if not path.is_file() or path.is_symlink() or not os.access(path, os.X_OK):
        return False
    with open(path, "rb") as file:
        start = file.read(18)
    return start[:4] == b"\x7fELF" and start[16] in (2, 3) and ".so" not in path.name


def executables(directory, seconds, end, at_once):
    found = [p for p in sorted(pathlib.Path(directory).resolve().rglob("*")) if is_program(p)]
    if not found:
        steps.cannot(f"no program below {directory}: build it first")

    def outcome(path):
        """None where the time was over before the program had its own."""
        left = end - time.monotonic()
        code = run([str(path)], min(seconds, left), path.parent) if left > 0 else "hung"
        return None if code == "hung" and left < seconds else code

    told = 0
    with concurrent.futures.ThreadPoolExecutor(at_once) as pool:
        for path, code in zip(found, pool.map(outcome, found)):
            if code is not None:
                told += 1
                steps.tell({"name": path.name, "hash": f"exit code {code}"})
    if told < len(found):
        steps.tell({"unfinished": f"{told} of {len(found)} programs ended in time"})


def tests_told(file):
    """Outcome of each test that ended, by name, and the test that had begun last but not ended."""
    ended, begun = {}, None
    for line in file.read_text().splitlines():
        word, _, name = line.partition(" ")
        if word == "begins":
            begun = name
        else:
            ended[name], begun = word.replace("+", ", "), None
    return ended, begun


def pytest(file, end):
    file = pathlib.Path(file).resolve()
    if not file.exists():
        steps.cannot(f"there is no {file}")
    told = set()
    with tempfile.TemporaryDirectory() as directory:
        outcomes = pathlib.Path(directory) / "outcomes"
        outcomes.touch()
        paths = [os.environ.get("PYTHONPATH"), str(HERE)]
        environment = {**os.environ, "VITAMIN_TEST_OUTCOMES": str(outcomes),
                       "PYTHONPATH": os.pathsep.join(filter(None, paths))}
        for _ in range(PROCESSES):
            code = run([sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider",
                        "-p", "outcome_plugin", file.name], end - time.monotonic(), file.parent,
                       environment)
            ended, begun = tests_told(outcomes)
            if begun and code != "hung":
                ended[begun] = f"ended the process: exit code {code}"
                with open(outcomes, "a", encoding="utf-8") as more:
                    more.write(f"ended-the-process {begun}\n")
            for name in [n for n in ended if n not in told]:
                steps.tell({"name": name, "hash": ended[name]})
                told.add(name)
            if code == "hung" or not begun:
                break
    if code == "hung":
        steps.tell({"unfinished": f"{len(told)} tests ended in time"})
    elif not told:
        raise SystemExit(f"pytest told no results: exit code {code}")


def text(*command):
    result = subprocess.run(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, check=False)
    steps.tell_hash("standard output", result.stdout)
    sys.exit(result.returncode if result.returncode >= 0 else 128 - result.returncode)


def main():
    if sys.argv[1:2] == ["text"]:
        text(*sys.argv[2:])
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("kind", choices=["executables", "pytest"])
    parser.add_argument("subject", metavar="DIR or FILE")
    parser.add_argument("--within", type=float, default=3500, metavar="SECONDS")
    parser.add_argument("--each", type=float, default=60, metavar="SECONDS",
                        help="after which a program is ended and called hung (default 60)")
    parser.add_argument("--at-once", type=int, default=1, metavar="N", help="programs at a time")
    options = parser.parse_args()
    end = time.monotonic() + options.within
    if options.kind == "pytest":
        pytest(options.subject, end)
    else:
        executables(options.subject, options.each, end, options.at_once)


if __name__ == "__main__":
    main()
