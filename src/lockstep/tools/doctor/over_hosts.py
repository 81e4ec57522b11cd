"""``python -m lockstep.tools.doctor.over_hosts FILE``: one process of the checks across several hosts.

``lockstep doctor --nnodes N`` starts it on each host with the launcher of ``lockstep run``, to examine what a run would use.
FILE contains the findings of its host; the first process of each host replaces them by those of all hosts. Every rank must call
the functions that take a ``Member``; they block until all have.
"""

from __future__ import annotations

import json
import secrets
import socket
import sys
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from lockstep.base.config import RunConfig
from lockstep.state.rundir.sight import PATIENCE_S, blind_hosts
from lockstep.tools.doctor import exchange, processes
from lockstep.tools.doctor.disk import judge_clocks
from lockstep.tools.doctor.finding import Finding, Situation, fail, ok
from lockstep.tools.doctor.network import judge_names, own_addresses, resolve
from lockstep.tools.doctor.software import judge_same, look_at_versions
from lockstep.world.environment import read_environment
from lockstep.world.machine.addresses import is_loopback
from lockstep.world.machine.sizes import counted

RENDEZVOUS = "rendezvous"
_RENDEZVOUS_S = 60.0
"""How long hosts wait for each other."""


def compare(member: exchange.Member, situation: Situation, here: Sequence[Finding]) -> list[Finding]:
    """All hosts' findings, followed by those across hosts. The same on every rank.

    Args:
        member: this process.
        situation: of this host.
        here: this host's findings; those of its first process count.
    """
    world, collectives = member.world, member.collectives
    is_first = world.local_rank == 0
    about = {
        "host": socket.gethostname(),
        "findings": [asdict(finding) for finding in here],
        "versions": look_at_versions(situation) if is_first else {},
        "addresses": own_addresses(),
    }
    everyone = collectives.all_gather_plain(about if is_first else None)
    hosts = {rank: host for rank, host in enumerate(everyone) if host is not None}
    findings = [Finding(**finding) for host in hosts.values() for finding in host["findings"]]
    same = judge_same({host["host"]: host["versions"] for host in hosts.values()})
    unresolved = _unresolved([(host["host"], host["addresses"]) for host in hosts.values()]) if is_first else []
    unknown = [name for names in collectives.all_gather_plain(unresolved) for name in names]
    ahead_s = exchange.clock_ahead_s(member)
    clocks = {host["host"]: ahead_s[rank] for rank, host in hosts.items()}
    blind = _blind(member, situation.run_dir)
    measured = exchange.measure(member)
    met = ok(f"{counted(len(hosts), 'host')} met, with {counted(world.world_size, 'process', 'processes')}")
    together: tuple[tuple[str, Finding, dict[str, Any]], ...] = (
        (RENDEZVOUS, met, {}),
        ("same versions", same, {}),
        ("host names", judge_names(unknown), {"unknown": unknown}),
        ("clocks", judge_clocks(clocks), {"ahead_s": clocks}),
        ("shared run directory", judge_shared(str(situation.run_dir), blind), {"blind": blind}),
        (processes.NAME, processes.judge(**measured), measured),
    )
    return [*findings, *(replace(finding, check=name, values=values) for name, finding, values in together)]


def judge_shared(directory: str, blind: Sequence[str]) -> Finding:
    """Whether all hosts see a file that one of them has written. ``blind``: the hosts that do not."""
    if blind:
        return fail(
            f"{', '.join(blind)} cannot see in {directory} what rank 0 wrote there {PATIENCE_S:g} s before",
            "give a directory of a file system that is mounted at the same path on all hosts: --run-dir",
        )
    return ok(f"all hosts see {directory}")


def _blind(member: exchange.Member, directory: Path) -> list[str]:
    world, collectives = member.world, member.collectives
    named, token = collectives.broadcast_plain((str(directory), f"doctor-{secrets.token_hex(4)}"))
    try:
        return blind_hosts(Path(named), token, world, collectives)
    except OSError as error:
        return [f"rank 0 (which cannot write there: {error})"]


def _unresolved(hosts: Sequence[tuple[str, Sequence[str]]]) -> list[tuple[str, str, str]]:
    """The hosts whose names do not resolve here, or resolve to another machine: this host, the name, and why."""
    here, unresolved = socket.gethostname(), []
    for host, addresses in hosts:
        if host == here:
            continue
        resolved, error = resolve(host)
        if not error and not any(address in addresses and not is_loopback(address) for address in resolved):
            error = f"it resolves to {', '.join(resolved)}, which is no address of it"
        if error:
            unresolved.append((here, host, error))
    return unresolved


def compare_hosts(situation: Situation, here: Sequence[Finding]) -> tuple[list[Finding], int]:
    """Open a process group and compare the hosts. Returns all findings, and this process's rank.

    Raises:
        LockstepError: a process did not arrive, or was lost meanwhile.
    """
    with exchange.join(min(situation.config.timeout_s, _RENDEZVOUS_S)) as member:
        situation = replace(situation, world=member.world)
        return compare(member, situation, here), member.world.rank


def main(path: Path) -> None:
    """See the module."""
    environment = read_environment()
    config = RunConfig.merge(environment.settings, {})
    here = [Finding(**fields) for fields in json.loads(path.read_text())]
    findings, rank = compare_hosts(Situation(num_processes=environment.world.local_world_size, config=config), here)
    if environment.world.local_rank == 0:
        path.write_text(json.dumps({"rank": rank, "findings": [asdict(finding) for finding in findings]}))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
