# SPDX-License-Identifier: Apache-2.0
"""bench/harness.py: an interruption ends a benchmark whatever it comes in the way of. Needs in the
environment: BENCH."""
import os
import signal
import subprocess
import sys
import time
import unittest

sys.path.insert(0, os.environ["BENCH"])

import harness  # noqa: E402


class Interrupted(unittest.TestCase):
    def setUp(self):
        self.addCleanup(setattr, harness.Interruption, "came", False)

    def test_while_it_waits_for_a_command_that_ends_meanwhile(self):
        # Popen.wait() waits a quarter of a second longer for it.
        for seconds in (0.05, 5):
            with self.assertRaises(KeyboardInterrupt), harness.interruptible():
                signal.setitimer(signal.ITIMER_REAL, 0)
                signal.signal(signal.SIGALRM, lambda *_: os.kill(os.getpid(), signal.SIGTERM))
                signal.setitimer(signal.ITIMER_REAL, 0.02)
                harness.run(["sleep", str(seconds)], 60)
            harness.Interruption.came = False

    def test_where_python_drops_it(self):
        class Dropped:
            def __del__(self):
                os.kill(os.getpid(), signal.SIGTERM)
                time.sleep(0)  # here its handler runs
        reached = False
        with self.assertRaises(KeyboardInterrupt), harness.interruptible():
            sys.unraisablehook, hook = lambda *_: None, sys.unraisablehook
            Dropped()
            sys.unraisablehook = hook
            reached = True
        self.assertTrue(reached)

    def test_where_another_exception_takes_its_place(self):
        for number in (signal.SIGTERM, signal.SIGINT):
            with self.assertRaises(KeyboardInterrupt) as raised, harness.interruptible():
                try:
                    os.kill(os.getpid(), number)
                    time.sleep(60)
                except KeyboardInterrupt:
                    raise ValueError("a lock that is not held") from None
            self.assertIsInstance(raised.exception.__cause__, ValueError)
            harness.Interruption.came = False

    def test_what_is_not_interrupted_ends_as_it_would(self):
        with harness.interruptible():
            pass
        with self.assertRaises(ValueError), harness.interruptible():
            raise ValueError
        self.assertIs(signal.getsignal(signal.SIGTERM), signal.SIG_DFL)

    def test_a_command_is_killed_with_what_it_started(self):
        with self.assertRaises(KeyboardInterrupt), harness.interruptible():
            signal.signal(signal.SIGALRM, lambda *_: os.kill(os.getpid(), signal.SIGTERM))
            signal.setitimer(signal.ITIMER_REAL, 0.2)
            harness.run(["sh", "-c", f"sleep 12{os.getpid()} & sleep 13{os.getpid()}"], 60)
        found = subprocess.run(["pgrep", "-f", f"^sleep 1[23]{os.getpid()}$"], capture_output=True,
                               check=False)
        self.assertEqual(found.stdout, b"")


if __name__ == "__main__":
    unittest.main()
