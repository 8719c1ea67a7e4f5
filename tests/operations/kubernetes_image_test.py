#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The container image: built from the packages of this build, and run by podman."""
import os
import subprocess
import unittest

from machine import BUILD, SOURCE, VERSION, Machine, alone, packages, tool
from time_limit import time_limit

IMAGE = f"localhost/vitamin:{VERSION}"
CONTAINERS = """
[containers]
pids_limit = 0
seccomp_profile = "unconfined"
apparmor_profile = "unconfined"
netns = "host"
[engine]
cgroup_manager = "cgroupfs"
events_logger = "none"
"""
STORAGE = '[storage]\ndriver = "vfs"\nrunroot = "/run/podman"\ngraphroot = "/tmp/podman"\n'

# The cgroups into which podman puts containers; vitamind identifies containers by them.
GROUPS = r"""
cd /sys/fs/cgroup
for group in cpu cpuset memory devices freezer blkio pids; do
  mkdir $group && mount -t cgroup -o $group cgroup $group
done
mkdir systemd && mount -t cgroup -o none,name=systemd cgroup systemd
"""


def image():
    """The OCI archive, rebuilt when a package has changed."""
    for name in ("podman", "mmdebstrap"):
        tool(name)
    directory = BUILD / "tests/operations/image"
    archive = directory / "vitamin.tar"
    newest = packages() / "packed"
    build = SOURCE / "deploy/image/build"
    with alone(directory):
        if not archive.exists() or archive.stat().st_mtime < newest.stat().st_mtime:
            (directory / "storage.conf").write_text(
                f'[storage]\ndriver = "vfs"\nrunroot = "{directory}/run"\n'
                f'graphroot = "{directory}/graph"\n')
            done = subprocess.run([build, packages(), archive, IMAGE], text=True,
                                  capture_output=True, timeout=time_limit(500),
                                  env={**os.environ,
                                       "CONTAINERS_STORAGE_CONF": str(directory / "storage.conf")})
            if any(words in done.stderr for words in ("Failed to fetch", "Could not resolve",
                                                      "apt-get update")):
                raise unittest.SkipTest("Debian's archive cannot be reached")
            if done.returncode != 0:
                raise AssertionError(f"{build} failed:\n{done.stdout}{done.stderr}")
    return archive


class Image(unittest.TestCase):
    def test_it_contains_the_programs_and_starts_them(self):
        machine = PodmanMachine(self)
        self.assertLess(image().stat().st_size, 100 << 20)
        for words, said in [(("vitamind", "--help"), "--system"), (("vitamin", "version"), VERSION),
                            (("vitamin-k8s-plugin", "--help"), "--pod-resources"),
                            (("vitamin-dra-driver", "--help"), "--registry")]:
            done = machine.podman("run", "--rm", "--network=host", IMAGE, *words)
            self.assertIn(said, done.stdout)
        files = machine.podman("run", "--rm", "--network=host", IMAGE, "ls",
                               "/usr/lib/vitamin/preload").stdout
        self.assertIn("libvitamin_cuda.so", files)


class PodmanMachine:
    def __init__(self, test):
        archive = image()
        self.machine = Machine()
        self.pods = []  # UIDs that name control groups
        test.addCleanup(self.machine.close)
        test.addCleanup(self.remove_groups)
        self.machine.run("sh", "-ec", GROUPS)
        self.machine.write("/etc/containers/containers.conf", CONTAINERS)
        self.machine.write("/etc/containers/storage.conf", STORAGE)
        self.podman("load", "--quiet", "--input", archive)

    def podman(self, *words, check=True):
        return self.machine.run("podman", *words, check=check, timeout=200)

    def remove_groups(self):
        self.podman("rm", "--all", "--force", "--time=0", check=False)
        self.podman("pod", "rm", "--all", "--force", check=False)
        for group in ("libpod_parent", *(f"/pod{uid}" for uid in self.pods)):
            self.machine.run("sh", "-c", "find /sys/fs/cgroup -depth -type d -path '*" + group +
                             "*' -exec rmdir {} + 2>/dev/null", check=False)


if __name__ == "__main__":
    unittest.main()
