#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""CDI: the file that `vitamin cdi generate` writes, and podman that reads it."""
import json
import os
import pathlib
import re
import shutil
import subprocess
import tempfile
import unittest

from machine import BUILD, Machine, package, tool
from time_limit import time_limit, wait_until

VITAMIN = BUILD / "bin/vitamin"


def vitamin(*words, configuration="/dev/null"):
    return subprocess.run([VITAMIN, "cdi", *words], text=True, capture_output=True,
                          env=os.environ | {"VITAMIN_CONFIG": str(configuration)})


class Specification(unittest.TestCase):
    def setUp(self):
        directory = tempfile.TemporaryDirectory(prefix="vitamin-cdi-")
        self.addCleanup(directory.cleanup)
        self.directory = pathlib.Path(directory.name)

    def generated(self, *words, **more):
        """Writes a CDI file with an existing directory of the socket."""
        said = vitamin("generate", "--output", "-", "--socket", self.directory / "vitamind.sock",
                       *words, **more)
        self.assertEqual(said.returncode, 0, said.stderr)
        return json.loads(said.stdout)

    def check(self, specification):
        file = self.directory / "vitamin.json"
        file.write_text(specification if isinstance(specification, str)
                        else json.dumps(specification))
        return vitamin("check", file)

    def test_a_container_gets_a_socket_libraries_and_variables(self):
        made = self.generated("--share", "25,50", "--class", "latency", "--mps", self.directory)
        self.assertEqual(made["cdiVersion"], "0.3.0")
        self.assertEqual(made["kind"], "vitamin.dev/share")
        edits = made["containerEdits"]
        self.assertEqual({line.split("=")[0] for line in edits["env"]},
                         {"LD_PRELOAD", "CUDA_MPS_PIPE_DIRECTORY"})
        self.assertEqual([mount["hostPath"] for mount in edits["mounts"]],
                         [str(self.directory), str(BUILD / "lib"), str(self.directory)])
        daemon = f"VITAMIN_DAEMON={self.directory}/vitamind.sock"
        self.assertTrue(all("ro" in mount["options"] for mount in edits["mounts"]))
        self.assertEqual({device["name"]: device["containerEdits"]["env"]
                          for device in made["devices"]},
                         {"all": [daemon], "percent-25": [daemon, "VITAMIN_SHARE=25"],
                          "percent-50": [daemon, "VITAMIN_SHARE=50"],
                          "class-latency": [daemon, "VITAMIN_CLASS=latency"]})
        self.assertEqual(self.check(made).returncode, 0)

    def test_a_container_knows_whether_it_may_run_without_vitamind(self):
        file = self.directory / "vitamin.toml"
        for absent, named in ("closed", True), ("open", False):
            file.write_text(f'[failure]\nabsent = "{absent}"\n')
            variables = self.generated(configuration=file)["containerEdits"]["env"]
            self.assertEqual("VITAMIN_ABSENT=75" in variables, named)

    def test_devices_of_isolated_classes_have_the_directories_of_their_domains(self):
        file = self.directory / "vitamin.toml"
        file.write_text('[[class]]\nname = "a"\nisolation = "class"\ncommand = "a"\n'
                        '[[class]]\nname = "b"\ncommand = "b"\n'
                        '[[class]]\nname = "c"\nisolation = "exclusive"\ncommand = "c"\n')
        pathlib.Path(str(self.directory) + ".a").mkdir()
        self.addCleanup(pathlib.Path(str(self.directory) + ".a").rmdir)
        made = self.generated("--share", "25", "--class", "a,b,c", "--mps", self.directory,
                              configuration=file)
        self.assertEqual([line.split("=")[0] for line in made["containerEdits"]["env"]],
                         ["LD_PRELOAD"])
        shared = str(self.directory)
        directories = {"all": shared, "percent-25": shared, "class-a": shared + ".a",
                       "class-b": shared, "class-c": shared + "-none"}
        for device in made["devices"]:
            edits, name = device["containerEdits"], device["name"]
            self.assertEqual(edits["env"][-1], f"CUDA_MPS_PIPE_DIRECTORY={directories[name]}")
            self.assertEqual([mount["hostPath"] for mount in edits.get("mounts", [])],
                             [shared + ".a"] if name == "class-a" else [])
        self.assertEqual(self.check(made).returncode, 0)

    def test_what_an_engine_refuses_is_found(self):
        good = self.generated()
        damages = {
            "unknown field 'device'": lambda it: it.update(device=[]),
            "unknown field 'enviroment'": lambda it: it["containerEdits"].update(enviroment=[]),
            "cdiVersion '0.3'": lambda it: it.update(cdiVersion="0.3"),
            "kind 'share'": lambda it: it.update(kind="share"),
            "there is no device": lambda it: it.update(devices=[]),
            "two devices are named 'all'": lambda it: it["devices"].append(it["devices"][0]),
            "is no name of a device": lambda it: it["devices"][0].update(name="a b"),
            "is not NAME=VALUE": lambda it: it["containerEdits"]["env"].append("ALONE"),
            "/nowhere/at/all does not exist": lambda it: it["containerEdits"]["mounts"].append(
                {"hostPath": "/nowhere/at/all", "containerPath": "/x"}),
            "does nothing": lambda it: it["devices"][0].update(containerEdits={}),
        }
        for words, damage in damages.items():
            bad = json.loads(json.dumps(good))
            damage(bad)
            said = self.check(bad)
            self.assertEqual(said.returncode, 1, words)
            self.assertIn(words, said.stderr)
        self.assertIn("is no JSON", self.check("{").stderr)

    def test_directories_that_are_none_are_told(self):
        file = self.directory / "file"
        file.write_text("")
        said = vitamin("generate", "--socket", self.directory / "s", "--output", file / "x.json")
        self.assertEqual(said.returncode, 125)
        self.assertIn(f"cannot write {file}/x.json: Not a directory", said.stderr)
        said = vitamin("check", self.directory / "none")
        self.assertEqual((said.returncode, said.stderr.count("No such file")), (1, 1))
        said = vitamin("check", self.directory)
        self.assertIn("no CDI file", said.stderr)
        said = vitamin("generate", "--output", "-", "--socket", "/nowhere/s")
        self.assertEqual(said.returncode, 125)
        self.assertIn("/nowhere does not exist", said.stderr)
        said = vitamin("generate", "--output", "-", "--share", "0")
        self.assertEqual(said.returncode, 125)
        self.assertIn("0 is no percentage", said.stderr)


class WithoutTheSocket(unittest.TestCase):
    """A program in an image that has the library and its variables, but not /run/vitamin."""

    TRAIN = [BUILD / "bin/demo-train", "20"]

    def run_with(self, **environment):
        return subprocess.run(self.TRAIN, text=True, capture_output=True, timeout=time_limit(60),
                              env={"LD_LIBRARY_PATH": str(BUILD / "lib/soft"), **environment})

    def test_it_says_so_in_one_line_and_has_the_bits_of_a_run_alone(self):
        if not self.TRAIN[0].exists():
            self.skipTest("no program of CUDA is built")
        with tempfile.TemporaryDirectory() as locks:
            done = self.run_with(LD_PRELOAD=str(BUILD / "lib/libvitamin_cuda.so"),
                                 VITAMIN_LOCK_DIRECTORY=locks,
                                 VITAMIN_DAEMON="/nowhere/vitamin/vitamind.sock")
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertRegex(done.stderr, r"\Avitamin: .* /nowhere/vitamin/vitamind\.sock .*No such "
                                      r"file.*runs without coordination \[VIT-302\]\n\Z")
        bits = [re.search(r"hash (\w+)", each.stdout)[1] for each in (done, self.run_with())]
        self.assertEqual(bits[0], bits[1])


class PodmanTest(unittest.TestCase):
    """Containers with some programs of this machine: no image is fetched."""

    NAMES = ("vitamind", "vitamin-preload", "vitamin-cli")
    LIBRARIES = ("libm.so.6", "libdl.so.2", "libpthread.so.0", "libc.so.6")
    NETWORK = False  # whether the machine has this one's

    def setUp(self):
        tool("podman")
        self.machine = Machine(network=self.NETWORK)
        self.addCleanup(self.machine.close)
        self.machine.run("dpkg", "--force-unsafe-io", "-i",
                         *(package(name) for name in self.NAMES))
        root = self.machine.root / "srv/image"
        # Preloading needs programs with a C library, as in any image.
        for program in ("env", "cat", "ls", "sh"):
            path = self.machine.run("readlink", "-f", shutil.which(program)).stdout.strip()
            needed = [path, *(word for word in self.machine.run("ldd", path).stdout.split()
                              if word.startswith("/"))]
            for file in needed:
                target = root / file.lstrip("/")
                target.parent.mkdir(parents=True, exist_ok=True)
                shutil.copy(self.machine.root / file.lstrip("/"), target)
            if path != f"/bin/{program}":
                (root / "bin").mkdir(exist_ok=True)
                (root / "bin" / program).symlink_to(path)
        for library in self.LIBRARIES:
            path = pathlib.Path("lib/x86_64-linux-gnu") / library
            (root / path).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(self.machine.root / path, root / path)
        for directory in ("proc", "dev", "sys", "tmp", "run", "etc"):
            (root / directory).mkdir(exist_ok=True)

    def start_daemon(self):
        daemon = self.machine.start("vitamind", "--system", user="vitamin")
        self.addCleanup(daemon.wait)
        self.addCleanup(daemon.kill)
        wait_until(lambda: self.machine.exists("/run/vitamin/vitamind.sock"), what="the socket")

    @staticmethod
    def podman_words(device, *words, options=()):
        return ("podman", "--storage-driver=vfs", "--root=/tmp/podman", "--runroot=/run/podman",
                "--cgroup-manager=cgroupfs", "--events-backend=none", "run", "--rm",
                "--cgroups=disabled", "--network=host", "--security-opt=seccomp=unconfined",
                "--ulimit=host",  # a kernel may allow fewer files than podman asks for
                "--device", device, *options, "--rootfs", "/srv/image", *words)

    def podman(self, device, *words, check=True, options=()):
        return self.machine.run(*self.podman_words(device, *words, options=options), check=check)


class Podman(PodmanTest):
    def test_a_container_sees_the_socket_and_the_libraries(self):
        self.start_daemon()
        self.machine.run("vitamin", "cdi", "generate")
        self.assertEqual(self.machine.run("vitamin", "cdi", "check").stdout, "")
        seen = self.podman("vitamin.dev/share=percent-25", "/bin/sh", "-c",
                           "env; cat /proc/$$/maps; ls /run/vitamin").stdout
        self.assertIn("VITAMIN_SHARE=25\n", seen)
        self.assertIn("VITAMIN_DAEMON=/run/vitamin/vitamind.sock\n", seen)
        self.assertIn("/usr/lib/vitamin/preload/libvitamin_cuda.so\n", seen)
        self.assertRegex(seen, r"(?m)^vitamind.sock$")
        refused = self.podman("vitamin.dev/share=most", "/bin/env", check=False)
        self.assertNotEqual(refused.returncode, 0)
        self.assertIn("unresolvable CDI devices vitamin.dev/share=most", refused.stderr)

    def test_podman_refuses_what_the_check_refuses(self):
        self.machine.run("vitamin", "cdi", "generate")
        file = "/etc/cdi/vitamin.json"
        specification = json.loads(self.machine.read(file))
        specification["devicez"] = []
        self.machine.write(file, json.dumps(specification))
        self.assertEqual(self.machine.run("vitamin", "cdi", "check", check=False).returncode, 1)
        refused = self.podman("vitamin.dev/share=all", "/bin/env", check=False)
        self.assertNotEqual(refused.returncode, 0)


if __name__ == "__main__":
    unittest.main()
