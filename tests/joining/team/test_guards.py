"""What nobody thought of is right, or an error in words: never another answer in silence."""

import json
import subprocess
import sys
from pathlib import Path

import guard_scripts
import pytest
import torch
from codes import refusal_of

pytestmark = pytest.mark.timeout(60)


@pytest.mark.parametrize(
    ("how", "named"),
    [
        ("state", "'momentum_buffer' (0) of optimizer"),
        ("registered", "the registered 'table'"),
        ("option", "param_groups[0]['lr'] is 0.01 on rank 0"),
        ("sampler", "samplers of loader 1"),
    ],
)
def test_ranks_that_have_diverged_are_noticed_and_no_checkpoint_is_written_of_them(crew, how, named):
    for step, code, message, run_dir in crew(2, guard_scripts.part, how, 5, shards=4):
        assert code == "ranks-diverged"
        assert "after step" in message
        # A checkpoint may be due a step later, and by then the weights have parted too.
        assert named in message or "'weight' of model" in message
        assert "on rank 1 " in message
        # A checkpoint is due after every step, and the ranks compare before it is cut.
        saved = [int(path.name.removeprefix("step-")) for path in (Path(run_dir) / "checkpoints").glob("step-*")]
        assert max(saved, default=0) < 5 <= step


def test_a_rank_that_has_drawn_other_numbers_outside_is_noticed_at_once(crew):
    for _, code, message, _ in crew(2, guard_scripts.part, "stream", 1, shards=2):
        assert code == "ranks-diverged"
        assert "random stream" in message


def test_ranks_that_agree_are_left_in_peace(crew):
    assert [code for _, code, _, _ in crew(2, guard_scripts.part, "nothing", 5, shards=4)] == [""] * 2


@pytest.mark.parametrize(
    ("how", "named"),
    [
        ("every rank loads its own", ["'weight' of model", "on rank 0", "ranks 1 and 2"]),
        ("every rank, best", ["best weights"]),
    ],
)
def test_ranks_that_part_after_their_last_step_are_told_when_the_script_ends(crew, how, named):
    for code, message, run_dir in crew(3, guard_scripts.part_after_training, how, shards=4):
        assert code == "ranks-diverged"
        assert [name for name in named if name not in message] == []
        assert not (Path(run_dir) / "best").exists()
        assert True not in saved_states(run_dir)


@pytest.mark.parametrize("nproc", [1, 2])
def test_a_layer_that_a_forward_pass_makes_is_named_before_the_ranks_are_compared(crew, nproc):
    assert crew(nproc, guard_scripts.grow, shards=2) == ["parameter-added-late"] * nproc


def test_what_rank_0_alone_loads_after_training_is_reported_and_no_error(crew, tmp_path, monkeypatch):
    file = tmp_path / "reports.jsonl"
    monkeypatch.setenv("LOCKSTEP_REPORTS", str(file))
    for code, _, run_dir in crew(2, guard_scripts.part_after_training, "rank 0 alone", shards=4):
        assert code == ""
        assert saved_states(run_dir) == [True]
    [report] = map(json.loads, file.read_text().splitlines())
    assert (report["kind"], report["code"]) == ("notice", "changed-on-rank-0")
    assert "'weight' of model" in report["text"]


def saved_states(run_dir):
    """Of each checkpoint of a run, whether it is that of a finished one."""
    manifests = (Path(run_dir) / "checkpoints").glob("step-*/manifest.json")
    return [json.loads(path.read_text())["finished"] for path in manifests]


@pytest.mark.parametrize("where", ["before", "after"])
def test_the_scripts_seed_is_the_runs_seed(standing_crew, where):
    [one] = standing_crew(1, guard_scripts.draw, 1, where, shards=2)
    [again] = standing_crew(1, guard_scripts.draw, 1, where, shards=2)
    [other] = standing_crew(1, guard_scripts.draw, 2, where, shards=2)
    assert one == again
    assert sorted(one[0]) == sorted(other[0])
    assert one[0] != other[0]
    assert one[1] != other[1]
    by_rank = standing_crew(2, guard_scripts.draw, 1, where, shards=2)
    assert sorted(by_rank[0][0] + by_rank[1][0]) == sorted(one[0])
    assert by_rank[0][1][1::2] == by_rank[1][1][1::2]  # outside of the shards the ranks draw alike


def test_a_seed_by_rank_is_refused(crew):
    for _, code, message in crew(2, refusal_of, guard_scripts.seed_by_rank):
        assert code == "ranks-differ"
        assert "torch.manual_seed(1)" in message


def test_a_loss_that_is_a_sum_is_found_and_right_if_it_is_said(standing_crew):
    name = "sum by hand"
    [plain] = standing_crew(1, guard_scripts.train_with, name, "sum", shards=1)
    for nproc in (1, 2):
        for code in standing_crew(nproc, guard_scripts.train_with, name, None, shards=4):
            assert code == "loss-is-sum"
        for weight in standing_crew(nproc, guard_scripts.train_with, name, "sum", shards=4):
            assert weight == pytest.approx(plain, rel=1e-6)


@pytest.mark.parametrize("name", ["mean", "sum, divided", "sum over tasks"])
def test_a_mean_is_not_taken_for_a_sum(standing_crew, name):
    [plain] = standing_crew(1, guard_scripts.train_with, name, None, shards=1)
    assert standing_crew(1, guard_scripts.train_with, name, None, shards=4) == [pytest.approx(plain, rel=1e-6)]


@pytest.mark.parametrize(
    ("method", "how"), [("fork", "os._exit"), pytest.param("forkserver", "returns", marks=pytest.mark.longest)]
)
def test_a_finished_training_leaves_its_state_however_its_process_leaves(tmp_path, method, how):
    program = f"import guard_scripts; raise SystemExit(guard_scripts.leave({method!r}, {how!r}))"
    folder = Path(guard_scripts.__file__).parent
    paths = [str(folder), str(folder.parents[1])]
    code = f"import sys; sys.path[:0] = {paths!r}\nif __name__ == '__main__':\n    {program}\n"
    script = tmp_path / "script.py"
    script.write_text(code)
    run = subprocess.run([sys.executable, script], cwd=tmp_path, capture_output=True, text=True, timeout=100)
    assert run.returncode == 0, run.stderr
    manifest = json.loads((tmp_path / "left" / "checkpoints" / "step-00000004" / "manifest.json").read_text())
    assert manifest["finished"] is (how == "returns")


def test_the_best_of_unlike_values_is_refused_on_all_ranks(crew):
    for _, code, message in crew(2, refusal_of, guard_scripts.best_of_each):
        assert code == "ranks-differ"
        assert "team.best()" in message


@pytest.mark.parametrize("how", guard_scripts.USES)
def test_gradients_that_are_used_inside_the_shards_are_an_error(standing_crew, how):
    for code, gradient, kind in standing_crew(2, guard_scripts.use_gradients, how, shards=4):
        assert code == "gradient-used-inside"
        assert gradient == 3.5
        assert kind is torch.Tensor


def test_data_split_by_rank_are_refused_also_behind_their_beginning(crew):
    for kind, code, message in crew(3, refusal_of, guard_scripts.split_stream, shards=3):
        assert (kind, code) == ("DataError", "different-batch-sizes")
        assert "3, 3, 2" in message


@pytest.mark.parametrize(("name", "workers"), [(name, number % 2) for number, name in enumerate(guard_scripts.UNLIKE)])
def test_ranks_that_read_unlike_data_are_told_before_their_first_step(standing_crew, name, workers):
    for step, code, message in standing_crew(2, guard_scripts.read_data, name, shards=4, workers=workers):
        assert (step, code) == (0, "ranks-differ")
        assert "different data" in message


@pytest.mark.parametrize("beside", [False, True])
def test_ranks_that_read_unlike_data_in_a_later_pass_are_told_in_its_first_step(standing_crew, beside):
    for step, message in standing_crew(2, guard_scripts.read_data_that_differ_later, beside, shards=4):
        assert step == 4  # the fifth is discarded
        assert "pass 2 over loader 2" in message
        assert "on rank 0" in message
        assert "on rank 1" in message


@pytest.mark.parametrize(("name", "workers"), [("Subset", 1), ("stream", 0), ("ready", 0)])
def test_ranks_that_read_the_same_data_are_left_in_peace(standing_crew, name, workers):
    # Where a sample is on the disk of a machine is no difference.
    for _, code, _ in standing_crew(2, guard_scripts.read_data, name, False, shards=4, workers=workers):
        assert code == ""


@pytest.mark.parametrize(
    ("how", "named"),
    [
        ("nothing", ["AveragedModel", "ChainedScheduler", "GradScaler", "SGD"]),
        ("prepared", []),
    ],
)
def test_what_acts_and_is_in_no_checkpoint_is_said_once(crew, capfd, how, named):
    # no hook is left behind
    assert crew(2, guard_scripts.leave_out, how, checkpoint_every=2) == [0, 0]
    told = [line.partition("WARNING: ")[2] for line in capfd.readouterr().err.splitlines() if "WARNING: " in line]
    assert all("in no checkpoint" in line for line in told)
    assert [line.split()[0] for line in sorted(told)] == named


def test_without_checkpoints_nothing_is_said_of_what_is_in_none(crew, capfd):
    crew(1, guard_scripts.leave_out, "nothing", checkpoint_every="off")
    assert "WARNING" not in capfd.readouterr().err


@pytest.mark.parametrize(
    "settings",
    [{"precision": "16-mixed"}, {"strategy": "fsdp"}],
)
def test_an_optimizer_that_would_be_wrong_if_not_prepared_is_refused(crew, settings):
    for kind, code, message in crew(2, refusal_of, guard_scripts.leave_out, "nothing", checkpoint_every="off", **settings):
        assert kind == "UsageError"
        assert (code == "optimizer-not-prepared") == ("strategy" in settings)
        assert message.startswith("SGD.step(): ")


@pytest.mark.parametrize("calls", ["loss.backward()", "team.backward(loss)"])
def test_a_loop_that_makes_its_batches_itself_is_told_how_to_get_a_loader(crew, capfd, calls):
    messages = crew(2, guard_scripts.train_without_loader, calls == "team.backward(loss)", shards=2)
    said = capfd.readouterr().err + "".join(messages)
    assert "team.prepare(Batches())" in said
    assert said.count("class Batches:") == (2 if messages[0] else 1), "each rank's error, or one warning"
