# SPDX-License-Identifier: Apache-2.0
"""Advice of engines, from where it is given to where a policy hears it: the C API, NVTX ranges of
the toolkit's own headers, and the Python module, over the software driver.

Environment: see doors_test.py; besides ADVISED (a library of launches), LISTENING (a policy that
writes down what it is told), ADVISED_KERNELS.
"""
import os
import pathlib
import re
import subprocess
import sys
import tempfile
import unittest

import doors_test
from time_limit import time_limit

SOURCE = pathlib.Path(os.environ["SOURCE"])
BEGIN = """
import ctypes, os, sys
sys.path.insert(0, {advice!r})
program = ctypes.CDLL(os.environ["ADVISED"])
program.make_stream.restype = ctypes.c_void_p
for function in (program.launch_on, program.capture, program.replay):
    function.argtypes = [ctypes.c_void_p]
assert program.setup(os.environ["ADVISED_KERNELS"].encode()) == 0
"""
LINE = re.compile(r"(\w+) (\S+) sms (\d+) due_us (-?\d+) ready_us (-?\d+) step (\d+)")


class Advice(unittest.TestCase):
    def told(self, script, preload=True, nvtx=True):
        """What the script prints, its stderr, and the lines of the policy."""
        if os.environ["SANITIZED"] == "1":
            self.skipTest("Python is not sanitised")
        with tempfile.TemporaryDirectory() as directory:
            log = pathlib.Path(directory) / "log"
            log.touch()
            environment = {"VITAMIN_POLICY": os.environ["LISTENING"], "LISTENING_LOG": str(log),
                           "ADVISED": os.environ["ADVISED"],
                           "ADVISED_KERNELS": os.environ["ADVISED_KERNELS"]}
            if nvtx:
                environment["NVTX_INJECTION64_PATH"] = os.environ["LIBRARY"]
            code = BEGIN.format(advice=str(SOURCE / "interpose/advice")) + script
            done = subprocess.run(
                [sys.executable, "-c", code], capture_output=True, text=True,
                timeout=time_limit(60),
                env=doors_test.changed_environment(preload, (), True, environment), check=False)
            self.assertEqual(done.returncode, 0, done.stderr)
            lines = [LINE.fullmatch(line).groups() for line in log.read_text().splitlines()]
        return done.stdout.strip(), done.stderr, lines

    def test_the_c_api_is_heard_launch_by_launch(self):
        said, errors, lines = self.told("print(program.use_c_api(), program.finish())")
        # active begin begin end end, then: an end too many, an unknown kind, null.
        self.assertEqual((said, errors), ("222 0", ""))
        self.assertEqual([line[1] for line in lines],
                         ["unknown", "decode", "prefill", "decode", "unknown"])
        self.assertGreaterEqual(int(lines[1][2]), 4)
        self.assertTrue(0 < int(lines[1][3]) <= 300_000_000, lines)
        self.assertEqual(lines[2][3], "0")

    def test_without_vitamin_every_call_does_nothing_and_says_so(self):
        said, errors, lines = self.told("print(program.use_c_api(), program.finish())",
                                        preload=False)
        self.assertEqual((said, errors, lines), ("11111111 0", "", []))

    def test_nvtx_ranges_are_heard_without_a_change_of_the_engine(self):
        _, errors, lines = self.told("program.use_nvtx(); program.finish()")
        self.assertEqual(errors, "")
        self.assertEqual([line[1] for line in lines],
                         ["decode", "decode", "unknown", "prefill", "prefill", "iteration"])
        self.assertGreaterEqual(int(lines[3][2]), 8)
        self.assertTrue(0 < int(lines[3][3]) <= 500_000_000, lines)

    def test_without_the_injection_nvtx_says_nothing(self):
        _, _, lines = self.told("program.use_nvtx(); program.finish()", nvtx=False)
        self.assertEqual([line[1] for line in lines], ["unknown"] * 6)

    def test_a_range_that_says_what_cannot_be_is_named_once(self):
        _, errors, lines = self.told("program.say_nonsense(); program.say_nonsense()")
        self.assertEqual(errors.count("\n"), 1, errors)
        self.assertIn("'vitamin:decoed' is no advice: known classes are prefill, decode", errors)
        self.assertEqual([line[1] for line in lines], ["unknown"] * 2)

    def test_ranges_that_never_close_are_said_once_and_harm_nothing(self):
        said, errors, lines = self.told(
            "program.never_close(); program.never_close(); print(program.finish())")
        self.assertEqual(said, "0")
        self.assertEqual(errors.count("\n"), 1, errors)
        self.assertIn("never closed", errors)
        self.assertEqual([line[1] for line in lines], ["decode"] * 2)

    def test_the_python_module_needs_no_compiler(self):
        _, errors, lines = self.told("""
import vitamin_advice as vitamin
program.launch()
assert vitamin.active()
with vitamin.decode(deadline_ms=800_000, processors=4):
    program.launch()
    program.launch()
    assert vitamin.deadline(200_000)
    program.launch()
stream = program.make_stream()
with vitamin.on_stream(stream, vitamin.BEST_EFFORT):
    program.launch_on(stream)
    with vitamin.prefill():
        program.launch_on(stream)
program.launch_on(stream)
vitamin.iteration_end(stream)
program.launch_on(stream)
assert vitamin.expect(vitamin.DECODE, stream=stream, ready_ms=200_000, deadline_ms=300_000,
                      processors=4)
assert vitamin.cancel(stream)
program.launch_on(stream)
try:
    vitamin.expect(9)
    raise SystemExit("a kind that is none was taken")
except ValueError:
    pass
program.finish()
""")
        self.assertEqual(errors, "")
        self.assertEqual([line[:2] for line in lines],
                         [("select", kind) for kind in
                          ("unknown", "decode", "decode", "decode", "best-effort", "prefill",
                           "unknown", "iteration")] +
                         [("prepare", "decode"), ("select", "iteration")])
        # Minutes: no machine is so busy that they are over before the launch.
        self.assertTrue(0 < int(lines[3][3]) <= 200_000_000 < int(lines[2][3]) <= 800_000_000,
                        lines)
        # One deadline is one step; another one begins the next.
        self.assertEqual(lines[1][5], lines[2][5])
        self.assertNotEqual(lines[2][5], lines[3][5])
        expected = lines[8]
        self.assertTrue(0 < int(expected[4]) <= 200_000_000, lines)
        self.assertTrue(int(expected[4]) < int(expected[3]) <= 300_000_000, lines)

    def test_a_launch_of_a_graph_is_of_the_step_around_it(self):
        _, errors, lines = self.told("""
import vitamin_advice as vitamin
stream = program.make_stream()
assert program.capture(stream) == 0
for seconds in (200, 200, 300):
    with vitamin.decode(deadline_ms=1_000 * seconds, processors=4):
        assert program.replay(stream) == 0
assert program.replay(stream) == 0
program.finish()
""")
        self.assertEqual(errors, "")
        self.assertEqual([line[:2] for line in lines],
                         [("select", kind) for kind in ("decode",) * 3 + ("unknown",)])
        self.assertTrue(all(int(line[2]) >= 4 for line in lines[:3]), lines)
        self.assertTrue(all(int(line[3]) > 0 for line in lines[:3]), lines)
        # Each range has a deadline of its own.
        self.assertEqual(len({line[5] for line in lines[:3]}), 3, lines)

    def test_the_python_module_does_nothing_without_vitamin(self):
        said, _, _ = self.told("""
import vitamin_advice as vitamin
with vitamin.decode(deadline_ms=20):
    program.launch()
print(vitamin.active(), vitamin.expect(vitamin.DECODE), vitamin.deadline(3))
""", preload=False)
        self.assertEqual(said, "False False False")

    VLLM = """
import importlib.metadata, os, sys, types
sys.path.insert(0, os.environ["PACKAGE"])
stream = program.make_stream()
torch = sys.modules["torch"] = types.ModuleType("torch")
torch.cuda = types.SimpleNamespace(
    current_stream=lambda: types.SimpleNamespace(cuda_stream=stream))
def execute_model(self, scheduler_output):
    program.launch_on(stream)
    return scheduler_output.total_num_scheduled_tokens
WorkerWrapperBase = type("WorkerWrapperBase", (), {"execute_model": execute_model})
for name in ("vllm", "vllm.v1", "vllm.v1.worker", "vllm.v1.worker.worker_base"):
    sys.modules[name] = types.ModuleType(name)
sys.modules["vllm.v1.worker.worker_base"].WorkerWrapperBase = WorkerWrapperBase
plugin, = importlib.metadata.entry_points(group="vllm.general_plugins")
for _ in range(2):  # as vLLM may
    plugin.load()()
def step(of_requests, guessed={}):
    tokens = sum(of_requests.values())
    assert WorkerWrapperBase().execute_model(types.SimpleNamespace(
        total_num_scheduled_tokens=tokens, num_scheduled_tokens=of_requests,
        scheduled_spec_decode_tokens=guessed)) == tokens
program.launch_on(stream)
"""

    def told_by_vllm(self, script, **settings):
        with tempfile.TemporaryDirectory() as directory:
            package = pathlib.Path(directory)
            information = package / "vitamin_advice-0.dist-info"
            information.mkdir()
            (information / "METADATA").write_text("Name: vitamin-advice\nVersion: 0\n")
            project = (SOURCE / "deploy/python/pyproject.toml").read_text()
            group, entry = re.search(r'entry-points."(.*)"\]\n(.*)\n', project).groups()
            (information / "entry_points.txt").write_text(
                f"[{group}]\n{entry.replace(chr(34), '')}\n")
            os.environ["PACKAGE"] = directory
            return self.told(self.VLLM + script, **settings)

    def test_each_step_of_vllm_is_announced_once(self):
        _, errors, lines = self.told_by_vllm("""
step({"a": 100})
step({"a": 1})
step({})
step({"a": 1, "b": 299})
step({"a": 1, "b": 4}, {"b": [7, 8, 9]})
program.finish()
""")
        self.assertEqual(errors, "")
        self.assertEqual([(kind, step) for _, kind, *_, step in lines],
                         [("unknown", "0"), ("prefill", "1"), ("decode", "2"), ("decode", "2"),
                          ("prefill", "3"), ("decode", "4")])

    def test_another_vllm_runs_on_with_one_line(self):
        _, errors, lines = self.told_by_vllm("""
del torch.cuda.current_stream
step({"a": 100})
step({"a": 1})
program.finish()
""")
        self.assertEqual(errors.count("steps are not announced: AttributeError"), 1, errors)
        self.assertEqual([line[:2] for line in lines], [("select", "unknown")] * 3)

    def test_vllm_without_vitamin_is_as_it_was(self):
        said, errors, _ = self.told_by_vllm("""
step({"a": 100})
print(WorkerWrapperBase.execute_model is execute_model)
""", preload=False)
        self.assertEqual((said, errors), ("True", ""))

    def test_a_process_that_uses_no_gpu_may_give_advice(self):
        """As one that uses the other vendor's: both libraries are preloaded, one has no runtime."""
        script = """
import sys
sys.path.insert(0, {advice!r})
import vitamin_advice as vitamin
assert vitamin._libraries
with vitamin.decode(deadline_ms=1), vitamin.on_stream(None, vitamin.PREFILL):
    print(vitamin.active(), vitamin.iteration_end(), vitamin.expect(vitamin.DECODE),
          vitamin.cancel())
""".format(advice=str(SOURCE / "interpose/advice"))
        environment = doors_test.changed_environment(True, (), True, {
            "LD_LIBRARY_PATH": "", "ASAN_OPTIONS": "detect_leaks=0"})  # Python has some
        done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True,
                              timeout=time_limit(60), env=environment, check=False)
        self.assertEqual((done.returncode, done.stdout.strip(), done.stderr),
                         (0, "False False False False", ""))

    def test_advice_changes_no_result(self):
        for script in ("program.use_nvtx()", "program.use_c_api()"):
            counts = {self.told(f"{script}; program.finish(); print(program.launches())",
                                preload=preload)[0] for preload in (True, False)}
            self.assertEqual(len(counts), 1, counts)
            self.assertGreater(int(counts.pop()), 4)


if __name__ == "__main__":
    unittest.main()
