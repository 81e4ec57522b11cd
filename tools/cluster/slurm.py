"""A real Slurm on the hosts of a cluster: Debian's slurm-wlm and munge, with settings and files
of this cluster only.

slurmctld runs on the first host, a slurmd and a munged on each. Settings and logs are on the
cluster's shared disk, and files of one host are on its own disk.
"""

import functools
import os
import shutil
import stat
import subprocess
import textwrap
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import psutil

from cluster.guardian import HERE
from cluster.host import LOCAL, Host, HostError

PROGRAMS = {"munged": "munge", "slurmctld": "slurm-wlm", "slurmd": "slurm-wlm", "srun": "slurm-wlm"}
DAEMONS = {"munged", "slurmctld", "slurmscriptd", "slurmd"}
SETTINGS = Path(HERE, "slurm.conf")
CPUS, MEMORY_MB = 8, 64_000  # of a host, as Slurm is to believe
# Slurm's GPUs must be devices: these are the one that there always is
NULL = Path("/dev/null").stat().st_rdev
START_S = 30.0

# What is not Slurm's default: one user (root), no control groups, and little patience, so that
# tests need not have much. cred_expire is also how long a requeued job waits.
CONF = """\
ClusterName=box
SlurmctldHost={controller}
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
CredType=cred/munge
AuthInfo=socket={local}/munge.socket,cred_expire=5
StateSaveLocation={here}/slurmctld
SlurmdSpoolDir={local}/slurmd-%n
SlurmctldPidFile={local}/slurmctld.pid
SlurmdPidFile={local}/slurmd-%n.pid
SlurmctldLogFile={here}/slurmctld.log
SlurmdLogFile={here}/slurmd-%n.log
SlurmdParameters=config_overrides
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
MpiDefault=none
JobAcctGatherType=jobacct_gather/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
ReturnToService=2
SchedulerParameters=batch_sched_delay=0,sched_interval=1,sched_min_interval=0,bf_interval=1
SlurmctldTimeout=10
SlurmdTimeout=5
MessageTimeout=3
InactiveLimit=0
KillWait=5
GresTypes=gpu
NodeName={nodes} CPUs={cpus} RealMemory={memory_mb} State=UNKNOWN{gres}
PartitionName=all Nodes=ALL Default=YES MaxTime=INFINITE State=UP OverSubscribe=NO
"""


@functools.cache
def missing() -> str | None:
    """Why there can be no Slurm on a cluster of this machine; None if there can."""
    for program, package in PROGRAMS.items():
        if not shutil.which(program):
            return f"Slurm needs {program} (on Debian: apt-get install {package})"
    return None


class Slurm:
    """Slurm on ``hosts``, whose shared disk is ``files``."""

    def __init__(self, hosts: Sequence[Host], files: Path, *, gpus: int = 0) -> None:
        if reason := missing():
            raise HostError(reason)
        self.controller = hosts[0]
        self._hosts = hosts
        self._files = files
        (files / "slurmctld").mkdir()
        (files / "munge.key").write_bytes(os.urandom(128))
        (files / "munge.key").chmod(0o400)
        (files / "slurm.conf").write_text(
            CONF.format(
                controller=hosts[0].name,
                nodes=",".join(host.name for host in hosts),
                here=HERE,
                local=LOCAL,
                cpus=CPUS,
                memory_mb=MEMORY_MB,
                gres=f" Gres=gpu:{gpus}" if gpus else "",
            )
        )
        (files / "gres.conf").write_text("".join(f"Name=gpu File={HERE}/gpu{n}\n" for n in range(gpus)))
        for n in range(gpus):
            os.mknod(files / f"gpu{n}", stat.S_IFCHR | 0o600, NULL)
        for host in hosts:
            host.environment["SLURM_CONF"] = str(SETTINGS)
            host.daemons |= DAEMONS

    def run(self, command: Sequence[str | Path], **options: Any) -> subprocess.CompletedProcess[str]:
        """Run a command on the controller's host, as Host.run does: srun, sbatch, squeue, ..."""
        return self.controller.run(command, **options)

    def start(self) -> None:
        """Start it everywhere, and return when every host can take jobs."""
        for host in self._hosts:
            self._start_on(host)
            host.at_boot.append(self._start_on)
        self.wait_for_nodes("idle")

    def mend(self) -> list[str]:
        """Cancel all jobs and make all hosts of use again. Returns the jobs that there were."""
        if not self._controllers():
            self.start_controller()
        jobs = self.run(["squeue", "--noheader", "--format=%i %j %T"]).stdout.splitlines()
        for job in jobs:
            self.run(["scancel", job.split()[0]], check=False)
        drained = self.run(["sinfo", "--noheader", "--Node", "--states=drain,drained,draining", "--format=%N"]).stdout
        for name in drained.split():
            self.resume(name)
        self.wait_for_nodes("idle")
        return jobs

    def drain(self, name: str) -> None:
        """Makes a host accept no more jobs. Its running jobs continue."""
        self.run(["scontrol", "update", f"nodename={name}", "state=drain", "reason=asked"])

    def resume(self, name: str) -> None:
        """Let it take jobs again."""
        self.run(["scontrol", "update", f"nodename={name}", "state=resume"])

    def start_controller(self) -> None:
        """Starts slurmctld, which continues from its saved state."""
        self.controller.run(["slurmctld"])
        self._until("slurmctld answers", lambda: "UP" in self.run(["scontrol", "ping"], check=False).stdout)

    def stop_controller(self) -> None:
        """Ends slurmctld. Jobs continue."""
        for process in self._controllers():
            process.terminate()
            process.wait(START_S)

    def submit(self, script: str, *options: str) -> int:
        """Submit a batch script, and return the number of the job."""
        (self._files / "job.sh").write_text(textwrap.dedent(script).lstrip())
        return int(self.run(["sbatch", "--parsable", *options, f"{HERE}/job.sh"]).stdout)

    def job_state(self, job: int) -> str:
        """Returns Slurm's state of a job: PENDING, RUNNING, COMPLETED, ..."""
        told = self.run(["scontrol", "show", "job", str(job)]).stdout
        return told.split("JobState=", 1)[1].split(maxsplit=1)[0]

    def wait_for_job(self, job: int, *states: str, timeout_s: float = START_S) -> str:
        """Return the job's state as soon as it is one of ``states``. Raises HostError if it takes
        longer."""
        self._until(f"job {job} is {' or '.join(states)}", lambda: self.job_state(job) in states, timeout_s)
        return self.job_state(job)

    def wait_for_nodes(self, state: str, timeout_s: float = START_S) -> None:
        """Return when all hosts are in this state of sinfo's."""

        def told() -> set[str]:
            return set(self.run(["sinfo", "--noheader", "--Node", "--format=%t"]).stdout.split())

        self._until(f"all hosts are {state}", lambda: told() == {state}, timeout_s)

    def _controllers(self) -> list[psutil.Process]:
        return [process for process, name in self.controller.inhabitants() if name == "slurmctld"]

    def _start_on(self, host: Host) -> None:
        names = {"key-file": f"{HERE}/munge.key", "log-file": f"{LOCAL}/munged.log", "seed-file": f"{LOCAL}/munged.seed"}
        names |= {"socket": f"{LOCAL}/munge.socket", "pid-file": f"{LOCAL}/munged.pid"}
        host.run(["munged", "--force", *(f"--{option}={path}" for option, path in names.items())])
        if host is self.controller:
            self.start_controller()
        host.run(["slurmd"])

    def _until(self, what: str, is_so: Callable[[], bool], timeout_s: float = START_S) -> None:
        deadline = time.monotonic() + timeout_s
        while not is_so():
            if time.monotonic() > deadline:
                nodes = self.run(["scontrol", "show", "node"], check=False).stdout
                logs = "\n".join(f"-- {log.name}\n{log.read_text()[-2000:]}" for log in sorted(self._files.glob("*.log")))
                raise HostError(f"not so after {timeout_s:g} s: {what}\n{nodes}\n{logs}")
            time.sleep(0.1)
