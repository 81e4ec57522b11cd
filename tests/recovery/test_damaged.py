"""A file of a checkpoint is damaged: the run goes on from the one before, and says so; or it says what to do."""

import json
import random
import shutil

import pytest
from laboratory import PLAIN

from lockstep.base.errors import CheckpointError
from lockstep.state.checkpoint import manifest
from lockstep.state.checkpoint.store import Store

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


@pytest.mark.parametrize("how", HOWS)
def test_whatever_file_is_damaged_the_checkpoint_before_is_found_and_it_is_said(interrupted, tmp_path, how):
    for seed in range(25):
        run_dir = interrupted(tmp_path / str(seed))
        store, said = Store(run_dir), []
        newest, before, oldest = store.all()
        path = damage(newest, random.Random(seed), how)
        told = f"seed {seed}: {path.name} {how}"
        found, _ = store.newest_sound(said.append)
        assert found == before, told
        (line,) = said
        assert line.startswith(str(path)), told
        assert "is missing" in line or "was damaged" in line or "cannot be read" in line, line
        step = int(before.name.removeprefix("step-"))
        assert f"Going back to the checkpoint before it, of step {step}; it is now called damaged-{newest.name}." in line
        assert store.all() == [before, oldest], told
        assert (run_dir / "checkpoints" / f"damaged-{newest.name}").is_dir(), told


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
    assert "Going back to the checkpoint before it" in ended.out, told


def test_with_all_damaged_it_says_so_and_a_fresh_run_keeps_them(lab, interrupted, undisturbed):
    interrupted(lab.run_dir)
    seed = 604
    place = random.Random(seed)
    damaged = [damage(checkpoint, place, place.choice(HOWS)) for checkpoint in Store(lab.run_dir).all()]
    ended = lab.run(PLAIN, nproc=2)
    told = f"seed {seed}\n{ended}"
    assert ended.status == 1, told
    assert f"CheckpointError: none of the 3 checkpoints in {lab.run_dir / 'checkpoints'} can be used: " in ended.err, told
    assert all(str(path) in ended.err for path in damaged), told
    assert "To start over (what is there is kept under another name): --fresh" in ended.err, told
    assert len(Store(lab.run_dir).all()) == 3
    again = lab.run(PLAIN, fresh=True)
    assert again.words == undisturbed(), again
    assert len(Store(lab.directory / "run.old-1").all()) == 3


@pytest.mark.parametrize("text", [None, b"", b"\xff\0\n", b"step-00000099\n", b"..\n", b"step-0000"])
def test_whatever_the_pointer_file_says_the_newest_is_found(interrupted, tmp_path, text):
    run_dir = interrupted(tmp_path / "run")
    pointer = run_dir / "checkpoints" / "newest"
    if text is None:
        pointer.unlink()
    else:
        pointer.write_bytes(text)
    store, said = Store(run_dir), []
    assert store.newest() == store.all()[0]
    assert store.newest_sound(said.append)[0] == store.all()[0]
    assert not said


def test_a_run_with_a_damaged_pointer_file_goes_on_and_makes_it_right(lab, interrupted, undisturbed):
    interrupted(lab.run_dir)
    pointer = lab.run_dir / "checkpoints" / "newest"
    newest = int(lab.names()[0].removeprefix("step-"))
    pointer.write_bytes(random.Random(605).randbytes(14))
    ended = lab.run(PLAIN)
    assert ended.words == undisturbed(), ended
    assert lab.resumes() == [newest], ended
    assert pointer.read_text() == "step-00000015\n"


def test_a_manifest_of_a_later_version_is_refused_with_the_remedy_and_left_alone(lab, interrupted):
    interrupted(lab.run_dir)
    newest = Store(lab.run_dir).all()[0]
    path = newest / manifest.FILE_NAME
    content = json.loads(path.read_text())
    del content["checksum"]
    content.update(format=manifest.FORMAT + 1, novelty=[1, 2, 3])
    path.write_text(json.dumps({**content, "checksum": manifest._digest(content)}))
    for settings in ({}, {"nproc": 2}):
        ended = lab.run(PLAIN, **settings)
        assert ended.status == 1, ended
        assert (
            f"CheckpointError: {path} has format {manifest.FORMAT + 1}, and this lockstep knows formats up to" in ended.err
        )
        assert "it was written by a newer lockstep." in ended.err, ended
    assert Store(lab.run_dir).all()[0] == newest


def test_what_was_damaged_twice_at_one_step_does_not_stop_a_run(lab, interrupted, undisturbed):
    interrupted(lab.run_dir)
    newest = Store(lab.run_dir).all()[0]
    (newest / "state.json").unlink()
    shutil.copytree(newest, newest.with_name(f"damaged-{newest.name}"))
    ended = lab.run(PLAIN)
    assert ended.words == undisturbed(), ended
    assert lab.names()[0] == "step-00000015"


def test_weights_are_read_only_where_they_are_whole(interrupted, tmp_path):
    run_dir = interrupted(tmp_path / "run")
    import lockstep

    newest, before, _ = Store(run_dir).all()
    path = newest / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(CheckpointError, match=r"model\.safetensors was damaged: it has \d+ bytes, and \d+ were written"):
        lockstep.load_weights(run_dir)
    assert lockstep.load_weights(before).keys() >= {"0.weight", "4.bias"}
