"""Promises of the store: there is always a sound checkpoint, wherever the disk fails, and no
rubbish."""

import contextlib
import errno
import os
import random
import re
import shutil
from pathlib import Path

import pytest
from checkpoint_files import flip, write_files
from codes import raises

from lockstep._base.atomic import UNFINISHED
from lockstep._base.errors import CheckpointError
from lockstep._state.checkpoint.manifest import FILE_NAME, FORMAT, verify
from lockstep._state.checkpoint.store import BEST, Store, find_checkpoint

pytestmark = pytest.mark.timeout(60)


@contextlib.contextmanager
def failing(number, error):
    """The call of this number that changes something on the disk fails, and one of fsync has
    brought half of the file there. Yields a list that is not empty if there was such a call."""
    calls, hit = {name: getattr(os, name) for name in ("replace", "fsync", "unlink", "rmdir")}, []
    num_calls = 0

    def stand_in(name):
        def call(*args, **options):
            nonlocal num_calls
            num_calls += 1
            if num_calls != number:
                return calls[name](*args, **options)
            if name == "fsync" and (file := Path(f"/proc/self/fd/{args[0]}")).is_file():
                os.truncate(file, file.stat().st_size // 2)
            hit.append(name)
            raise error

        return call

    with pytest.MonkeyPatch.context() as patch:
        for name in calls:
            patch.setattr(os, name, stand_in(name))
        with contextlib.suppress(type(error)):
            yield hit


def commit(store, step, keep=2, token="token", **fields):
    unfinished = store.unfinished(step, token)
    store.commit(unfinished, write_files(unfinished, step, **fields), keep)


def steps(store):
    return [verify(path).step for path in store.all()]


def names(store):
    return sorted(path.name for path in store.directory.iterdir())


def newest(store, said=None):
    found = store.newest_undamaged(pytest.fail if said is None else said.append)
    return None if found is None else (found[1].step, found[1].finished)


def assert_nothing_but_sound_checkpoints(store):
    assert all(re.fullmatch(r"newest|step-\d{8}", name) for name in names(store)), names(store)
    assert not list(store.run_dir.rglob(UNFINISHED))
    for path in store.all():
        verify(path)


# Where it comes to be, and what goes


def test_nothing_is_made_before_something_is_written(tmp_path):
    store = Store(tmp_path / "run")
    assert (store.all(), store.newest(), newest(store), store.has_unfinished()) == ([], None, None, False)
    store.clean()
    assert not store.run_dir.exists()


def test_the_newest_ones_stay_and_a_file_points_to_the_newest(tmp_path):
    store = Store(tmp_path)
    for step in (5, 10, 15, 20):
        commit(store, step, keep=3)
    assert names(store) == ["newest", "step-00000010", "step-00000015", "step-00000020"]
    assert (store.directory / "newest").read_text() == "step-00000020\n"
    commit(store, 25, keep=1)
    assert (names(store), newest(store)) == (["newest", "step-00000025"], (25, False))


def test_a_step_of_nine_digits_is_newer_than_one_of_eight(tmp_path):
    store = Store(tmp_path)
    for step in (99_999_998, 99_999_999, 100_000_000):
        commit(store, step, keep=2)
    assert steps(store) == [100_000_000, 99_999_999]


def test_a_step_that_was_come_to_again_is_replaced(tmp_path):
    store = Store(tmp_path)
    commit(store, 10)
    commit(store, 10, finished=True)
    assert (steps(store), newest(store)) == ([10], (10, True))
    assert_nothing_but_sound_checkpoints(store)


def test_damaged_ones_from_before_the_run_went_back_are_the_first_to_go(tmp_path):
    store = Store(tmp_path)
    for step in (10, 20, 30):
        commit(store, step, keep=3)
    (store.directory / "step-00000030" / "state.json").unlink()
    commit(store, 25, keep=2)
    assert steps(store) == [25, 20]


@pytest.mark.parametrize("damage", ["missing", "shorter"])
def test_what_is_not_there_in_full_does_not_become_a_checkpoint(damage, tmp_path):
    store = Store(tmp_path)
    commit(store, 10)
    unfinished = store.unfinished(20, "token")
    manifest = write_files(unfinished, 20)
    path = unfinished / "model.safetensors"
    if damage == "missing":
        path.unlink()
    else:
        path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(CheckpointError, match=r"missing|damaged"):
        store.commit(unfinished, manifest, keep=1)
    assert newest(store) == (10, False)


# A disk that fails (a kill, and a power loss: see test_power_loss)

SITUATIONS = {
    "another step": ([10, 20], 30),
    "the same step again": ([10, 20], 20),
    "the first one": ([], 10),
}


def prepare(path, before, damaged=None):
    store = Store(path)
    for step in before:
        commit(store, step, keep=9)
    if damaged is not None:
        (store.directory / f"step-{damaged:08d}" / "state.json").unlink()
    return store


@pytest.mark.parametrize("situation", SITUATIONS)
def test_wherever_the_disk_fails_the_run_has_the_old_or_the_new_one(tmp_path, situation):
    before, step = SITUATIONS[situation]
    old = (max(before), False) if before else None
    for number in range(1, 99):
        store = prepare(tmp_path / str(number), before)
        with failing(number, OSError(errno.EIO, "the disk is gone")) as hit:
            commit(store, step, keep=len(before) or 1, finished=True)
        if not hit:
            break
        assert newest(store) in (old, (step, True))
        shutil.rmtree(store.unfinished(step, "token"), ignore_errors=True)  # as the writer does
        commit(store, step, keep=len(before) or 1, token="token-2", finished=True)
        assert newest(store) == (step, True)
        store.clean()
        assert_nothing_but_sound_checkpoints(store)
    assert number > 8


def test_a_checkpoint_that_could_not_get_its_name_back_is_no_failed_attempt(tmp_path):
    store = prepare(tmp_path, [10])
    unfinished = store.unfinished(10, "token")
    (store.directory / "step-00000010").rename(f"{unfinished}-old")
    unfinished.mkdir()
    store.clear_failed(store.unfinished(20, "token-2"))
    assert not unfinished.exists()
    store.clean()
    assert newest(store) == (10, False)


# Damage


def damage(path, how, random):
    if how == "flipped":
        flip(path, random)
    elif how == "missing":
        path.unlink()
    else:
        path.write_bytes(path.read_bytes()[: random.randrange(path.stat().st_size)])


@pytest.mark.parametrize("how", ["flipped", "missing", "cut short"])
@pytest.mark.parametrize("name", ["state.json", "model.safetensors", FILE_NAME])
def test_a_damaged_one_is_named_and_the_one_before_it_is_taken(tmp_path, name, how):
    store = prepare(tmp_path, [10, 20, 30])
    sound, generator = shutil.copytree(store.directory, tmp_path / "sound"), random.Random(f"{name} {how}")
    for _ in range(20 if how != "missing" else 1):
        shutil.rmtree(store.directory)
        shutil.copytree(sound, store.directory)
        said = []
        damage(store.directory / "step-00000030" / name, how, generator)
        assert newest(store, said) == (20, False)
        assert re.search(rf"step-00000030/{name}\b", said[-1])
        assert "step 20;" in said[-1]
        assert "damaged-step-00000030" in said[-1]
        damage(store.directory / "step-00000020" / name, how, generator)
        damage(store.directory / "step-00000010" / name, how, generator)
        with raises(CheckpointError, "all-checkpoints-damaged") as refused:
            newest(store)
        assert all(f"step-000000{step}/{name}" in str(refused.value) for step in (20, 10))
        assert len(store.all()) == 2  # they are unchanged


def test_a_damaged_one_is_kept_beside_and_does_not_come_in_the_way_of_what_follows(tmp_path):
    store = prepare(tmp_path, [10, 20, 30], damaged=30)
    assert newest(store, []) == (20, False)
    commit(store, 25)
    store.clean()
    assert names(store) == ["damaged-step-00000030", "newest", "step-00000020", "step-00000025"]
    assert newest(store) == (25, False)
    commit(store, 30)
    (store.directory / "step-00000030" / "state.json").unlink()
    assert newest(store, []) == (25, False)
    assert names(store) == ["damaged-step-00000030", "newest", "step-00000025"]


def test_a_checkpoint_of_a_newer_version_is_not_passed_over(tmp_path, monkeypatch):
    store = prepare(tmp_path, [10])
    monkeypatch.setattr("lockstep._state.checkpoint.manifest.FORMAT", FORMAT + 1)
    commit(store, 20)
    monkeypatch.undo()
    with raises(CheckpointError, "checkpoint-format-newer"):
        newest(store)


# What a path means


def test_a_path_means_a_checkpoint_or_the_newest_one_of_a_run(tmp_path, monkeypatch):
    store = prepare(tmp_path / "run", [10, 20])
    last = store.directory / "step-00000020"
    assert find_checkpoint(store.run_dir) == find_checkpoint(store.directory) == find_checkpoint(last) == last
    (last / FILE_NAME).unlink()
    assert find_checkpoint(last) == last  # what is wrong with it shall be said
    monkeypatch.chdir(store.directory / "step-00000010")
    assert find_checkpoint(Path()).absolute() == Path.cwd()
    monkeypatch.chdir(store.run_dir)
    assert find_checkpoint(Path()).resolve() == last
    (tmp_path / "empty" / BEST).mkdir(parents=True)
    for path, code in [(tmp_path / "none", "path-missing"), (tmp_path / "empty", "no-checkpoint")]:
        with raises(CheckpointError, code) as refused:
            find_checkpoint(path)
    assert str(tmp_path / "empty" / BEST) in str(refused.value)
    assert find_checkpoint(tmp_path / "empty" / BEST) == tmp_path / "empty" / BEST
