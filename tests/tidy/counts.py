#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Does every component still have its tests?

    counts.py BUILD [--form short|long] --cuda yes|no --amd yes|no
                                                      compare ctest's list with expected_counts.txt
    counts.py --results FILE                          "<ran> <failed> <skipped>" of a ctest run
    counts.py --failures FILE                         what each failed test of that run printed
"""
import argparse
import collections
import json
import pathlib
import re
import subprocess
import sys
import xml.etree.ElementTree

NEEDS = ("cuda", "amd")
# The builds, by what VITAMIN_SANITIZE says.
SECTIONS = {"": "plain", "address,undefined": "memory", "thread": "threads"}
EXPECTED = pathlib.Path(__file__).resolve().parent.parent / "expected_counts.txt"


def read_expected(text):
    """{section: {component, or "beginning of a test's name:" : (minimum, needs)}}"""
    section = "plain"
    expected = {name: {} for name in SECTIONS.values()}
    for number, line in enumerate(text.splitlines(), 1):
        words = line.split("#")[0].split()
        if not words:
            continue
        if words[0].startswith("["):
            section = words[0].strip("[]")
            if section not in expected or len(words) != 1:
                raise ValueError(f"line {number}: expected one of {list(expected)}: {line}")
            continue
        if len(words) != 3 or not words[1].isdigit() or words[2] not in ("-", *NEEDS):
            raise ValueError(f"line {number}: expected 'component minimum -|{'|'.join(NEEDS)}': "
                             f"{line}")
        expected[section][words[0]] = (int(words[1]), words[2])
    return expected


def labels_of(test):
    for item in test.get("properties", []):
        if item["name"] == "LABELS":
            return item["value"]
    return []


def problems(expected, tests, there, section="plain", form="short"):
    """Sentences, empty when all is well. `tests`: the "tests" list of ctest --show-only=json-v1;
    `there`: which of NEEDS this build has; `section`: which build it is."""
    found = []
    counts = collections.Counter()
    for test in tests:
        labels = labels_of(test)
        if form == "short" and "long" in labels:
            continue
        known = [label for label in labels if label in expected["plain"]]
        if not known:
            found.append(f"test '{test['name']}' has no component of expected_counts.txt "
                         f"(labels: {labels})")
        counts.update(known)
        counts.update(key for key in expected[section]
                      if key.endswith(":") and test["name"].startswith(key))
    for component, (minimum, needs) in expected[section].items():
        if needs != "-" and needs not in there:
            continue
        if counts[component] < minimum:
            found.append(f"'{component}' has {counts[component]} tests, "
                         f"at least {minimum} are expected")
    return found


def section_of(cache):
    """Of a CMakeCache.txt: the section of expected_counts.txt that holds for this build."""
    found = re.search(r"^VITAMIN_SANITIZE:\w+=(.*)$", cache, re.MULTILINE)
    return SECTIONS[found[1] if found else ""]


def read_cases(path):
    """[(state, testcase element)] of ctest's JUnit file; a test that did not run has failed."""
    cases = []
    for case in xml.etree.ElementTree.parse(path).getroot().findall("testcase"):
        message = case.find("skipped")
        if case.get("status") == "run" and message is None:
            cases.append(("passed", case))
        elif message is not None and message.get("message", "").startswith("SKIP_"):
            cases.append(("skipped", case))
        else:
            cases.append(("failed", case))
    if not cases:
        raise ValueError("no test ran")
    return cases


def results(path):
    """(ran, failed, skipped)"""
    states = collections.Counter(state for state, _ in read_cases(path))
    return states["passed"] + states["failed"], states["failed"], states["skipped"]


def failures(path):
    """One paragraph for each failed test, its name and the end of what it printed, shortened so
    that a log which keeps little holds all of them; then a line for each."""
    names = []
    for state, case in read_cases(path):
        if state == "failed":
            names.append(f"FAILED: {case.get('name')}")
            lines = (case.findtext("system-out") or "").strip().splitlines()
            yield names[-1] + "\n" + "".join(f"    {shortened(line)}\n" for line in lines[-40:])
    yield from names


def shortened(line, longest=400):
    half = longest // 2
    return line if len(line) <= longest else f"{line[:half]} [...] {line[-half:]}"


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("build", nargs="?", type=pathlib.Path)
    parser.add_argument("--cuda", choices=("yes", "no"), default="yes")
    parser.add_argument("--amd", choices=("yes", "no"), default="yes")
    parser.add_argument("--form", choices=("short", "long"), default="short")
    parser.add_argument("--results", type=pathlib.Path)
    parser.add_argument("--failures", type=pathlib.Path)
    arguments = parser.parse_args()
    if arguments.results or arguments.failures:
        try:
            if arguments.results:
                print(*results(arguments.results))
            else:
                print(*failures(arguments.failures), sep="\n")
        except (OSError, ValueError, xml.etree.ElementTree.ParseError) as error:
            print(f"counts: {error}", file=sys.stderr)
            return 1
        return 0
    if arguments.build is None:
        parser.error("a build directory is needed")
    listing = subprocess.run(["ctest", "--test-dir", arguments.build, "--show-only=json-v1"],
                             capture_output=True, text=True, check=True)
    there = {need for need in ("cuda", "amd") if getattr(arguments, need) == "yes"}
    section = section_of((arguments.build / "CMakeCache.txt").read_text())
    found = problems(read_expected(EXPECTED.read_text()), json.loads(listing.stdout)["tests"],
                     there, section, arguments.form)
    for problem in found:
        print(f"counts: {problem}", file=sys.stderr)
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
