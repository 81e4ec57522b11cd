"""Promises of the file in which a program tells the one that started it why it failed."""

import pytest

from lockstep._events.failure import FailureRecord, read_failure

pytestmark = pytest.mark.timeout(20)

FIRST = FailureRecord(summary="KeyError: 'x'", report="error: KeyError: 'x'\n  File ...")


def test_the_first_process_to_fail_is_told_of(tmp_path):
    FIRST.write(str(tmp_path / "failure"))
    FailureRecord(summary="closed by peer", report="").write(str(tmp_path / "failure"))
    assert read_failure(tmp_path / "failure") == FIRST


def test_where_nobody_asks_or_nothing_can_be_written_nothing_happens(tmp_path):
    FIRST.write(None)
    FIRST.write(str(tmp_path / "missing" / "failure"))
    assert not [*tmp_path.iterdir()]
    assert read_failure(tmp_path / "missing" / "failure") is None


def test_a_very_long_failure_in_any_script_can_be_read(tmp_path):
    FailureRecord(summary="é" * (1 << 20), report="é" * (1 << 20)).write(str(tmp_path / "failure"))
    found = read_failure(tmp_path / "failure")
    assert found is not None
    assert set(found.summary + found.report) == {"é"}


@pytest.mark.parametrize("content", [b"", b"[", b"[]", b"{}", b'{"summary": 1, "report": ""}', b"\xff", b" " * (1 << 21)])
def test_a_file_that_is_damaged_tells_nothing(tmp_path, content):
    (tmp_path / "failure").write_bytes(content)
    assert read_failure(tmp_path / "failure") is None
