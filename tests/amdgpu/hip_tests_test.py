# SPDX-License-Identifier: Apache-2.0
"""The logic of hip_tests.py, over fakes of hipcc, of Vitamin and of ROCm's hip-tests."""
import contextlib
import io
import json
import os
import pathlib
import re
import signal
import subprocess
import sys
import tempfile
import unittest
from unittest import mock

import hip_tests
from time_limit import time_limit, wait_until

# Copies sources to objects, and those to a shell script that ends with a call of `main`.
HIPCC = """
case "$*" in *--version*) echo "HIP version: 5.2.1"; exit;; esac
for word; do
  case $last in -c|--genco) source=$word;; -o) target=$word;; esac
  case $word in *.o) objects="$objects $word";; esac
  last=$word
done
if [ "$source" ]; then
  ! grep "^error" "$source" >&2 && cp "$source" "$target"
else
  { echo '#!/bin/sh'; cat $objects; echo 'main "$@"'; } >"$target"; chmod +x "$target"
fi
"""
MAIN = """
main() {
  if [ "$1" = --list-test-names-only ]; then printf '%s\\n' $cases; exit 4; fi
  "$1" && echo 'Passed 1 test case with 1 assertion.'
}
"""
# Runs what stands behind `--`, with its own words in MODE.
VITAMIN = """
while [ "$1" != -- ]; do [ $# = 0 ] && exit; MODE="$MODE $1"; shift; done; shift
export MODE; echo "vitamin: 2 of 3 launches bound" >&2; "$@"
"""


def case(name, body):
    return f'cases="$cases {name}"\n{name}() {{\n{body}\n}}\n'


def has_ended(process):
    try:
        stat = pathlib.Path(f"/proc/{process}/stat").read_text()
    except FileNotFoundError:
        return True
    return stat.rpartition(")")[2].split()[0] == "Z"  # an orphan that is not yet reaped


class OfOneCase(unittest.TestCase):
    def results(self, **verdicts):
        return {mode: {"verdict": verdict, "why": why} for mode, (verdict, why) in verdicts.items()}

    def test_the_first_failure_is_one_line_without_directories(self):
        out = ("noise\ncatch/unit/a.cc:12: passed: x\ncatch/unit/a.cc:13: failed: x == y for:\n"
               "  1\n  ==\n  2 with 1 message: 'Error: invalid\n    Code: 1'\n"
               "catch/unit/a.cc:14: failed: z\nFailed 1 test case, failed 2 assertions.\n")
        self.assertEqual(hip_tests.first_failure(out), "a.cc:13: failed: x == y for: 1 == 2 with 1 "
                         "message: 'Error: invalid Code: 1'")
        self.assertIsNone(hip_tests.first_failure("Passed 1 test case.\n"))

    def test_only_a_case_that_says_that_it_passed_has_passed(self):
        self.assertEqual(hip_tests.outcome(0, "Passed 1 test case with 3 assertions.\n", ""),
                         {"verdict": "pass", "why": ""})
        self.assertEqual(hip_tests.outcome(0, "", "bye"),
                         {"verdict": "fail", "why": "exit code 0 before its end: bye"})
        self.assertEqual(hip_tests.outcome(0, "HIP_SKIP_THIS_TEST\nPassed 1 test case.\n", "")
                         ["verdict"], "skip")

    def test_a_signal_is_the_same_bare_and_under_vitamin_run(self):
        for code in (-11, 139):
            self.assertEqual(hip_tests.outcome(code, "", ""),
                             {"verdict": "fail", "why": "signal 11: "})

    def test_what_the_software_gpu_says_comes_first(self):
        found = hip_tests.outcome(1, "a.cc:1: failed: x\n", "noise\nsoftware AMD GPU: no images\n")
        self.assertEqual(found["why"], "software AMD GPU: no images; a.cc:1: failed: x")

    def test_failures_are_alike_whose_reasons_are_but_for_addresses_and_queues(self):
        alike = self.results(bare=("fail", "a.cc:1: 0x12 queue 3"),
                             random=("fail", "a.cc:1: 0xff queue 14"))
        self.assertEqual(hip_tests.classify(alike), "fail in all")
        other = self.results(bare=("fail", "a.cc:1: 1 == 0"), random=("fail", "a.cc:2: 1 == 0"))
        self.assertEqual(hip_tests.classify(other), "differs")

    def test_each_pair_of_verdicts_has_its_class(self):
        wanted = {("pass", "pass"): "pass in all", ("skip", "skip"): "skipped",
                  ("pass", "fail"): "differs", ("fail", "pass"): "differs",
                  ("pass", "limit"): "differs", ("pass", "skip"): "differs"}
        for (bare, random), name in wanted.items():
            found = hip_tests.classify(self.results(bare=(bare, ""), random=(random, "")))
            self.assertEqual(found, name, (bare, random))
        self.assertEqual(hip_tests.classify(self.results(bare=("limit", ""))),
                         "over the limit bare")

    def test_launches_and_graphs_are_counted_from_what_vitamin_run_says(self):
        whole = "  graphs: 3 launches on the whole device, without a grant, time unknown ({})\n"
        for report, counts in (
                ("", {}),
                ("vitamin run   1,002 of 1,003 launches bound (99.9 %), policy static\n",
                 {"bound": [1002, 1003]}),
                ("vitamin run   0 of 3 graph launches bound (0 %)\n" +
                 whole.format("nodes that stay 2, new or changed 1"),
                 {"graphs": [0, 3], "whole": "nodes that stay 2, new or changed 1"}),
                ("vitamin run   2 of 2 graph launches bound\n"
                 "  graphs: 2 of 2 launches bound, 1 moved; on SMs: 8 (2)\n", {"graphs": [2, 2]}),
                ("vitamin run   5 of 5 launches bound\n"
                 "  graphs: 1 of 4 launches bound, 0 moved; on SMs: 8 (1)\n" +
                 whole.format("nodes that stay 3"),
                 {"bound": [5, 5], "graphs": [1, 4], "whole": "nodes that stay 3"})):
            self.assertEqual(hip_tests.counted(report), counts, report)

    def test_names_are_quoted_for_catch(self):
        self.assertEqual(hip_tests.as_filter("Unit_a - <int[3], b*>"),
                         "Unit_a - <int\\[3\\]\\, b\\*>")


class OverFakes(unittest.TestCase):
    def setUp(self):
        temporary = tempfile.TemporaryDirectory(prefix="vitamin-hip-tests-")
        self.addCleanup(temporary.cleanup)
        self.directory = pathlib.Path(temporary.name)
        self.checkout, self.build = self.directory / "hip-tests", self.directory / "build"
        self.objects = self.directory / "objects"
        self.script("path/hipcc", HIPCC)
        self.script("build/bin/vitamin", VITAMIN)
        self.script("build/bin/vitamind", "exec sleep 1000")
        self.script("build/lib/libvitamin_hip.so", "")
        # Any library will do.
        library = re.search(r"/\S*/libc\.so\.6", pathlib.Path("/proc/self/maps").read_text())[0]
        driver = self.build / hip_tests.rocm.DRIVER
        driver.parent.mkdir()
        driver.symlink_to(library)
        self.source("hipTestMain/main", MAIN)
        self.source("hipTestMain/standalone_main", "error: another main")
        path = {"PATH": f"{self.directory}/path:{os.environ['PATH']}"}
        patch = mock.patch.dict(os.environ, path)
        patch.start()
        self.addCleanup(patch.stop)

    def script(self, file, text):
        path = self.directory / file
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"#!/bin/sh\n{text}\n")
        path.chmod(0o755)

    def source(self, name, text):
        path = self.checkout / f"catch/{name}.cc"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)

    def start(self, *options, units="stream"):
        """The exit code and all that was printed."""
        out = io.StringIO()
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(out):
            code = hip_tests.main([str(self.checkout), "--build", str(self.build), "--objects",
                                   str(self.objects), "--units", units, *options])
        return code, out.getvalue()

    def results(self):
        lines = (self.objects / "results.jsonl").read_text().splitlines()
        return [json.loads(line) for line in lines[1:]]

    def test_cases_are_counted_by_unit_and_class(self):
        self.source("unit/stream/a", case("Unit_passes", "true"))
        self.source("unit/stream/b", case("Unit_skips", "echo HIP_SKIP_THIS_TEST") +
                    case("Unit_fails", "echo b.cc:3: failed: broken; return 1"))
        self.source("unit/event/a", case("Unit_event", "true"))
        code, printed = self.start(units="stream,event")
        self.assertEqual(code, 0, printed)
        for line in ("stream (3) | 1 | 1 | 1 | 0 | 0 | 0", "event (1) | 1 | 0 | 0 | 0 | 0 | 0"):
            self.assertIn(f"| {line} |\n", printed)
        self.assertIn("fail in all: Unit_fails (stream)\n    bare: fail b.cc:3: failed: broken\n",
                      printed)
        self.assertIn("hip-tests unknown on HIP 5.2.1, gfx90a; Vitamin ", printed)
        for row in self.results():
            self.assertRegex(f"{row['date']} {row['vitamin']}", r"^20\d\d-\d\d-\d\d \w+")
            self.assertEqual([*row["rounds"][0]], ["bare", "random", "static"])
            self.assertEqual(row["rounds"][0]["static"]["bound"], [2, 3])

    def test_a_vitamind_ends_with_a_run_that_is_terminated(self):
        vitamind, inside = self.directory / "vitamind", self.directory / "inside"
        self.script("build/bin/vitamind", f"echo $$ >{vitamind}; exec sleep 1000")
        self.source("unit/stream/a", case("Unit_long", f"echo $$ >{inside}; exec sleep 1000"))
        with subprocess.Popen(
                [sys.executable, hip_tests.__file__, self.checkout, "--build", self.build,
                 "--objects", self.objects, "--units", "stream", "--modes", "vitamind"],
                stdout=subprocess.DEVNULL) as process:
            for file in (vitamind, inside):
                wait_until(lambda file=file: file.exists() and file.read_text(), plenty=60)
            process.terminate()
            self.assertEqual(process.wait(time_limit(60)), 128 + signal.SIGTERM)
        for file in (vitamind, inside):
            wait_until(lambda file=file: has_ended(int(file.read_text())), plenty=60)

    def test_a_file_that_hip_tests_has_commented_out_is_not_built(self):
        self.source("unit/stream/a", case("Unit_new", "true"))
        self.source("unit/stream/a_old", case("Unit_old", "true"))
        lists = self.checkout / "catch/unit/stream/CMakeLists.txt"
        lists.write_text("set(TEST_SRC ${ALL})  # a.cc and more\n  # a_old.cc  # of old\n")
        _, printed = self.start()
        self.assertEqual([row["test"] for row in self.results()], ["Unit_new"], printed)

    def test_a_case_that_differs_is_run_three_times_and_named_with_the_reasons(self):
        self.source("unit/stream/a", case("Unit_other",
                                          'case $MODE in *static) kill -11 $$;; esac'))
        code, printed = self.start()
        self.assertEqual(code, 1)
        self.assertEqual(len(self.results()[0]["rounds"]), 3)
        self.assertIn("differs in 3 of 3 rounds: Unit_other (stream)\n    bare: pass\n"
                      "    random: pass\n    static: fail signal 11:", printed)

    def test_a_case_that_differs_once_differs(self):
        mark = self.directory / "mark"
        self.source("unit/stream/a", case("Unit_once",
                                          f'[ -z "$MODE" ] || [ -e {mark} ] || ! touch {mark}'))
        code, printed = self.start()
        self.assertEqual(code, 1)
        self.assertIn("differs in 1 of 3 rounds: Unit_once", printed)

    def test_a_case_that_does_not_always_end_alike_bare_is_counted_as_that(self):
        mark = self.directory / "mark"
        self.source("unit/stream/a", case("Unit_luck",
                                          f'[ "$MODE" ] || [ -e {mark} ] || ! touch {mark}'))
        code, printed = self.start()
        self.assertEqual(code, 0)
        self.assertIn("| stream (1) | 0 | 0 | 0 | 0 | 1 | 0 |", printed)
        self.assertIn("varies bare in 1 of 3 rounds: Unit_luck", printed)

    def test_a_case_that_ends_otherwise_as_rarely_bare_varies(self):
        seen, mark = self.directory / "seen", self.directory / "mark"
        self.source("unit/stream/a", case("Unit_rare", f"""
if [ -z "$MODE" ]; then echo >>{seen}; [ $(wc -l <{seen}) -lt 6 ]
else [ -e {mark} ] || ! touch {mark}; fi"""))
        code, printed = self.start()
        self.assertEqual(code, 0)
        self.assertIn("varies bare in 1 of 3 rounds: Unit_rare", printed)
        self.assertIn("1 cases, 0 to run", self.start()[1])

    def test_code_that_cases_load_is_compiled_and_lies_beside_them(self):
        self.source("unit/stream/a", case("Unit_loads", "grep -q contents some.code"))
        self.source("unit/stream/some_code", "contents")
        lists = self.checkout / "catch/unit/stream/CMakeLists.txt"
        lists.write_text("""add_custom_target(some.code
    COMMAND ${CMAKE_CXX_COMPILER} -mcode-object-version=5 --genco ${OFFLOAD_ARCH_STR}
    ${CMAKE_CURRENT_SOURCE_DIR}/some_code.cc
    -o ${CMAKE_CURRENT_BINARY_DIR}/../../unit/module/some.code -Iinclude)""")
        code, printed = self.start()
        self.assertEqual(code, 0, printed)
        self.assertIn("| stream (1) | 1 | 0 | 0 | 0 | 0 | 0 |", printed)

    def test_objects_of_another_run_are_left_alone(self):
        self.source("unit/stream/a", case("Unit_passes", "true"))
        self.objects.mkdir()
        with hip_tests.alone(self.objects):
            code, printed = self.start()
        self.assertEqual(code, 2)
        self.assertIn(f"another run uses {self.objects}: wait for it, or name other", printed)
        self.assertEqual(self.start()[0], 0)

    def test_started_again_it_runs_only_what_is_left(self):
        mark = self.directory / "mark"
        self.source("unit/stream/a", case("Unit_first", f"echo >>{mark}") +
                    case("Unit_second", "true"))
        self.start("--only", "first")
        self.assertEqual([row["test"] for row in self.results()], ["Unit_first"])
        _, printed = self.start()
        self.assertIn("stream: 2 cases, 1 to run", printed)
        self.assertNotIn("compiled", printed)
        self.assertEqual([row["test"] for row in self.results()], ["Unit_first", "Unit_second"])
        self.assertEqual(len(mark.read_text()), 3)
        self.assertIn("| stream (2) | 2 | 0 | 0 | 0 | 0 | 0 |", printed)

    def test_started_again_with_another_mode_it_runs_what_lacks_it(self):
        self.source("unit/stream/a", case("Unit_passes", "true"))
        self.start("--modes", "random,vitamind")
        self.assertIn("1 cases, 0 to run", self.start("--modes", "random")[1])
        self.assertIn("1 cases, 1 to run", self.start("--modes", "random,static")[1])
        self.assertEqual([*self.results()[-1]["rounds"][0]], ["bare", "random", "static"])

    def test_a_file_that_does_not_compile_is_named_and_the_others_run(self):
        self.source("unit/stream/a", case("Unit_passes", "true"))
        self.source("unit/stream/b", "error: no such function")
        code, printed = self.start()
        self.assertEqual(code, 0)
        log = self.objects / "stream/b.log"
        self.assertIn(f"b.cc: hipcc FAILED, see {log}", printed)
        self.assertIn("no such function", log.read_text())
        self.assertIn("| stream (1) | 1 | 0 | 0 | 0 | 0 | 0 |", printed)
        self.assertNotIn("FAILED", self.start()[1])

    def test_kernels_that_units_share_are_linked(self):
        self.source("unit/stream/a", case("Unit_uses", "shared_kernel"))
        self.source("kernels/Set", "shared_kernel() { true; }\n")
        sources = self.checkout / "catch/kernels"
        (sources / "Set.cc").rename(sources / "Set.cpp")
        self.assertIn("| stream (1) | 1 | 0 | 0 | 0 | 0 | 0 |", self.start()[1])

    def test_a_program_of_its_own_among_the_sources_is_left_out(self):
        self.source("unit/stream/a", case("Unit_passes", "true"))
        self.source("unit/stream/a_exe", "int main() {}\nerror: not compiled")
        self.assertNotIn("FAILED", self.start()[1])

    def test_a_case_that_hangs_bare_is_ended_and_not_run_wrapped(self):
        self.source("unit/stream/a", case("Unit_hangs", "sleep 1000"))
        _, printed = self.start("--limit", "0.01")
        self.assertIn("over the limit bare: Unit_hangs", printed)
        self.assertEqual([*self.results()[0]["rounds"][0]], ["bare"])
        self.assertIn("1 cases, 0 to run", self.start("--limit", "0.01")[1])
        self.source("unit/stream/a", case("Unit_hangs", "true"))
        os.utime(self.objects / "stream/a.o", (0, 0))
        printed = self.start()[1]
        self.assertIn("1 cases, 1 to run", printed)
        self.assertIn("| stream (1) | 1 | 0 | 0 | 0 | 0 | 0 |", printed)

    def test_a_process_that_a_case_leaves_behind_is_not_waited_for(self):
        self.source("unit/stream/a", case("Unit_leaves", "sleep 1000 & true"))
        self.assertIn("| stream (1) | 1 | 0 | 0 | 0 | 0 | 0 |", self.start()[1])

    def test_vitamind_serves_the_mode_of_its_name(self):
        self.source("unit/stream/a", case("Unit_modes",
                                          'echo "a.cc:1: failed: ${MODE%/socket}"; false'))
        self.start("--modes", "random,vitamind")
        self.assertEqual({mode: result["why"] for mode, result in
                          self.results()[0]["rounds"][0].items()},
                         {"bare": "a.cc:1: failed:",
                          "random": "a.cc:1: failed: run --policy random",
                          "vitamind": "a.cc:1: failed: run --daemon --socket "
                                      f"{self.objects}/daemon"})

    def stops(self, *options, **arguments):
        code, printed = self.start(*options, **arguments)
        self.assertEqual(code, 2, printed)
        return printed

    def test_results_of_another_compiler_are_not_mixed(self):
        self.source("unit/stream/a", case("Unit_passes", "true"))
        self.start()
        self.script("path/hipcc", HIPCC.replace("5.2.1", "6.4.3"))
        self.assertIn("is of another hip (5.2.1, now 6.4.3): name another --objects", self.stops())

    def test_what_is_wrong_is_named(self):
        self.source("unit/stream/a", "")
        self.source("unit/event/a", "")
        self.assertIn("there is no unit 'streams'; there are event, stream",
                      self.stops(units="streams"))
        self.assertIn("there is no mode 'fast'; there are random, static, vitamind",
                      self.stops("--modes", "fast"))
        (self.build / "bin/vitamin").unlink()
        self.assertIn("lacks bin/vitamin: build vitamin", self.stops())
        self.checkout = self.directory
        self.assertIn("it is no checkout of ROCm/hip-tests (git clone", self.stops())


if __name__ == "__main__":
    unittest.main()
