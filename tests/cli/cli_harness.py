# SPDX-License-Identifier: Apache-2.0
"""An installed tree for each test of the command line.

The preloaded library is a fake that reports what a test asks for; tests/interpose runs the real
one. Needs in the environment: VITAMIN (the program), FAKE_PRELOAD and FAKE_DRIVER (shared
objects).
"""
import contextlib
import os
import pathlib
import shutil
import signal
import subprocess
import sys
import tempfile
import unittest

from held import children_of
from time_limit import time_limit, wait_until

BOUND = "stage=3 seen=10 bound=10 narrow=8 whole=2 moved=7"


class CliTest(unittest.TestCase):
    """Gives each test an installed tree of its own: bin/vitamin and lib/libvitamin_cuda.so."""

    def setUp(self):
        directory = tempfile.TemporaryDirectory(prefix="vitamin-cli-")
        self.addCleanup(directory.cleanup)
        self.directory = pathlib.Path(directory.name)
        self.vitamin = self.install(self.directory / "tree")
        (self.directory / "run").mkdir()

    def install(self, tree):
        (tree / "bin").mkdir(parents=True)
        (tree / "lib").mkdir()
        shutil.copy(os.environ["VITAMIN"], tree / "bin/vitamin")
        shutil.copy(os.environ["FAKE_PRELOAD"], tree / "lib/libvitamin_cuda.so")
        return tree / "bin/vitamin"

    def environment(self, **changes):
        result = {name: value for name, value in os.environ.items()
                  if not name.startswith(("VITAMIN", "FAKE", "LD_", "CUDA_"))}
        result |= {"XDG_RUNTIME_DIR": str(self.directory / "run"), "LC_ALL": "C.UTF-8",
                   # The fake must load into programs that were built without a sanitizer, and a
                   # signal must end them as it does without one.
                   "ASAN_OPTIONS": "detect_leaks=0:verify_asan_link_order=0:handle_segv=0",
                   "TSAN_OPTIONS": "handle_segv=0"}
        result |= changes
        return {name: value for name, value in result.items() if value is not None}

    def call(self, *words, vitamin=None, **changes):
        return subprocess.run([vitamin or self.vitamin, *words], capture_output=True, text=True,
                              stdin=subprocess.DEVNULL, timeout=time_limit(100),
                              env=self.environment(**changes))

    def run_under(self, *words, options=(), **changes):
        return self.call("run", *options, "--", *words, **changes)

    def python(self, code, options=(), **changes):
        return self.run_under(sys.executable, "-c", code, options=options, **changes)

    def script(self, text, mode=0o755):
        path = self.directory / "script"
        path.write_text(text)
        path.chmod(mode)
        return path

    def assert_one_line(self, result, code, *parts):
        """Ends with `code` and exactly one line on stderr, which holds every one of `parts`."""
        self.assertEqual(result.returncode, code, result.stderr)
        lines = result.stderr.splitlines()
        self.assertEqual(len(lines), 1, result.stderr)
        self.assertTrue(lines[0].startswith("vitamin: "), lines[0])
        # docs/errors.md has every code (tests/docs).
        self.assertRegex(lines[0], r" \[VIT-[1-9]\d\d\]$")
        for part in parts:
            self.assertIn(part, lines[0])


class SignalTest(CliTest):
    """Runs Python programs under vitamin that are stopped, continued and ended, each in a process
    group of its own."""

    STOPS = "import os, signal; os.kill(os.getpid(), signal.SIGSTOP); print('on')"

    def start(self, code, **more):
        return self.start_command(sys.executable, "-uc", code, **more)

    def start_command(self, *words, **more):
        process = subprocess.Popen([self.vitamin, "run", "--quiet", "--", *words], text=True,
                                   env=self.environment(FAKE_PAGE=BOUND), stdout=subprocess.PIPE,
                                   process_group=0, **more)
        self.addCleanup(process.stdout.close)
        self.addCleanup(self.end, process)
        if process.stdin:
            self.addCleanup(process.stdin.close)
        return process

    @staticmethod
    def end(process):
        """Ends its command, too: a stopped one would stay, and keep our output open."""
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()

    def wait_until_stopped(self, process):
        def news():
            pid, status = os.waitpid(process.pid, os.WNOHANG | os.WUNTRACED)
            return [status] if pid else None
        self.assertTrue(os.WIFSTOPPED(*wait_until(news, "vitamin to stop", 60)))

    @staticmethod
    def command_of(process):
        """The process of the command, once there is one."""
        def command():
            for child in children_of(process.pid):
                with contextlib.suppress(OSError):
                    if os.readlink(f"/proc/{child}/exe") == os.path.realpath(sys.executable):
                        return child
            return None
        return wait_until(command, "the command", 60, 0.005)

    @staticmethod
    def let_end(process):
        process.stdin.write("\n")
        process.stdin.flush()
