#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The plugin in a real Slurm: users share a GPU, jobs die, daemons die, 64 nodes."""
import json
import os
import pathlib
import re
import struct
import subprocess
import sys
import time
import unittest

from machine import BUILD
import seed
from slurm import AccountingCluster, SlurmTest, UnevenCluster
from time_limit import time_limit, wait_until

sys.path.insert(0, str(pathlib.Path(__file__).parents[1] / "daemon"))
from harness import open_width  # noqa: E402

SOFT = {"LD_LIBRARY_PATH": os.environ["DRIVER"]}
STEPS = {"demo-train": "150", "demo-serve": "40"}


def program(name):
    return [BUILD / "bin" / name, STEPS[name]]


MEMORY = [os.environ["MEMORY"]]
MEMORY_ENVIRONMENT = {**SOFT, "VITAMIN_SOFT_LEDGER": "/tmp/ledger"}


def hash_of(text):
    return re.search(r"hash (\w+)", text)[1]


class OneNode(SlurmTest):
    def test_two_users_share_one_gpu_and_keep_their_bits(self):
        cluster = self.cluster(arguments="shards_per_gpu=8")
        users = {"alice": "demo-train", "bob": "demo-serve"}
        alone = {name: hash_of(cluster.srun(*program(name), env=SOFT).stdout)
                 for name in users.values()}
        # No client is served for starvation, whatever its share is.
        cluster.vitamind("--policy", "random:max_sms=32", "--set", "policy.starving_after=1h")
        numbers = {int(cluster.run("id", "-u", user).stdout) for user in users}
        for _ in range(10):  # again if one job ended before the other began
            together, promised = self.side_by_side(cluster, users, alone)
            if together == numbers:
                break
        self.assertEqual(together, numbers, "they never ran at the same time")
        self.assertEqual({user: job["share"] for user, job in promised.items()},
                         {number: 50 for number in numbers})
        self.assertEqual({tuple(job["devices"]) for job in promised.values()}, {("0",)})
        status = cluster.sees()
        self.assertGreater(status["devices"][0]["grants"], 50)
        wait_until(lambda: not cluster.sees()["jobs"], what="that the epilog released the jobs")
        self.assertEqual(cluster.nodes_in("idle"), 1)

    def side_by_side(self, cluster, users, alone):
        """The users whose jobs were seen at the same time, and the share of each job."""
        jobs = {user: subprocess.Popen(
            cluster.words("srun", "--gres=shard:4", "--vitamin", *program(name), user=user),
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
            env={"PATH": os.environ["PATH"], **SOFT}) for user, name in users.items()}
        together, promised = set(), {}
        while any(job.poll() is None for job in jobs.values()):
            status = cluster.sees()
            for client in status["clients"]:  # four of eight shards
                half = status["devices"][0]["processors"] // 2
                self.assertEqual(client["processors_most"], half)
                of_job = [c["client"] for c in status["clients"] if c["job"] == client["job"]]
                self.assertLessEqual(open_width(status, of_job), half)
            together = max(together, {client["user"] for client in status["clients"]}, key=len)
            promised.update({job["user"]: job for job in status["jobs"]})
        for user, job in jobs.items():
            output, errors = job.communicate()
            self.assertEqual((job.returncode, errors), (0, ""))
            self.assertEqual(hash_of(output), alone[users[user]])
        return together, promised

    def test_options_and_what_the_task_sees(self):
        cluster = self.cluster()
        cluster.vitamind()
        self.assertIn("--vitamin=WORDS", cluster.srun("--help").stdout)
        for wrong in ("900", "0", "a/b"):
            refused = cluster.srun(f"--vitamin={wrong}", "true", check=False)
            self.assertNotEqual(refused.returncode, 0)
            self.assertIn(f"--vitamin: '{wrong}' is none of", refused.stderr)
        seen = cluster.srun("--gres=gpu:1", "--vitamin=25", "env",
                            env={"LD_PRELOAD": "libutil.so.1"}).stdout
        self.assertRegex(seen, r"(?m)^LD_PRELOAD=/usr/lib/vitamin/preload/\S+:libutil.so.1$")
        self.assertIn("VITAMIN_DAEMON=/run/vitamin/vitamind.sock\n", seen)
        self.assertIn("VITAMIN_SHARE=25\n", seen)
        self.assertRegex(seen, r"(?m)^VITAMIN_JOB=\d+\.0$")
        plain = cluster.srun("env").stdout
        self.assertNotIn("VITAMIN", plain)
        self.assertNotIn("LD_PRELOAD", plain)
        cluster.write("/tmp/job", "#!/bin/sh\n#SBATCH --vitamin=10\nenv\n", 0o755)
        cluster.run("sbatch", "--wait", "-o", "/tmp/out", "/tmp/job", user="alice")
        self.assertRegex(cluster.read("/tmp/out"), r"(?m)^VITAMIN_JOB=\d+\.batch$")
        self.assertIn("VITAMIN_SHARE=10\n", cluster.read("/tmp/out"))

    def test_a_task_has_the_mps_of_the_isolation_domain_of_its_class(self):
        cluster = self.cluster()
        classes = (("own", "no-such-own", "class"), ("alone", "no-such-alone", "exclusive"),
                   ("named", "printenv", "class"))
        cluster.write("/etc/vitamin/vitamin.toml", "".join(
            f'[[class]]\nname = "{name}"\ncommand = "{command}"\nisolation = "{isolation}"\n'
            for name, command, isolation in classes))
        cluster.vitamind()
        shown = ("printenv", "CUDA_MPS_PIPE_DIRECTORY")
        for words, end in ("own", ".own"), ("share=25,class=alone", "-none"), ("50", ".named"):
            self.assertEqual(cluster.srun(f"--vitamin={words}", *shown).stdout,
                             f"/run/vitamin/mps{end}\n")
        self.assertEqual(cluster.srun("--vitamin", "sh", "-c", "echo $CUDA_MPS_PIPE_DIRECTORY",
                                      check=False).stdout, "\n")
        own = cluster.srun("--vitamin=own", *shown, env={"CUDA_MPS_PIPE_DIRECTORY": "/elsewhere"})
        self.assertEqual(own.stdout, "/elsewhere\n")
        self.assertRegex(own.stderr, r"not in its isolation domain 'class own'.*\[VIT-407\]")

    def test_a_task_has_the_mps_of_the_node(self):
        cluster = self.cluster()
        cluster.write("/etc/vitamin/vitamin.toml",
                      f'[mps]\nmode = "auto"\ncontrol = "{os.environ["CONTROL"]}"\n')
        cluster.vitamind()
        wait_until(lambda: json.loads(cluster.run("vitamin", "status", "--json").stdout)["mps"][
            "state"] == "ready", what="MPS")
        shown = ("printenv", "CUDA_MPS_PIPE_DIRECTORY")
        self.assertEqual(cluster.srun("--vitamin", *shown).stdout, "/run/vitamin/mps\n")
        own = cluster.srun("--vitamin", *shown, env={"CUDA_MPS_PIPE_DIRECTORY": "/elsewhere"})
        self.assertEqual(own.stdout, "/elsewhere\n")
        self.assertNotIn("VIT-407", own.stderr)

    def test_a_job_has_the_memory_that_it_asks_for_and_no_more(self):
        cluster = self.cluster()
        cluster.vitamind()
        words = ("--gres=shard:1", "--vitamin=share=25,memory=64MiB", *MEMORY)
        said = cluster.run("sh", "-c", 'printf "info\\ntake cuMemAlloc %d a\\n'
                           'take cuMemAlloc %d b\\n" | "$@"' % (40 << 20, 30 << 20), "sh",
                           "srun", *words, user="alice", env=MEMORY_ENVIRONMENT)
        self.assertEqual(said.stdout.split("\n")[:3], [f"0 {64 << 20} {64 << 20}", "0", "2"])
        self.assertRegex(said.stderr, r"of the quota of job \d+\.0 \(64\.0 MiB\)")
        refused = cluster.srun("--vitamin=memory=64M", "true", check=False)
        self.assertIn("--vitamin: 'memory=64M' is none of", refused.stderr)

    def test_gpus_may_have_different_numbers_of_shards(self):
        cluster = self.cluster(UnevenCluster, arguments="shards_per_gpu=8,2")
        cluster.vitamind()
        blocker = cluster.start("srun", "--gres=shard:8", "--vitamin", "sleep", "1000",
                                user="alice")
        job, = wait_until(lambda: cluster.sees()["jobs"], "the first job", 60)
        self.assertEqual((job["devices"], job["share"]), (["0"], 100))
        said = cluster.srun("--gres=shard:1", "--vitamin", "sh", "-c",
                            "echo $SLURM_STEP_GPUS $VITAMIN_SHARE", user="bob")
        self.assertEqual((said.stdout, said.stderr), ("1 50\n", ""))
        cluster.run("scancel", "-u", "alice", "-s", "KILL", "-f")
        blocker.wait(time_limit(60))

    def test_shares_that_do_not_fit_are_reported_and_the_job_runs_unshared(self):
        cluster = self.cluster()
        cluster.vitamind()
        first = cluster.start("srun", "--gres=shard:1", "--vitamin=60", "sleep", "60", user="alice")
        wait_until(lambda: cluster.sees()["jobs"], what="the first job")
        second = cluster.srun("--gres=shard:1", "--vitamin=50", "env", user="bob")
        self.assertIn("device 0 is over-committed: other jobs were promised 60 percent of it, and "
                      "this one asks for 50; the task runs unshared", second.stderr)
        self.assertNotIn("LD_PRELOAD", second.stdout)
        third = cluster.srun("--gres=shard:1", "--vitamin=40", "env", user="bob")
        self.assertIn("LD_PRELOAD", third.stdout)
        cluster.run("scancel", "-u", "alice", "-s", "KILL", "-f")
        first.wait(time_limit(60))
        wait_until(lambda: not cluster.sees()["jobs"], what="that the killed job is forgotten")
        third = cluster.srun("--gres=shard:1", "--vitamin=100", "true")
        self.assertNotIn("vitamin", third.stderr)

    def test_a_job_that_is_killed_leaves_nothing_behind(self):
        cluster = self.cluster()
        cluster.vitamind("--policy", "random:max_sms=32")
        job = cluster.start("srun", "--vitamin=50", BUILD / "bin/demo-train", "100000",
                            user="alice", env=SOFT)
        wait_until(lambda: cluster.sees()["clients"], "the program's first launch", 60)
        cluster.run("scancel", "-u", "alice", "-s", "KILL", "-f")
        job.wait(time_limit(60))
        wait_until(lambda: not cluster.sees()["clients"] and not cluster.sees()["jobs"],
                   what="that its leases and its job are gone")
        status = cluster.sees()
        self.assertEqual(status["devices"][0]["held"], [])
        self.assertEqual(status["devices"][0]["overlaps"], 0)
        wait_until(lambda: cluster.nodes_in("idle") == 1, what="that the node is free again")

    def test_without_a_daemon_jobs_run_and_the_node_stays_up(self):
        cluster = self.cluster()
        said = cluster.srun("--vitamin", "env")
        self.assertRegex(said.stderr, "vitamin: .*vitamind.*; the task runs unshared")
        self.assertNotIn("LD_PRELOAD", said.stdout)
        # A daemon that dies under a job, and one that hangs.
        cluster.vitamind()
        job = subprocess.Popen(
            cluster.words("srun", "--vitamin", *program("demo-train"), user="alice"),
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
            env={"PATH": os.environ["PATH"], **SOFT})
        wait_until(lambda: cluster.sees()["clients"] or job.poll() is not None, "a client", 60)
        cluster.kill_vitamind()
        output, errors = job.communicate(timeout=time_limit(120))
        self.assertEqual(job.returncode, 0, errors)
        alone = cluster.srun(*program("demo-train"), env=SOFT).stdout
        self.assertEqual(hash_of(output), hash_of(alone))
        cluster.vitamind()
        cluster.kill_vitamind("STOP")
        said = cluster.srun("--vitamin", "echo", "ran")
        self.assertEqual(said.stdout, "ran\n")
        self.assertIn("the task runs unshared", said.stderr)
        self.assertEqual(cluster.nodes_in("drain"), 0)
        wait_until(lambda: cluster.nodes_in("idle") == 1, what="that the node is free again")

    def test_a_socket_that_the_user_may_not_use_is_reported(self):
        cluster = self.cluster()
        cluster.run("install", "-d", "-o", "vitamin", "-m", "755", "/run/vitamin")
        cluster.daemons.append(cluster.start(
            "vitamind", "--socket", "/run/vitamin/vitamind.sock", user="vitamin"))
        wait_until(lambda: cluster.run("vitamin", "status", check=False).returncode == 0,
                   what="vitamind")
        said = cluster.srun("--vitamin", "env")
        self.assertRegex(said.stderr, "vitamin: .*[Pp]ermission.*; the task runs unshared")
        self.assertNotIn("LD_PRELOAD", said.stdout)

    def test_the_file_says_what_runs_unshared_and_which_classes_there_are(self):
        cluster = self.cluster()
        cluster.write("/etc/vitamin/vitamin.toml", 'failure.absent = "closed"\n')
        said = cluster.srun("--vitamin", "echo", "ran", check=False)
        self.assertNotEqual(said.returncode, 0)
        self.assertEqual(said.stdout, "")
        self.assertIn("the task is not started, as failure.absent says", said.stderr)
        self.assertEqual(cluster.srun("echo", "ran").stdout, "ran\n")
        wait_until(lambda: cluster.nodes_in("idle") == 1, what="that the node is free again")
        self.assertEqual(cluster.nodes_in("drain"), 0)
        cluster.vitamind()
        self.assertEqual(cluster.srun("--vitamin", "printenv", "VITAMIN_ABSENT").stdout, "75\n")
        cluster.write("/etc/vitamin/vitamin.toml", '[[class]]\nname = "small"\nkind = "batch"\n')
        said = cluster.srun("--vitamin=smal", "echo", "ran")
        self.assertEqual(said.stdout, "ran\n")
        self.assertIn("vitamin.toml has no class 'smal'; it has small; the task runs unshared",
                      said.stderr)
        # An invalid file has no effect.
        cluster.write("/etc/vitamin/vitamin.toml", "failure.absnt = 1\n")
        said = cluster.srun("--vitamin", "echo", "ran")
        self.assertEqual(said.stdout, "ran\n")
        self.assertRegex(said.stderr, "vitamin.toml:1:.*absnt.*; the task runs unshared")

    def test_a_plugin_of_another_slurm_is_refused_by_name(self):
        cluster = self.cluster()
        path = cluster.run("find", "/usr/lib", "-name", "spank_vitamin.so").stdout.strip()
        file = cluster.root / path.lstrip("/")
        symbols = subprocess.run(["readelf", "-sW", "--dyn-syms", file], text=True, check=True,
                                 capture_output=True).stdout
        address = int(re.search(r"(?m)^ *\d+: (\w+) .* plugin_version$", symbols)[1], 16)
        sections = subprocess.run(["readelf", "-SW", file], text=True, check=True,
                                  capture_output=True).stdout
        for begin, offset, size in re.findall(r"PROGBITS +(\w+) (\w+) (\w+)", sections):
            if int(begin, 16) <= address < int(begin, 16) + int(size, 16):
                at = address - int(begin, 16) + int(offset, 16)
        image = bytearray(file.read_bytes())
        version, = struct.unpack_from("<I", image, at)
        struct.pack_into("<I", image, at, version + 0x0B00)  # eleven releases later
        file.write_bytes(image)
        said = cluster.srun("true", check=False)
        self.assertIn("vitamin", said.stderr)
        self.assertRegex(said.stderr, "[Ii]ncompatible")


class Accounting(SlurmTest):
    """SM-seconds of jobs in what sacct shows, by a real slurmdbd."""

    def parts(self, comment):
        """The sockets of all nodes."""
        sum_, parts = re.fullmatch(r"(?:.* )?vitamin_sm_seconds=([0-9.]+)\((.*)\)",
                                   comment).groups()
        nodes = {name: float(value) for name, value in re.findall(r"(\w+)=([0-9.]+)", parts)}
        self.assertAlmostEqual(float(sum_), sum(nodes.values()), delta=0.002 * len(nodes))
        return nodes

    def used(self, cluster, *more):
        """SM-seconds by job, from vitamind."""
        records = json.loads(cluster.run("vitamin", "accounting", "--json", *more).stdout)
        used = {}
        for record in records["clients"]:
            job = record["job"].split(".")[0]
            used[job] = used.get(job, 0) + record["sm_seconds"]
        return used

    def test_what_jobs_used_is_in_sacct_however_they_end(self):
        cluster = self.cluster(AccountingCluster)
        cluster.vitamind()
        # Two steps, one after the other, and a comment of an administrator, who writes it before
        # the first step ends: Slurm lets no two writers of a comment agree.
        cluster.write("/tmp/job", "#!/bin/sh\n#SBATCH --vitamin=50\n"
                      "until test -e /tmp/commented; do sleep 0.1; done\n"
                      f"srun --vitamin=50 {' '.join(map(str, program('demo-train')))}\n"
                      f"srun --vitamin=50 {' '.join(map(str, program('demo-serve')))}\n", 0o755)
        cluster.run("sbatch", "-o", "/tmp/out", "/tmp/job", user="alice", env=SOFT)
        wait_until(lambda: cluster.run("scontrol", "update", "job=1", "admincomment=known",
                                       check=False).returncode == 0, "the job", 60)
        cluster.write("/tmp/commented", "")
        killed = cluster.start("srun", "--vitamin=50", BUILD / "bin/demo-train", "100000",
                               user="bob", env=SOFT)
        comment = cluster.comment("1")
        self.assertTrue(comment.startswith("known "), comment)
        self.assertAlmostEqual(self.parts(comment)["node1"], self.used(cluster)["1"], delta=0.01)
        # slurmctld reports a cancelled job as ended before its step has ended.
        wait_until(lambda: cluster.run("sacct", "-a", "-X", "-n", "-j", "2").stdout, "its record")
        cluster.run("scancel", "2")
        killed.wait(time_limit(60))
        comment = cluster.comment("2")
        self.assertAlmostEqual(self.parts(comment)["node1"], self.used(cluster)["2"], delta=0.01)
        cluster.srun("--vitamin=50", "true")
        self.assertEqual(cluster.comment("3"), "")

    def test_each_job_of_an_array_has_its_own_use(self):
        cluster = self.cluster(AccountingCluster)
        cluster.vitamind()
        cluster.write("/tmp/job", "#!/bin/sh\n#SBATCH --vitamin=50\n"
                      f"srun --vitamin=50 {' '.join(map(str, program('demo-train')))}\n", 0o755)
        cluster.run("sbatch", "--wait", "--array=1-3", "-o", "/tmp/out", "/tmp/job", user="alice",
                    env=SOFT, timeout=300)
        comments, used = cluster.comments("1"), self.used(cluster)
        self.assertEqual(sorted(comments), sorted(used))
        self.assertEqual(len(comments), 3)
        for job, comment in comments.items():
            self.assertAlmostEqual(self.parts(comment)["node1"], used[job], delta=0.01)

    def test_all_nodes_of_a_job_are_in_its_comment(self):
        cluster = self.cluster(AccountingCluster, nodes=4, arguments="socket=/run/%n/socket")
        nodes = [f"node{number}" for number in range(1, 5)]
        for node in nodes:
            cluster.run("install", "-d", "-o", "vitamin", f"/run/{node}")
            cluster.daemons.append(cluster.start(
                "vitamind", "--system", "--socket", f"/run/{node}/socket", "--set",
                f"daemon.lock_directory=/run/{node}", user="vitamin"))
            wait_until(lambda node=node: cluster.exists(f"/run/{node}/socket"), "a daemon")
        # All nodes have the same GPU, and each has its own lock file for it.
        cluster.srun("-N4", "--vitamin=50", "sh", "-c",
                     "VITAMIN_LOCK_DIRECTORY=/run/$SLURMD_NODENAME exec "
                     f"{' '.join(map(str, program('demo-serve')))}", env=SOFT)
        parts = self.parts(cluster.comment("1"))
        self.assertEqual(sorted(parts), nodes)
        for node in nodes:
            used = self.used(cluster, "--socket", f"/run/{node}/socket")["1"]
            self.assertAlmostEqual(parts[node], used, delta=0.01)


class Array(SlurmTest):
    """Short jobs, one after the other, on nodes that each have a vitamind."""

    NODES = 8
    JOBS = 200 if seed.long_form() else 24  # a job takes a tenth of a second of processor time

    def test_an_array_of_short_jobs_shares_eight_nodes(self):
        cluster = self.cluster(nodes=self.NODES, arguments="socket=/run/vitamin/%n.sock")
        sockets = [f"/run/vitamin/node{number}.sock" for number in range(1, self.NODES + 1)]
        for socket in sockets:
            cluster.daemons.append(cluster.start("vitamind", "--system", "--socket", socket,
                                                 user="vitamin"))
            wait_until(lambda: cluster.exists(socket), what=f"the daemon at {socket}")
        cluster.write("/tmp/job", "#!/bin/sh\n#SBATCH --vitamin=25\n"
                      "echo $SLURMD_NODENAME $VITAMIN_DAEMON $VITAMIN_JOB $VITAMIN_SHARE\n", 0o755)
        cluster.run("install", "-d", "-o", "alice", "/tmp/out")
        begun = time.monotonic()
        cluster.run("sbatch", "--wait", f"--array=1-{self.JOBS}", "-o", "/tmp/out/%a", "/tmp/job",
                    user="alice", timeout=300)
        seconds = time.monotonic() - begun
        said = [cluster.read(f"/tmp/out/{i}") for i in range(1, self.JOBS + 1)]
        nodes, jobs = set(), set()
        for line in said:
            node, socket, job, share = line.split()  # one line each: no warning
            self.assertEqual((socket, share), (f"/run/vitamin/{node}.sock", "25"))
            nodes.add(node)
            jobs.add(job)
        self.assertEqual(len(jobs), self.JOBS)
        self.assertGreater(len(nodes), 1)
        wait_until(lambda: cluster.nodes_in("idle") == self.NODES, "that all are free again", 120)
        self.assertEqual(cluster.nodes_in("drain"), 0)
        for socket in sockets:  # nothing is left of any job
            status = json.loads(cluster.run("vitamin", "status", "--json", "--socket",
                                            socket).stdout)
            self.assertEqual((status["jobs"], status["clients"]), ([], []))
        print(json.dumps({"what": "array of short Slurm jobs", "jobs": self.JOBS,
                          "nodes": self.NODES, "seconds": round(seconds, 1)}))


class ManyNodes(SlurmTest):
    NODES = 64

    # One file for all of them. Interactive jobs run on the first half; the last five nodes refuse
    # jobs that cannot share.
    FILE = """
[nodes."node[60-64]".failure]
absent = "closed"
[[nodes."node[1-32]".class]]
name = "interactive"
kind = "latency"
"""

    def test_64_nodes_run_one_job_each_by_its_own_rules(self):
        cluster = self.cluster(nodes=self.NODES, arguments="socket=/run/vitamin/%n.sock")
        cluster.write("/etc/vitamin/vitamin.toml", self.FILE)
        with_daemon = {1, 20, 40, 63}
        for node in sorted(with_daemon):
            socket = f"/run/vitamin/node{node}.sock"
            cluster.daemons.append(cluster.start("vitamind", "--system", "--socket", socket,
                                                 user="vitamin"))
            wait_until(lambda: cluster.exists(socket), what=f"the daemon of node {node}")
        job = cluster.srun("-N", self.NODES, "--no-kill", "--kill-on-bad-exit=0", "--vitamin=25",
                           "sh", "-c", "echo $SLURMD_NODENAME ${VITAMIN_DAEMON:-unshared}",
                           check=False, timeout=250)
        ran = dict(line.split() for line in job.stdout.splitlines())
        closed = set(range(60, 65)) - with_daemon
        self.assertEqual(ran, {
            f"node{number}": f"/run/vitamin/node{number}.sock" if number in with_daemon
            else "unshared" for number in set(range(1, self.NODES + 1)) - closed})
        self.assertEqual(job.stderr.count("the task runs unshared"),
                         self.NODES - len(closed | with_daemon))
        self.assertEqual(job.stderr.count("the task is not started, as failure.absent says"),
                         len(closed))
        wait_until(lambda: cluster.nodes_in("idle") == self.NODES, "that all are free again", 120)
        self.assertEqual(cluster.nodes_in("drain"), 0)
        for number in (20, 40):
            job = cluster.srun("-w", f"node{number}", "--vitamin=interactive", "sh", "-c",
                               "echo ${VITAMIN_CLASS:-none}")
            self.assertEqual(job.stdout, "interactive\n" if number <= 32 else "none\n")
            if number > 32:
                self.assertIn("vitamin.toml has no class 'interactive'", job.stderr)


if __name__ == "__main__":
    unittest.main()
