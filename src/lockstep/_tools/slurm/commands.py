"""Running Slurm's commands."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

from lockstep._base.errors import ConfigError, LaunchError

_PATIENCE_S = 60.0
_COLUMNS = "%P %D %c %m %G %l %N"


def is_here() -> bool:
    """Whether jobs can be submitted from this machine."""
    return shutil.which("sbatch") is not None


def try_out(text: str) -> None:
    """Ask Slurm whether the cluster can run a batch file's job: partition, nodes, resources,
    accounts, limits.

    Raises:
        ConfigError: it cannot; the message has Slurm's reason, and what the cluster has.
        LaunchError: Slurm does not answer.
    """
    done = _run("sbatch", "--test-only", text=text)
    if done.returncode:
        cluster = _run("sinfo", f"--format={_COLUMNS}")
        if cluster.returncode:
            raise LaunchError(f"Slurm does not respond ({_message(cluster)})", code="slurm-unavailable")
        raise ConfigError(
            f"Slurm rejects this job: {_message(done)}. The cluster has:\n{cluster.stdout.strip()}", code="job-rejected"
        )


def submit(file: Path) -> str:
    """Submit a file; returns the number of the job.

    Raises:
        LaunchError: Slurm does not accept it, or does not answer.
    """
    done = _run("sbatch", "--parsable", str(file))
    if done.returncode:
        raise LaunchError(f"sbatch {file} exited with status {done.returncode}: {_message(done)}", code="submission-failed")
    return done.stdout.strip().partition(";")[0]


def _run(*command: str, text: str = "") -> subprocess.CompletedProcess[str]:
    try:
        return subprocess.run(command, input=text, capture_output=True, text=True, timeout=_PATIENCE_S, check=False)
    except subprocess.TimeoutExpired:
        raise LaunchError(
            f"{command[0]} did not respond within {_PATIENCE_S:g} s. Check Slurm's controller: scontrol ping",
            code="slurm-unavailable",
        ) from None


def _message(done: subprocess.CompletedProcess[str]) -> str:
    lines = [line.strip() for line in done.stderr.splitlines() if line.strip()]
    return "; ".join(lines[:2]) or "no message"
