# SPDX-License-Identifier: Apache-2.0
"""scripts/lint: this tree, and small trees with something to find."""
import json
import os
import pathlib
import shutil
import subprocess
import tempfile
import unittest

import seed

SOURCE = pathlib.Path(__file__).resolve().parents[2]
CLEAN = "int twice(int value) { return 2 * value; }\n"
BADLY_SET = "int   twice(int value) { return 2*value; }\n"
MISTAKE = "int* nothing() { return 0; }\n"


def lint(root, *arguments, **settings):
    return subprocess.run([root / "scripts/lint", *arguments], text=True, capture_output=True,
                          check=False, **settings)


class TheTree(unittest.TestCase):
    def test_is_formatted(self):
        done = lint(SOURCE, "--format-only")
        self.assertEqual(done.returncode, 0, "scripts/lint --fix --format-only fixes this:\n" +
                         done.stdout + done.stderr)

    def test_has_nothing_that_clang_tidy_finds(self):
        if not seed.long_form():
            self.skipTest("takes as long as compiling everything: the long form")
        done = lint(SOURCE)
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)


class Lint(unittest.TestCase):
    def setUp(self):
        directory = tempfile.TemporaryDirectory(prefix="vitamin-lint-test-")
        self.addCleanup(directory.cleanup)
        self.root = pathlib.Path(directory.name)
        (self.root / "scripts").mkdir()
        shutil.copy(SOURCE / "scripts/lint", self.root / "scripts/lint")
        for name in (".clang-format", ".clang-tidy"):
            shutil.copy(SOURCE / name, self.root / name)
        subprocess.run(["git", "init", "-q", self.root], check=True)

    def write(self, name, text):
        path = self.root / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
        subprocess.run(["git", "-C", self.root, "add", name], check=True)

    def compile(self, **sources):
        """Writes a database in which GCC compiles `unit`, made of the sources, a text each."""
        for name, text in sources.items():
            self.write(f"hal/{name}.cpp", text)
        unit = self.root / "build/release/hal/CMakeFiles/hal.dir/Unity/unit.cxx"
        unit.parent.mkdir(parents=True)
        unit.write_text("".join(f'#include "{self.root}/hal/{name}.cpp"\n' for name in sources))
        command = f"/usr/bin/c++ -std=c++20 -Wshadow=local --param ggc-min-heapsize=1 -c {unit}"
        (self.root / "build/release/compile_commands.json").write_text(json.dumps(
            [{"directory": str(self.root), "file": str(unit), "command": command}]))

    def test_a_clean_tree_has_nothing(self):
        self.compile(clean=CLEAN)
        done = lint(self.root)
        self.assertEqual((done.returncode, done.stdout), (0, "1 files, nothing found\n"),
                         done.stderr)

    def test_a_badly_set_line_is_found_and_fixed(self):
        self.write("hal/bad.cpp", BADLY_SET)
        done = lint(self.root, "--format-only")
        self.assertEqual(done.returncode, 1, done.stderr)
        self.assertIn("hal/bad.cpp:1:4: ", done.stdout)
        self.assertEqual(lint(self.root, "--format-only", "--fix").returncode, 0)
        self.assertEqual((self.root / "hal/bad.cpp").read_text(), CLEAN)

    def test_rules_that_clang_format_cannot_read_are_an_error(self):
        self.write("hal/bad.cpp", BADLY_SET)
        (self.root / ".clang-format").write_text("BasedOnStyle: Google\nNoSuchOption: 3\n")
        done = lint(self.root, "--format-only")
        self.assertEqual(done.returncode, 2, done.stdout)
        self.assertIn("unknown key 'NoSuchOption'", done.stderr)

    def test_a_mistake_in_one_of_several_sources_of_a_unit_is_found(self):
        self.compile(clean=CLEAN, mistaken=MISTAKE)
        done = lint(self.root, "hal/mistaken.cpp")
        self.assertEqual(done.returncode, 1, done.stderr)
        self.assertRegex(done.stdout, r"^hal/mistaken.cpp:1:25: .*modernize-use-nullptr")

    def test_a_source_that_does_not_compile_is_an_error(self):
        self.compile(broken="int broken( {}\n")
        self.assertNotEqual(lint(self.root).returncode, 0)

    def test_a_tree_that_was_not_configured_is_named(self):
        self.write("hal/clean.cpp", CLEAN)
        done = lint(self.root)
        self.assertEqual(done.returncode, 2)
        self.assertIn("Configure first: cmake --preset release", done.stderr)

    def test_a_path_without_sources_is_named(self):
        done = lint(self.root, "nothing")
        self.assertEqual((done.returncode, done.stderr),
                         (2, "lint: no C++ source in nothing\n"))

    def test_a_tool_that_is_missing_is_named(self):
        tools = self.root / "tools"
        tools.mkdir()
        for name in ("env", "git", "python3"):
            os.symlink(shutil.which(name), tools / name)
        self.write("hal/clean.cpp", CLEAN)
        done = lint(self.root, "--format-only", env={"PATH": str(tools), "HOME": "/"})
        self.assertEqual(done.returncode, 2, done.stderr)
        self.assertIn("apt-get install clang-format-15", done.stderr)


if __name__ == "__main__":
    unittest.main()
