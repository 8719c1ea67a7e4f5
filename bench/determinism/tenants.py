# SPDX-License-Identifier: Apache-2.0
"""What runs beside a measurement: a daemon under which processes overlap, and processes that do.

Without MPS the processes of an NVIDIA GPU take turns; under it they run side by side, and only then
is a tenant in another process really beside ours.
"""

import contextlib
import json
import pathlib
import subprocess
import sys
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent))

import harness  # noqa: E402
import micro  # noqa: E402


class Tenants:
    """Processes that keep the device busy half of the time; entered when all of them run."""

    def __init__(self, count, environment=None, under=("--policy", "random"),
                 scale="full", seconds=600):
        """`under`: options of `vitamin run`; None: natively."""
        self.problem = ""
        self._processes, self._outputs = [], []
        for i in range(count):
            words = [harness.program("determinism"), "--interfere", str(seconds), "--seed",
                     str(i + 1), "--scale", scale]
            if under is not None:
                words = [*harness.vitamin("run", "--quiet", *under, "--seed", str(100 + i)), "--",
                         *words]
            output = harness.Output()
            self._outputs.append(output)
            self._processes.append(subprocess.Popen(
                words, stdout=output, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL,
                env=harness.environment_with(environment)))

    def _look(self):
        for i, process in enumerate(self._processes):
            if process.poll() is not None and not self.problem:
                self.problem = f"a tenant ended early: {self._outputs[i].text().strip()[-200:]}"

    def __enter__(self):
        limit = time.monotonic() + 60
        while not self.problem and not all(
                "interfering" in output.text() for output in self._outputs):
            self._look()
            if time.monotonic() > limit:
                self.problem = "a tenant did not begin"
            time.sleep(0.05)
        return self

    def __exit__(self, *_):
        self._look()
        for process in self._processes:
            process.terminate()
        for process in self._processes:
            try:
                process.wait(20)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


@contextlib.contextmanager
def daemon():
    """The environment under which processes overlap; empty where no daemon starts."""
    with micro.Mps() as mps:
        yield dict(mps.environment) if mps.running else {}


def read_results(directory, name):
    """The records of DIR/NAME.jsonl, headers left out; none where there is no such file."""
    path = pathlib.Path(directory) / f"{name}.jsonl"
    lines = path.read_text().splitlines() if path.exists() else []
    return [record for record in map(json.loads, lines) if "header" not in record]
