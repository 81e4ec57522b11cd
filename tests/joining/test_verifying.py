"""Promises of what precedes a resume: every file of a checkpoint is verified, each by one rank, and rank 0 judges."""

import random

import pytest
import verifying_scripts
from checkpoint_files import flip, write_files

pytestmark = [pytest.mark.timeout(60), pytest.mark.quick]
FILES = {"model.safetensors", "state.json"}


@pytest.fixture
def checkpoints(tmp_path):
    """An intact one, one with a damaged file, and one without one of its files."""
    paths = []
    for step, wreck in (
        (10, lambda path: None),
        (20, lambda path: flip(path, random.Random(0))),
        (30, lambda p: p.unlink()),
    ):
        path = tmp_path / f"step-{step:08d}"
        write_files(path, step).write(path)
        wreck(path / "state.json")
        paths.append(str(path))
    return paths


def test_each_file_is_read_by_one_rank_which_finds_what_is_damaged(standing_crew, checkpoints):
    (found, mine), (opening, theirs) = standing_crew(2, verifying_scripts.verify, checkpoints, None)
    assert (found[0], opening) == (10, {"run_dir": "here"})
    assert "step-00000020/state.json was damaged" in found[1]
    assert "step-00000030/state.json is missing" in found[2]
    intact = [[name for name in read if name.startswith("step-00000010")] for read in (mine, theirs)]
    assert [len(names) for names in intact] == [1, 1]
    assert {name.partition("/")[2] for names in intact for name in names} == FILES


def test_a_rank_that_does_not_see_the_directory_does_not_condemn_what_is_in_it(standing_crew, checkpoints):
    (found, mine), _ = standing_crew(2, verifying_scripts.verify, checkpoints[:1], 1)
    assert found == [10]
    assert {name.partition("/")[2] for name in mine} == FILES
