# SPDX-License-Identifier: Apache-2.0
"""Debian's kubectl (1.20): 8 MB, fetched once for a build directory; else the one of the path."""
import functools
import pathlib
import shutil
import subprocess
import unittest

from machine import BUILD, alone
from time_limit import time_limit


@functools.cache
def kubectl():
    """Its path. Raises SkipTest where there is none."""
    tree = BUILD / "tests/operations/kubectl"
    program = tree / "usr/bin/kubectl"
    with alone(tree):
        if not program.exists():
            subprocess.run(["apt-get", "-qq", "-o", "APT::Sandbox::User=root", "-o",
                            "Acquire::Retries=1", "download", "kubernetes-client"], cwd=tree,
                           capture_output=True, timeout=time_limit(100))
            for deb in tree.glob("kubernetes-client_*.deb"):
                subprocess.run(["dpkg-deb", "-x", deb, tree], check=True)
                deb.unlink()
    if program.exists():
        return program
    found = shutil.which("kubectl")
    if found is None:
        raise unittest.SkipTest("kubectl is not installed, and Debian's cannot be fetched")
    return pathlib.Path(found)
