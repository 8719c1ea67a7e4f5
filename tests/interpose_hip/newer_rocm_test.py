# SPDX-License-Identifier: Apache-2.0
"""ROCm of Debian sid, in the long form, in a chroot of the build directory: the HIP programs of
tests/amdgpu on three parts (newer_rocm.py there), and the tables against its headers.

Needs in the environment: BUILD and what classification_test.py says.
"""
import os
import pathlib
import shutil
import subprocess
import sys
import unittest

HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent / "amdgpu"))
import newer_rocm  # noqa: E402
import rocm  # noqa: E402
import seed  # noqa: E402

BUILD = pathlib.Path(os.environ["BUILD"])


class NewerRocm(unittest.TestCase):
    def test_programs_are_as_bare_and_tables_have_the_functions_of_its_headers(self):
        if not seed.long_form():
            self.skipTest("a chroot of Debian sid is made in the long form")
        if os.geteuid() != 0 or not shutil.which("mmdebstrap"):
            self.skipTest("a chroot needs root and mmdebstrap")
        directory = BUILD / "tests/interpose_hip/sid"
        rocm.Chroot(directory, BUILD, newer_rocm.PARTS[0])
        with self.subTest("headers"):
            headers = {"HIP_INCLUDE_NEWER": str(directory / "usr/include")}
            subprocess.run([sys.executable, "-m", "unittest", "classification_test.NewerHeader"],
                           cwd=HERE, env=os.environ | headers, check=True)
        for part in ("gfx90a", "gfx942", "gfx1100"):
            with self.subTest(part):
                self.assertEqual(newer_rocm.main([str(directory), "--build", str(BUILD),
                                                  "--part", part]), 0)


if __name__ == "__main__":
    unittest.main()
