# SPDX-License-Identifier: Apache-2.0
"""Where a program gets to through dlsym, cuGetProcAddress and the loader, with our library.

Environment: LIBRARY (libvitamin_cuda.so), PROGRAMS (directory of the test programs), DRIVER
(directory of the software libcuda.so.1), CUDA_INCLUDE, SOURCE, FIRST (what must be preloaded ahead:
the runtime of a sanitizer, or nothing).
"""
import os
import pathlib
import re
import subprocess
import tempfile
import unittest

import header_classification_test as classification
from time_limit import time_limit

PROGRAMS = pathlib.Path(os.environ["PROGRAMS"])


def changed_environment(preload=True, behind=(), driver=True, environment=None):
    """`behind`: libraries preloaded behind ours."""
    changed = {name: value for name, value in os.environ.items()
               if name not in ("LD_PRELOAD", "LD_LIBRARY_PATH")}
    libraries = [os.environ.get("FIRST", "")]
    if preload:
        libraries.append(os.environ["LIBRARY"])
    libraries += [str(PROGRAMS / name) for name in behind]
    changed["LD_PRELOAD"] = " ".join(library for library in libraries if library)
    if driver:
        changed["LD_LIBRARY_PATH"] = os.environ["DRIVER"]
    changed.update(environment or {})
    return changed


def run(*words, preload=True, behind=(), driver=True, program="doors", environment=None,
        timeout=60):
    """The completed process."""
    changed = changed_environment(preload, behind, driver, environment)
    return subprocess.run([str(PROGRAMS / program), *map(str, words)], capture_output=True,
                          text=True, timeout=time_limit(timeout), env=changed, check=False)


class Loader(unittest.TestCase):
    def said(self, *words, **options):
        done = run(*words, **options)
        self.assertEqual((done.returncode, done.stderr), (0, ""), done)
        return done.stdout.strip()

    def test_rtld_next_of_another_preloaded_library_finds_the_next_one(self):
        for level in ("0", "2"):
            self.assertEqual(self.said("next", driver=False, behind=[f"libnext_first_O{level}.so"]),
                             "first before second")

    def not_with_a_sanitizer(self):
        if os.environ["SANITIZED"] == "1":
            self.skipTest("its runtime overrides dlopen, and breaks this itself")

    def test_a_library_finds_its_neighbour_by_its_own_runpath(self):
        self.not_with_a_sanitizer()
        self.assertEqual(self.said("origin", PROGRAMS / "liborigin_outer.so", driver=False),
                         "inner")

    def test_deepbind_users_get_the_real_driver(self):
        self.not_with_a_sanitizer()
        # Known and documented (interpose/libcuda/README.md): they bypass us, and keep working.
        self.assertEqual(self.said("deepbind", PROGRAMS / "libdeepbind.so"), "driver vitamin")

    def test_a_library_with_functions_of_these_names_gets_its_own_without_a_driver(self):
        for preload in (False, True):
            self.assertEqual(self.said("own", PROGRAMS / "libown_names.so", driver=False,
                                       preload=preload), "742 742 7")

    def test_a_probe_for_a_driver_that_is_not_loaded_finds_none(self):
        self.assertEqual(self.said("absent", driver=False),
                         self.said("absent", driver=False, preload=False))
        self.assertEqual(self.said("absent", driver=False), "none none none none | named")

    def test_dlsym_gives_hooks_for_hooked_names_only_and_leaves_no_error(self):
        names = ("cuLaunchKernel", "cuMemcpyHtoDAsync_v2_ptsz", "cuDeviceGetCount", "cuNoSuchThing")
        # The program did not link the driver, but it is loaded: our exports then stand for it.
        self.assertEqual(self.said("symbols", *names).splitlines(), [
            "cuLaunchKernel vitamin clean vitamin",
            "cuMemcpyHtoDAsync_v2_ptsz vitamin clean vitamin",
            "cuDeviceGetCount driver clean none",
            "cuNoSuchThing none error none"])

    def test_a_program_that_never_uses_cuda_runs_as_before(self):
        for program in ("/bin/true", "/bin/false"):
            self.assertEqual(run(program=program, driver=False).returncode,
                             run(program=program, driver=False, preload=False).returncode)


class ProcAddress(unittest.TestCase):
    def answers(self, requests, **options):
        with tempfile.NamedTemporaryFile("w") as file:
            file.write("".join(f"{n} {v} {f}\n" for n, v, f in requests))
            file.flush()
            done = run("requests", file.name, **options)
        self.assertEqual((done.returncode, done.stderr), (0, ""), done)
        return [line.rsplit(" ", 1) for line in done.stdout.splitlines()]

    def check(self, requests):
        text = (pathlib.Path(os.environ["SOURCE"]) / classification.DEF).read_text()
        header = (pathlib.Path(os.environ["CUDA_INCLUDE"]) / "cuda.h").read_text()
        hooks, _ = classification.classified_of(
            text, int(re.search(r"#define CUDA_VERSION (\d+)", header)[1]))
        bare, ours = self.answers(requests, preload=False), self.answers(requests)
        self.assertEqual([answer for answer, _ in ours], [answer for answer, _ in bare])
        self.assertEqual(len(bare), len(requests))
        hooked = 0
        for answer, owner in ours:
            variant = answer.split()[-1]
            if owner != "none":
                self.assertEqual(owner, "vitamin" if variant in hooks else "driver", answer)
            hooked += owner == "vitamin"
        return hooked

    def test_each_request_of_cudart_13_gets_the_variant_that_the_driver_gives(self):
        lines = (pathlib.Path(__file__).parent / "cudart_13_requests.txt").read_text().splitlines()
        requests = [line.split() for line in lines if not line.startswith("#")]
        self.assertGreater(len(requests), 430)
        self.assertGreater(self.check(requests), 150)

    def test_each_version_of_the_header_gets_the_variant_that_the_driver_gives(self):
        text = (pathlib.Path(os.environ["CUDA_INCLUDE"]) / "cudaTypedefs.h").read_text()
        names = sorted({(m[1], int(m[2]))
                        for m in re.finditer(r"PFN_(cu\w+?)_v(\d+)(?:_|\))", text)})
        self.assertGreater(len(names), 400)
        self.check([(n, v + more, f) for n, v in names for more in (0, 1) for f in (0, 1, 2)])


if __name__ == "__main__":
    unittest.main()
