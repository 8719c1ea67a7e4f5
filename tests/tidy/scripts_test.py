# SPDX-License-Identifier: Apache-2.0
"""scripts/test on machines without network, root, disk or memory, and after an interruption;
scripts/amd-silicon. Every program that they call is a fake, which records its arguments."""
import os
import pathlib
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import unittest

SOURCE = pathlib.Path(__file__).resolve().parents[2]
TOOLS = ("awk", "basename", "bash", "cat", "dirname", "env", "flock", "grep", "mkdir", "rm", "sed",
         "sleep", "tail", "touch")
ENOUGH = "Avail\n100000"
# Configures and builds; waits for ever where a file `hang` says so.
CMAKE = """
case $1 in
  -S) preset=$4; kind=configure ;;
  *) preset=$3; kind=build ;;
esac
[ -e "$ROOT/build/$preset/CMakeCache.txt" ] && kept=kept || kept=fresh
echo "cmake $kind $preset $kept" >>"$ROOT/calls"
mkdir -p "$ROOT/build/$preset"
[ "$kind" = build ] || case $preset in
  release) sanitizers= ;; dev) sanitizers=address,undefined ;; tsan) sanitizers=thread ;;
esac
[ "$kind" = build ] ||
  echo "VITAMIN_SANITIZE:STRING=$sanitizers" >"$ROOT/build/$preset/CMakeCache.txt"
if [ -e "$ROOT/hang" ] && grep -qx "$kind" "$ROOT/hang"; then
  sleep 1000 & echo $! >"$ROOT/sleeper"
  wait
fi
[ "$kind" = build ] || touch "$ROOT/build/$preset/build.ninja"
"""
CTEST = """
case "$*" in
  *--show-only=json-v1*)
    echo '{"tests": [{"name": "a", "properties": [{"name": "LABELS", "value": ["hal"]}]}]}' ;;
  *)
    echo "ctest $* VITAMIN_TEST_LONG=${VITAMIN_TEST_LONG-unset}" >>"$ROOT/calls"
    while [ "$1" != --output-junit ]; do shift; done
    cat "$ROOT/junit" >"$2"
    grep -q failure "$ROOT/junit" && exit 8
    exit 0 ;;
esac
"""
PASSED = '<testcase name="a" status="run"/>'
FAILED = '<testcase name="b" status="fail"><failure/><system-out>1 != 2</system-out></testcase>'


class Machine:
    """A directory with a copy of the scripts, and a PATH of fakes."""

    def __init__(self, directory):
        self.root = pathlib.Path(directory) / "vitamin"
        self.bin = pathlib.Path(directory) / "bin"
        self.bin.mkdir()
        shutil.copytree(SOURCE / "scripts", self.root / "scripts")
        shutil.copytree(SOURCE / ".ci", self.root / ".ci")
        (self.root / "tests" / "tidy").mkdir(parents=True)
        shutil.copy(SOURCE / "tests/tidy/counts.py", self.root / "tests/tidy")
        (self.root / "tests/expected_counts.txt").write_text(
            "hal 1 -\n[memory]\nhal 1 -\n[threads]\nhal 1 -\n")
        (self.root / "meminfo").write_text("MemAvailable:   24000000 kB\n")
        (self.root / "junit").write_text(f"<testsuite>{PASSED}</testsuite>")
        (self.root / "toolkits" / "cuda" / "include").mkdir(parents=True)
        (self.root / "toolkits/cuda/include/cuda.h").touch()
        for tool in TOOLS:
            (self.bin / tool).symlink_to(shutil.which(tool))
        self.fake("python3", f'case "$*" in *"-m pip"*) exec pip "$@" ;; esac\n'
                             f'exec {sys.executable} "$@"')
        self.fake("pip", 'case "$*" in *download*) echo no network; exit 1 ;; esac')
        self.fake("nproc", "echo 2")
        self.fake("id", "echo 0")
        self.fake("df", f"echo '{ENOUGH}'")
        self.fake("du", "echo 0 build")
        self.fake("dpkg-query", "echo installed")
        self.fake("dpkg", 'echo "dpkg $*" >>"$ROOT/calls"')
        self.fake("apt-get", 'echo "apt-get $*" >>"$ROOT/calls"')
        self.fake("cmake", CMAKE)
        self.fake("ctest", CTEST)

    def fake(self, name, text):
        path = self.bin / name
        path.write_text(f"#!/bin/sh\n{text}\n")
        path.chmod(0o755)

    def start(self, *options, program="scripts/test", **environment):
        return subprocess.Popen(
            [self.root / program, *options], text=True, stdout=subprocess.PIPE,
            stderr=subprocess.PIPE, stdin=subprocess.DEVNULL, start_new_session=True,
            env={"PATH": str(self.bin), "ROOT": str(self.root),
                 "VITAMIN_MEMINFO": str(self.root / "meminfo"),
                 "VITAMIN_TOOLKITS": str(self.root / "toolkits"), **environment})

    def run(self, *options, **arguments):
        process = self.start(*options, **arguments)
        process.out, process.err = process.communicate()
        return process

    def calls(self):
        path = self.root / "calls"
        return path.read_text().splitlines() if path.exists() else []


class ScriptsTest(unittest.TestCase):
    def setUp(self):
        directory = tempfile.TemporaryDirectory()
        self.addCleanup(directory.cleanup)
        self.machine = Machine(directory.name)

    def assert_stops(self, done, line):
        """With one line that says why, before anything is built, and counted as failed."""
        self.assertEqual(done.returncode, 1, done.err)
        self.assertIn(line, done.err.splitlines()[-1])
        self.assertEqual(done.out.splitlines()[-1], "0 passed, 1 failed")
        self.assertFalse([call for call in self.machine.calls() if call.startswith("cmake")])

    def lacks_packages(self):
        self.machine.fake("dpkg-query", "exit 1")

    def test_every_build_is_tested_in_its_form(self):
        done = self.machine.run()
        self.assertEqual((done.returncode, done.err), (0, ""))
        self.assertEqual(done.out.splitlines()[-1], "6 passed, 0 failed")
        calls = self.machine.calls()
        self.assertEqual([call for call in calls if call.startswith("cmake")],
                         [f"cmake {kind} {preset} {'kept' if kind == 'build' else 'fresh'}"
                          for preset in ("release", "dev", "tsan")
                          for kind in ("configure", "build")])
        tested = [call for call in calls if call.startswith("ctest")]
        for call, preset in zip(tested, ("release", "dev", "tsan")):
            self.assertTrue(call.startswith(f"ctest --preset {preset} "), call)
            self.assertTrue(call.endswith("=unset"), call)

    def test_the_long_form_leaves_nothing_out(self):
        self.assertEqual(self.machine.run("--long").returncode, 0)
        tested = [call for call in self.machine.calls() if call.startswith("ctest")]
        self.assertEqual(len(tested), 3)
        self.assertTrue(all("--preset" not in call and call.endswith("=1") for call in tested))

    def test_ci_runs_the_same_command(self):
        done = self.machine.run(program=".ci/run")
        self.assertEqual(done.out.splitlines()[-1], "6 passed, 0 failed")
        self.assertIn('exec "$(dirname "$0")/../scripts/test"\n',
                      (SOURCE / ".ci/run").read_text())

    def test_only_names_one_tree(self):
        self.assertEqual(self.machine.run("--only", "tsan").returncode, 0)
        self.assertEqual([call for call in self.machine.calls() if call.startswith("cmake")],
                         ["cmake configure tsan fresh", "cmake build tsan kept"])
        refused = self.machine.run("--only", "debug")
        self.assertEqual(refused.returncode, 1)
        self.assertIn("--only needs release, dev or tsan", refused.err)

    def test_a_failed_test_is_shown_and_counted(self):
        (self.machine.root / "junit").write_text(f"<testsuite>{PASSED}{FAILED}</testsuite>")
        done = self.machine.run()
        self.assertEqual(done.returncode, 1)
        self.assertEqual(done.out.count("FAILED: b\n    1 != 2"), 3)
        self.assertEqual(done.out.splitlines()[-1], "6 passed, 3 failed")

    def test_a_build_that_fails_is_a_failure(self):
        self.machine.fake("cmake", "echo broken; exit 1")
        done = self.machine.run()
        self.assertEqual(done.returncode, 1)
        self.assertIn("broken\ntest: this failed: configure release", done.err)
        self.assertEqual(done.out.splitlines()[-1], "0 passed, 1 failed")

    def test_no_root_and_no_sudo(self):
        self.lacks_packages()
        self.machine.fake("id", "echo 1000")
        done = self.machine.run()
        self.assert_stops(done, "apt-get install binutils")
        self.assertIn("neither root nor may it use sudo", done.err)

    def test_sudo_that_refuses(self):
        self.lacks_packages()
        self.machine.fake("id", "echo 1000")
        self.machine.fake("sudo", "exit 1")
        self.assertIn("neither root nor may it use sudo", self.machine.run().err)

    def test_no_network_for_packages(self):
        self.lacks_packages()
        self.machine.fake("apt-get", "echo could not resolve; exit 100")
        done = self.machine.run()
        self.assert_stops(done, "Is there a network?")
        self.assertIn("could not resolve", done.err)

    def test_what_an_interrupted_installation_left_is_finished_first(self):
        self.lacks_packages()
        self.machine.run()
        self.assertEqual([call.split()[0:2] for call in self.machine.calls()[:3]],
                         [["dpkg", "--configure"], ["apt-get", "-q"], ["apt-get", "-q"]])

    def test_no_network_for_cuda_headers(self):
        shutil.rmtree(self.machine.root / "toolkits")
        self.assert_stops(self.machine.run(), "could not be fetched from PyPI")

    def test_half_fetched_cuda_headers_are_not_believed(self):
        shutil.rmtree(self.machine.root / "toolkits")
        half = self.machine.root / "build/cuda-headers/include/cuda.h"
        half.parent.mkdir(parents=True)
        half.touch()
        self.machine.run()
        self.assertFalse(half.exists())

    def test_too_little_disk(self):
        self.machine.fake("df", "printf 'Avail\\n300\\n'")
        self.assert_stops(self.machine.run(), "300 MiB free, 12000 MiB more are needed")

    def test_what_is_built_counts_for_the_disk(self):
        self.machine.fake("df", "printf 'Avail\\n300\\n'")
        self.machine.fake("du", "echo 11800 build")
        self.assertEqual(self.machine.run().returncode, 0)

    def test_jobs_that_are_no_number(self):
        for jobs in ("abc", "0", "-1", "2 3", "1e9"):
            self.assert_stops(self.machine.run(VITAMIN_JOBS=jobs), f"VITAMIN_JOBS is '{jobs}', not")

    def test_a_build_directory_that_cannot_be_written(self):
        (self.machine.root / "build").touch()
        self.assert_stops(self.machine.run(), "build cannot be written")

    def test_too_little_memory(self):
        (self.machine.root / "meminfo").write_text("MemAvailable:   700000 kB\n")
        self.assert_stops(self.machine.run(), "683 MiB of memory are available, 1500 MiB are")

    def test_memory_for_one_compiler_runs_one_at_a_time(self):
        (self.machine.root / "meminfo").write_text("MemAvailable:   2400000 kB\n")
        done = self.machine.run()
        self.assertEqual(done.returncode, 0)
        self.assertIn("1 compiler(s) at a time", done.out)

    def wait_for(self, path):
        while not path.exists() or not path.read_text():
            time.sleep(0.01)
        return int(path.read_text())

    def interrupt(self, what, number):
        (self.machine.root / "hang").write_text(f"{what}\n")
        process = self.machine.start()
        sleeper = self.wait_for(self.machine.root / "sleeper")
        process.send_signal(number)
        process.out, process.err = process.communicate()
        (self.machine.root / "hang").unlink()
        return process, sleeper

    def test_interrupted_it_ends_what_it_started_and_says_so(self):
        for number in (signal.SIGINT, signal.SIGTERM):
            done, sleeper = self.interrupt("build", number)
            self.assertEqual(done.returncode, 128 + number)
            self.assertEqual(done.err, "test: interrupted. Start it again: what was built is "
                                       "kept.\n")
            self.assertEqual(done.out.splitlines()[-1], "0 passed, 1 failed")
            with self.assertRaises(ProcessLookupError):
                os.kill(sleeper, 0)
            (self.machine.root / "sleeper").unlink()
        (self.machine.root / "calls").unlink()
        self.assertEqual(self.machine.run().returncode, 0)
        self.assertIn("cmake configure release kept", self.machine.calls())

    def test_a_configuration_that_was_interrupted_is_not_believed(self):
        self.interrupt("configure", signal.SIGTERM)
        (self.machine.root / "calls").unlink()
        self.assertEqual(self.machine.run().returncode, 0)
        self.assertIn("cmake configure release fresh", self.machine.calls())

    def test_a_second_one_does_not_build_beside_the_first(self):
        (self.machine.root / "hang").write_text("build\n")
        first = self.machine.start()
        self.wait_for(self.machine.root / "sleeper")
        second = self.machine.run()
        first.send_signal(signal.SIGTERM)
        first.communicate()
        self.assertEqual(second.returncode, 1)
        self.assertIn("another of these scripts, or a build", second.err)

    def test_none_builds_beside_what_a_killed_one_left(self):
        (self.machine.root / "hang").write_text("build\n")
        first = self.machine.start()
        sleeper = self.wait_for(self.machine.root / "sleeper")
        os.killpg(first.pid, signal.SIGKILL)  # the build is a group of its own
        first.communicate()
        second = self.machine.run()
        self.assert_stops_without_calls(second)
        os.kill(sleeper, signal.SIGKILL)

    def assert_stops_without_calls(self, done):
        self.assertEqual(done.returncode, 1)
        self.assertIn("another of these scripts, or a build", done.err)


class AmdSiliconTest(unittest.TestCase):
    PROGRAM = "scripts/amd-silicon"

    def setUp(self):
        directory = tempfile.TemporaryDirectory()
        self.addCleanup(directory.cleanup)
        self.machine = Machine(directory.name)
        self.machine.fake("cmake", 'echo "cmake $*" >>"$ROOT/calls"\n' + CMAKE)
        kit = self.machine.root / "tests/amdgpu/silicon_kit.py"
        kit.parent.mkdir()
        kit.write_text("import sys; print('kit', *sys.argv[1:])")

    def run_with(self, versions, *options, **settings):
        """On a machine whose nodes have these numbers; 0 is a CPU."""
        for number, version in enumerate(versions):
            node = self.machine.root / f"topology/nodes/{number}"
            node.mkdir(parents=True)
            (node / "properties").write_text(f"simd_count 4\ngfx_target_version {version}\n")
        return self.machine.run(*options, program=self.PROGRAM, ROCM_PATH=str(self.machine.root),
                                VITAMIN_KFD_TOPOLOGY=str(self.machine.root / "topology"),
                                **settings)

    def configured(self):
        (call,) = (call for call in self.machine.calls() if call.startswith("cmake -S"))
        return call

    def test_without_a_gpu_it_says_what_to_do(self):
        for versions in ((), (0,)):
            done = self.run_with(versions)
            self.assertEqual(done.returncode, 1)
            self.assertRegex(done.err, "the kernel driver lists no AMD GPU here. .*--software")
            self.assertEqual(self.machine.calls(), [])

    def test_it_builds_for_the_parts_that_are_there_and_starts_the_kit(self):
        done = self.run_with((0, 90010, 90402, 90402, 110000), "--only", "bits")
        self.assertEqual((done.returncode, done.err), (0, ""))
        self.assertIn("-DVITAMIN_HIP_ARCHITECTURES=gfx90a;gfx942;gfx1100", self.configured())
        self.assertIn("--target amd-silicon", "\n".join(self.machine.calls()))
        self.assertEqual(done.out.splitlines()[-1], "kit --prefix build/release --only bits")

    def test_on_the_software_gpu_it_builds_for_its_parts(self):
        self.assertEqual(self.run_with((), "--software").returncode, 0)
        self.assertIn("-DVITAMIN_HIP_ARCHITECTURES=gfx90a;gfx1030", self.configured())

    def test_packages_of_debians_rocm_are_not_put_beside_another_rocm(self):
        self.machine.fake("dpkg-query", "exit 1")
        self.run_with((90010,))
        debians = [call for call in self.machine.calls() if "install" in call][-1]
        (self.machine.root / "calls").unlink()
        hipcc = self.machine.root / "bin/hipcc"
        hipcc.parent.mkdir()
        hipcc.touch(0o755)
        self.run_with(())
        ours = [call for call in self.machine.calls() if "install" in call][-1]
        self.assertEqual(set(debians.split()) - set(ours.split()),
                         {"hipcc", "libamdhip64-dev", "libhiprand-dev", "libhsa-runtime-dev",
                          "librocprim-dev", "librocrand-dev", "rocm-device-libs"})

    def test_help_teaches_the_steps(self):
        (self.machine.root / "tests/amdgpu/silicon_kit.py").write_text(
            (SOURCE / "tests/amdgpu/silicon_kit.py").read_text())
        done = self.machine.run("--help", program=self.PROGRAM)
        self.assertEqual((done.returncode, done.err), (0, ""))
        for words in ("attach it to an issue", "--hip-tests DIRECTORY", "which CU each bit"):
            self.assertIn(words, done.out)


if __name__ == "__main__":
    unittest.main()
