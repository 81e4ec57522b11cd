"""Running Slurm's commands ``sinfo`` and ``sbatch``."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

from lockstep.base.errors import ConfigError, LaunchError
from lockstep.tools.slurm.inventory import FORMAT, Node, read_nodes

_PATIENCE_S = 60.0


def is_here() -> bool:
    """Whether jobs can be submitted from this machine."""
    return shutil.which("sbatch") is not None and shutil.which("sinfo") is not None


def look() -> list[Node]:
    """The nodes of the cluster.

    Raises:
        LaunchError: Slurm does not answer.
    """
    return read_nodes(_run("sinfo", "--Node", "--noheader", f"--format={FORMAT}").stdout)


def try_out(file: Path) -> None:
    """Ask Slurm whether it would accept a file, including accounts, limits, and whatever else only it knows.

    Raises:
        ConfigError: it would not; the message has its reason.
    """
    done = _run("sbatch", "--test-only", str(file), check=False)
    if done.returncode:
        raise ConfigError(f"Slurm does not accept {file}: {_message(done)}")


def submit(file: Path) -> str:
    """Submit a file; returns the number of the job.

    Raises:
        LaunchError: Slurm does not accept it, or does not answer.
    """
    return _run("sbatch", "--parsable", str(file)).stdout.strip().partition(";")[0]


def _run(*command: str, check: bool = True) -> subprocess.CompletedProcess[str]:
    try:
        done = subprocess.run(
            command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=_PATIENCE_S, check=False
        )
    except subprocess.TimeoutExpired:
        raise LaunchError(
            f"{command[0]} has not answered in {_PATIENCE_S:g} s: is Slurm's controller down? (scontrol ping)"
        ) from None
    if check and done.returncode:
        raise LaunchError(f"{' '.join(command)} ended with status {done.returncode}: {_message(done)}")
    return done


def _message(done: subprocess.CompletedProcess[str]) -> str:
    lines = [line.strip() for line in done.stderr.splitlines() if line.strip()]
    return "; ".join(lines[:2]) or "it says nothing more"
