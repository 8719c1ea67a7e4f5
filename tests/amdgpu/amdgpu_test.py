# SPDX-License-Identifier: Apache-2.0
"""Unmodified hipcc programs under the real libamdhip64 and ROCr, over the software AMD GPU.

Needs in the environment what software_amd.py says.
"""
import collections
import subprocess
import sys
import time
import unittest

import software_amd
from software_amd import launches, read_trace
from time_limit import time_limit

INSTRUCTIONS_PER_SECOND = 10e6
# For Python: a word of memory is written through each of 30 streams, each with a queue of its own.
MANY_QUEUES = """
import ctypes
hip = ctypes.CDLL("libamdhip64.so.5")
mask = (ctypes.c_uint32 * 4)(0xff)
streams = [ctypes.c_void_p() for _ in range(30)]
memory = ctypes.c_void_p()
errors = [hip.hipMalloc(ctypes.byref(memory), 4 * len(streams))]
for stream in streams:
    errors.append(hip.hipExtStreamCreateWithCUMask(ctypes.byref(stream), 4, mask))
for at, stream in enumerate(streams):
    errors.append(hip.hipMemsetD32Async(ctypes.c_void_p(memory.value + 4 * at), at, 1, stream))
errors.append(hip.hipDeviceSynchronize())
words = (ctypes.c_uint32 * len(streams))()
errors.append(hip.hipMemcpy(words, memory, ctypes.sizeof(words), 2))
print(set(errors), list(words) == list(range(len(streams))))
"""
# For Python: the link between two GPUs, and how many hops it has.
LINK = """
import ctypes
kind, hops = ctypes.c_uint32(), ctypes.c_uint32()
print(ctypes.CDLL("libamdhip64.so.5").hipExtGetLinkTypeAndHopCount(
    0, 1, ctypes.byref(kind), ctypes.byref(hops)), kind.value, hops.value)
"""


class Programs(software_amd.Programs):
    def environment(self, **settings):
        """Settings of the software GPU by what comes behind VITAMIN_SOFT_AMDGPU."""
        return super().environment(**{
            name if name.startswith(("HSA_", "LD_")) else "VITAMIN_SOFT_AMDGPU" + name: str(value)
            for name, value in settings.items()})

    def start(self, program, *arguments, **settings):
        return subprocess.Popen([self.PROGRAMS / program, *arguments], text=True,
                                stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                                stderr=subprocess.PIPE, env=self.environment(**settings))

    def finish(self, process, timeout=150):
        out, error = process.communicate(timeout=time_limit(timeout))
        return subprocess.CompletedProcess(process.args, process.returncode, out, error)

    def run_program(self, *arguments, **settings):
        return self.finish(self.start(*arguments, **settings))

    def check(self, *arguments, lines=1, **settings):
        """Runs a program of checks; all of them must hold. Their lines."""
        result = self.run_program(*arguments, **settings)
        self.assertEqual((result.returncode, "WRONG" in result.stdout), (0, False),
                         result.stdout + result.stderr)
        found = [line for line in result.stdout.splitlines() if line.startswith("ok ")]
        self.assertGreaterEqual(len(found), lines, result.stdout)
        return found

    def traced(self, *arguments, **settings):
        trace = self.new_file("trace")
        result = self.run_program(*arguments, _TRACE=trace, **settings)
        return result, read_trace(trace)


class Kernels(Programs):
    def test_every_kernel_is_right_on_gfx90a(self):
        self.check("kernels", lines=16)

    def test_every_kernel_is_right_on_gfx1030(self):
        self.check("kernels", lines=16, **{"": "gfx1030"})

    def test_every_kernel_is_right_on_a_masked_stream(self):
        self.check("kernels", "--mask=8,16", lines=16)

    def test_copies_of_rectangles_and_boxes_are_right(self):
        for part in ("gfx90a", "gfx1030"):
            trace = self.new_file("trace")
            self.check("copies", lines=2, _TRACE=trace, **{"": part})
            self.assertTrue(any(line[""] == "copy" for line in read_trace(trace)))

    def test_copies_to_and_from_arrays_and_textures_are_right(self):
        for words in ((), ("--mask=8,16",)):
            self.check("arrays", *words, lines=7)

    def test_memory_that_host_and_gpus_share_is_right(self):
        for part in ("gfx90a", "gfx1030"):
            self.check("managed", lines=5, **{"": part})

    def test_products_of_matrices_are_right_and_have_the_same_bits_on_every_mask(self):
        results = {tuple(self.check("matrix", f"--mask={mask}", lines=5))
                   for mask in ("0,8", "8,24")}
        self.assertEqual(len(results), 1, results)

    def test_results_do_not_depend_on_the_mask_when_the_kernel_is_ordered(self):
        names = ("vector_add", "reduction", "gemm", "softmax", "layernorm")
        results = {tuple(self.check("kernels", f"--mask={mask}", *names, lines=5))
                   for mask in ("0,8", "8,16", "3,5", "0,104")}
        self.assertEqual(len(results), 1, results)

    def test_results_depend_on_the_mask_when_the_kernel_counts_on_an_order(self):
        results = {tuple(self.check("kernels", f"--mask={mask}", "order_dependent"))
                   for mask in ("0,8", "8,16", "3,5", "0,104")}
        self.assertGreater(len(results), 1)

    def test_one_mask_gives_one_result_even_when_the_kernel_counts_on_an_order(self):
        results = {tuple(self.check("kernels", "--mask=8,16", "order_dependent"))
                   for _ in range(3)}
        self.assertEqual(len(results), 1)

    def test_an_unknown_instruction_is_named_and_fails_the_dispatch(self):
        result = self.run_program("masks", "unknown")
        self.assertNotEqual(result.returncode, 0)
        self.assertIn("does not know the instruction 'v_qsad_pk_u16_u8", result.stderr)
        self.assertIn("unknown_instruction", result.stderr)

    def test_the_interpreter_runs_ten_million_wave_instructions_a_second(self):
        rates = [0]
        while len(rates) <= 20 and max(rates) <= INSTRUCTIONS_PER_SECOND:
            _, trace = self.traced("masks", "--mask=0,8", "throughput")
            done = max((line for line in trace if line[""] == "done"),
                       key=lambda line: int(line["instructions"]))
            rates.append(int(done["instructions"]) / int(done["cpu_ns"]) * 1e9)
        print(f"{max(rates) / 1e6:.1f} million wave instructions a second")
        self.assertGreater(max(rates), INSTRUCTIONS_PER_SECOND, rates)


class Streams(Programs):
    def test_streams_events_callbacks_and_launches_work_on_gfx90a(self):
        self.check("streams", lines=8)

    def test_streams_events_callbacks_and_launches_work_on_gfx1030(self):
        self.check("streams", lines=8, **{"": "gfx1030"})

    def test_default_streams_of_threads_work(self):
        self.check("streams_per_thread", lines=7)


class Graphs(Programs):
    """What backends/hip/graph.h says of the runtime."""

    def widths(self, check, kernel):
        result, trace = self.traced("graphs", "--mask=0,16", check)
        self.assertEqual((result.returncode, "WRONG" in result.stdout), (0, False), result.stdout)
        return {line["cus"] for line in trace
                if line[""] == "dispatch" and kernel in line["kernel"]}

    def test_graphs_built_captured_and_changed_work(self):
        self.check("graphs", lines=18)

    def test_a_graph_without_branches_runs_on_the_mask_of_its_stream(self):
        for check in ("nested", "changes"):
            for kernel in ("chain_step", "fillBuffer"):
                self.assertEqual(self.widths(check, kernel), {"16"}, (check, kernel))

    def test_branches_but_the_first_run_without_a_mask(self):
        self.assertEqual(self.widths("branches", "branch_step"), {"16", "104"})


@unittest.skipUnless((Programs.PROGRAMS / "libraries").exists(),
                     "rocPRIM and hipRAND are not installed")
class Libraries(Programs):
    def test_libraries_of_debian_are_right_on_gfx90a(self):
        self.check("libraries", lines=6)

    def test_libraries_of_debian_are_right_on_gfx1030(self):
        self.check("libraries", lines=6, **{"": "gfx1030"})

    def test_libraries_give_the_same_bits_on_every_mask(self):
        results = {tuple(self.check("libraries", f"--mask={mask}", lines=6))
                   for mask in ("8,24", "0,104")}
        self.assertEqual(len(results), 1, results)


@unittest.skipUnless((Programs.PROGRAMS / "sparse").exists(), "rocSPARSE is not installed")
class Sparse(Programs):
    def test_rocsparse_is_right_and_has_the_same_bits_on_every_mask(self):
        results = {tuple(self.check("sparse", f"--mask={mask}", lines=3))
                   for mask in ("0,8", "8,24", "0,104")}
        self.assertEqual(len(results), 1, results)


@unittest.skipUnless((Programs.PROGRAMS / "blas").exists(), "rocBLAS is not installed")
class Blas(Programs):
    def test_rocblas_is_right_and_has_the_same_bits_on_every_mask(self):
        results = {tuple(self.check("blas", f"--mask={mask}", lines=12))
                   for mask in ("0,8", "8,24", "0,104")}
        self.assertEqual(len(results), 1, results)


class Masks(Programs):
    def units(self, *arguments, **settings):
        result = self.run_program("masks", *arguments, "placement", **settings)
        self.assertEqual(result.returncode, 0, result.stderr)
        return set(map(int, result.stdout.split()[1:]))

    def test_a_kernel_sees_as_many_compute_units_as_its_mask_names(self):
        for count in (8, 16, 104):
            self.assertEqual(len(self.units(f"--mask=0,{count}")), count)

    def test_disjoint_masks_are_disjoint_compute_units(self):
        left, right = self.units("--mask=0,40"), self.units("--mask=40,64")
        self.assertEqual((len(left), len(right), left & right), (40, 64, set()))

    def test_a_plain_stream_sees_every_compute_unit(self):
        self.assertEqual(len(self.units()), 104)
        self.assertEqual(len(self.units(**{"": "gfx1030"})), 80)

    def test_each_masked_stream_is_one_queue_and_one_mask(self):
        _, trace = self.traced("masks", "--mask=0,24", "placement")
        masks = [line for line in trace if line[""] == "mask"]
        self.assertEqual([line["cus"] for line in masks], ["24"])
        where = [line for line in trace if line.get("kernel", "").find("where") >= 0]
        self.assertEqual([(line["queue"], line["cus"]) for line in where],
                         [(masks[0]["queue"], "24")])

    def test_creating_and_masking_queues_are_counted_as_preemptions(self):
        _, trace = self.traced("masks", "--mask=0,24", "placement")
        changes = [line for line in trace if line[""] in ("create", "mask", "destroy")]
        self.assertEqual([int(line["preemptions"]) for line in changes],
                         list(range(1, len(changes) + 1)))
        summary = trace[-1]
        self.assertEqual(summary[""], "summary")
        self.assertEqual(int(summary["preemptions"]), len(changes))
        self.assertEqual(int(summary["masks"]), 1)


    def test_more_queues_than_the_gpu_has_hardware_queues_take_turns(self):
        result, trace = self.traced(sys.executable, "-c", MANY_QUEUES, _HOLD_US="100000")
        self.assertEqual((result.returncode, result.stdout), (0, "{0} True\n"), result.stderr)
        summary = trace[-1]
        self.assertEqual((summary["hardware_queues"], summary["most_mapped"]), ("24", "24"))
        self.assertGreater(int(summary["turns"]), 0)

    def test_as_many_queues_as_the_gpu_has_hardware_queues_keep_theirs(self):
        result, trace = self.traced(sys.executable, "-c", MANY_QUEUES.replace("30", "20"),
                                    _HOLD_US="100000")
        self.assertEqual((result.returncode, result.stdout), (0, "{0} True\n"), result.stderr)
        self.assertEqual(trace[-1]["turns"], "0")


class Several(Programs):
    """Several GPUs in one process, several processes on one GPU's memory."""
    CHECKS = ("alone_on_each", "threads_on_each", "events_between", "copies_between",
              "launch_over_all")

    def test_two_gpus_of_either_part_work_alone_and_together(self):
        for part in ("gfx90a", "gfx1030"):
            self.check("several", *self.CHECKS, lines=len(self.CHECKS),
                       **{"": part, "_COUNT": "2"})

    def test_eight_gpus_work_alone_and_together(self):
        self.check("several", *self.CHECKS, lines=len(self.CHECKS), _COUNT="8")

    def test_each_gpu_runs_what_was_launched_on_it(self):
        result, trace = self.traced("several", "alone_on_each", _COUNT="3")
        self.assertEqual(result.returncode, 0, result.stdout)
        added = collections.Counter(line["gpu"] for line in launches(trace)
                                    if "add" in line["kernel"])
        self.assertEqual(added, {"0": 40, "1": 40, "2": 40})
        self.assertEqual([line["gpu"] for line in trace if line[""] == "summary"], ["0", "1", "2"])

    def test_one_gpu_is_lost_and_the_runtime_ends_the_program(self):
        result, trace = self.traced("several", "alone_on_each", _COUNT="2", _FAULTS="device_lost@9")
        self.assertLess(result.returncode, 0, result.stdout)
        self.assertEqual(len([line for line in trace if line[""] == "lost"]), 1)

    def test_the_runtime_finds_xgmi_between_gpus_of_a_part_that_has_it(self):
        xgmi, pci_express = 4, 2  # hsa_amd_link_info_type_t
        for part, kind in (("gfx90a", xgmi), ("gfx1030", pci_express)):
            result = self.run_program(sys.executable, "-c", LINK, **{"": part, "_COUNT": "2"})
            self.assertEqual(result.stdout.split()[:2], ["0", str(kind)], result.stderr)

    def test_processes_share_memory_and_events(self):
        self.check("several", "memory_of_two_processes", "event_of_two_processes", lines=2)


class Trace(Programs):
    NAMES = ("vector_add", "reduction", "gemm", "halves", "fills_and_copies")

    def launches(self, *arguments, **settings):
        result, trace = self.traced("kernels", *arguments, **settings)
        self.assertEqual(result.returncode, 0, result.stderr)
        return [tuple(line[key] for key in ("kernel", "grid", "block", "packet", "kernarg"))
                for line in launches(trace)]

    def test_a_launch_has_one_hash_in_every_run_and_on_every_queue(self):
        plain = self.launches(*self.NAMES)
        self.assertGreater(len(plain), 8)
        self.assertEqual(plain, self.launches(*self.NAMES))
        self.assertEqual(plain, self.launches("--mask=0,8", *self.NAMES))

    def test_another_argument_or_grid_has_another_hash(self):
        launches = self.launches("vector_add", "reduction", "gemm", "mathematics")
        self.assertEqual(len({launch[3] for launch in launches}), len(launches))
        fills = [launch for launch in self.launches("fills_and_copies")
                 if "fill" in launch[0].lower()]
        self.assertGreater(len({launch[4] for launch in fills}), 2, fills)

    def test_fills_and_device_copies_are_kernels(self):
        names = " ".join(launch[0] for launch in self.launches("fills_and_copies")).lower()
        self.assertIn("fill", names)
        self.assertIn("copy", names)


class Processes(Programs):
    def shared_cus(self, *commands, confine=()):
        """How many CUs had work of two processes at one time.

        confine: for each command the CUs to which HSA_CU_MASK confines the runtime's own queue.
        Without it the kernels that the runtime launches at the start run on all CUs.
        """
        ledger = self.new_file("ledger")
        traces = [self.directory / f"{ledger.name}.{number}" for number in range(len(commands))]
        masks = [{"HSA_CU_MASK": f"0:{cus}"} for cus in confine] or [{}] * len(commands)
        processes = [self.start("masks", *command.split(), _LEDGER=ledger, _TRACE=trace,
                                _HOLD_US=2000, **mask)
                     for command, trace, mask in zip(commands, traces, masks)]
        for process in processes:
            self.assertEqual(process.stdout.readline(), "ready\n")
        for process in processes:
            process.stdin.write("go\n")
            process.stdin.flush()
        for process in processes:
            result = self.finish(process)
            self.assertEqual(result.returncode, 0, result.stdout + result.stderr)
        return max(int(read_trace(trace)[-1]["shared_cus"]) for trace in traces)

    def test_disjoint_masks_of_two_processes_never_meet(self):
        self.assertEqual(self.shared_cus("--mask=0,40 occupy", "--mask=40,64 occupy",
                                         confine=("0-39", "40-103")), 0)

    def test_disjoint_masks_of_four_processes_never_meet(self):
        first = [26 * number for number in range(4)]
        self.assertEqual(self.shared_cus(*(f"--mask={cu},26 occupy" for cu in first),
                                         confine=[f"{cu}-{cu + 25}" for cu in first]), 0)

    def most_shared(self, enough, *programs, **options):
        """The largest shared_cus() of some runs: on a busy machine the two processes may not run
        at the same time in the first."""
        most = 0
        for _ in range(20):
            most = max(most, self.shared_cus(*programs, **options))
            if most >= enough:
                break
        return most

    def test_overlapping_masks_of_two_processes_are_noticed(self):
        self.assertEqual(self.most_shared(20, "--mask=0,60 occupy", "--mask=40,64 occupy",
                                          confine=("0-59", "40-103")), 20)

    def test_fills_outside_the_masks_are_noticed(self):
        self.assertGreater(self.most_shared(1, "--mask=0,40 occupy_with_fills",
                                            "--mask=40,64 occupy_with_fills"), 0)


class Faults(Programs):
    def test_a_queue_that_cannot_be_created_is_an_error_of_that_stream_only(self):
        # The first compute queue is the runtime's own; it tries smaller and smaller ones for a
        # stream before it gives up.
        result = self.run_program("masks", "try_masks", _FAULTS="create_queue@2+")
        self.assertEqual(result.stdout.split()[1::2], ["hipErrorOutOfMemory"] * 3, result.stderr)
        result = self.run_program("masks", "try_masks", _FAULTS="create_queue@3+")
        self.assertEqual(result.stdout.split()[1::2],
                         ["hipSuccess"] + ["hipErrorOutOfMemory"] * 2, result.stderr)

    def test_a_mask_that_the_driver_refuses_is_an_error_of_that_stream_only(self):
        result = self.run_program("masks", "try_masks", _FAULTS="set_mask@2")
        self.assertEqual(result.stdout.split()[1::2],
                         ["hipSuccess", "hipErrorOutOfMemory", "hipSuccess"], result.stderr)

    def test_a_mask_that_the_users_mask_reduces_is_refused_by_the_runtime(self):
        result = self.run_program("masks", "try_masks", HSA_CU_MASK="0:0-7")
        self.assertEqual(set(result.stdout.split()[1::2]), {"hipErrorOutOfMemory"}, result.stderr)

    def test_an_empty_mask_hangs_its_queue(self):
        process = self.start("masks", "--mask=0,8", "placement", _FAULTS="empty_mask@1")
        self.addCleanup(process.communicate)
        self.addCleanup(process.kill)
        self.assertTrue(any("empty CU mask hangs" in line for line in process.stderr))
        time.sleep(1)
        self.assertIsNone(process.poll())

    def test_a_lost_device_ends_the_program_with_a_message(self):
        result = self.run_program("kernels", "vector_add", _FAULTS="device_lost@3")
        self.assertNotEqual(result.returncode, 0)
        self.assertIn("the device is lost", result.stderr)

    def test_a_setting_that_is_not_understood_is_named(self):
        for name, value in (("", "gfx9000"), ("_FAULTS", "often"), ("_HOLD_US", "long"),
                            ("_COUNT", "0"), ("_COUNT", "many")):
            result = self.run_program("masks", "placement", **{name: value})
            self.assertEqual(result.returncode, 2, result.stderr)
            self.assertIn(f"VITAMIN_SOFT_AMDGPU{name}={value} is not understood", result.stderr)

    def test_without_the_device_programs_say_what_they_say_natively(self):
        result = self.run_program("masks", "placement", **software_amd.NO_DEVICE)
        self.assertEqual(result.returncode, 3)
        self.assertRegex(result.stdout, "hipError(NoDevice|InvalidDevice)")


if __name__ == "__main__":
    unittest.main()
