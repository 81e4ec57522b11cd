"""The contract: for the same number of shards, any number of processes gives the same answer.

``stock``: PyTorch's own all-reduce, up to rounding. ``exact``: to the bit, which is what ``shards=`` promises; see
``test_to_the_bit`` for more of it.
"""

import collections

import pytest
import tasks
import torch

from lockstep.base.config import PRECISIONS

pytestmark = pytest.mark.timeout(60)


def strategy(promise, nproc):
    return "exact" if promise == "exact" else {1: "single", 2: "ddp"}.get(nproc, "ddp, in buckets")


def assert_same(one, other, tolerance=2e-5, promise="stock"):
    assert one.keys() == other.keys()
    tolerance = 0 if promise == "exact" else tolerance
    for name in one:
        torch.testing.assert_close(
            one[name], other[name], rtol=tolerance, atol=tolerance, equal_nan=True, msg=lambda m, n=name: f"{n}: {m}"
        )


def run_at(crew, world_sizes, shards, promise, task, *args, **settings):
    """The result of rank 0 at each world size, after checking that all ranks of a run agree exactly."""
    results = []
    for nproc in world_sizes:
        by_rank = crew(nproc, task, *args, shards=shards, strategy=strategy(promise, nproc), **settings)
        for other in by_rank[1:]:
            assert_same(by_rank[0]["state"], other["state"], tolerance=0)
            for name in ("norms", "means"):
                assert repr(other.get(name)) == repr(by_rank[0].get(name))  # NaN too
        results.append(by_rank)
    return results


@pytest.mark.parametrize(
    ("promise", "kind"),
    [*(("stock", kind) for kind in tasks.MODELS.values()), ("exact", tasks.ChannelsLast), ("exact", tasks.Tied)],
)
def test_every_world_size_gives_the_same_weights_buffers_and_optimizer_state(standing_crew, promise, kind):
    alone, *others = run_at(
        standing_crew, [1, 2, 4] if kind is tasks.Net else [1, 3], 4, promise, tasks.classify, kind, 56, 16
    )
    tolerance = 0.02 if kind is tasks.BFloat16 else 2e-5
    for by_rank in others:
        assert_same(alone[0]["state"], by_rank[0]["state"], tolerance, promise)
        assert by_rank[0]["rate"] == alone[0]["rate"]
        assert by_rank[0]["steps"] == alone[0]["steps"] == 8
        close = 0.05 if kind is tasks.BFloat16 else 1e-4
        for name in ("norms", "means"):
            assert by_rank[0][name] == pytest.approx(alone[0][name], rel=0 if promise == "exact" else close, abs=0)


@pytest.mark.parametrize("length", [1, 5, 17])
def test_data_sets_shorter_than_a_batch_or_than_the_world_and_ragged_ends_give_the_same_answer(standing_crew, length):
    alone, *others = run_at(standing_crew, [1, 4], 4, "stock", tasks.classify, tasks.Plain, length, 16)
    for by_rank in others:
        assert_same(alone[0]["state"], by_rank[0]["state"])
        assert {one["steps"] for one in by_rank} == {alone[0]["steps"]}


def test_every_sample_is_used_once_an_epoch_and_nobody_does_the_others_work(standing_crew):
    for nproc in (1, 3):
        by_rank = standing_crew(nproc, tasks.classify, tasks.Plain, 37, 8, shards=5)
        for epoch in range(2):
            steps = range(epoch * 5 + 1, epoch * 5 + 6)
            used = [i for one in by_rank for step, indices in one["seen"] if step in steps for i in indices]
            assert sorted(used) == list(range(37))
        shares = collections.Counter({rank: sum(len(s) for _, s in one["seen"]) for rank, one in enumerate(by_rank)})
        assert max(shares.values()) <= 2 * 37 * 2 / max(nproc, 2) + 8


def test_loader_workers_change_nothing(standing_crew):
    alone, *others = (
        standing_crew(n, tasks.classify, tasks.Net, 56, 16, 2, w, shards=4) for n, w in ((1, 0), (1, 2), (2, 1))
    )
    for by_rank in others:
        assert_same(alone[0]["state"], by_rank[0]["state"], promise="exact")


@pytest.mark.parametrize("zero_at", ["start", "end"])
def test_it_does_not_matter_where_gradients_are_cleared(standing_crew, zero_at):
    reference = standing_crew(1, tasks.classify, tasks.Net, 40, 16, 2, 0, "start", shards=4)[0]
    for nproc in (1, 2):
        one = standing_crew(nproc, tasks.classify, tasks.Net, 40, 16, 2, 0, zero_at, shards=4)[0]
        assert_same(reference["state"], one["state"], promise="exact")


def test_weights_of_shards_are_exact_for_any_split(standing_crew):
    results = run_at(standing_crew, [1, 3], 4, "stock", tasks.classify, tasks.Net, 56, 16, 2, 0, "end", False, True)
    for by_rank in results[1:]:
        assert_same(results[0][0]["state"], by_rank[0]["state"])


UNUSUAL = [
    tasks.train_gan,
    tasks.train_average,
    tasks.train_thawed,
    tasks.keep_gradients,
    tasks.backward_twice,
    tasks.backward_twice_through_batch_norm,
    tasks.forward_after_the_backward_pass,
    tasks.forward_after_the_backward_pass_with_batch_norm,
    tasks.forward_after_the_update,
    tasks.forward_after_the_update_with_batch_norm,
    tasks.main_alone_afterwards,
    tasks.train_code_book,
    tasks.train_hand_norm,
    tasks.train_shared,
    tasks.freeze_in_the_shards,
]
NOWHERE_ELSE = [tasks.keep_gradients, tasks.main_alone_afterwards, tasks.train_hand_norm, tasks.train_shared]
"""To the bit, the others are in the corpus, or among the idioms."""


@pytest.mark.parametrize(
    ("promise", "task"), [*(("stock", task) for task in UNUSUAL), *(("exact", task) for task in NOWHERE_ELSE)]
)
def test_unusual_loops_give_the_same_answer(standing_crew, promise, task):
    alone, *others = run_at(standing_crew, [1, 3], 3, promise, task, 34, 12)
    for by_rank in others:
        assert_same(alone[0]["state"], by_rank[0]["state"], promise=promise)


def test_sparse_gradients_give_the_same_answer_with_pytorchs_own_sum(standing_crew):
    alone, *others = run_at(standing_crew, [1, 3], 3, "stock", tasks.train_sparse, 34, 12)
    for by_rank in others:
        assert_same(alone[0]["state"], by_rank[0]["state"])


def test_a_parameter_is_unused_if_no_shard_used_it_at_every_world_size(standing_crew):
    settings = {"find_unused_parameters": True}
    alone, *others = run_at(standing_crew, [1, 3], 4, "stock", tasks.train_unused, 64, 8, **settings)
    never = {"never.bias", "never.weight"}
    assert all(never <= set(names) for names in alone[0]["without"])
    assert len({tuple(names) for names in alone[0]["without"]}) > 1, "no step leaves the other layer out: a weak test"
    for by_rank in others:
        assert_same(alone[0]["state"], by_rank[0]["state"])
        assert all(one["without"] == alone[0]["without"] for one in by_rank)


@pytest.mark.parametrize("precision", [name for name in PRECISIONS if name != "32-true"])
def test_every_precision_gives_the_same_answer_up_to_its_rounding_with_pytorchs_own_sum(standing_crew, precision):
    task, eps = tasks.classify_with_eps, 1e-3 if precision == "16-true" else 1e-8
    alone, *others = run_at(standing_crew, [1, 3], 4, "stock", task, eps, tasks.Net, 40, 16, precision=precision)
    for by_rank in others:
        assert_same(alone[0]["state"], by_rank[0]["state"], 0.02 if precision.endswith("true") else 2e-4)


def test_an_average_starts_from_rank_0_on_all_ranks(standing_crew):
    one, two = standing_crew(2, tasks.average_of_another_start, 24, 8)
    assert_same(one["state"], two["state"], tolerance=0)
