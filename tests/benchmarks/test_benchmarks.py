"""The benchmarks run and end in a line that others can read; their statistics are right."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


@pytest.fixture
def harness(monkeypatch):
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    import _harness

    return _harness


@pytest.fixture
def hosts(harness, require):
    import _hosts

    require("cluster", _hosts.missing())


def run(name, *options, timeout=500):
    command = [sys.executable, str(BENCHMARKS / f"{name}.py"), *options]
    return subprocess.run(command, capture_output=True, text=True, timeout=timeout, check=False)


NAMES = (
    "startup",
    "measuring_cost",
    "loop_overhead",
    "scaling",
    "exact",
    "fsdp",
    "recovery",
    "checkpoint",
    "resnet50 --device cpu --nproc 2",
    "balance --nproc 2 --shards 8",
    "scale",
    "trainer",
    "shards",
)
LONG = [pytest.param(name, marks=[pytest.mark.long, pytest.mark.longest]) for name in NAMES]


@pytest.mark.parametrize("name", LONG)
def test_a_benchmark_ends_in_one_json_object(name):
    name, *options = name.split()
    check_result(name, run(name, "--quick", "--rounds", "1", *options))


@pytest.mark.long
@pytest.mark.longest
def test_false_differences_of_six_runs_are_counted_in_one_json_object():
    done = run("compare", "--quick")
    assert done.returncode == 0, done.stdout + done.stderr
    result = json.loads(done.stdout.splitlines()[-1])
    assert (result["benchmark"], result["better"], result["runs"], result["comparisons"]) == ("compare", "lower", 6, 1)
    assert result["false_differences"] in (0, 1)
    assert result["half_width"] > 0


@pytest.mark.long
@pytest.mark.longest
@pytest.mark.timeout(200)
@pytest.mark.parametrize("name", ["two_hosts", "host_loss"])
@pytest.mark.usefixtures("hosts")
def test_a_benchmark_between_hosts_ends_in_one_json_object(name, tmp_path):
    where = ("--dir", str(tmp_path)) if name == "host_loss" else ()
    result = check_result(name, run(name, "--quick", "--rounds", "1", *where, timeout=900))
    if name == "two_hosts":
        # 485,960 parameters of 4 bytes over 100 Mbit/s, each way: in less nobody can have exchanged
        # all of their gradients.
        slow = result["links"]["slow link"]["medians_ms"]
        assert len(slow) == 3
        assert all(ms > 0.95 * 485_960 * 4 * 8 / 100e3 for ms in slow.values())
    else:
        lost = result["losses"]["power"]
        assert lost["failed"]["lockstep"] == 0
        stages = list(lost["stages_s"]["lockstep"].values())[:5]
        assert stages == sorted(stages)
        assert stages[-1] == lost["medians_s"]["lockstep"]
        assert not any(tmp_path.iterdir())


@pytest.mark.long
@pytest.mark.longest
def test_planted_faults_are_looked_for_under_both_launchers():
    done = run("diagnosis", "--quick")
    assert done.returncode == 0, done.stdout + done.stderr
    result = json.loads(done.stdout.splitlines()[-1])
    assert (result["named_lockstep"], result["named_torchrun"], result["num_faults"]) == (1, 1, 1)


def check_result(name, done):
    assert done.returncode == 0, done.stdout + done.stderr
    *before, last = done.stdout.splitlines()
    result = json.loads(last)
    assert result["benchmark"] == name
    assert result["quick"] is True
    assert result["better"] == ("higher" if name in ("scaling", "resnet50", "balance") else "lower")
    assert 0 < result["ratio_lower95"] <= result["ratio"] <= result["ratio_upper95"]
    assert result["machine"]["cores"] >= 1
    assert {"python", "torch"} <= set(result["versions"])
    assert isinstance(result["goal"], float)
    assert isinstance(result["goal_met"], bool)
    medians = next(value for key, value in result.items() if key.startswith("medians_"))
    assert all(any(contender in line for line in before) for contender in medians)
    return result


@pytest.mark.long
def test_a_benchmark_that_cannot_work_says_why():
    assert "multiple of 2" in run("scaling", "--batch", "3").stderr
    assert "at least one round" in run("scaling", "--rounds", "0").stderr
    assert "a shard for each process" in run("exact", "--nproc", "3", "--shards", "2").stderr
    assert "--quick" in run("resnet50", "--device", "cpu").stderr


@pytest.mark.long
def test_without_a_gpu_nothing_is_said_of_gpus(monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    done = run("resnet50")
    assert (done.returncode, done.stdout) == (77, "")
    assert "sees no CUDA GPU" in done.stderr


def test_the_ratio_is_that_of_rounds_not_of_medians(harness):
    ratio = harness.paired_ratio([1.0, 20.0, 3.0], [2.0, 40.0, 6.0])
    assert ratio.median == ratio.lower95 == ratio.upper95 == 0.5


def test_bounds_are_order_statistics(harness):
    # Of 11 values the 9th is an upper bound with probability 1 - 67/2048, and the 8th is not good
    # enough.
    bounds = harness.median_bounds(range(1, 12))
    assert (bounds.lower95, bounds.median, bounds.upper95) == (3, 6, 9)
    assert bounds.coverage == pytest.approx(1 - 67 / 2048)


def test_every_contender_runs_once_a_round_in_changing_order(harness):
    seen = []
    contenders = {name: lambda name=name: seen.append(name) or len(seen) for name in "abc"}
    timings = harness.interleave(contenders, 12, say=lambda text: None)
    rounds = [seen[start : start + 3] for start in range(0, 36, 3)]
    assert all(sorted(one) == ["a", "b", "c"] for one in rounds)
    assert len({tuple(one) for one in rounds}) > 1
    assert [len(values) for values in timings.values()] == [12, 12, 12]


def test_contenders_do_not_inherit_the_launcher(monkeypatch):
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    import _crew

    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("LOCKSTEP_STORE", "x")
    environ = _crew.clean_environ({"RANK": "0"})
    assert environ["RANK"] == "0"
    assert "LOCKSTEP_STORE" not in environ
    assert environ["OMP_NUM_THREADS"] == "1"


def test_a_run_that_ends_before_its_time_or_does_not_get_on_is_said_with_its_last_words(harness, tmp_path):
    from _launch import Launch, Stuck

    for command, words in (("echo oh dear; exit 3", r"(?s)status \[3\].*oh dear"), ("exec sleep 30", "does not get on")):
        with (tmp_path / "output").open("w+") as output:
            process = subprocess.Popen(["sh", "-c", f"exec 2>&1; {command}"], stdout=output)
            try:
                with pytest.raises(Stuck, match=words):
                    Launch([process], output, tmp_path / "notes").until(lambda notes: notes, limit_s=1)
            finally:
                process.kill()
                process.wait()
