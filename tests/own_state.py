# SPDX-License-Identifier: Apache-2.0
"""Runs a Python program with a new, empty state directory: own_state.py PROGRAM WORDS...

`vitamin run` keeps profiles and a list of kernels in the user's state directory, and reads them in
later runs. A test neither writes to that of the user who runs it nor depends on an earlier test.
"""
import os
import runpy
import sys
import tempfile

if __name__ == "__main__":
    with tempfile.TemporaryDirectory(prefix="vitamin-state-", ignore_cleanup_errors=True) as state:
        os.environ["XDG_STATE_HOME"] = state
        del sys.argv[0]
        sys.path[0] = os.path.dirname(os.path.abspath(sys.argv[0]))
        runpy.run_path(sys.argv[0], run_name="__main__")
