"""What is probably not meant is said before anything starts; and nothing is said of what may well be meant."""

import textwrap

import pytest

from lockstep.launch.doubts import doubts
from lockstep.launch.options import LaunchOptions
from lockstep.launch.program import check_script
from lockstep.launch.source import Source

ALONE = """
    import random
    import numpy as np
    import torch
    import model
    optimizer = torch.optim.SGD(model.make().parameters(), lr=0.1)
"""
MODEL = "import torch\ndef make(): return torch.nn.Linear(1, 1)\n"


@pytest.fixture
def said(tmp_path):
    """``said(source, args, several=False, model=...)``: the sentences on a script, and a module of its own beside it."""

    def call(source, args=(), *, several=False, model=MODEL):
        path = tmp_path / "train.py"
        path.write_text(textwrap.dedent(source))
        (tmp_path / "model.py").write_text(model)
        source = Source.read(path)
        script = check_script(str(path), source, args, LaunchOptions(pass_local_rank="none", spawns="no"))
        return list(doubts(script, source, are_several=several))

    return call


def test_several_trainings_in_place_of_one_are_told(said):
    (sentence,) = said(ALONE, several=True)
    assert "each trains a model of its own" in sentence
    assert said(ALONE) == []


@pytest.mark.parametrize(
    "more",
    [
        '"""Trains alone."""\n',
        "import timm, einops\n",
    ],
)
def test_they_are_told_whatever_else_such_a_script_says(said, more):
    assert len(said(more + textwrap.dedent(ALONE), several=True)) == 1


@pytest.mark.parametrize(
    ("source", "model"),
    [
        ("import lockstep\nteam = lockstep.join()\n", MODEL),
        ("from lockstep import join as enter\nteam = enter()\n", MODEL),
        ("import torch.distributed as dist\n", MODEL),
        ("import os; part = os.environ['PART']\n", MODEL),
        ("import accelerate\n", MODEL),
        ("from transformers import Trainer\n", MODEL),
        ("", MODEL + "import lockstep as ls\ndef start(): return ls.join()\n"),
        ("", MODEL + "from pytorch_lightning import LightningModule\n"),
    ],
)
def test_nothing_is_said_where_something_may_make_the_processes_one_training(said, source, model):
    assert said(source + textwrap.dedent(ALONE), several=True, model=model) == []


def test_a_script_without_an_optimizer_may_run_several_times(said):
    assert said("print('hello')", several=True) == []


def test_options_of_the_command_after_the_script_are_told_unless_the_script_has_them(said):
    (sentence,) = said("import lockstep", ["--epochs", "3", "--nproc-per-node=2", "--nproc-per-node", "2"])
    assert sentence.startswith("WARNING: --nproc-per-node comes after ")
    assert sentence.endswith(" lockstep run --nproc-per-node=2 " + sentence.split()[4].rstrip(",") + " ...")
    assert "lockstep run --nproc_per_node 2 /" in said("", ["--nproc_per_node", "2", "--epochs", "3"])[0]
    assert len(said("", ["--shards", "4", "--run-dir", "x"])) == 2
    assert said("add_argument('--shards')", ["--shards", "4"]) == []
    assert said("shards: int = 4", ["--shards", "4", "--seed", "1", "shards", "--", "--run-dir"]) == []
    assert said("def main(nproc_per_node): ...", ["--nproc-per-node", "2"]) == []
