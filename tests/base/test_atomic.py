"""What is written atomically is there whole or not at all."""

import os
import signal
import subprocess
import sys
import textwrap
from unittest.mock import patch

import pytest

from lockstep._base.atomic import UNFINISHED, write_atomic


@pytest.fixture
def file(tmp_path):
    """A file that is there already."""
    path = tmp_path / "file"
    path.write_text("before")
    return path


def test_the_new_content_replaces_the_old_and_nothing_else_is_left(file):
    write_atomic(file, "später")
    assert file.read_text(encoding="utf-8") == "später"
    write_atomic(file, b"\0\n", durable=True)
    assert file.read_bytes() == b"\0\n"
    assert list(file.parent.iterdir()) == [file]


@pytest.mark.parametrize("error", [OSError(28, "No space left on device"), KeyboardInterrupt()])
@pytest.mark.parametrize("call", ["fsync", "replace"])
def test_after_an_error_the_old_content_is_there_and_nothing_else(file, call, error):
    with patch(f"os.{call}", side_effect=error), pytest.raises(type(error)):
        write_atomic(file, "after", durable=True)
    assert file.read_text() == "before"
    assert list(file.parent.iterdir()) == [file]


def test_after_a_kill_the_old_content_is_there_and_what_is_left_is_known_by_its_name(file):
    source = f"""
        import os, pathlib, signal, lockstep._base.atomic
        os.replace = lambda *_, **__: os.kill(os.getpid(), signal.SIGKILL)
        lockstep._base.atomic.write_atomic(pathlib.Path({str(file)!r}), "after")
    """
    assert subprocess.run([sys.executable, "-c", textwrap.dedent(source)]).returncode == -signal.SIGKILL
    assert file.read_text() == "before"
    (left,) = file.parent.glob(UNFINISHED)
    assert left.read_text() == "after"
    write_atomic(file, "again")
    assert file.read_text() == "again"


def test_durable_content_is_on_the_disk_before_it_has_its_name(file, monkeypatch):
    seen = []

    def fsync(fd):
        assert os.fstat(fd).st_size == len("after")
        seen.append(file.read_text())

    monkeypatch.setattr(os, "fsync", fsync)
    write_atomic(file, "after", durable=True)
    assert seen == ["before"]
    write_atomic(file, "later")
    assert len(seen) == 1


def test_a_file_for_its_user_alone_is_nobody_elses_at_any_time(file, monkeypatch):
    modes, replace = [], os.replace

    def look(source, target, **directories):
        modes.append(os.stat(source, dir_fd=directories["src_dir_fd"]).st_mode & 0o777)
        replace(source, target, **directories)

    monkeypatch.setattr(os, "replace", look)
    write_atomic(file, "secret", mode=0o600)
    assert [*modes, file.stat().st_mode & 0o777] == [0o600, 0o600]
