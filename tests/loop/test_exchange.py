"""Promises of the numbers of a phase: the same results on every rank for any blocks, one message if
they are like before, and an error if the ranks do not do the same."""

import math
import random
from dataclasses import fields

import pytest
import torch
from exchange_ranks import on_ranks

from lockstep._base.errors import DataError, LockstepError, LossError, MismatchError, PeerError, UsageError
from lockstep._sync.news import NOTHING, News

pytestmark = pytest.mark.timeout(30)
BLOCKS = [(4,), (2, 2), (1, 3), (3, 1), (1, 1, 2), (1, 1, 1, 1)]


def values_of(agreed):
    return {name: total.result for name, total in agreed.values.items()}


def failures(sizes, work):
    """The types and codes of the errors of all ranks."""
    results, _ = on_ranks(sizes, work)
    assert all(isinstance(each, LockstepError) for each in results), results
    return {(type(each), each.code) for each in results}


def test_means_and_totals_have_the_same_bits_on_every_rank_of_any_blocks():
    dice = random.Random(0)
    losses, weights = [dice.gauss(0, 10.0**shard) for shard in range(4)], [dice.random() for _ in range(4)]

    def shard(numbers, micro):
        numbers.call(weights[micro.shard], None, micro)
        numbers.add(None, {"loss": losses[micro.shard]}, micro)

    found = []
    for sizes in BLOCKS:
        results, _ = on_ranks(sizes, lambda rank: rank.phase(shard))
        found += [(agreed.divisors, values_of(agreed)) for agreed in results]
    assert all(each == found[0] for each in found)
    total = math.fsum(weights)
    mean = math.fsum(map(float.__mul__, losses, weights)) / total
    assert found[0] == ([total], {"loss": mean})


def test_tensors_are_added_in_the_order_of_the_shards_whoever_has_them():
    parts = [torch.tensor([1e16]), torch.tensor([1.0]), torch.tensor([-1e16]), torch.tensor([1.0])]

    def shard(numbers, micro):
        numbers.add(None, {"sum": parts[micro.shard].double()}, micro, "sum")

    for sizes in BLOCKS:
        results, _ = on_ranks(sizes, lambda rank: values_of(rank.phase(shard)))
        # (1e16 + 1 - 1e16) + 1
        assert [each["sum"].item() for each in results] == [1.0] * len(sizes)


def test_the_factor_of_a_backward_call_is_the_share_of_the_samples_the_weight_or_one():
    def work(rank):
        factors = []

        def shard(numbers, micro):
            factors.append(
                [numbers.call(None, None, micro), numbers.call(2.5, None, micro), numbers.call(None, "sum", micro)]
            )

        return factors, rank.phase(shard, num_samples=5).divisors

    results, _ = on_ranks((1, 1), work)
    assert results == [([[3 / 5, 2.5, 1.0]], [None, 5.0, None]), ([[2 / 5, 2.5, 1.0]], [None, 5.0, None])]


@pytest.mark.parametrize("adds_first", [False, True])
def test_a_value_counts_by_its_own_weight_else_by_that_of_the_last_backward_call_else_by_samples(adds_first):
    def shard(numbers, micro):
        def add():
            numbers.add(None, {"called": float(micro.shard)}, micro)
            numbers.add([1.0, 9.0][micro.shard], {"own": float(micro.shard)}, micro)

        if adds_first:
            add()
        numbers.call([1.0, 3.0][micro.shard], None, micro)
        if not adds_first:
            add()

    def plain(numbers, micro):
        numbers.add(None, {"samples": float(micro.shard)}, micro)

    results, _ = on_ranks((1, 1), lambda rank: [values_of(rank.phase(each, num_samples=5)) for each in (shard, plain)])
    assert results == [[{"called": 3 / 4, "own": 9 / 10}, {"samples": 2 / 5}]] * 2


def test_a_shard_without_a_value_is_no_zero_and_one_of_weight_0_is_left_out_even_if_it_is_nan():
    def shard(numbers, micro):
        if micro.shard != 1:
            numbers.add(0.0 if micro.shard == 2 else 1.0, {"loss": [2.0, None, math.nan, 4.0][micro.shard]}, micro)

    for sizes in BLOCKS:
        results, _ = on_ranks(sizes, lambda rank: [values_of(rank.phase(shard)) for _ in range(2)])
        assert results == [[{"loss": 3.0}] * 2] * len(sizes)


def test_what_a_shard_adds_again_under_a_name_counts_too():
    """A mean by its weight, and a count exactly, also once it is too large for a float."""
    means, counts = [(1.0, 2.0), (3.0, 5.0), (2.0, 11.0)], [1, 2**53 - 1, 2**53 + 1, 7]

    def shard(numbers, micro):
        for weight, value in means:
            numbers.add(weight, {"mean": value + micro.shard}, micro)
        for count in counts:
            numbers.add(None, {"count": count + micro.shard, "sum": count / 4}, micro, "sum")

    total, weight = sum((value + shard) * w for w, value in means for shard in range(4)), 4 * sum(w for w, _ in means)
    expected = {"mean": total / weight, "count": 4 * sum(counts) + 6 * len(counts), "sum": sum(counts)}
    for sizes in BLOCKS:
        results, _ = on_ranks(sizes, lambda rank: [values_of(rank.phase(shard)) for _ in range(2)])
        assert results == [[expected] * 2] * len(sizes)


def test_a_rank_without_samples_gets_the_same_values():
    def shard(numbers, micro):
        numbers.call(None, None, micro)
        numbers.add(None, {"loss": 1.0 + micro.shard}, micro)

    results, exchanges = on_ranks((1, 1, 1), lambda rank: [values_of(rank.phase(shard, size)) for size in (3, 3, 2)])
    assert results == [[{"loss": 2.0}, {"loss": 2.0}, {"loss": 1.5}]] * 3
    assert exchanges.num_pages == 1, "fewer values than before need no page"


def add_names(*names):
    return lambda numbers, micro: [numbers.add(None, {name: value}, micro) for name, value in names]


@pytest.mark.parametrize(
    ("shard", "times"),
    [
        (add_names(("loss", 1.0)), 0),
        (add_names(("loss", 1.0), ("new", 2.0)), 1),
        (lambda numbers, micro: numbers.call(None, None, micro), 1),
        (lambda numbers, micro: numbers.add(None, {"table": torch.ones(2)}, micro, "sum"), 3),
        (lambda numbers, micro: numbers.add(None, {"large": 2**53 + 1}, micro, "sum"), 3),
    ],
    ids=["as before", "a new name", "a new call", "a tensor", "a large integer"],
)
def test_pages_are_exchanged_only_for_what_is_new_or_fits_into_no_row(shard, times):
    def work(rank):
        rank.phase(add_names(("loss", 1.0)))
        return [values_of(rank.phase(shard)) for _ in range(3)]

    results, exchanges = on_ranks((2, 2), work)
    assert exchanges.num_pages == 1 + times
    assert len(exchanges.rows) == 4
    assert all(len({len(row) for row in rows}) == 1 for rows in exchanges.rows), "ranks have rows of different lengths"
    assert not [each for each in results if isinstance(each, Exception)]


def test_what_one_rank_alone_has_is_foreseen_by_all_from_then_on():
    def work(rank):
        def shard(numbers, micro):
            if micro.shard == 3:
                numbers.add(None, {"last": 7.0}, micro)

        return [values_of(rank.phase(shard)) for _ in range(3)]

    results, exchanges = on_ranks((2, 2), work)
    assert results == [[{"last": 7.0}] * 3] * 2
    assert exchanges.num_pages == 1


def test_the_phases_of_a_step_are_foreseen_each_by_itself():
    def work(rank):
        for step in (1, 2):
            rank.phase(add_names(("first", 1.0)), step=step)
            rank.phase(add_names(("second", 1.0)), phase=1, step=step)

    _, exchanges = on_ranks((1, 1), work)
    assert exchanges.num_pages == 2
    assert len({len(rows[0]) for rows in exchanges.rows[2:]}) == 1, "a phase takes room for the names of another"


def test_a_name_that_is_used_no_more_takes_no_room_after_a_while():
    def work(rank):
        rank.phase(add_names(("loss", 1.0), ("once", 1.0)))
        for _ in range(60):
            rank.phase(add_names(("loss", 1.0)))

    _, exchanges = on_ranks((1, 1), work)
    lengths = [len(rows[0]) for rows in exchanges.rows]
    assert lengths[1] > lengths[-1]
    assert sorted(lengths[1:], reverse=True) == lengths[1:]


def test_each_phase_of_a_step_has_a_form_of_its_own():
    def work(rank):
        for step in range(1, 5):
            rank.phase(lambda numbers, micro: numbers.call(None, None, micro), phase=0, step=step)
            rank.phase(lambda numbers, micro: numbers.call(1.0, None, micro), phase=1, step=step)

    _, exchanges = on_ranks((1, 1), work)
    assert exchanges.num_pages == 2, "one for each phase of the first step"


def test_what_ranks_have_new_reaches_all_in_rank_order_and_once():
    def news_of(rank):
        return News([(0, rank), (1, 7)], [(rank, 0)], [rank, 7], [f"look {rank}", "look"], [5], rank == 1)

    results, _ = on_ranks((1, 1), lambda rank: rank.phase(add_names(), news=news_of(rank._rank)).news)
    everyones = News([(0, 0), (1, 7), (0, 1)], [(0, 0), (1, 0)], [0, 7, 1], ["look 0", "look", "look 1"], [5, 5], True)
    assert results == [everyones] * 2


@pytest.mark.parametrize("field", [each.name for each in fields(News)])
def test_news_of_each_kind_on_one_rank_reaches_the_other(field):
    alone = {"has_other_parameters": True}.get(field, [3])

    def work(rank):
        rank.phase(add_names(("loss", 1.0)))
        return rank.phase(add_names(("loss", 1.0)), news=News(**{field: alone}) if rank._rank else NOTHING).news

    results, exchanges = on_ranks((1, 1), work)
    assert [getattr(news, field) for news in results] == [alone] * 2
    assert exchanges.num_pages == 2


def test_one_rank_exchanges_nothing():
    def shard(numbers, micro):
        numbers.call(2.0, None, micro)
        numbers.add(None, {"loss": float(micro.shard)}, micro)

    [found], exchanges = on_ranks((4,), lambda rank: [values_of(rank.phase(shard)) for _ in range(2)])
    assert found == [{"loss": 1.5}] * 2
    assert (exchanges.rows, exchanges.num_pages) == ([], 0)


def test_weights_that_sum_to_zero_have_no_gradient():
    assert failures((1, 1), lambda rank: rank.phase(lambda numbers, micro: numbers.call(0.0, None, micro))) == {
        (LossError, "zero-weights")
    }


@pytest.mark.parametrize("sizes", [(2,), (1, 1)])
def test_a_weighted_call_that_a_step_leaves_out_has_no_sum(sizes):
    def work(rank):
        def shard(numbers, micro):
            for weight in (2.0, 3.0)[: 1 if rank.step == 3 else 2]:
                numbers.call(weight, None, micro)

        return [rank.phase(shard).divisors for _ in range(4)]

    results, _ = on_ranks(sizes, work)
    assert results == [[[4.0, 6.0], [4.0, 6.0], [4.0], [4.0, 6.0]]] * len(sizes)


def test_ranks_with_batches_of_different_sizes_are_told():
    assert failures((1, 1), lambda rank: rank.phase(add_names(), num_samples=8 + rank._rank)) == {
        (DataError, "different-batch-sizes")
    }


def test_ranks_in_different_phases_are_told():
    assert failures((1, 1), lambda rank: rank.phase(add_names(), phase=rank._rank)) == {(MismatchError, "different-phases")}


def test_a_row_of_another_collective_is_told_from_one_of_the_run():
    def work(rank):
        gather = rank.gather
        rank.gather = lambda row: gather([0.0] * len(row) if rank._rank else row)
        return rank.phase(add_names())

    assert failures((1, 1), work) == {(PeerError, "foreign-collective")}


@pytest.mark.parametrize("sizes", [(2,), (1, 1)])
def test_a_call_that_is_weighted_in_one_shard_only_is_refused(sizes):
    def shard(numbers, micro):
        numbers.call(1.0 if micro.shard else None, None, micro)

    assert failures(sizes, lambda rank: rank.phase(shard)) == {(UsageError, "different-weightings")}


def test_ranks_whose_passes_begin_with_different_batches_are_told_once_and_not_of_equal_ones():
    def work(rank):
        rank.peers.same_data.note("samples 0 to 7")
        rank.phase(add_names())
        rank.peers.same_data.note(f"samples {rank._rank}")
        return rank.phase(add_names())

    assert failures((1, 1), work) == {(DataError, "different-first-batches")}
