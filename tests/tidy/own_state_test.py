# SPDX-License-Identifier: Apache-2.0
"""No test writes to the state directory of the user who runs it (tests/own_state.py).

Needs in the environment: BUILD (build directory).
"""
import json
import os
import pathlib
import subprocess
import sys
import tempfile
import unittest

from time_limit import time_limit

OWN_STATE = str(pathlib.Path(__file__).parents[1] / "own_state.py")


class OwnState(unittest.TestCase):
    def test_every_python_test_of_the_suite_has_a_state_directory_of_its_own(self):
        listing = subprocess.run(
            ["ctest", "--test-dir", os.environ["BUILD"], "--show-only=json-v1"], check=True,
            capture_output=True, text=True, timeout=time_limit(60)).stdout
        commands = [test["command"] for test in json.loads(listing)["tests"] if "command" in test]
        python = [command for command in commands
                  if pathlib.Path(command[0]).name.startswith("python")]
        self.assertGreater(len(python), 100)
        for command in python:
            program = next(word for word in command[1:] if not word.startswith("-"))
            self.assertEqual(program, OWN_STATE, command)

    def test_a_program_gets_a_new_one_which_ends_with_it(self):
        with tempfile.TemporaryDirectory() as directory:
            program = pathlib.Path(directory) / "program.py"
            program.write_text("import os, sys\n"
                               "state = os.environ['XDG_STATE_HOME']\n"
                               "print(state, os.listdir(state), *sys.argv[1:])\n"
                               "open(state + '/kept', 'w').close()\n"
                               "sys.exit(3)\n")
            seen = set()
            for _ in range(2):
                done = subprocess.run([sys.executable, OWN_STATE, program, "a", "-b"], text=True,
                                      capture_output=True, timeout=time_limit(60))
                state, *rest = done.stdout.split()
                self.assertEqual((done.returncode, rest), (3, ["[]", "a", "-b"]), done.stderr)
                self.assertFalse(os.path.exists(state))
                seen.add(state)
            self.assertEqual(len(seen), 2)


if __name__ == "__main__":
    unittest.main()
