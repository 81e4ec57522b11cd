"""Each feature of transformers' Trainer: the same weights and the same log on one process and on two."""

import pytest

pytest.importorskip("transformers")

import trainer_features
from trainer_features import FEATURES

RESUMED = {
    "tokens, accumulation, clipping, warmup": 3,
    "fp16": 5,
    "loader workers": 9,
    "group_by_length": 4,
    "streams": 7,
    "best of steps": 9,
    "NEFTune": 5,
    "inputs for metrics": 6,  # at the end of an epoch
    "plateau": 9,
    "greedy schedule": 9,
    "tokens seen": 4,
    "LoRA": 9,
    "train() twice": 17,
    "early stopping": 2,
    "callbacks": 5,
    "optimizers=": 7,
    "eval_on_start, full determinism": 5,
}
"""Features with a state of their own, and the step after which an error ends them."""

pytestmark = [pytest.mark.long, pytest.mark.timeout(120)]


@pytest.fixture
def trained(standing_crew, tmp_path, results):
    """``trained(name, nproc)``: what a feature gives."""

    def run(name, nproc):
        if (name, nproc) not in results:
            by_rank = standing_crew(nproc, trainer_features.train, name, tmp_path / f"out{nproc}")
            assert all(each == by_rank[0] for each in by_rank)
            results[name, nproc] = by_rank[0]
        return results[name, nproc]

    return run


@pytest.mark.parametrize("name", FEATURES)
def test_a_feature_gives_the_same_weights_and_log_on_every_number_of_processes(trained, name):
    alone = trained(name, 1)
    assert trained(name, 2) == alone
    if FEATURES[name].same_as:
        assert alone[0] == trained(FEATURES[name].same_as, 1)[0]


@pytest.mark.parametrize(("name", "after"), RESUMED.items())
def test_a_feature_resumes_on_another_number_of_processes_as_if_it_had_not_been_interrupted(
    standing_crew, trained, tmp_path, name, after
):
    run = (name, tmp_path / "out", after, tmp_path / "run")
    assert all(standing_crew(2, trainer_features.train_until_interrupted, *run))
    (resumed,) = standing_crew(1, trainer_features.train, name, tmp_path / "out", 0, tmp_path / "run")
    assert resumed == trained(name, 1)


@pytest.mark.parametrize("name", [name for name, feature in FEATURES.items() if feature.like_plain])
def test_training_is_that_of_a_plain_trainer_with_the_same_global_batch(standing_crew, trained, tmp_path, name):
    (plain,) = standing_crew(1, trainer_features.train_plainly, name, tmp_path / "plain")
    _, ours, _ = trained(name, 1)
    assert len(ours) == len(plain)
    for mine, theirs in zip(ours, plain, strict=True):
        padded = {"total_flos": mine.get("total_flos")} if "total_flos" in mine else {}  # each shard is padded by itself
        assert mine == pytest.approx({**theirs, **padded}, rel=3e-3, abs=1e-6)
