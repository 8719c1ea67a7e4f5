# SPDX-License-Identifier: Apache-2.0
"""The check of test counts finds what it is for."""
import pathlib
import tempfile
import unittest

import counts

EXPECTED = counts.read_expected("# comment\nhal 2 -\ncuda 1 cuda\n")
ALL = {"cuda", "amd"}


def tests(*labels):
    return [{"name": f"t{i}: a", "properties": [{"name": "LABELS", "value": [label]}]}
            for i, label in enumerate(labels)]


class Counts(unittest.TestCase):
    def test_enough_tests_of_every_component_pass(self):
        self.assertEqual(counts.problems(EXPECTED, tests("hal", "hal", "cuda"), ALL), [])

    def test_a_component_without_its_tests_is_found(self):
        found = counts.problems(EXPECTED, tests("hal", "hal"), ALL)
        self.assertEqual(len(found), 1)
        self.assertIn("'cuda' has 0", found[0])

    def test_without_cuda_headers_its_components_may_be_missing(self):
        self.assertEqual(counts.problems(EXPECTED, tests("hal", "hal"), {"amd"}), [])
        self.assertEqual(len(counts.problems(EXPECTED, tests("hal"), {"amd"})), 1)

    def test_without_the_amd_packages_its_components_may_be_missing(self):
        expected = counts.read_expected("hal 2 -\namdgpu 1 amd\n")
        self.assertEqual(counts.problems(expected, tests("hal", "hal"), {"cuda"}), [])
        self.assertEqual(len(counts.problems(expected, tests("hal", "hal"), ALL)), 1)

    def test_a_build_with_sanitizers_has_a_section_of_its_own(self):
        expected = counts.read_expected("hal 2 -\ncuda 1 cuda\n[threads]\nhal 1 -\n")
        self.assertEqual(counts.problems(expected, tests("hal"), ALL, "threads"), [])
        self.assertEqual(len(counts.problems(expected, tests("cuda"), ALL, "threads")), 1)
        self.assertEqual(counts.problems(expected, [], ALL, "memory"), [])
        self.assertEqual(counts.section_of("A:STRING=x\nVITAMIN_SANITIZE:STRING=\n"), "plain")
        self.assertEqual(counts.section_of("VITAMIN_SANITIZE:STRING=thread\n"), "threads")
        with self.assertRaises(ValueError):
            counts.read_expected("[thread]\n")

    def test_what_only_the_long_form_runs_does_not_count_in_the_short_one(self):
        listed = tests("hal", "hal", "cuda")
        listed[0]["properties"][0]["value"].append("long")
        self.assertEqual(len(counts.problems(EXPECTED, listed, ALL)), 1)
        self.assertEqual(counts.problems(EXPECTED, listed, ALL, form="long"), [])

    def test_a_test_of_no_component_is_found(self):
        found = counts.problems(EXPECTED, tests("hal", "hal", "cuda", "hall"), ALL)
        self.assertEqual(len(found), 1)
        self.assertIn("t3", found[0])

    def test_a_missing_file_of_tests_is_found_by_the_beginning_of_its_name(self):
        expected = counts.read_expected("hal 1 -\nt7: 1 -\nt0: 1 -\n")
        found = counts.problems(expected, tests("hal"), ALL)
        self.assertEqual(found, ["'t7:' has 0 tests, at least 1 are expected"])

    def test_a_line_that_makes_no_sense_is_an_error(self):
        with self.assertRaises(ValueError):
            counts.read_expected("hal many -\n")

    def results(self, body, read=counts.results):
        with tempfile.TemporaryDirectory() as directory:
            path = pathlib.Path(directory) / "results.xml"
            path.write_text(f"<testsuite>{body}</testsuite>")
            return read(path)

    def test_what_a_failed_test_printed_is_shown(self):
        shown = self.results('<testcase name="good" status="run"/>'
                             '<testcase name="bad" status="fail"><failure/>'
                             '<system-out>1 != 2</system-out></testcase>',
                             lambda path: list(counts.failures(path)))
        self.assertEqual(shown, ["FAILED: bad\n    1 != 2\n", "FAILED: bad"])

    def test_a_long_line_is_shown_by_its_beginning_and_end(self):
        self.assertEqual(counts.shortened("1" * 150 + "2" * 300, 400),
                         "1" * 150 + "2" * 50 + " [...] " + "2" * 200)
        self.assertEqual(counts.shortened("3" * 400, 400), "3" * 400)

    def test_a_test_that_did_not_run_counts_as_failed(self):
        self.assertEqual(
            self.results('<testcase status="run"/>'
                         '<testcase status="fail"><failure/></testcase>'
                         '<testcase status="notrun"><skipped message="Unable to find executable"/>'
                         '</testcase>'
                         '<testcase status="notrun">'
                         '<skipped message="SKIP_REGULAR_EXPRESSION_MATCHED"/></testcase>'),
            (3, 2, 1))

    def test_a_run_without_tests_is_an_error(self):
        with self.assertRaises(ValueError):
            self.results("")


if __name__ == "__main__":
    unittest.main()
