"""A full disk, or a directory that cannot be written: training goes on, says so loudly, tries again, and loses no line."""

import errno
import os
import random
import re
import subprocess
import sys
from types import SimpleNamespace

import pytest
from laboratory import HERE

from lockstep.base.stopping import UNSAVED_END_STATUS
from lockstep.journal.history import read_events
from lockstep.journal.measure import trackers

pytestmark = pytest.mark.timeout(90)

CRAMPED = HERE / "cramped.py"
NUM_STEPS = 40
NO_ROOM = "No space left on device"


@pytest.fixture
def disk(tmp_path, require):
    """A small disk of its own, as far as this machine lets one have it."""
    place = tmp_path / "disk"
    place.mkdir()
    require("disk", None if os.geteuid() == 0 else "only root can mount a small disk to fill")
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=4m", "lockstep-test", place], capture_output=True, text=True
    )
    require("disk", f"no small disk can be mounted here: {mounted.stderr.strip()}" if mounted.returncode else None)
    yield place
    for directory in (*place.glob("*/checkpoints"), place):
        while os.path.ismount(directory):
            subprocess.run(["umount", "-l", directory], check=True)


def steps_of(run_dir):
    return [event["step"] for event in read_events(run_dir) if event["event"] == "step"]


def written(run_dir):
    return [event["step"] for event in read_events(run_dir) if event["event"] == "checkpoint"]


def failed(ended):
    """By rank, the steps of the checkpoints that it could not write, as standard error tells them."""
    found = re.findall(r"lockstep: WARNING: rank (\d) could not write the checkpoint of step (\d+) in \S+: ", ended.err)
    return {rank: {int(step) for other, step in found if other == rank} for rank, _ in found}


@pytest.mark.parametrize(
    ("how", "nproc", "seed"),
    [
        ("full", 2, 11),
        pytest.param("read-only", 2, 12, marks=pytest.mark.long),
        pytest.param("full", 1, 13, marks=pytest.mark.long),
        pytest.param("read-only", 1, 14, marks=pytest.mark.long),
    ],
)
def test_training_goes_on_and_a_checkpoint_is_written_as_soon_as_there_is_room(lab, undisturbed, disk, how, nproc, seed):
    place = random.Random(seed)
    every = place.randint(18, 20)
    begin, end = every - place.randint(1, 3), every + place.randint(3, 5)
    ended = lab.run(
        CRAMPED, how, str(begin), str(end), "0.1", nproc=nproc, run_dir="disk/run", checkpoint_every=every, log_every=3
    )
    told = f"seed {seed}: {how} from step {begin} to {end}\n{ended}"
    assert ended.status == 0, told
    assert ended.words == undisturbed(CRAMPED, "never", "0", "0", "0.0"), told
    assert "0" in failed(ended), told
    assert set.union(*failed(ended).values()) == {every}, told
    assert (NO_ROOM if how == "full" else "Read-only file system") in ended.err, told
    assert "Training continues without it (there is none before it); the next try is in 1 s." in ended.err, told
    # The next one would be due at twice the step: this one is the second try.
    retried, *others = written(disk / "run")
    assert end <= retried < 2 * every, told
    assert others[-1] == NUM_STEPS, told
    assert lab.names(disk / "run")[0] == f"step-{NUM_STEPS:08d}"
    assert steps_of(disk / "run") == list(range(1, NUM_STEPS + 1)), told
    if how == "full":
        assert f"events.jsonl cannot be written: [Errno 28] {NO_ROOM}. Training continues" in ended.err, told
        assert "TensorBoard's files" in ended.err, told


@pytest.mark.long
def test_without_room_at_the_end_it_is_said_and_the_command_goes_on_later(lab, undisturbed, disk):
    seed = 15
    place = random.Random(seed)
    begin = place.randint(8, 30)
    ended = lab.run(CRAMPED, "full", str(begin), "0", "0.0", run_dir="disk/run", checkpoint_every=5)
    told = f"seed {seed}: full from step {begin}\n{ended}"
    words = undisturbed(CRAMPED, "never", "0", "0", "0.0")
    assert (ended.status, ended.words) == (UNSAVED_END_STATUS, words), told
    assert re.search(
        r"WARNING: the end of the run could not be saved in .*resumes from the newest\s+checkpoint when", ended.err
    ), told
    assert re.search(r"WARNING: .*events.jsonl has lost its last \d+ lines", ended.err), told
    newest = int(lab.names(disk / "run")[0].removeprefix("step-"))
    assert 0 < newest <= begin, told
    (disk / "run" / "ballast").unlink()
    again = lab.run(CRAMPED, "never", "0", "0", "0.0", run_dir="disk/run", checkpoint_every=5)
    assert again.words == words, again
    assert lab.resumes(disk / "run") == [newest], again


def test_a_rank_that_cannot_write_its_part_is_named_and_not_waited_for(lab, undisturbed):
    seed = 16
    place = random.Random(seed)
    number, nproc = place.randint(1, 3), 2
    fault = {"at": "save", "what": "fail", "rank": 1, "number": number, "times": 2}
    ended = lab.run(CRAMPED, "never", "0", "0", "0.02", nproc=nproc, fault=fault, checkpoint_every=5)
    told = f"seed {seed}\n{ended}"
    assert ended.words == undisturbed(CRAMPED, "never", "0", "0", "0.0"), told
    steps = failed(ended)
    assert len(steps["1"]) == 2, told
    assert steps["0"] == steps["1"], told
    assert "CheckpointError: rank 1 could not write its part" in ended.err, told
    assert not steps["1"] & set(written(lab.run_dir)), told
    assert written(lab.run_dir)[-1] == NUM_STEPS, told
    assert not list(lab.run_dir.glob("checkpoints/.writing*")), told


def test_a_tensorboard_that_cannot_write_rests_and_is_tried_again(tmp_path, monkeypatch, capfd):
    boards, now = [], [0.0]

    class Board:
        def __init__(self, directory, purge_step):
            self.purge_step, self.values = purge_step, []
            boards.append(self)

        def add_scalar(self, name, value, step):
            if len(boards) == 1 and step == 2:
                raise OSError(errno.ENOSPC, NO_ROOM)
            self.values.append(step)

        def close(self):
            raise OSError(errno.ENOSPC, NO_ROOM)

    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", SimpleNamespace(SummaryWriter=Board))
    monkeypatch.setattr(trackers, "time", SimpleNamespace(monotonic=lambda: now[0]))
    written = trackers.Trackers([trackers.TensorBoard(tmp_path, 0)])
    for step in (1, 2, 3):
        written.write("step", step, {"loss": 0.5})
    now[0] = 31.0
    written.write("step", 4, {"loss": 0.5})
    written.close(failed=False)
    assert [(board.purge_step, board.values) for board in boards] == [(1, [1]), (None, [4])]
    assert capfd.readouterr().err.count("WARNING: TensorBoard's files") == 1
