# SPDX-License-Identifier: Apache-2.0
"""Every function of the installed hip_runtime_api.h that takes a stream or an event, copies, fills
or launches has a row in interpose/libamdhip64/runtime.def, and the library exports what the rows
say and nothing else.

Needs in the environment: CXX, HIP_INCLUDE, SOURCE, LIBRARY (libvitamin_hip.so) and RUNTIME
(libamdhip64). HIP_INCLUDE_NEWER: where headers of a newer HIP are; they are held against the same
tables. newer_rocm_test.py does that with those of Debian sid.
"""
import os
import pathlib
import re
import subprocess
import tempfile
import unittest

SOURCE = pathlib.Path(os.environ["SOURCE"])
TABLE = (SOURCE / "interpose/libamdhip64/runtime.def").read_text()
HOOKED = dict(re.findall(r"VITAMIN_HOOK\(\s*(\w+),\s*(\d+)", TABLE))
PASSED = set(re.findall(r"VITAMIN_PASS\(\s*(\w+),", TABLE))


def declared(include):
    """Every C function of the header, by name, with its parameters."""
    with tempfile.TemporaryDirectory() as directory:
        # Those of another libc may be beside it.
        (pathlib.Path(directory) / "hip").symlink_to(pathlib.Path(include) / "hip")
        text = subprocess.run(
            [os.environ["CXX"], "-E", "-P", "-x", "c++", "-D__HIP_PLATFORM_AMD__",
             "-I", directory, "-"],
            input="#include <hip/hip_runtime_api.h>\n", text=True, capture_output=True,
            check=True).stdout
    found = re.findall(r"\b(hip[A-Z]\w*)\s*\(([^;{}]*)\)\s*;", " ".join(text.split()))
    return {name: parameters for name, parameters in found}


# What quotas make of functions that have to do with memory, as in
# tests/interpose/header_classification_test.py.
MEMORY = dict(map(reversed, re.findall(
    r"(?m)^([A-Z]+)\((\w+)\)$", (SOURCE / "interpose/libamdhip64/memory.txt").read_text())))
TAKES = re.compile(
    r"hip(Mem(?!cpy|set)|\w*Malloc|Free|Array|Mipmapped|\w*Create|\w*Import|\w*Open|\w*TotalMem"
    r"|\w*MemPool|\w*GraphMem|DeviceSetLimit|\w*Reset|\w*Register|\w*Instantiate|\w*GetInfo"
    r"|\w*Trim|\w*Mapped|\w*Upload|\w*GraphLaunch|GraphAddMem(Alloc|Free)|GetDeviceProperties"
    r"|ModuleLoad|\w*Synchronize|HostAlloc|HostMalloc)")
TREATMENTS = {
    "CHARGED": re.compile(r"Charges|Manual<&(physical_create|pool_create|charged_box)"),
    "RETURNED": re.compile(r"GivesBack<|Settles<|Ends\w+<|Manual<&(physical_|pool_|graph_trim)"),
    "BOUNDED": re.compile(r"Manual<&(memory_info|total_memory|device_properties)<"),
}
UNTREATED = {"GRAPH", "EXPORTER", "HOST", "OVERHEAD", "NOTHING"}


def exports(library):
    lines = subprocess.run(["nm", "-D", "--defined-only", library], text=True,
                           capture_output=True, check=True).stdout.splitlines()
    return {line.split()[2].split("@")[0] for line in lines if line.split()[1] in "TWi"}


# Copies, fills and launches without a stream have one: the NULL stream.
ORDERED = re.compile(r"hip(Drv)?(Memcpy|Memset|Launch)|hip\w*Launch\w*Kernel")


class Header(unittest.TestCase):
    INCLUDE = os.environ["HIP_INCLUDE"]

    def test_every_function_that_has_a_place_in_a_stream_has_a_row(self):
        functions = {name for name, parameters in declared(self.INCLUDE).items()
                     if ORDERED.match(name) or re.search(r"\bhip(Stream|Event)_t\b", parameters)}
        self.assertGreater(len(functions), 100)
        # hipExtModuleLaunchKernel and hipHccModuleLaunchKernel have rows by their C++ names.
        missing = {name for name in functions - set(HOOKED) - PASSED
                   if not any(re.match(rf"_Z\d+{name}P", hook) for hook in HOOKED)}
        self.assertEqual(missing, set())

    def test_every_function_that_may_take_memory_is_classified(self):
        taking = {name for name in declared(self.INCLUDE) if TAKES.match(name)}
        self.assertGreater(len(taking), 100)
        self.assertEqual(sorted(taking - set(MEMORY)), [])


@unittest.skipUnless(os.environ.get("HIP_INCLUDE_NEWER"), "no headers of a newer HIP")
class NewerHeader(Header):
    INCLUDE = os.environ.get("HIP_INCLUDE_NEWER")


class Classification(unittest.TestCase):
    def test_what_is_charged_returned_or_bounded_has_that_treatment_and_nothing_else_has(self):
        treatments = dict(re.findall(r"(?ms)^VITAMIN_HOOK\(\s*(\w+),\s*\d+,\s*(.*?)\)$", TABLE))
        treated = {name for name, treatment in treatments.items()
                   if any(each.search(treatment) for each in TREATMENTS.values())}
        self.assertEqual(sorted(treated - set(MEMORY)), [])
        for name, kind in MEMORY.items():
            with self.subTest(name):
                if kind in TREATMENTS:
                    self.assertRegex(treatments.get(name, ""), TREATMENTS[kind])
                else:
                    self.assertIn(kind, UNTREATED)
                    self.assertNotIn(name, treated)

    def test_no_function_has_two_rows(self):
        names = re.findall(r"(?m)^VITAMIN_(?:HOOK|PASS)\(\s*(\w+)", TABLE)
        self.assertEqual(sorted(names), sorted(set(names)))

    def test_the_library_exports_its_rows_and_nothing_else(self):
        self.assertEqual(exports(os.environ["LIBRARY"]),
                         set(HOOKED) | {"dlsym", "vitamin_advice_hip", "InitializeInjectionNvtx2"})

    def test_what_the_installed_runtime_lacks_is_newer_than_it(self):
        runtime = exports(os.environ["RUNTIME"])
        self.assertGreater(len(runtime), 300)
        newest = 502
        missing = {name for name in HOOKED if name not in runtime}
        self.assertEqual({name for name in missing if int(HOOKED[name]) <= newest}, set())

    def test_the_library_needs_nothing_but_libc_and_the_loader(self):
        text = subprocess.run(["readelf", "-d", os.environ["LIBRARY"]], text=True,
                              capture_output=True, check=True).stdout
        needed = set(re.findall(r"NEEDED.*\[(.*?)\.so", text))
        self.assertLessEqual(needed, {"libc", "libm", "ld-linux-x86-64", "libdl", "libpthread"})


if __name__ == "__main__":
    unittest.main()
