# SPDX-License-Identifier: Apache-2.0
"""A throw-away copy of this machine, for tests that install packages and start daemons.

Its file system is this one's with everything written kept in memory (overlayfs); it has processes,
a host name, a loopback network and System V objects of its own. Needs root.
"""
import contextlib
import fcntl
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import unittest

from time_limit import time_limit

BUILD = pathlib.Path(os.environ["BUILD"])
SOURCE = pathlib.Path(os.environ["SOURCE"])
PACKAGES = BUILD / "packages"
VERSION = re.search(r"^project\(\w+ VERSION (\S+)",
                    (SOURCE / "CMakeLists.txt").read_text(), re.M)[1]

SET_UP = r"""
set -e
here=$1 lower=$2
mount -t tmpfs -o mode=755 machine "$here"
cd "$here"
mkdir upper work root
mount -t overlay machine -o "lowerdir=$lower,upperdir=$here/upper,workdir=$here/work" root
mount -t proc proc root/proc
mount -t sysfs sysfs root/sys
mount -t tmpfs cgroup root/sys/fs/cgroup
mount -t tmpfs -o mode=755 dev root/dev
mkdir root/dev/shm root/dev/pts
mount -t tmpfs -o mode=1777 shm root/dev/shm
mount -t devpts -o newinstance,ptmxmode=0666 pts root/dev/pts
ln -s pts/ptmx root/dev/ptmx
mknod -m 666 root/dev/null c 1 3
mknod -m 666 root/dev/zero c 1 5
mknod -m 666 root/dev/full c 1 7
mknod -m 666 root/dev/random c 1 8
mknod -m 666 root/dev/urandom c 1 9
mknod -m 666 root/dev/tty c 5 0
ln -s /proc/self/fd root/dev/fd
ln -s fd/0 root/dev/stdin
ln -s fd/1 root/dev/stdout
ln -s fd/2 root/dev/stderr
mount -t tmpfs -o mode=755 run root/run
mount -t tmpfs -o mode=1777 tmp root/tmp
mkdir -p -m 1777 root/run/lock
[ -z "$3" ] || for kept in $3; do mkdir -p "root$kept"; mount --rbind "$kept" "root$kept"; done
hostname machine
rm -f root/var/lib/man-db/auto-update # its index would be made anew for each package
echo '127.0.0.1 localhost machine' >root/etc/hosts
printf '#!/bin/sh\nexit 101\n' >root/usr/sbin/policy-rc.d
chmod 755 root/usr/sbin/policy-rc.d
if [ -z "$4" ]; then
  ip link set lo up
  ip address add 192.0.2.1/32 dev lo # resolvers answer nothing where there is 127.0.0.1 alone
fi
# The first process of the namespace: reaps orphans. "ready" only now: a process that enters the
# namespace takes this process's root, which was the machine's own before.
exec chroot root sh -c 'echo ready; while :; do sleep 3600 & wait $!; done'
"""


def children_of(process):
    text = pathlib.Path(f"/proc/{process}/task/{process}/children").read_text()
    return [int(word) for word in text.split()]


class Machine:
    """`with Machine() as machine: machine.run("dpkg", "-i", file)`"""

    def __init__(self, lower="/", network=False):
        if os.geteuid() != 0:
            raise unittest.SkipTest("needs root")
        self.directory = tempfile.mkdtemp(prefix="vitamin-machine-")
        # Directories may lie on other file systems than /, which an overlay hides.
        kept = " ".join(str(path) for path in (SOURCE, BUILD))
        own = ["--mount", "--pid", "--uts", "--ipc", *([] if network else ["--net"])]
        self.enter = ["nsenter", *own, "--root", "--wd"]
        self.process = subprocess.Popen(
            ["unshare", *own, "--fork", "--kill-child", "sh", "-c", SET_UP, "sh", self.directory,
             str(lower), kept, "network" if network else ""],
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        if self.process.stdout.readline() != "ready\n":
            why = self.process.stderr.read().strip().splitlines()
            self.close()
            raise unittest.SkipTest(f"no private file system here: {why[-1] if why else 'no word'}")
        self.init = children_of(self.process.pid)[0]
        self.root = pathlib.Path(f"/proc/{self.init}/root")

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()

    def close(self):
        self.process.kill()
        self.process.wait()
        self.process.stdout.close()
        self.process.stderr.close()
        shutil.rmtree(self.directory, ignore_errors=True)

    def words(self, *words, user=None):
        enter = [*self.enter, "--target", str(self.init)]
        if user is not None:
            enter += ["runuser", "-u", user, "--"]
        return enter + [str(word) for word in words]

    def run(self, *words, user=None, check=True, timeout=60, env=None):
        """Runs a command; returns its CompletedProcess with stdout and stderr as text."""
        environment = {"PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
                       "HOME": "/tmp", "LC_ALL": "C.UTF-8", "DEBIAN_FRONTEND": "noninteractive",
                       **(env or {})}
        done = subprocess.run(self.words(*words, user=user), stdin=subprocess.DEVNULL, text=True,
                              capture_output=True, timeout=time_limit(timeout),
                              env=environment)
        if check and done.returncode != 0:
            raise AssertionError(f"{words} ended with {done.returncode}:\n{done.stdout}"
                                 f"{done.stderr}")
        return done

    def start(self, *words, user=None, log=subprocess.DEVNULL, env=None):
        return subprocess.Popen(self.words(*words, user=user), stdin=subprocess.DEVNULL,
                                stdout=log, stderr=log, env={**os.environ, **(env or {})})

    def write(self, path, text, mode=0o644):
        file = self.root / str(path).lstrip("/")
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
        file.chmod(mode)

    def read(self, path):
        return (self.root / str(path).lstrip("/")).read_text()

    def exists(self, path):
        return os.path.lexists(self.root / str(path).lstrip("/"))


@contextlib.contextmanager
def alone(directory):
    """Holds a lock, so that only one of several concurrent tests runs at a time."""
    directory.mkdir(parents=True, exist_ok=True)
    with open(directory / "lock", "w", encoding="utf-8") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def packages():
    """Directory of the packages of this build, which are made again when their contents change."""
    with alone(PACKAGES):
        inside = [*(BUILD / "bin").glob("vitamin*"), *(BUILD / "lib").glob("*.so"),
                  *(SOURCE / "deploy").rglob("*"), BUILD / "CPackConfig.cmake"]
        stamp = PACKAGES / "packed"
        newest = max(path.stat().st_mtime for path in inside)
        if not stamp.exists() or stamp.stat().st_mtime < newest:
            for old in [*PACKAGES.glob("*.deb"), *PACKAGES.glob("*.tar.gz")]:
                old.unlink()
            done = subprocess.run([os.environ["CPACK"], "--config", BUILD / "CPackConfig.cmake"],
                                  cwd=BUILD, capture_output=True, text=True)
            if done.returncode != 0:
                raise AssertionError(f"cpack failed:\n{done.stdout}{done.stderr}")
            stamp.touch()
    return PACKAGES


def package(name):
    """The .deb of that name."""
    found = list(packages().glob(f"{name}_*.deb"))
    if len(found) != 1:
        raise AssertionError(f"not one package {name}: {found}")
    return found[0]


def tool(name):
    """The path of a program that only tests need; skips the test if it is not installed."""
    found = shutil.which(name, path=os.environ["PATH"] + ":/usr/sbin:/sbin")
    if found is None:
        raise unittest.SkipTest(f"{name} is not installed")
    return found


if __name__ == "__main__":
    sys.exit("no tests in here")
