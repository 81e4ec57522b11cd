"""``same_at`` finds what differs between numbers of processes and after a kill, and leaves nothing
behind."""

import functools
import signal
import subprocess
import sys
import tempfile
import textwrap

import pytest
import torch
from tested_trainings import never_joins, takes_no_step, train

from lockstep._base.errors import LaunchError, UsageError
from lockstep.testing import DifferenceError, TimeLimitError

pytestmark = pytest.mark.timeout(60)


@pytest.mark.quick
def test_what_computes_the_same_passes_and_its_result_is_returned(check_same, capsys):
    weights = check_same((1, 2, 3), train, "", "weights")
    assert [tuple(tensor.shape) for tensor in weights.values()] == [(3, 4), (3,), (1, 3), (1,)]
    assert not torch.equal(weights["0.weight"], torch.zeros(3, 4))
    said = capsys.readouterr().out.splitlines()
    for world, name in ((1, "1 process"), (2, "2 processes"), (3, "3 processes")):
        assert {line for line in said if line.startswith(f"[{name}") and "hello" in line} == {
            f"[{name}, rank {rank}] hello from {rank}" for rank in range(world)
        }


def test_killed_runs_resume_to_the_same(check_same):
    loss = check_same((1, 2), train, kill=True)
    assert loss == check_same((2, 1), train)


def test_the_functions_own_settings_hold_but_where_a_test_must_decide(check_same, tmp_path, monkeypatch):
    # of its own: other tests run at the same time
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "t"))
    (tmp_path / "t").mkdir()
    own = tmp_path / "runs" / "own"
    with_settings = functools.partial(train, shards=4, run_dir=str(own), checkpoint_every=2, seed=3)
    loss = check_same((1, 2), with_settings)
    assert loss != check_same((1, 2), train)
    assert not own.exists()
    assert not list((tmp_path / "t").glob("lockstep-test-*"))


def differs(check_same, *args, worlds=(1, 2), **more):
    with pytest.raises(DifferenceError) as raised:
        check_same(worlds, train, *args, **more)
    assert isinstance(raised.value, AssertionError)
    return raised.value


def test_a_loss_that_depends_on_the_rank_is_found_where_it_arises(check_same):
    error = differs(check_same, "rank", shards=2)
    assert (error.worlds, error.step, error.stage, error.phase, error.shard) == ((1, 2), 1, "loss", 0, 1)
    assert len(error.samples) == 4
    assert error.cause == "unknown"  # each run repeats, and the ranks of each agree
    ratio = float(error.values[1]) / float(error.values[0])
    assert ratio == pytest.approx(2.0)
    assert all(part in str(error) for part in ("step 1", "shard 1", "loss", str(error.samples[0]), *error.values))


@pytest.mark.quick
def test_ranks_that_part_are_found_though_the_run_fails_by_it(check_same):
    error = differs(check_same, "update")
    assert (error.worlds, error.step, error.stage) == ((2, 2), 1, "ranks")
    assert "MismatchError" in str(error)


@pytest.mark.parametrize(("result", "worlds"), [("shards", (1, 2)), pytest.param("rank", (2, 2), marks=pytest.mark.quick)])
def test_a_result_that_differs_is_found(check_same, result, worlds):
    error = differs(check_same, "", result)
    assert (error.worlds, error.stage, error.step) == (worlds, "result", None)
    assert error.values[0] != error.values[1]


@pytest.mark.quick
def test_a_result_that_a_resumed_run_has_lost_is_found(check_same):
    error = differs(check_same, "", "losses", kill=True)
    assert (error.worlds, error.stage, error.killed_at, error.cause) == ((1, 1), "result", 2, "not saved")


def test_results_need_not_be_compared(check_same):
    assert check_same((1, 2), train, "", "shards", compare_result=False) == 12
    assert check_same((2, 1), train, "", "model", compare_result=False) is not None


@pytest.mark.quick
def test_a_result_that_cannot_be_compared_is_refused(check_same):
    with pytest.raises(UsageError, match="state_dict"):
        check_same((1, 2), train, "", "model")


@pytest.mark.quick
@pytest.mark.parametrize(
    ("fn", "args", "more"), [(never_joins, (), {}), (takes_no_step, (), {}), (train, ("", "loss", 1, 8), {"kill": True})]
)
def test_a_function_that_shows_nothing_is_refused(check_same, fn, args, more):
    with pytest.raises(UsageError):
        check_same((1, 2), fn, *args, **more)


@pytest.mark.parametrize("fault", ["raise", "raise in step 4"])
def test_a_rank_that_fails_is_shown_with_its_line(check_same, fault):
    # Up to where it fails the run is as that on one process: what it lacks is no difference.
    with pytest.raises(LaunchError, match="ValueError: boom") as caught:
        check_same((1, 2), train, fault)
    assert [name for name in ("2 processes", "rank 1 of 2", "tested_trainings.py") if name not in str(caught.value)] == []


def test_a_test_that_hangs_ends_in_time_and_says_where_each_rank_stands(check_same):
    # that no process is left is what every test here is watched for
    with pytest.raises(TimeLimitError) as raised:
        check_same((2, 1), train, "hang", limit_s=8)
    lines = str(raised.value).splitlines()
    ranks = [line.split()[1] for line in lines if line.startswith("  rank ")]
    assert sorted(ranks) == ["0", "1"]
    assert any("time.sleep(1000)" in line for line in lines)


@pytest.mark.long
def test_ctrl_c_ends_a_test_with_all_its_processes(tmp_path):
    script = tmp_path / "test_hangs.py"
    script.write_text(
        textwrap.dedent(
            """
            import time
            import lockstep
            from lockstep.testing import same_at

            def hang():
                team = lockstep.join()
                print("it hangs", flush=True)
                time.sleep(1000)

            def test_hangs():
                same_at((2, 1), hang)
            """
        )
    )
    command = [sys.executable, "-m", "pytest", "-s", "-q", "-p", "no:cacheprovider", script.name]
    with subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as process:
        assert process.stdout is not None
        said = next((line for line in process.stdout if "it hangs" in line), "")
        process.send_signal(signal.SIGINT)
        rest = process.stdout.read()
    assert said
    assert process.returncode == pytest.ExitCode.INTERRUPTED, rest
