# SPDX-License-Identifier: Apache-2.0
"""What the fake kernel driver says to programs that it does not serve.

Needs in the environment what software_amd.py says. The programs here speak to the driver directly:
Python opens /dev/kfd and calls ioctl() through libc, as ROCm's libhsakmt does.
"""
import os
import pathlib
import re
import subprocess
import sys
import unittest

import newer_rocm
from software_amd import HIP_FORK, NO_DEVICE, SoftwareAmd, read_trace
from time_limit import time_limit

PRELUDE = """
import fcntl, os
def call(number, size=16):
    try:
        fcntl.ioctl(kfd, 3 << 30 | size << 16 | ord("K") << 8 | number, bytearray(size))
        return 0
    except OSError as error:
        return error.errno
"""
OPEN = PRELUDE + 'kfd = os.open("/dev/kfd", os.O_RDWR)\n'
EPERM, EBADF, EACCES, ENODEV, EINVAL, ENOSPC = 1, 9, 13, 19, 22, 28
# Compute queues over memory of the program's own. create_queue() is the errno, or below zero the
# queue's number.
QUEUES = OPEN + """
import array, struct
def call_with(number, data):
    data = bytearray(data)
    try:
        fcntl.ioctl(kfd, 3 << 30 | len(data) << 16 | ord("K") << 8 | number, data)
        return 0, data
    except OSError as error:
        return error.errno, data
memory = array.array("Q", [0] * 1024)
address = memory.buffer_info()[0]
def acquire(gpu):
    node = os.open(f"/dev/dri/renderD{128 + gpu}", os.O_RDWR)
    return call_with(0x15, struct.pack("II", node, 1001 + gpu))[0]
def create_queue(gpu):
    error, data = call_with(0x02, struct.pack(
        "4Q6I3Q2I", address + 4096, address, address + 8, 0, 4096, 1001 + gpu, 2, 100, 7, 0, 0, 0,
        0, 0, 0))
    return error or -struct.unpack_from("I", data, 52)[0]
"""


class Direct(SoftwareAmd):
    def python(self, program, **settings):
        """Runs the program. What it printed, and the lines on stderr."""
        result = subprocess.run([sys.executable, "-c", program], text=True, capture_output=True,
                                env=self.environment(**settings), timeout=time_limit(150))
        self.assertEqual(result.returncode, 0, result.stdout + result.stderr)
        return result.stdout.split(), result.stderr.splitlines()


class BadInput(Direct):
    def test_an_ioctl_of_a_newer_rocm_is_refused_with_one_line_that_says_so(self):
        answers, said = self.python(OPEN + "print(call(0x60, 24), call(0x60, 24))")
        self.assertEqual(answers, [str(EINVAL)] * 2)
        self.assertEqual(len(said), 1, said)
        self.assertIn("the ioctl 0x60 (24 bytes) is not known here (EINVAL)", said[0])
        self.assertRegex(said[0], r"this ROCm is newer than version 1\.\d+ of the driver")

    def test_an_ioctl_that_is_not_served_is_named_once_and_refused_as_linux_does(self):
        trace = self.new_file("trace")
        answers, said = self.python(OPEN + "print(call(0x1b), call(0x1b), call(0x1f))",
                                    VITAMIN_SOFT_AMDGPU_TRACE=str(trace))
        self.assertEqual(answers, [str(EINVAL)] * 3)
        self.assertEqual(said, [
            "software AMD GPU: the ioctl GET_QUEUE_WAVE_STATE (0x1b, 16 bytes) is not served",
            "software AMD GPU: the ioctl SMI_EVENTS (0x1f, 16 bytes) is not served"])
        refused = [line["call"] for line in read_trace(trace) if line[""] == "refused"]
        self.assertEqual(refused, ["GET_QUEUE_WAVE_STATE", "SMI_EVENTS"])

    @unittest.skipIf(os.geteuid() != 0, "only root can give its capabilities away")
    def test_a_checkpoint_needs_a_capability_as_in_linux(self):
        answers, said = self.python(OPEN + """
print(call(0x22))
os.seteuid(65534)
print(call(0x22))
""")
        self.assertEqual(answers, [str(EINVAL), str(EACCES)])
        self.assertEqual(said, [
            "software AMD GPU: the ioctl CRIU_OP (0x22, 16 bytes) is not served"])

    def test_an_ioctl_that_linux_refuses_too_is_named_on_request(self):
        program = OPEN + "print(call(0x0d), call(0x82, 40))"
        answers, said = self.python(program)
        self.assertEqual((answers, said), ([str(EPERM), str(EINVAL)], []))
        answers, said = self.python(program, VITAMIN_SOFT_AMDGPU_LOG="1")
        self.assertEqual(answers, [str(EPERM), str(EINVAL)])
        self.assertEqual([line.endswith("is not served, nor is it by Linux") for line in said],
                         [True, True], said)

    def test_a_program_without_hip_runs_as_without_the_driver(self):
        out, said = self.python("print('alive')")
        self.assertEqual((out, said), (["alive"], []))

    def test_a_program_without_hip_is_named_on_request(self):
        out, said = self.python("print('alive')", VITAMIN_SOFT_AMDGPU_LOG="1")
        self.assertEqual((out, len(said)), (["alive"], 1), said)
        self.assertRegex(said[0], r"python\S* \(process \d+\) did not open /dev/kfd: it uses no "
                                  r"HIP")

    @unittest.skipIf(os.path.exists("/dev/kfd"), "this machine has an AMD GPU")
    def test_without_the_driver_there_is_no_device_file(self):
        out, said = self.python("import os; print(os.path.exists('/dev/kfd'))", **NO_DEVICE)
        self.assertEqual((out, said), (["False"], []))

    def test_gpus_of_two_kinds_are_refused_with_what_is_possible(self):
        result = subprocess.run([sys.executable, "-c", OPEN], text=True, capture_output=True,
                                env=self.environment(VITAMIN_SOFT_AMDGPU="gfx90a,gfx1030"),
                                timeout=time_limit(150))
        self.assertEqual(result.returncode, 2, result.stderr)
        self.assertEqual(result.stderr.splitlines(), [
            "software AMD GPU: VITAMIN_SOFT_AMDGPU=gfx90a,gfx1030 is not understood; it takes one "
            "part, which all GPUs of the process are: gfx90a, gfx908, gfx942, gfx1030, gfx1100"])


class Queues(Direct):
    def test_a_process_has_127_queues_on_each_gpu(self):
        answers, said = self.python(QUEUES + """
print(acquire(0), acquire(1))
made = [create_queue(0) for _ in range(127)]
print(all(answer < 0 for answer in made), create_queue(0), create_queue(1) < 0)
print(call_with(0x03, struct.pack("II", -made[0], 0))[0], create_queue(0) < 0, create_queue(0))
""", VITAMIN_SOFT_AMDGPU_COUNT="2")
        self.assertEqual(answers, ["0", "0", "True", str(ENOSPC), "True", "0", "True", str(ENOSPC)])
        self.assertEqual(said, [])

    def test_a_mask_has_both_cus_of_a_workgroup_processor_or_neither(self):
        program = QUEUES + """
acquire(0)
queue = -create_queue(0)
def answer(words):
    mask = array.array("I", words)
    return call_with(0x1a, struct.pack("IIQ", queue, 32 * len(words), mask.buffer_info()[0]))[0]
print(answer([0xff, 0]), answer([0x3, 0x80000000]), answer([0x7, 0]), answer([0x6, 0]),
      answer([0, 0]))
"""
        for part in ("gfx1030", "gfx1100"):
            answers, _ = self.python(program, VITAMIN_SOFT_AMDGPU=part)
            self.assertEqual(answers, ["0", *[str(EINVAL)] * 3, "0"], part)
        answers, _ = self.python(program)
        self.assertEqual(answers, ["0"] * 5)

    def test_an_unmap_beyond_all_addresses_leaves_the_attributes_of_memory(self):
        answers, _ = self.python(QUEUES + """
import ctypes, mmap
libc = ctypes.CDLL(None, use_errno=True)
libc.munmap.argtypes = ctypes.c_void_p, ctypes.c_size_t
pages = mmap.mmap(-1, 3 * 4096)
first = ctypes.addressof(ctypes.c_char.from_buffer(pages))
third = first + 2 * 4096
for at in first, third:
    print(call_with(0x20, struct.pack("2Q4I", at, 4096, 0, 1, 7, 3))[0])
print(libc.munmap(third, 2 ** 64 - 0x3000), ctypes.get_errno())
error, data = call_with(0x20, struct.pack("2Q4I", third, 4096, 1, 1, 7, 0))
print(error, struct.unpack_from("I", data, 28)[0])
""")
        self.assertEqual(answers, ["0", "0", "-1", str(EINVAL), "0", "3"])


class Paths(Direct):
    """Whichever function of libc a program asks with, the driver's files are there."""

    def test_every_way_to_open_a_device_file_opens_it(self):
        answers, said = self.python("""
import ctypes, os
libc = ctypes.CDLL(None)
for path in (b"/dev/kfd", b"/dev/dri/renderD128", b"/sys/class/kfd/kfd/topology/system_properties"):
    for name in ("open", "open64", "__open_2", "__open64_2"):
        print(getattr(libc, name)(path, os.O_RDONLY) >= 0)
    for name in ("openat", "openat64", "__openat_2", "__openat64_2"):
        print(getattr(libc, name)(-100, path, os.O_RDONLY) >= 0)
""")
        self.assertEqual((answers, said), (["True"] * 24, []))

    def test_questions_about_a_path_find_the_driver(self):
        answers, said = self.python("""
import ctypes, os, stat
libc = ctypes.CDLL(None)
for path in ("/dev/kfd", "/dev/dri/renderD128"):
    status = os.stat(path)
    print(stat.S_ISCHR(status.st_mode), stat.S_ISCHR(os.lstat(path).st_mode),
          os.access(path, os.R_OK | os.W_OK), not os.access(path, os.X_OK),
          os.access(path, os.R_OK, effective_ids=True), *(
              getattr(libc, name)(1, path.encode(), ctypes.create_string_buffer(512)) == 0
              for name in ("__xstat", "__xstat64", "__lxstat", "__lxstat64")), *(
              getattr(libc, name)(path.encode(), ctypes.create_string_buffer(512)) == 0
              for name in ("stat64", "lstat64")))
print(os.major(os.stat("/dev/dri/renderD128").st_rdev) == 226,
      os.minor(os.stat("/dev/dri/renderD128").st_rdev) == 128)
nodes = "/sys/class/kfd/kfd/topology/nodes"
print(os.path.isdir(nodes), os.path.isfile(nodes + "/1/properties"),
      os.access(nodes + "/1/properties", os.R_OK), os.stat(nodes + "/1/name").st_size > 0)
for absent in ("/dev/dri/renderD129", "/dev/dri/renderD128x", nodes + "/2", "/dev/kfd2"):
    print(not os.path.exists(absent), not os.access(absent, os.F_OK))
print(os.path.isdir("/dev"), os.path.isdir("/tmp"), os.path.exists("/dev/null"))
""")
        self.assertEqual((set(answers), said), ({"True"}, []))
        self.assertEqual(len(answers), 2 * 11 + 2 + 4 + 8 + 3)


    def test_tools_that_list_and_describe_files_find_the_device_files(self):
        environment = self.environment(VITAMIN_SOFT_AMDGPU_COUNT="2", LC_ALL="C")
        def lines(*command):
            result = subprocess.run(command, text=True, capture_output=True, env=environment,
                                    timeout=time_limit(60))
            self.assertEqual((result.returncode, result.stderr), (0, ""), command)
            return result.stdout.splitlines()
        self.assertRegex(lines("ls", "-l", "/dev/kfd")[0], r"^crw-rw-rw-.* /dev/kfd$")
        self.assertIn("character special file", lines("stat", "/dev/kfd")[1])
        self.assertEqual(lines("stat", "-c", "%t:%T", "/dev/dri/renderD129"), ["e2:81"])
        self.assertEqual(lines("ls", "-l", "/sys/class/kfd/kfd/topology/nodes")[1][:1], "d")

    @unittest.skipIf(os.path.exists("/dev/dri"), "this machine has the directory")
    def test_the_directory_of_render_nodes_lists_one_for_each_gpu(self):
        answers, said = self.python("""
import ctypes, glob, os
print(*sorted(os.listdir("/dev/dri")), len(list(os.scandir("/dev/dri"))), os.path.isdir("/dev/dri"))
print(*sorted(glob.glob("/dev/dri/renderD*")), os.path.exists("/dev/dri/renderD130"))
names = ctypes.c_void_p()
print(ctypes.CDLL(None).scandir(b"/dev/dri", ctypes.byref(names), None, None))
""", VITAMIN_SOFT_AMDGPU_COUNT="2")
        self.assertEqual(said, [])
        self.assertEqual(answers, [
            "renderD128", "renderD129", "2", "True", "/dev/dri/renderD128", "/dev/dri/renderD129",
            "False", "4"])


class Libdrm(Direct):
    """Its functions that ROCm calls, which the driver answers itself."""

    def test_the_counter_of_a_gpu_has_the_frequency_of_s_memrealtime(self):
        answers, said = self.python("""
import ctypes, os
libc = ctypes.CDLL(None)
device, number = ctypes.c_void_p(), ctypes.c_uint32()
info = (ctypes.c_uint32 * 200)(*[7] * 200)  # longer than that of any libdrm
print(libc.amdgpu_device_initialize(os.open("/dev/dri/renderD128", os.O_RDWR),
                                    ctypes.byref(number), ctypes.byref(number),
                                    ctypes.byref(device)),
      libc.amdgpu_query_gpu_info(device, info), info[18])
""")
        self.assertEqual((answers, said), (["0", "0", "100000"], []))


class Fork(Direct):
    def in_child(self, statement, **settings):
        return self.python(OPEN + f"""
child = os.fork()
if child == 0:
    answer = {statement}
    print(answer, flush=True)
    os._exit(0)
os.waitpid(child, 0)
print(call(0x01, 8))
""", **settings)

    def test_a_child_that_calls_through_its_parents_descriptor_is_refused_as_by_linux(self):
        answers, said = self.in_child("call(0x01, 8)")
        self.assertEqual(answers, [str(EBADF), "0"])
        self.assertEqual(len(said), 1, said)
        self.assertRegex(said[0], r"process \d+ is a child of a fork and calls the driver through "
                                  r"a descriptor of its parent's \(EBADF\)")

    def test_a_child_that_opens_the_driver_anew_is_told_to_call_exec_first(self):
        answers, said = self.python(OPEN + """
child = os.fork()
if child == 0:
    try:
        os.open("/dev/kfd", os.O_RDWR)
    except OSError as error:
        print(error.errno, flush=True)
    os._exit(0)
os.waitpid(child, 0)
print(call(0x01, 8))
""")
        self.assertEqual(answers, [str(ENODEV), "0"])
        self.assertEqual(len(said), 1, said)
        self.assertIn("cannot open /dev/kfd (ENODEV): call exec first", said[0])

    def test_a_child_of_a_program_with_queues_gets_an_error_and_the_parent_goes_on(self):
        answers, said = self.python(HIP_FORK)
        before, child, after = answers[:4], answers[4], answers[5:]
        self.assertEqual((before, after), (["0"] * 4, ["0", "0", "0", "9"]), said)
        self.assertNotEqual(child, "0")
        self.assertEqual(len(said), 1, said)

    def test_a_child_leaves_the_parents_trace_alone(self):
        trace = self.new_file("trace")
        self.python(OPEN + """
child = os.fork()
if child == 0:
    raise SystemExit
os.waitpid(child, 0)
""", VITAMIN_SOFT_AMDGPU_TRACE=str(trace))
        names = [line[""] for line in read_trace(trace)]
        self.assertEqual(names, ["open", "summary"])


class Tables(unittest.TestCase):
    """Tables of documents against what they are about."""
    ROOT = pathlib.Path(__file__).parents[2]
    KFD = ROOT / "backends/soft/amdgpu/kfd"
    ENTRY = re.compile(r'^    (?:privileged\()?(served|refused|refused_by_linux)[<(].*"(\w+)"'
                       r'(?:, -(E\w+))?\)', re.M)
    ROW = re.compile(r"^\| (served|refused(?: by Linux 6\.1 too,)?)(?:: [^|]*| with (E\w+)) "
                     r"\| (.*) \|$", re.M)

    def test_the_page_counts_the_programs_on_a_newer_rocm(self):
        count, known = len(newer_rocm.ONE_GPU + newer_rocm.TWO_GPUS), len(newer_rocm.KNOWN)
        page = (self.ROOT / "docs/quick-start-amd.md").read_text()
        self.assertIn(f"| {count} programs of `tests/amdgpu/newer_rocm.py`, in the long form", page)
        self.assertIn(f"{count - known} the same under `random` and `static`, {known} may differ",
                      page)

    def test_the_page_lists_what_is_served_and_refused_and_how(self):
        code, page = ((self.KFD / file).read_text() for file in ("ioctl.cpp", "README.md"))
        written = {name: (answer, errno) for answer, name, errno in self.ENTRY.findall(code)}
        table = code[code.index("kEntries[] = {"):]
        self.assertEqual(len(written), table[:table.index("};")].count("(0x"))
        told = {name: ("refused_by_linux" if "Linux" in answer else answer, errno)
                for answer, errno, names in self.ROW.findall(page)
                for name in re.findall(r"\b[A-Z]+_[\w]+|\bSVM\b", names)}
        self.assertEqual(told, written)


if __name__ == "__main__":
    unittest.main()
