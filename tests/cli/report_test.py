# SPDX-License-Identifier: Apache-2.0
"""The report of a run, and `vitamin doctor`, from outside: what they say of run and machine."""
import json
import os
import shutil
import stat
import struct
import subprocess
import sys
import unittest

from cli_harness import BOUND, CliTest


class Coverage(CliTest):
    def test_full_coverage_prints_a_table_and_succeeds_under_strict(self):
        result = self.run_under("true", options=["--strict"], FAKE_PAGE=BOUND)
        self.assertEqual(result.returncode, 0)
        self.assertEqual(result.stdout, "")
        self.assertIn("10 of 10 launches bound (100 %)", result.stderr)
        self.assertRegex(result.stderr, r"on the whole device +2 +20\.0 % +cluster too large 2")
        self.assertRegex(result.stderr, r"moved to other SMs +7 ")
        self.assertRegex(result.stderr, r"libfake\.so +10 +10")
        self.assertRegex(result.stderr, r"132 +2 +█+ +the whole device")
        self.assertIn("a warning of the fake", result.stderr)

    def test_without_utf8_the_table_is_ascii(self):
        result = self.run_under("true", FAKE_PAGE=BOUND, LC_ALL="C")
        self.assertRegex(result.stderr, r"132 +2 +#+ +the whole device")

    def test_quiet_and_complete_prints_nothing(self):
        result = self.run_under("true", options=["--quiet"], FAKE_PAGE=BOUND)
        self.assertEqual((result.returncode, result.stdout, result.stderr), (0, "", ""))

    def test_a_launch_that_was_not_bound_fails_strict_only(self):
        page = "stage=3 seen=10 bound=9 bridged=1 narrow=9"
        result = self.run_under("true", options=["--quiet"], FAKE_PAGE=page)
        self.assert_one_line(result, 0, "1 of 10 launches were not bound")
        result = self.run_under("true", options=["--quiet", "--strict"], FAKE_PAGE=page)
        self.assert_one_line(result, 123, "1 of 10 launches were not bound")

    def test_one_launch_short_of_all_is_not_shown_as_all(self):
        page = "stage=3 seen=100000 bound=99999 passed=1"
        self.assertIn("(99.9 %)", self.run_under("true", FAKE_PAGE=page).stderr)

    def test_launches_of_graphs_are_launches_wherever_they_ran(self):
        for bound in (7, 5):
            page = f"stage=3 seen=0 graphs=7 graphs_bound={bound}"
            result = self.run_under("true", options=["--quiet", "--strict"], FAKE_PAGE=page)
            self.assertEqual((result.returncode, result.stderr), (0, ""))
            table = self.run_under("true", FAKE_PAGE=page).stderr
            self.assertIn(f"{bound} of 7 graph launches bound", table)
            self.assertNotIn("VIT-2", table)
        self.assertIn("2 launches on the whole device, without a grant, time unknown "
                      "(executable not made yet 2)", table)
        page = "stage=3 seen=10 bound=9 passed=1 graphs=7 graphs_bound=7"
        result = self.run_under("true", options=["--quiet", "--strict"], FAKE_PAGE=page)
        self.assert_one_line(result, 123, "1 of 10 launches were not bound")

    def test_launches_in_contexts_that_are_not_managed_count_as_passed(self):
        page = "stage=3 seen=9 bound=9 unmanaged=1"
        result = self.run_under("true", options=["--quiet", "--strict"], FAKE_PAGE=page)
        self.assert_one_line(result, 123, "1 of 10 launches were not bound")
        self.assertRegex(self.run_under("true", FAKE_PAGE=page).stderr,
                         r"not bound +1 +10\.0 % +foreign context 1\n")

    def test_launches_of_a_process_without_a_pool_are_named_so(self):
        page = "stage=4 seen=0 unmanaged=3 message=the pool could not be made"
        self.assertRegex(self.run_under("true", FAKE_PAGE=page).stderr,
                         r"not bound +3 +100 % +no pool 3\n")

    def test_the_commands_own_failure_wins_over_strict(self):
        result = self.run_under("false", options=["--strict", "--quiet"])
        self.assertEqual(result.returncode, 1)

    def test_the_page_of_a_killed_process_counts(self):
        result = self.python("import os; os.kill(os.getpid(), 9)", ["--json"], FAKE_PAGE=BOUND)
        self.assertEqual(result.returncode, -9)
        self.assertEqual(json.loads(result.stderr)["coverage"]["bound"], 10)

    def test_every_process_of_the_tree_is_in_the_report(self):
        script = self.script("#!/bin/sh\ntrue\ncat /dev/null\nexec cat /dev/null\n")
        result = self.run_under(str(script), options=["--json"], FAKE_PAGE=BOUND,
                                FAKE_PROGRAM="cat")
        report = json.loads(result.stderr)
        names = [process["program"] for process in report["processes"]]
        self.assertEqual(names.count("cat"), 2)
        self.assertEqual(report["coverage"], {"launches": 20, "bound": 20, "graph_launches": 0,
                                              "complete": True, "passed_unmanaged": 0,
                                              "unreadable_pages": 0})

    def test_a_report_file_says_the_same_as_the_json_output(self):
        path = self.directory / "report.json"
        result = self.run_under("true", options=["--json", "--report", str(path), "--seed", "5",
                                                 "--policy", "random"], FAKE_PAGE=BOUND)
        report = json.loads(path.read_text())
        self.assertEqual(report, json.loads(result.stderr))
        self.assertEqual(report["schema"], 1)
        self.assertEqual(report["command"], ["true"])
        self.assertEqual((report["policy"], report["seed"], report["window"]), ("random", 5, None))
        self.assertEqual(report["totals"]["widths"], [{"processors": 8, "launches": 8},
                                                      {"processors": 132, "launches": 2}])
        self.assertEqual(report["totals"]["whole_device"], {"cluster": 2})
        self.assertIsNone(report["problem"])

    def test_a_report_to_stdout_is_json(self):
        result = self.run_under("true", options=["--report", "-", "--quiet"], FAKE_PAGE=BOUND)
        self.assertTrue(json.loads(result.stdout)["coverage"]["complete"])

    def test_a_report_that_cannot_be_written_stops_before_the_command(self):
        mark = self.directory / "mark"
        result = self.run_under("touch", str(mark), options=["--report", "/no/such/directory/x"])
        self.assert_one_line(result, 125, "/no/such/directory/x")
        self.assertFalse(mark.exists())

    def test_a_page_of_another_version_is_said(self):
        code = ("import os, struct, glob\n"
                "path = glob.glob(os.environ['VITAMIN_RUN_DIR'] + '/*.stats')[0]\n"
                "with open(path, 'r+b') as page: page.seek(8); page.write(struct.pack('I', 99))\n")
        result = self.python(code, FAKE_PAGE=BOUND)
        self.assert_one_line(result, 0, "another version")

    def test_the_run_directory_is_private_and_gone_at_the_end(self):
        code = "import os; d = os.environ['VITAMIN_RUN_DIR']; print(d, oct(os.stat(d).st_mode))"
        path, mode = self.python(code).stdout.split()
        self.assertEqual(stat.S_IMODE(int(mode, 8)), 0o700)
        self.assertFalse(os.path.exists(path))
        self.assertEqual(os.listdir(self.directory / "run"), [])


class NoLaunches(CliTest):
    def environment(self, **changes):
        driver = self.directory / "driver"
        if not driver.exists():
            driver.mkdir()
            shutil.copy(os.environ["FAKE_DRIVER"], driver / "libcuda.so.1")
        return super().environment(**({"LD_LIBRARY_PATH": str(driver)} | changes))

    def silent(self, code, *parts, command=("true",), **changes):
        result = self.run_under(*command, **changes)
        self.assert_one_line(result, code, "no launch was seen", *parts)
        strict = self.run_under(*command, options=["--strict"], **changes)
        self.assertEqual(strict.returncode, 123 if code == 0 else code)

    def test_a_program_that_never_uses_cuda_is_said(self):
        self.silent(0, "none of the 1 process of this run used CUDA")

    def test_cuda_started_without_a_launch_is_said(self):
        self.silent(0, "no kernel was launched", FAKE_PAGE="stage=2")

    def test_a_part_of_ours_that_failed_is_said(self):
        self.silent(0, "the pool could not be made", "true (",
                    FAKE_PAGE="stage=4 message=the pool could not be made: out of memory")

    def test_a_missing_driver_is_said(self):
        self.silent(0, "no NVIDIA driver was found", "install", LD_LIBRARY_PATH=None)

    def test_too_old_a_driver_is_said(self):
        self.silent(0, "supports CUDA 12.2", "12.4", FAKE_VERSION="12020")

    def test_no_device_is_said(self):
        self.silent(0, "sees no device", FAKE_INIT="100")

    def test_an_empty_list_of_visible_devices_is_said(self):
        self.silent(0, "CUDA_VISIBLE_DEVICES is ''", FAKE_INIT="100", CUDA_VISIBLE_DEVICES="")

    def test_a_driver_that_refuses_to_start_is_said(self):
        self.silent(0, "CUDA_ERROR_OF_THE_FAKE", "803", FAKE_INIT="803")

    def test_a_driver_that_crashes_is_said(self):
        self.silent(0, "crashed", FAKE_CRASH="1")

    def test_a_statically_linked_program_is_said(self):
        # Just a program header and exit(0): mov edi,0; mov eax,60; syscall
        code = bytes.fromhex("bf00000000b83c0000000f05")
        base, head = 0x400000, 64 + 56
        elf = (b"\x7fELF\x02\x01\x01" + bytes(9) +
               struct.pack("<HHIQQQIHHHHHH", 2, 62, 1, base + head, 64, 0, 0, 64, 56, 1, 64, 0, 0) +
               struct.pack("<IIQQQQQQ", 1, 5, 0, base, base, head + len(code), head + len(code),
                           0x1000) + code)
        program = self.directory / "static"
        program.write_bytes(elf)
        program.chmod(0o755)
        self.silent(0, "statically linked", command=(str(program),))

    @unittest.skipUnless(os.geteuid() == 0, "only root can make a program of another user")
    def test_a_program_that_changes_its_user_is_said(self):
        program = self.directory / "setuid"
        shutil.copy("/bin/true", program)
        os.chown(program, 65534, 65534)
        program.chmod(0o4755)
        self.silent(0, "set-user-ID", command=(str(program),))

    def test_a_command_that_clears_the_preload_is_said(self):
        script = self.script("#!/usr/bin/env -S -i /bin/true\n")
        result = self.run_under(str(script))
        self.assertEqual(result.returncode, 0)
        self.assertIn("no launch was seen", result.stderr)


class Doctor(CliTest):
    def test_a_machine_without_a_driver_is_not_ready(self):
        result = self.call("doctor")
        self.assertEqual(result.returncode, 1)
        self.assertRegex(result.stdout, r"(?m)^problem +driver +no NVIDIA driver")
        self.assertIn("Not ready", result.stdout)

    def test_a_machine_with_driver_and_device_is_ready(self):
        driver = self.directory / "driver"
        driver.mkdir()
        shutil.copy(os.environ["FAKE_DRIVER"], driver / "libcuda.so.1")
        result = self.call("doctor", LD_LIBRARY_PATH=str(driver))
        self.assertEqual(result.returncode, 0, result.stdout)
        self.assertRegex(result.stdout, r"(?m)^ok +device +fake 0, 16 SMs, .* 75\.76")
        none = self.call("doctor", LD_LIBRARY_PATH=str(driver),
                         CUDA_MPS_PIPE_DIRECTORY=str(self.directory)).stdout
        self.assertIn(f"no control daemon in {self.directory}: several processes", none)
        self.assertIn("systemctl enable --now vitamin-mps", none)  # with one server for all users

    def bundle(self, **changes):
        path = self.directory / "bundle.json"
        result = self.call("doctor", "--bundle", str(path), **changes)
        self.assertIn(result.returncode, (0, 1), result.stderr)
        self.assertIn("look into it before you give it away", result.stderr)
        return json.loads(path.read_text()), path.read_text()

    def test_a_bundle_has_what_a_report_of_a_bug_needs(self):
        bundle, _ = self.bundle(VITAMIN_POLICY="fifo")
        self.assertEqual(bundle["doctor"]["healthy"], False)
        self.assertRegex(bundle["version"], r"^\d+\.")
        self.assertIn("Linux", bundle["kernel"])
        self.assertEqual(bundle["environment"]["VITAMIN_POLICY"], "fifo")
        self.assertIn("vitamind", bundle)

    def test_a_bundle_has_no_secret(self):
        secrets = {
            # No variable of ours.
            "AWS_SECRET_ACCESS_KEY": "wJalrXUtnFEMIK7MDENGbPxRfiCYEXAMPLEKEY",
            "CUDA_TOKEN": "short7",
            "VITAMIN_NOTE": "sk9fJ2kLm3nOp4qRs5tUv6wX",
            "HIP_REPOSITORY": "https://someone:hunter2@example.org/x",
        }
        log = self.directory / "run/vitamin"
        log.mkdir()
        (log / "vitamind.sock.log").write_text(
            "info password=letmein9 beside it\nwarning Authorization: Bearer abc.def\n"
            '{"text": "api_key: \'k-1\'"}\nworth keeping GPU-12345678-1234-1234-1234-123456789abc\n'
            + "x1" * 3000 + "\nplain end\n")
        bundle, text = self.bundle(**secrets)
        for secret in [*secrets.values(), "hunter2", "letmein9", "abc.def", "k-1", "x1x1x1"]:
            self.assertNotIn(secret, text)
        self.assertNotIn("AWS_SECRET_ACCESS_KEY", text)
        self.assertEqual(bundle["environment"]["CUDA_TOKEN"], "[left out]")
        self.assertIn("worth keeping GPU-12345678-1234-1234-1234-123456789abc", bundle["log"])
        self.assertIn("plain end", bundle["log"])
        self.assertIn("example.org/x", bundle["environment"]["HIP_REPOSITORY"])

    def test_a_bundle_has_the_end_of_the_journal_of_vitamind(self):
        programs = self.directory / "programs"
        programs.mkdir()
        program = programs / "journalctl"
        program.write_text("#!/bin/sh\n[ \"$1\" = --unit=vitamind ] || exit 1\n"
                           "seq -f 'line %.0f password=letmein9' 20000\n")
        program.chmod(0o755)
        bundle, text = self.bundle(PATH=f"{programs}:{os.environ['PATH']}")
        lines = bundle["journal"].splitlines()
        self.assertEqual(lines[-1], "line 20000 password=[left out]")
        self.assertRegex(lines[0], r"^line 1\d{4} password=\[left out\]$")
        self.assertNotIn("letmein9", text)
        program.write_text("#!/bin/sh\nexit 1\n")
        self.assertEqual(self.bundle(PATH=str(programs))[0]["journal"], "")
        program.write_text("#!/bin/sh\necho begun\nexec sleep 1000\n")
        self.assertEqual(self.bundle(PATH=f"{programs}:{os.environ['PATH']}")[0]["journal"],
                         "begun\n")

    def test_a_bundle_names_no_home(self):
        _, text = self.bundle(HOME="/srv/someone", VITAMIN_X="/srv/someone/file")
        self.assertNotIn("/srv/someone", text)
        self.assertIn("~/file", text)

    def test_a_bundle_that_cannot_be_written_is_one_line(self):
        self.assert_one_line(self.call("doctor", "--bundle", "/no/such/directory/x"), 125,
                             "/no/such/directory/x", "VIT-108")

    def test_json_says_the_same(self):
        result = self.call("doctor", "--json")
        answer = json.loads(result.stdout)
        self.assertEqual(result.returncode, 1)
        self.assertFalse(answer["healthy"])
        verdicts = {check["check"]: check["verdict"] for check in answer["checks"]}
        self.assertEqual(verdicts["preload"], "ok")
        self.assertEqual(verdicts["driver"], "problem")

    def test_a_library_that_does_not_load_is_a_problem(self):
        (self.directory / "tree/lib/libvitamin_cuda.so").write_text("not an object")
        self.assertRegex(self.call("doctor").stdout, r"(?m)^problem +preload ")

    def test_it_says_whether_mps_serves_several_users(self):
        for option, words in (("-multiuser-server", "of all users"),
                              ("-d", "of one user at a time .*-multiuser-server")):
            control = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(3600)",
                                        option])
            self.addCleanup(control.wait)
            self.addCleanup(control.kill)
            (self.directory / "control").touch()
            (self.directory / "nvidia-cuda-mps-control.pid").write_text(f"{control.pid}\n")
            result = self.call("doctor", CUDA_MPS_PIPE_DIRECTORY=str(self.directory))
            self.assertRegex(result.stdout, rf"(?m)^ok +mps +.*{words}")

    def test_mps_own_limit_of_memory_is_no_problem(self):
        limit = {"CUDA_MPS_PINNED_DEVICE_MEM_LIMIT": "0=4G"}
        result = self.call("doctor", **limit)
        self.assertRegex(result.stdout, r"(?m)^note +mps +CUDA_MPS_PINNED_DEVICE_MEM_LIMIT=0=4G: ")
        self.assertNotRegex(result.stdout, r"(?m)^problem +mps ")
        self.assertNotIn("PINNED", self.run_under("true", **limit).stderr)

    def test_an_mps_percentage_is_a_problem(self):
        result = self.call("doctor", CUDA_MPS_ACTIVE_THREAD_PERCENTAGE="50")
        self.assertRegex(result.stdout, r"(?m)^problem +mps +CUDA_MPS_ACTIVE_THREAD_PERCENTAGE")


if __name__ == "__main__":
    unittest.main()
