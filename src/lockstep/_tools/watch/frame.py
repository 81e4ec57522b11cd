"""One frame of ``lockstep watch``: what is known of a run as text for a terminal. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from rich.text import Text

from lockstep._base.escape_control import escape_control
from lockstep._events.format import NOT_FINITE
from lockstep._events.measure.pass_progress import bar_line, time_left
from lockstep._tools.explain.loader_workers import waits_for_loader
from lockstep._tools.explain.rank_reports import RankReport
from lockstep._tools.watch.watched import Watched
from lockstep._world.machine.sizes import counted, name_ranks, span


def frame(run: Watched, width: int, height: int = 24) -> Text:
    """Lines that fit ``width``, at most ``height`` of them."""
    above, ranks = [*_head(run, width), *_saved(run)], _ranks(run)
    room = max(1, height - len(above))
    if room < len(ranks):
        ranks = [*ranks[: room - 1], Text(f"and {len(ranks) - room + 1} more groups of ranks", "dim")]
    lines = [*above, *ranks]
    for line in lines:
        line.no_wrap = True
        line.truncate(width, overflow="ellipsis")
    return Text("\n", no_wrap=True, end="").join(lines[:height])


def _head(run: Watched, width: int) -> list[Text]:
    start = run.start
    script = f" · {Path(str(start['script'])).name}" if start.get("script") else ""
    style = {"running": "green", "failed": "red", "unreadable": "red", "interrupted": "yellow"}.get(run.state, "")
    lines = [Text.assemble((escape_control(run.name), "bold"), " · ", (run.state, style), escape_control(script))]
    progress = run.progress
    if progress is not None:
        times = time_left(progress, run.now_s) if run.state == "running" else []
        lines.append(Text.assemble(*bar_line(progress, times, (), width)))
    if run.values:
        lines.append(Text(escape_control(_listed(run.values)), "bold"))
    facts = [] if run.step is None else [f"step {run.step:,}"]
    if run.samples_per_s is not None:
        facts.append(
            f"{run.samples_per_s:,.4g} samples/s" if run.samples_per_s < 1000 else f"{run.samples_per_s:,.0f} samples/s"
        )
    if isinstance(start.get("world_size"), int):
        hosts = len(set(start.get("hosts") or ()))
        facts.append(
            counted(start["world_size"], "process", "processes") + (f" on {counted(hosts, 'host')}" if hosts > 1 else "")
        )
    if isinstance(start.get("time_s"), float):
        facts.append(f"started {span(run.now_s - start['time_s'])} ago")
    return [*lines, Text(" · ".join(facts) or "no data yet")]


def _ranks(run: Watched) -> list[Text]:
    """Returns one line per group of ranks that do the same; groups that need attention come
    first."""
    if not run.reports:
        return []
    groups: dict[tuple[int, str], list[RankReport]] = {}
    for report in run.reports:
        groups.setdefault(_phase(report), []).append(report)
    world_size = run.reports[0].record.get("world_size", len(run.reports))
    silent = sorted(set(range(world_size)) - {report.rank for report in run.reports}) if run.state == "running" else []
    lines = [Text(f"{name_ranks(silent)}: has not reported yet", "yellow")] if silent else []
    for (urgency, words), group in sorted(groups.items(), key=lambda item: (item[0][0], len(item[1]), item[1][0].rank)):
        lines.append(Text(escape_control(_line(group, words)), ("red", "", "dim")[urgency]))
    return lines


def _phase(report: RankReport) -> tuple[int, str]:
    """How urgently it needs attention (0: most), and what it does."""
    if report.state in ("finished", "joined"):
        return 2, report.state
    if report.state not in ("running", "late"):
        return 0, report.describe()
    if report.state == "late":
        return 0, "has not reported for some time; last " + str(report.record["doing"]["activity"])
    if report.is_waiting:
        return 2, "waiting for the other ranks"
    if waits_for_loader(report.frames):
        return 1, "waiting for its loader workers"
    return 1, str(report.record["doing"]["activity"])


def _line(group: Sequence[RankReport], words: str) -> str:
    hosts = list(dict.fromkeys(str(report.record["host"]) for report in group))
    where = f" on {hosts[0]}" if len(hosts) == 1 else f" on {len(hosts)} hosts"
    steps = sorted({step for report in group if isinstance(step := report.record["doing"].get("step"), int)})
    at = "" if not steps or " step " in words else f", step {steps[0]}" + (f" to {steps[-1]}" if len(steps) > 1 else "")
    still_s = min(report.still_s for report in group)
    how_long = f", for {span(still_s)}" if still_s >= 3 and group[0].state in ("running", "late") else ""
    return f"{name_ranks([report.rank for report in group])}{where}: {words}{at}{how_long}"


def _saved(run: Watched) -> list[Text]:
    saved = run.checkpoint
    if saved is None:
        return []
    age = f", {span(run.now_s - saved['time_s'])} ago" if isinstance(saved.get("time_s"), float) else ""
    return [Text(f"last checkpoint: step {saved.get('step')}{age}", "cyan")]


def _listed(values: Mapping[str, float | None]) -> str:
    return ", ".join(f"{name} {NOT_FINITE if value is None else f'{value:.4g}'}" for name, value in values.items())
