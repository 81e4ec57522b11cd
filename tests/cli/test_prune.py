"""Promises of ``lockstep runs --prune``: what is old goes, and nothing that anybody may need."""

import json
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

pytestmark = pytest.mark.timeout(60)

DAY_S = 86400.0
BIRTH = Birth(shards=1, exact=True, accumulate=1, seed=0, threads=1, precision="32-true", device="cpu")


def a_run(name, state, *, days, script="train.py", args=()):
    return Run(path=Path("runs", name), state=state, active_s=-days * DAY_S, script=script, args=args)


def going(runs, *, days=7, keep=0):
    return [run.path.name for run in pruning.choose(runs, older_than_s=days * DAY_S, keep=keep, now_s=0.0)]


# What goes


def test_only_runs_that_can_no_longer_be_resumed_go():
    runs = [a_run(state, state, days=10, args=(state,)) for state in (FINISHED, FAILED, INTERRUPTED, RUNNING, UNREADABLE)]
    assert set(going(runs)) == {FINISHED, FAILED}


def test_what_was_active_a_short_while_ago_stays():
    runs = [a_run(f"{days}", FINISHED, days=days) for days in (6.9, 7.1)]
    assert going(runs) == ["7.1"]
    assert going(runs, days=1) == ["7.1", "6.9"]


def test_the_newest_of_each_script_stay():
    runs = [a_run(f"{script}-{days}", FINISHED, days=days, script=script) for script in "ab" for days in (30, 20, 10)]
    assert set(going(runs, keep=1)) == {"a-30", "a-20", "b-30", "b-20"}
    assert set(going(runs, keep=2)) == {"a-30", "b-30"}


def test_a_finished_run_stays_while_its_command_would_resume_another():
    before = a_run("before", INTERRUPTED, days=20, args=("1",))
    after, other = a_run("after", FINISHED, days=10, args=("1",)), a_run("other", FINISHED, days=10, args=("2",))
    assert going([before, after, other]) == ["other"]


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
    (tmp_path / "runs" / "notes").mkdir()
    return tmp_path


def left(place):
    return {path.name for path in (place / "runs").iterdir()}


EVERYTHING = {"old-1", "older-1", "young-1", "stopped-1", "notes"}


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
    assert set(rows) == {"runs/old-1", "runs/older-1"}
    assert "ended before its first checkpoint" in rows["runs/older-1"]
    assert all(row.endswith("kB") for row in rows.values())
    assert "Delete 2 runs, " in done.out
    assert "deleted 2 runs" in done.out
    assert left(place) == EVERYTHING - {"old-1", "older-1"}


def test_nothing_is_deleted_without_a_yes_or_where_nobody_can_be_asked(call, place):
    assert "nothing was deleted" in call("--prune", "--keep", "0", answer="n").out
    assert "nothing to delete" in call("--prune", "--keep", "1").out
    assert left(place) == EVERYTHING
    done = call("--prune", "--keep", "0")
    assert done.status == 2
    assert "there is no terminal to confirm it: nothing was deleted. --yes" in done.err
    assert left(place) == EVERYTHING
    assert call("--prune", "--keep", "0", "--yes").status == 0
    assert left(place) == {"young-1", "stopped-1", "notes"}


def test_a_run_that_a_process_runs_in_is_never_deleted(call, place):
    holds = "import sys; from pathlib import Path; from lockstep.state.rundir.lock import RunLock\n"
    holds += "lock = RunLock(Path(sys.argv[1])); print(flush=True); input()"
    path = place / "runs" / "old-1"
    (before,) = inventory.read_runs(path)[0]
    with subprocess.Popen([sys.executable, "-c", holds, path], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as other:
        other.stdout.readline()
        call("--prune", "--keep", "0", "--older-than", "0s", "--yes")
        assert left(place) == {"old-1", "stopped-1", "notes"}
        assert "meanwhile" in pruning.delete(before)  # it began to run after the list was made
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


def test_a_file_with_two_names_takes_its_place_once(tmp_path):
    (tmp_path / "a").write_bytes(b"x" * 100_000)
    (tmp_path / "b").hardlink_to(tmp_path / "a")
    assert 100_000 <= pruning.num_bytes(tmp_path) < 150_000


@pytest.mark.parametrize(
    ("options", "told"),
    [
        (("--yes",), "go with --prune"),
        (("--prune", "--json"), "give one of them"),
        (("--prune", "--older-than", "week"), "--older-than week: give a number"),
        (("runs/old-1", "--prune"), "runs/old-1 is one run: rm -r runs/old-1"),
    ],
)
def test_what_cannot_be_meant_is_refused_and_nothing_is_deleted(call, place, options, told):
    done = call(*options)
    assert done.status == 2
    assert told in done.err
    assert left(place) == EVERYTHING


def test_the_list_can_be_had_of_old_runs_alone(call):
    assert [run["name"] for run in json.loads(call("--older-than", "15d", "--json").out)] == ["older-1"]
    assert "no runs in" in call("--older-than", "30d").out
