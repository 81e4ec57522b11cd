"""Shards move when ranks differ, and what they carry from batch to batch moves with them."""

import copy
import itertools
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace

import pytest
import torch
from exchange_ranks import Exchanges

from lockstep._loop import balance
from lockstep._loop.balance import Balance
from lockstep._loop.between import Agreement
from lockstep._plan.balance import AHEAD, BACKWARD, BUSY, DATA, FORWARD, IDLE, IN_SHARDS, SAMPLES, SCRIPT
from lockstep._plan.blocks import blocks_of
from lockstep._prepare.per_shard import PerShard
from lockstep._state.checkpoint.tree import take_apart
from lockstep._state.recovery.run_state import RunState

pytestmark = pytest.mark.timeout(30)
START = {"steps": [], "last": torch.zeros(1)}


class Rank:
    """A rank that trains with moving shards: it runs nothing but what shards carry."""

    def __init__(self, exchanges, rank, num_shards):
        self.rank, self.size = rank, exchanges.size
        self._exchanges, self.num_shards, self.micro = exchanges, num_shards, None
        state = RunState()
        self.balance = Balance(self.size, num_shards, None, None, lambda: state.registered.values())
        state.register("a table", {"of": "the script"})
        self.carried = [
            PerShard(name, START, self, self, lambda: self.balance.moves.in_force, take_apart, ()) for name in ("a", "b")
        ]
        for number, item in enumerate(self.carried):
            state.register(f"carried {number}", item)

    def all_gather_object(self, value):
        return copy.deepcopy(self._exchanges.gather(self.rank, value))  # as what is sent

    def check_outside(self, call):
        pass

    def step(self, number):
        """A step: each shard adds its number to what it carries."""
        self.balance.begin_step(number)
        for shard in self.balance.moves.at(number).by_rank[self.rank]:  # as loaders plan it
            self.micro = SimpleNamespace(shard=shard)
            for factor, item in enumerate(self.carried, 1):
                item.value["steps"].append(number)
                item.value = {**item.value, "last": item.value["last"] + factor * (10**shard)}
        self.micro = None
        self.balance.end_step(number, 1)
        agree(self.balance, number)

    def values(self):
        own = self.balance.moves.in_force.by_rank[self.rank]
        values = {shard: [item.of(shard) for item in self.carried] for shard in own}
        return {shard: [([*of["steps"]], of["last"].item()) for of in found] for shard, found in values.items()}


def agree(balance, step):
    """What all ranks agree on after the step, where moves are the only topic: without a message."""
    Agreement(None, [balance], [].append).agree(step)


def on_all_ranks(world_size, num_shards, run):
    exchanges = Exchanges(world_size)
    with ThreadPoolExecutor(world_size) as pool:
        return list(pool.map(lambda rank: run(Rank(exchanges, rank, num_shards)), range(world_size)))


SIZES = {
    "one way and back": [(1, 3), (2, 2), (3, 1)],
    "all ranks at once": [(1, 1, 4), (4, 1, 1), (2, 2, 2)],
    "most of them": [(1, 5), (5, 1), (3, 3)],
    "to the same place again": [(1, 3), (1, 3), (2, 2)],
}


def check(world_size, num_shards, by_rank, num_steps):
    steps = list(range(1, num_steps + 1))
    everyone = {shard: value for found in by_rank for shard, value in found.items()}
    assert sorted(everyone) == list(range(num_shards)) == sorted(itertools.chain(*by_rank))
    for shard, found in everyone.items():
        assert found == [(steps, factor * num_steps * 10**shard) for factor in (1, 2)], f"shard {shard}"


@pytest.mark.parametrize("ahead", [1, 2])
@pytest.mark.parametrize("how", SIZES)
def test_what_shards_carry_moves_with_them_to_the_step_where_they_move(how, ahead):
    """Each move is decided some steps before it is in force."""
    sizes = SIZES[how]
    world_size, num_shards = len(sizes[0]), sum(sizes[0])
    num_steps = (1 + ahead) * len(sizes) + 1

    def run(rank):
        seen = []
        rank.balance.begin_pass(0, 1, None, 0)
        moves = iter(sizes)
        for number in range(1, num_steps + 1):
            if not rank.balance.moves.is_pending and (move := next(moves, None)):
                rank.balance.moves.move(number + ahead, blocks_of(move))
            rank.step(number)
            seen.append((rank.balance.moves.in_force.sizes, rank.values()))
        return seen

    by_step = list(zip(*on_all_ranks(world_size, num_shards, run), strict=True))
    for number, ranks in enumerate(by_step, 1):
        check(world_size, num_shards, [values for _, values in ranks], number)
    assert [blocks for blocks, _ in itertools.groupby(ranks[0][0] for ranks in by_step)][-1] == sizes[-1]


@pytest.mark.parametrize("how", SIZES)
def test_what_shards_carry_moves_with_them_if_the_pass_ends_before_the_move(how):
    sizes = SIZES[how]
    world_size, num_shards = len(sizes[0]), sum(sizes[0])

    def run(rank):
        for number, move in enumerate(sizes, 1):
            rank.balance.begin_pass(number, None, None, 0)
            rank.balance.moves.move(number + 10, blocks_of(move))
            rank.step(number)
            rank.balance.flush()
            assert rank.balance.moves.is_pending, "steps of this pass are planned"
            rank.balance.end_pass(number, exhausted=False)
            rank.balance.flush()
            assert rank.balance.moves.in_force.sizes == move
        return rank.values()

    check(world_size, num_shards, on_all_ranks(world_size, num_shards, run), len(sizes))


class Events:
    def __init__(self):
        self.moves = []

    def write(self, kind, **fields):
        assert kind == "move"
        self.moves.append((fields["before"], fields["shards"], fields["step"]))


@pytest.mark.parametrize("reads_all", [False, True])
def test_a_rank_reports_what_its_shards_take_and_how_long_it_waits(reads_all, monkeypatch):
    """Of the script's time, what is in the phase counts for its shards, and of the time for data,
    all of it where a rank reads those of its shards alone."""
    now_s = [100.0]
    monkeypatch.setattr(balance, "perf_counter", lambda: now_s[0])
    row = [0.0] * (BUSY + 1)
    row[SAMPLES], row[DATA], row[FORWARD], row[BACKWARD], row[SCRIPT], row[BUSY] = 4.0, 1.0, 2.0, 3.0, 6.0, 12.0
    clock = SimpleNamespace(report=lambda plan: list(row), exposed_s=2.0)
    one = Balance(2, 16, clock, Events(), list)
    one.made_loader(SimpleNamespace(reads_all=reads_all, plans_in_worker=False), 1)
    one.begin_pass(0, None, None, 0)
    for number, (script_s, in_shards_s) in enumerate([(6.0, 8.0), (2.0, 7.0), (6.0, 8.0)], 1):
        row[SCRIPT] = script_s
        one.begin_step(number)
        one.moves.at(number + 5)  # a loader worker has planned ahead
        now_s[0] += 10.0
        one.begin_phase(0)
        now_s[0] += 10.0  # 2 of them waiting for gradients, so 3 for the script
        reported = one.report(None)
        assert reported[: BUSY + 1] == row
        assert reported[IN_SHARDS] == in_shards_s + (0.0 if reads_all else 1.0)
        assert (reported[IDLE], reported[AHEAD]) == (20.0 - 12.0, number + 5)


class Trial:
    """The balance of rank 0 of two ranks with 16 shards, of which one takes twice as long, while
    rank 1 has planned ``ahead`` steps more than the current one."""

    def __init__(self, ahead=3):
        self.events, self.ahead, self.step = Events(), ahead, 0
        clock = SimpleNamespace(receive=lambda rows: None)
        self.balance = Balance(2, 16, clock, self.events, list)

    def rows(self, shard_s):
        sizes = self.balance.moves.at(self.step).sizes
        busy = [size * seconds for size, seconds in zip(sizes, shard_s, strict=True)]
        rows = []
        for rank, size in enumerate(sizes):
            row = [0.0] * (AHEAD + 1)
            row[SAMPLES], row[BUSY], row[IN_SHARDS], row[IDLE] = size, busy[rank], busy[rank], max(busy) - busy[rank]
            row[AHEAD] = self.step + rank * self.ahead
            rows.append(row)
        return rows

    def train(self, num_steps, shard_s):
        for _ in range(num_steps):
            self.step += 1
            self.balance.begin_step(self.step)
            self.balance.receive(self.rows(shard_s))
            self.balance.end_step(self.step, 16)
            agree(self.balance, self.step)


def test_shards_move_once_for_ranks_as_slow_as_they_are_and_again_when_that_changes():
    trial = Trial()
    trial.balance.begin_pass(0, None, None, 0)
    trial.train(200, (1.0, 2.0))
    assert [sizes for *sizes, _ in trial.events.moves] == [[(8, 8), (11, 5)]]
    trial.train(300, (2.0, 1.0))
    assert [sizes for *sizes, _ in trial.events.moves] == [[(8, 8), (11, 5)], [(11, 5), (5, 11)]]


@pytest.mark.parametrize("ahead", [0, 1, 7, 40])
def test_a_move_begins_with_the_first_step_that_no_rank_has_planned(ahead):
    trial = Trial(ahead)
    trial.balance.begin_pass(0, None, None, 0)
    while not trial.events.moves:
        trial.train(1, (1.0, 2.0))
    decided, [(_, _, first)] = trial.step, trial.events.moves
    assert first == decided + ahead + 1
    while trial.step < first:
        assert trial.balance.moves.at(trial.step).sizes == (8, 8)
        assert trial.balance.moves.in_force.sizes == ((11, 5) if trial.step == first - 1 else (8, 8))
        trial.train(1, (1.0, 2.0))
    assert trial.balance.moves.at(first).sizes == (11, 5)


def test_first_steps_of_passes_tell_nothing():
    trial = Trial()
    for number in range(200):
        trial.balance.begin_pass(number, None, None, 0)
        trial.train(1, (1.0, 2.0))
    assert trial.events.moves == []


@pytest.mark.parametrize("loaders", [[False, False], [True]])
def test_nothing_moves_with_loaders_that_do_not_learn_of_it(loaders):
    """Of two of them, or if loader workers plan."""
    trial = Trial()
    for number, plans in enumerate(loaders, 1):
        trial.balance.made_loader(SimpleNamespace(reads_all=False, plans_in_worker=plans), number)
    trial.balance.begin_pass(0, None, None, 0)
    trial.train(200, (1.0, 2.0))
    assert trial.events.moves == []
