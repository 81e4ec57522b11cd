"""Reports of a run, in the file that the user has given."""

import json
import os
from pathlib import Path

import pytest

from lockstep._base.reports import REPORTS, SLOW, Report, is_noted, note, num_noted, recorded_in


@pytest.fixture(autouse=True)
def start(tmp_path, monkeypatch):
    """The directory in which a run starts; there is no file of reports yet."""
    monkeypatch.delenv(REPORTS, raising=False)
    (tmp_path / "start").mkdir()
    monkeypatch.chdir(tmp_path / "start")
    return tmp_path / "start"


def report(rank):
    return Report(kind=SLOW, text="a rank is slow", ranks=(rank,))


def ranks_in(file):
    return [rank for line in file.read_text().splitlines() for rank in json.loads(line)["ranks"]]


@pytest.mark.parametrize("given", ["reports.jsonl", "../reports.jsonl", "./reports.jsonl", "{start}/reports.jsonl"])
def test_reports_go_on_in_one_file_when_the_script_changes_its_directory(start, tmp_path, monkeypatch, given):
    file = Path(start, given := given.format(start=start))
    with recorded_in(Path(given)):
        note(report(1))
        (tmp_path / "other" / "deep").mkdir(parents=True)
        monkeypatch.chdir(tmp_path / "other" / "deep")
        note(report(2))
        assert num_noted() == file.stat().st_size
        assert [is_noted(report(rank), since=0) for rank in range(4)] == [False, True, True, False]
    assert ranks_in(file) == [1, 2]
    assert [path.name for path in (tmp_path / "other").rglob("*")] == ["deep"]


@pytest.mark.parametrize("before", [None, "outer.jsonl"])
def test_reports_go_where_they_went_before_when_a_launch_has_ended(start, monkeypatch, before):
    if before is not None:
        monkeypatch.setenv(REPORTS, before)
    with recorded_in(None):
        note(report(1))
    with recorded_in(Path("inner.jsonl")):
        note(report(2))
    note(report(3))
    assert os.environ.get(REPORTS) == before
    expected = {"inner.jsonl": [2], **({} if before is None else {before: [1, 3]})}
    assert {path.name: ranks_in(path) for path in start.iterdir()} == expected
