"""Promises of the pages of ``lockstep report``, of journals that are made by hand."""

import math
import re
from pathlib import Path

import pytest

from lockstep._events.measure.split import PARTS
from lockstep._tools.report import launches, training
from lockstep._tools.report.chart import Series, lines, short
from lockstep._tools.report.html import render, with_code
from lockstep._tools.report.run_page import RunRecord, run_page
from lockstep._tools.report.thin import MOST_POINTS, thin, ticks
from lockstep._tools.runs.inventory import FINISHED, Run

pytestmark = pytest.mark.timeout(60)

MOST_BYTES = 1_000_000


def start(time_s, world_size=2, **fields):
    return {"event": "start", "time_s": time_s, "world_size": world_size, "hosts": ["a"] * world_size, **fields}


def step(time_s, number, **values):
    return {"event": "step", "time_s": time_s, "epoch": 0, "step": number, "values": values}


def epoch(time_s, number, last_step, world_size=2, num_steps=10):
    split = {part: 0.1 * (1 + place) for place, part in enumerate(PARTS)}
    return {
        "event": "epoch",
        "time_s": time_s,
        "epoch": number,
        "step": last_step,
        "num_steps": num_steps,
        "num_samples": 80,
        "wall_s": 2.0,
        "split": [split] * world_size,
    }


def text_of(events, now_s=1e6, **fields):
    run = Run(path=Path("runs/made-1"), state=FINISHED, active_s=now_s, step=10, world_sizes=(2,), ran_s=5.0)
    record = RunRecord(run=run, events=events, settings={}, version="0", now_s=now_s, **fields)
    return render(run_page(record), now_s)


@pytest.mark.long
def test_a_run_of_ten_thousand_steps_makes_a_small_page_that_hides_no_extreme():
    names = ("loss", "lr", "accuracy", "norm", "<b>", "scale")
    events = [start(0.0), *(step(float(n), n, **dict.fromkeys(names, 1 / n)) for n in range(1, 10_001))]
    events[5_001]["values"]["loss"], events[7_001]["values"]["norm"] = 7.5, None
    text = text_of(events)
    assert len(text.encode()) < MOST_BYTES
    for points in re.findall(r'<polyline[^>]*points="([^"]*)"', text):
        assert len(points.split()) <= MOST_POINTS
    assert "between 0.0001 and 7.5" in text
    assert "1 value not finite" in text
    assert "mean of 76 values" in text
    assert text.count("<polyline") == len(names)


def test_many_names_ranks_launches_and_warnings_fit_on_a_page():
    events = []
    for launch in range(300):
        events.append(start(100.0 * launch, world_size=1000))
        for number in range(1, 31):
            values = {f"name {n}": math.sin(n + number) for n in range(150)} if launch > 280 else {}
            events.append(step(100.0 * launch + number, 30 * launch + number, **values))
        events.append(
            {"event": "slow", "time_s": 100.0 * launch + 40, "step": 30 * launch, "rank": 1, "times": 2.0, "cost": 0.1}
        )
        moved = {"event": "move", "time_s": 100.0 * launch + 41, "step": 30 * launch, "gain": 0.2}
        events.append({**moved, "before": [4] * 1000, "shards": [5, 3] * 500})
        events.append(epoch(100.0 * launch + 50, launch, 30 * launch + 30, world_size=1 if launch < 299 else 1000))
    text = text_of(events, damaged_lines=range(1000))
    assert len(text.encode()) < MOST_BYTES
    assert all(f">name {n}<" in text for n in range(150))
    assert "rank 1: 3 instead of 4" in text
    assert text.count("was slow up to step") + text.count("hards moved at step") == 30, "the last ones"


def test_how_each_launch_ended_is_told():
    events = [
        *(start(0.0), step(1.0, 1), {"event": "checkpoint", "time_s": 1.5, "step": 1}, step(2.0, 2), step(3.0, 5)),
        *(start(1000.0), {"event": "resume", "time_s": 1000.0, "step": 1, "checkpoint": "c"}, step(1001.0, 6)),
        {"event": "preempted", "time_s": 1002.0, "step": 6, "signal": "SIGTERM", "rank": 0, "saved": True},
        *(start(2000.0, 4), {"event": "resume", "time_s": 2000.0, "step": 6, "checkpoint": "c"}, step(2001.0, 9)),
    ]
    found = launches.launches_of(events, is_running=True, now_s=2005.0)
    assert [launch.how for launch in found] == [
        "killed or failed at step 5",
        "stopped by SIGTERM at step 6",
        "running at step 9",
    ]
    assert [(launch.world_size, launch.resumed_at) for launch in found] == [(2, None), (2, 1), (4, 6)]
    assert found[2].ended_s == 2005.0
    assert [launch.is_broken for launch in found] == [True, False, False]
    over = launches.launches_of(events, is_running=False, now_s=2005.0)
    assert [launch.is_broken for launch in over] == [True, False, True]
    ended = [*events, {"event": "end", "time_s": 2002.0, "step": 9}]
    assert launches.launches_of(ended, is_running=False, now_s=3000.0)[-1].how == "finished at step 9"


def test_the_memory_of_a_gpu_around_the_first_step_is_shown_for_the_newest_launch():
    used = {"total_bytes": 80_000_000_000, "used_before_bytes": 3_000_000_000, "reserved_after_bytes": None}
    old, new = ({"event": "memory", "time_s": 1.0, "step": 1, "used_after_bytes": size, **used} for size in (1, 10**10))
    text = text_of([start(0.0), old, step(1.0, 1), start(2.0), new, step(3.0, 2)])
    assert text.count("GPU") == 1
    assert re.search("3.00 GB .* 10.00 GB .* 80.00 GB", text)


def test_a_curve_shows_what_counts_and_not_what_was_done_again():
    events = [start(0.0), step(1.0, 1, loss=3.0), step(2.0, 2, loss=99.0)]
    events += [start(3.0), {"event": "resume", "time_s": 3.0, "step": 1}, step(4.0, 2, loss=2.0)]
    text = text_of(events)
    assert "between 2 and 3" in text
    assert "resumed after step 1" in text


def test_a_page_of_an_empty_journal_is_a_page():
    assert "<h1>made-1" in text_of([])
    assert "no event log" in text_of([])


@pytest.mark.parametrize("kind", ["step", "evaluate"])
def test_the_last_value_is_at_the_top_of_a_page_also_if_it_is_not_finite(kind):
    run = Run(path=Path("runs/made-1"), state=FINISHED, active_s=0.0)
    events = [start(0.0), *({**step(1.0, n, loss=loss), "event": kind} for n, loss in ((1, 0.5), (2, None)))]
    page = run_page(RunRecord(run=run, events=events, settings={}, version="0", now_s=0.0))
    [(_, value, where)] = [tile for tile in page.tiles if tile[0] == "loss"]
    assert (value, where) == ("not finite", "at step 2" if kind == "step" else "last evaluation")


def test_a_page_tells_what_went_wrong_and_of_which_steps_its_speed_is():
    failed = {"event": "checkpoint_failed", "time_s": 1.5, "step": 7, "error": "disk full"}
    steady = {"steady_samples": 40, "steady_s": 0.5}
    for measured, rate, is_steady in ((steady, "80.0", True), ({}, "40.0", False)):
        run = Run(path=Path("runs/made-1"), state=FINISHED, active_s=0.0)
        events = [start(0.0), failed, {**epoch(1.0, 0, 10), **measured}, {**epoch(2.0, 0, 20), "steady_samples": 0}]
        page = run_page(RunRecord(run=run, events=events, settings={}, version="0", now_s=0.0))
        tiles = {name: (value, text) for name, value, text in page.tiles}
        assert (tiles["samples/s"][0], bool(tiles["samples/s"][1])) == (rate, is_steady)
        assert tiles["steps"][1] == "1 epoch ended", "with two passes"
        assert sum("step 7" in remark and "disk full" in remark for remark in page.sections[0].remarks) == 1


def test_values_that_are_not_finite_are_counted_also_of_a_curve_that_has_no_others():
    curves = [
        Series(name=name, curve=thin(pairs), tone=name) for name, pairs in (("a", [(1.0, 2.0)]), ("b", [(1.0, None)] * 3))
    ]
    found = lines("loss", curves, [])
    assert (len(found.series), found.note.split()[0]) == (1, "3")
    assert lines("loss", curves[1:], []) is None


@pytest.mark.parametrize("size", [0, MOST_POINTS, 5000])
def test_thinning_keeps_extremes_ends_and_the_mean(size):
    values = [(float(n), math.sin(n) * n) for n in range(1, size + 1)]
    curve = thin([*values, (size + 1.0, None), (size + 2.0, math.inf)])
    assert curve.num_missing == 2
    assert len(curve.points) * (3 if curve.per_point > 1 else 1) <= MOST_POINTS
    if size:
        assert curve.points[-1].x == size
        assert max(p.most for p in curve.points) == max(y for _, y in values)
        assert min(p.least for p in curve.points) == min(y for _, y in values)
    for p in curve.points:
        assert p.least <= p.mean <= p.most


@pytest.mark.parametrize(("low", "high"), [(-3.2, 7.9), (1e-7, 3e-7), (5.0, 5.0)])
def test_axes_have_a_few_round_numbers(low, high):
    found = ticks(low, high, 5)
    assert 1 <= len(found) <= 6
    assert all(low - 1e-9 * abs(low) <= tick <= high + 1e-9 * abs(high) for tick in found)
    assert all(len(short(tick)) <= 7 for tick in found)


def test_options_and_what_stands_between_backticks_are_code_and_nothing_else_is_html():
    assert with_code("help, or --accumulate-by.") == 'help, or <code class="option">--accumulate-by</code>.'
    assert with_code("no `single` row < 1, `a<b>`") == "no <code>single</code> row &lt; 1, <code>a&lt;b&gt;</code>"


def test_where_the_time_went_is_of_the_last_number_of_processes():
    events = [start(0.0), epoch(1.0, 0, 10, world_size=4), epoch(2.0, 1, 20), epoch(3.0, 2, 30)]
    splits, num_steps = training.splits_of(events)
    assert (len(splits), num_steps) == (2, 20)
    assert splits[0]["data"] == pytest.approx(0.2)
    text = text_of(events)
    assert "Mean of 20 steps." in text
    assert "waiting for the loader" in text


def test_operations_that_a_run_allows_are_at_the_top_of_its_page_where_results_vary():
    def count(device):
        return text_of([start(0.0, nondeterministic=["ctc_loss"], device=device)]).count("ctc_loss")

    assert count("cuda") == count("cpu") + 1
