"""TRL's trainers have the same results on one process, on two, and after a kill, including TRL's
metrics."""

import hashlib
import shutil
import signal

import made
import pytest
from warm_trainer import SCRIPTS, history, killed_after, trainer_server, with_trainer

from lockstep._events.history import read_launches

__all__ = ["trainer_server", "with_trainer"]

pytestmark = [pytest.mark.long, pytest.mark.timeout(120)]


def answer(folder):
    weights = {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in folder.glob("*.safetensors")}
    return weights, history(folder)


@pytest.mark.parametrize("name", ["sft", "dpo"])
def test_a_trainer_of_trl_gives_one_answer_on_two_processes_and_after_a_kill(name, with_trainer, tmp_path):
    (tmp_path / "data").mkdir()
    made.language_model(tmp_path / "data")
    script, run_dir = tmp_path / f"{name}.py", tmp_path / "killed-run"
    shutil.copy(SCRIPTS / "killing.py", tmp_path)
    shutil.copy(SCRIPTS / script.name, script)
    undisturbed = script.read_text()
    with_trainer(script, "data", "alone", nproc=1)
    options = ("--run-dir", run_dir, "--checkpoint-every", "2")
    script.write_text(killed_after(4, run_dir, undisturbed))
    with_trainer(script, "data", "killed", nproc=1, options=options, status=128 + signal.SIGKILL)
    script.write_text(undisturbed)
    with_trainer(script, "data", "killed", nproc=2, options=options)
    first, resumed = (launch.resumed_after for launch in read_launches(run_dir))
    assert first is None
    assert resumed > 0
    weights, logs = answer(tmp_path / "alone")
    assert weights
    assert {"num_tokens", "mean_token_accuracy"} <= logs[0].keys()
    assert answer(tmp_path / "killed") == (weights, logs)
