# SPDX-License-Identifier: Apache-2.0
"""A plugin for pytest, loaded by outcomes.py: writes the outcome of each test when it ends, so that
nothing is lost when a later test ends the process. Tests whose outcome is there are left out.

Lines of $VITAMIN_TEST_OUTCOMES: "begins NAME", then "passed NAME", or what went wrong instead of
"passed": failure, error or skipped, several of them joined by "+"."""

import os

FILE = os.environ["VITAMIN_TEST_OUTCOMES"]
kinds = {}


def write(word, name):
    with open(FILE, "a", encoding="utf-8") as file:
        file.write(f"{word} {name}\n")


def pytest_collection_modifyitems(config, items):
    with open(FILE, encoding="utf-8") as file:
        told = {line.rstrip("\n").partition(" ")[2] for line in file}
    config.hook.pytest_deselected(items=[i for i in items if i.nodeid in told])
    items[:] = [i for i in items if i.nodeid not in told]


def pytest_runtest_logstart(nodeid):
    kinds[nodeid] = set()
    write("begins", nodeid)


def pytest_runtest_logreport(report):
    if report.skipped:
        kinds[report.nodeid].add("skipped")
    elif report.failed:
        kinds[report.nodeid].add("failure" if report.when == "call" else "error")


def pytest_runtest_logfinish(nodeid):
    write("+".join(sorted(kinds.pop(nodeid))) or "passed", nodeid)
