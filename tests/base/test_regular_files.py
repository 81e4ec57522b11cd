"""How files are opened that others may have put there: written through no link, read if they are
regular and not too large."""

import contextlib
import os
import socket

import pytest

from lockstep._base.atomic import write_atomic
from lockstep._base.nofollow import check_named, make_directory, open_to_write, remove, rename
from lockstep._base.regular_files import MOST_LINE_BYTES, open_to_read, read_bytes, read_lines, size_of
from lockstep._events.history import Tail
from lockstep._events.writer import EventWriter
from lockstep._state.checkpoint.files import write_bytes, write_json
from lockstep._state.rundir.lock import RunLock
from lockstep._state.rundir.shared_dir import write_mark
from lockstep._tools.explain.black_box import BlackBox
from lockstep._tools.verify.trace.lines import TraceWriter

pytestmark = pytest.mark.timeout(20)

PART = "checkpoints/part"
WRITERS = {
    "lock": RunLock,
    "events.jsonl": EventWriter,
    "digests/rank-0.jsonl": lambda run_dir: TraceWriter(run_dir, "rank-0", "digests", is_fresh=False),
    "blackbox/rank-0.box": lambda run_dir: BlackBox(run_dir / "blackbox" / "rank-0.box"),
    "trace/rank-0.jsonl": lambda run_dir: TraceWriter(run_dir, "rank-0"),
    f"{PART}/state-0.safetensors": lambda run_dir: write_bytes(run_dir / PART / "state-0.safetensors", [], within=run_dir),
}
"""What a launch writes in its run directory other than atomically, and what opens it."""
WITH_ATOMIC = {**WRITERS, f"{PART}/state.json": lambda run_dir: write_json(run_dir / PART / "state.json", 0, within=run_dir)}
ABOVE = [(name, name.rsplit("/", depth)[0]) for name in WITH_ATOMIC for depth in range(1, 1 + name.count("/"))]


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


@pytest.mark.parametrize(("name", "above"), ABOVE)
def test_nothing_is_written_below_a_link(tmp_path, name, above):
    elsewhere, link = tmp_path / "elsewhere", tmp_path / "run" / above
    (elsewhere / "part").mkdir(parents=True)
    link.parent.mkdir(parents=True, exist_ok=True)
    link.symlink_to(elsewhere)
    with pytest.raises(OSError, match=str(link)):
        WITH_ATOMIC[name](tmp_path / "run")
    assert sorted(elsewhere.rglob("*")) == [elsewhere / "part"]


@pytest.mark.parametrize("name", WRITERS)
def test_nothing_waits_for_the_reader_of_a_fifo(tmp_path, name):
    path = tmp_path / "run" / name
    path.parent.mkdir(parents=True)
    os.mkfifo(path)
    with pytest.raises(OSError, match=str(path)):
        WRITERS[name](tmp_path / "run")


@pytest.mark.parametrize("kind", ["link", "fifo"])
def test_what_takes_the_place_of_a_checked_file_is_not_written(tmp_path, monkeypatch, kind):
    victim, path, system_open = _victim(tmp_path), tmp_path / "file", os.open
    path.touch()

    def opened(name, *args, **options):
        if name == path.name:
            path.unlink()
            path.symlink_to(victim) if kind == "link" else os.mkfifo(path)
            monkeypatch.undo()
            readers.append(system_open(path, os.O_RDONLY | os.O_NONBLOCK))  # with a reader a FIFO opens
        return system_open(name, *args, **options)

    readers: list[int] = []
    monkeypatch.setattr(os, "open", opened)
    with pytest.raises(OSError, match=str(path)):
        open_to_write(path, os.O_WRONLY | os.O_TRUNC)
    os.close(readers[0])
    assert victim.read_text() == "precious"


def test_what_is_written_blocks_as_any_other_file(tmp_path):
    (tmp_path / "run").mkdir()
    writer = EventWriter(tmp_path / "run")
    assert os.get_blocking(writer._lines._fd)
    writer.close()


def test_a_mark_is_not_written_where_something_is(tmp_path):
    victim = _victim(tmp_path)
    (tmp_path / "seen-token").symlink_to(victim)
    with pytest.raises(OSError, match="seen-token"):
        write_mark(tmp_path, "token")
    assert victim.read_text() == "precious"


def test_the_run_directory_itself_may_be_a_link(tmp_path):
    (tmp_path / "disk").mkdir()
    (tmp_path / "run").symlink_to("disk")
    write_atomic(tmp_path / "run" / "file", "written", within=tmp_path / "run")
    make_directory(tmp_path / "run" / "a" / "b", within=tmp_path / "run")
    rename(tmp_path / "run" / "file", tmp_path / "run" / "a" / "file", within=tmp_path / "run")
    assert (tmp_path / "disk" / "a" / "file").read_text() == "written"
    remove(tmp_path / "run" / "a", within=tmp_path / "run")
    assert list((tmp_path / "disk").iterdir()) == []


def test_nothing_is_renamed_or_removed_through_a_link(tmp_path):
    elsewhere, run = tmp_path / "elsewhere", tmp_path / "run"
    (elsewhere / "inner").mkdir(parents=True)
    run.mkdir()
    (run / "link").symlink_to(elsewhere)
    (run / "file").touch()
    with pytest.raises(OSError, match="link"):
        rename(run / "link" / "inner", run / "mine", within=run)
    with pytest.raises(OSError, match="link"):
        rename(run / "file", run / "link" / "file", within=run)
    remove(run / "link" / "inner", within=run)
    assert [path.name for path in elsewhere.iterdir()] == ["inner"]
    remove(run / "link", within=run)  # the link itself
    assert [path.name for path in run.iterdir()] == ["file"]
    assert (elsewhere / "inner").is_dir()


@pytest.mark.parametrize("name", ["file", "loop", "dangling", "fifo"])
def test_what_is_no_directory_cannot_be_a_run_directory(tmp_path, name):
    (tmp_path / "file").touch()
    (tmp_path / "loop").symlink_to("loop")
    (tmp_path / "dangling").symlink_to("nowhere")
    os.mkfifo(tmp_path / "fifo")
    with pytest.raises(OSError, match=str(tmp_path / name)):
        check_named(tmp_path / name)


def _socket(path):
    with contextlib.closing(socket.socket(socket.AF_UNIX)) as made:
        made.bind(str(path))


UNFIT = {
    "a FIFO": os.mkfifo,
    "a directory": lambda path: path.mkdir(),
    "a device": lambda path: path.symlink_to("/dev/zero"),
    "a loop": lambda path: path.symlink_to(path.name),
    "a socket": _socket,
    "missing": lambda path: None,
    "too large": lambda path: os.truncate(os.open(path, os.O_CREAT | os.O_WRONLY), 1 << 40),
}


@pytest.mark.parametrize("kind", UNFIT)
def test_what_is_no_regular_file_of_bounded_size_is_not_read(tmp_path, monkeypatch, kind):
    monkeypatch.chdir(tmp_path)  # the path of a socket must be short
    path = tmp_path / "file"
    UNFIT[kind](path if kind != "a socket" else path.relative_to(tmp_path))
    for read in (read_bytes, lambda path: list(read_lines(path)), lambda path: open_to_read(path, 100)):
        with pytest.raises(OSError, match=str(path)):
            read(path)


def test_a_file_may_be_read_through_a_link(tmp_path):
    (tmp_path / "archive").write_text("one\ntwo\n")
    (tmp_path / "file").symlink_to("archive")
    assert size_of(tmp_path / "file") == 8
    assert read_bytes(tmp_path / "file") == b"one\ntwo\n"
    assert list(read_lines(tmp_path / "file")) == [b"one\n", b"two\n"]


@pytest.mark.long
def test_the_rest_of_a_line_that_is_too_long_is_left_out(tmp_path):
    path = tmp_path / "events.jsonl"
    path.write_bytes(b'{"event": "a"}\n' + b"x" * (MOST_LINE_BYTES + 10) + b'\n{"event": "b"}\n')
    assert [len(line) for line in read_lines(path)] == [15, MOST_LINE_BYTES, 15]
    assert [event["event"] for event in Tail(path).read()[0]] == ["a", "b"]
