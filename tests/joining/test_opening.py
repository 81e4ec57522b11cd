"""Promises of opening a run: the same command resumes what was interrupted, and nothing is mixed up
or thrown away."""

import contextlib
import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from checkpoint_files import write_files
from codes import raises

from lockstep._base.config import RunConfig, merge_settings
from lockstep._base.errors import CheckpointError, ConfigError
from lockstep._joining.opening import LaunchRequest, open_run
from lockstep._state.checkpoint.store import Store
from lockstep._state.rundir.fixed_settings import Command, FixedSettings, read_fixed_settings
from lockstep._world.environment import World
from lockstep._world.job.job import Job

pytestmark = pytest.mark.timeout(30)
BORN = FixedSettings(shards=4, exact=False, accumulate=1, seed=3, threads=2, precision="32-true", device="cpu")


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    yield
    for lock in _locks:
        lock.release()
    _locks.clear()


_locks = []


def start(*, script="/a/train.py", args=(), number=0, part="", born_with=BORN, world=None, **explicit):
    """A launch that runs until the next one of the test starts."""
    while _locks:
        _locks.pop().release()
    launch = LaunchRequest(
        config=RunConfig(**explicit),
        givers=merge_settings({}, explicit).givers,
        born_with=born_with,
        command=Command(
            script=script,
            args=args,
            number=number,
            part=part,
            settings={k: v for k, v in explicit.items() if k in ("seed", "threads")},
        ),
        world=World(**(world or {})),
    )
    run = open_run(launch)
    _locks.append(run.lock)
    return run


def save(run_dir, step, **fields):
    store = Store(Path(run_dir))
    unfinished = store.unfinished(step, "token")
    contents = read_fixed_settings(Path(run_dir))
    fields = {"birth": BORN.as_json() if contents is None else contents[0].as_json(), **fields}
    return store.commit(unfinished, write_files(unfinished, step, **fields), keep=9)


def interrupted(step=10, **launch):
    """The directory of a run that has a checkpoint."""
    run = start(**launch)
    save(run.run_dir, step)
    return run.run_dir


def interrupt(_):
    raise KeyboardInterrupt


def step_of(run):
    return None if run.checkpoint is None else run.checkpoint.manifest.step


def content(path):
    return {str(file.relative_to(path)): file.read_bytes() for file in path.rglob("*") if file.is_file()}


@contextlib.contextmanager
def in_use(run_dir):
    """Another process runs there."""
    code = f"""
import sys
from pathlib import Path
from lockstep._state.rundir.lock import RunLock
lock = RunLock(Path({str(run_dir)!r}))
print("held", flush=True)
sys.stdin.read()
"""
    while _locks:
        _locks.pop().release()
    process = subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout.readline() == "held\n"
        yield process
    finally:
        process.kill()
        process.communicate()


def assert_no_lock_is_held():
    opened = [link.readlink().name for link in Path("/proc/self/fd").iterdir() if link.is_symlink()]
    assert "lock" not in opened


# A directory with a name


def test_a_new_run_gets_its_directory_and_its_birth_is_saved(tmp_path):
    run = start(run_dir="some/where")
    assert (run.run_dir, run.birth, run.is_new, run.notices) == (Path("some/where"), BORN, True, [])
    assert read_fixed_settings(run.run_dir)[0] == BORN
    assert sorted(file.name for file in run.run_dir.iterdir()) == ["birth.json", "lock"]


def test_a_later_launch_goes_on_with_the_birth_and_the_newest_checkpoint(tmp_path):
    interrupted(20, run_dir="run")
    save("run", 30)
    now = FixedSettings(shards=1, exact=True, accumulate=2, seed=0, threads=8, precision="bf16-mixed", device="cpu")
    run = start(run_dir="run", born_with=now, script="/another/script.py")
    assert (run.birth, step_of(run), run.is_new) == (BORN, 30, False)
    assert run.checkpoint.path == Path("run/checkpoints/step-00000030")
    notice = run.notices[-1]
    assert (notice.code, "step 30" in notice.text, "--fresh" in notice.text) == ("resumes", True, True)
    save("run", 40, finished=True)
    notice = start(run_dir="run").notices[-1]
    assert (notice.code, "step 40" in notice.text) == ("already-finished", True)


def test_a_run_without_a_checkpoint_begins_again_in_its_directory():
    start(run_dir="run")
    with raises(ConfigError, "fixed-setting-changed"):
        start(run_dir="run", threads=1, born_with=replace(BORN, threads=1))
    run = start(run_dir="run")
    assert (step_of(run), run.is_new) == (None, False)
    (notice,) = run.notices
    assert notice.code == "no-checkpoint"


@pytest.mark.parametrize("run_dir", ["run", None])
def test_the_older_checkpoint_is_taken_and_named_where_the_newest_was_damaged(run_dir):
    (save(interrupted(20, run_dir=run_dir), 30) / "state.json").unlink()
    run = start(run_dir=run_dir)
    assert step_of(run) == 20
    assert run.notices[0].code == "checkpoint-damaged"
    assert "state.json" in run.notices[0].text


def test_what_a_killed_launch_left_is_cleared_up_before():
    interrupted(20, run_dir="run")
    born = {"birth": BORN.as_json()}
    write_files(Path("run/checkpoints/.writing-00000030-a"), 30, **born).write(Path("run/checkpoints/.writing-00000030-a"))
    write_files(Path("run/checkpoints/.writing-00000040-a"), 40)
    assert step_of(start(run_dir="run")) == 30
    assert sorted(path.name for path in Path("run/checkpoints").glob("*-*")) == ["step-00000020", "step-00000030"]


def test_a_launch_that_is_refused_changes_nothing_and_holds_nothing():
    interrupted(20, run_dir="run", seed=3)
    with pytest.raises(ConfigError, match="seed"):
        start(run_dir="run", seed=4, born_with=replace(BORN, seed=4))
    assert_no_lock_is_held()
    with pytest.raises(ConfigError, match="5 processes"):
        start(run_dir="run", world={"world_size": 5})
    assert_no_lock_is_held()
    (Path("run") / "checkpoints" / "step-00000020" / "state.json").unlink()
    with pytest.raises(CheckpointError, match="--fresh"):
        start(run_dir="run")
    assert_no_lock_is_held()
    assert step_of(start(run_dir="run", fresh=True)) is None


@pytest.mark.parametrize("text", [None, "", "edited"])
def test_the_checkpoint_counts_where_birth_is_lost_damaged_or_edited(text):
    file = Path(interrupted(20, run_dir="run")) / "birth.json"
    if text == "edited":
        text = json.dumps({**json.loads(file.read_text()), "seed": 4})
    file.unlink() if text is None else file.write_text(text)
    run = start(run_dir="run", born_with=replace(BORN, seed=4))
    assert (run.birth, step_of(run), run.is_new) == (BORN, 20, False)


def test_what_a_launch_was_allowed_to_change_stays_so():
    save(start(run_dir="run").run_dir, 20, birth={**BORN.as_json(), "threads": 1})
    assert start(run_dir="run").birth.threads == 1
    with pytest.raises(ConfigError, match="threads"):
        start(run_dir="run", threads=2)
    assert start(run_dir="run", threads=2, allow=["threads"]).birth.threads == 2


@pytest.mark.parametrize("text", ["", '{"format": 3}'])
def test_a_birth_that_cannot_be_read_and_has_no_checkpoint_is_left_as_it_is(text):
    start(run_dir="run")
    Path("run/birth.json").write_text(text)
    with pytest.raises(ConfigError, match=r"birth\.json"):
        start(run_dir="run")
    assert Path("run/birth.json").read_text() == text
    assert_no_lock_is_held()


@pytest.mark.long
def test_two_launches_in_one_directory_are_refused():
    interrupted(20, run_dir="run")
    with in_use("run") as first:
        for fresh in (False, True):
            with pytest.raises(ConfigError, match=str(first.pid)):
                start(run_dir="run", fresh=fresh)
    assert step_of(start(run_dir="run")) == 20


def test_a_directory_that_cannot_be_used_is_an_error_with_the_remedy():
    Path("file").write_text("")
    with raises(ConfigError, "run-dir-unusable"):
        start(run_dir="file/run")


# A fresh run


def test_a_fresh_run_keeps_the_old_one_whole_under_another_name():
    run_dir = interrupted(20, run_dir="run")
    before = content(run_dir)
    run = start(run_dir="run", fresh=True)
    [notice] = run.notices
    assert (step_of(run), run.is_new, notice.code) == (None, True, "old-run-moved")
    assert "run.old-1" in notice.text
    assert {name: data for name, data in content(Path("run.old-1")).items() if name != "lock"} == {
        name: data for name, data in before.items() if name != "lock"
    }
    assert not (run.run_dir / "checkpoints").exists()
    assert start(run_dir="new", fresh=True).notices == []
    assert not Path("new.old-1").exists()


def test_a_restart_of_a_fresh_launch_goes_on_with_what_it_has_begun():
    interrupted(20, run_dir="run", world={"launch": "first"})
    interrupted(30, run_dir="run", world={"launch": "second"}, fresh=True)
    again = start(run_dir="run", world={"launch": "second", "restart": 1}, fresh=True)
    assert (step_of(again), Path("run.old-2").exists()) == (30, False)


def job(restart=0, number="12"):
    return {"job": Job(number=number, restart=restart)}


@pytest.mark.parametrize("run_dir", ["run", None])
def test_a_job_that_was_requeued_goes_on_with_what_it_has_begun(run_dir):
    interrupted(20, run_dir=run_dir)
    mine = interrupted(30, run_dir=run_dir, world=job(), fresh=True)
    again = start(run_dir=run_dir, world=job(restart=1), fresh=True)
    assert (step_of(again), again.run_dir) == (30, mine)
    assert step_of(start(run_dir=run_dir, world=job(number="13"), fresh=True)) is None, "another job"


def test_a_job_that_was_requeued_does_not_take_what_another_job_has_begun_meanwhile():
    mine = interrupted(30, world=job())
    theirs = interrupted(40, world=job(number="13"), fresh=True)
    again = start(world=job(restart=1))
    assert (again.run_dir, theirs != mine) == (mine, True)


def test_steps_of_a_job_that_have_changed_their_numbers_keep_their_runs():
    first = interrupted(10, args=("a",), world=job())
    interrupted(20, args=("b",), world=job())  # the same name, as if the numbers were swapped
    again = start(args=("a",), world=job(restart=1), fresh=True)
    assert (step_of(again), again.run_dir) == (10, first)


def test_tasks_of_a_job_array_do_not_take_each_others_runs():
    first = interrupted(10, part="array task 1")
    other = start(part="array task 2")
    assert (step_of(other), other.run_dir != first) == (None, True)
    assert step_of(start(part="array task 1")) == 10, "the same array, submitted again"


def test_a_fresh_launch_killed_before_it_began_is_fresh_when_restarted(monkeypatch):
    interrupted(20, run_dir="run", world={"launch": "first"})
    with monkeypatch.context() as patch:
        patch.setattr("lockstep._joining.opening.rename_old_run", interrupt)
        with pytest.raises(KeyboardInterrupt):
            start(run_dir="run", world={"launch": "second"}, fresh=True)
    assert step_of(start(run_dir="run", world={"launch": "second", "restart": 1}, fresh=True)) is None
    interrupted(20, world={"launch": "first"})
    assert step_of(start(world={"launch": "second", "restart": 1}, fresh=True)) is None


# No name is given


def test_the_same_command_goes_on_with_its_interrupted_run():
    run_dir = interrupted(20, args=("--lr", "1"))
    run = start(args=("--lr", "1"))
    assert (run.run_dir, step_of(run), run.is_new) == (run_dir, 20, False) == (Path("runs/train-1"), 20, False)
    assert [path.name for path in Path("runs").iterdir()] == ["train-1"]


@pytest.mark.parametrize(
    ("then", "now"),
    [
        ({}, {"fresh": True}),
        ({"args": ("1",)}, {"args": ("2",)}),
        ({}, {"script": "/b/train.py"}),
        ({}, {"number": 1}),
        ({"script": ""}, {"script": ""}),
    ],
)
def test_another_command_is_a_new_run_and_leaves_the_interrupted_one_alone(then, now):
    run_dir = interrupted(20, **then)
    before = content(run_dir)
    run = start(**now)
    assert (run.is_new, step_of(run)) == (True, None)
    assert [str(run_dir) in notice.text for notice in run.notices] == [True] * ("args" in then)
    assert run.run_dir != run_dir
    assert content(run_dir) == before
    assert start(**then).run_dir == run_dir or not then.get("script", "x")


def test_a_finished_run_of_other_arguments_is_told_with_how_to_go_on_with_it():
    save(start(args=("--epochs", "3")).run_dir, 20, finished=True)
    longer = start(args=("--epochs", "5"))
    assert longer.is_new
    [notice] = longer.notices
    assert notice.code == "other-arguments"
    assert "(--epochs 3)" in notice.text
    assert notice.text.endswith("--run-dir runs/train-1")
    assert step_of(start(args=("--epochs", "5"), run_dir="runs/train-1")) == 20


def test_neither_a_run_in_use_nor_one_with_nothing_saved_is_offered_to_go_on_with():
    start(args=("1",))
    assert start(args=("2",)).notices == []
    run_dir = interrupted(20, args=("1",))
    with in_use(run_dir):
        assert start(args=("2",)).notices == []


def test_a_run_that_had_come_to_its_end_or_has_no_checkpoint_is_not_gone_on_with():
    save(start().run_dir, 20, finished=True)
    assert start().run_dir == Path("runs/train-2")
    assert start().run_dir == Path("runs/train-3")


def test_of_several_interrupted_runs_the_newest_goes_on():
    interrupted(20)
    interrupted(30, fresh=True)
    run = start()
    assert (run.run_dir, step_of(run)) == (Path("runs/train-2"), 30)


def test_a_run_in_use_or_born_otherwise_is_left_alone():
    interrupted(20)
    with in_use("runs/train-1"):
        run = start()
    assert run.run_dir == Path("runs/train-2")
    assert run.notices[0].code == "run-not-resumable"
    assert "runs/train-1" in run.notices[0].text
    run = start(seed=4, born_with=replace(BORN, seed=4))
    assert run.run_dir == Path("runs/train-3")
    assert any(notice.code == "other-settings" and "seed: 4 now" in notice.text for notice in run.notices)


def test_a_run_of_other_settings_is_not_gone_on_with_by_leaving_them_out():
    interrupted(20)
    other = interrupted(30, seed=3)
    run = start()
    assert (run.run_dir, [notice.code for notice in run.notices]) == (Path("runs/train-1"), ["resumes"])
    assert start(seed=3).run_dir == other == Path("runs/train-2")


def test_an_interrupted_run_goes_on_if_what_differs_is_allowed():
    interrupted(20, threads=2)
    now = {"threads": 1, "born_with": replace(BORN, threads=1)}
    assert step_of(start(**now)) is None
    again = start(**now, allow=["threads"])
    assert (step_of(again), again.birth.threads) == (20, 1)


def test_a_finished_run_of_other_settings_does_not_hide_an_interrupted_one():
    interrupted(20)
    save(start(seed=3, fresh=True, born_with=replace(BORN, seed=3)).run_dir, 30, finished=True)
    assert step_of(start()) == 20


def test_a_run_that_was_abandoned_for_one_that_has_finished_stays_abandoned():
    interrupted(20)
    save(start(fresh=True).run_dir, 30, finished=True)
    assert start().run_dir == Path("runs/train-3")


@pytest.mark.parametrize("whole", [True, False])
def test_a_run_killed_while_its_only_checkpoint_had_no_name_goes_on(whole):
    checkpoint = save(start().run_dir, 20)
    checkpoint.rename(checkpoint.with_name(".writing-00000020-token-old"))
    if not whole:
        (checkpoint.with_name(".writing-00000020-token-old") / "state.json").unlink()
    run = start()
    assert (run.run_dir, step_of(run)) == ((Path("runs/train-1"), 20) if whole else (Path("runs/train-2"), None))


def test_a_run_whose_checkpoints_are_all_damaged_is_an_error():
    interrupted(20)
    Path("runs/train-1/checkpoints/step-00000020/state.json").unlink()
    with pytest.raises(CheckpointError, match="--fresh"):
        start()
    assert_no_lock_is_held()
    assert start(fresh=True).run_dir == Path("runs/train-2")


def test_a_restart_finds_the_run_of_its_launch_also_when_it_has_no_checkpoint_yet():
    interrupted(20)
    first = start(fresh=True, world={"launch": "mine"})
    start(script="/b/train.py", world={"launch": "another"})
    again = start(fresh=True, world={"launch": "mine", "restart": 2})
    assert (again.run_dir, again.is_new) == (first.run_dir, False) == (Path("runs/train-2"), False)
