# SPDX-License-Identifier: Apache-2.0
"""bench/evaluation/streams.py: what a profiler saw becomes a job that the simulator runs as fast as
it ran. Needs in the environment: BENCH, VITAMIN_PREFIX (a build directory)."""
import json
import os
import pathlib
import subprocess
import sys
import tempfile
import unittest

BENCH = pathlib.Path(os.environ["BENCH"])
sys.path[:0] = [str(BENCH), str(BENCH / "evaluation")]

import predict  # noqa: E402
import streams  # noqa: E402

VITAMIN = pathlib.Path(os.environ["VITAMIN_PREFIX"]) / "bin" / "vitamin"


class Machine:
    """A host and a device with one stream, seen by a profiler; times in microseconds."""

    def __init__(self):
        self.events, self.host, self.device, self.correlation = [], 0.0, 0.0, 0

    def call(self, name, lasts, begin=None):
        self.correlation += 1
        self.events.append({"ph": "X", "cat": "cuda_runtime", "name": name, "dur": lasts, "tid": 1,
                            "ts": self.host if begin is None else begin,
                            "args": {"correlation": self.correlation}})

    def work(self, kind, name, lasts, **more):
        begin = max(self.host + 4, self.device + 1.3)
        self.events.append({"ph": "X", "cat": kind, "name": name, "ts": begin, "dur": lasts,
                            "args": {"correlation": self.correlation, "stream": 7, **more}})
        self.device = begin + lasts

    def mark(self):
        self.call("cudaMemcpyAsync", 4)
        self.work("gpu_memcpy", "Memcpy DtoD", 1.5, bytes=streams.MARKER_BYTES)
        self.host += 10

    def launch(self, name, blocks, lasts, host):
        self.call("cudaLaunchKernel", 4)
        self.work("kernel", name, lasts, grid=[blocks, 1, 1], block=[256, 1, 1],
                  **{"shared memory": 0, "registers per thread": 32})
        self.host += host

    def wait(self, name="cudaStreamSynchronize"):
        begin, self.host = self.host, max(self.host + 5, self.device + 5)
        self.call(name, self.host - begin, begin)


class Streams(unittest.TestCase):
    def setUp(self):
        self._directory = tempfile.TemporaryDirectory(prefix="vitamin-streams-")
        self.addCleanup(self._directory.cleanup)
        self.directory = pathlib.Path(self._directory.name)
        self.simulator = predict.Simulator(str(VITAMIN), self.directory)

    def recorded(self, step, name="job"):
        machine = Machine()
        for _ in range(4):
            machine.mark()
            step(machine)
            machine.wait("cudaDeviceSynchronize")
        machine.mark()
        trace, path = self.directory / "trace.json", self.directory / f"{name}.json.gz"
        trace.write_text(json.dumps({"traceEvents": machine.events}))
        streams.reduce(trace, path)
        return path

    def rate(self, compiled, stretch=1.0):
        return self.simulator.run([(compiled.text(stretch), None)],
                                  ["--until", 3, "--policy", "fifo"])["training"][0]["steps_per_s"]

    def test_bound_by_the_device_or_by_the_host(self):
        def step(lasts, host):
            return lambda m: [m.launch("kernel", 1056, lasts, host) for _ in range(500)]
        device, alike = streams.compile_("device", {132: streams.read(
            self.recorded(step(19, 6)))})
        self.assertEqual(alike, 3)
        self.assertEqual([len(s.calls) for _, s in device.parts], [500])
        self.assertAlmostEqual(self.rate(device), 1e6 / (500 * 20.3), delta=1)
        host, _ = streams.compile_("host", {132: streams.read(self.recorded(step(6, 20)))})
        # 500 launches, and 10 us of the marker's call.
        self.assertAlmostEqual(self.rate(host), 1e6 / (500 * 20), delta=1)
        stretch, left = predict.calibrated(lambda s: 1 / self.rate(host, s), 0.015)
        self.assertAlmostEqual(stretch, 1.5, delta=0.02)
        self.assertLess(abs(left), 0.01)

    def test_a_request_is_a_prefill_and_decodes(self):
        def request(m):
            for _ in range(20):
                m.launch("prefill", 4224, 100, 6)
            m.wait()
            for _ in range(3):
                for _ in range(30):
                    m.launch("decode", 264, 10, 5)
                m.wait()
        compiled, _ = streams.compile_("I-x", {132: streams.read(self.recorded(request))})
        self.assertEqual([(n, len(s.calls)) for n, s in compiled.parts],
                         [("prefill", 21), ("decode", 31)])
        got = self.simulator.run([(compiled.text(), [(0.1, 4, 1), (0.5, 4, 1)])],
                                 ["--warm-up", 0, "--policy", "fifo"])
        self.assertAlmostEqual(got["ttft_ms"]["p50"], 20 * 0.1013 + 0.01, delta=0.03)
        self.assertAlmostEqual(got["tpot_ms"]["p50"], 30 * 0.0113 + 0.01, delta=0.03)

    def test_other_settings_are_kept_as_means(self):
        step = lambda lasts: lambda m: [m.launch("k", 1056, lasts, 5) for _ in range(50)]
        whole, half = self.recorded(step(10), "whole"), self.recorded(step(20), "half")
        bubble = self.recorded(step(50), "bubble")
        for path in (half, bubble):
            before = streams.times(streams.read(path))
            streams.means_only(path)
            self.assertEqual({k: round(v) for k, v in before.items()},
                             streams.times(streams.read(path)))
        compiled, _ = streams.compile_("job", {132: streams.read(whole), 64: streams.read(half)},
                                       bubble=streams.read(bubble))
        key = ("k", 1056, 8, 0)
        self.assertEqual(compiled.curves[key], {132: 10000, 64: 20000})
        self.assertEqual(compiled.beside[key], 2.5)
        kernel, = [line for line in compiled.text().splitlines() if line.startswith("kernel")]
        self.assertIn("64:20000 132:10000 k", kernel)

    def test_how_many_blocks_a_processor_holds(self):
        self.assertEqual(streams.resident([256, 1, 1], 0, 32), 8)         # threads
        self.assertEqual(streams.resident([32, 1, 1], 0, 32), 32)         # blocks
        self.assertEqual(streams.resident([128, 1, 1], 0, 255), 2)        # registers
        self.assertEqual(streams.resident([128, 1, 1], 100 << 10, 32), 2)  # shared memory
        self.assertEqual(streams.resident([1024, 1, 1], 227 << 10, 64), 1)

    def test_a_file_that_is_wrong_is_named(self):
        path = self.directory / "wrong.job"
        path.write_text("vitamin-job 1\nprocessors 0\n")
        done = subprocess.run([str(VITAMIN), "simulate", "--job", str(path), "--until", "1"],
                              capture_output=True, text=True)
        self.assertNotEqual(done.returncode, 0)
        self.assertIn("line 2: processors must be 1 to 4096", done.stderr)


if __name__ == "__main__":
    unittest.main()
