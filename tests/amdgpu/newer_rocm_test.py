# SPDX-License-Identifier: Apache-2.0
"""The HIP programs on ROCm of Debian sid, in the long form: newer_rocm.py for three parts, with a
chroot in the build directory."""
import os
import pathlib
import shutil
import unittest

import newer_rocm
import seed

BUILD = pathlib.Path(os.environ["BUILD"])


class NewerRocm(unittest.TestCase):
    def test_programs_are_right_and_the_same_under_vitamin_run_on_each_part(self):
        if not seed.long_form():
            self.skipTest("a chroot of Debian sid is made in the long form")
        if os.geteuid() != 0 or not shutil.which("mmdebstrap"):
            self.skipTest("a chroot needs root and mmdebstrap")
        for part in ("gfx90a", "gfx942", "gfx1100"):
            with self.subTest(part):
                self.assertEqual(newer_rocm.main([
                    str(BUILD / "tests/amdgpu/sid"), "--build", str(BUILD), "--part", part]), 0)


if __name__ == "__main__":
    unittest.main()
