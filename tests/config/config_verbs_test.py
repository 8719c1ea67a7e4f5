#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""vitamin config check, show and schema; the layers, as files and variables."""
import json
import os
import pathlib
import shutil
import subprocess
import tempfile
import tomllib
import unittest

from time_limit import time_limit

VITAMIN = os.environ["VITAMIN"]
EXAMPLE = os.environ["EXAMPLE"]


def config(*words, **variables):
    environment = {name: value for name, value in os.environ.items()
                   if not name.startswith("VITAMIN_CONFIG")}
    return subprocess.run([VITAMIN, "config", *words], env=environment | variables, text=True,
                          capture_output=True, timeout=time_limit(60))


class Layers(unittest.TestCase):
    def setUp(self):
        holder = tempfile.TemporaryDirectory()
        self.addCleanup(holder.cleanup)
        self.directory = pathlib.Path(holder.name)
        (self.directory / "conf.d").mkdir()
        self.main = self.write("vitamin.toml", '[policy]\nquantum = "1ms"\nname = "throughput"\n')

    def write(self, name, text):
        (self.directory / name).write_text(text)
        return str(self.directory / name)

    def shown(self, *words, **variables):
        answer = config("show", "--origin", "--json", "--config", self.main, *words, **variables)
        self.assertEqual(answer.returncode, 0, answer.stderr)
        return {s["key"]: (s["value"], s["origin"])
                for s in json.loads(answer.stdout)["settings"]}

    def test_the_later_layer_wins_and_origin_names_it(self):
        quantum = self.shown()["policy.quantum"]
        self.assertEqual(quantum, ('"1ms"', {"source": self.main, "line": 2, "column": 1}))
        self.assertEqual(self.shown()["policy.seed"], ("0", {"source": "built in"}))
        second = self.write("conf.d/50-b.toml", 'policy.quantum = "2ms"\n')
        self.write("conf.d/10-a.toml", 'policy.quantum = "5ms"\n')
        self.assertEqual(self.shown()["policy.quantum"][1]["source"], second)
        variable = {"VITAMIN_CONFIG_POLICY_QUANTUM": "3ms"}
        self.assertEqual(self.shown(**variable)["policy.quantum"][0], '"3ms"')
        self.assertEqual(self.shown("--set", "policy.quantum=4ms", **variable)["policy.quantum"],
                         ('"4ms"', {"source": "the command line"}))

    def test_a_class_of_a_later_file_is_tried_first_and_replaces_its_namesake(self):
        self.write("vitamin.toml", '[[class]]\nname = "a"\nuser = "x"\n[[class]]\nname = "b"\n'
                                   'user = "y"\n')
        self.write("conf.d/1.toml", '[[class]]\nname = "b"\ncommand = "z"\n')
        keys = [key for key in self.shown() if key.startswith("class")]
        self.assertEqual(keys, ['class."b".command', 'class."a".user'])

    def test_check_names_every_problem_with_its_line_and_a_caret(self):
        self.write("vitamin.toml", '[policy]\nquantun = "1ms"\n[pool]\nleaf_units = 0\n')
        answer = config("check", "--config", self.main, VITAMIN_CONFIG_POLICY_NMAE="x")
        self.assertEqual(answer.returncode, 1)
        for line in (f"{self.main}:2:1: unknown key 'policy.quantun'; did you mean 'quantum'?",
                     '  2 | quantun = "1ms"', "    | ^",
                     f"{self.main}:4:14: 'pool.leaf_units' must be",
                     "3 problems: nothing of it is used. [VIT-111]",
                     "VITAMIN_CONFIG_POLICY_NMAE: is no setting; did you mean "
                     "'VITAMIN_CONFIG_POLICY_NAME'?"):
            self.assertIn(line, answer.stdout)
        as_json = json.loads(config("check", "--json", "--config", self.main).stdout)
        self.assertFalse(as_json["valid"])
        self.assertEqual([p["line"] for p in as_json["problems"]], [2, 4])

    def test_check_compares_a_reservation_with_the_devices_here(self):
        driver = self.directory / "driver"
        driver.mkdir()
        shutil.copy(os.environ["FAKE_DRIVER"], driver / "libcuda.so.1")  # of 16 processors
        file = self.write("wide.toml", '[[class]]\nname = "wide"\nkind = "latency"\n'
                                       'reservation = 17\n')
        here = {"LD_LIBRARY_PATH": str(driver)}
        checked = config("check", "--config", file, **here)
        self.assertEqual(checked.returncode, 1, checked.stdout)
        self.assertIn("wide.toml:4:1: the class 'wide' reserves 17 SMs", checked.stdout)
        self.assertIn("fake 0, has 16", checked.stdout)
        checked = json.loads(config("check", "--json", "--config", file, **here).stdout)
        self.assertTrue(checked["valid"])
        self.assertEqual(checked["no_effect"][0]["line"], 4)
        self.assertEqual(checked["not_checked"], [])
        # Of another node the devices are not known, nor of a machine without any: said, not passed
        # over.
        for words, more, said in ((["--host", "gpu1"], here, "devices of another node"),
                                  ([], {}, "no device and no vitamind with a client was found")):
            unknown = config("check", "--config", file, *words, **more)
            self.assertEqual(unknown.returncode, 0, unknown.stdout)
            self.assertRegex(unknown.stdout, r"(?m)^not checked: whether the device has the SMs of "
                                             f"`reservation`: .*{said}")
            self.assertEqual(len(json.loads(config("check", "--json", "--config", file, *words,
                                                   **more).stdout)["not_checked"]), 1)
        file = self.write("more.toml", '[[class]]\nname = "m"\nkind = "latency"\n'
                                       'reservation = 640\n')  # than any device has
        self.assertIn("more.toml:4:15: 'reservation' must be a whole number from 0 to 512",
                      config("check", "--config", file).stdout)
        file = self.write("bounded.toml", '[[class]]\nname = "b"\nkind = "latency"\nshare = 50\n'
                                          'reservation = 9\n')
        self.assertIn("bounded.toml:5:1: the class 'b' reserves 9 SMs for each client and "
                      "bounds it to 8", config("check", "--config", file, **here).stdout)
        file = self.write("fits.toml", '[[class]]\nname = "fits"\nkind = "latency"\n'
                                       'reservation = 16\n')
        self.assertEqual(config("check", "--config", file, **here).returncode, 0)

    def test_a_file_that_was_named_and_cannot_be_read_is_a_problem(self):
        for name in ("missing.toml", "conf.d"):
            answer = config("check", "--config", str(self.directory / name))
            self.assertEqual(answer.returncode, 1, name)
            self.assertIn(name, answer.stdout)

    def test_an_invalid_configuration_stops_a_run_before_it_starts(self):
        self.write("vitamin.toml", "quantum = 1\n")
        answer = subprocess.run([VITAMIN, "run", "--", "touch", str(self.directory / "ran")],
                                env=os.environ | {"VITAMIN_CONFIG": self.main}, text=True,
                                capture_output=True, timeout=time_limit(60))
        self.assertEqual(answer.returncode, 125)
        self.assertIn("vitamin.toml:1:1: unknown key 'quantum'", answer.stderr)
        self.assertFalse((self.directory / "ran").exists())


class Schema(unittest.TestCase):
    def schema(self):
        return json.loads(config("schema").stdout)

    def test_it_says_what_show_knows(self):
        properties = self.schema()["properties"]
        shown = json.loads(config("show", "--json", VITAMIN_CONFIG=EXAMPLE).stdout)["settings"]
        for setting in shown:
            if setting["key"].startswith(("class", "devices")):
                continue
            section, _, key = setting["key"].rpartition(".")
            self.assertIn(key, properties[section]["properties"] if section else properties)

    def test_it_accepts_the_example_and_refuses_what_check_refuses(self):
        try:
            import jsonschema
        except ImportError:
            self.skipTest("python3-jsonschema is not installed")
        validator = jsonschema.Draft7Validator(self.schema())
        example = pathlib.Path(EXAMPLE).read_text()
        self.assertEqual(list(validator.iter_errors(tomllib.loads(example))), [])
        for wrong in ('policy.quantum = 4', 'policy.quantun = "4ms"', 'pool.leaf_units = 65',
                      'mps.mode = "on"', 'isolation = "clas"',
                      '[[class]]\nuser = "x"', '[class]\nname = "x"',
                      '[nodes."a"]\npoool = 1', '[devices."a".mps]\nmode = "off"'):
            with tempfile.NamedTemporaryFile("w", suffix=".toml") as file:
                file.write(wrong)
                file.flush()
                self.assertEqual(config("check", "--config", file.name).returncode, 1, wrong)
            self.assertFalse(validator.is_valid(tomllib.loads(wrong)), wrong)


if __name__ == "__main__":
    unittest.main()
