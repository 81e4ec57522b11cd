"""Commands of this folder, in this process. Those that train start warm launchers where they can:
see ``launchers``."""

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
def asked(monkeypatch):
    """What ``lockstep run`` would have run: the script, its arguments, the options and settings of
    each call."""
    calls = []
    monkeypatch.setattr("lockstep._cli.run.run_script", lambda *args: calls.append(args))
    return calls
