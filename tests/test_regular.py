"""Files in a run directory are opened without following links when written."""

import pytest

from lockstep.journal.writer import EventWriter
from lockstep.state.checkpoint.files import write_bytes
from lockstep.state.rundir.lock import RunLock
from lockstep.state.rundir.sight import leave_mark
from lockstep.tools.explain.black_box import BlackBox
from lockstep.tools.verify.trace.lines import TraceWriter

pytestmark = pytest.mark.timeout(20)

WRITERS = {
    "lock": RunLock,
    "events.jsonl": EventWriter,
    "digests/rank-0.jsonl": lambda run_dir: TraceWriter(run_dir, "rank-0", "digests", is_fresh=False),
    "blackbox/rank-0.box": lambda run_dir: BlackBox(run_dir / "blackbox" / "rank-0.box"),
    "trace/rank-0.jsonl": lambda run_dir: TraceWriter(run_dir, "rank-0"),
    "checkpoints/part/state-0.safetensors": lambda run_dir: write_bytes(
        run_dir / "checkpoints" / "part" / "state-0.safetensors", []
    ),
}
"""What a launch writes in its run directory other than atomically, and what opens it."""


def _victim(tmp_path):
    victim = tmp_path / "victim"
    victim.write_text("precious")
    return victim


@pytest.mark.parametrize("name", WRITERS)
@pytest.mark.parametrize("how", ["link", "dangling"])
def test_nothing_is_written_through_a_link(tmp_path, name, how):
    victim, path = _victim(tmp_path), tmp_path / "run" / name
    path.parent.mkdir(parents=True)
    path.symlink_to(victim if how == "link" else tmp_path / "made")
    with pytest.raises(OSError, match=str(path)):
        WRITERS[name](tmp_path / "run")
    assert victim.read_text() == "precious"
    assert not (tmp_path / "made").exists()


def test_a_mark_is_not_written_where_something_is(tmp_path):
    victim = _victim(tmp_path)
    (tmp_path / "seen-token").symlink_to(victim)
    with pytest.raises(OSError, match="seen-token"):
        leave_mark(tmp_path, "token")
    assert victim.read_text() == "precious"
