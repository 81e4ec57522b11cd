"""Scripts from transformers' examples, with one line changed, have the same results on any number
of processes, through kills."""

import json
import os
import shutil
import signal
import subprocess
import sys
from dataclasses import dataclass

import made
import pytest
from warm_trainer import ENVIRONMENT, SCRIPTS, killed_after, on_lockstep, outcome, trainer_server, with_trainer

from lockstep._events.history import read_launches

__all__ = ["trainer_server", "with_trainer"]

pytestmark = [pytest.mark.long, pytest.mark.timeout(120)]

EVERY = 3
"""Steps from checkpoint to checkpoint of the run."""
SAME = "--report_to none --use_cpu --disable_tqdm True --seed 3 --logging_steps 3 --shards 4 --eval_strategy epoch"
TINY = "--config_name data/tiny --per_device_eval_batch_size 4"


@dataclass(frozen=True)
class Program:
    """A script, and what it is called with."""

    script: str
    make: object
    args: str
    kills: tuple[tuple[int, int], ...]
    """Numbers of processes, and steps after which they are killed."""
    last: int
    """Processes that continue to the end."""


PROGRAMS = {
    "clm": Program(
        "clm.py",
        made.language_model,
        f"{TINY} {SAME} --tokenizer_name data/tiny --train_file data/train.txt --validation_file data/validation.txt "
        "--do_train --do_eval --per_device_train_batch_size 2 --num_train_epochs 2 --gradient_accumulation_steps 2 "
        "--learning_rate 5e-3 --warmup_steps 4 --lr_scheduler_type cosine",
        kills=((2, 7), (3, 13)),
        last=1,
    ),
    "classify": Program(
        "classify.py",
        made.classifier,
        f"{TINY} {SAME} --train_file data/train.json --validation_file data/validation.json --test_file data/test.json "
        "--per_device_train_batch_size 4 --num_train_epochs 9 --learning_rate 1e-2 --warmup_steps 4 "
        "--label_smoothing_factor 0.1 --save_strategy epoch --save_total_limit 2 --load_best_model_at_end "
        "--metric_for_best_model accuracy",
        kills=((3, 33),),
        last=2,
    ),
}


@pytest.fixture(params=PROGRAMS.values(), ids=PROGRAMS)
def program(request):
    return request.param


@pytest.fixture
def words(program, tmp_path):
    """``words(name)``: the script's arguments, for an output directory of that name. The data are
    made here."""
    (tmp_path / "data").mkdir()
    program.make(tmp_path / "data")
    return lambda name: [*program.args.split(), "--output_dir", name]


def test_a_public_script_gives_one_answer_on_any_number_of_processes_and_through_kills(
    program, words, with_trainer, tmp_path
):
    script, found = on_lockstep(program.script, tmp_path), {}
    for nproc in (1, 2, 3):
        with_trainer(script, *words(f"on-{nproc}"), nproc=nproc)
        found[nproc] = outcome(tmp_path / f"on-{nproc}")
    assert found[2] == found[1]
    assert found[3] == found[1]
    shutil.copy(SCRIPTS / "killing.py", tmp_path)
    undisturbed, run_dir = script.read_text(), tmp_path / "killed-run"
    options = ("--run-dir", run_dir, "--checkpoint-every", EVERY)
    for nproc, step in program.kills:
        script.write_text(killed_after(step, run_dir, undisturbed))
        with_trainer(script, *words("killed"), nproc=nproc, options=options, status=128 + signal.SIGKILL)
    script.write_text(undisturbed)
    with_trainer(script, *words("killed"), nproc=program.last, options=options)
    first, *resumed = (launch.resumed_after for launch in read_launches(run_dir))
    assert first is None
    assert len(resumed) == len(program.kills)
    assert 0 < resumed[0] <= resumed[-1]
    assert outcome(tmp_path / "killed") == found[1]


def test_torchrun_gives_the_answer_of_one_process(with_trainer, tmp_path):
    """(Of one script: each process imports all that it needs.)"""
    program = PROGRAMS["clm"]
    (tmp_path / "data").mkdir()
    program.make(tmp_path / "data")
    script, args = on_lockstep(program.script, tmp_path), program.args.split()
    with_trainer(script, *args, "--output_dir", "alone", nproc=1)
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    done = subprocess.run(
        [*torchrun, str(script), *args, "--output_dir", "by-torchrun"],
        cwd=tmp_path,
        env={**os.environ, **ENVIRONMENT, "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert outcome(tmp_path / "by-torchrun") == outcome(tmp_path / "alone")


def test_fsdp_on_two_processes_gives_the_answer_of_exact_on_one(with_trainer, tmp_path):
    program = PROGRAMS["clm"]
    (tmp_path / "data").mkdir()
    program.make(tmp_path / "data")
    script = on_lockstep(program.script, tmp_path)
    args = [*program.args.split(), "--optim", "adamw_torch", "--dataloader_drop_last", "True"]
    for nproc, strategy in ((1, "exact"), (2, "fsdp")):
        with_trainer(script, *args, "--output_dir", strategy, nproc=nproc, options=("--strategy", strategy))
    assert outcome(tmp_path / "fsdp") == outcome(tmp_path / "exact")


@pytest.mark.longest
@pytest.mark.timeout(600)
def test_verify_passes(tmp_path):
    program = PROGRAMS["clm"]
    (tmp_path / "data").mkdir()
    program.make(tmp_path / "data")
    args = [arg.replace("data/", f"{tmp_path}/data/") for arg in program.args.split()]
    command = [
        sys.executable,
        "-m",
        "lockstep",
        "verify",
        "--world-sizes",
        "1,2,3",
        str(on_lockstep(program.script, tmp_path)),
    ]
    done = subprocess.run(
        [*command, *args, "--output_dir", str(tmp_path / "out")],
        cwd=tmp_path,
        env={**os.environ, **ENVIRONMENT, "CUDA_VISIBLE_DEVICES": ""},
        capture_output=True,
        text=True,
        timeout=2400,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    settings = json.loads((tmp_path / "verification" / "results.json").read_text())["settings"]
    assert len(settings) >= 7
    assert {setting["status"] for setting in settings} == {"ok"}, settings
