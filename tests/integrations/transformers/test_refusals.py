"""Arguments and methods that Trainer cannot support on lockstep are refused with an error that
names them."""

import pytest
from trainer_calls import call

pytestmark = [pytest.mark.long, pytest.mark.timeout(120), pytest.mark.usefixtures("require_transformers")]


def test_a_trainer_of_transformers_is_refused_with_arguments_of_lockstep(there, tmp_path):
    refused = "trainer-of-transformers"
    assert there(1, "trainer_refusals.half_changed", tmp_path / "out") == [[refused, None, refused] * 2]


def test_what_a_subclass_changes_shard_by_shard_is_refused_on_one_process_too(crew, tmp_path):
    ((found, in_evaluation),) = crew(1, call, "trainer_attributes", "refusals", tmp_path / "out")
    changed = {name for name, code in found.items() if code == "attribute-changed-in-step"}
    kept = {name for name, code in found.items() if code is None}
    assert changed | kept == found.keys()
    assert kept == {"a cache", "the same again", "not a number twice", "an attribute of Trainer"}
    assert in_evaluation == "attribute-changed-in-step"


def test_an_attribute_that_collect_clears_may_change(there, tmp_path):
    for processes in (1, 2):
        assert there(processes, "trainer_attributes.collected", tmp_path / "out") == [8] * processes  # samples of the step


@pytest.mark.parametrize(("version", "is_refused"), [("5.23.7", False), ("4.57.1", True), ("5.0.0", True), ("6.0", True)])
def test_other_versions_of_transformers_are_refused(there, version, is_refused):
    assert bool(there(1, "trainer_refusals.refused_version", version)[0]) == is_refused
