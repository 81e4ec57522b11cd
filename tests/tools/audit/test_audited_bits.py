"""The contract with audits: what is computed once more changes no bit, on any rank, at any number
of processes.

Every step is audited, so that each rank runs shards of others between its own.
"""

import pickle

import pytest
import trainings
from bits import assert_same_bits
from contract_corpus import CORPUS, special, trained

pytestmark = pytest.mark.timeout(90)


@pytest.fixture(scope="module")
def known():
    return {}


@pytest.fixture
def unchanged(standing_crew, known):
    """``unchanged(task, ...)``: on one and three processes it gives the bits of one that is not
    audited."""

    def check(task, *args, nprocs, shards=4, **settings):
        key = pickle.dumps((task, args, shards, settings))
        if key not in known:
            known[key] = standing_crew(1, task, *args, shards=shards, **settings)[0]
        for nproc in nprocs:
            by_rank = standing_crew(nproc, task, *args, shards=shards, audit=1, **settings)
            assert_same_bits(known[key], by_rank)
            audited = {position: loss for result in by_rank for position, loss in result["audited"].items()}
            assert len(audited) >= len(known[key]["by_step"]), "not every step was audited"
            assert audited.items() <= known[key]["losses"].items()

    return check


AUDITED = {
    **{
        name: CORPUS[name]
        for name in (
            *("stream by tokens", "late buffers", "many dtypes", "reentrant blocks", "two loaders, accumulated"),
            *("two losses in phases", "scaled by the script", "a GAN", "closures of LBFGS, strong_wolfe"),
        )
    },
    "a careless body": special(trainings.train_carelessly),
}


@pytest.mark.parametrize("name", AUDITED)
def test_a_training_has_the_bits_of_one_that_is_not_audited(unchanged, name):
    training = AUDITED[name]
    unchanged(training.task, nprocs=(3,), **{"shards": 4, **training.settings})


def test_on_one_process_too(unchanged):
    unchanged(trainings.train_carelessly, nprocs=(1,))


def test_steps_smaller_than_the_shards_and_than_the_processes(unchanged):
    unchanged(trained(model="Plain", length=7, batch_size=6, weight="tokens").task, shards=6, nprocs=(2, 4))


def test_logs_and_digest_journals_are_the_same(standing_crew):
    plain, audited = (standing_crew(2, trainings.train_carelessly, shards=4, audit=audit) for audit in (0, 1))
    logged = [[event for event in one[0]["written"] if event["event"] == "step"] for one in (plain, audited)]
    assert len(logged[0]) == 6
    assert logged[0] == logged[1]
    for one, other in zip(plain, audited, strict=True):
        journals = [[line for line in result["digests"] if line["event"] == "steps"] for result in (one, other)]
        assert journals[0] == journals[1]


def test_one_shard(unchanged):
    unchanged(trainings.train_carelessly, shards=1, nprocs=(1,))
    unchanged(trained().task, shards=1, accumulate=2, nprocs=(1,))


@pytest.mark.parametrize("shards", [1, None])
def test_a_schedule_that_the_body_of_a_single_shard_steps(standing_crew, shards):
    plain, audited = (standing_crew(1, trainings.train_and_steer, "schedule", shards=shards, audit=a) for a in (0, 1))
    assert_same_bits(plain[0], audited)


@pytest.mark.parametrize(("how", "what"), [("weights", "parameter '"), ("learning rate", "a learning rate")])
def test_what_the_body_would_change_twice_is_refused_in_words(standing_crew, how, what):
    [said] = standing_crew(1, trainings.train_and_steer, how, audit=2)
    assert said.startswith(what)
    assert "inside batch.shards in step 2" in said


@pytest.mark.parametrize("shards", [1, None])
def test_gradients_of_earlier_steps_stay_when_an_audited_step_is_left(standing_crew, shards):
    [kept] = standing_crew(1, trainings.leave_an_audit, shards=shards, audit=2)
    assert kept
    assert all(kept)


def test_the_plain_step_of_a_single_device(standing_crew):
    for task in (trained().task, trainings.train_carelessly):
        [reference] = standing_crew(1, task)
        assert_same_bits(reference, standing_crew(1, task, audit=1))
