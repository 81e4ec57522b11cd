"""Promises of ``lockstep verify`` as a command."""

import json
import re
import shutil
import signal
import subprocess
import sys
import time
import types
from pathlib import Path

import pytest

from lockstep._base.reports import REFUSED, REPORTS
from lockstep._cli.main import main

pytestmark = pytest.mark.timeout(120)

BRIEFLY = ("--launchers", "local", "--no-resume", "--no-one-device")
PLANTED = Path(__file__).parents[1] / "tools" / "verify" / "diagnosis" / "planted.py"


@pytest.fixture
def verify(capfd, tmp_path, monkeypatch):
    """``lockstep verify ARGS`` in ``tmp_path``: its exit status, the code of its error, its output,
    and its results."""
    monkeypatch.chdir(tmp_path)
    reports = tmp_path.with_name(f"{tmp_path.name}-reports")
    monkeypatch.setenv(REPORTS, str(reports))
    shutil.copy(PLANTED, tmp_path / "train.py")

    def run(*args):
        reports.unlink(missing_ok=True)
        with pytest.raises(SystemExit) as ended:
            main(["verify", *args])
        lines = map(json.loads, reports.read_text().splitlines() if reports.exists() else ())
        code = "".join(line["code"] for line in lines if line["kind"] == REFUSED)
        captured = capfd.readouterr()
        file = tmp_path / "verification" / "results.json"
        results = json.loads(file.read_text()) if file.is_file() else None
        output = captured.out + captured.err
        return types.SimpleNamespace(exit_code=ended.value.code or 0, code=code, output=output, results=results)

    return run


@pytest.mark.usefixtures("warm_trials")
def test_a_script_that_keeps_the_contract_passes_with_the_digest_of_its_weights(verify, tmp_path):
    first = "    first = [parameter.detach().clone() for parameter in model.parameters()]\n"
    text, loop = PLANTED.read_text(), "    for _ in team.epochs(1):\n"
    (tmp_path / "train.py").write_text(text.replace(loop, f"{first}    team.register('first weights', first)\n{loop}"))
    done = verify("--world-sizes", "1,2", *BRIEFLY, "train.py")
    assert done.exit_code == 0, done.output
    assert re.search(r"\[1/2\] 1 process: 2 steps, 16 samples, weights [0-9a-f]{16} \(", done.output)
    assert re.search(r"\[2/2\] 2 processes: 2 steps, 8 \+ 8 samples, .* same", done.output)
    assert (done.results["shards"], done.results["is_shards_chosen"]) == (2, True)
    assert "join(shards=2)" in done.output
    digest = re.search(r"PASS  2 settings, 2 steps, 16 .*: weights ([0-9a-f]{32}) ", done.output)
    found = done.results
    assert (found["verdict"], found["shards"], found["reference"], found["diagnosis"]) == ("pass", 2, 1, None)
    assert {setting["summary"]["weights"] for setting in found["settings"]} == {digest[1]}
    assert {setting["summary"]["strategy"] for setting in found["settings"]} == {"exact"}
    sharded = verify("--strategy", "fsdp", "--world-sizes", "1,2", "--shards", "2", *BRIEFLY, "train.py")
    assert sharded.exit_code == 0, sharded.output
    assert f"PASS  2 settings, 2 steps, 16 samples: weights {digest[1]} " in sharded.output


@pytest.mark.long
@pytest.mark.timeout(300)
@pytest.mark.longest
def test_without_options_launchers_kills_and_one_device_are_verified_too(verify):
    done = verify("--world-sizes", "1,2", "train.py", "longer")
    assert done.exit_code == 0, done.output
    assert re.search(r"\[3/7\] 1 process, python: 6 steps, .* same", done.output)
    assert re.search(r"\[4/7\] 2 processes, torchrun: 6 steps, .* same", done.output)
    assert re.search(r"\[5/7\] 1 process, .* 2 processes .* 3 steps, .* same", done.output)
    assert re.search(r"\[7/7\] 2 shards .* same ", done.output)
    first, second = done.output.partition("not verified:\n")[2].splitlines()[:2]
    assert "killed in the last epoch: " in first
    assert "team.evaluate()" in second
    assert [setting["killed_at"] for setting in done.results["settings"]] == [None, None, None, None, 2, 1]
    assert done.results["one_device"]["status"] == "same"


@pytest.mark.long
@pytest.mark.usefixtures("warm_trials")
def test_what_the_script_fixes_itself_stays_and_what_cannot_be_verified_then_is_said(verify, tmp_path):
    text = PLANTED.read_text().replace("team = lockstep.join()", 'team = lockstep.join(shards=3, checkpoint_every="off")')
    (tmp_path / "train.py").write_text(text)
    done = verify("--world-sizes", "1", "--launchers", "local", "--one-device", "train.py")
    assert done.exit_code == 0, done.output
    assert "V = 3 shards, as in the script" in done.output
    assert (done.results["shards"], done.results["is_shards_chosen"]) == (3, False)
    assert done.results["one_device"]["status"] == "same"
    not_verified = done.output.partition("not verified:\n")[2].splitlines()
    assert not_verified[0].startswith("  1 process, resuming where 1 process was killed: ")
    assert "checkpoint_every" in not_verified[0]


def script(join, in_shard="", after_epoch="", num_epochs=3):
    """A script of three steps an epoch, with lines of the script's own."""
    lines = [
        "import torch, lockstep",
        "from torch.nn import functional as F",
        "from torch.utils.data import DataLoader, TensorDataset",
        f"team = lockstep.join({join})",
        "model = torch.nn.Sequential(torch.nn.Linear(6, 3)); bad = 0",
        "optimizer = torch.optim.SGD(model.parameters(), lr=0.8)",
        "data = TensorDataset(torch.randn(48, 6), torch.arange(48) % 3)",
        "model, optimizer, loader = team.prepare(model, optimizer, DataLoader(data, 16, shuffle=True))",
        f"for epoch in team.epochs({num_epochs}):",
        "    for batch in loader:",
        "        for x, y in batch.shards:",
        "            loss = F.cross_entropy(model(x), y)",
        *(f"            {line}" for line in in_shard.splitlines()),
        "            team.backward(loss)",
        "            batch.add(loss=loss)",
        "        optimizer.step()",
        "        optimizer.zero_grad()",
        *(f"    {line}" for line in after_epoch.splitlines()),
    ]
    return "\n".join(lines) + "\n"


STOPS_EARLY = """\
bad = 0 if epoch == 0 else bad + 1
if bad >= 2: break
"""


@pytest.mark.long
@pytest.mark.usefixtures("warm_trials")
def test_values_that_no_checkpoint_has_are_found_by_a_kill_in_the_last_epoch(verify, tmp_path):
    (tmp_path / "train.py").write_text(script("shards=2", after_epoch=STOPS_EARLY, num_epochs=5))
    done = verify("--world-sizes", "1", "--launchers", "local", "--no-one-device", "train.py")
    assert done.exit_code == 1, done.output
    assert (done.results["first_difference"], done.results["diagnosis"]["cause"]) == (3, "not saved")
    assert done.results["settings"][2]["difference"]["stage"] == "steps"
    assert "team.state(" in done.output
    assert [(finding["name"], finding["code"][:3]) for finding in done.results["findings"]] == [("bad", "LS2")]
    before, _, after = done.output.partition("verifying")
    assert "`bad`" in before
    assert "`bad`" in after


@pytest.mark.long
@pytest.mark.usefixtures("warm_trials")
def test_a_difference_is_told_with_its_place_and_what_the_scripts_text_says_of_it(verify, tmp_path):
    (tmp_path / "train.py").write_text(script("shards=2", in_shard="bad += 1\nloss = loss * bad"))
    done = verify("--world-sizes", "1,2", *BRIEFLY, "train.py")
    assert done.exit_code == 1, done.output
    assert "LS102" in done.output.partition("verifying")[0]
    for text in (
        "FAIL  2 processes differs from 1 process",
        "first difference: step 1 (epoch 1), shard 1: loss",
        "samples of this shard: ",
        "it arose inside a shard",
    ):
        assert text in done.output
    assert re.search(r"likely cause.*\n +train.py:13:\d+: LS102 `bad`", done.output)
    assert "not found" not in done.output
    found = done.results
    assert (found["verdict"], found["first_difference"], found["diagnosis"]["cause"]) == ("fail", 2, "unknown")
    difference = found["settings"][1]["difference"]
    assert (difference["step"], difference["phase"], difference["shard"]) == (1, 0, 1)
    assert difference["values"][0] != difference["values"][1]
    assert found["experiments"] == ["1 process", "2 processes"]
    assert len(list((tmp_path / "verification" / "diagnosis").glob("*.log"))) == 2


@pytest.mark.long
@pytest.mark.longest
def test_of_ranks_that_part_the_error_is_shown(verify):
    done = verify("--world-sizes", "1,2", *BRIEFLY, "train.py", "update by one rank")
    assert done.exit_code == 1, done.output
    assert len(re.findall(r"MismatchError: .* step 1, '0.weight'", done.output)) == 1
    assert "FAIL  2 processes: rank 1 differs from rank 0" in done.output
    assert done.results["diagnosis"]["cause"] == "rank"


@pytest.mark.long
@pytest.mark.longest
def test_a_summed_loss_is_found_by_one_device(verify):
    done = verify("--world-sizes", "1,2", "--launchers", "local", "--no-resume", "train.py", "sum")
    assert done.exit_code == 1, done.output
    assert re.search(r"FAIL  2 shards .* 2 TIMES SMALLER", done.output)
    assert 'remedy: team.backward(loss, reduction="sum")' in done.output
    assert done.results["one_device"]["status"] == "sum"


@pytest.mark.usefixtures("warm_trials")
def test_a_setting_that_fails_by_itself_is_the_last_and_its_error_is_shown_once_and_whole(verify, tmp_path):
    done = verify("--world-sizes", "1,2", *BRIEFLY, "train.py", "fails")
    assert done.exit_code == 1
    assert re.search(r"\[1/2\] 1 process: failed \(", done.output)
    assert "[2/2]" not in done.output
    assert "FAIL  1 process: failed (verification/runs/1-x1-local.log)\n  error: rank 0 of 1" in done.output
    assert done.output.count("RuntimeError: no luck") == 1
    assert {entry.suffix for entry in (tmp_path / "verification" / "runs").iterdir()} == {"", ".log"}
    assert [setting["status"] for setting in done.results["settings"]] == ["failed", "not run"]


@pytest.mark.usefixtures("warm_trials")
def test_what_follows_the_script_is_its_own_also_what_looks_like_an_option(verify, tmp_path):
    (tmp_path / "show.py").write_text("import sys\nraise SystemExit(f'given {sys.argv[1:]}')")
    done = verify("--world-sizes", "1", "show.py", "--", "--epochs", "3", "--seed", "5", "--", "-x")
    assert "given ['--epochs', '3', '--seed', '5', '--', '-x']" in done.output
    assert done.results["args"] == ["--epochs", "3", "--seed", "5", "--", "-x"]


@pytest.mark.parametrize(
    ("source", "code"),
    [("print('hello')", "verify-no-join"), ("import lockstep\nlockstep.join()", "verify-no-step")],
)
@pytest.mark.usefixtures("warm_trials")
def test_a_script_with_nothing_to_verify_is_told_so_after_its_first_run(verify, tmp_path, source, code):
    (tmp_path / "other.py").write_text(source)
    done = verify("--world-sizes", "1,2", "other.py")
    assert (done.exit_code, done.code) == (2, code), done.output
    assert "[2/2]" not in done.output


@pytest.mark.parametrize(
    ("args", "said"),
    [
        (("missing.py",), "missing.py"),
        (("--world-sizes", "1,4", "--shards", "2", "train.py"), "--shards 4"),
        (("--world-sizes", "x", "train.py"), "--world-sizes x: "),
        (("--launchers", "slurm", "train.py"), "local, torchrun, python"),
        (("--world-sizes", "2", *BRIEFLY, "train.py"), "--world-sizes, --workers"),
    ],
)
def test_bad_input_is_refused_before_anything_is_written(verify, tmp_path, args, said):
    done = verify(*args)
    assert done.exit_code == 2
    assert said in done.output
    assert [path.name for path in tmp_path.iterdir()] == ["train.py"]


@pytest.mark.long
def test_a_signal_stops_the_run_and_keeps_what_was_found(tmp_path):
    script = tmp_path / "hang.py"
    script.write_text("import time\nprint('waiting', flush=True)\ntime.sleep(60)\n")
    stopped = subprocess.Popen(
        [sys.executable, "-m", "lockstep._cli.main", "verify", "--world-sizes", "1,2", *BRIEFLY, str(script)],
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    log = tmp_path / "verification" / "runs" / "1-x1-local.log"
    try:
        deadline = time.monotonic() + 30
        while not (log.is_file() and "waiting" in log.read_text()):
            assert time.monotonic() < deadline, "the run never began"
            time.sleep(0.05)
        stopped.terminate()
        output, _ = stopped.communicate(timeout=20)
    finally:
        stopped.kill()
        stopped.communicate()
    assert stopped.returncode == 128 + signal.SIGTERM
    assert "interrupted" in output
    assert "Traceback" not in output
    found = json.loads((tmp_path / "verification" / "results.json").read_text())
    assert [setting["status"] for setting in found["settings"]] == ["interrupted", "not run"]
