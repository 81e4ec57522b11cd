"""A full disk: training goes on, and says so loudly."""

import errno
import re
import sys
from types import SimpleNamespace

import pytest
from laboratory import PLAIN

from lockstep._events.history import read_events
from lockstep._events.measure import trackers

pytestmark = pytest.mark.timeout(90)

NO_ROOM = "No space left on device"


def test_a_rank_that_cannot_write_its_part_is_named_and_not_waited_for(lab, undisturbed):
    fault = {"at": "save", "what": "fail", "rank": 1, "number": 1, "times": 2}
    ended = lab.run(PLAIN, "step_s=0.02", nproc=2, fault=fault, checkpoint_every=4)
    assert ended.words == undisturbed(), ended
    found = re.findall(r"WARNING: rank (\d) .* step (\d+) in \S+: ", ended.err)
    failed = {rank: {int(step) for other, step in found if other == rank} for rank in "01"}
    assert failed["0"] == failed["1"], ended
    assert len(failed["1"]) == 2, ended
    assert "CheckpointError: rank 1 " in ended.err, ended
    assert f"{NO_ROOM} (the test says so)" in ended.err, ended
    written = [event["step"] for event in read_events(lab.run_dir) if event["event"] == "checkpoint"]
    assert written[-1] == 15, ended
    assert not failed["1"] & set(written), ended
    assert not list(lab.run_dir.glob("checkpoints/.writing*")), ended


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
    assert capfd.readouterr().err.count("TensorBoard") == 1
