"""A fit of Lightning's Trainer that resumes from any of its checkpoints is the undisturbed one:
weights, metrics, and what hooks have seen."""

import shutil

import pytest
from lightning_calls import fit

pytestmark = [pytest.mark.long, pytest.mark.timeout(120)]


@pytest.mark.parametrize("how", ["three batches an epoch", "accumulation"])
def test_a_fit_is_the_same_from_every_step_on_another_number_of_processes(standing_crew, tmp_path, how):
    [[whole]] = standing_crew(1, fit, how, str(tmp_path), ["whole"])
    checkpoints = sorted((tmp_path / "whole" / "checkpoints").glob("step-*"))
    assert len(checkpoints) == 9  # after each batch of three epochs
    names = [path.name for path in checkpoints]
    for name in names:
        shutil.copytree(tmp_path / "whole" / "checkpoints" / name, tmp_path / name / "checkpoints" / name)
        shutil.copyfile(tmp_path / "whole" / "birth.json", tmp_path / name / "birth.json")
    for found in standing_crew(2, fit, how, str(tmp_path), names):
        assert dict(zip(names, found, strict=True)) == dict.fromkeys(names, whole)
