# SPDX-License-Identifier: Apache-2.0
"""A Slurm cluster on a throw-away machine: Debian's daemons, without systemd, on as many nodes
as requested (each is a slurmd with its own port)."""
import json
import tempfile
import unittest

from machine import Machine, package, tool
from time_limit import wait_until

CONFIGURATION = """
ClusterName=test
SlurmctldHost=machine(127.0.0.1)
SlurmUser=slurm
SlurmdUser=root
StateSaveLocation=/var/spool/slurmctld
SlurmdSpoolDir=/var/spool/slurmd.%n
SlurmctldPidFile=/run/slurm/slurmctld.pid
SlurmdPidFile=/run/slurm/slurmd.%n.pid
SlurmctldLogFile=/var/log/slurm/slurmctld.log
SlurmdLogFile=/var/log/slurm/slurmd.%n.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
SwitchType=switch/none
MpiDefault=none
ReturnToService=2
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
GresTypes=gpu,shard
PlugStackConfig=/etc/slurm/plugstack.conf
SlurmdParameters=config_overrides
PrologFlags=Alloc
{nodes}
PartitionName=main Nodes=ALL Default=YES MaxTime=INFINITE State=UP OverSubscribe=YES
"""
NAMES = ("vitamind", "vitamin-preload", "vitamin-cli", "slurm-spank-vitamin")


class Cluster(Machine):
    """With Vitamin's packages installed and the users alice and bob."""

    GRES = "gpu:soft:1,shard:8"
    GRES_FILE = "Name=gpu Type=soft File=/dev/gpu0\nName=shard Count=8\n"
    EXTRA = ""  # of slurm.conf

    def __init__(self, nodes=1, arguments=""):
        for name in ("slurmctld", "slurmd", "srun", "munged"):
            tool(name)
        super().__init__()
        self.nodes = nodes
        self.daemons = []
        try:
            self.run("dpkg", "--force-unsafe-io", "-i", *(package(name) for name in NAMES))
            for user in ("alice", "bob"):
                self.run("useradd", "--create-home", user)
            self.write("/etc/slurm/plugstack.conf", f"required spank_vitamin.so {arguments}\n")
            self.boot()
        except BaseException:
            self.close()
            raise

    def boot(self):
        names = "node1" if self.nodes == 1 else f"node[1-{self.nodes}]"
        ports = "17001" if self.nodes == 1 else f"[17001-{17000 + self.nodes}]"
        self.write("/etc/slurm/slurm.conf", CONFIGURATION.format(
            nodes=f"NodeName={names} NodeHostname=machine NodeAddr=127.0.0.1 Port={ports} CPUs=8 "
                  f"RealMemory=2000 Gres={self.GRES} State=UNKNOWN") + self.EXTRA)
        self.write("/etc/slurm/gres.conf", self.GRES_FILE)
        self.write("/etc/slurm/cgroup.conf", "CgroupPlugin=cgroup/v1\n"
                                             "CgroupMountpoint=/sys/fs/cgroup\n")
        self.run("sh", "-ec", """
            mknod /dev/gpu0 c 1 3
            mknod /dev/gpu1 c 1 3
            mkdir -p /run/munge /var/log/munge /var/lib/munge /etc/munge /run/slurm \
                /var/spool/slurmctld /var/log/slurm
            head -c 1024 /dev/urandom >/etc/munge/munge.key
            chown -R munge:munge /run/munge /var/log/munge /var/lib/munge /etc/munge
            chmod 755 /run/munge
            chmod 700 /var/log/munge /etc/munge
            chmod 711 /var/lib/munge
            chmod 400 /etc/munge/munge.key
            chown slurm: /var/spool/slurmctld /var/log/slurm
            """)
        self.before_slurm()
        # Daemons that go to the background keep their standard output open.
        self.run("sh", "-ec", """
            slurmctld >/dev/null 2>&1
            for i in $(seq %d); do slurmd -N node$i >/dev/null 2>&1; done
            """ % self.nodes, timeout=120)
        wait_until(lambda: self.nodes_in("idle") == self.nodes, "that all nodes are idle", 120)

    def before_slurm(self):
        self.run("sh", "-c", "runuser -u munge -- munged --force >/dev/null 2>&1")

    def nodes_in(self, state):
        said = self.run("sinfo", "-h", "-t", state, "-o", "%D", check=False).stdout.strip()
        return int(said) if said else 0

    def vitamind(self, *words, user="vitamin"):
        """Starts it and waits until it listens. A start that hangs is reported and repeated: a few
        have hung in these nested namespaces, for an unknown reason."""
        for attempt in range(3):
            log = tempfile.TemporaryFile("w+")
            process = self.start("vitamind", "--system", *words, user=user, log=log)
            self.daemons.append(process)
            try:
                wait_until(lambda: self.run("vitamin", "status", check=False).returncode == 0,
                           "vitamind", 15)
                return process
            except AssertionError:
                log.seek(0)
                print(f"vitamind, start {attempt}: {process.poll()}, {log.read()}", flush=True)
                self.run("pkill", "-KILL", "-x", "vitamind", check=False)
        raise AssertionError("vitamind did not start")

    def kill_vitamind(self, signal="KILL"):
        self.run("pkill", f"-{signal}", "-x", "vitamind")

    def srun(self, *words, user="alice", check=True, env=None, timeout=120):
        return self.run("srun", *words, user=user, check=check, env=env, timeout=timeout)

    def sees(self):
        """vitamind's status."""
        return json.loads(self.run("vitamin", "status", "--json").stdout)

    def close(self):
        super().close()
        for process in getattr(self, "daemons", []):
            process.kill()  # nsenter is stopped together with its child
            process.wait()


class UnevenCluster(Cluster):
    """With eight shards of the first GPU and two of the second."""

    GRES = "gpu:soft:2,shard:10"
    GRES_FILE = ("Name=gpu Type=soft File=/dev/gpu[0-1]\n"
                 "Name=shard Count=8 File=/dev/gpu0\nName=shard Count=2 File=/dev/gpu1\n")


class AccountingCluster(Cluster):
    """With slurmdbd over a MariaDB without a password."""

    EXTRA = ("AccountingStorageType=accounting_storage/slurmdbd\n"
             "AccountingStorageHost=localhost\n")
    DATABASE = """AuthType=auth/munge
DbdHost=localhost
SlurmUser=slurm
StorageType=accounting_storage/mysql
StorageHost=localhost
StorageUser=slurm
StorageLoc=slurm
LogFile=/var/log/slurm/slurmdbd.log
PidFile=/run/slurm/slurmdbd.pid
"""

    def __init__(self, **options):
        for name in ("slurmdbd", "mariadbd", "mariadb-install-db"):
            tool(name)
        super().__init__(**options)

    def before_slurm(self):
        super().before_slurm()
        self.write("/etc/slurm/slurmdbd.conf", self.DATABASE, 0o600)
        self.run("sh", "-ec", """
            chown slurm: /etc/slurm/slurmdbd.conf /run/slurm
            mkdir -p /run/mysqld /var/lib/mysql
            mariadb-install-db --user=root --datadir=/var/lib/mysql --skip-test-db >/dev/null
            """, timeout=120)
        self.daemons.append(self.start("mariadbd", "--user=root", "--datadir=/var/lib/mysql",
                                       "--socket=/run/mysqld/mysqld.sock", "--skip-networking",
                                       "--skip-grant-tables"))
        wait_until(lambda: self.exists("/run/mysqld/mysqld.sock"), "the database", 60)
        self.run("sh", "-c", "slurmdbd >/dev/null 2>&1")
        wait_until(lambda: self.run("sacctmgr", "-i", "add", "cluster", "test",
                                    check=False).returncode == 0, "slurmdbd", 60)

    def comments(self, job):
        """`sacct`'s AdminComment of a job, or of each job of an array, by the job's own number,
        when all have ended on all of their nodes."""
        def ended():
            if self.run("squeue", "-h", "-j", job, check=False).stdout:
                return None  # also while it completes
            rows = [line.split("|", 2) for line in self.run(
                "sacct", "-a", "-X", "-n", "-P", "-j", job, "-o",
                "JobIDRaw,End,AdminComment").stdout.splitlines()]
            # Not State: a record that is first written when the job has ended has the last state
            # at once; its end and the comment come with a later message.
            if not rows or any(end in ("", "Unknown") for _, end, _ in rows):
                return None
            return {number: comment for number, _, comment in rows}
        return wait_until(ended, f"the record of job {job}", 60)

    def comment(self, job):
        """The AdminComment of a job that is no array."""
        return self.comments(job)[job]


class SlurmTest(unittest.TestCase):
    def cluster(self, kind=Cluster, **options):
        cluster = kind(**options)
        self.addCleanup(cluster.close)
        return cluster
