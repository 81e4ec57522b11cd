"""Promises of the log: values as they are, in order, and a word if they are not the same on all
ranks."""

import json
from types import SimpleNamespace

import pytest
import torch
from codes import raises

import lockstep
from lockstep._base.errors import ConfigError, UsageError
from lockstep._events.measure.log import MetricLog
from lockstep._loop.between import Agreement
from lockstep._world.comm.collectives import Collectives
from lockstep._world.comm.group import default_group

pytestmark = pytest.mark.timeout(60)


@pytest.fixture
def alone():
    rows = []
    return MetricLog(SimpleNamespace(size=1), 5, lambda row: rows.append(row[:3])), rows


def test_a_single_process_writes_each_step_at_once_and_none_is_left_out(alone):
    log, rows = alone
    for step in (1, 2, 3):
        log.add(0, step, {"loss": torch.tensor([[1.5]]), "norm": None})
        log.add(0, step, {"half": torch.tensor(0.5).bfloat16(), "step": step})
        log.end_step(step, 4)
        assert rows[step - 1 :] == [(0, step, {"loss": 1.5, "half": 0.5, "step": step})]


@pytest.mark.parametrize("value", ["0.5", torch.ones(2), [1.0]])
def test_what_is_not_one_number_is_refused_by_name(alone, value):
    with pytest.raises(ConfigError, match=r"log\(loss"):
        alone[0].add(0, 1, {"loss": value})


def test_values_that_are_of_no_training_step_are_told_apart():
    rows = []
    log = MetricLog(SimpleNamespace(size=1), 1, rows.append)
    for step in (1, 2):
        log.begin_pass(step - 1, None, 1, 0)
        log.add(0, step, {"loss": 1.0, "norm": 2.0})
        if step == 2:  # within the step
            log.evaluated(step, {"accuracy": 0.5})
            log.add(0, step, {"best": 0.5, "loss": 3.0})
        log.end_step(step, 4)
        log.flush()
        log.end_pass(step, exhausted=True)
        log.add(0, step, {"time": 1.0})
    log.flush()
    assert [(step, sorted(values), sorted(apart)) for _, step, values, apart in rows] == [
        (1, ["loss", "norm"], []),
        (1, ["time"], ["time"]),
        (2, ["best", "loss", "norm"], ["best", "loss"]),
        (2, ["time"], ["time"]),
    ]


def test_a_dropped_step_is_forgotten_and_those_before_it_are_not(alone):
    log, rows = alone
    log.add(0, 1, {"loss": 1.0})
    log.end_step(1, 4)
    log.add(0, 2, {"loss": 99.0, "of the dropped step": 1.0})
    log.abandon_step()
    log.add(0, 2, {"loss": 2.0})
    log.flush()
    assert rows == [(0, 1, {"loss": 1.0}), (0, 2, {"loss": 2.0})]


def test_ranks_of_a_script_without_a_step_do_not_wait_for_each_other():
    rows = []
    # without a process group, any message would be an error
    log = MetricLog(SimpleNamespace(size=2), 5, lambda row: rows.append(row[:3]))
    log.add(0, 0, {"accuracy": 0.5})
    log.flush()
    assert rows == [(0, 0, {"accuracy": 0.5})]


class Due:
    """Another topic, which is due after some steps. (Without its own numbers.)"""

    def __init__(self, steps):
        self.is_due, self.propose, self.settle = steps.__contains__, lambda step: [], lambda step, largest: None


def log_on_several(every, rate=0.5, due=(2, 5)):
    """How many steps were written after each, and the rows; or the error. ``rate``: what rank 1
    logs in step 2. ``due``: the steps after which the ranks agree on something else."""
    team = lockstep.join()
    rows, written = [], []
    collectives = Collectives(default_group(), None)
    log = MetricLog(collectives, every, lambda row: rows.append(row[:3]))
    agreement = Agreement(collectives, [Due(due), log], [].append)
    for step in range(1, 8):
        log.add(0, step, {"rate": rate if step == 2 and team.rank == 1 else 0.5, "nan": float("nan")})
        if team.is_main and step > 3:
            log.add(0, step, {"late": 7.0})
        log.end_step(step, 4)
        try:
            agreement.agree(step)
        except UsageError as error:
            return str(error)
        written.append(len(rows))
    log.flush()
    return written, [(step, {name: value for name, value in row.items() if name != "nan"}) for _, step, row in rows]


def test_every_rank_writes_the_values_in_order_whoever_logged_them_with_a_message_that_is_due_anyway(crew):
    for written, rows in crew(2, log_on_several, 2):
        assert rows == [(step, {"rate": 0.5, **({"late": 7.0} if step > 3 else {})}) for step in range(1, 8)]
        assert written == [0, 2, 2, 2, 4, 4, 4]


def test_what_is_not_the_same_on_all_ranks_is_told_of_on_all(crew):
    for message in crew(2, log_on_several, 1, 0.25):
        assert message.startswith("team.log(rate=...) in step 2: ")
        assert "0.5 on one rank and 0.25 on rank 1" in message
        assert "batch.add(rate=...)" in message


def train_in_range():
    """The fields of all passes and logged values, in a loop that counts its epochs itself; rank
    0's."""
    team = lockstep.join(checkpoint_every="off")
    data = torch.utils.data.TensorDataset(torch.randn(8, 2))
    model, loader = team.prepare(torch.nn.Linear(2, 1), torch.utils.data.DataLoader(data, 4))
    other = team.prepare(torch.utils.data.DataLoader(data, 8))
    for batches in (loader, loader, other, loader):
        for batch in batches:
            for (x,) in batch.shards:
                team.backward(model(x).mean())
        team.log(seen=1.0)
    team.close()
    events = [json.loads(line) for line in (team.run_dir / "events.jsonl").read_text().splitlines()]
    return [(event["event"], event["epoch"]) for event in events if event["event"] in ("epoch", "step")]


def test_outside_of_team_epochs_each_pass_over_a_loader_counts_as_an_epoch(crew):
    seen, _ = crew(2, train_in_range)
    assert [epoch for kind, epoch in seen if kind == "epoch"] == [0, 1, 0, 2]
    assert [epoch for kind, epoch in seen if kind == "step"] == [0, 1, 0, 2]


@pytest.mark.cuda
def test_values_on_a_gpu_stay_there_until_a_window_ends(alone):
    log, rows = alone
    for step in range(1, 12):
        log.add(0, step, {"norm": torch.tensor(float(step), device="cuda")})
        log.end_step(step, 4)
    assert len(rows) == 10
    log.flush()
    assert rows == [(0, step, {"norm": float(step)}) for step in range(1, 12)]


def test_of_a_window_only_its_own_steps_are_compared_and_what_ranks_lack_is_put_in_in_order():
    """Not each step logs something, and not on each rank."""
    rows, others = [], []
    collectives = SimpleNamespace(size=2, all_gather_plain=lambda mine: [mine, others])
    log = MetricLog(collectives, 4, lambda row: rows.append((row[1], row[2])))
    for step in range(1, 7):
        if step in (2, 4, 5):
            log.add(0, step, {"loss": float(step), "bad": float("nan")})
        log.end_step(step, 8)
    assert log.propose(6) is not None
    assert not rows
    others += [(0, 1, {"loss": 1.0}, ()), (0, 2, {"loss": 2.0, "bad": float("nan"), "more": 3.0}, ())]
    log.settle(6, [1, 0])
    assert [step for step, _ in rows] == [1, 2, 4]
    assert [sorted(values) for _, values in rows] == [["loss"], ["bad", "loss", "more"], ["bad", "loss"]]
    assert log.propose(7) is None
    others[:] = [(0, 5, {"loss": 7.0}, ())]
    with raises(UsageError, "log-differs"):
        log.settle(8, [1, 0]) if (log.end_step(8, 8), log.propose(8)) else None
