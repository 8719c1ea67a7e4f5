#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The Debian packages and the tarball: contents, installation, upgrade and removal."""
import importlib.util
import os
import pathlib
import re
import subprocess
import sys
import tarfile
import tempfile
import unittest

from machine import BUILD, SOURCE, VERSION, Machine, alone, package, packages, tool
import seed
from time_limit import time_limit, wait_until

def floor(name):
    """A version of glibc that the build names."""
    text = (SOURCE / "interpose/glibc_floor/glibc_floor.cmake").read_text()
    return tuple(map(int, re.search(rf"set\({name} (\d+)\.(\d+)\)", text).groups()))


FLOOR = floor("VITAMIN_GLIBC_FLOOR")
FLOOR_OF_PROGRAMS = floor("VITAMIN_GLIBC_FLOOR_OF_PROGRAMS")
RHEL_9 = (2, 34)


def run(*words, **options):
    return subprocess.run([str(word) for word in words], text=True, capture_output=True,
                          check=True, **options).stdout


def field(deb, name):
    return run("dpkg-deb", "-f", deb, name).strip()


class Directory(unittest.TestCase):
    def setUp(self):
        directory = tempfile.TemporaryDirectory(prefix="vitamin-packages-")
        self.addCleanup(directory.cleanup)
        self.directory = pathlib.Path(directory.name)

    def unpacked(self, *names):
        """The files of those packages, as installed."""
        for name in names:
            run("dpkg-deb", "-x", package(name), self.directory / "tree")
        return self.directory / "tree"


class Contents(Directory):
    def test_packages_are_made_and_say_what_they_need(self):
        names = {path.name.split("_")[0] for path in packages().glob("*.deb")}
        self.assertLessEqual({"vitamind", "vitamin-cli", "vitamin-preload", "libvitamin-dev"},
                             names)
        version = field(package("vitamind"), "Version")
        self.assertIn(f"vitamin-preload (= {version})", field(package("vitamin-cli"), "Depends"))
        self.assertEqual(field(package("libvitamin-dev"), "Architecture"), "all")
        # The versions that the libraries' symbols need, not those of this machine.
        self.assertEqual(field(package("vitamin-preload"), "Depends"),
                         "libc6 (>= {}.{})".format(*FLOOR))
        for deb in packages().glob("*.deb"):
            first = field(deb, "Description").splitlines()[0]
            self.assertFalse(first.startswith("Late-bound"), f"{deb.name} has no synopsis")

    def test_installed_packages_contain_nothing_of_the_tests(self):
        """From the rules, since not all of it may be built here."""
        for_use, for_tests = set(), set()
        for script in BUILD.rglob("cmake_install.cmake"):
            for condition, body in re.findall(r"^if\((CMAKE_INSTALL_COMPONENT STREQUAL .*?)\)$"
                                              r"(.*?)^endif\(\)$", script.read_text(), re.M | re.S):
                files = re.findall(r'file\(INSTALL DESTINATION "([^"]+)".*? FILES((?: "[^"]*")*)',
                                   body, re.S)
                installed = for_use if "OR NOT CMAKE_INSTALL_COMPONENT" in condition else for_tests
                for directory, names in files:
                    installed |= {f"{directory}/{pathlib.Path(name).name}"
                                  for name in re.findall(r'"([^"]*)"', names)}
        self.assertIn("${CMAKE_INSTALL_PREFIX}/bin/vitamin", for_use)
        self.assertTrue(any(name.endswith("/daemon_attacker") for name in for_tests), for_tests)
        wrong = [name for name in for_use
                 if re.search(r"/bench/|/soft/|fuzzer|attacker|libcuda|libhsakmt", name)]
        self.assertEqual(wrong, [])

    def test_lintian_finds_nothing(self):
        said = subprocess.run([tool("lintian"), "--allow-root", "--fail-on", "error,warning",
                               *sorted(packages().glob("*.deb"))],
                              text=True, capture_output=True)
        self.assertEqual((said.returncode, said.stdout), (0, ""), said.stderr)

    def test_preloaded_libraries_need_no_newer_glibc_than_stated(self):
        tree = self.unpacked("vitamin-preload")
        libraries = sorted(tree.rglob("*.so"))
        self.assertTrue(libraries)
        for library in libraries:
            symbols = run("objdump", "-T", library)
            versions = {tuple(int(word) for word in version.split("."))
                        for version in re.findall(r"GLIBC_(\d+(?:\.\d+)+)", symbols)}
            self.assertTrue(versions, library)
            self.assertLessEqual(max(versions), FLOOR, library.name)
            needed = set(re.findall(r"NEEDED.*\[(.*?)\]", run("readelf", "-d", library)))
            self.assertLessEqual(needed, {"libc.so.6", "libm.so.6", "libdl.so.2",
                                          "libpthread.so.0", "ld-linux-x86-64.so.2"})

    def test_programs_need_no_newer_glibc_than_rhel_9_has_and_no_cxx_library(self):
        self.assertLessEqual(FLOOR_OF_PROGRAMS, RHEL_9)
        tree = self.unpacked("vitamind", "vitamin-cli")
        for program in ("vitamin", "vitamind"):
            symbols = run("objdump", "-T", tree / "usr/bin" / program)
            newest = max(tuple(map(int, version.split(".")))
                         for version in re.findall(r"GLIBC_(\d+\.\d+)", symbols))
            self.assertLessEqual(newest, FLOOR_OF_PROGRAMS, program)
            needed = set(re.findall(r"NEEDED.*\[(.*?)\]",
                                    run("readelf", "-d", tree / "usr/bin" / program)))
            self.assertLessEqual(needed, {"libc.so.6", "libm.so.6", "ld-linux-x86-64.so.2",
                                          "libudev.so.1"})  # of systemd
        for name in ("vitamind", "vitamin-cli"):
            least = re.search(r"libc6 \(>= (\d+)\.(\d+)\)", field(package(name), "Depends"))
            self.assertLessEqual(tuple(map(int, least.groups())), FLOOR_OF_PROGRAMS, name)

    def test_units_are_valid_and_sandboxed(self):
        analyze = tool("systemd-analyze")
        tree = self.unpacked("vitamind")
        unit = tree / "usr/lib/systemd/system/vitamind.service"
        said = subprocess.run([analyze, "security", "--offline=true", "--threshold=10", unit],
                              text=True, capture_output=True)
        self.assertEqual(said.returncode, 0, said.stdout + said.stderr)
        mps = tree / "usr/lib/systemd/system/vitamin-mps.service"
        (tree / "bin").mkdir()
        for program in ("usr/bin/nvidia-cuda-mps-control", "bin/sh", "bin/kill"):
            (tree / program).write_text("#!/bin/sh\n")
            (tree / program).chmod(0o755)
        for name in ("sysinit.target", "basic.target", "shutdown.target", "multi-user.target"):
            (tree / "usr/lib/systemd/system" / name).write_text(f"[Unit]\nDescription={name}\n")
        said = subprocess.run([analyze, "verify", "--man=no", f"--root={tree}", unit.name,
                               mps.name], text=True, capture_output=True)
        self.assertNotRegex(said.stderr, r"vitamin[a-z-]*\.service.*(Unknown|Invalid|not exec)")


class OlderDebian(Directory):
    """Debian 11's C library (glibc 2.31), its own loader and shell, from its archive."""

    def old_tree(self):
        """Fetched once for a build directory."""
        tree = BUILD / "tests/operations/bullseye"
        with alone(tree):
            if not (tree / "complete").exists():
                self.fetch(tree)
        return tree

    def fetch(self, tree):
        state = self.directory / "apt"
        for name in ("lists/partial", "cache/archives/partial", "etc"):
            (state / name).mkdir(parents=True)
        mirror = "http://deb.debian.org/debian"
        keys = "/usr/share/keyrings/debian-archive-keyring.gpg"
        (state / "sources.list").write_text(f"deb [signed-by={keys}] {mirror} bullseye main\n")
        options = ["-o", f"Dir::Etc::sourcelist={state}/sources.list",
                   "-o", "Dir::Etc::sourceparts=/nowhere", "-o", f"Dir::State::lists={state}/lists",
                   "-o", f"Dir::Cache={state}/cache", "-o", "Acquire::Languages=none",
                   "-o", "APT::Sandbox::User=root", "-o", "Acquire::Retries=1"]
        tool("apt-get")
        for words in (["update"], ["download", "libc6/bullseye", "dash/bullseye"]):
            done = subprocess.run(["apt-get", "-qq", *options, *words], text=True, cwd=state,
                                  timeout=time_limit(100), capture_output=True)
            if done.returncode != 0 or (words == ["update"] and "Failed" in done.stderr):
                self.skipTest(f"Debian 11 cannot be fetched: {done.stderr.strip()[-200:]}")
        for deb in state.glob("*.deb"):
            run("dpkg-deb", "-x", deb, tree)
        (tree / "complete").touch()

    def in_old(self, *libraries, script):
        tree = self.old_tree()
        loader = tree / "lib/x86_64-linux-gnu/ld-2.31.so"
        return subprocess.run([loader, "--library-path", tree / "lib/x86_64-linux-gnu",
                               "--preload", " ".join(map(str, libraries)), tree / "bin/dash", "-c",
                               script], text=True, capture_output=True,
                              env={"LD_BIND_NOW": "1", "PATH": "/nowhere"})

    def test_preloaded_libraries_work_under_the_glibc_of_debian_11(self):
        libraries = sorted(self.unpacked("vitamin-preload").rglob("*.so"))
        done = self.in_old(*libraries, script="echo ran")
        self.assertEqual((done.returncode, done.stdout, done.stderr), (0, "ran\n", ""))

    def test_the_compatibility_functions_work_there(self):
        done = self.in_old(os.environ["FLOOR_CHECK"], script="echo ran")
        self.assertEqual((done.returncode, done.stdout, done.stderr),
                         (0, "the floor holds\nran\n", ""))

    def test_a_program_without_them_does_not_start_there(self):
        """Shows that the tests above can fail."""
        done = self.in_old(os.environ["NO_FLOOR_CHECK"], script="echo ran")
        self.assertNotEqual(done.returncode, 0)
        self.assertIn("GLIBC_2.3", done.stderr)


class RoundTrip(Directory):
    def newer(self, name):
        """The same package, one version later."""
        tree, deb = self.directory / name, self.directory / f"{name}.deb"
        run("dpkg-deb", "-R", package(name), tree)
        control = tree / "DEBIAN/control"
        control.write_text(re.sub(rf"(?m)(^Version: |\(= ){re.escape(VERSION)}",
                                  rf"\g<1>{VERSION}.1", control.read_text()))
        run("dpkg-deb", "-Znone", "-b", tree, deb)
        return deb

    def names(self, lower):
        """All packages but plugins that need libraries of another release than `lower` is."""
        def release(root):
            system = pathlib.Path(root, "etc/os-release").read_text()
            return re.search(r"^VERSION_CODENAME=(.*)$", system, re.M)[1]
        made = {path.name.split("_")[0] for path in packages().glob("*.deb")}
        plugins = {"vitamin-k8s-plugin", "slurm-spank-vitamin"}
        return ["vitamind", "vitamin-preload", "vitamin-cli", "libvitamin-dev",
                *(sorted(made & plugins) if release(lower) == release("/") else [])]

    def test_packages_install_work_upgrade_and_are_removed(self):
        lower = os.environ.get("VITAMIN_TEST_ROOT", "/")
        names = self.names(lower)
        first = [package(name) for name in names]
        second = [self.newer(name) for name in names]
        with Machine(lower, network=lower != "/") as machine:
            for deb in second:
                machine.write(f"/opt/{deb.name}", "")
                (machine.root / "opt" / deb.name).write_bytes(deb.read_bytes())
            if lower != "/":  # a minimal Debian: the packages must declare all dependencies
                machine.run("cp", "-L", "/etc/resolv.conf", "/tmp", check=False)
                machine.run("apt-get", "install", "-y", "--no-install-recommends", *first,
                            timeout=300)
            else:
                machine.run("dpkg", "--force-unsafe-io", "-i", *first)
            self.check_installed(machine)
            self.check_service(machine)
            machine.run("systemctl", "disable", "vitamind.service")
            machine.run("dpkg", "--force-unsafe-io", "-i", *(f"/opt/{n}.deb" for n in names))
            self.assertIn(f"{VERSION}.1", machine.run("dpkg-query", "-W", "vitamind").stdout)
            self.assertFalse(machine.exists(self.WANTED), "the upgrade enabled what was disabled")
            self.assertEqual(machine.run("vitamin", "run", "--quiet", "--", "true").returncode, 0)
            machine.run("dpkg", "-r", *names)
            self.assertFalse(machine.exists("/usr/bin/vitamin"))
            machine.run("dpkg", "-P", *names)
            left = machine.run("find", "/usr/bin", "/usr/lib", "/usr/include", "/usr/share", "/etc",
                               "/run", "/var/lib/systemd", "-xdev", "-iname", "*vitamin*",
                               check=False).stdout
            self.assertEqual(left, "")
            machine.run("id", "vitamin")

    WANTED = "/etc/systemd/system/multi-user.target.wants/vitamind.service"

    def check_installed(self, machine):
        self.assertTrue(machine.exists(self.WANTED))
        self.assertEqual(machine.run("stat", "-c", "%U %G %a", "/run/vitamin").stdout,
                         "vitamin vitamin 755\n")
        self.assertIn(VERSION, machine.run("vitamin", "version").stdout)
        self.assertEqual(machine.run("vitamin", "run", "--quiet", "--", "sh", "-c",
                                     "echo $LD_PRELOAD").stdout.count("/usr/lib/vitamin/preload/"),
                         len(list((machine.root / "usr/lib/vitamin/preload").iterdir())))

    def check_service(self, machine):
        """Starts vitamind as the unit does; another user asks for its status."""
        daemon = machine.start("vitamind", "--system", user="vitamin")
        try:
            wait_until(lambda: machine.exists("/run/vitamin/vitamind.sock"), what="the socket")
            status = machine.run("vitamin", "status", "--json", user="nobody").stdout
            self.assertIn('"/run/vitamin/vitamind.sock"', status)
        finally:
            for process in machine.run("pidof", "vitamind", check=False).stdout.split():
                machine.run("sh", "-c", f"kill {process}")  # a minimal Debian has no program kill
            daemon.wait(time_limit(30))


class Repository(Directory):
    """deploy/apt/repository: apt itself reads what it writes, and trusts a signature only."""

    SCRIPT = SOURCE / "deploy/apt/repository"

    def key(self):
        """Makes a key for this test; returns its fingerprint."""
        tool("gpg-agent")  # gpg starts it, and does not say that it is missing
        home = self.directory / "gnupg"
        home.mkdir(mode=0o700)
        self.environment = {**os.environ, "GNUPGHOME": str(home)}
        self.addCleanup(subprocess.run, ["gpgconf", "--kill", "all"], env=self.environment)
        run(tool("gpg"), "--batch", "--passphrase", "", "--quick-generate-key", "vitamin test",
            "ed25519", "sign", env=self.environment)
        listed = run("gpg", "--list-keys", "--with-colons", env=self.environment)
        return re.search(r"^fpr:+(\w+):", listed, re.M)[1]

    def apt(self, *words):
        """apt-get with the repository as its only source."""
        state = self.directory / "apt"
        for name in ("lists/partial", "cache/archives/partial"):
            (state / name).mkdir(parents=True, exist_ok=True)
        options = ["-o", f"Dir::Etc::sourcelist={state}/sources.list",
                   "-o", "Dir::Etc::sourceparts=/nowhere", "-o", f"Dir::State::lists={state}/lists",
                   "-o", f"Dir::Cache={state}/cache", "-o", "APT::Sandbox::User=root"]
        return subprocess.run(["apt-get", *options, *words], text=True, capture_output=True,
                              cwd=self.directory)

    def test_apt_takes_a_signed_repository_and_no_changed_one(self):
        tool("dpkg-scanpackages")
        key = self.key()
        repository = self.directory / "repository"
        run(self.SCRIPT, packages(), repository, key, env=self.environment)
        (self.directory / "apt").mkdir()
        (self.directory / "apt/sources.list").write_text(
            f"deb [signed-by={repository}/vitamin.asc] file:{repository} stable main\n")
        done = self.apt("update")
        self.assertEqual((done.returncode, done.stderr), (0, ""))
        done = self.apt("download", "vitamin-preload", "libvitamin-dev")
        self.assertEqual(done.returncode, 0, done.stderr)
        for name in ("vitamin-preload", "libvitamin-dev"):
            fetched, = self.directory.glob(f"{name}_*.deb")
            self.assertEqual(fetched.read_bytes(), package(name).read_bytes())
        release = repository / "dists/stable/InRelease"
        release.write_text(release.read_text().replace("Origin: Vitamin", "Origin: Another"))
        done = self.apt("update")
        self.assertIn("signature", (done.stdout + done.stderr).lower())
        self.assertNotEqual(done.stderr, "")

    def test_an_invalid_repository_is_reported_in_one_line(self):
        done = subprocess.run([self.SCRIPT, self.directory, self.directory / "out"], text=True,
                              capture_output=True)
        self.assertEqual((done.returncode, done.stderr),
                         (1, f"repository: no .deb in {self.directory}\n"))


class Rpm(Directory):
    # What glibc, systemd-libs, bash and rpm of RHEL 9's BaseOS provide.
    IN_RHEL_9 = {"libc.so.6", "libm.so.6", "libdl.so.2", "libpthread.so.0", "ld-linux-x86-64.so.2",
                 "rtld", "libudev.so.1", "/bin/sh", "rpmlib", "vitamin-preload"}

    @staticmethod
    def kind_of(need):
        """A requirement without its version: "libc.so.6(GLIBC_2.34)(64bit)" is "libc.so.6"."""
        return re.split(r"[( ]", need)[0]

    def test_rpms_hold_what_the_debs_hold_and_name_the_glibc_that_they_need(self):
        if not seed.long_form():
            self.skipTest("RPMs are built in the long form")
        rpm, _ = tool("rpm"), tool("rpmbuild")
        packages()  # the trees that are packed are made
        run(os.environ["CPACK"], "-G", "RPM", "--config", BUILD / "CPackConfig.cmake", "-B",
            self.directory / "made", cwd=self.directory)
        made = {path.name.rsplit("-", 2)[0]: path
                for path in (self.directory / "made").glob("*.rpm")}
        self.assertEqual(set(made), {"vitamind", "vitamin-cli", "vitamin-preload"})
        for name, file in made.items():
            needs = run(rpm, "-qp", "--requires", file)
            versions = {tuple(map(int, version.split(".")))
                        for version in re.findall(r"GLIBC_([0-9.]+)", needs)}
            self.assertTrue(versions, name)
            # vitamin-preload is for RHEL 8, too, which has 2.28.
            self.assertLessEqual(max(versions), FLOOR if name == "vitamin-preload" else RHEL_9)
            self.assertLessEqual(set(map(self.kind_of, needs.splitlines())), self.IN_RHEL_9, name)
            said = run(rpm, "-qp", "--queryformat", "%{LICENSE} %{VERSION} %{SUMMARY}", file)
            self.assertRegex(said, rf"^Apache-2.0 {re.escape(VERSION)} \w.{{20}}")
            files = {line for line in run(rpm, "-qpl", file).splitlines() if "/share/" not in line}
            wanted = {line.split()[5].removeprefix(".")
                      for line in run("dpkg-deb", "-c", package(name)).splitlines()
                      if line.startswith("-") and "/share/" not in line}
            self.assertLessEqual(wanted, files)
        self.assertIn(f"vitamin-preload = {VERSION}",
                      run(rpm, "-qp", "--requires", made["vitamin-cli"]))
        # Installed without dependencies, which this system does not have as RPMs.
        root = self.directory / "root"
        run(rpm, "--root", root, "--install", "--nodeps", "--noscripts", "--notriggers",
            *made.values())
        said = run(root / "usr/bin/vitamin", "version")
        self.assertIn(VERSION, said)


class Wheel(Directory):
    """vitamin-advice, for engines in Python. Built, checked and installed; not uploaded."""

    def tools(self):
        """A Python that can build and check wheels; fetched once for a build directory."""
        if importlib.util.find_spec("ensurepip") is None:
            self.skipTest("python3-venv is not installed")
        directory = BUILD / "tests/operations/wheel_tools"
        with alone(directory):
            if not (directory / "complete").exists():
                run(sys.executable, "-m", "venv", directory / "venv")
                done = subprocess.run([directory / "venv/bin/pip", "install", "--quiet", "build",
                                       "setuptools", "wheel", "twine"], text=True,
                                      capture_output=True, timeout=time_limit(120))
                if done.returncode != 0:
                    self.skipTest(f"twine cannot be fetched: {done.stderr.strip()[-200:]}")
                (directory / "complete").touch()
        return directory / "venv/bin"

    def test_the_wheel_passes_twine_and_works_once_installed(self):
        if not seed.long_form():
            self.skipTest("the wheel is built in the long form")
        tools = self.tools()
        run(SOURCE / "deploy/python/build", self.directory / "dist",
            env={**os.environ, "PYTHON": str(tools / "python")})
        made = sorted((self.directory / "dist").iterdir())
        # Older setuptools keep the hyphen of the source distribution.
        self.assertEqual({path.name.replace("-advice", "_advice") for path in made},
                         {f"vitamin_advice-{VERSION}-py3-none-any.whl",
                          f"vitamin_advice-{VERSION}.tar.gz"})
        self.assertEqual(run(tools / "twine", "check", "--strict", *made).count("PASSED"), 2)
        run(sys.executable, "-m", "venv", "--without-pip", self.directory / "venv")
        run(tools / "pip", "--python", self.directory / "venv/bin/python", "install", "--quiet",
            "--no-index", next(path for path in made if path.suffix == ".whl"))
        said = run(self.directory / "venv/bin/python", "-c", "import vitamin_advice as v; print("
                   "v.__file__, v.active())", cwd=self.directory)
        self.assertRegex(said, rf"^{self.directory}/venv/.* False$")
        said = run(self.directory / "venv/bin/python", "-c", """
import importlib.metadata
plugin, = importlib.metadata.entry_points(group="vllm.general_plugins")
print(plugin.name, plugin.load()())""", cwd=self.directory)
        self.assertEqual(said.strip(), "vitamin None")


class Development(Directory):
    CONSUMER = """
cmake_minimum_required(VERSION 3.20)
project(consumer C)
find_package(Vitamin {version} REQUIRED)
vitamin_add_policy(mine {source})
"""

    def configured(self, version):
        tree = self.unpacked("libvitamin-dev")
        source = tree / "usr/share/doc/libvitamin-dev/examples/round_robin.c"
        consumer = self.directory / "consumer"
        consumer.mkdir()
        (consumer / "CMakeLists.txt").write_text(
            self.CONSUMER.format(version=version, source=source))
        return consumer, subprocess.run(
            [os.environ["CMAKE"], "-G", "Ninja", "-S", consumer, "-B", consumer / "build",
             f"-DCMAKE_PREFIX_PATH={tree}/usr"], text=True, capture_output=True)

    def test_an_external_project_finds_the_header_and_its_policy_is_accepted(self):
        consumer, done = self.configured(VERSION.rpartition(".")[0])
        self.assertEqual(done.returncode, 0, done.stderr)
        run(os.environ["CMAKE"], "--build", consumer / "build")
        done = subprocess.run([BUILD / "bin/vitamin", "policy", "test",
                               consumer / "build/mine.so"], text=True, capture_output=True)
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        self.assertIn("mine.so", done.stdout)

    def test_another_version_than_asked_for_is_not_found(self):
        _, done = self.configured("7.0")
        self.assertNotEqual(done.returncode, 0)
        self.assertIn(VERSION, done.stderr)


class Tarball(Directory):
    def test_the_tarball_works_wherever_it_is_put(self):
        (tarball,) = packages().glob("*.tar.gz")
        for place in ("here", "a directory: with spaces"):
            with tarfile.open(tarball) as archive:
                archive.extractall(self.directory / place)
            (tree,) = (self.directory / place).iterdir()
            self.assertIn(VERSION, run(tree / "bin/vitamin", "version"))
            said = run(tree / "bin/vitamin", "run", "--quiet", "--", "sh", "-c",
                       "grep -c libvitamin_ /proc/$$/maps", cwd="/")
            self.assertGreater(int(said), 0)
            for program in ("vitamin", "vitamind"):
                dynamic = run("readelf", "-d", tree / "bin" / program)
                self.assertNotRegex(dynamic, "R(UN)?PATH")


if __name__ == "__main__":
    unittest.main()
