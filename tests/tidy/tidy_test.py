# SPDX-License-Identifier: Apache-2.0
"""tidy.py finds each kind of problem, and nothing in a clean tree."""
import pathlib
import tempfile
import unittest

import tidy

SPDX = "// SPDX-License-Identifier: Apache-2.0\n"
CMAKE = "# SPDX-License-Identifier: Apache-2.0\nadd_library(x a.cpp)\n"


class Tidy(unittest.TestCase):
    def check(self, files, compiled=(), shared_types=None):
        with tempfile.TemporaryDirectory() as name:
            root = pathlib.Path(name)
            for path, text in files.items():
                (root / path).parent.mkdir(parents=True, exist_ok=True)
                (root / path).write_text(text)
            return tidy.check(root, compiled, shared_types or {})

    def only(self, files, words):
        found = self.check(files)
        self.assertEqual(len(found), 1, found)
        self.assertIn(words, found[0])

    def source(self, line, path="runtime/a.cpp"):
        folder = str(pathlib.PurePosixPath(path).parent)
        return {f"{folder}/CMakeLists.txt": CMAKE, path: SPDX + line + "\n"}

    def test_a_clean_tree_has_no_problem(self):
        self.assertEqual(self.check({
            "hal/CMakeLists.txt": "# SPDX-License-Identifier: Apache-2.0\n",
            "hal/x.h": SPDX + "#pragma once\n",
            "runtime/CMakeLists.txt": CMAKE,
            "runtime/a.cpp": SPDX + '#include "hal/x.h"\nint f() {\n  return 1;\n}\n'}), [])

    def test_a_missing_spdx_line_is_found(self):
        self.only({"runtime/CMakeLists.txt": CMAKE, "runtime/a.cpp": "int x;\n"}, "SPDX")

    def test_a_line_of_more_than_100_columns_is_found(self):
        self.only(self.source("// " + "x" * 98), "101 columns")

    def test_a_line_of_100_columns_is_fine(self):
        self.assertEqual(self.check(self.source("// " + "x" * 97)), [])

    def test_a_tab_is_found(self):
        self.only(self.source("int\tx;"), "tab")

    def test_a_space_at_the_end_is_found(self):
        self.only(self.source("int x; "), "space at the end")

    def types(self, *sources, shared=None):
        """A source is a path and the text behind its SPDX line."""
        files = {f"{directory}/CMakeLists.txt": CMAKE.replace("a.cpp", name)
                 for directory, name in (path.split("/") for path, _ in sources)}
        return self.check(files | {path: SPDX + text for path, text in sources},
                          shared_types=shared)

    GRID = ("daemon/a.cpp", "namespace vitamin::daemon {\nstruct Grid {\n};\n}\n")
    BOTH = {"Grid": ("vitamin::daemon vitamin::sim", "squares")}

    def test_a_type_of_two_namespaces_is_found(self):
        for text in ("namespace S {\nclass Grid final : public X<f()> {\n};\n}\n",
                     "namespace vitamin {\nnamespace sim {\nenum class Grid : int { kA };\n}\n}\n",
                     "namespace S {\nstruct [[a]] alignas(f(g(8))) [[b]] Grid {\n};\n}\n",
                     "namespace S {\nclass VITAMIN_EXPORT Grid {\n};\n}\n",
                     "namespace vitamin::inline sim {\ntemplate <class T>\nstruct Grid {\n};\n}\n",
                     "namespace S {\nint x = 1'000;\nstruct Grid {\n};\nint y = 1'000;\n}\n",
                     "namespace S {\nauto x = R\"(}})\";\nunion Grid {\n};\n}\n"):
            other = ("scheduler/b.cpp", text.replace("S {", "vitamin::sim {"))
            found = self.types(self.GRID, other)
            self.assertEqual(len(found), 1, (text, found))
            self.assertRegex(found[0], r"^scheduler/b.cpp:\d: 'Grid' of vitamin::sim is a type of "
                                       r"vitamin::daemon too")
            self.assertEqual(self.types(self.GRID, other, shared=self.BOTH), [])

    def test_a_third_namespace_of_a_shared_name_is_found(self):
        types = "namespace vitamin::{} {{\nstruct Grid {{\n}};\n}}\n"
        found = self.types(self.GRID, ("scheduler/b.cpp", types.format("sim")),
                           ("hal/c.cpp", types.format("hal")), shared=self.BOTH)
        self.assertEqual(len(found), 1, found)
        self.assertIn("'Grid' of vitamin::hal is a type of vitamin::daemon, vitamin::sim", found[0])

    def test_a_type_of_one_namespace_or_of_an_owner_is_fine(self):
        for text in ("namespace vitamin::daemon {\nstruct Grid;\n}\n",
                     "namespace vitamin::sim {\nnamespace {\nstruct Grid {\n};\n}\n}\n",
                     "namespace vitamin::sim {\nclass Map {\n  struct Grid {\n  };\n};\n}\n",
                     "namespace vitamin::sim {\n// struct Grid {\nconst char* x = \"{\";\n}\n"
                     "struct Grid {\n};\n"):
            self.assertEqual(self.types(self.GRID, ("scheduler/b.cpp", text)), [], text)

    def test_braces_that_do_not_match_are_found(self):
        found = self.types(self.GRID, ("scheduler/b.cpp", "namespace vitamin::sim {\n"))
        self.assertEqual(len(found), 1, found)
        self.assertIn("braces", found[0])

    def test_a_namespace_that_shares_a_name_no_longer_leaves_the_list(self):
        found = self.types(self.GRID, shared=self.BOTH)
        self.assertEqual(len(found), 1, found)
        self.assertIn("vitamin::sim has no 'Grid' any more", found[0])

    def vocabulary(self, files):
        with tempfile.TemporaryDirectory() as name:
            root = pathlib.Path(name)
            for path, text in files.items():
                (root / path).parent.mkdir(parents=True, exist_ok=True)
                (root / path).write_text(text)
            return list(tidy.vocabulary_problems(root))

    def test_a_retired_word_is_found_in_sources_and_in_markdown(self):
        for path in ("runtime/a.cpp", "docs/a.md"):
            for line in ("Whoever is first.", "the times are foretold", "was_let_go(client)"):
                found = self.vocabulary({path: f"fine\n{line}\n"})
                self.assertEqual(len(found), 1, line)
                self.assertIn(f"{path}:2: ", found[0])

    def test_a_word_that_only_contains_a_retired_one_is_fine(self):
        self.assertEqual(self.vocabulary({"docs/a.md": "amended, inherit, their, impatience"}), [])

    def test_a_published_name_may_have_a_retired_word(self):
        for line in ("`vitamind_let_go_total`", 'status["let_go"]', '{"let_go_users": []}'):
            self.assertEqual(self.vocabulary({"docs/a.md": line}), [])
        for line in ("vitamind_let_go_totals", "let_go", '"a client was let_go"'):
            self.assertEqual(len(self.vocabulary({"docs/a.md": line})), 1, line)

    def test_the_systems_user_nobody_may_be_named(self):
        for line in ('pwd.getpwnam("nobody")', 'machine.run("id", user="nobody")'):
            self.assertEqual(self.vocabulary({"tests/a.py": line}), [])
        for line in ('name = "nobody"', "# nobody waits"):
            self.assertEqual(len(self.vocabulary({"tests/a.py": line})), 1, line)

    def test_results_are_kept_as_they_were_made(self):
        self.assertEqual(self.vocabulary({"bench/results/a.md": "nobody"}), [])

    def test_a_readme_that_is_too_long_is_found(self):
        self.assertEqual(self.check({"README.md": "word " * 600}), [])
        self.only({"README.md": "word " * 601}, "601 words")

    def test_a_file_that_is_too_long_is_found_and_a_table_is_fine(self):
        self.assertEqual(self.check(self.source("\n".join(["int x;"] * 598))), [])
        self.only(self.source("\n".join(["int x;"] * 599)), "601 lines")
        self.assertEqual([p for p in self.check({"hal/a.def": "X(a)\n" * 601}) if "most" in p], [])

    def test_unfinished_work_is_found(self):
        self.only(self.source("int x;  // " + "FIX" + "ME"), "finish it")

    def test_a_document_that_readers_do_not_have_is_found(self):
        for cited in ("DESIGN " + "section 4", "the design " + "brief", "facts/" + "cuda.md"):
            self.only(self.source("// see " + cited), "docs/design.md")

    def test_a_file_wide_using_directive_is_found(self):
        self.only(self.source("using " + "namespace std;"), "name what is used")

    def test_a_file_that_is_mapped_elsewhere_is_found(self):
        for call in ("::mmap(nullptr, 8, PROT_READ, MAP_SHARED, file, 0)", "mremap(p, 8, 9, 0)",
                     "::ftruncate(file, 8)"):
            with self.subTest(call=call):
                self.only(self.source(f"void* p = {call};"), "use hal/file_memory.h")

    def test_a_file_that_an_iterator_reads_is_found(self):
        self.only(self.source("std::string s{std::istreambuf_iterator<char>(file), {}};"),
                  "use hal/read_file.h")

    def test_memory_that_is_no_file_may_be_mapped_anywhere(self):
        line = "void* p = ::mmap(nullptr, 8, PROT_READ,\n    MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);"
        self.assertEqual(self.check(self.source(line)), [])

    def test_a_path_of_one_machine_is_found(self):
        self.only(self.source("// see /" + "home/someone/x"), "path of one machine")

    def test_a_long_function_is_found(self):
        self.only(self.source("int f(int x) {\n" + "  ++x;\n" * 100 + "  return x;\n}"),
                  "a function of 103 lines")

    def test_a_long_function_behind_one_with_parameters_on_two_lines_is_found(self):
        wrapped = "int g(int x,\n      int y) {\n  return x + y;\n}\n"
        table = "constexpr Row kRows[] = {\n    {1,\n     [](int x) {\n       f(x);\n     }},\n};\n"
        self.only(self.source(wrapped + table + "int f(int x) {\n" + "  ++x;\n" * 100 +
                              "  return x;\n}"), "a function of 103 lines")

    def test_a_script_without_a_suffix_is_looked_at(self):
        self.only({"scripts/lint": SPDX.replace("//", "#") + "x = 1 \n"}, "space at the end")

    def test_a_long_namespace_is_no_function(self):
        body = "int f(int x) {\n  return x;\n}\n" * 40
        self.assertEqual(self.check(self.source("namespace a {\n" + body + "}  // namespace a")),
                         [])

    def test_hal_includes_nothing_of_ours(self):
        self.only(self.source('#include "runtime/demand.h"', "hal/a.cpp"), "hal must not include")

    def test_runtime_includes_no_backend(self):
        self.only(self.source('#include "backends/cuda/x.h"'), "runtime must not include")

    def test_a_policy_includes_no_descriptor(self):
        self.only(self.source('#include "runtime/operation.h"', "scheduler/policies/a.cpp"),
                  "scheduler must not include")
        self.assertEqual(
            self.check(self.source('#include "scheduler/policy.h"', "scheduler/policies/a.cpp")),
            [])

    def test_what_is_preloaded_includes_nothing_of_the_daemon(self):
        for layer in ("daemon/client", "daemon/protocol", "interpose"):
            for header in ("daemon/server/server.h", "daemon/config/load.h"):
                self.only(self.source(f'#include "{header}"', f"{layer}/a.cpp"),
                          f"{layer} must not include")
        self.assertEqual(self.check(self.source('#include "daemon/protocol/ring.h"',
                                                "daemon/client/a.cpp")), [])

    def test_what_the_server_of_vitamind_uses_does_not_include_it(self):
        for layer in ("daemon/arbiter", "daemon/jobs", "daemon/metrics", "daemon/mps"):
            self.only(self.source('#include "daemon/server/server.h"', f"{layer}/a.cpp"),
                      f"{layer} must not include")
        self.assertEqual(self.check(self.source('#include "daemon/arbiter/devices.h"',
                                                "daemon/server/a.cpp")), [])

    def test_an_entry_permits_nothing_below_it_that_has_its_own(self):
        self.only(self.source('#include "daemon/client/lease_client.h"', "daemon/a.cpp"),
                  "daemon must not include")
        self.only(self.source('#include "scheduler/simulator/device.h"', "daemon/a.cpp"),
                  "daemon must not include")

    def test_a_backend_does_not_include_the_runtime(self):
        self.only(self.source('#include "runtime/demand.h"', "backends/cuda/a.cpp"),
                  "backends/cuda must not include")

    def test_one_backend_does_not_include_another(self):
        self.only(self.source('#include "backends/soft/engine.h"', "backends/cuda/a.cpp"),
                  "backends/cuda must not include")

    def test_a_vendor_header_outside_its_backend_is_found(self):
        self.only(self.source("#include <cuda.h>"), "vendor header")
        self.only(self.source("#include <hip/hip_runtime_api.h>", "tools/a.cpp"), "vendor header")

    def test_a_vendor_header_in_its_backend_is_fine(self):
        self.assertEqual(self.check(self.source("#include <cuda.h>", "backends/cuda/a.cpp")), [])

    def test_a_source_that_nothing_builds_is_found(self):
        self.only({"runtime/CMakeLists.txt": CMAKE, "runtime/a.cpp": SPDX,
                   "runtime/b.cpp": SPDX}, "no CMakeLists.txt builds")

    def test_a_name_made_with_a_variable_counts_only_where_nothing_was_compiled(self):
        files = {"tests/CMakeLists.txt": CMAKE.replace("a.cpp", "${name}_test.cpp"),
                 "tests/a_test.cpp": SPDX, "tests/b_test.cpp": SPDX}
        self.assertEqual(self.check(files), [])
        self.assertEqual(self.check(files, {"tests/a_test.cpp", "tests/b_test.cpp"}), [])
        found = self.check(files, {"tests/a_test.cpp"})
        self.assertEqual(found, ["tests/b_test.cpp:1: no CMakeLists.txt builds this file"])

    def test_a_header_that_nobody_includes_is_found(self):
        self.only({"hal/x.h": SPDX + "#pragma once\n"}, "nothing includes")

    def test_a_header_without_its_guard_is_found(self):
        self.only({"runtime/CMakeLists.txt": CMAKE, "hal/x.h": SPDX,
                   "runtime/a.cpp": SPDX + '#include "hal/x.h"\n'}, "#pragma once")

    def test_build_folders_are_not_looked_at(self):
        self.assertEqual(self.check({"build/dev/a.cpp": "\tx"}), [])


if __name__ == "__main__":
    unittest.main()
