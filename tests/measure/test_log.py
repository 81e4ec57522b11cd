"""Promises of the log: averages over all shards by weight, in order, whoever logged what."""

import itertools
import math
import time

import pytest
import torch

import lockstep
from lockstep.base.errors import ConfigError, UsageError
from lockstep.journal.measure.log import MetricLog

pytestmark = pytest.mark.timeout(60)


@pytest.fixture
def alone():
    rows = []
    return MetricLog(1, 5, rows.append), rows


# One process


def test_values_of_a_steps_shards_are_averaged_by_weight(alone):
    log, rows = alone
    log.add(0, 1, 3.0, {"loss": 1.0, "accuracy": 0.5})
    log.add(0, 1, 1.0, {"loss": 5.0})
    log.end_step(1, 4)
    log.tick(1)
    assert rows == [(0, 1, {"loss": 2.0, "accuracy": 0.5})]


def test_a_single_process_writes_each_step_at_once(alone):
    log, rows = alone
    for step in (1, 2, 3):
        log.add(0, step, 1.0, {"loss": step})
        log.end_step(step, 4)
        log.tick(step)
        assert len(rows) == step


def test_anything_that_is_a_number_can_be_logged_and_none_is_left_out(alone):
    log, rows = alone
    values = {"int": 2, "bool": True, "tensor": torch.tensor([[1.5]]), "half": torch.tensor(0.5).bfloat16()}
    log.add(0, 1, 2.0, {**values, "norm": None, "grad": torch.tensor(3.0, requires_grad=True) * 2})
    log.flush()
    assert rows == [(0, 1, {"int": 2.0, "bool": 1.0, "tensor": 1.5, "half": 0.5, "grad": 6.0})]


@pytest.mark.parametrize("value", ["0.5", torch.ones(2), torch.ones(0), [1.0], object()])
def test_what_is_not_one_number_is_refused_by_name(alone, value):
    with pytest.raises(ConfigError, match=r"log\(loss"):
        alone[0].add(0, 1, 1.0, {"loss": value})


@pytest.mark.parametrize("weight", [-1.0, math.nan, math.inf])
def test_a_weight_is_a_count(alone, weight):
    with pytest.raises(ConfigError, match="weight"):
        alone[0].add(0, 1, weight, {"loss": 1.0})


def test_a_value_without_weight_is_absent_also_if_it_is_not_a_number(alone):
    log, rows = alone
    log.add(0, 1, 0, {"loss": math.nan, "never": 1.0})  # the mean over a shard without tokens
    log.add(0, 1, 4, {"loss": 2.0})
    log.flush()
    assert rows == [(0, 1, {"loss": 2.0})]


def test_a_dropped_step_is_forgotten_and_those_before_it_are_not(alone):
    log, rows = alone
    log.add(0, 1, 1.0, {"loss": 1.0})
    log.end_step(1, 4)
    log.add(0, 2, 1.0, {"loss": 99.0})
    log.drop()
    log.add(0, 2, 1.0, {"loss": 2.0})
    log.flush()
    assert rows == [(0, 1, {"loss": 1.0}), (0, 2, {"loss": 2.0})]


def test_flushing_nothing_writes_nothing(alone):
    log, rows = alone
    log.flush()
    log.tick(5)
    log.flush()
    assert rows == []


def test_what_is_logged_after_the_loop_belongs_to_its_last_step(alone):
    log, rows = alone
    log.add(0, 1, 4.0, {"loss": 1.0})
    log.end_step(1, 4)
    log.tick(1)
    log.add(0, 1, None, {"rate": 0.1})
    log.flush()
    assert rows == [(0, 1, {"loss": 1.0}), (0, 1, {"rate": 0.1})]


def test_what_is_logged_behind_the_shards_is_written_as_it_is(alone):
    log, rows = alone
    log.add(0, 1, 3.0, {"loss": 1.0})
    log.add(0, 1, 1.0, {"loss": 5.0})
    log.add(0, 1, None, {"rate": 0.5, "norm": torch.tensor(2.0), "nothing": None})
    log.add(0, 1, None, {"rate": 0.25})
    log.end_step(1, 4)
    log.tick(1)
    assert rows == [(0, 1, {"loss": 2.0, "rate": 0.25, "norm": 2.0})]


# Several: what each rank wrote


def script(what, rank, step):
    """(weight, values) that a rank logs in a step: a list with an item a shard."""
    if what == "all":
        return [(rank + 1.0, {"loss": step + rank, "rate": 0.5}), (1.0, {"loss": 0.0})]
    if what == "one rank only":
        return [(2.0, {"loss": float(step)})] if rank == 1 else []
    if what == "names by rank":
        return [(1.0, {f"of {rank}": float(rank), "loss": float(rank)})]
    if what == "new names on the way":
        return [(1.0, {"loss": 1.0, **({"late": 7.0} if step > 3 and rank == 0 else {})})]
    if what == "some steps":
        return [(1.0, {"loss": float(rank)})] if step % (rank + 2) == 0 else []
    if what == "behind the shards too":
        return [(None, {"rate": step / 4}), *([(2.0, {"loss": float(step)})] if rank == 0 or step % 2 else [])]
    if what == "behind the shards alone":
        return [(None, {"rate": step / 4, "nan": math.nan})] if step % 3 else []
    if what == "none values":
        return [(1.0, {"norm": None if rank == 0 else 3.0})]
    if what == "nothing":
        return []
    raise AssertionError(what)


SCRIPTS = (
    *("all", "one rank only", "names by rank", "new names on the way", "some steps"),
    *("behind the shards too", "behind the shards alone", "none values", "nothing"),
)
NUM_STEPS = 9


def expected(what, world_size):
    rows = []
    for step in range(1, NUM_STEPS + 1):
        sums, weights, common = {}, {}, {}
        for weight, values in itertools.chain(*(script(what, rank, step) for rank in range(world_size))):
            if weight is None:
                common = values
                continue
            for name, value in values.items():
                if value is not None:
                    sums[name] = sums.get(name, 0.0) + weight * value
                    weights[name] = weights.get(name, 0.0) + weight
        averages = {name: pytest.approx(sums[name] / weights[name]) for name in sums}
        rows.append((0, step, {**averages, **{name: pytest.approx(value, nan_ok=True) for name, value in common.items()}}))
    return [row for row in rows if row[2]]


def log_scripts(every):
    team = lockstep.join()
    found = {}
    for what in SCRIPTS:
        rows = []
        log = MetricLog(team.world_size, every, rows.append)
        for step in range(1, NUM_STEPS + 1):
            for weight, values in script(what, team.rank, step):
                log.add(0, step, weight, values)
            log.end_step(step, 4)
            log.tick(step)
        before_flush = len(rows)
        log.flush()
        log.flush()
        found[what] = rows, before_flush
    return found


@pytest.mark.parametrize(("nproc", "every"), [(2, 1), (3, 2), (2, 100)])
def test_every_rank_gets_the_averages_over_all_ranks_in_order_whoever_logged_what(crew, nproc, every):
    for by_rank in crew(nproc, log_scripts, every):
        for what in SCRIPTS:
            rows, _ = by_rank[what]
            assert [row for row in rows if row[2]] == expected(what, nproc), what
    if every == 1:
        assert by_rank["all"][1] >= NUM_STEPS - 2, "rows are written on the way, not only at the end"


def log_behind_a_slow_rank():
    """How long the quick rank spends in the log while the slow one has not come to its step."""
    team = lockstep.join()
    rows = []
    log = MetricLog(2, 2, rows.append)
    longest = 0.0
    for step in range(1, 5):
        if team.rank == 1 and step == 4:
            time.sleep(5.0)
        started = time.perf_counter()
        log.add(0, step, 1.0, {"loss": 1.0})
        log.end_step(step, 4)
        log.tick(step)
        if step < 4:  # a window is waited for at the end of the next
            longest = max(longest, time.perf_counter() - started)
    log.flush()
    return longest, len(rows)


def test_a_step_does_not_wait_for_the_other_ranks_log(crew):
    (longest, rows), _ = crew(2, log_behind_a_slow_rank)
    assert rows == 4
    assert longest < 4.0, "it has waited for the other rank"


def log_unlike(rate):
    team = lockstep.join()
    log = MetricLog(team.world_size, 1, lambda row: None)
    for step in (1, 2, 3):
        log.add(0, step, None, {"rate": rate if step == 2 and team.rank == 1 else 0.5})
        log.end_step(step, 4)
    try:
        log.flush()
    except UsageError as error:
        return str(error)


def test_what_is_not_the_same_on_all_ranks_behind_the_shards_is_told_of_on_all(crew):
    for message in crew(2, log_unlike, 0.25):
        assert message.startswith(
            "team.log(rate=...) in step 2, outside of batch.shards: it is 0.5 on rank 0 and 0.25 on rank 1."
        )
        assert "batch.add(rate=...) inside" in message
    assert crew(2, log_unlike, 0.5) == [None, None]


# On a GPU


@pytest.mark.cuda
def test_values_on_a_gpu_stay_there_until_a_window_ends(alone):
    log, rows = alone
    for step in range(1, 12):
        log.add(0, step, 1.0, {"loss": torch.tensor(float(step), device="cuda"), "plain": step})
        log.add(0, step, 3.0, {"loss": torch.tensor(0.0, device="cuda")})
        log.add(0, step, None, {"norm": torch.tensor(float(step), device="cuda")})
        log.end_step(step, 4)
        log.tick(step)
    assert len(rows) == 5
    log.flush()
    assert rows == [(0, step, {"loss": step / 4, "plain": float(step), "norm": float(step)}) for step in range(1, 12)]
