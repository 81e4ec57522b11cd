"""What Trainer cannot mean on lockstep is refused in words, and names what to change."""

import pytest

pytest.importorskip("transformers")

import trainer_refusals
from trainer_refusals import CASES

import lockstep

pytestmark = [pytest.mark.long, pytest.mark.timeout(120)]


def test_what_cannot_be_honoured_is_refused_by_name(crew, tmp_path):
    (errors,) = crew(1, trainer_refusals.attempt_all, tmp_path / "out")
    unnamed = {case.name: error for case, error in zip(CASES, errors, strict=True) if case.name not in error}
    assert not unnamed


def test_what_a_subclass_counts_shard_by_shard_is_refused_where_ranks_differ(crew, tmp_path):
    with pytest.raises(lockstep.LaunchError, match="seen"):
        crew(2, trainer_refusals.count, tmp_path / "out")


def test_other_versions_of_transformers_are_refused(crew):
    assert [bool(error) for error in crew(1, _versions)[0]] == [False, True, True, True]


def _versions():
    return [trainer_refusals.refused_version(version) for version in ("5.23.7", "4.57.1", "5.0.0", "6.0")]
