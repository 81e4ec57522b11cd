"""Whenever the power is lost, a launch resumes from the checkpoint before the save that was under
way, or from the new one, both whole; once a save is reported as written, from the new one.

All that saves is the writer's: its files, its notes, its commit; what loads is what a resume
uses."""

import contextlib
import json
import random
import shutil

import pytest
import torch
from power_loss import Disk, write_tree

from lockstep._state.checkpoint.manifest import Manifest, verify
from lockstep._state.checkpoint.parts import state_files
from lockstep._state.checkpoint.store import BEST, Store
from lockstep._state.checkpoint.tree import put_together, take_apart
from lockstep._state.checkpoint.weights import Tensors, load_weights
from lockstep._state.checkpoint.writer import STATE, Job, Writer

pytestmark = pytest.mark.timeout(60)


def state_of(step):
    """The momentum and the weight of a step."""
    return {"momentum": torch.full((300,), step + 0.5), "step": step}, {"weight": torch.full((300,), float(step))}


def save(run, step, kind="checkpoint", keep=2, ranks=1, token="token"):
    """Saves by the threads of the ranks, rank 0 last."""
    store = Store(run)
    state, weights = state_of(step)
    taken, tensors = take_apart(state, "state")
    for rank in reversed(range(ranks)):
        files = {"model.safetensors": weights} if rank == 0 else {}
        if kind == "checkpoint" and rank == ranks - 1:
            files[f"state-{rank}.safetensors"] = tensors
        writer = Writer(store)
        manifest = Manifest(kind=kind, step=step, epoch=0, time_s=0.0, world_size=ranks)
        writer.submit(
            Job(
                manifest=manifest,
                token=f"{token}-{kind}",
                rank=rank,
                world_size=ranks,
                keep=keep,
                tensors=files,
                state=taken if kind == "checkpoint" else {},
            )
        )
        writer.wait()
        assert [result.error for result in writer.results()] == [""]
        writer.close()


def found(run):
    """What the next launch finds: the step of the newest checkpoint, whether the script ended
    there, the step of the best weights, and the name in the file ``newest``."""
    store, reported = Store(run), []
    store.clean()
    newest = store.newest_undamaged(reported.append)
    step = finished = best = None
    if newest is not None:
        path, manifest = newest
        step, finished = manifest.step, manifest.finished
        state, weights = state_of(step)
        tensors = Tensors([path / name for name in state_files(manifest.files)])
        loaded = put_together(json.loads((path / STATE).read_bytes()), tensors)
        assert loaded["step"] == step
        assert torch.equal(loaded["momentum"], state["momentum"])
        assert torch.equal(load_weights(path)["weight"], weights["weight"])
    if (run / BEST).exists():
        best = verify(run / BEST).step
        assert torch.equal(load_weights(run / BEST)["weight"], state_of(best)[1]["weight"])
    assert reported == []
    assert all(verify(path) for path in store.all())
    names = {path.name for path in store.directory.iterdir()} if store.directory.exists() else set()
    assert names <= {"newest", *(path.name for path in store.all())}
    pointer = (store.directory / "newest").read_text() if "newest" in names else ""
    return (step, finished, best), pointer


STORY = {
    "the first": (lambda run: save(run, 10), (10, False, None)),
    "the first best": (lambda run: save(run, 10, "weights"), (10, False, 10)),
    "of three ranks": (lambda run: save(run, 20, ranks=3), (20, False, 10)),
    "a better one": (lambda run: save(run, 20, "weights"), (20, False, 20)),
    "the oldest goes": (lambda run: save(run, 30), (30, False, 20)),
    "the same step again": (lambda run: save(run, 30, ranks=2, token="again"), (30, False, 20)),
    "all but one go": (lambda run: save(run, 40, keep=1), (40, False, 20)),
    "the end": (lambda run: Store(run).mark_finished(40), (40, True, 20)),
}
"""What happens to a run, one after the other, and what a launch finds then."""


class Launches:
    """What launches find in the run directories that power losses left."""

    def __init__(self, place):
        self.place, self.known = place, {}

    def find(self, tree):
        if tree not in self.known:
            with lost(tree, self.place) as run:
                self.known[tree] = found(run)
        return self.known[tree]


@contextlib.contextmanager
def lost(tree, place):
    run = write_tree(tree, place / "lost")
    yield run
    shutil.rmtree(run)


def test_whenever_the_power_is_lost_the_old_or_the_new_one_is_whole(tmp_path):
    run, before, launches = tmp_path / "run", (None, None, None), Launches(tmp_path)
    run.mkdir()
    for name, (happens, after) in STORY.items():
        disk = Disk(run)
        with disk.watched():
            happens(run)
        for number, point in enumerate(disk.points):
            assert {launches.find(tree)[0] for tree in point} <= {before, after}, f"{name}, at call {number}"
        pointer = f"step-{after[0]:08d}\n"
        assert {launches.find(tree) for tree in disk.points[-1]} == {(after, pointer)}, f"{name}, done"
        before = after
    assert len(launches.known) > 100


@pytest.mark.parametrize("kind", ["checkpoint", "weights"])
def test_a_launch_that_clears_up_may_be_interrupted_itself(tmp_path, kind):
    disk = saved_again(tmp_path, kind)
    for tree in random.Random(kind).sample(sorted(unfinished(disk), key=repr), 6):
        launches = Launches(tmp_path)
        with lost(tree, tmp_path / "first") as run:
            again = Disk(run)
            with again.watched():
                Store(run).clean()
        for point in again.points:
            assert {launches.find(tree)[0][2 if kind == "weights" else 0] for tree in point} <= {10, 20}


@pytest.mark.parametrize("kind", ["checkpoint", "weights"])
def test_where_the_disk_loses_what_it_has_confirmed_nothing_broken_becomes_a_checkpoint(tmp_path, kind):
    disk = saved_again(tmp_path, kind, forgets=".safetensors")
    for tree in unfinished(disk):
        with lost(tree, tmp_path) as run:
            store = Store(run)
            named = set(store.all()) | {run / BEST for name, _ in tree if name == BEST}
            store.clean()
            for path in {*store.all(), *run.glob(BEST)} - named:
                verify(path)


def saved_again(place, kind, **options):
    """The disk during a save, where another has been saved before."""
    run = place / "run"
    save(run, 10, kind)
    disk = Disk(run, **options)
    with disk.watched():
        save(run, 20, kind)
    return disk


def unfinished(disk):
    return {tree for point in disk.points for tree in point if any(".writing" in name for name, _ in tree)}
