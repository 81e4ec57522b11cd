"""Whatever a run directory holds, a launch that resumes there writes nothing elsewhere, and says
what is wrong."""

import os

import pytest
from laboratory import PLAIN

pytestmark = [pytest.mark.timeout(120), pytest.mark.long]

REFUSED = ("lock", "events.jsonl", "digests/rank-0.jsonl", "digests", "checkpoints")
SPARED = ("birth.json", "blackbox/rank-0.box", "blackbox", "checkpoints/newest")
"""Files that are replaced as a whole, and those without which a run can do."""


def led_elsewhere(lab, name):
    """What is there is moved, and a link leads to it; returns a function that reads it."""
    elsewhere = lab.directory / "elsewhere"
    elsewhere.mkdir()
    (lab.run_dir / name).rename(elsewhere / "moved")
    (lab.run_dir / name).symlink_to(elsewhere / "moved")
    return lambda: {path: path.is_file() and path.read_bytes() for path in elsewhere.rglob("*")}


@pytest.mark.parametrize("name", REFUSED)
def test_a_run_is_not_resumed_through_a_link(lab, interrupted, name):
    interrupted(lab.run_dir)
    read = led_elsewhere(lab, name)
    before = read()
    ended = lab.run(PLAIN)
    assert read() == before, ended
    assert (ended.status, ended.words) == (1, None), ended
    assert str(lab.run_dir / name) in ended.err, ended


@pytest.mark.parametrize("name", SPARED)
def test_a_run_goes_on_beside_a_link_that_it_does_not_need(lab, interrupted, undisturbed, name):
    interrupted(lab.run_dir)
    read = led_elsewhere(lab, name)
    before = read()
    ended = lab.run(PLAIN)
    assert read() == before, ended
    assert ended.words == undisturbed(), ended


@pytest.mark.parametrize("name", ["lock", "events.jsonl", "digests", "checkpoints"])
def test_a_run_does_not_wait_for_a_fifo(lab, interrupted, name):
    interrupted(lab.run_dir)
    (lab.run_dir / name).rename(lab.directory / "moved")
    os.mkfifo(lab.run_dir / name)
    ended = lab.run(PLAIN)
    assert (ended.status, ended.words) == (1, None), ended
    assert str(lab.run_dir / name) in ended.err, ended


def test_a_run_directory_that_its_user_has_put_elsewhere_goes_on(lab, interrupted, undisturbed):
    interrupted(lab.directory / "scratch")
    lab.run_dir.symlink_to("scratch")
    ended = lab.run(PLAIN, nproc=2)
    assert ended.words == undisturbed(), ended
    assert lab.resumes()[-1] > 0
    assert lab.run_dir.is_symlink()


def test_a_run_directory_is_not_reached_through_the_link_of_another_user(lab, interrupted, require):
    require("users", None if os.geteuid() == 0 else "only root can give something to another user")
    interrupted(lab.directory / "scratch")
    before = sorted((lab.directory / "scratch").rglob("*"))
    lab.run_dir.symlink_to("scratch")
    os.chown(lab.run_dir, 65534, 65534, follow_symlinks=False)
    ended = lab.run(PLAIN)
    assert ended.status == 1, ended
    assert "65534" in ended.err, ended
    assert sorted((lab.directory / "scratch").rglob("*")) == before
