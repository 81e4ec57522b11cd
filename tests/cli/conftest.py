"""Commands of this folder, in this process. Those that train start warm launchers where they can:
see ``launchers``."""

import json

import pytest
from launchers import nursery, warm_trials
from warm import run_here

from lockstep._cli.main import main

__all__ = ["nursery", "run_here", "warm_trials"]


@pytest.fixture
def command(capsys):
    """``command(*words)``: the exit status, output and errors of ``lockstep WORDS``."""

    def call(*words):
        with pytest.raises(SystemExit) as ended:
            main(words)
        return ended.value.code or 0, *capsys.readouterr()

    return call


@pytest.fixture
def refusals(tmp_path, monkeypatch):
    """``refusals()``: the codes of the errors with which commands of this test were refused."""
    path = tmp_path / "refusals.jsonl"
    monkeypatch.setenv("LOCKSTEP_REPORTS", str(path))
    return lambda: [json.loads(line)["code"] for line in path.read_text().splitlines()]


@pytest.fixture
def asked(monkeypatch):
    """What ``lockstep run`` would have run: the script, its arguments, the options and settings of
    each call."""
    calls = []
    monkeypatch.setattr("lockstep._cli.run.run_script", lambda *args: calls.append(args))
    return calls
