"""Promises of ``lockstep checkpoint``."""

import json
import os
import shutil
import subprocess
import sys
import types
from pathlib import Path

import pytest
import torch
from crew import warm_server
from real_runs import STEPS, run
from safetensors.torch import load_file

from lockstep import load_weights
from lockstep._cli.main import main
from lockstep._state.checkpoint import manifest as manifests

pytestmark = [pytest.mark.timeout(120), pytest.mark.quick]


@pytest.fixture(scope="module")
def made(tmp_path_factory, request, outlives_tests):
    """A run that was killed on two processes and finished on one, made by the real command."""
    place, server = tmp_path_factory.mktemp("made"), warm_server(request, outlives_tests)
    run(server, place, "runs/train-1", "--kill", "15", nproc=2, kill=True)
    run(server, place, "runs/train-1", "--kill", "15")
    return place / "runs" / "train-1"


@pytest.fixture
def mine(made, tmp_path):
    """A copy of it, to be damaged."""
    return Path(shutil.copytree(made, tmp_path / "runs" / "train-1"))


@pytest.fixture
def call(capsys, monkeypatch, tmp_path):
    """``lockstep checkpoint ARGS`` in ``tmp_path``: its exit status, and what it printed."""
    monkeypatch.chdir(tmp_path)

    def run(*args):
        with pytest.raises(SystemExit) as ended:
            main(["checkpoint", *map(str, args)])
        captured = capsys.readouterr()
        assert "Traceback" not in captured.err
        return types.SimpleNamespace(status=ended.value.code or 0, out=captured.out, err=captured.err)

    return run


def saved(run_dir, number=-1):
    return sorted((run_dir / "checkpoints").glob("step-*"))[number]


def flip(path):
    content = bytearray(path.read_bytes())
    content[100 % len(content)] ^= 1
    path.write_bytes(bytes(content))


def cut(path, size=50):
    os.truncate(path, size)


def make_later(path):
    content = json.loads(path.read_text())
    del content["checksum"]
    content["format"] = 99
    path.write_text(json.dumps({**content, "checksum": manifests._digest(content)}))


# inspect


def test_a_checkpoints_manifest_is_printed_for_other_programs(made, call):
    found = json.loads(call("inspect", made).out)
    manifest = json.loads((saved(made) / "manifest.json").read_text())
    assert found == {**found, **{name: value for name, value in manifest.items() if name not in ("checksum", "format")}}
    assert (found["directory"], found["step"], found["finished"], found["damage"]) == (str(saved(made)), STEPS, True, {})
    assert found["bytes"] == sum(file.stat().st_size for file in saved(made).iterdir() if file.name != "manifest.json")
    assert "0.weight of shape (3, 4), float32" in found["objects"][0]["lines"]
    assert json.loads(call("inspect", made / "best").out)["metric"] == 0.75


def test_a_path_is_a_checkpoint_or_where_some_are(made, call, monkeypatch):
    def inspected(path):
        return Path(json.loads(call("inspect", path).out)["directory"])

    assert inspected(made / "checkpoints") == inspected(saved(made)) == inspected(made) == saved(made)
    assert inspected(saved(made, -2)) == saved(made, -2)
    assert inspected(made / "best") == made / "best"
    for place in (saved(made), made, made / "checkpoints"):
        monkeypatch.chdir(place)
        assert inspected(".").absolute() == saved(made)


@pytest.mark.parametrize(
    ("wreck", "said"),
    [
        (lambda d: shutil.rmtree(d), "no such file"),
        (lambda d: shutil.rmtree(d / "checkpoints"), "contains no checkpoint"),
        (lambda d: (saved(d) / "manifest.json").unlink(), "manifest.json is missing"),
        (lambda d: flip(saved(d) / "manifest.json"), "manifest.json was damaged"),
        (lambda d: make_later(saved(d) / "manifest.json"), "newer version"),
    ],
    ids=["no run", "no checkpoint", "no manifest", "flipped", "later version"],
)
def test_what_cannot_be_read_is_one_message(mine, call, tmp_path, wreck, said):
    wreck(mine)
    done = call("export", mine, "out.safetensors")
    assert done.status == 1
    assert done.err.startswith("error: ")
    assert said in done.err
    assert done.out == ""
    assert not (tmp_path / "out.safetensors").exists()


# verify


def test_what_is_intact_is_said_to_be(made, call):
    done = call("verify", made)
    assert (done.status, done.err) == (0, "")
    assert f"{saved(made)}: intact (step {STEPS}, " in done.out
    lines = call("verify", made, "--all").out.splitlines()
    assert [line.partition(": intact")[0] for line in lines] == [
        str(p) for p in (saved(made, -2), saved(made), made / "best")
    ]
    assert call("verify", made / "checkpoints", "--all").out.splitlines() == lines


@pytest.mark.parametrize(
    ("name", "wreck", "said"),
    [
        ("model.safetensors", cut, "has 50 bytes"),
        ("average.safetensors", flip, "damaged"),
        ("state.json", Path.unlink, "is missing"),
    ],
    ids=["cut short", "flipped", "gone"],
)
def test_a_damaged_file_is_named_with_what_is_wrong_with_it(mine, call, name, wreck, said):
    wreck(saved(mine) / name)
    done = call("verify", mine)
    assert done.status == 1
    assert done.err.startswith(f"error: {saved(mine) / name} ")
    assert said in done.err
    assert done.err.count("\n") == 1


# export


@pytest.mark.long
def test_an_exported_model_loads_without_lockstep_and_is_the_same(made, call, tmp_path):
    done = call("export", made, "weights.safetensors")
    assert (done.status, done.err) == (0, "")
    assert f"model of step {STEPS}, " in done.out
    program = f"""
import sys
sys.modules["lockstep"] = None
from torch import nn
model = nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3), nn.Linear(3, 2))
{done.out.partition("without lockstep:")[2].replace("  ", "")}
print(model[0].weight.tolist())
"""
    loaded = subprocess.run([sys.executable, "-c", program], cwd=tmp_path, capture_output=True, text=True, timeout=100)
    assert loaded.returncode == 0, loaded.stderr
    weights = load_weights(made)
    assert json.loads(loaded.stdout) == weights["0.weight"].tolist()
    written = load_file(tmp_path / "weights.safetensors")
    assert weights.keys() == written.keys()
    assert all(torch.equal(weights[name], written[name]) for name in weights)


@pytest.mark.parametrize("model", ["model", "model-2", "average"])
def test_each_model_can_be_exported_from_each_checkpoint(made, call, tmp_path, model):
    for number, path in enumerate((made, saved(made, -2), made / "best")):
        out = tmp_path / f"{number}.safetensors"
        assert call("export", path, out, "--model", model).status == 0
        weights, written = load_weights(path, model), load_file(out)
        assert weights.keys() == written.keys()
        assert all(torch.equal(weights[name], written[name]) for name in weights)


def test_nothing_is_overwritten_unless_told_to(made, call, tmp_path):
    out = tmp_path / "weights.safetensors"
    out.write_text("precious")
    done = call("export", made, out)
    assert done.status == 2
    assert "--force to overwrite it" in done.err
    assert out.read_text() == "precious"
    assert call("export", made, out, "--force").status == 0
    assert load_file(out).keys() == load_weights(made).keys()
    assert [path.name for path in tmp_path.iterdir()] == ["weights.safetensors"]


def test_damaged_weights_are_not_exported(mine, call, tmp_path):
    flip(saved(mine) / "model.safetensors")
    out = tmp_path / "weights.safetensors"
    out.write_text("precious")
    done = call("export", mine, out, "--force")
    assert done.status == 1
    assert "model.safetensors" in done.err
    assert out.read_text() == "precious"
    assert {path.name for path in tmp_path.iterdir()} == {"runs", "weights.safetensors"}
    assert call("export", mine, tmp_path / "other.safetensors", "--model", "model-2").status == 0


@pytest.mark.parametrize(
    ("args", "status", "code"),
    [
        (("x.safetensors", "--model", "modle"), 2, "unknown-name"),
        (("x.pt",), 2, "export-name"),
        (("no/x.safetensors",), 1, "file-not-writable"),
        (("folder.safetensors",), 2, "export-to-directory"),
    ],
)
def test_what_cannot_be_exported_is_one_message(made, call, refusals, tmp_path, args, status, code):
    (tmp_path / "folder.safetensors").mkdir()
    done = call("export", made, *args)
    assert (done.status, refusals()) == (status, [code])
    assert sorted(path.name for path in tmp_path.iterdir()) == ["folder.safetensors", "refusals.jsonl"]
