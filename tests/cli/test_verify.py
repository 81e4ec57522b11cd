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

from lockstep.cli.main import main

pytestmark = pytest.mark.timeout(120)

PLANTED = Path(__file__).parents[1] / "analysis" / "planted.py"


@pytest.fixture
def verify(capfd, tmp_path, monkeypatch):
    """``lockstep verify ARGS`` in ``tmp_path``: its exit status, all that it printed, and its results."""
    monkeypatch.chdir(tmp_path)
    shutil.copy(PLANTED, tmp_path / "train.py")

    def run(*args):
        with pytest.raises(SystemExit) as ended:
            main(["verify", *args])
        captured = capfd.readouterr()
        file = tmp_path / "verification" / "results.json"
        results = json.loads(file.read_text()) if file.is_file() else None
        return types.SimpleNamespace(exit_code=ended.value.code or 0, output=captured.out + captured.err, results=results)

    return run


def test_a_script_that_keeps_the_contract_passes_with_the_digest_of_its_weights(verify):
    done = verify("train.py", "--world-sizes", "1,2", "--workers", "0,1")
    assert done.exit_code == 0, done.output
    assert re.search(r"\[1/4\] 1 process, 0 loader workers: 2 steps, 16 samples, weights [0-9a-f]{16} \(", done.output)
    assert re.search(r"\[4/4\] 2 processes, 1 loader worker: 2 steps, 8 \+ 8 samples, .*, the same", done.output)
    digest = re.search(
        r"PASS  4 settings, 2 steps, 16 samples: weights ([0-9a-f]{32})  \(each sample used once", done.output
    )
    found = done.results
    assert (found["verdict"], found["shards"], found["reference"], found["diagnosis"]) == ("pass", 2, 1, None)
    assert {setting["summary"]["weights"] for setting in found["settings"]} == {digest[1]}
    assert {setting["summary"]["strategy"] for setting in found["settings"]} == {"exact"}


@pytest.mark.long
def test_a_difference_is_told_with_its_place_cause_line_and_remedy(verify, tmp_path):
    done = verify("train.py", "--world-sizes", "1,2", "--", "set")
    assert done.exit_code == 1, done.output
    line = 1 + next(i for i, text in enumerate(PLANTED.read_text().splitlines()) if "for name in {" in text)
    for text in (
        "FAIL  2 processes differs from 1 process",
        "first difference: step 1 (epoch 1), shard 0: loss",
        "samples of this shard: ",
        "likely cause: the order of a Python set",
        f"train.py:{line}  a set:  for name in ",
        "remedy: iterate over sorted(the_set)",
    ):
        assert text in done.output
    found = done.results
    assert (found["verdict"], found["first_difference"], found["diagnosis"]["cause"]) == ("fail", 2, "set order")
    difference = found["settings"][1]["difference"]
    assert (difference["step"], difference["shard"]) == (1, 0)
    assert difference["values"][0] != difference["values"][1]
    assert len(found["experiments"]) == len(list((tmp_path / "verification" / "diagnosis").glob("*.log")))


@pytest.mark.long
@pytest.mark.parametrize(
    ("fault", "cause"),
    [
        ("os.urandom", "random"),
        ("threads", "threads"),
        ("unknown kernel", "timing"),
        ("update by one rank", "rank"),
    ],
)
def test_a_planted_cause_is_named_by_the_command(verify, fault, cause):
    # More of them are planted in analysis/test_planted_causes.py, with the same experiments in warm processes.
    done = verify("train.py", "--world-sizes", "1,2", "--", fault)
    assert done.exit_code == 1, done.output
    assert done.results["diagnosis"]["cause"] == cause, done.output


def test_a_script_that_learns_nothing_fails(verify):
    done = verify("train.py", "--world-sizes", "1", "--workers", "0,1", "--", "learns nothing")
    assert done.exit_code == 1
    assert "FAIL  nothing was learned: no weight moved in any step" in done.output


def test_a_setting_in_which_the_script_fails_says_so_with_the_first_error(verify):
    done = verify("train.py", "--world-sizes", "1,2", "--", "fails")
    assert done.exit_code == 1
    assert re.search(r"\[2/2\] 2 processes: failed: RuntimeError: no luck", done.output)
    assert re.search(r"FAIL  1 process: failed: RuntimeError: no luck \(verification/runs/1-x1-local.log\)", done.output)


def test_a_run_that_takes_too_long_is_stopped_with_all_it_started(verify, tmp_path):
    (tmp_path / "hang.py").write_text("import time\ntime.sleep(60)\n")
    done = verify("hang.py", "--world-sizes", "1,2", "--timeout-per-run", "1")
    assert done.exit_code == 1
    assert done.output.count("did not end within 1 s and was stopped") >= 2


@pytest.mark.parametrize(
    ("source", "said"),
    [
        ("print('hello')", "never called lockstep.join()"),
        ("import lockstep\nlockstep.join()", "no step was taken"),
    ],
)
def test_a_script_with_nothing_to_verify_is_told_so_after_its_first_run(verify, tmp_path, source, said):
    (tmp_path / "other.py").write_text(source)
    done = verify("other.py", "--world-sizes", "1,2")
    assert done.exit_code == 2
    assert said in done.output
    assert "[2/2]" not in done.output


@pytest.mark.parametrize(
    ("args", "said"),
    [
        (("missing.py",), "missing.py"),
        (("train.py", "--world-sizes", "1,4", "--shards", "2"), "--shards 4 or more"),
        (("train.py", "--world-sizes", "x"), "--world-sizes x: write whole numbers"),
        (("train.py", "--launchers", "slurm"), "unknown launcher 'slurm': choose one of local, torchrun"),
        (("train.py", "--world-sizes", "2"), "one setting only"),
    ],
)
def test_bad_input_is_refused_before_anything_is_written(verify, tmp_path, args, said):
    done = verify(*args)
    assert done.exit_code == 2
    assert said in done.output
    assert [path.name for path in tmp_path.iterdir()] == ["train.py"]


def test_the_help_teaches_with_examples(verify):
    text = verify("--help").output
    for word in ("Examples:", "--world-sizes 1,2,3,4 --workers 0,2 --launchers local,torchrun", "1 after FAIL"):
        assert word in text


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_stops_the_run_and_keeps_what_was_found(tmp_path, number):
    script = tmp_path / "hang.py"
    script.write_text("import time\nprint('waiting', flush=True)\ntime.sleep(60)\n")
    stopped = subprocess.Popen(
        [sys.executable, "-m", "lockstep.cli.main", "verify", str(script), "--world-sizes", "1,2"],
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
        stopped.send_signal(number)
        output, _ = stopped.communicate(timeout=20)
    finally:
        stopped.kill()
        stopped.communicate()
    assert stopped.returncode == 128 + number
    assert "interrupted" in output
    assert "Traceback" not in output
    found = json.loads((tmp_path / "verification" / "results.json").read_text())
    assert [setting["status"] for setting in found["settings"]] == ["interrupted", "not run"]
