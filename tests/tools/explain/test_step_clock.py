"""Where the time of a step goes, as runs measure it."""

import re
import time
from functools import partial
from types import SimpleNamespace

import pytest
import torch
from click.testing import CliRunner
from explain_scripts import train

from lockstep._events.measure.split import bound_of, shares_of
from lockstep._events.measure.step_clock import LOADING, StepClock
from lockstep._plan.blocks import even_blocks
from lockstep._plan.shards import plan_step
from lockstep._tools.audit.auditor import AuditTimer
from lockstep._tools.runs import command as runs

pytestmark = pytest.mark.timeout(60)


def epoch_of(events):
    (event,) = [event for event in events if event["event"] == "epoch"]
    return event


@pytest.mark.parametrize(("delay", "part"), [("data_s", "data"), ("backward_s", "backward")])
def test_a_delay_is_counted_where_it_is_and_all_parts_add_up_to_the_pass(crew, delay, part):
    nproc = 2
    seconds = 0.002 if delay == "data_s" else 0.016  # a sample, of which there are 8 a step
    event = epoch_of(crew(nproc, partial(train, 20, **{delay: seconds}), shards=nproc)[0])
    assert len(event["split"]) == nproc
    for split in event["split"]:
        assert split[part] >= 20 * 0.016 / (nproc if delay == "data_s" else 1)
    assert sum(event["split"][0].values()) == pytest.approx(event["wall_s"], rel=0.02)
    assert event["bound"] == bound_of(shares_of(event["split"]))


@pytest.mark.parametrize(
    ("strategy", "delay", "activity"),
    [
        ("exact", "backward_s", "backward"),
        ("ddp", "forward_s", "forward"),
        pytest.param("fsdp", "script_s", "script", marks=pytest.mark.long),
    ],
)
def test_a_slow_rank_is_named_with_what_it_is_slow_in_and_the_others_time_is_waiting(crew, strategy, delay, activity):
    seconds = 0.02 if delay == "data_s" else 0.08
    events = crew(2, partial(train, 50, slow_rank=1, **{delay: seconds}), strategy=strategy, shards=2)[0]
    (slow,) = [event for event in events if event["event"] == "slow"]
    assert (slow["rank"], slow["activity"]) == (1, activity)
    assert slow["step"] <= 50
    assert slow["times"] > 1.2
    assert 0.3 < slow["cost"] < 1
    quick, late = epoch_of(events)["split"]
    assert quick["waiting"] > late["waiting"]


def test_ranks_that_are_equally_busy_are_not_called_slow(crew):
    events = crew(2, partial(train, 100, forward_s=0.004), shards=2)[0]
    assert not [event for event in events if event["event"] == "slow"]


def test_saving_is_not_waiting_for_data(crew):
    (split,) = epoch_of(crew(1, partial(train, 8, save_s=1.0), checkpoint_every=4)[0])["split"]
    assert split["checkpoint"] >= 1
    assert split["data"] < split["checkpoint"]


def test_lockstep_runs_shows_where_the_time_of_one_run_went(crew):
    crew(2, partial(train, 50, slow_rank=1, forward_s=0.08), shards=2)
    shown = CliRunner().invoke(runs.command, ["run"], catch_exceptions=False).output.splitlines()
    assert any(line.startswith("epoch 1, 50 steps: ") for line in shown)
    (row,) = [line for line in shown if line.startswith("the forward pass and the loss")]
    assert float(re.search(r"([0-9.]+) \(rank 1\)$", row)[1]) >= 20  # ms, and the most of all ranks
    assert any(line.startswith("rank 1 on ") and "the forward pass took it" in line for line in shown)


def test_an_optimizer_that_runs_the_phase_itself_is_timed_as_one():
    clock = StepClock(SimpleNamespace(pause_s=0.0), torch.device("cpu"))
    clock.begin_pass(0, 1, 1, 0)
    clock.begin_step(1)
    clock.before_optimizer(None)
    clock.begin_phase(0)  # of the closure
    clock.end_phase(0)
    time.sleep(0.05)
    clock.after_optimizer()
    clock.end_step(1, 8)
    assert clock.so_far["optimizer"] >= 0.05


def test_after_a_pass_that_was_left_in_a_step_nobody_is_said_to_wait_for_the_loader():
    clock = StepClock(SimpleNamespace(pause_s=0.0), torch.device("cpu"))
    clock.begin_pass(0, 1, 1, 0)
    assert clock.doing == LOADING
    clock.begin_step(1)
    clock.end_pass(1, exhausted=False)
    clock.mark((LOADING, time.perf_counter()))  # as the loop does once the ranks have agreed
    assert "between two passes" in clock.doing
    clock.begin_pass(0, 1, 1, 1)
    assert clock.doing == LOADING


def test_waiting_for_the_samples_of_an_audited_shard_is_not_being_busy():
    clock = StepClock(SimpleNamespace(pause_s=0.0), torch.device("cpu"))
    clock.begin_pass(0, 1, 1, 0)
    clock.begin_step(1)
    clock.begin_phase(0)
    time.sleep(0.05)
    plan = plan_step(1, (8,), 0, even_blocks(1, 1))
    AuditTimer(clock).begin_shard(plan.micro_batches[0])
    AuditTimer(clock).end_shard()
    seconds = clock.so_far
    assert seconds["waiting"] >= 0.05
    assert clock.report(plan)[-1] == pytest.approx(sum(clock.so_far.values()) - seconds["waiting"] - seconds["logging"])
