# SPDX-License-Identifier: Apache-2.0
"""Random CUDA programs answer, end and compute the same bare and under the preloaded library.

Environment: see compare.py; besides UNBRIDGED (the library without its bridges). The long form
runs 100,000 programs of a fresh seed, with sanitizers 10,000.
"""
import os
import pathlib
import subprocess
import sys
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).parent.parent))

import compare
import seed as seeds
import time_limit

PROGRAMS, PROGRAMS_LONG, PROGRAMS_LONG_SANITIZED = 2000, 100_000, 10_000
SHOWN = 5
# Programs that differed once, and why.
ONCE_DIFFERENT = {
    800747029305: "a copy of another context's pinned memory waited for room on its legacy stream",
}


def programs():
    """How many programs run."""
    if not seeds.long_form():
        return PROGRAMS
    return PROGRAMS_LONG_SANITIZED if os.environ.get("VITAMIN_TEST_SANITIZERS") else PROGRAMS_LONG


def first_program():
    """The programs of a seed are those from this number on."""
    return 1 + (seeds.seed() - 1) % 10**12


class RandomPrograms(unittest.TestCase):
    def setUp(self):
        os.environ.setdefault("VITAMIN_TEST_TIME_SCALE", str(time_limit.time_scale()))

    def test_programs_agree_with_the_bare_run(self):
        found = compare.compare(first_program(), programs())
        for difference in found[:SHOWN]:
            compare.explain(difference)
        self.assertEqual([str(difference) for difference in found], [])

    def test_programs_that_differed_once_agree(self):
        for number, reason in ONCE_DIFFERENT.items():
            for policy in compare.POLICIES:  # one at a time: a batch has one of them
                found = compare.compare(number, 1, policies=[policy])
                self.assertEqual([str(difference) for difference in found], [], reason)

    def test_the_patches_of_mutations_apply(self):
        root = pathlib.Path(__file__).resolve().parent.parent.parent
        patches = sorted(pathlib.Path(__file__).resolve().parent.glob("mutations/*.patch"))
        self.assertEqual([patch.name[:2] for patch in patches],
                         [f"{number:02}" for number in range(1, 12)])
        for patch in patches:
            done = subprocess.run(["patch", "-p1", "--fuzz=0", "--dry-run", "-i", str(patch)],
                                  cwd=root, capture_output=True, text=True, check=False)
            self.assertEqual(done.returncode, 0, f"{patch.name}: {done.stdout}")

    def test_programs_differ_when_bridges_are_missing(self):
        os.environ["LIBRARY"] = os.environ["UNBRIDGED"]
        found = compare.compare(1, 400, options=["--only", "noise"], stop=True)
        self.assertTrue(found)


if __name__ == "__main__":
    unittest.main()
