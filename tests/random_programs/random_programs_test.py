# SPDX-License-Identifier: Apache-2.0
"""Random CUDA programs answer, end and compute the same bare and under the preloaded library.

Environment: see compare.py; besides UNBRIDGED (the library without its bridges). The long form
runs 100,000 programs of a fresh seed, with sanitizers 10,000.
"""
import os
import pathlib
import subprocess
import sys
import tempfile
import unittest
from unittest import mock

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

    # Prints the number of each program. Under a policy it ends early, as the test wants.
    EARLY = """#!/bin/sh
seed=$1 end=$(($1 + $2))
while [ $seed -lt $end ]; do
  [ "$VITAMIN_POLICY" ] && [ $seed = 3 ] && {{ {in_it}; }}
  echo "program $seed"; echo "memory $seed"; echo "# 1 us"
  seed=$((seed + 1))
done
[ "$VITAMIN_POLICY" ] && {{ {behind}; }}
exit 0
"""

    def early(self, in_it=":", behind=":"):
        """Sets a program up that makes this in its third one, or behind the last one."""
        directory = tempfile.TemporaryDirectory()
        self.addCleanup(directory.cleanup)
        program = pathlib.Path(directory.name, "program")
        program.write_text(self.EARLY.format(in_it=in_it, behind=behind))
        program.chmod(0o700)
        changes = mock.patch.dict(os.environ, {"PROGRAM": str(program), "LIBRARY": "", "FIRST": ""})
        changes.start()
        self.addCleanup(changes.stop)

    def test_a_program_that_ends_without_a_result_differs(self):
        cases = {"exit 0": "no result", "exit 1": "exit code 1", "kill -9 $$": "signal 9",
                 "echo program 3; echo why >&2; exit 7": "exit code 7: why",
                 "echo SUMMARY: leak >&2; echo end >&2; exit 1": "exit code 1: SUMMARY: leak"}
        for in_it, said in cases.items():
            with self.subTest(in_it=in_it):
                self.early(in_it)
                found = compare.compare(1, 5, ("fifo",))
                self.assertEqual([(one.seed, one.line, one.bare) for one in found],
                                 [(3, said, "memory 3")])

    def test_a_process_that_ends_wrongly_behind_its_last_program_differs(self):
        self.early(behind="exit 66")
        found = compare.compare(1, 5, ("fifo",))
        self.assertEqual([(one.seed, one.line, one.bare) for one in found],
                         [(5, "exit code 66 after the last program", "")])

    def test_a_process_that_does_not_end_differs(self):
        self.early("exec sleep 1000")
        with mock.patch.multiple(compare, LIMIT_MS=10, SHUT_DOWN_S=1):
            self.assertRegex(compare.execute(3, 1, "fifo", [])[3].end, "^no end within 1 s")


if __name__ == "__main__":
    unittest.main()
