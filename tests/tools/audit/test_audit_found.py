"""Audits find a rank that computes something else, and say which."""

import pytest
import trainings

from lockstep._base.stopping import AUDIT_STATUS
from lockstep._plan.blocks import even_blocks
from lockstep._tools.audit.choice import choose

pytestmark = [pytest.mark.timeout(90), pytest.mark.quick]


@pytest.fixture
def found(standing_crew):
    """``found(nproc, wrong, ...)``: what every rank was told, and the step."""

    def run(nproc, wrong, task="", shards=4):
        results = standing_crew(nproc, trainings.train_wrongly, wrong, task, shards=shards, audit=2, seed=0)
        assert len(set(results)) == 1, "the ranks were told different things"
        return results[0]

    return run


def chosen(step, nproc, every=2):
    return choose(seed=0, step=step, every=every, num_filled=4, blocks=even_blocks(nproc, 4))


def test_a_rank_that_is_always_wrong_is_named_within_two_audits(found):
    wrong = 1
    headline, status, step = found(3, trainings.Wrong(wrong))
    assert status == AUDIT_STATUS
    assert f"last.weight: rank {wrong} (" in headline
    assert headline.endswith("is wrong")
    assert step <= 4


def test_one_flip_in_an_audited_shard_is_found_on_the_rank_that_had_it(found):
    nproc = 3
    choice = chosen(2, nproc)
    headline, status, _ = found(nproc, trainings.Wrong(choice.owner, when=(2, choice.shard)))
    assert (status, headline.split(" (")[0]) == (76, f"step 2, shard {choice.shard}, last.weight: rank {choice.owner}")
    headline, status, _ = found(nproc, trainings.Wrong(choice.auditor, when=(2, choice.shard)))
    assert (status, headline.split(" (")[0]) == (76, f"step 2, shard {choice.shard}, last.weight: rank {choice.auditor}")
    assert headline.endswith("was wrong once")


@pytest.mark.parametrize("shards", [1, None])
def test_one_flip_where_the_random_stream_of_the_step_goes_on(found, shards):
    headline, status, _ = found(1, trainings.Wrong(0, when=(2, 0)), task="dropout", shards=shards)
    assert (status, headline.split(" (")[0]) == (76, "step 2, shard 0, last.weight: rank 0")
    assert headline.endswith("was wrong once")


def test_a_parameter_is_named_with_its_model(found):
    headline, _, _ = found(3, trainings.Wrong(1), task="two models")
    assert ", last.weight of model 2: rank 1 (" in headline


def test_a_rank_that_never_repeats_its_result_is_told_from_one_that_is_wrong(found):
    headline, status, _ = found(3, trainings.Wrong(1, when="by chance"))
    assert status == AUDIT_STATUS
    assert "rank 1 (" in headline
    assert headline.endswith("does not repeat its result")


def test_of_two_ranks_that_disagree_again_both_are_named(found):
    headline, status, _ = found(2, trainings.Wrong(1))
    assert status == AUDIT_STATUS
    assert "rank 0 (" in headline
    assert "or rank 1 (" in headline


def test_what_is_not_repeatable_is_said_to_be_that(found):
    for nproc in (1, 3):
        headline, status, _ = found(nproc, trainings.Wrong(None, when="by chance"))
        assert (status, headline.split(": ")[1]) == (76, "a different result each time")


def test_a_flip_in_a_shard_that_is_not_audited_passes(found):
    choice = chosen(2, 3)
    assert found(3, trainings.Wrong(choice.owner, when=(3, choice.shard)))[:2] == (None, 0)


@pytest.mark.parametrize("task", ["two loaders", "in phases", "few samples"])
def test_every_shape_of_a_step(found, task):
    headline, status, _ = found(3, trainings.Wrong(None, when="by chance"), task=task)
    assert (status, headline.split(": ")[1]) == (76, "a different result each time")


@pytest.mark.parametrize(("nproc", "shards", "size"), [(2, 2, 1), (2, 3, 1), (3, 3, 1), (3, 3, 2), (3, 5, 2)])
def test_ranks_without_samples_do_not_keep_an_audit_waiting(standing_crew, nproc, shards, size):
    settings = {"shards": shards, "seed": 0, "timeout_s": 20.0}
    expected = [(None, 8)] * nproc
    nobody = trainings.Wrong(nproc)
    assert standing_crew(nproc, trainings.train_in_buckets, nobody, size, audit=1, **settings) == expected
    assert standing_crew(nproc, trainings.train_in_buckets, nobody, size, True, audit=1, **settings) == expected
    found = standing_crew(nproc, trainings.train_in_buckets, trainings.Wrong(0), size, audit=2, **settings)
    assert len(set(found)) == 1
    assert "last.weight: rank 0" in found[0][0]
