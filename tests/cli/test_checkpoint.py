"""Promises of ``lockstep checkpoint``."""

import hashlib
import json
import os
import resource
import shutil
import subprocess
import sys
import types
from pathlib import Path

import pytest
import torch
from crew import warm_server
from real_runs import COMMAND, STEPS, run
from rich.console import Console
from safetensors.torch import load_file

from lockstep import load_weights
from lockstep.cli.main import main
from lockstep.state.checkpoint import manifest as manifests
from lockstep.tools.checkpoint import command as verb

pytestmark = [pytest.mark.timeout(120), pytest.mark.quick]

MODEL = {"0.weight": (3, 4), "0.bias": (3,), "1.weight": (3,), "1.bias": (3,), "2.weight": (2, 3), "2.bias": (2,)}
BUFFERS = {"1.running_mean": (3,), "1.running_var": (3,), "1.num_batches_tracked": ()}


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


def flip(path, number=100):
    content = bytearray(path.read_bytes())
    content[number % len(content)] ^= 1
    path.write_bytes(bytes(content))


def cut(path, size=50):
    os.truncate(path, size)


def make_later(path):
    content = json.loads(path.read_text())
    del content["checksum"]
    content["format"] = 99
    path.write_text(json.dumps({**content, "checksum": manifests._digest(content)}))


# inspect


@pytest.mark.long
def test_a_runs_newest_checkpoint_is_shown_in_words(made, call):
    done = call("inspect", made)
    assert (done.status, done.err) == (0, "")
    lines = {line.split("  ")[0]: line for line in done.out.splitlines() if line}
    assert done.out.startswith(f"{saved(made)}\n")
    assert f"step         {STEPS}, in epoch 2" in done.out
    assert "finished" in lines["script"]
    assert "by 1 process" in lines["saved"]
    assert "shards 2, exact True" in lines["settings"]
    assert f"torch {torch.__version__}" in lines["versions"]
    assert "AdamW, prepared with lr 0.01" in lines["optimizer"]
    assert "mine" in lines["registered"]
    assert "batch_size=4" in lines["loader 1"]
    assert "0.75" in lines["best so far"]
    assert lines["model"].split() == ["model", "Sequential", "29", "7", "float32", "model.safetensors"]
    assert lines["model-2"].split() == ["model-2", "Linear", "4", "0", "float32", "model-2.safetensors"]
    assert saved(made, -2).name in lines["others"]
    total = sum(file.stat().st_size for file in saved(made).iterdir() if file.name != "manifest.json")
    assert f"{total / 1000:.1f} kB. To verify their checksums" in done.out


def test_the_place_where_an_unfinished_one_goes_on_is_said(made, call):
    assert "not finished: resumes at epoch 2, in pass 1 over" in call("inspect", saved(made, -2)).out


def test_every_tensor_is_listed_when_asked_for(made, call):
    found = json.loads(call("inspect", made, "--tensors", "--json").out)
    listed = {info["name"]: (info["dtype"], tuple(info["shape"])) for info in found["tensors"]["model.safetensors"]}
    assert {name: shape for name, (_, shape) in listed.items()} == {**MODEL, **BUFFERS}
    assert listed["1.num_batches_tracked"][0] == "int64"
    lines = call("inspect", made, "--tensors").out.splitlines()
    assert ["model.safetensors", "0.weight", "float32", "[3,", "4]"] in [line.split() for line in lines]
    for file, infos in found["tensors"].items():
        held = {
            name: (str(t.dtype).removeprefix("torch."), list(t.shape)) for name, t in load_file(saved(made) / file).items()
        }
        assert {info["name"]: (info["dtype"], info["shape"]) for info in infos} == held


def test_what_other_programs_get_is_the_manifest_and_more(made, call):
    found = json.loads(call("inspect", made, "--json").out)
    manifest = json.loads((saved(made) / "manifest.json").read_text())
    assert found == {**found, **{name: value for name, value in manifest.items() if name != "checksum"}}
    assert (found["directory"], found["best"], found["damage"]) == (str(saved(made)), 0.75, {})
    assert [model["num_parameters"] for model in found["models"]] == [29, 4, 29]
    assert "tensors" not in found


def test_a_path_is_a_checkpoint_or_where_some_are(made, call, monkeypatch):
    def inspected(path):
        return Path(json.loads(call("inspect", path, "--json").out)["directory"])

    assert inspected(made / "checkpoints") == inspected(saved(made)) == inspected(made) == saved(made)
    assert inspected(saved(made, -2)) == saved(made, -2)
    assert inspected(made / "best") == made / "best"
    for place in (saved(made), made, made / "checkpoints"):
        monkeypatch.chdir(place)
        assert inspected(".").absolute() == saved(made)


def test_the_best_weights_are_shown_as_such(made, call):
    done = call("inspect", made / "best")
    assert "the best weights, kept by team.best()" in done.out
    assert ["value", "0.75"] in [line.split() for line in done.out.splitlines()]
    assert "script" not in done.out


def test_damage_that_is_seen_at_once_is_told_and_the_rest_is_shown(mine, call):
    (saved(mine) / "model.safetensors").unlink()
    cut(saved(mine) / "state-0.safetensors")
    done = call("inspect", mine, "--tensors")
    assert done.status == 0
    assert "model.safetensors is missing" in done.out
    assert "state-0.safetensors was damaged: it has 50 bytes, and" in done.out
    assert ["model", "Sequential", "–", "–", "–", "model.safetensors"] in [line.split() for line in done.out.splitlines()]
    assert set(json.loads(call("inspect", mine, "--json").out)["damage"]) == {"model.safetensors", "state-0.safetensors"}
    for content in ("", "[]", '{"best": []}'):
        (saved(mine) / "state.json").write_text(content)
        found = call("inspect", mine, "--json")
        assert (found.status, json.loads(found.out)["best"]) == (0, None)


@pytest.mark.parametrize("verb_name", ["inspect", "verify", "export"])
@pytest.mark.parametrize(
    ("wreck", "said"),
    [
        (lambda d: shutil.rmtree(d), "no such file or directory"),
        (lambda d: shutil.rmtree(d / "checkpoints"), "no checkpoint in it"),
        (lambda d: (saved(d) / "manifest.json").unlink(), "manifest.json is missing"),
        (lambda d: flip(saved(d) / "manifest.json"), "manifest.json was damaged"),
        (lambda d: cut(saved(d) / "manifest.json"), "manifest.json cannot be read"),
        (lambda d: make_later(saved(d) / "manifest.json"), "was written by a newer lockstep"),
    ],
    ids=["no run", "no checkpoint", "no manifest", "flipped", "cut short", "later version"],
)
def test_what_cannot_be_read_is_one_message(mine, call, tmp_path, verb_name, wreck, said):
    wreck(mine)
    done = call(verb_name, mine, *(["out.safetensors"] if verb_name == "export" else []))
    assert done.status == 1
    assert done.err.startswith("error: ")
    assert said in done.err
    assert done.out == ""
    assert not (tmp_path / "out.safetensors").exists()


def test_a_run_with_best_weights_only_is_told_of_them(mine, call):
    shutil.rmtree(mine / "checkpoints")
    assert f"its best weights are in {mine / 'best'}" in call("inspect", mine).err


def test_inspecting_and_verifying_do_not_import_torch(made):
    program = "import sys; from lockstep.cli.main import main\n"
    program += "try: main(['checkpoint', *sys.argv[1:]])\nfinally: assert 'torch' not in sys.modules"
    for args in (("inspect", str(made), "--tensors"), ("verify", str(made), "--all")):
        done = subprocess.run([sys.executable, "-c", program, *args], capture_output=True, text=True, timeout=100)
        assert (done.returncode, done.stderr) == (0, "")


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
    ("wreck", "said"),
    [
        (lambda file: cut(file), "was damaged: it has 50 bytes, and"),
        (lambda file: flip(file), "was damaged: its content is not what was written"),
        (lambda file: flip(file, -1), "was damaged: its content is not what was written"),
        (lambda file: file.unlink(), "is missing"),
        (lambda file: (file.unlink(), file.mkdir()), "damaged"),
    ],
    ids=["cut short", "flipped", "last bit", "gone", "a directory"],
)
@pytest.mark.parametrize("name", ["model.safetensors", "average.safetensors", "state-0.safetensors", "state.json"])
def test_a_damaged_file_is_named_with_what_is_wrong_with_it(mine, call, wreck, said, name):
    wreck(saved(mine) / name)
    done = call("verify", mine)
    assert done.status == 1
    assert done.err.startswith(f"error: {saved(mine) / name} ")
    assert said in done.err
    assert done.err.count("\n") == 1


def test_all_that_is_damaged_is_named(mine, call):
    flip(saved(mine) / "state.json")
    (saved(mine) / "model.safetensors").unlink()
    cut(mine / "best" / "model.safetensors")
    done = call("verify", mine)
    assert "state.json was damaged" in done.err
    assert "model.safetensors is missing" in done.err
    done = call("verify", mine, "--all")
    assert done.status == 1
    assert f"2 of 3 checkpoints in {mine} cannot be used" in done.err
    oldest, newest, best = done.out.splitlines()
    assert "intact" in oldest
    assert "state.json was damaged" in newest
    assert "model.safetensors is missing" in newest
    assert "it has 50 bytes" in best


def test_all_of_one_checkpoint_cannot_be_meant(made, call):
    done = call("verify", saved(made), "--all")
    assert done.status == 2
    assert "leave --all out" in done.err


def test_a_checkpoint_that_a_going_run_replaces_meanwhile_is_not_called_damaged(mine, call, monkeypatch):
    verify_file, newest = verb.verify_file, saved(mine)

    def while_the_run_goes_on(directory, manifest, name, **options):
        if directory == newest and newest.exists():
            newest.rename(newest.with_name("step-00000099"))
        verify_file(directory, manifest, name, **options)

    monkeypatch.setattr(verb, "verify_file", while_the_run_goes_on)
    done = call("verify", mine)
    assert (done.status, done.err) == (0, "")
    assert "step-00000099: intact" in done.out


def test_a_terminal_sees_how_far_it_is(made, call, monkeypatch, capsys):
    monkeypatch.setattr(verb, "_BAR_FROM_BYTES", 1)
    monkeypatch.setattr(verb, "open_console", lambda: Console(width=150, force_terminal=True))
    done = call("verify", made)
    assert (done.status, done.err) == (0, "")
    assert "reading" in done.out
    assert "kB" in done.out


# export


@pytest.mark.long
def test_an_exported_model_loads_without_lockstep_and_is_the_same(made, call, tmp_path):
    done = call("export", made, "weights.safetensors")
    assert (done.status, done.err) == (0, "")
    assert f"of step {STEPS}, 29 parameters in 9 tensors" in done.out
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
    assert load_file(out).keys() == {**MODEL, **BUFFERS}.keys()
    assert [path.name for path in tmp_path.iterdir()] == ["weights.safetensors"]


@pytest.mark.parametrize("wreck", [flip, cut, Path.unlink], ids=["flipped", "cut short", "gone"])
def test_damaged_weights_are_not_exported(mine, call, tmp_path, wreck):
    wreck(saved(mine) / "model.safetensors")
    out = tmp_path / "weights.safetensors"
    out.write_text("precious")
    done = call("export", mine, out, "--force")
    assert done.status == 1
    assert "model.safetensors" in done.err
    assert out.read_text() == "precious"
    assert {path.name for path in tmp_path.iterdir()} == {"runs", "weights.safetensors"}
    assert call("export", mine, tmp_path / "other.safetensors", "--model", "model-2").status == 0


def test_a_file_that_holds_no_weights_is_not_exported_though_its_checksum_is_right(mine, call, tmp_path):
    directory = saved(mine)
    manifest = manifests.Manifest.read(directory)
    content = b"no tensors".ljust(manifest.files["model.safetensors"]["bytes"])
    (directory / "model.safetensors").write_bytes(content)
    manifest.files["model.safetensors"]["sha256"] = hashlib.sha256(content).hexdigest()
    manifest.write(directory)
    done = call("export", mine, "weights.safetensors")
    assert (done.status, "cannot be read as safetensors" in done.err) == (1, True), done.err
    assert [path.name for path in tmp_path.iterdir()] == ["runs"]


def test_a_full_disk_leaves_no_half_file(made, tmp_path):
    done = subprocess.run(
        [*COMMAND, "checkpoint", "export", str(made), "weights.safetensors"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=100,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (100, 100)),
    )
    assert done.returncode == 1
    assert "weights.safetensors could not be written" in done.stderr
    assert "Traceback" not in done.stderr
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("args", "status", "said"),
    [
        (("x.safetensors", "--model", "modle"), 2, "'modle': choose one of model, model-2, average"),
        (("x.pt",), 2, "give it a name that ends in .safetensors"),
        (("no/x.safetensors",), 2, "no: no such directory"),
        (("folder.safetensors",), 2, "is a directory"),
        ((), 2, "Missing argument 'OUT'"),
    ],
)
def test_what_cannot_be_exported_is_one_message(made, call, tmp_path, args, status, said):
    (tmp_path / "folder.safetensors").mkdir()
    done = call("export", made, *args)
    assert done.status == status
    assert said in done.err
    assert [path.name for path in tmp_path.iterdir()] == ["folder.safetensors"]


# The group


def test_who_leaves_the_second_verb_out_is_told_what_there_is(made, call):
    done = call(made)
    assert done.status == 2
    assert "choose one of inspect, verify, export" in done.err
    assert f"lockstep checkpoint inspect {made}" in done.err


@pytest.mark.parametrize("args", [("--help",), ("inspect", "--help"), ("verify", "--help"), ("export", "--help")])
def test_the_help_teaches_with_examples(call, args):
    done = call(*args)
    assert done.status == 0
    assert "Examples:\n    lockstep checkpoint " in done.out
    if args[0] == "export":
        assert 'model.load_state_dict(load_file("weights.safetensors"))' in done.out
