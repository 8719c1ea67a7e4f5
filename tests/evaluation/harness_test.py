# SPDX-License-Identifier: Apache-2.0
"""bench/harness.py: an interruption ends a benchmark whatever it comes in the way of. Needs in the
environment: BENCH."""
import os
import signal
import subprocess
import sys
import time
import unittest

from time_limit import wait_until

sys.path.insert(0, os.environ["BENCH"])

import harness  # noqa: E402


class Interrupted(unittest.TestCase):
    def setUp(self):
        self.addCleanup(setattr, harness.Interruption, "came", False)
        self.addCleanup(setattr, harness.Interruption, "pending", False)

    def test_while_it_waits_for_a_command_that_ends_meanwhile(self):
        # Popen.wait() waits a quarter of a second longer for it.
        for behind in ("", "; sleep 60"):
            with self.assertRaises(KeyboardInterrupt), harness.interruptible():
                harness.run(["sh", "-c", f"kill {os.getpid()}{behind}"], 120)
            harness.Interruption.came = False

    def test_not_before_a_process_that_starts_is_known(self):
        process = None
        with self.assertRaises(KeyboardInterrupt), harness.interruptible():
            with harness.not_interrupted():
                os.kill(os.getpid(), signal.SIGTERM)
                time.sleep(0)
                process = "started"
            process = "not reached"
        self.assertEqual(process, "started")

    def test_only_once_while_it_ends_what_it_started(self):
        ended = False
        with self.assertRaises(KeyboardInterrupt), harness.interruptible():
            try:
                os.kill(os.getpid(), signal.SIGTERM)
                time.sleep(60)
            finally:
                os.kill(os.getpid(), signal.SIGINT)
                time.sleep(0)
                ended = True
        self.assertTrue(ended)

    def test_not_by_what_is_ignored(self):
        before = signal.signal(signal.SIGINT, signal.SIG_IGN)
        self.addCleanup(signal.signal, signal.SIGINT, before)
        with harness.interruptible():
            os.kill(os.getpid(), signal.SIGINT)
        self.assertIs(signal.getsignal(signal.SIGINT), signal.SIG_IGN)

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
        def sleeping():
            return subprocess.run(["pgrep", "-f", f"^sleep 1[23]{os.getpid()}$"],
                                  capture_output=True, check=False).stdout
        with self.assertRaises(KeyboardInterrupt), harness.interruptible():
            harness.run(["sh", "-c", f"sleep 12{os.getpid()} & kill {os.getpid()}; "
                                     f"sleep 13{os.getpid()}"], 120)
        wait_until(lambda: not sleeping(), "the end of both")


if __name__ == "__main__":
    unittest.main()
