"""Promises of the journal: rank 0 writes events, and TensorBoard's files where it is installed."""

import importlib.util
import sys

import pytest

from lockstep.journal.events import FILE_NAME
from lockstep.journal.history import read_events
from lockstep.journal.measure.journal import Journal
from lockstep.journal.measure.trackers import TensorBoard, Trackers

pytestmark = pytest.mark.timeout(60)


@pytest.fixture
def without_tensorboard(monkeypatch):
    find = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name, *a: None if name == "tensorboard" else find(name, *a))


def write(run_dir):
    journal = Journal(run_dir, None if run_dir is None else Trackers([TensorBoard(run_dir, None)]))
    journal.write("start", world_size=2)
    journal.scalars("step", 0, 1, {"loss": 0.5})
    journal.scalars("step", 0, 2, {})
    journal.scalars("evaluate", 0, 2, {"accuracy": 0.75, "loss": float("nan")})
    journal.close()


def test_averages_are_events_and_steps_without_any_are_not(tmp_path, without_tensorboard):
    write(tmp_path)
    events = [{k: v for k, v in event.items() if k != "time_s"} for event in read_events(tmp_path)]
    assert events == [
        {"event": "start", "world_size": 2},
        {"event": "step", "epoch": 0, "step": 1, "values": {"loss": 0.5}},
        {"event": "evaluate", "epoch": 0, "step": 2, "values": {"accuracy": 0.75, "loss": None}},
    ]
    assert [file.name for file in tmp_path.iterdir()] == [FILE_NAME]


def test_other_ranks_write_nothing(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    write(None)
    assert list(tmp_path.iterdir()) == []


def test_tensorboard_gets_training_and_evaluation_apart(tmp_path, run_here):
    done = run_here(
        """
        import sys
        from pathlib import Path
        from lockstep.journal.measure.trackers import TensorBoard
        from lockstep.journal.measure.journal import Journal
        from lockstep.journal.measure.trackers import Trackers

        journal = Journal(Path(sys.argv[1]), Trackers([TensorBoard(Path(sys.argv[1]), None)]))
        assert "tensorboard" not in sys.modules, "it takes a second, and nothing was logged yet"
        journal.scalars("step", 0, 1, {"loss": 0.5})
        journal.scalars("evaluate", 0, 1, {"loss": 0.25})
        journal.close()

        from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

        board = EventAccumulator(sys.argv[1])
        board.Reload()
        for tag in sorted(board.Tags()["scalars"]):
            print("tag", tag, board.Scalars(tag)[0].step, board.Scalars(tag)[0].value)
        """,
        args=[str(tmp_path)],
    )
    tags = [line for line in done.stdout.splitlines() if line.startswith("tag")]
    assert tags == ["tag evaluation/loss 1 0.25", "tag training/loss 1 0.5"], done.stderr


def test_a_tensorboard_that_cannot_be_imported_does_not_stop_the_run(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", None)
    write(tmp_path)
    assert len(list(read_events(tmp_path))) == 3
