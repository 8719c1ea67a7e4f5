# SPDX-License-Identifier: Apache-2.0
"""The pages by question: every command of a page is run as it stands, over the software device.

What a page calls `python train.py`, `torchrun ...`, `vllm` or `./app` is a demo program here.
Commands of others (systemctl, apt-get, podman, gdb, NVIDIA's) succeed and do nothing. A vitamind
listens, with the page's vitamin.toml. Not run: what writes to /etc, or names a GPU by its UUID.

Needs in the environment: VITAMIN_PREFIX (a build), SOURCE (the tree).
"""
import os
import pathlib
import re
import shlex
import subprocess
import sys
import tempfile
import time
import unittest

from time_limit import time_limit

SOURCE = pathlib.Path(os.environ["SOURCE"])
PREFIX = pathlib.Path(os.environ["VITAMIN_PREFIX"])
OTHERS = ("systemctl", "apt-get", "podman", "gdb", "nvidia-cuda-mps-control", "kubectl",
          "srun", "sacct", "helm", "journalctl")
# park and resume need a program that runs: tests/cli/park_test.py has them.
NOT_RUN = re.compile(
    r"^(vitamin (cdi generate|cdi check|drain GPU-|park |resume --timeout)|install .* /etc/)")
MAY_FAIL = re.compile(r"^vitamin doctor")  # it says what this machine lacks
# Prints what does not vary; verify compares it.
PROGRAM = """#!/bin/sh
{prefix}/bin/demo-train 20 | sed 's/, [0-9.]* seconds$//'
"""


def blocks(page, language):
    return re.findall(rf"^```{language}\n(.*?)^```", page.read_text(), re.M | re.S)


def commands(page):
    """Lines of all sh blocks, those that go on with a backslash joined."""
    text = "".join(blocks(page, "sh")).replace("\\\n", " ")
    return [line for line in text.splitlines() if line.strip() and not NOT_RUN.match(line)]


class Pages(unittest.TestCase):
    def setUp(self):
        temporary = tempfile.TemporaryDirectory(prefix="vitamin-pages-")
        self.addCleanup(temporary.cleanup)
        self.root = pathlib.Path(temporary.name)
        (self.root / "bin").mkdir()
        for name in ("python", "torchrun", "vllm"):
            self.program(self.root / "bin" / name)
        self.program(self.root / "app")
        for name in OTHERS:
            self.executable(self.root / "bin" / name, "#!/bin/sh\n")
        self.environment = {
            "PATH": f"{self.root}/bin:{PREFIX}/bin:{os.environ['PATH']}", "HOME": str(self.root),
            "XDG_RUNTIME_DIR": str(self.root), "LD_LIBRARY_PATH": str(PREFIX / "lib/soft"),
            "VITAMIN_LOCK_DIRECTORY": str(self.root), "TMPDIR": str(self.root),
            # `vitamin run` brings AddressSanitizer into programs of the system, which leak.
            "ASAN_OPTIONS": ":".join(filter(None, (os.environ.get("ASAN_OPTIONS"),
                                                   "detect_leaks=0")))}

    def executable(self, path, text):
        path.write_text(text)
        path.chmod(0o755)

    def program(self, path):
        self.executable(path, PROGRAM.format(prefix=PREFIX))

    def start_daemon(self, page, mps="off"):
        words = [PREFIX / "bin/vitamind", "--lock-directory", self.root, "--quiet"]
        for text in blocks(page, "toml"):
            (self.root / "vitamin.toml").write_text(text)
            words += ["--config", self.root / "vitamin.toml", "--set", f"mps.mode={mps}"]
        daemon = subprocess.Popen(list(map(str, words)), env=self.environment)
        self.addCleanup(daemon.wait, time_limit(30))
        self.addCleanup(daemon.terminate)
        socket, end = self.root / "vitamin/vitamind.sock", time.monotonic() + time_limit(30)
        while not socket.exists() and daemon.poll() is None and time.monotonic() < end:
            time.sleep(0.01)
        self.assertTrue(socket.exists(), f"vitamind does not serve {page.name}")

    def run_page(self, name, together=False, before=(), mps="off"):
        """`together`: what a page starts in the background runs beside the rest of it. `before`:
        commands that come before those of the page. `mps`: the mode of vitamind's."""
        page = SOURCE / "docs" / f"{name}.md"
        lines = commands(page)
        self.assertTrue(lines)
        self.start_daemon(page, mps)
        # One shell for the page, so that what it exports holds; each line's status is looked at.
        script = ["failed=0"]
        for line in [*before, *lines]:
            told = "{ echo " + shlex.quote("failed: " + line.rstrip("& ")) + "; failed=1; }"
            if MAY_FAIL.match(line):
                script.append(f"{line} || true")
            elif line.rstrip().endswith("&") and together:
                script.append(f"{line} trap 'kill $(jobs -p)' EXIT")
            elif line.rstrip().endswith("&"):
                script.append(f"{line} wait $! || {told}")
            elif line.startswith("vitamin explain"):  # as soon as something was decided
                script.append(f"until {line}; do sleep 0.1; done")
            else:
                script.append(f"{line} || {told}")
        script.append("exit $failed")
        result = subprocess.run(["bash", "-c", "\n".join(script)], cwd=self.root, text=True,
                                env=self.environment, stdin=subprocess.DEVNULL,
                                stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                                timeout=time_limit(120))
        self.assertEqual(result.returncode, 0, result.stdout[-4000:])
        return result.stdout

    def test_a_command_that_fails_is_noticed(self):
        page = self.root / "page.md"
        page.write_text("```sh\nvitamin run --no-such-option -- ./app\n```\n")
        (self.root / "docs").mkdir()
        page.rename(self.root / "docs/page.md")
        source, globals()["SOURCE"] = SOURCE, self.root
        try:
            with self.assertRaisesRegex(AssertionError, "failed: vitamin run --no-such-option"):
                self.run_page("page")
        finally:
            globals()["SOURCE"] = source

    def test_check_that_it_works(self):
        said = self.run_page("check-that-it-works")
        self.assertIn("deterministic", said)
        self.assertIn("launches bound (100 %)", said)

    def test_containers(self):
        self.run_page("containers")

    def test_cost(self):
        self.run_page("cost")

    def test_explain(self):
        # Programs that run until they are ended; the page shows what was said of such.
        self.executable(self.root / "bin/python",
                        f"#!/bin/sh\nexec {PREFIX}/bin/demo-train 1000000\n")
        said = self.run_page("explain", together=True)
        shown, = blocks(SOURCE / "docs/explain.md", "text")
        self.assertIn("SMs, policy throughput", shown)
        for text in (shown, said):
            self.assertRegex(text, r"(?m)^GPU-\S+  .+  \d+ SMs, policy throughput$")
            self.assertRegex(text, r"(?m)^  client \d+ \(demo-train\) (has|is) ")
        self.assertIn('"schema": 1', said)

    def test_isolation(self):
        self.executable(self.root / "bin/nvidia-cuda-mps-control", "#!/bin/sh\nexec "
                        f"{PREFIX}/tests/daemon/mps_control \"$@\"\n")
        said = self.run_page("isolation", mps="auto")
        self.assertIn("class serving", said)

    def test_limit_a_user(self):
        self.run_page("limit-a-user")

    def test_memory(self):
        self.run_page("memory")

    def test_memory_charged(self):
        self.assertEqual(commands(SOURCE / "docs/memory-charged.md"), [])

    def test_multi_gpu(self):
        self.run_page("multi-gpu")

    def test_protect_latency(self):
        self.run_page("protect-latency")

    def test_share_vllm_and_training(self):
        self.run_page("share-vllm-and-training")

    def test_slurm(self):
        self.run_page("slurm")

    def test_systemd_and_mps(self):
        self.run_page("systemd-and-mps")

    def test_troubleshooting_hangs(self):
        self.run_page("troubleshooting-hangs")

    def test_troubleshooting_slow(self):
        other = f"vitamin run --quiet --daemon -- {PREFIX}/bin/demo-train 1000000 &"
        said = self.run_page("troubleshooting-slow", together=True, before=[other])
        self.assertRegex(said, r"(?m)^  client \d+ \(demo-train\) (has|is) ")

    def test_turn_off_upgrade_remove(self):
        said = self.run_page("turn-off-upgrade-remove",
                             before=["vitamin run --daemon -- python train.py"])
        self.assertIn("1 device takes no new client; those that run go on\n", said)

    def test_when_something_dies(self):
        said = self.run_page("when-something-dies",
                             before=["vitamin run --daemon -- python train.py"])
        self.assertIn("1 device takes no new client; those that run go on\n", said)

    def test_every_page_by_question_is_here(self):
        index = (SOURCE / "docs/README.md").read_text()
        listed = re.findall(r"\]\(([a-z-]+)\.md\)", index.partition("## Questions")[2]
                            .partition("\n## ")[0])
        self.assertEqual(len(listed), 16)
        for name in listed:
            self.assertTrue(hasattr(self, f"test_{name.replace('-', '_')}"), name)


if __name__ == "__main__":
    unittest.main()
