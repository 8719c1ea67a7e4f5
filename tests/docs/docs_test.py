# SPDX-License-Identifier: Apache-2.0
"""What people read, held against the programs: man pages, completions, docs/.

Needs in the environment: VITAMIN, VITAMIND (the programs), SOURCE (the tree).
"""
import functools
import json
import os
import pathlib
import re
import shlex
import subprocess
import tempfile
import unittest
import xml.etree.ElementTree

from time_limit import time_limit

SOURCE = pathlib.Path(os.environ["SOURCE"])
DOCS = SOURCE / "docs"
PROGRAMS = {"vitamin": os.environ["VITAMIN"], "vitamind": os.environ["VITAMIND"]}
if os.environ.get("K8S_PLUGIN"):  # built where gRPC is
    PROGRAMS["vitamin-k8s-plugin"] = os.environ["K8S_PLUGIN"]
if os.environ.get("DRA_DRIVER"):
    PROGRAMS["vitamin-dra-driver"] = os.environ["DRA_DRIVER"]
# Which page has the options of which verbs.
PAGES = {
    "vitamin.1": ["", "version", "completion"],
    "vitamin-run.1": ["run"],
    "vitamin-verify.1": ["verify"],
    "vitamin-doctor.1": ["doctor"],
    "vitamin-policy.1": ["policy", "policy list", "policy show", "policy test"],
    "vitamin-profile.1": ["profile", "profile show"],
    "vitamin-simulate.1": ["simulate"],
    "vitamin-cdi.1": ["cdi", "cdi generate", "cdi check"],
    "vitamin-config.1": ["config", "config check", "config show", "config schema"],
    "vitamin-status.1": ["status"],
    "vitamin-accounting.1": ["accounting"],
    "vitamin-explain.1": ["explain"],
    "vitamin-top.1": ["top"],
    "vitamin-drain.1": ["drain", "resume"],
    "vitamin-park.1": ["park"],
    "vitamin-trace.1": ["trace", "trace record", "trace export", "trace replay"],
    "vitamind.8": None,
    "vitamin-k8s-plugin.8": None,
    "vitamin-dra-driver.8": None,
}


def run(*words, **more):
    return subprocess.run(words, capture_output=True, text=True, timeout=time_limit(60),
                          stdin=subprocess.DEVNULL, **more)


@functools.cache
def help_of(verb, program="vitamin"):
    result = run(PROGRAMS[program], *verb.split(), "--help")
    if result.returncode != 0:
        raise AssertionError(f"{program} {verb}: {result.stderr}")
    return result.stdout


def options_of(verb, program="vitamin"):
    return set(re.findall(r"^ +(?:-\w,)?(--[a-z][a-z-]*)", help_of(verb, program), re.M))


def verbs_below(verb=""):
    listed = help_of(verb).partition("\nSubcommands:\n")[2].partition("\n\n")[0]
    for name in re.findall(r"^  ([a-z]+)", listed, re.M):
        whole = f"{verb} {name}".strip()
        yield whole
        yield from verbs_below(whole)


def blocks(page, language):
    return re.findall(rf"^```{language}\n(.*?)^```", page.read_text(), re.M | re.S)


def pages():
    return sorted(DOCS.glob("*.md"))


def every_page():
    """Those of docs/, its decision records, and those at the root of the tree."""
    return pages() + sorted(DOCS.glob("decisions/*.md")) + sorted(SOURCE.glob("*.md"))


class Developers(unittest.TestCase):
    """What is written for those who change the tree."""

    # Files of others.
    FOREIGN = {"cuda.h", "cudaTypedefs.h", "train.py"}

    def test_files_that_are_named_exist(self):
        tree = {suffix for path in SOURCE.rglob("*")
                for suffix in suffixes(str(path.relative_to(SOURCE)))
                if path.relative_to(SOURCE).parts[0] != "build"}
        pages = [SOURCE / "CONTRIBUTING.md", *(DOCS / name for name in (
            "design.md", "glossary.md", "how-it-works.md", "policies.md"))]
        for directory in ("backends", "daemon", "hal", "interpose", "runtime", "scheduler",
                          "tests", "tools"):
            pages += sorted((SOURCE / directory).rglob("README.md"))
        named = [(str(page.relative_to(SOURCE)), name) for page in pages for name in re.findall(
            r"`([\w./-]+\.(?:h|cpp|c|def|py|pml|cmake|txt|md))`", page.read_text())]
        self.assertGreater(len(named), 150)
        self.assertEqual([(page, name) for page, name in named
                          if name.removeprefix("../") not in tree and name not in self.FOREIGN], [])


def suffixes(path):
    parts = path.split("/")
    return ["/".join(parts[i:]) for i in range(len(parts))]


class ManPages(unittest.TestCase):
    def test_every_page_is_clean(self):
        result = run("mandoc", "-Tlint", "-Wwarning", *map(str, sorted(DOCS.glob("man/*"))))
        self.assertEqual((result.returncode, result.stdout), (0, ""))

    def test_a_page_with_a_mistake_would_be_noticed(self):
        with tempfile.NamedTemporaryFile("w", suffix=".1") as page:
            page.write((DOCS / "man/vitamin.1").read_text().replace(".Sh SYNOPSIS", ".Shh X"))
            page.flush()
            self.assertNotEqual(run("mandoc", "-Tlint", "-Wwarning", page.name).returncode, 0)

    def test_every_option_of_the_programs_is_in_a_page_and_the_other_way_round(self):
        self.assertEqual({page.name for page in DOCS.glob("man/*.[18]")}, set(PAGES))
        for page, verbs in PAGES.items():
            text = (DOCS / "man" / page).read_text()
            told = {"-" + flag for flag in re.findall(r"\bFl (-[a-z][a-z-]*)", text)}
            if verbs is None:
                program = page.split(".")[0]
                if program not in PROGRAMS:
                    continue
                there = options_of("", program)
            else:
                there = set().union(*(options_of(verb) for verb in verbs))
            self.assertEqual(told, there, page)

    def test_the_page_of_the_file_is_up_to_date_and_has_every_key_of_the_schema(self):
        source = run(PROGRAMS["vitamin"], "config", "schema", "--man").stdout
        self.assertEqual(source, (DOCS / "man/vitamin.toml.5").read_text(),
                         "run vitamin config schema --man >docs/man/vitamin.toml.5")
        told = {key: text.replace("\n", " ") for key, text in re.findall(
            r"^\.It Ic (\S+)\n(.*?)(?=^\.(?:It|El))", source, re.M | re.S)}
        schema = json.loads(run(PROGRAMS["vitamin"], "config", "schema").stdout)["properties"]
        keys = {f"{name}.{key}": facts for name, section in schema.items()
                for key, facts in section.get("properties", {}).items()}
        keys |= schema["class"]["items"]["properties"]
        self.assertEqual(set(told), set(keys))
        for key, facts in keys.items():
            self.assertIn(facts["description"][1:], told[key])
            for choice in facts.get("enum", []):
                self.assertIn(choice, told[key])
        self.assertIn('Default: "4ms". ', told["policy.quantum"])
        self.assertIn(".Ev VITAMIN_CONFIG_POLICY_QUANTUM . ", told["policy.quantum"])

    def test_every_verb_has_a_page(self):
        named = {verb for verbs in PAGES.values() for verb in verbs or []}
        self.assertEqual(named - {""}, set(verbs_below()))
        index = (DOCS / "man/vitamin.1").read_text()
        for verb in verbs_below():
            self.assertIn(verb.split()[0], index)


class CommandLines(unittest.TestCase):
    """Of the services; tests/cli has the verbs."""

    def services(self):
        return [name for name in PROGRAMS if name != "vitamin"]

    def test_every_program_says_its_version(self):
        version = run(PROGRAMS["vitamin"], "--version").stdout
        self.assertRegex(version, r"^vitamin \d+\.\d+\.\d+\n$")
        for name in self.services():
            shown = run(PROGRAMS[name], "--version")
            self.assertEqual((shown.returncode, shown.stdout),
                             (0, version.replace("vitamin", name)))

    def test_what_cannot_be_understood_is_one_line_that_says_what_to_do(self):
        for name in self.services():
            for words, said in ((["--sockt", "x"], "unknown option '--sockt'; did you mean "
                                                   "'--socket'?"),
                                (["extra"], "unknown word 'extra'"),
                                (["--socket"], "--socket")):
                wrong = run(PROGRAMS[name], *words)
                self.assertEqual((wrong.returncode, wrong.stdout), (1, ""), wrong.stderr)
                self.assertEqual(len(wrong.stderr.splitlines()), 1, wrong.stderr)
                self.assertTrue(wrong.stderr.startswith(name + ": "), wrong.stderr)
                self.assertIn(said, wrong.stderr)
                self.assertIn(f"See `{name} --help`. [VIT-101]", wrong.stderr)
        wrong = run(PROGRAMS["vitamind"], "--log", "xml")
        self.assertIn("text", wrong.stderr)
        self.assertEqual(len(wrong.stderr.splitlines()), 1, wrong.stderr)


class Completions(unittest.TestCase):
    def setUp(self):
        self.directory = tempfile.TemporaryDirectory(prefix="vitamin-docs-")
        # fish makes directories of its own there.
        self.environment = {name: value for name, value in os.environ.items()
                            if not name.startswith("XDG_")} | {"HOME": self.directory.name}
        self.addCleanup(self.directory.cleanup)

    def script(self, shell):
        path = pathlib.Path(self.directory.name) / shell
        path.write_text(run(PROGRAMS["vitamin"], "completion", shell).stdout)
        self.assertEqual(run(shell, "-n", str(path), env=self.environment).stderr, "")
        return path

    def check(self, offered):
        """`offered(words)`: what is offered at the end of a command line."""
        for verb in ["", *verbs_below()]:
            self.assertLessEqual(options_of(verb), offered(f"vitamin {verb} --".split()), verb)
            for option in offered(f"vitamin {verb} --".split()) - {"--"}:
                if option.startswith("--"):
                    self.assertIn(option, options_of(verb), verb)
        listed = run(PROGRAMS["vitamin"], "policy", "list").stdout
        policies = re.findall(r"^([a-z-]+)", listed, re.M)
        self.assertLessEqual(set(policies), offered(["vitamin", "run", "--policy", ""]))
        self.assertEqual(offered(["vitamin", "poli"]), {"policy"})
        self.assertLessEqual({"list", "show", "test"}, offered(["vitamin", "policy", ""]))
        # A value that looks like a verb is none.
        self.assertLessEqual({"--strict"}, offered("vitamin run --report verify --st".split()))
        self.assertIn("true", offered(["vitamin", "run", "--", "tru"]))

    def test_bash_offers_what_the_program_takes(self):
        script = self.script("bash")

        def offered(words):
            code = (f"source {script}; COMP_WORDS=({shlex.join(words)}); "
                    "COMP_CWORD=$((${#COMP_WORDS[@]} - 1)); _vitamin; "
                    'printf "%s\\n" "${COMPREPLY[@]}"')
            result = run("bash", "--norc", "-c", code)
            self.assertEqual(result.stderr, "")
            return set(result.stdout.split("\n")) - {""}
        self.check(offered)

    def test_bash_completes_vitamind_from_its_help(self):
        result = run("bash", "--norc", "-c", f"source {self.script('bash')}; "
                     f"COMP_WORDS=({PROGRAMS['vitamind']} --); COMP_CWORD=1; _vitamind; "
                     'printf "%s\\n" "${COMPREPLY[@]}"')
        self.assertEqual(set(result.stdout.split()), options_of("", "vitamind"))

    def test_zsh_offers_what_the_program_takes(self):
        # The completion system's own functions print instead of showing a menu.
        stubs = """
            _describe() { print -l -- ${${(P)@[-1]}%%:*}; }
            compadd() { shift; print -l -- $@; }
            _command_names() { print -l -- ${(k)commands}; }
            _files() { :; }
        """
        script = self.script("zsh")

        def offered(words):
            code = (f"{stubs}\nwords=({shlex.join(words)}); CURRENT=$#words; "
                    f"source {script}")
            result = run("zsh", "-f", "-c", code)
            self.assertEqual(result.stderr, "")
            return {word for word in result.stdout.split("\n")
                    if word and word.startswith(words[-1])}
        self.check(offered)

    def test_fish_offers_what_the_program_takes(self):
        script = self.script("fish")

        def offered(words):
            result = run("fish", "--no-config", "-c",
                         f"source {script}; complete -C {shlex.quote(' '.join(words))}",
                         env=self.environment)
            self.assertEqual(result.stderr, "")
            found = {line.split("\t")[0] for line in result.stdout.split("\n")}
            if words[-1] == "--":  # fish offers the mark of a command's beginning itself
                found.add("--")
            return {word for word in found if word}
        self.check(offered)

    def test_another_shell_is_refused_in_one_line(self):
        result = run(PROGRAMS["vitamin"], "completion", "tcsh")
        self.assertEqual(result.returncode, 125)
        self.assertRegex(result.stderr, r"^vitamin: .*'tcsh'.*\[VIT-101\]\n$")


class Results(unittest.TestCase):
    def test_the_page_is_what_the_script_makes_of_the_kept_results(self):
        made = run("python3", str(SOURCE / "bench/results_page.py"))
        self.assertEqual(made.returncode, 0, made.stderr)
        self.assertEqual(made.stdout, (DOCS / "results.md").read_text(),
                         "run bench/results_page.py --write")

    def test_every_target_of_scheduling_is_a_row(self):
        section = (DOCS / "results.md").read_text().partition("## Targets of scheduling")[2]
        firsts = re.findall(r"^\| ([^|]+) \|", section.partition("\n## ")[0], re.M)[1:]
        begins = ("decode beside prefill, closed loops as above",
                  "the same with the decoder's steps", "phases that change every 5 s",
                  "training pairs W1–W6, RN+D0.6, BE+D1.7",
                  "`slo`: 8B decoder at load 0.5",
                  "prefill and decode as two processes on the three",
                  "three and four clients", "planning", "bits")
        self.assertEqual(len(firsts), len(begins))
        for first, begin in zip(firsts, begins):
            self.assertTrue(first.startswith(begin), first)


class ProtectLatency(unittest.TestCase):
    def test_the_table_is_of_the_results(self):
        table = (DOCS / "protect-latency.md").read_text().partition("## What to expect")[2]
        rows = re.findall(r"^\| ([^|]+) \| ([\d.]+) \| ([\d.]+) \| ([\d.]+) \| ([\d.]+) \|$", table,
                          re.M)
        short = {"BERT": "BE", "Qwen3-0.6B": "D0.6", "Qwen3-1.7B": "D1.7", "ResNet-152": "RN"}
        self.assertEqual({name for name, *_ in rows}, set(short))
        row, = re.findall(r"^\| `slo`: 8B decoder at load 0.5.*$",
                          (DOCS / "results.md").read_text(), re.M)
        self.assertIn("| met: in 4 of 4 |", row)
        for name, p99, training, mps_p99, mps_training in rows:
            pair, = re.findall(rf"(?:\| |<br>){re.escape(short[name])}: (.*?)(?:<br>| \|)", row)
            self.assertIn(f"`slo` p99 {p99} × alone, training {training}", pair)
            self.assertIn(f"MPS with priorities p99 {mps_p99} × alone, training {mps_training}",
                          pair)


class Readme(unittest.TestCase):
    text = (SOURCE / "README.md").read_text()

    def test_every_measured_number_is_in_the_results(self):
        table = self.text.partition("## Five numbers")[2].partition("\n## ")[0]
        numbers = re.findall(r"\*\*([^*]+)\*\*", table)
        self.assertEqual(len(numbers), 5)
        self.assertIn("missed", table)
        results = (DOCS / "results.md").read_text()
        for number in numbers:
            self.assertRegex(results, rf"(?<![\d.,]){re.escape(number)}(?!\d)")

    def test_the_output_of_the_demo_is_what_the_demo_prints(self):
        demo = (SOURCE / "tools/demo/demo.py").read_text()
        shown = self.text.partition("It prints (shortened):")[2].split("```")[1]
        shown = shown.strip("\n").splitlines()
        words = [word for word in re.split(r"  +", shown[0].strip()) if word]
        self.assertEqual(len(words), 7)
        for word in (*words, shown[-1]):
            self.assertIn(word, demo)

    def test_it_names_what_is_supported_and_what_is_not(self):
        for word in ("Supported:", "Experimental:", "Unproven:", "never run on AMD silicon",
                     "time-slicing", "MPS", "MIG"):
            self.assertIn(word, " ".join(self.text.split()))


class Documents(unittest.TestCase):
    def test_every_link_leads_somewhere(self):
        for page in every_page():
            links = re.findall(r"\]\(([^)#\s]+)", page.read_text(), re.S)
            if page.name == "README.md":
                self.assertGreater(len(links), 8)
            for link in links:
                if not link.startswith("https:"):
                    self.assertTrue((page.parent / link).exists(), f"{page.name}: {link}")
            names = r"`((?:bench|backends|daemon|runtime|scripts|deploy|tests|docs|hal|interpose" \
                    r"|scheduler|tools)/[\w./-]+)`"
            if page.parent.name == "decisions":  # these name what was there then
                continue
            for name in re.findall(names, page.read_text()):
                if page.name == "results.md" and not name.startswith("bench/results/"):
                    continue  # a command of then
                self.assertTrue((SOURCE / name).exists(), f"{page.name}: {name}")

    def test_links_of_installed_pages_lead_to_installed_files(self):
        installed = (DOCS / "CMakeLists.txt").read_text()
        for page in pages() + sorted(DOCS.glob("decisions/*.md")):
            for link in re.findall(r"\]\(([^)#\s]+)", page.read_text()):
                if link.startswith("https:"):
                    continue
                name = (page.parent / link).resolve().relative_to(DOCS.resolve()).as_posix()
                if name.startswith("man/"):
                    self.assertIn(f"install(FILES {name} ", installed, page.name)
                else:
                    self.assertRegex(name, r"\.(md|svg)$", page.name)

    def test_every_test_of_a_counter_example_is_there(self):
        sources = [path.read_text(errors="replace") for path in (SOURCE / "tests").rglob("*")
                   if path.suffix in (".py", ".cpp", ".def", ".txt")]
        page = (SOURCE / "tests/counter_examples.md").read_text()
        numbers = [int(number) for number in re.findall(r"^\| (\d+) \|", page, re.M)]
        self.assertEqual(numbers, list(range(1, len(numbers) + 1)))
        self.assertGreaterEqual(len(numbers), 22)
        for file, name in re.findall(r"`(\w+): ([^`]+)`", page):
            written = (f"def test_{name.replace(' ', '_')}(", f'TEST_CASE("{name}")',
                       f"{name}" if file == "differential" else None)
            self.assertTrue(any(text in source for source in sources for text in written if text),
                            f"{file}: {name}")

    def test_every_page_is_in_the_index(self):
        index = (DOCS / "README.md").read_text()
        for page in pages():
            self.assertIn(page.name, index + "README.md")
        records = (DOCS / "decisions/README.md").read_text()
        for record in DOCS.glob("decisions/0*.md"):
            self.assertIn(f"({record.name})", records)

    def test_every_command_is_one_that_the_programs_understand(self):
        seen = 0
        for page in every_page():
            for block in blocks(page, "sh"):
                self.assertEqual(run("bash", "-n", "-c", block).stderr, "", page)
                for line in block.replace("\\\n", " ").splitlines():
                    words = shlex.split(line.rstrip("& "), comments=True)
                    if words and words[0] in PROGRAMS:
                        self.check_command(words, page.name)
                        seen += 1
        self.assertGreater(seen, 20)

    def test_every_configuration_of_a_page_is_valid(self):
        self.assertGreater(sum(len(blocks(page, "toml")) for page in pages()), 0)
        with tempfile.TemporaryDirectory() as directory:
            file = pathlib.Path(directory) / "vitamin.toml"
            for page in pages():
                for block in blocks(page, "toml"):
                    file.write_text(block)
                    result = run(PROGRAMS["vitamin"], "config", "check", "--config", str(file))
                    self.assertEqual(result.returncode, 0, f"{page.name}: {result.stdout}"
                                                           f"{result.stderr}")

    def check_command(self, words, page):
        mine = words[1:words.index("--")] if "--" in words else words[1:]
        verb = ""
        if words[0] == "vitamin":
            for word in mine:
                if f"{verb} {word}".strip() in set(verbs_below()):
                    verb = f"{verb} {word}".strip()
            self.assertTrue(verb, f"{page}: {words}")
        for word in mine:
            if word.startswith("--") and word != "--":
                self.assertIn(word.split("=")[0], options_of(verb, words[0]), f"{page}: {words}")

    def test_the_table_of_policies_has_their_parameters(self):
        listed = json.loads(run(PROGRAMS["vitamin"], "policy", "list", "--json").stdout)["policies"]
        known = {policy["name"]: [each["name"] for each in policy["parameters"]]
                 for policy in listed}
        told = {}
        for names, parameters in re.findall(r"^\| (`[^|]*) \|[^|]*\| (.*) \|$",
                                            (DOCS / "policies.md").read_text(), re.M):
            names = re.findall(r"`([^`]+)`", names)
            if names[0] in known:
                groups = parameters.split(";")
                self.assertEqual(len(groups), len(names), names)
                told |= {name: re.findall(r"`([^`]+)`", group)
                         for name, group in zip(names, groups)}
        self.assertEqual(told, known)

    def test_the_policy_of_the_page_is_the_example_and_works(self):
        page = DOCS / "policies.md"
        example = (SOURCE / "scheduler/policies/examples/round_robin.c").read_text()
        for block in blocks(page, "c"):
            self.assertIn(block, example)
        with tempfile.TemporaryDirectory() as directory:
            for line in "".join(blocks(page, "sh")).splitlines():
                if line.startswith(("cc ", "vitamin policy ")):
                    words = shlex.split(
                        line.replace(" scheduler/policies", f" {SOURCE}/scheduler/policies"))
                    words[0] = PROGRAMS.get(words[0], words[0])
                    result = run(*words, cwd=directory)
                    self.assertEqual(result.returncode, 0, line + result.stdout + result.stderr)

    def test_every_error_code_is_explained_and_no_other(self):
        text = (SOURCE / "runtime/problem.def").read_text()
        listed = re.findall(r'^VITAMIN_PROBLEM\(\w+, (\d+), "(.*)"\)$', text, re.M)
        self.assertGreater(len(listed), 20)
        self.assertEqual(len({number for number, _ in listed}), len(listed))
        headings = re.findall(r"^## VIT-(\d+): (.*)$", (DOCS / "errors.md").read_text(), re.M)
        self.assertEqual(headings, listed)
        for page in pages():
            for number in re.findall(r"VIT-(\d+)", page.read_text()):
                self.assertIn(number, dict(listed), page)

    def test_every_error_code_is_used_by_a_program(self):
        sources = "".join(path.read_text() for directory in ("tools", "daemon", "interpose")
                          for path in (SOURCE / directory).rglob("*.cpp"))
        names = re.findall(r"^VITAMIN_PROBLEM\((\w+)",
                           (SOURCE / "runtime/problem.def").read_text(), re.M)
        self.assertEqual([name for name in names if f"Problem::{name}" not in sources], [])

    def test_the_picture_stands_alone_and_reads_in_dark_and_light(self):
        path = DOCS / "how-it-works.svg"
        root = xml.etree.ElementTree.parse(path).getroot()
        self.assertTrue(root.tag.endswith("svg"))
        text = path.read_text()
        self.assertIn("prefers-color-scheme: dark", text)
        self.assertNotRegex(text, r"href=|@import|url\((?!#)")
        _, _, width, height = map(float, root.get("viewBox").split())
        for element in root.iter():
            for name, most in (("x", width), ("y", height)):
                self.assertLessEqual(float(element.get(name) or 0), most)
            if element.tag.endswith("text"):  # 7 units a letter at 14 px, 6.2 at 12 px
                step = 6.2 if "soft" in element.get("class", "") else 7.6
                length = step * len(element.text)
                begin = float(element.get("x")) - (length / 2 if "middle" in element.get("class")
                                                   else 0)
                self.assertGreaterEqual(begin, 0, element.text)
                self.assertLessEqual(begin + length, width, element.text)

    def test_nothing_is_claimed_of_amd_silicon(self):
        for page in pages():
            text = " ".join(page.read_text().split())
            if "AMD" in text and page.name not in ("errors.md", "how-it-works.md", "README.md",
                                                     "glossary.md"):
                self.assertIn("never run on AMD silicon", text, page.name)


if __name__ == "__main__":
    unittest.main()
