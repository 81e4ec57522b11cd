"""Whatever a run directory holds, nothing elsewhere is written, and what is wrong is said in words."""

import os

import pytest
from laboratory import PLAIN

pytestmark = pytest.mark.timeout(120)

LINKED = ("lock", "events.jsonl", "blackbox/rank-0.box", "blackbox/rank-0.stacks", "digests/rank-0.jsonl")


@pytest.mark.long
@pytest.mark.parametrize("name", LINKED)
def test_a_run_is_not_resumed_through_a_link(lab, interrupted, name):
    interrupted(lab.run_dir)
    victim, path = lab.directory / "victim", lab.run_dir / name
    victim.write_text("precious\n")
    path.unlink()
    path.symlink_to(victim)
    ended = lab.run(PLAIN)
    assert victim.read_text() == "precious\n", ended
    assert (ended.status, ended.words) == (1, None), ended
    assert str(path) in ended.err, ended


@pytest.mark.long
@pytest.mark.parametrize("name", ["blackbox", "digests"])
def test_a_run_is_not_resumed_into_a_linked_directory(lab, interrupted, name):
    interrupted(lab.run_dir)
    (lab.run_dir / name).rename(lab.directory / "elsewhere")
    (lab.run_dir / name).symlink_to(lab.directory / "elsewhere")
    before = {path: path.read_bytes() for path in (lab.directory / "elsewhere").iterdir()}
    ended = lab.run(PLAIN)
    assert ended.status == 1, ended
    assert str(lab.run_dir / name) in ended.err, ended
    assert {path: path.read_bytes() for path in (lab.directory / "elsewhere").iterdir()} == before


@pytest.mark.long
def test_a_run_and_checkpoints_that_their_user_has_put_elsewhere_go_on(lab, interrupted, undisturbed):
    interrupted(lab.directory / "scratch")
    (lab.directory / "scratch" / "checkpoints").rename(lab.directory / "checkpoints")
    (lab.directory / "scratch" / "checkpoints").symlink_to(lab.directory / "checkpoints")
    lab.run_dir.symlink_to("scratch")
    ended = lab.run(PLAIN, nproc=2)
    assert ended.words == undisturbed(), ended
    assert lab.resumes()[-1] > 0
    assert lab.run_dir.is_symlink()


@pytest.mark.long
def test_the_run_of_another_user_is_refused_and_a_copy_goes_on(lab, interrupted, undisturbed, require):
    require("users", None if os.geteuid() == 0 else "only root can give something to another user")
    interrupted(lab.directory / "theirs")
    os.chown(lab.directory / "theirs", 65534, 65534)
    ended = lab.run(PLAIN, run_dir="theirs")
    assert ended.status == 1, ended
    assert "65534" in ended.err, ended
    (lab.directory / "theirs").rename(lab.run_dir)
    os.chown(lab.run_dir, os.geteuid(), os.getegid())
    assert lab.run(PLAIN).words == undisturbed()
