"""Promises of ``lockstep compare`` as a command."""

import json
import types

import pytest

from lockstep._cli.main import main

pytestmark = pytest.mark.timeout(60)

SCRIPT = """
import json, os, sys, time
from pathlib import Path
from lockstep._events.writer import EventWriter

settings = json.loads(os.environ["LOCKSTEP_SETTINGS"])
if "hang" in sys.argv:
    time.sleep(60)
run_dir = Path(settings["run_dir"])
run_dir.mkdir()
events = EventWriter(run_dir)
events.write("start", world_size=1, device="cpu", num_cores=4)
events.write("epoch", epoch=0, num_samples=100, steady_samples=80, steady_s=0.5, cpu_s=[0.5], peak_rss_bytes=[1000])
"""


@pytest.fixture
def script(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").write_text(SCRIPT)
    return "train.py"


@pytest.fixture
def compare(capfd):
    """``lockstep compare ARGS``: its exit status, and all that it printed."""

    def run(*args):
        with pytest.raises(SystemExit) as ended:
            main(["compare", *args])
        captured = capfd.readouterr()
        return types.SimpleNamespace(exit_code=ended.value.code or 0, output=captured.out + captured.err)

    return run


@pytest.mark.long
@pytest.mark.usefixtures("script")
def test_prints_the_table_and_writes_results(compare, tmp_path):
    done = compare("--methods", "single@python", "--rounds", "1", "-m", "train", "--epochs", "3")
    assert done.exit_code == 0, done.output
    assert "160" in done.output
    assert "[1/1] single@python ×1: 160 samples/s" in done.output
    results = json.loads((tmp_path / "comparison" / "results.json").read_text())
    assert results["rows"][0]["command"][1:] == ["-m", "train", "--epochs", "3"]
    assert (results["script"], results["is_module"], results["args"]) == ("train", True, ["--epochs", "3"])


REAL = """
import torch, lockstep
from torch.utils.data import DataLoader, TensorDataset

team = lockstep.join()
inputs = torch.randn(64, 4, generator=torch.Generator().manual_seed(0))
model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
loader = DataLoader(TensorDataset(inputs, inputs.sum(1, keepdim=True)), 8, shuffle=True)
model, optimizer, loader = team.prepare(model, optimizer, loader)
for epoch in team.epochs(2):
    for batch in loader:
        for inputs, targets in batch.shards:
            loss = torch.nn.functional.mse_loss(model(inputs), targets)
            team.backward(loss)
            batch.add(loss=loss)
        team.log(loss=batch["loss"])
        optimizer.step()
        optimizer.zero_grad()
"""


@pytest.mark.long
@pytest.mark.usefixtures("warm_trials")
def test_training_for_real_gives_the_answer_of_one_process_on_two(compare, tmp_path):
    script, out = tmp_path / "real.py", tmp_path / "out"
    script.write_text(REAL)
    done = compare("--methods", "single,ddp", "--nproc", "2", "--rounds", "1", "--out", str(out), str(script))
    assert done.exit_code == 0, done.output
    single, ddp = json.loads((out / "results.json").read_text())["rows"]
    assert (single["reason"], ddp["reason"]) == (None, None)
    assert ddp["figures"]["num_processes"] == 2
    assert ddp["figures"]["samples_per_epoch"] == single["figures"]["samples_per_epoch"] == 64
    assert ddp["figures"]["peak_rss_bytes"] > 1.5 * single["figures"]["peak_rss_bytes"]
    assert abs(ddp["against_baseline"]["loss_difference"]) < 1e-6


def test_a_comparison_of_which_nothing_could_run_fails(compare, script):
    failing = compare("--methods", "single@python", "--timeout-per-method", "1", script, "hang")
    assert failing.exit_code == 1
    assert "did not finish within 1 s" in failing.output
    assert "no method could run" in failing.output


@pytest.mark.parametrize(
    ("args", "said"),
    [
        (("missing.py",), "missing.py"),
        (("--methods", "warp", "train.py"), "'warp'"),
        (("--nproc", "1,x", "train.py"), "--nproc 1,x: "),
        (("--nproc", "4", "--shards", "2", "train.py"), "--shards 4 or more"),
    ],
)
def test_bad_input_is_refused_before_anything_is_written(compare, script, tmp_path, args, said):
    done = compare(*args)
    assert done.exit_code == 2
    assert said in done.output
    assert [path.name for path in tmp_path.iterdir()] == ["train.py"]
