"""Findings of ``lockstep doctor``, for the terminal."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Console

from lockstep._base.config import RunConfig
from lockstep._cli import tables
from lockstep._cli.tables import Page, say
from lockstep._launch.local import resolve_nproc
from lockstep._launch.nodes import plan_nodes
from lockstep._launch.options import LaunchOptions
from lockstep._tools.doctor.finding import FAIL, OK, STATES, WARN, Finding, Situation
from lockstep._world.environment import read_environment

_STYLES = {OK: "green", WARN: "yellow", FAIL: "bold red"}


def situation_of(options: LaunchOptions, config: RunConfig) -> Situation:
    """The situation that a command line describes on this machine, under the launcher that has
    started it, if any."""
    world, nodes = read_environment().world, plan_nodes(options)
    is_one_of_several = nodes is None and world.world_size > 1
    count = world.local_world_size if is_one_of_several else resolve_nproc(options.nproc_per_node, config)
    return Situation(num_processes=count, config=config, world=world, nodes=nodes)


def show(findings: Sequence[Finding], took_s: float, console: Console) -> None:
    """Print a table of findings, then what to do."""
    num_hosts = len({finding.host for finding in findings if finding.host})
    rows: dict[tuple[str, str, str], list[str]] = {}
    for finding in findings:
        rows.setdefault((finding.check, finding.state, finding.found), []).append(finding.host)
    order = list(dict.fromkeys(check for check, _, _ in rows))
    lines = [
        (check, state, found if len(hosts) == num_hosts or not hosts[0] else f"{', '.join(hosts)}: {found}")
        for (check, state, found), hosts in sorted(rows.items(), key=lambda row: order.index(row[0][0]))
    ]
    page = Page(headings=("check", "", "found"), rows=lines, styles=[_STYLES[state] for _, state, _ in lines])
    tables.show(console, page)
    remedies = dict.fromkeys(
        (finding.state, finding.check, finding.remedy) for finding in findings if finding.state != OK and finding.remedy
    )
    for state, check, remedy in sorted(remedies, key=lambda row: STATES.index(row[0]), reverse=True):
        say(console, f"{state}: {check}: {remedy}", _STYLES[state])
    counts = ", ".join(f"{sum(line[1] == state for line in lines)} {state}" for state in STATES)
    say(console, f"{counts}, in {took_s:.1f} s{f' on {num_hosts} hosts' if num_hosts > 1 else ''}")
