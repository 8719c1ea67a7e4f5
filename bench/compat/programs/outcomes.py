# SPDX-License-Identifier: Apache-2.0
"""Programs and tests of others, by their outcomes; nothing of them is kept here.

    outcomes.py executables DIR [SECONDS]   every program below DIR: its exit code
    outcomes.py pytest FILE [SECONDS]       every test of a file of PyTorch's: its outcome
    outcomes.py text COMMAND...             one program: exit code and standard output

What they print holds times, so except for `text` the outcome alone is compared.
"""

import os
import pathlib
import signal
import subprocess
import sys
import tempfile
import xml.etree.ElementTree

import steps


def run(command, seconds, directory=None):
    """The exit code, or "hung"; everything that the command started has ended."""
    process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
                               stderr=subprocess.DEVNULL, cwd=directory, start_new_session=True)
    try:
        return process.wait(seconds)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        return "hung"


def is_program(path):
    if not path.is_file() or path.is_symlink() or not os.access(path, os.X_OK):
        return False
    with open(path, "rb") as file:
        start = file.read(18)
    return start[:4] == b"\x7fELF" and start[16] in (2, 3) and ".so" not in path.name


def executables(directory, seconds):
    found = [p for p in sorted(pathlib.Path(directory).rglob("*")) if is_program(p)]
    if not found:
        steps.cannot(f"no program below {directory}: build it first")
    for path in found:
        outcome = run([str(path)], seconds, path.parent)
        steps.tell({"name": path.name, "hash": f"exit code {outcome}"})


def pytest(file, seconds):
    file = pathlib.Path(file)
    if not file.exists():
        steps.cannot(f"there is no {file}")
    with tempfile.NamedTemporaryFile(suffix=".xml") as results:
        outcome = run([sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider",
                       f"--junitxml={results.name}", file.name], seconds, file.parent)
        try:
            cases = xml.etree.ElementTree.parse(results.name).getroot().iter("testcase")
        except xml.etree.ElementTree.ParseError:
            raise SystemExit(f"pytest told no results: exit code {outcome}") from None
        for case in cases:
            kinds = {child.tag for child in case} & {"failure", "error", "skipped"}
            steps.tell({"name": f"{case.get('classname')}.{case.get('name')}",
                        "hash": ", ".join(sorted(kinds)) or "passed"})


def text(*command):
    result = subprocess.run(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, check=False)
    steps.tell_hash("standard output", result.stdout)
    sys.exit(result.returncode if result.returncode >= 0 else 128 - result.returncode)


def main():
    kind, *words = sys.argv[1:]
    if kind == "text":
        text(*words)
    subject, seconds = words[0], float(words[1]) if len(words) > 1 else 60.0
    {"executables": executables, "pytest": pytest}[kind](subject, seconds)


if __name__ == "__main__":
    main()
