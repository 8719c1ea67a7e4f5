# SPDX-License-Identifier: Apache-2.0
"""What the command line refuses, and what its help says."""
import json
import re
import unittest

from cli_harness import CliTest


class Usage(CliTest):
    def test_help_teaches_with_examples(self):
        result = self.call("--help")
        self.assertEqual(result.returncode, 0)
        self.assertIn("vitamin run -- python train.py", result.stdout)

    def test_help_of_run_lists_every_exit_code(self):
        result = self.call("run", "--help")
        self.assertEqual(result.returncode, 0)
        for words in ("123", "125", "126", "127", "--policy", "--report", "--window", "--strict"):
            self.assertIn(words, result.stdout)

    def test_version_is_printed(self):
        self.assertRegex(self.call("version").stdout, r"^vitamin \d+\.\d+\.\d+\n$")
        self.assertRegex(json.loads(self.call("version", "--json").stdout)["version"], r"^\d+\.")
        self.assertEqual(self.call("--version").stdout, self.call("version").stdout)
        self.assertEqual(self.call("--version").returncode, 0)

    def test_the_examples_of_a_verb_are_its_own(self):
        for verb in ("doctor", "status", "accounting", "explain", "top", "drain", "park", "resume",
                     "version", "completion", "policy", "run", "verify", "config", "trace", "cdi",
                     "profile", "simulate"):
            examples = self.call(verb, "--help").stdout.partition("\nExamples:\n")[2]
            commands = re.findall(r"^  vitamin (\S+)", examples, re.M)
            self.assertTrue(commands, verb)
            related = {"drain": {"drain", "resume"}, "park": {"park", "resume"},
                       "profile": {"profile", "run"}}.get(verb, {verb})
            self.assertLessEqual(set(commands), related, verb)

    def test_top_refuses_to_look_without_a_pause_and_fewer_times_than_none(self):
        for seconds in ("0", "-1", "nan"):
            with self.subTest(seconds=seconds):
                self.assert_one_line(self.call("top", "--every", seconds), 125,
                                     f"'{seconds}' is no number of seconds above 0")
        self.assert_one_line(self.call("top", "--rounds", "-1"), 125, "'-1' is no whole number")

    def test_an_unknown_option_is_one_line_with_a_suggestion(self):
        self.assert_one_line(self.call("run", "--polcy", "random", "--", "true"), 125,
                             "unknown option '--polcy'", "Did you mean '--policy'?", "--help")

    def test_an_option_of_the_daemon_needs_the_daemon(self):
        for option in ("--socket", "--class"):
            self.assert_one_line(self.call("run", option, "x", "--", "true"), 125, option,
                                 "add --daemon")

    def test_values_that_are_none_say_what_is_allowed(self):
        for words, parts in (
                (("park", "1", "--timeout", "5s"), ("'5s'", "write 5 or 0.5", "park --help")),
                (("run", "--seed", "abc", "--", "true"), ("'abc' is no seed", "whole number")),
                (("verify", "--seed", "abc", "--", "true"), ("'abc' is no seed", "verify --help")),
                (("trace", "record", "--seed", "-1", "--", "true"), ("'-1' is no seed",)),
                (("run", "--memory", "400%", "--", "true"), ("1% to 100%",)),
                (("config", "chek"), ("Did you mean 'check'?", "vitamin config --help"))):
            self.assert_one_line(self.call(*words), 125, *parts)

    def test_an_unknown_policy_is_one_line_with_a_suggestion(self):
        self.assert_one_line(self.call("run", "--policy", "radnom", "--", "true"), 125,
                             "radnom", "did you mean 'random'?", "fifo")

    def test_a_name_that_is_like_no_policy_is_one_sentence_with_all_of_them(self):
        self.assert_one_line(self.call("run", "--policy", "zzz", "--", "true"), 125,
                             "(zzz) is unknown. Known policies: fifo, ", ", extremes. See `")

    def test_an_option_that_is_a_key_of_the_configuration_is_said_as_one(self):
        for option, said in (("--share", "'share' is a key of a class: --set class.NAME.share="),
                             ("--memory-of=user", "--set class.NAME.memory_of=VALUE."),
                             ("--quantum", "--set policy.quantum=VALUE."),
                             ("--ahead", "Did you mean '--window'?")):
            self.assert_one_line(self.call("run", option, "3", "--", "true"), 125,
                                 f"unknown option '{option.split('=')[0]}'. ", said)

    def test_a_parameter_of_before_is_refused_in_one_sentence(self):
        self.assert_one_line(self.call("run", "--policy", "tpot-first:target=9", "--", "true"),
                             125, "'target' any more: use tpot of a [[class]] of vitamin.toml. See")
        self.assert_one_line(self.call("run", "--policy", "throughput:look=9", "--", "true"),
                             125, "'look' any more: remove it: measurements have a budget of")

    def test_a_parameter_that_a_policy_does_not_have_is_refused(self):
        self.assert_one_line(self.call("run", "--policy", "random:evry=4", "--", "true"), 125,
                             "random", "evry")

    def test_an_unknown_word_is_one_line_with_a_suggestion(self):
        self.assert_one_line(self.call("rnu"), 125, "'rnu'", "Did you mean 'run'?")

    def test_a_window_without_unit_is_refused(self):
        self.assert_one_line(self.call("run", "--window", "500", "--", "true"), 125, "'500'",
                             "500us")

    def test_a_seed_that_is_no_number_is_refused(self):
        self.assert_one_line(self.call("run", "--seed", "x", "--", "true"), 125, "--seed")

    def test_an_option_without_its_value_is_refused(self):
        self.assert_one_line(self.call("run", "--policy"), 125, "--policy")

    def test_run_without_a_command_is_refused(self):
        self.assert_one_line(self.call("run"), 125, "no command")
        self.assert_one_line(self.call("run", "--"), 125, "no command")

    def listed_policies(self):
        lines = self.call("policy", "list").stdout.splitlines()
        return [line.split()[0] for line in lines if not line.startswith(" ")]

    def test_every_listed_policy_is_accepted_by_run(self):
        names = self.listed_policies()
        self.assertLessEqual({"fifo", "static", "random"}, set(names))
        for name in names:
            with self.subTest(policy=name):
                self.assertEqual(
                    self.run_under("true", options=["--quiet", "--policy", name]).returncode, 0)

    def test_policy_show_takes_a_specification_and_refuses_a_bad_one(self):
        shown = self.call("policy", "show", "slo:objective=fair")
        self.assertEqual(shown.returncode, 0, shown.stderr)
        self.assertEqual(shown.stdout, self.call("policy", "show", "slo").stdout)
        self.assertIn("objective", shown.stdout)
        self.assert_one_line(self.call("policy", "show", "slo:objectve=fair"), 125,
                             "'objectve' is unknown")
        self.assert_one_line(self.call("policy", "show", "sloo:objective=fair"), 125,
                             "did you mean 'slo'?")

    def test_policy_test_says_what_was_tried_and_how_to_repeat_it(self):
        done = self.call("policy", "test", "static:parts=4")
        self.assertEqual(done.returncode, 0, done.stderr)
        for part in ("400 requests", "4 training jobs", "finished", "asked",
                     "not replaced by fifo: every answer was valid and in time"):
            self.assertIn(part, done.stdout)
        self.assertTrue(done.stdout.endswith("repeat    vitamin policy test static:parts=4\n"))
        answer = json.loads(self.call("policy", "test", "fifo", "--json").stdout)
        self.assertTrue(answer["behaved"])
        self.assertIsNone(answer["fault_s"])
        self.assertEqual(answer["repeat"], "vitamin policy test fifo")

    def test_policy_list_as_json_names_the_same_policies(self):
        names = self.listed_policies()
        answer = json.loads(self.call("policy", "list", "--json").stdout)
        self.assertEqual([policy["name"] for policy in answer["policies"]], names)


if __name__ == "__main__":
    unittest.main()
