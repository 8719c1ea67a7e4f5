# SPDX-License-Identifier: Apache-2.0
"""The kit of scripts/amd-silicon: on the software AMD GPU, and over fakes of what it starts.

Needs in the environment: PREFIX, a build directory.
"""
import json
import os
import pathlib
import signal
import subprocess
import sys
import tarfile
import tempfile
import unittest

import silicon_kit
from rocm import without_settings
from time_limit import time_limit

KIT = pathlib.Path(__file__).with_name("silicon_kit.py")
PREFIX = pathlib.Path(os.environ["PREFIX"])
LONG = os.environ.get("VITAMIN_TEST_LONG") == "1"


class Kit(unittest.TestCase):
    def setUp(self):
        temporary = tempfile.TemporaryDirectory(prefix="vitamin-kit-")
        self.addCleanup(temporary.cleanup)
        self.directory = pathlib.Path(temporary.name)
        self.out = self.directory / "archive.tar.gz"

    def start(self, *options, prefix=PREFIX, **settings):
        return subprocess.Popen(
            [sys.executable, KIT, "--prefix", prefix, "--out", self.out, *options],
            text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
            env=without_settings(os.environ) | settings)

    def run_kit(self, *options, **arguments):
        process = self.start(*options, **arguments)
        out, error = process.communicate(timeout=time_limit(900))
        return subprocess.CompletedProcess(process.args, process.returncode, out, error)

    def archive(self):
        """The files of the archive, by name."""
        with tarfile.open(self.out) as archive:
            return {member.name.removeprefix("amd-silicon/"): archive.extractfile(member).read()
                    .decode() for member in archive}

    def steps(self):
        return {step["step"]: step for step in json.loads(self.archive()["report.json"])["steps"]}


class OnTheSoftwareGpu(Kit):
    def check(self, *steps):
        result = self.run_kit("--software", "--only", ",".join(steps))
        self.assertEqual(result.returncode, 0, result.stdout + result.stderr)
        self.assertIn("it says nothing of silicon", result.stdout)
        files = self.archive()
        self.assertIn("On the SOFTWARE AMD GPU", files["report.txt"].splitlines()[0])
        self.assertEqual(sorted(files), sorted(["report.json", "report.txt",
                                                *(f"{step}.log" for step in steps)]))
        return {name: step["data"] for name, step in self.steps().items()}

    def test_it_finds_the_cu_of_each_mask_bit_and_the_plan_in_their_order(self):
        found = self.check("machine", "bits")
        self.assertEqual(found["machine"]["device"]["mask_bits"], 104)
        self.assertTrue(found["machine"]["software"])
        self.assertEqual(len(found["bits"]["bits"]), 104)
        self.assertEqual([found["bits"][key] for key in ("xccs", "engines", "rows", "as_planned")],
                         [1, 8, 13, 13])

    def test_it_measures_queues_masks_and_isolation(self):
        found = self.check("doctor", "queues", "masks", "isolation")
        self.assertGreaterEqual(len(found["queues"]), 20)
        for step in ("masks", "isolation"):
            self.assertTrue(all(value > 0 for value in found[step].values()), found[step])

    def test_two_processes_under_leases_share_no_cu(self):
        result = self.run_kit("--software", "--only", "leases")
        step = self.steps()["leases"]
        self.assertIn(step["verdict"], ("ok", "skipped"), result.stdout)
        if step["verdict"] == "skipped":
            self.skipTest(step["text"])
        for cus in step["data"]["cus"]:
            self.assertGreaterEqual(len(cus), 16, step)

    @unittest.skipUnless(LONG, "minutes: VITAMIN_TEST_LONG=1")
    def test_every_step_ends_well(self):
        result = self.run_kit("--software")
        self.assertEqual(result.returncode, 0, result.stdout + result.stderr)
        verdicts = {name: step["verdict"] for name, step in self.steps().items()}
        self.assertEqual({name for name, verdict in verdicts.items() if verdict != "ok"} -
                         {"leases", "pytorch"}, {"hip-tests"})


class OverFakes(Kit):
    """A build directory and a path of scripts."""
    PROGRAMS = ("bin/vitamin", "bin/vitamind", "bin/demo-train-hip", "tests/amdgpu/silicon",
                "tests/hal_hip_conformance_test", "tests/hip_determinism_suite_test",
                "lib/soft/libvitamin_soft_kfd.so")

    def setUp(self):
        super().setUp()
        self.prefix = self.directory / "build"
        self.path = self.directory / "path"
        self.path.mkdir()
        for file in self.PROGRAMS:
            self.fake(file, "exit 1")
        # `vitamin run ... -- COMMAND`
        self.fake("bin/vitamin", 'while [ "$1" != -- ]; do shift; done; shift; WRAPPED=1 exec "$@"')

    def fake(self, file, text):
        path = self.prefix / file
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"#!/bin/sh\n{text}\n")
        path.chmod(0o755)

    def command(self, name, text):
        self.fake(f"../path/{name}", text)

    def run_step(self, step, *options):
        """The verdict and the text of one step."""
        result = self.run_kit("--software", "--only", step, *options, prefix=self.prefix,
                              PATH=f"{self.path}:{os.environ['PATH']}")
        found = self.steps()[step]
        self.assertEqual(result.returncode, 1 if found["verdict"] == "FAILED" else 0, result)
        return found["verdict"], found["text"]

    def bits_of(self, *cus):
        """`silicon bits` of a device with these CUs, a bit each."""
        lines = [{"cus": cus}] + [{"bit": bit, "missing": [cu]} for bit, cu in enumerate(cus)]
        text = "\n".join(map(json.dumps, lines))
        self.fake("tests/amdgpu/silicon", f"cat <<'END'\n{text}\nEND")
        return self.run_step("bits")

    def test_two_bits_of_one_cu_fail(self):
        verdict, text = self.bits_of([0, 0, 0, 0], [0, 1, 0, 0], [0, 0, 0, 0])
        self.assertEqual((verdict, text), ("FAILED", "two bits of a mask are one CU"))

    def test_bits_in_another_order_than_the_plans_are_counted(self):
        rows = self.bits_of([0, 0, 0, 0], [0, 1, 0, 0], [0, 0, 0, 1], [0, 0, 0, 2])
        self.assertEqual(rows[0], "ok")
        self.assertIn("1 of 2 rows of bits cover every engine", rows[1])

    def test_bits_of_several_xccs_are_planned_over_all_of_them(self):
        verdict, text = self.bits_of(*([xcc, engine, 0, cu] for cu in range(2)
                                       for engine in range(2) for xcc in range(4)))
        self.assertEqual(verdict, "ok")
        self.assertIn("4 XCC(s) of 2 engines; 2 of 2 rows", text)

    def test_a_program_that_fails_is_named_with_its_last_line(self):
        self.fake("tests/amdgpu/silicon", "echo first >&2; echo no such device >&2; exit 3")
        self.assertEqual(self.run_step("queues"),
                         ("FAILED", "silicon ended with exit code 3: no such device"))
        self.assertIn("first", self.archive()["queues.log"])

    def test_an_answer_that_is_none_fails_the_step_only(self):
        self.fake("tests/amdgpu/silicon", "echo '{'")
        verdict, text = self.run_step("masks")
        self.assertEqual(verdict, "FAILED")
        self.assertIn("the answer was not understood", text)

    def test_a_failed_case_of_conformance_is_named(self):
        self.fake("tests/hal_hip_conformance_test",
                  'echo "TEST CASE:  a mask holds"\n'
                  'echo "[doctest] test cases:  3 |  2 passed | 1 failed | 0 skipped"; exit 1')
        self.assertEqual(self.run_step("conformance"), (
            "FAILED", "1 of 3 cases of hal_hip_conformance_test failed: a mask holds"))

    def test_a_program_that_prints_something_else_under_vitamin_is_named(self):
        for program in ("kernels", "streams", "null_stream", "corners", "obstacles"):
            self.fake(f"tests/amdgpu/{program}", "echo same")
        self.assertEqual(self.run_step("programs")[0], "ok")
        self.fake("tests/amdgpu/streams", 'echo "wrapped ${WRAPPED-no}"')
        verdict, text = self.run_step("programs")
        self.assertEqual(verdict, "FAILED")
        self.assertRegex(text, r"^1 of \d+ programs: \S+/streams prints something else under "
                               r"--policy random$")

    def hip_tests(self, wrapped):
        tests = self.directory / "hip-tests"
        tests.mkdir(exist_ok=True)
        (tests / "CTestTestfile.cmake").touch()
        self.command("ctest", f"""
while [ "$1" != --output-junit ]; do shift; done
[ -n "$WRAPPED" ] && second={wrapped} || second=run
echo '<testsuite><testcase name="Unit_hipStreamCreate" status="run"/>' \\
     '<testcase name="Unit_hipEventRecord" status="'$second'"/></testsuite>' >"$2\"""")
        return self.run_step("hip-tests", "--hip-tests", tests)

    def test_hip_tests_that_end_alike_are_counted_and_others_named(self):
        self.assertEqual(self.hip_tests("run"),
                         ("ok", "2 tests end the same bare and under random"))
        self.assertEqual(self.hip_tests("fail"),
                         ("FAILED", "1 of 2 tests differ under random: Unit_hipEventRecord"))

    def test_a_directory_without_hip_tests_is_named(self):
        verdict, text = self.run_step("hip-tests", "--hip-tests", self.directory)
        self.assertEqual(verdict, "FAILED")
        self.assertIn("has no CTestTestfile.cmake: name the build of hip-tests", text)

    def test_what_is_not_there_is_skipped(self):
        self.assertEqual(self.run_step("hip-tests"),
                         ("skipped", "not asked for: --hip-tests DIRECTORY"))
        self.command("python3", "exit 1")
        verdict, text = self.run_step("pytorch")
        self.assertEqual(verdict, "skipped")
        self.assertIn("no PyTorch for ROCm", text)

    def test_training_with_other_bits_under_vitamin_fails(self):
        self.command("python3", "echo 6.4 GPU same")
        self.assertEqual(self.run_step("pytorch")[0], "ok")
        self.command("python3", 'echo 6.4 GPU "${WRAPPED-bare}"')
        self.assertEqual(self.run_step("pytorch")[0], "FAILED")

    def test_the_home_directory_is_not_in_the_archive(self):
        self.fake("tests/amdgpu/silicon", 'echo "$HOME/secret" >&2; exit 1')
        self.run_step("isolation")
        self.assertIn("~/secret", self.archive()["isolation.log"])
        self.assertNotIn(str(pathlib.Path.home()) + "/", self.archive()["isolation.log"])

    def test_a_program_that_hangs_is_ended_and_named(self):
        self.fake("tests/amdgpu/silicon", "sleep 1000")
        kit = silicon_kit.Kit(self.prefix, False, None, self.directory)
        with open(self.directory / "log", "w", encoding="utf-8") as kit.log:
            with self.assertRaisesRegex(silicon_kit.Failed, "silicon did not end within 1 s"):
                kit.run(self.prefix / "tests/amdgpu/silicon", "bits", limit=1)

    def interrupted(self, number):
        mark = self.directory / f"started{number}"
        self.fake("tests/amdgpu/silicon", f"echo $$ >{mark}; sleep 1000")
        process = self.start("--software", "--only", "hip-tests,queues,masks", prefix=self.prefix)
        while not mark.exists() or not mark.read_text():
            self.assertIsNone(process.poll())
        process.send_signal(number)
        _, error = process.communicate(timeout=time_limit(60))
        self.assertEqual(process.returncode, 1)
        self.assertIn("interrupted: the archive has the steps that ended", error)
        self.assertEqual(list(self.steps()), ["hip-tests"])
        with self.assertRaises(ProcessLookupError):
            os.kill(int(mark.read_text()), 0)

    def test_interrupted_it_writes_what_there_is_and_leaves_no_process(self):
        self.interrupted(signal.SIGINT)
        self.interrupted(signal.SIGTERM)

    def stops(self, *options, prefix=None):
        result = self.run_kit(*options, prefix=prefix or self.prefix)
        self.assertEqual((result.returncode, self.out.exists()), (2, False), result)
        return result.stderr

    @unittest.skipIf(os.path.exists("/dev/kfd"), "this machine has an AMD GPU")
    def test_without_a_gpu_it_says_what_to_do(self):
        self.assertIn("there is no AMD GPU here (/dev/kfd is missing): load the amdgpu driver, or "
                      "try the kit on the software AMD GPU with --software.", self.stops())

    def test_a_directory_without_the_build_is_named(self):
        self.assertIn(f"{self.directory} lacks bin/vitamin: build it with scripts/amd-silicon.",
                      self.stops("--software", prefix=self.directory))

    def test_an_archive_that_cannot_be_written_is_named_before_anything_runs(self):
        self.out = self.directory / "none/archive.tar.gz"
        self.assertIn("No such file or directory", self.stops("--software"))

    def test_a_step_that_does_not_exist_is_named(self):
        self.assertIn("there is no step 'speed'; there are machine, doctor, bits",
                      self.stops("--only", "speed"))


if __name__ == "__main__":
    unittest.main()
