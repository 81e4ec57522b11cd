"""Who has a node's number: a launcher, by its process."""

from __future__ import annotations

import json
import os
import socket
import uuid
from dataclasses import asdict, dataclass

import psutil

from lockstep.machine.identity import shared_by


@dataclass(frozen=True, kw_only=True)
class Claim:
    """A launcher that has come as a node."""

    pid: int
    host: str
    processes_of: str
    """Where its number means this process: one start of a machine, one container; empty: not known."""
    token: str
    """Its own, so that no two have the same."""

    @staticmethod
    def of_this_process() -> Claim:
        """That of this process."""
        return Claim(pid=os.getpid(), host=socket.gethostname(), processes_of=shared_by("pid"), token=uuid.uuid4().hex)

    def __str__(self) -> str:
        return f"process {self.pid} on {self.host}"

    def has_ended(self, here: Claim) -> bool:
        """Whether that launcher is known to have ended, as seen from this process, whose claim is ``here``."""
        is_here = (self.host, self.processes_of) == (here.host, here.processes_of) and self.processes_of != ""
        return is_here and not _runs(self.pid)

    def to_json(self) -> str:
        """For the store."""
        return json.dumps(asdict(self))

    @staticmethod
    def from_json(text: str) -> Claim:
        """What ``to_json`` made."""
        return Claim(**json.loads(text))


def _runs(pid: int) -> bool:
    """Whether it does. One that nobody has waited for yet has ended too (a zombie; for good in a container without an init)."""
    try:
        return psutil.Process(pid).status() not in (psutil.STATUS_ZOMBIE, psutil.STATUS_DEAD)
    except psutil.NoSuchProcess:
        return False
