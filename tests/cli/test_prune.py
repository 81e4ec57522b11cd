"""Promises of ``lockstep runs --prune``: what is old goes, and nothing that anybody may need."""

import json
import os
import subprocess
import sys
import time
import types
from pathlib import Path

import pytest

from lockstep.base.errors import ConfigError
from lockstep.cli.main import main
from lockstep.state.checkpoint.manifest import Manifest
from lockstep.state.rundir.birth import Birth, Command, write_birth
from lockstep.tools.runs import inventory
from lockstep.tools.runs import prune as pruning
from lockstep.tools.runs.inventory import FAILED, FINISHED, INTERRUPTED, RUNNING, UNREADABLE, Run
from lockstep.tools.runs.prune import Results, Rule

pytestmark = pytest.mark.timeout(60)

DAY_S = 86400.0
BIRTH = Birth(shards=1, exact=True, accumulate=1, seed=0, threads=1, precision="32-true", device="cpu")


def a_run(name, state, *, days, script="train.py", args=()):
    return Run(path=Path("runs", name), state=state, active_s=-days * DAY_S, script=script, args=args)


def going(runs, results=(), *, days=7, keep=0, interrupted=False):
    plan = pruning.plan(runs, results, Rule(older_than_s=days * DAY_S, keep=keep, interrupted=interrupted), 0.0)
    assert len(plan.deleted) + len(plan.kept) == len(runs) + len(results)
    return {one.path.name for one in plan.deleted}


# What goes


def test_only_runs_that_can_no_longer_be_resumed_go_and_interrupted_ones_when_asked_for():
    runs = [a_run(state, state, days=10, args=(state,)) for state in (FINISHED, FAILED, INTERRUPTED, RUNNING, UNREADABLE)]
    assert going(runs) == {FINISHED, FAILED}
    assert going(runs, interrupted=True) == {FINISHED, FAILED, INTERRUPTED}


def test_what_was_active_a_short_while_ago_stays():
    runs = [a_run(f"{days}", FINISHED, days=days) for days in (6.9, 7.1)]
    assert going(runs) == {"7.1"}
    assert going(runs, days=1) == {"6.9", "7.1"}


def test_the_newest_of_each_script_and_kind_stay():
    runs = [a_run(f"{script}-{days}", FINISHED, days=days, script=script) for script in "ab" for days in (30, 20, 10)]
    results = [
        Results(path=Path(f"{kind}-{days}"), kind=kind, num_runs=1, active_s=-days * DAY_S, is_running=False)
        for kind in ("verification", "comparison")
        for days in (20, 10)
    ]
    assert going(runs, results, keep=1) == {"a-30", "a-20", "b-30", "b-20", "verification-20", "comparison-20"}
    assert going(runs, results, keep=2) == {"a-30", "b-30"}


def test_a_finished_run_stays_while_the_same_command_would_resume_an_interrupted_one_in_its_place():
    before = a_run("before", INTERRUPTED, days=20, args=("1",))
    after, other = a_run("after", FINISHED, days=10, args=("1",)), a_run("other", FINISHED, days=10, args=("2",))
    assert going([before, after, other]) == {"other"}
    assert going([before, after, other], interrupted=True) == {"before", "after", "other"}


@pytest.mark.parametrize(("days", "is_running"), [(10, True), (0.001, False)])
def test_a_verification_that_may_be_going_on_stays(days, is_running):
    results = Results(path=Path("v"), kind="verification", num_runs=1, active_s=-days * DAY_S, is_running=is_running)
    assert going([], [results], days=0) == set()


@pytest.mark.parametrize(("text", "seconds"), [("90s", 90), ("30m", 1800), ("12h", 43200), ("7d", 604800), ("0s", 0)])
def test_ages_are_read(text, seconds):
    assert pruning.read_age(text) == seconds


@pytest.mark.parametrize("text", ["", "7", "d", "7 d", "-1d", "1w", "1.5d", "7d2h"])
def test_what_is_no_age_is_refused(text):
    with pytest.raises(ConfigError, match="give a number followed by s, m, h or d"):
        pruning.read_age(text)


# What is done


def make_run(path, *, days, ends=True, has_checkpoint=False):
    path.mkdir(parents=True)
    write_birth(path, BIRTH, Command(script=f"/{path.name}.py", args=(), number=0))
    when = time.time() - days * DAY_S
    events = [{"event": "start", "time_s": when, "world_size": 1}, *([{"event": "end", "time_s": when}] if ends else [])]
    (path / "events.jsonl").write_text("".join(json.dumps(event) + "\n" for event in events))
    (path / "lock").touch()
    if has_checkpoint:
        saved = path / "checkpoints" / "step-00000001"
        saved.mkdir(parents=True)
        Manifest(step=1, epoch=0, time_s=when, finished=ends).write(saved)
        (path / "checkpoints" / "newest").write_text("step-00000001")


@pytest.fixture
def place(tmp_path):
    make_run(tmp_path / "runs" / "old-1", days=10)
    make_run(tmp_path / "runs" / "older-1", days=20, ends=False)
    make_run(tmp_path / "runs" / "young-1", days=1)
    make_run(tmp_path / "runs" / "stopped-1", days=10, ends=False, has_checkpoint=True)
    for name, days in (("verification", 20), ("verification-2", 10), ("verification-mine", 30), ("comparison", 10)):
        make_run(tmp_path / name / "runs" / "1-x1", days=days)
        (tmp_path / name / "results.json").touch()
        os.utime(tmp_path / name / "results.json", (time.time() - days * DAY_S,) * 2)
    (tmp_path / "runs" / "notes").mkdir()
    return tmp_path


def left(place):
    names = {path.name for path in (place / "runs").iterdir()} | {path.name for path in place.iterdir()}
    return names - {"runs"}


EVERYTHING = {
    *("old-1", "older-1", "young-1", "stopped-1", "notes"),
    *("verification", "verification-2", "verification-mine", "comparison"),
}


@pytest.fixture
def call(capsys, monkeypatch, place):
    """``lockstep runs ARGS``, with ``answer`` at the terminal; None: there is no terminal."""

    def run(*args, answer=None):
        monkeypatch.chdir(place)
        monkeypatch.setattr("sys.stdin", types.SimpleNamespace(isatty=lambda: answer is not None))
        monkeypatch.setattr("click.termui.visible_prompt_func", lambda question: print(question) or answer)
        with pytest.raises(SystemExit) as ended:
            main(["runs", *args])
        captured = capsys.readouterr()
        assert "Traceback" not in captured.err
        return types.SimpleNamespace(status=ended.value.code or 0, out=captured.out, err=captured.err)

    return run


def test_what_is_old_is_listed_with_its_size_and_deleted_after_a_yes(call, place):
    done = call("--prune", "--keep", "0", answer="y")
    assert (done.status, done.err) == (0, "")
    rows = {line.split()[0]: line for line in done.out.splitlines() if " days " in line}
    assert set(rows) == {"runs/old-1", "runs/older-1", "verification", "verification-2", "comparison"}
    assert "ended before its first checkpoint" in rows["runs/older-1"]
    assert "verification of 1 run " in rows["verification"]
    assert all(row.endswith("kB") for row in rows.values())
    assert "Delete 5 directories, " in done.out
    assert "deleted 5 directories: " in done.out
    assert left(place) == EVERYTHING - {path.removeprefix("runs/") for path in rows}


def test_without_more_than_prune_the_newest_of_each_stays(call, place):
    assert call("--prune", answer="y").status == 0
    assert left(place) == EVERYTHING - {"verification"}


@pytest.mark.parametrize("answer", ["n", ""])
def test_nothing_is_deleted_after_a_no(call, place, answer):
    assert "nothing was deleted" in call("--prune", "--keep", "0", answer=answer).out
    assert left(place) == EVERYTHING


def test_nothing_is_deleted_where_nobody_can_be_asked_unless_yes_is_given(call, place):
    done = call("--prune", "--keep", "0")
    assert done.status == 2
    assert "there is no terminal to confirm it: nothing was deleted. --yes" in done.err
    assert left(place) == EVERYTHING
    assert call("--prune", "--keep", "0", "--yes").status == 0
    assert left(place) == {"young-1", "stopped-1", "notes", "verification-mine"}


def test_in_a_directory_that_is_named_only_its_runs_go(call, place):
    assert call("runs", "--prune", "--keep", "0", "--yes").status == 0
    assert left(place) == EVERYTHING - {"old-1", "older-1"}


def test_a_run_that_a_process_runs_in_is_never_deleted(call, place):
    holds = "import sys; from pathlib import Path; from lockstep.state.rundir.lock import RunLock\n"
    holds += "lock = RunLock(Path(sys.argv[1])); print(flush=True); input()"
    options = ("--prune", "--keep", "0", "--older-than", "0s", "--interrupted", "--yes")
    path = place / "runs" / "old-1"
    with subprocess.Popen([sys.executable, "-c", holds, path], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as other:
        other.stdout.readline()
        done = call(*options)
        assert "1 stays: running" in done.out
        assert left(place) == {"old-1", "notes", "verification-mine"}
        # it began to run after the list was made
        (found,) = inventory.read_runs(path)[0]
        asleep = Run(path=path, state=FINISHED, active_s=found.active_s)
        assert "runs in it" in pruning.delete(asleep)
        other.communicate(b"\n", timeout=100)
    assert (path / "birth.json").exists()


def test_a_run_to_which_something_has_happened_since_the_list_was_made_stays(place):
    path = place / "runs" / "old-1"
    (before,) = inventory.read_runs(path)[0]
    with (path / "events.jsonl").open("a") as journal:
        journal.write(json.dumps({"event": "end", "time_s": before.active_s + 5}) + "\n")
    assert "activity in it meanwhile" in pruning.delete(before)
    assert path.exists()


def test_a_link_stays_and_so_does_what_it_leads_to(place):
    (place / "elsewhere").mkdir()
    (place / "runs" / "old-1").rename(place / "elsewhere" / "old-1")
    (place / "runs" / "old-1").symlink_to(place / "elsewhere" / "old-1")
    (found,) = [run for run in inventory.read_runs(place / "runs")[0] if run.name == "old-1"]
    assert pruning.delete(found) == "it is a link"
    assert (place / "elsewhere" / "old-1" / "birth.json").exists()


def test_what_a_killed_call_had_begun_to_delete_is_no_run_and_goes_next_time(call, place, monkeypatch):
    def die(path):
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr("shutil.rmtree", die)
        (found,) = inventory.read_runs(place / "runs" / "old-1")[0]
        with pytest.raises(KeyboardInterrupt):
            pruning.delete(found)
    assert [path.name for path in (place / "runs").iterdir() if path.name.startswith(".")]
    assert "old-1" not in {run.name for run in inventory.read_runs(place / "runs")[0]}
    call("--prune", "--yes")
    assert not [path.name for path in (place / "runs").iterdir() if path.name.startswith(".")]


def test_a_file_with_two_names_takes_its_place_once(tmp_path):
    (tmp_path / "a").write_bytes(b"x" * 100_000)
    (tmp_path / "b").hardlink_to(tmp_path / "a")
    assert 100_000 <= pruning.num_bytes(tmp_path) < 150_000


@pytest.mark.parametrize(
    ("options", "told"),
    [
        (("--yes",), "--yes without --prune"),
        (("--keep", "1", "--interrupted"), "--keep and --interrupted without --prune"),
        (("--prune", "--json"), "give one of the two"),
        (("--prune", "--older-than", "week"), "--older-than week: give a number"),
        (("runs/old-1", "--prune"), "runs/old-1 is one run: rm -r runs/old-1"),
    ],
)
def test_what_cannot_be_meant_is_refused_and_nothing_is_deleted(call, place, options, told):
    done = call(*options)
    assert done.status == 2
    assert told in done.err
    assert left(place) == EVERYTHING


# What is listed


def test_the_list_can_be_had_of_old_runs_alone(call):
    assert [run["name"] for run in json.loads(call("--older-than", "15d", "--json").out)] == ["older-1"]
    assert "no runs in" in call("--older-than", "30d").out


def test_verifications_and_comparisons_beside_the_runs_are_told_of(call):
    last = call().out.splitlines()[-1]
    assert last.startswith("beside it: verification (verification of 1 run, 20 days old), ")
    assert "verification-mine" not in last
    assert "beside it" not in call("runs").out


def test_the_help_teaches_what_goes_and_what_stays(call):
    text = " ".join(call("--help").out.split())
    for told in (
        "--prune --older-than 12h --keep 3 --yes",
        "never deletes runs that are running",
        "[default: 1]",
        "with --prune, 7d",
    ):
        assert told in text
