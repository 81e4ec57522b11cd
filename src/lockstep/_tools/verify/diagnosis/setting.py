"""A way to run a script: what may differ between two runs without changing the results."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Setting:
    """The processes, loader workers and launcher of a run."""

    number: int
    """The setting's position in the verification, from 1."""
    world_size: int
    workers: int | None = None
    """The number of loader workers of each process; None: as in the script."""
    launcher: str = "local"
    killed_at: int | None = None
    """The number of processes of an earlier launch that was killed and is resumed; None: there was
    none."""
    in_last_epoch: bool = False
    """Whether that launch was killed in the last epoch; otherwise it was in the first."""

    @property
    def label(self) -> str:
        """The setting's name in the output."""
        words = [_processes(self.world_size)]
        if self.workers is not None:
            words.append(f"{self.workers} loader worker{'s' if self.workers != 1 else ''}")
        if self.launcher != "local":
            words.append(self.launcher)
        if self.killed_at is not None:
            killed = f"{_processes(self.killed_at)} {'was' if self.killed_at == 1 else 'were'} killed"
            words.append(f"resuming where {killed}{' in the last epoch' if self.in_last_epoch else ''}")
        return ", ".join(words)

    @property
    def slug(self) -> str:
        """The setting's name in the run's directory."""
        workers = "" if self.workers is None else f"-workers{self.workers}"
        after = "" if self.killed_at is None else f"-after-x{self.killed_at}{'-last' if self.in_last_epoch else ''}"
        return f"{self.number}-x{self.world_size}{workers}-{self.launcher}{after}"


def _processes(number: int) -> str:
    return f"{number} process{'es' if number > 1 else ''}"
