"""A file of a checkpoint is damaged: the run goes on from the one before, and says so; or it says
what to do.

What can be damaged in a checkpoint, and how, is tested in tests/state/checkpoint.
"""

import random

import pytest
from laboratory import PLAIN

from lockstep._state.checkpoint.store import Store

pytestmark = pytest.mark.timeout(60)


def damage(checkpoint, place, how):
    """Returns the file that was damaged."""
    path = place.choice(sorted(checkpoint.iterdir()))
    content = path.read_bytes()
    if how == "missing":
        path.unlink()
    elif how == "cut short":
        path.write_bytes(content[: place.randrange(len(content))])
    else:
        number = place.randrange(8 * len(content))
        path.write_bytes(
            content[: number // 8] + bytes([content[number // 8] ^ 1 << number % 8]) + content[number // 8 + 1 :]
        )
    return path


HOWS = ("missing", "cut short", "one bit is another")


@pytest.mark.parametrize(("how", "seed"), list(zip(HOWS, (601, 602, 603), strict=True)))
def test_with_the_newest_damaged_a_run_goes_on_from_the_one_before(lab, interrupted, undisturbed, how, seed):
    interrupted(lab.run_dir)
    place = random.Random(seed)
    newest, before, _ = Store(lab.run_dir).all()
    path = damage(newest, place, how)
    ended = lab.run(PLAIN, nproc=place.choice([1, 2]), keep=3)
    told = f"seed {seed}: {path.name} {how}\n{ended}"
    assert (ended.status, ended.words) == (0, undisturbed()), told
    assert lab.resumes() == [int(before.name.removeprefix("step-"))], told
    assert f"lockstep: {path}" in ended.out, told
    assert "damaged-step-" in ended.out, told


def test_with_all_damaged_it_says_so_and_a_fresh_run_keeps_them(lab, interrupted, undisturbed):
    interrupted(lab.run_dir)
    seed = 604
    place = random.Random(seed)
    damaged = [damage(checkpoint, place, place.choice(HOWS)) for checkpoint in Store(lab.run_dir).all()]
    ended = lab.run(PLAIN, nproc=2)
    told = f"seed {seed}\n{ended}"
    assert ended.status == 1, told
    assert f"CheckpointError: all 3 checkpoints in {lab.run_dir / 'checkpoints'}" in ended.err, told
    assert all(str(path) in ended.err for path in damaged), told
    assert "--fresh or fresh=True" in ended.err, told
    assert len(Store(lab.run_dir).all()) == 3
    again = lab.run(PLAIN, fresh=True)
    assert again.words == undisturbed(), again
    assert len(Store(lab.directory / "run.old-1").all()) == 3
