# SPDX-License-Identifier: Apache-2.0
"""The seed of a random test.

VITAMIN_TEST_SEED gives it. Without, it is the same in every run, so that no verdict of a change
depends on luck; the long form (VITAMIN_TEST_LONG=1) draws a new one. The seed is always printed
with how to repeat it, and a seed that found a defect becomes a case. The same for C++:
tests/seed.h.
"""

import os
import secrets
import sys


def long_form():
    """Whether the long form runs: more programs, new seeds."""
    return os.environ.get("VITAMIN_TEST_LONG") == "1"


def takes_a_sample():
    """Whether a test of many combinations runs a few of them: with sanitizers, in the short form.
    The build without runs all."""
    return bool(os.environ.get("VITAMIN_TEST_SANITIZERS")) and not long_form()


def seed(usual=1):
    """`usual`: the seed of the short form."""
    if given := os.environ.get("VITAMIN_TEST_SEED"):
        value = int(given)
    else:
        value = secrets.randbits(64) if long_form() else usual
    long = " VITAMIN_TEST_LONG=1" if long_form() else ""
    print(f"seed {value}, repeat with VITAMIN_TEST_SEED={value}{long}", file=sys.stderr, flush=True)
    return value
