"""``python -m lockstep._tools.doctor.over_hosts FILE``: one process of the checks across several
hosts.

``lockstep doctor --nnodes N`` starts it on each host with the launcher of ``lockstep run``, to
examine what a run would use. FILE contains the findings of its host; the first process of each host
replaces them with the findings of all hosts. Every rank must call the functions that take a
``Member``; they block until all have.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from lockstep._base.config import RunConfig
from lockstep._tools.doctor import exchange, processes
from lockstep._tools.doctor.finding import Finding, Situation, ok
from lockstep._world.environment import read_environment
from lockstep._world.machine.sizes import counted

RENDEZVOUS = "rendezvous"
_RENDEZVOUS_S = 60.0
"""How long hosts wait for each other."""


def compare(member: exchange.Member, here: Sequence[Finding]) -> list[Finding]:
    """Returns all hosts' findings, followed by the findings across hosts. The same on every rank.

    Args:
        member: this process.
        here: this host's findings; only the first process of a host passes them on.
    """
    world, collectives = member.world, member.collectives
    mine = [asdict(finding) for finding in here] if world.local_rank == 0 else None
    hosts = [findings for findings in collectives.all_gather_plain(mine) if findings is not None]
    findings = [Finding(**finding) for host in hosts for finding in host]
    measured = exchange.measure(member)
    met = ok(f"{counted(len(hosts), 'machine')} met, with {counted(world.world_size, 'process', 'processes')}")
    together: tuple[tuple[str, Finding, dict[str, Any]], ...] = (
        (RENDEZVOUS, met, {}),
        (processes.NAME, processes.judge(**measured), measured),
    )
    return [*findings, *(replace(finding, check=name, values=values) for name, finding, values in together)]


def compare_hosts(situation: Situation, here: Sequence[Finding]) -> tuple[list[Finding], int]:
    """Open a process group and compare the hosts. Returns all findings, and this process's rank.

    Raises:
        LockstepError: a process did not arrive, or was lost meanwhile.
    """
    with exchange.join(min(situation.config.timeout_s, _RENDEZVOUS_S)) as member:
        return compare(member, here), member.world.rank


def main(path: Path) -> None:
    """Runs one process of the checks, and writes the findings of all hosts to the file."""
    environment = read_environment()
    config = RunConfig.merge(environment.settings, {})
    here = [Finding(**fields) for fields in json.loads(path.read_text())]
    findings, rank = compare_hosts(Situation(num_processes=environment.world.local_world_size, config=config), here)
    if environment.world.local_rank == 0:
        path.write_text(json.dumps({"rank": rank, "findings": [asdict(finding) for finding in findings]}))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
