# SPDX-License-Identifier: Apache-2.0
"""Every function of the installed hip_runtime_api.h that takes a stream or an event has a row in
interpose/libamdhip64/runtime.def, and the library exports what the rows say and nothing else.

Needs in the environment: CXX, HIP_INCLUDE, SOURCE, LIBRARY (libvitamin_hip.so) and RUNTIME
(libamdhip64).
"""
import os
import pathlib
import re
import subprocess
import unittest

SOURCE = pathlib.Path(os.environ["SOURCE"])
TABLE = (SOURCE / "interpose/libamdhip64/runtime.def").read_text()
HOOKED = dict(re.findall(r"VITAMIN_HOOK\(\s*(\w+),\s*(\d+)", TABLE))
PASSED = set(re.findall(r"VITAMIN_PASS\(\s*(\w+),", TABLE))


def declared():
    """Every C function of the header, by name, with its parameters."""
    text = subprocess.run(
        [os.environ["CXX"], "-E", "-P", "-x", "c++", "-D__HIP_PLATFORM_AMD__",
         "-I", os.environ["HIP_INCLUDE"], "-"],
        input="#include <hip/hip_runtime_api.h>\n", text=True, capture_output=True,
        check=True).stdout
    found = re.findall(r"\b(hip[A-Z]\w*)\s*\(([^;{}]*)\)\s*;", " ".join(text.split()))
    return {name: parameters for name, parameters in found}


def exports(library):
    lines = subprocess.run(["nm", "-D", "--defined-only", library], text=True,
                           capture_output=True, check=True).stdout.splitlines()
    return {line.split()[2].split("@")[0] for line in lines if line.split()[1] in "TWi"}


class Classification(unittest.TestCase):
    def test_every_function_with_a_stream_or_an_event_has_a_row(self):
        functions = {name for name, parameters in declared().items()
                     if re.search(r"\bhip(Stream|Event)_t\b", parameters)}
        self.assertGreater(len(functions), 70)
        self.assertEqual(functions - set(HOOKED) - PASSED, set())

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
