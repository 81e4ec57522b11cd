"""Fixtures to run scripts of transformers' Trainer: their processes are forked from one that has
imported it already."""

import hashlib
import importlib.util
import json
from pathlib import Path

import pytest
from warm import run_on

from lockstep._launch.server import WARM, ForkServer

SCRIPTS = Path(__file__).parent / "scripts"
PLAIN = "from transformers import Trainer, TrainingArguments"
OURS = "from lockstep.integrations.transformers import Trainer, TrainingArguments"
IMPORTED = (
    "datasets",
    "peft",
    "transformers.trainer",
    "transformers.models.bert.modeling_bert",
    "transformers.models.gpt2.modeling_gpt2",
    "trl.trainer.dpo_trainer",
    "trl.trainer.sft_trainer",
)
CLOCKS = ("runtime", "per_second")
"""In the names of what differs from launch to launch."""
ENVIRONMENT = {"HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false", "PYTHONUNBUFFERED": ""}


@pytest.fixture(scope="session")
def trainer_server(outlives_tests, require):
    """A fork server for ``lockstep run`` that has imported transformers, in seconds that each
    process would take."""
    for name in ("transformers", "datasets", "trl"):
        require(name, None if importlib.util.find_spec(name) else f"{name} is not installed (pip install {name})")
    server = ForkServer.start()
    server.warm([*IMPORTED, *WARM])
    outlives_tests(server.pid)
    yield server
    server.close()


@pytest.fixture
def with_trainer(trainer_server, tmp_path):
    """``with_trainer(script, *args, nproc=, options=(), status=0)``: ``lockstep run``, to its end;
    what it printed."""

    def run(script, *args, nproc, options=(), status=0, env=None):
        words = ["--nproc-per-node", nproc, "--threads", "1", "--device", "cpu", *options, script, *args]
        done = run_on(trainer_server, tmp_path, [str(word) for word in words], env={**ENVIRONMENT, **(env or {})})
        assert done.returncode == status, done.stdout + done.stderr
        return done.stdout + done.stderr

    return run


def on_lockstep(name, folder):
    """The script in this folder, with another line of imports."""
    text = (SCRIPTS / name).read_text()
    assert text.count(PLAIN) == 1
    script = folder / name
    script.write_text(text.replace(PLAIN, OURS))
    return script


def killed_after(step, run_dir, text):
    """Returns a script's text, for use with ``killing.py``, in which each process is killed at the
    end of that step of training."""
    train = "result = trainer.train("
    assert text.count(train) == 1
    return text.replace(train, f"trainer.add_callback(__import__('killing').KillAfter({step}, {str(run_dir)!r})); {train}")


def outcome(folder):
    """Digests of all that a script has left which the clock does not decide: weights, log history,
    metrics, predictions."""
    weights = hashlib.sha256((folder / "model.safetensors").read_bytes()).hexdigest()
    state = json.loads((folder / "trainer_state.json").read_text())
    metrics = {path.name: timeless(json.loads(path.read_text())) for path in folder.glob("*_results.json")}
    predictions = {path.name: path.read_text() for path in folder.glob("*_results.txt")}
    steps = {name: state[name] for name in ("global_step", "best_metric", "best_global_step")}
    return {"weights": weights, "history": history(folder), "steps": steps, "metrics": metrics, "predictions": predictions}


def history(folder):
    """The log history in the state that the script has saved."""
    return [timeless(entry) for entry in json.loads((folder / "trainer_state.json").read_text())["log_history"]]


def timeless(values):
    return {name: value for name, value in values.items() if not any(clock in name for clock in CLOCKS)}
