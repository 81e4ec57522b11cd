"""Files in a run directory are opened without following links when written."""

import os

import pytest

from lockstep.base.errors import ConfigError
from lockstep.base.regular import open_to_write, own_directory
from lockstep.journal.writer import EventWriter
from lockstep.state.checkpoint.files import write_bytes
from lockstep.state.rundir.lock import RunLock
from lockstep.state.rundir.sight import leave_mark
from lockstep.tools.explain.black_box import BlackBox
from lockstep.tools.explain.stack_request import StackResponder
from lockstep.tools.verify.trace.lines import TraceWriter

pytestmark = pytest.mark.timeout(20)
STRANGER = 65534

WRITERS = {
    "lock": RunLock,
    "events.jsonl": EventWriter,
    "digests/rank-0.jsonl": lambda run_dir: TraceWriter(run_dir, "rank-0", "digests", is_fresh=False),
    "blackbox/rank-0.box": lambda run_dir: BlackBox(run_dir / "blackbox" / "rank-0.box"),
    "blackbox/rank-0.stacks": lambda run_dir: StackResponder(run_dir / "blackbox" / "rank-0.stacks"),
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
@pytest.mark.parametrize("how", ["link", "fifo", "dangling"])
def test_nothing_is_written_through_a_link_or_into_a_fifo(tmp_path, name, how):
    victim, path = _victim(tmp_path), tmp_path / "run" / name
    path.parent.mkdir(parents=True)
    if how == "fifo":
        os.mkfifo(path)
    else:
        path.symlink_to(victim if how == "link" else tmp_path / "made")
    with pytest.raises(ConfigError, match=str(path)):
        WRITERS[name](tmp_path / "run")
    assert victim.read_text() == "precious"
    assert not (tmp_path / "made").exists()


def test_a_mark_is_not_written_where_something_is(tmp_path):
    victim = _victim(tmp_path)
    (tmp_path / "seen-token").symlink_to(victim)
    with pytest.raises((ConfigError, OSError)):
        leave_mark(tmp_path, "token")
    assert victim.read_text() == "precious"


def test_a_link_that_comes_between_the_look_and_the_opening_is_not_followed(tmp_path, monkeypatch):
    victim, path, opened = _victim(tmp_path), tmp_path / "events.jsonl", os.open

    def late(name, flags, mode=0o777):
        path.symlink_to(victim)
        return opened(name, flags, mode)

    monkeypatch.setattr(os, "open", late)
    with pytest.raises(ConfigError, match="symbolic link"):
        open_to_write(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    assert victim.read_text() == "precious"


def test_a_directory_of_ones_own_may_be_reached_by_a_link_where_that_is_allowed(tmp_path):
    own_directory(tmp_path / "scratch" / "run")
    (tmp_path / "run").symlink_to(tmp_path / "scratch" / "run")
    own_directory(tmp_path / "run", may_be_link=True)
    with pytest.raises(ConfigError, match="symbolic link"):
        own_directory(tmp_path / "run")
    assert not any((tmp_path / "run").iterdir())


@pytest.mark.parametrize("whose", ["directory", "link"])
def test_what_another_user_owns_is_not_written_to_and_the_remedy_is_said(tmp_path, require, whose):
    require("users", None if os.geteuid() == 0 else "only root can give something to another user")
    (tmp_path / "scratch").mkdir()
    (tmp_path / "run").symlink_to(tmp_path / "scratch")
    os.chown(tmp_path / ("scratch" if whose == "directory" else "run"), STRANGER, STRANGER, follow_symlinks=False)
    with pytest.raises(ConfigError, match=rf"user id {STRANGER}.*cp -r"):
        own_directory(tmp_path / "run", may_be_link=True)
    assert not any((tmp_path / "scratch").iterdir())


def test_a_file_system_that_gives_all_files_to_one_user_is_ones_own(tmp_path, require, monkeypatch):
    require("users", None if os.geteuid() == 0 else "only root can give something to another user")
    os.chown(tmp_path, STRANGER, STRANGER)
    opened = os.open

    def as_stranger(name, flags, mode=0o777):
        fd = opened(name, flags, mode)
        os.fchown(fd, STRANGER, STRANGER)
        return fd

    monkeypatch.setattr(os, "open", as_stranger)
    own_directory(tmp_path)
    assert not any(tmp_path.iterdir())
