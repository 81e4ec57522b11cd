"""A batch file that somebody may have changed is never lost."""

import os

import pytest

from lockstep.base.errors import ConfigError
from lockstep.tools.slurm.files import write

pytestmark = pytest.mark.timeout(20)


def test_what_was_there_is_kept_under_another_name(tmp_path):
    file = tmp_path / "train.sbatch"
    assert write(file, "first") is None
    assert write(file, "first") is None
    assert write(file, "second") == tmp_path / "train.sbatch.old-1"
    assert write(file, "third") == tmp_path / "train.sbatch.old-2"
    assert {path.name: path.read_text() for path in tmp_path.iterdir()} == {
        "train.sbatch": "third",
        "train.sbatch.old-1": "first",
        "train.sbatch.old-2": "second",
    }


@pytest.mark.parametrize("umask", [0o000, 0o002, 0o022])
def test_nobody_else_can_change_it_and_it_can_be_run(tmp_path, umask):
    before = os.umask(umask)
    try:
        write(tmp_path / "train.sbatch", "text")
    finally:
        os.umask(before)
    assert (tmp_path / "train.sbatch").stat().st_mode & 0o777 == 0o755


def test_a_place_that_cannot_be_written_is_named(tmp_path):
    with pytest.raises(ConfigError, match=r"nowhere/train\.sbatch cannot be written"):
        write(tmp_path / "nowhere" / "train.sbatch", "text")
