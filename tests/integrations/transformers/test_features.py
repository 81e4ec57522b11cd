"""Each feature of transformers' Trainer: the same weights and the same log on one process and on
two."""

import re
import shutil
from pathlib import Path

import pytest

FEATURES = (
    "usual",
    "tokens, accumulation, clipping, warmup",
    "label smoothing, no clipping",
    "an own loss function",
    "drop_last, fractional epochs",
    "adafactor, weight decay",
    "max_steps",
    "random samples",
    "loader workers",
    "bf16",
    "fp16",
    "group_by_length",
    "batch_rebalance",
    "activation checkpointing",
    "streams",
    "best of steps",
    "save the best",
    "own compute_loss",
    "own training_step",
    "own prediction_step",
    "NEFTune",
    "several evaluation sets",
    "batch_eval_metrics",
    "inputs for metrics",
    "preprocessed logits",
    "plateau",
    "greedy schedule",
    "auto_find_batch_size",
    "tokens seen",
    "LoRA",
    "train() twice",
    "evaluate() first",
    "predict()",
    "save_model()",
    "early stopping",
    "callbacks",
    "TensorBoard",
    "optimizers=",
    "datasets",
    "model_init",
    "eval_on_start, full determinism",
    "a custom module",
    "custom collections",
    "values of all shards",
    "callbacks that look at batches",
    "logits of each word",
    "losses only",
    "generation",
)
"""See ``trainer_features``."""
LIKE_PLAIN = (
    "label smoothing, no clipping",
    "an own loss function",
    "drop_last, fractional epochs",
    "adafactor, weight decay",
)
"""Features that are compared with a plain Trainer: without random samples and dropout. Others are
in ``test_trainer_alone.py``, all at once."""
SAME_AS = {
    "loader workers": "random samples",
    "activation checkpointing": "usual",
    "auto_find_batch_size": "usual",
    "TensorBoard": "usual",
    "callbacks that look at batches": "usual",
}
"""Features of which another has the results."""
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
    "custom collections": 7,
    "callbacks that look at batches": 7,
}
"""Features with a separate state, and the step after which an error ends them."""

pytestmark = [pytest.mark.long, pytest.mark.timeout(120)]


@pytest.fixture
def trained(there, tmp_path, results):
    """``trained(name, nproc)``: what a feature gives."""

    def run(name, nproc):
        if (name, nproc) not in results:
            by_rank = there(nproc, "trainer_features.train", name, tmp_path / f"out{nproc}")
            assert all(each == by_rank[0] for each in by_rank)
            results[name, nproc] = by_rank[0]
        return results[name, nproc]

    return run


def test_every_feature_has_its_tests(there):
    (names,) = there(1, "trainer_features.names")
    assert names == FEATURES


@pytest.mark.parametrize("name", FEATURES)
def test_a_feature_gives_the_same_weights_and_log_on_every_number_of_processes(trained, name):
    alone = trained(name, 1)
    assert trained(name, 2) == alone
    if name in SAME_AS:
        assert alone[0] == trained(SAME_AS[name], 1)[0]


@pytest.mark.parametrize(("name", "after"), RESUMED.items())
def test_a_feature_resumes_on_another_number_of_processes_as_if_it_had_not_been_interrupted(
    there, trained, tmp_path, name, after
):
    assert all(there(2, "trainer_features.train_until_interrupted", name, tmp_path / "out", after, tmp_path / "run"))
    (resumed,) = there(1, "trainer_features.train", name, tmp_path / "out", 0, tmp_path / "run")
    assert resumed == trained(name, 1)


def test_a_training_is_the_same_from_every_step_on_another_number_of_processes(there, trained, tmp_path):
    [[whole]] = there(1, "trainer_resumed.train", "usual", tmp_path / "out", [tmp_path / "whole"])
    assert whole == trained("usual", 1)
    *names, _ = sorted(path.name for path in (tmp_path / "whole" / "checkpoints").glob("step-*"))
    assert len(names) == 11  # all but the last of two epochs
    for name in names:
        shutil.copytree(tmp_path / "whole" / "checkpoints" / name, tmp_path / name / "checkpoints" / name)
        shutil.copyfile(tmp_path / "whole" / "birth.json", tmp_path / name / "birth.json")
    for found in there(2, "trainer_resumed.train", "usual", tmp_path / "out", [tmp_path / name for name in names]):
        assert dict(zip(names, found, strict=True)) == dict.fromkeys(names, whole)


def test_a_resumed_run_warns_of_what_a_callback_begins_anew(there, tmp_path):
    (first,) = there(1, "trainer_features.warnings_of", tmp_path / "out", tmp_path / "run", "once", 5)
    (resumed,) = there(1, "trainer_features.warnings_of", tmp_path / "out", tmp_path / "run", "once")
    assert [len(first), len(resumed)] == [0, 1]
    assert "Resetting.num_steps" in resumed[0]


def test_a_run_that_resumes_in_a_later_training_saves_nothing_behind_the_first_and_warns(there, tmp_path):
    saved = tmp_path / "out" / "model.safetensors"
    (first,) = there(1, "trainer_features.warnings_of", tmp_path / "out", tmp_path / "run", "saving between", 17)
    before = saved.read_bytes()
    (resumed,) = there(1, "trainer_features.warnings_of", tmp_path / "out", tmp_path / "run", "saving between")
    assert [first, saved.read_bytes()] == [[], before]
    assert [call for call in ("evaluate()", "save_model()") if not any(call in each for each in resumed)] == []


@pytest.mark.parametrize("name", LIKE_PLAIN)
def test_training_is_that_of_a_plain_trainer_with_the_same_global_batch(there, trained, tmp_path, name):
    (plain,) = there(1, "trainer_features.train_plainly", name, tmp_path / "plain")
    _, ours, _ = trained(name, 1)
    assert len(ours) == len(plain)
    for mine, theirs in zip(ours, plain, strict=True):
        # each shard is padded by itself
        assert mine.get("total_flos", 0) >= theirs.get("total_flos", 0) / 2
        padded = {"total_flos": mine.get("total_flos")} if "total_flos" in mine else {}
        assert mine == pytest.approx({**theirs, **padded}, rel=3e-3, abs=1e-6)


def test_the_arguments_are_parsed_from_a_command_line(there, tmp_path):
    (parsed,) = there(1, "trainer_features.parsed", tmp_path / "out")
    assert parsed == (4, {"keep": 3}, 4, 3, 32)


def test_the_page_has_a_row_for_each_feature():
    page = (Path(__file__).parents[3] / "docs" / "how-to" / "trainer.md").read_text()
    table = page.partition("| feature | row |")[2].partition("\n\n")[0]
    assert sorted(re.findall(r"\| ([^|]+) \|$", table, flags=re.MULTILINE)) == sorted(FEATURES)
