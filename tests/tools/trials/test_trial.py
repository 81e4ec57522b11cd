"""Promises of a trial: what is changed of the script's settings and of the environment, and what is
said of its end."""

import json
import sys
from pathlib import Path

import pytest

from lockstep._events.failure import FailureRecord
from lockstep._tools.trials.machine import look
from lockstep._tools.trials.settings import TrialSettings
from lockstep._tools.trials.study import Task
from lockstep._tools.trials.trial import Trial, run_trial
from lockstep._tools.verify import verify
from lockstep._world import environment as world

pytestmark = pytest.mark.timeout(60)


class Silent:
    def waiting(self, elapsed_s):
        pass


@pytest.mark.parametrize("of_script", [None, 2])
@pytest.mark.parametrize("default", [None, 3])
@pytest.mark.parametrize("instead", [None, 4])
def test_a_scripts_setting_is_used_before_a_default_and_after_what_replaces_it(of_script, default, instead):
    changes = TrialSettings(
        defaults={} if default is None else {"shards": default}, instead={} if instead is None else {"shards": instead}
    )
    script = {"shards": of_script, "seed": 7}
    assert changes.applied_to(script) == {"shards": instead or of_script or default, "seed": 7}
    assert changes.chosen(script) == ({"shards"} if default and of_script is None else set())


@pytest.mark.parametrize("shards", [None, 4])
def test_what_replaces_a_setting_is_not_passed_beside_it_and_a_default_only_if_the_user_gives_none(shards):
    here = look(num_cores=1, num_gpus=0)
    task = Task(script=Path("train.py"), shards=shards, seed=1)
    study = verify.plan(task, (1, 2), (None,), None, here, resumes=False, with_one_device=False)
    trial = study.trial("a", launcher="torchrun", num_processes=2, settings={"workers": 0, "trace": None})
    asked = {"run_dir": str(Path("a").resolve()), "seed": 1, "workers": 0} | ({"shards": 4} if shards else {})
    assert trial.settings == asked
    assert trial.of_script.defaults == ({} if shards else {"shards": 2})
    trial = study.trial("a", launcher="local", num_processes=2, settings={}, instead={"shards": 1, "seed": 2})
    assert not trial.settings.keys() & {"shards", "seed"}


def test_a_trial_inherits_nothing_of_the_launcher_that_it_runs_under(monkeypatch, tmp_path):
    inherited = {**dict.fromkeys(world.VARIABLES, "1"), "MASTER_ADDR": "a", "PET_NNODES": "2", "MINE": "kept"}
    for name, value in inherited.items():
        monkeypatch.setenv(name, value)
    made = {world.ASKED, world.FAILURE, world.SETTINGS}
    for launcher in ("python", "lockstep", "mpirun"):
        trial = Trial(
            directory=tmp_path,
            name="a",
            program=(),
            launcher=launcher,
            num_processes=1,
            settings={"seed": 1},
            asked={"tune": {}},
            variables={"MORE": "1"},
        )
        found = trial.environment("mark")
        assert not (found.keys() & inherited.keys()) - {"MINE", *made}
        assert (found["MINE"], found["MORE"], found["LOCKSTEP_ATTEMPT"]) == ("kept", "1", "mark")
        assert json.loads(found[world.ASKED])["tune"] == {}
        assert json.loads(found.get(world.SETTINGS, "null")) == (None if launcher == "lockstep" else {"seed": 1})


@pytest.mark.parametrize(
    ("ends", "status", "reason"),
    [
        ("tell(); sys.exit(3)", "failed", "no luck"),
        ("tell()", "ok", None),  # an error that the script has caught
        ("sys.exit(3)", "failed", None),
        ("", "ok", None),
        ("import time; time.sleep(50)", "timeout", None),
    ],
)
def test_a_trial_fails_for_the_reason_that_it_told_and_only_if_it_failed(tmp_path, ends, status, reason):
    tell = (
        f'tell = lambda: open(os.environ[\'{world.FAILURE}\'], \'x\').write(\'{{"summary": "no luck", "report": "all"}}\')'
    )
    (tmp_path / "s.py").write_text(f"import os, sys\n{tell}\n{ends}\n")
    made = Trial(
        directory=tmp_path,
        name="a",
        program=("-S", str(tmp_path / "s.py")),
        launcher="python",
        num_processes=1,
        settings={},
        timeout_s=0.3 if status == "timeout" else 30.0,
    )
    FailureRecord(summary="of an earlier trial", report="").write(str(made.failure))
    found = run_trial(made, Silent())
    assert (found.status, found.command[0]) == (status, sys.executable)
    assert reason is None or found.reason == reason
    assert not made.failure.exists()


def test_a_trial_that_is_killed_has_no_time_to_save(tmp_path):
    script, ready, saved = (tmp_path / name for name in ("s.py", "ready", "saved"))
    script.write_text(
        f"import signal, time\nsignal.signal(signal.SIGTERM, lambda *_: open({str(saved)!r}, 'w'))\n"
        f"open({str(ready)!r}, 'w')\ntime.sleep(50)\n"
    )
    trial = Trial(
        directory=tmp_path,
        name="a",
        program=("-S", str(script)),
        launcher="python",
        num_processes=1,
        settings={},
        kill_when=ready.exists,
    )
    found = run_trial(trial, Silent())
    assert (found.status, found.exit_status, saved.exists()) == ("ok", None, False)
