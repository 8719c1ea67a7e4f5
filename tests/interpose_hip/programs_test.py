# SPDX-License-Identifier: Apache-2.0
"""Unmodified hipcc programs under `vitamin run`, over the software AMD GPU and the real runtime.

Needs in the environment: VITAMIN and what software_amd.py says. Never run on AMD silicon: what is
shown is that program, runtime and interposer agree.
"""
import collections
import json
import os
import pathlib
import re
import sys
import unittest

from hip_programs import VITAMIN, Programs, launches, read_trace, software_amd


class Output(Programs):
    ORDERED = ("vector_add", "reduction", "gemm", "softmax", "layernorm", "fills_and_copies")

    def test_streams_events_callbacks_and_launches_are_as_natively(self):
        self.check_same("streams")

    def test_the_same_on_gfx1030(self):
        self.check_same("streams", VITAMIN_SOFT_AMDGPU="gfx1030")

    def test_nothing_is_put_behind_work_that_ended_before_the_device_was_waited_for(self):
        result, report = self.shared("null_stream", "after_the_device")
        self.assertEqual((result.returncode, "WRONG" in result.stdout), (0, False), result)
        totals = report["totals"]
        self.assertEqual((totals["launches"]["bound"], totals["other"]["edges"]), (40, 0), totals)

    def test_default_streams_of_threads_are_as_natively(self):
        self.check_same("streams_per_thread")

    def test_copies_and_memory_that_the_host_shares_are_as_natively(self):
        for program in ("copies", "arrays", "managed"):
            native = self.native(program)
            result, _ = self.shared(program)
            self.assertEqual((native.returncode, "WRONG" in native.stdout), (0, False), native)
            self.assertEqual((result.returncode, result.stdout), (0, native.stdout), result.stderr)

    def test_kernels_have_the_same_bits_and_move(self):
        self.until(lambda totals: totals["launches"]["moved"] > 0 and len(totals["widths"]) > 1,
                   lambda: self.check_same("kernels", *self.ORDERED))

    def test_a_kernel_that_counts_on_an_order_shows_that_launches_move(self):
        native = self.native("kernels", "order_dependent").stdout
        others = {self.shared("kernels", "order_dependent",
                              options=("--policy", "random", "--seed", str(seed)))[0].stdout
                  for seed in range(4)}
        self.assertNotEqual(others, {native})


class NullStream(Programs):
    """Which waits and queries cover the NULL stream's work depends on the version of the runtime:
    the bare program says what it is."""

    def check(self, check):
        native = self.native("null_stream", check)
        self.assertEqual((native.returncode, "WRONG" in native.stdout), (0, False),
                         native.stdout + native.stderr)
        for policy in ("random", "static", "fifo"):
            result, report = self.shared("null_stream", check, options=("--policy", policy))
            self.assertEqual((result.returncode, result.stdout.splitlines()),
                             (0, native.stdout.splitlines()), result.stderr)
            self.assertGreater(report["totals"]["launches"]["bound"], 0, report["totals"])
        return native.stdout

    def test_queries_of_streams_answer_as_natively_while_any_stream_is_busy(self):
        self.check("queries")

    def test_waits_for_streams_and_the_device_cover_what_they_cover_natively(self):
        self.check("synchronisations")

    def test_events_behind_a_busy_null_stream_answer_as_natively(self):
        self.check("events")

    def test_streams_behind_a_wait_for_an_event_answer_as_natively(self):
        self.check("event_waits")

    def test_no_wait_is_made_for_an_event_that_has_ended(self):
        self.check("ended_events")

    def test_the_null_stream_covers_what_it_is_behind_and_the_host_reads_its_results(self):
        self.check("chains")

    def test_default_streams_of_threads_answer_as_natively(self):
        self.check("threads")

    def test_streams_with_a_mask_of_the_programs_own_answer_as_natively(self):
        self.check("masked")

    def test_copies_and_fills_without_a_stream_wait_where_they_wait_natively(self):
        self.check("calls")

    def test_copies_of_arrays_without_a_stream_wait_where_they_wait_natively(self):
        self.check("array_calls")


class NewerFunctions(Programs):
    """Functions that came after HIP 5.2, over a runtime that has some of them."""

    def check(self, check):
        source = pathlib.Path(__file__).with_name("newer_runtime.c")
        path = {"LD_LIBRARY_PATH": str(self.runtime_with(source))}
        native = self.native("newer", check, **path)
        self.assertEqual((native.returncode, "WRONG" in native.stdout), (0, False),
                         native.stdout + native.stderr)
        result, report = self.shared("newer", check, **path)
        self.assertEqual((result.returncode, result.stdout), (0, native.stdout), result.stderr)
        return report["totals"]["launches"]

    def test_copies_without_a_stream_follow_the_null_stream(self):
        launches = self.check("synchronous_copies")
        self.assertEqual(launches["bound"], 80, launches)

    def test_launches_of_a_capture_into_a_graph_are_captured(self):
        launches = self.check("capture_to_graph")
        self.assertEqual((launches["captured"], launches["bound"]), (2, 0), launches)

    def test_launches_of_a_module_by_the_c_name_are_bound(self):
        launches = self.check("launches_by_c_name")
        self.assertEqual((launches["seen"], launches["bound"]), (10, 10), launches)

    def test_entry_points_that_the_runtime_is_asked_for_are_bound(self):
        launches = self.check("proc_address")
        self.assertEqual((launches["seen"], launches["bound"]), (10, 10), launches)


class Memory(Programs):
    """Objects that are made and destroyed again and again leave no more than they do natively."""
    # Many short rounds: what is held for a moment only is in some of them, in the minimum of five
    # hardly ever.
    ROUNDS, WARM_UP = 16, 6
    OBJECTS = 500 if os.environ.get("VITAMIN_TEST_LONG") == "1" else 50
    # Some tables that grow, and what the runtime itself keeps now and then.
    NOISE = 48 << 10

    def growth(self, result):
        """By how many bytes the minimum of the memory in use grows from the first half of the
        rounds to the second."""
        self.assertEqual(result.returncode, 0, result)
        held = [int(line) for line in result.stdout.split()][self.WARM_UP:]
        self.assertEqual(len(held), self.ROUNDS - self.WARM_UP)
        return min(held[len(held) // 2:]) - min(held[:len(held) // 2])

    def test_objects_that_come_and_go_leave_nothing(self):
        for kind in ("streams", "blocking_streams", "events", "graphs", "modules", "memory",
                     "memory_in_stream_order", "threads"):
            command = ("flat_memory", kind, str(self.OBJECTS), str(self.ROUNDS))
            more = []  # a leak shows each time, noise of the real runtime does not
            while not more or (more[-1] > self.NOISE and len(more) < 3):
                native = self.growth(self.native(*command))
                ours = self.growth(self.shared(*command, options=("--policy", "fifo"))[0])
                more.append(ours - native)
            self.assertLessEqual(min(more), self.NOISE, (kind, more))


class Corners(Programs):
    def check(self, check, **counts):
        """The output is the native one, every launch is bound; returns the report's totals."""
        native = self.native("corners", check)
        self.assertEqual((native.returncode, "WRONG" in native.stdout), (0, False),
                         native.stdout + native.stderr)
        result, report = self.shared("corners", check)
        self.assertEqual((result.returncode, result.stdout), (0, native.stdout), result.stderr)
        launches = report["totals"]["launches"]
        self.assertEqual(launches["bound"], launches["seen"], report["totals"])
        for name, count in counts.items():
            self.assertEqual(launches[name], count, report["totals"])
        return report["totals"]

    def test_captured_graphs_run_among_bound_launches(self):
        self.check("captured_graph", seen=40, captured=2)

    def test_copies_and_fills_without_a_stream_answer_as_natively_while_a_stream_captures(self):
        self.check("copies_in_captures", seen=30)

    def test_graphs_built_by_hand_are_as_natively(self):
        self.check("built_graph", seen=0)

    def test_entry_points_asked_for_by_name_are_bound(self):
        self.check("asked_for_by_name", seen=10)

    def test_the_last_error_is_the_applications_own(self):
        self.check("last_error")

    def test_attachments_to_streams_are_refused_as_natively(self):
        self.check("attachments", seen=1)

    def test_times_between_events_around_launches(self):
        self.check("times_between_events", seen=10)

    def test_devices_that_are_not_there_and_launches_over_all(self):
        self.check("devices")

    def test_events_and_memory_for_other_processes_answer_as_natively(self):
        self.check("other_processes", seen=1)

    def test_cooperative_grids_run_on_the_whole_device_and_say_so(self):
        trace = self.trace(self.shared, "streams", "cooperative")
        grids = [line["cus"] for line in launches(trace) if "meet" in line["kernel"]]
        self.assertEqual(grids, ["104"])
        report = json.loads((self.directory / "report.json").read_text())
        self.assertEqual(sum(report["totals"]["whole_device"].values()), 1, report["totals"])


@unittest.skipUnless((Programs.PROGRAMS / "libraries").exists(),
                     "rocPRIM and hipRAND are not installed")
class Libraries(Programs):
    def test_libraries_of_debian_are_as_natively(self):
        self.check_same("libraries")


@unittest.skipUnless((Programs.PROGRAMS / "sparse").exists(), "rocSPARSE is not installed")
class Sparse(Programs):
    def test_rocsparse_is_as_natively(self):
        self.check_same("sparse")


class Packets(Programs):
    def launches(self, trace):
        """How often each launch was made. `?` are kernels of the runtime's own."""
        return collections.Counter(
            tuple(line[key] for key in ("kernel", "grid", "block", "packet", "kernarg"))
            for line in launches(trace))

    def test_every_packet_and_its_arguments_are_those_of_the_bare_run(self):
        names = Output.ORDERED
        bare = self.launches(self.trace(self.native, "kernels", *names))
        self.assertGreater(len(bare), 6)
        self.assertEqual(self.launches(self.trace(self.shared, "kernels", *names)), bare)

    def lanes(self, trace):
        """What each stream of the program `lanes` launched, in the order in which it ran: the
        launches' shared memory names their stream, whatever queue they are on."""
        lanes = collections.defaultdict(list)
        for line in launches(trace):
            lanes[line["lds"]].append(
                tuple(line[key] for key in ("kernel", "grid", "block", "packet", "kernarg")))
        return lanes

    def test_every_stream_has_the_packets_of_the_bare_run_in_their_order(self):
        for part in ("gfx90a", "gfx1030"):
            bare = self.lanes(self.trace(self.native, "lanes", VITAMIN_SOFT_AMDGPU=part))
            self.assertEqual([len(lane) for lane in bare.values()], [180] * 5)
            for lane in bare.values():  # the order is a fact about these launches
                self.assertGreater(len(set(lane)), 100)
            for seed in ("1", "2"):
                trace = self.trace(lambda *command, seed=seed, **settings: self.shared(
                    *command, options=("--policy", "random", "--seed", seed), **settings),
                    "lanes", VITAMIN_SOFT_AMDGPU=part)
                lanes = self.lanes(trace)
                self.assertEqual(sorted(lanes), sorted(bare))
                for label, packets in bare.items():
                    different = [i for i, (a, b) in enumerate(zip(packets, lanes[label])) if a != b]
                    self.assertEqual((len(lanes[label]), different[:3]), (180, []), label)
                queues = {(line["lds"], line["queue"]) for line in launches(trace)}
                self.assertGreater(len(queues), 5, "no launch moved")

    def test_fills_and_device_copies_run_under_a_mask(self):
        trace = self.trace(lambda *command, **settings: self.shared(
            *command, options=("--policy", "static"), **settings), "kernels", "fills_and_copies")
        own = launches(trace)
        self.assertGreater(len(own), 3)
        whole = [line["kernel"] for line in own if line["cus"] == "104"]
        self.assertEqual(whole, [])


class Queues(Programs):
    LAUNCHES = 2 * 180  # of `lanes 2`, all made by the process's first thread

    def changes_while_launching(self, trace):
        """Who created, masked or destroyed queues while the program launched, behind the tenth
        launch of each stream."""
        launched = collections.Counter()
        callers = []
        for line in trace:
            if line[""] == "dispatch" and line["kernel"] != "?":
                launched[line["lds"]] += 1
            elif (line[""] in ("create", "mask", "destroy") and len(launched) == 2 and
                  min(launched.values()) >= 10 and launched.total() < self.LAUNCHES):
                callers.append(line["caller"])
        self.assertEqual(launched.total(), self.LAUNCHES)
        return callers

    def test_the_dispatch_path_makes_and_masks_no_queue_after_the_start(self):
        def changes():
            # Long enough for slots to change, which is the work of another thread.
            trace = self.trace(self.shared, "lanes", "2", VITAMIN_SOFT_AMDGPU_HOLD_US="5000")
            changes = collections.Counter(self.changes_while_launching(trace))
            self.assertEqual(changes["main"], 0, changes)
            return changes
        self.until(lambda changes: changes["other"] > 0, changes)

    def test_at_no_time_are_there_more_masked_queues_than_slots(self):
        trace = self.trace(self.shared, "lanes", "2", VITAMIN_SOFT_AMDGPU_HOLD_US="5000")
        masked, most = set(), 0
        for line in trace:
            if line[""] == "mask":
                masked.add(line["queue"])
            elif line[""] == "destroy":
                masked.discard(line["queue"])
            most = max(most, len(masked))
        self.assertEqual(most, 4)


class Obstacles(Programs):
    def test_no_device_is_the_runtimes_own_answer_and_its_exit_code_is_passed(self):
        settings = software_amd.NO_DEVICE  # no /dev/kfd
        native = self.native("streams", **settings)
        self.assertNotEqual(native.returncode, 0)
        result, report = self.shared("streams", **settings)
        self.assertEqual((result.returncode, result.stdout), (native.returncode, native.stdout))
        self.assertIn(native.stderr, result.stderr)
        self.assertIn("no launch was seen", result.stderr)
        self.assertEqual(report["totals"]["launches"]["seen"], 0)

    def test_a_child_of_a_fork_answers_as_natively_and_one_line_says_what_it_is(self):
        for _ in range(8):  # a thread of ours makes queues about when the program forks
            result = self.run_command([VITAMIN, "run", "--policy", "random", "--",
                                       sys.executable, "-c", software_amd.HIP_FORK], {})
            before, child, after = result.stdout.splitlines()
            self.assertEqual((before, after), ("0 0 0 0", "0 0 0 9"), result.stderr)
            self.assertNotEqual(child, "0")
            self.assertEqual(re.sub(r"\d+", "N", result.stderr).count(
                "vitamin: process N is the child of a fork of a process that uses the GPU, whose "
                "runtime fails, hangs or crashes here; start it with exec"), 1, result.stderr)

    def test_launches_whose_code_cannot_be_read_leave_at_once_and_are_counted(self):
        native = self.native("obstacles", "unreadable_code")
        self.assertEqual(native.returncode, 0, native.stdout)
        result, report = self.shared("obstacles", "unreadable_code")
        self.assertEqual((result.returncode, result.stdout), (0, native.stdout), result.stderr)
        self.assertIn("a code object cannot be read; its launches are bound", result.stderr)
        totals = report["totals"]
        self.assertEqual((totals["launches"]["seen"], totals["launches"]["bound"]), (100, 100))
        self.assertEqual(totals["launches"]["deferred"], 0)
        self.assertGreater(totals["whole_device"].get("unsupported_layout", 0), 0, totals)

    def test_a_stream_with_a_mask_of_the_programs_own_keeps_it(self):
        native = self.native("obstacles", "own_mask")
        self.assertEqual(native.returncode, 0, native.stdout)
        trace = self.trace(self.shared, "obstacles", "own_mask")
        report = json.loads((self.directory / "report.json").read_text())
        widths = {name: {line["cus"] for line in trace if name in line.get("kernel", "")}
                  for name in ("on_own_mask", "elsewhere")}
        self.assertEqual(widths["on_own_mask"], {"24"})
        self.assertGreater(len(widths["elsewhere"]), 1, widths)
        masks = {line["queue"]: line["mask"] for line in trace if line[""] == "mask"}
        own = {masks.get(line["queue"]) for line in trace
               if "on_own_mask" in line.get("kernel", "")}
        self.assertEqual({mask.lstrip("0") for mask in own}, {"ffffff0000"})
        totals = report["totals"]
        self.assertEqual(totals["launches"]["seen"], 80)
        self.assertEqual(totals["launches"]["bound"], 40)
        self.assertEqual(totals["not_bound"], {"confined": 40}, totals)
        result, _ = self.shared("obstacles", "own_mask")
        self.assertEqual(result.stdout, native.stdout)

    def check_goes_on(self, *command, says, **settings):
        """Output as natively without the settings, every launch accounted for, `says` said once."""
        native = self.native(*command)
        result, report = self.shared(*command, **settings)
        self.assertEqual((result.returncode, result.stdout), (0, native.stdout), result.stderr)
        said = [line for line in result.stderr.splitlines() if line.startswith("vitamin: ")]
        self.assertEqual([says in line for line in said], [True], result.stderr)
        self.assertRegex(said[0], r"\[VIT-\d+\]$")
        launches = report["totals"]["launches"]
        self.assertGreater(launches["seen"], 0)
        self.assertEqual(launches["bound"], launches["seen"], report["totals"])
        return report["totals"]

    def test_masks_of_the_users_keep_every_launch_on_its_stream(self):
        for name, value in (("HSA_CU_MASK", "0:0-31"), ("ROC_GLOBAL_CU_MASK", "0xffff")):
            totals = self.check_goes_on("kernels", *Output.ORDERED, **{name: value},
                                        says=f"{name}={value} confines this process")
            self.assertEqual(totals["launches"]["narrow"], 0, totals)

    def test_many_plain_queues_leave_one_slot(self):
        self.check_goes_on("kernels", *Output.ORDERED, GPU_MAX_HW_QUEUES="8",
                           says="GPU_MAX_HW_QUEUES=8 leaves room for 1 CU-masked queue")

    def test_queues_that_cannot_be_made_or_masked_cost_no_launch(self):
        # The second queue is that of a plain stream; the runtime tries seven sizes for each queue.
        for fault in ("set_mask@1+", "create_queue@3-9"):
            self.check_goes_on("kernels", *Output.ORDERED, VITAMIN_SOFT_AMDGPU_FAULTS=fault,
                               says="A CU-masked queue cannot be created")

    def test_masks_that_make_no_sense_are_answered_as_natively(self):
        for part in ("gfx90a", "gfx1030"):
            native = self.native("obstacles", "odd_masks", VITAMIN_SOFT_AMDGPU=part)
            result, report = self.shared("obstacles", "odd_masks", VITAMIN_SOFT_AMDGPU=part)
            self.assertEqual((result.returncode, result.stdout), (0, native.stdout), result.stderr)
            self.assertIn("no words: hipErrorInvalidValue", result.stdout)
            confined = report["totals"]["not_bound"]["confined"]
            self.assertEqual(confined, report["totals"]["launches"]["seen"])

    def test_a_lost_device_ends_the_program_as_natively(self):
        lost = {"VITAMIN_SOFT_AMDGPU_FAULTS": "device_lost@3"}
        native = self.native("kernels", "vector_add", **lost)
        self.assertLess(native.returncode, 0)
        result, report = self.shared("kernels", "vector_add", **lost)
        self.assertEqual(report["signal"], -native.returncode, result.stderr)
        self.assertIn("the device is lost", result.stderr)

    def test_masks_that_the_users_own_reduces_are_refused_as_natively(self):
        native = self.native("masks", "try_masks", HSA_CU_MASK="0:0-7")
        self.assertIn("hipErrorOutOfMemory", native.stdout)
        result, _ = self.shared("masks", "try_masks", HSA_CU_MASK="0:0-7")
        self.assertEqual((result.returncode, result.stdout), (0, native.stdout), result.stderr)

    def broken_runtime(self, library):
        """A directory in which these bytes are every libamdhip64."""
        directory = self.new_file("runtime")
        directory.mkdir()
        for number in "567":
            (directory / f"libamdhip64.so.{number}").write_bytes(library)
        return str(directory)

    def test_without_a_runtime_the_loader_speaks_and_its_exit_code_is_passed(self):
        path = {"LD_LIBRARY_PATH": self.broken_runtime(b"no library")}
        native = self.native("streams", **path)
        self.assertEqual(native.returncode, 127)
        result, _ = self.shared("streams", **path)
        self.assertEqual(result.returncode, 127)
        self.assertIn(native.stderr, result.stderr)
        self.assertIn("no launch was seen: ", result.stderr)

    def test_a_runtime_that_is_too_old_is_left_alone(self):
        source = self.directory / "older.c"
        source.write_text("int hipRuntimeGetVersion(int* v) { *v = 50130000; return 0; }\n")
        path = {"LD_LIBRARY_PATH": str(self.runtime_with(source))}
        native = self.native("streams", **path)
        self.assertEqual(native.returncode, 0, native.stdout + native.stderr)
        result, report = self.shared("streams", **path)
        self.assertEqual((result.returncode, result.stdout), (0, native.stdout), result.stderr)
        self.assertIn("libamdhip64 is too old (version 50130000)", result.stderr)
        self.assertEqual(report["totals"]["launches"]["bound"], 0, report["totals"])

    def test_a_runtime_that_is_newer_than_any_known_is_named_with_what_it_adds(self):
        version = "int hipRuntimeGetVersion(int* v) { *v = 80000000; return 0; }\n"
        source = self.directory / "newer.c"
        for added, lines in (("int hipMemcpyTomorrowAsync(void) { return 0; }\n", 1), ("", 0)):
            source.write_text(version + added)
            result, _ = self.shared("kernels", "vector_add",
                                    LD_LIBRARY_PATH=str(self.runtime_with(source)))
            self.assertEqual(result.returncode, 0, result.stderr)
            said = [line for line in result.stderr.splitlines() if "VIT-506" in line]
            self.assertEqual(len(said), lines, result.stderr)
            if lines:
                self.assertIn("newer than this release knows", said[0])
                self.assertIn("1 function (hipMemcpyTomorrowAsync)", said[0])

    def test_doctor_names_the_devices_and_that_they_are_software(self):
        result = self.run_command([VITAMIN, "doctor"], {"VITAMIN_SOFT_AMDGPU_COUNT": "2"})
        self.assertRegex(result.stdout, r"(?m)^ok +hip +\S+libamdhip64\.so\.5, HIP 5\.2")
        self.assertEqual(len(re.findall(r"(?m)^ok +hip_device .*software", result.stdout)), 2)

    def doctor_with(self, runtime, **settings):
        """What `vitamin doctor` says of HIP where these bytes are its runtime."""
        path = {"LD_LIBRARY_PATH": self.broken_runtime(runtime)}
        result = self.run_command([VITAMIN, "doctor"], path | settings)
        return next(line for line in result.stdout.splitlines() if " hip " in line)

    def test_doctor_says_what_is_wrong_with_a_runtime(self):
        runtime = pathlib.Path(os.environ["FAKE_RUNTIME"]).read_bytes()
        self.assertIn("no HIP runtime was found (", self.doctor_with(b"no library"))
        self.assertIn("is HIP 5.1; 5.2 or newer is needed",
                      self.doctor_with(runtime, FAKE_RUNTIME_VERSION="50130000"))
        self.assertIn("sees no device (hipErrorNoDevice): check that /dev/kfd exists",
                      self.doctor_with(runtime, FAKE_RUNTIME_DEVICES="0"))
        self.assertIn("HIP_VISIBLE_DEVICES is '-1': unset it",
                      self.doctor_with(runtime, FAKE_RUNTIME_DEVICES="0",
                                       HIP_VISIBLE_DEVICES="-1"))
        self.assertIn("crashed", self.doctor_with(runtime, FAKE_RUNTIME_CRASH="1"))


class Several(Programs):
    GPUS = {"VITAMIN_SOFT_AMDGPU_COUNT": "2"}

    def test_each_of_two_devices_has_a_pool_and_launches_move_on_both(self):
        def devices(check):
            self.check_same("several", check, **self.GPUS)
            report = json.loads((self.directory / "report.json").read_text())
            (process,) = report["processes"]
            self.assertEqual([device["ordinal"] for device in process["devices"]], [0, 1])
            self.assertEqual(len({device["uuid"] for device in process["devices"]}), 2)
            self.assertEqual([d["launches"]["bound"] for d in process["devices"]], [40, 40])
            return process["devices"]
        for check in ("alone_on_each", "threads_on_each"):
            self.until(lambda found: all(d["launches"]["moved"] > 0 for d in found),
                       lambda check=check: devices(check))

    def test_events_peer_memory_and_copies_between_devices_are_as_natively(self):
        self.check_same("several", "events_between", "copies_between", "copies_without_a_stream",
                        **self.GPUS)

    def test_a_launch_over_all_devices_goes_out_as_it_came(self):
        native = self.native("several", "launch_over_all", **self.GPUS)
        result, report = self.shared("several", "launch_over_all", **self.GPUS)
        self.assertEqual((result.returncode, result.stdout), (0, native.stdout), result.stderr)
        self.assertEqual(report["totals"]["launches"]["bound"], 0)

    def test_processes_share_memory_and_events_as_natively(self):
        self.until(lambda totals: totals["launches"]["moved"] > 0, lambda: self.check_same(
            "several", "memory_of_two_processes", "event_of_two_processes"))


if __name__ == "__main__":
    unittest.main()
