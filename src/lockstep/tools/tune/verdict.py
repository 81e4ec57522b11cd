"""The result of a measurement, in words. Pure."""

from __future__ import annotations

import statistics
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from lockstep.plan.loading import Loading
from lockstep.tools.tune.costs import Costs
from lockstep.tools.tune.search import keeps_up, may_gain

Result = Mapping[str, Any]
"""See ``probe.Probe``."""
_ABOUT = 1.15
_WORTH_A_LINE = 0.1


def facts(result: Result) -> list[tuple[str, str, str]]:
    """What was timed: a name, its time, and an explanation."""
    costs, now, present = Costs(**result["costs"]), result["now"], Loading(**result["present"])
    copy = f", {_ms(costs.copy_s)} of it the copy" if costs.on_gpu else ""
    rows = [
        ("step", _ms(costs.step_s), f"on a batch that is already loaded{copy}"),
        ("loader", _ms(costs.fetch_s), f"a batch, {_share(costs.fetch_cpu_s, costs.fetch_s)} of it on a core"),
        ("worker", _ms(costs.worker_s), "a batch, from one loader worker"),
        ("now", _ms(now["step_s"]), f"a step with {present}, as the script has it; it waits {_ms(now['wait_s'])}"),
    ]
    for number, trial in enumerate(result["trials"], 1):
        rows.append((f"trial {number}", _ms(trial["step_s"]), f"{Loading(**trial['loading'])}: {_times(trial['speedup'])}"))
    return rows


def better_loading(result: Result) -> Loading:
    """The settings that are faster than the script's own; all None: there are none."""
    if not result["is_better"]:
        return Loading()
    best, present = result["best"]["loading"], result["present"]
    return Loading(**{name: value for name, value in best.items() if name == "workers" or value != present[name]})


def speedup(result: Result) -> float:
    """The speedup of the best settings that were tried: the median of all comparisons."""
    return statistics.median(float(trial["speedup"]) for trial in (result["best"], *result["again"]))


def sentence(result: Result) -> str:
    """The verdict."""
    costs, now = Costs(**result["costs"]), result["now"]
    if not may_gain(costs, result["present"]["workers"], now["step_s"], now["wait_s"]):
        return (
            f"nothing to gain from the loader, which keeps up: a step takes {_ms(now['step_s'])}, and {_ms(costs.step_s)} "
            f"without any; {result['bound'].partition(';')[0]}"
        )
    bound = f"data-bound: the loader takes {_ms(costs.fetch_s)} a step of {_ms(costs.step_s)}"
    if result["best"] is None:
        return f"{bound}, and there is nothing to try: {_why_not(costs)}"
    if not result["is_better"]:
        return f"{bound}, and nothing that was tried is clearly faster than the script's own settings: {_why_not(costs)}"
    best = result["best"]
    loading, gain = Loading(**best["loading"]), _times(speedup(result))
    if loading.workers == 0:
        return f"{bound}; without workers, which cost more than they bring, it is {gain}, confirmed"
    if keeps_up(costs, best["step_s"], _ABOUT):
        rest = f"{loading} {'keeps' if loading.workers == 1 else 'keep'} up"
    else:
        rest = f"with {loading} steps still wait {_ms(best['wait_s'])}"
    return f"{bound}; {rest}: {gain}, confirmed"


def costliest(result: Result) -> list[str]:
    """Lines that name the costliest function and sample of the loader."""
    named, lines = result.get("costliest") or {}, []
    if named.get("share", 0.0) >= _WORTH_A_LINE:
        inside = f", mostly in {named['inside']}" if named["inside"] else ""
        place = f"{Path(named['file']).name}:{named['line']}"
        lines.append(f"costs most in the loader: {named['function']} ({place}), {named['share']:.0%} of its time{inside}")
    if "sample" in named:
        lines.append(
            f"sample {named['sample']} takes {_ms(named['sample_s'])}, where half of them take at most {_ms(named['median_s'])}"
        )
    return lines


def _why_not(costs: Costs) -> str:
    if costs.is_stream:
        return "an IterableDataset is read in one worker at most, so a cheaper loader is what helps"
    cpu_s = costs.step_cpu_s + costs.fetch_cpu_s
    if cpu_s > 0.7 * costs.cores * costs.step_s:
        return (
            f"step and loader need {_ms(cpu_s)} of a core together, and there are {costs.cores:g} for this process: more "
            "cores, or a cheaper loader, are what helps"
        )
    return "a cheaper loader is what helps"


def _ms(seconds: float) -> str:
    milliseconds = 1e3 * seconds
    return f"{milliseconds:.1f} ms" if milliseconds >= 0.095 else f"{milliseconds:.2f} ms"


def _times(speedup: float) -> str:
    return f"{speedup:.2f} times as fast"


def _share(part_s: float, whole_s: float) -> str:
    return f"{min(1.0, part_s / whole_s):.0%}" if whole_s else "0%"
