"""Whatever a run directory holds, nobody waits, nothing elsewhere is written, and what is wrong is said in words."""

import contextlib
import io
import json
import os
import random

import pytest
from hostile import KINDS, replace, set_in_manifest, wrong_json
from laboratory import PLAIN

from lockstep.base.config import RunConfig
from lockstep.base.errors import LockstepError
from lockstep.cli.main import main
from lockstep.joining.opening import LaunchRequest, open_run
from lockstep.state.checkpoint.store import Store
from lockstep.state.rundir.fixed_settings import Command, FixedSettings
from lockstep.world.environment import World

pytestmark = pytest.mark.timeout(120)

BIRTH, LOCK, EVENTS, BOX = "birth.json", "lock", "events.jsonl", "blackbox/rank-0.box"
DIGESTS, POINTER = "digests/rank-0.jsonl", "checkpoints/newest"
MANIFEST, STATE, WEIGHTS = (f"checkpoints/NEWEST/{name}" for name in ("manifest.json", "state.json", "model.safetensors"))
READ_BY = {
    BIRTH: ("runs", "report", "diff", "resume"),
    LOCK: ("runs", "resume"),
    EVENTS: ("runs", "watch", "report", "diff", "resume"),
    BOX: ("watch", "report", "stacks"),
    DIGESTS: ("diff",),
    POINTER: ("runs", "resume"),
    MANIFEST: ("runs", "report", "inspect", "verify", "export", "resume"),
    STATE: ("runs", "inspect", "verify", "resume"),
    WEIGHTS: ("runs", "inspect", "verify", "export", "resume"),
}
CHEAP = ("a FIFO", "a list")


def at(run_dir, name):
    return run_dir / name.replace("NEWEST", Store(run_dir).all()[0].name)


def command(reader, run_dir, place):
    run = str(run_dir)
    return {
        "runs": ["runs", run],
        "watch": ["watch", run, "--once"],
        "report": ["report", run, "-o", str(place / "report.html")],
        "stacks": ["stacks", run],
        "diff": ["diff", run, run],
        "inspect": ["checkpoint", "inspect", run],
        "verify": ["checkpoint", "verify", run, "--all"],
        "export": ["checkpoint", "export", run, str(place / "out.safetensors"), "--force"],
    }[reader]


def resume(run_dir):
    """What rank 0 does before any training."""
    born_with = FixedSettings(shards=2, exact=True, accumulate=1, seed=0, threads=1, precision="32-true", device="cpu")
    config = RunConfig(run_dir=str(run_dir))
    launch = LaunchRequest(
        config=config, explicit={}, born_with=born_with, command=Command(script="", args=(), number=0), world=World()
    )
    with contextlib.suppress(LockstepError):
        open_run(launch).lock.release()


def read(reader, run_dir, place):
    """Every error but those in words ends the test, as does a reader that waits."""
    if reader == "resume":
        resume(run_dir)
        return
    told = io.StringIO()
    with contextlib.redirect_stdout(told), contextlib.redirect_stderr(told), pytest.raises(SystemExit) as ended:
        main(command(reader, run_dir, place))
    assert ended.value.code in (None, 0, 1, 2), told.getvalue()


def cost(kind):
    """The mark of a kind: to read a gigabyte takes half a minute."""
    return () if kind in CHEAP else pytest.mark.longest if "gigabyte" in kind else pytest.mark.long


CASES = [pytest.param(name, kind, marks=cost(kind)) for name in READ_BY for kind in KINDS if kind in CHEAP or name != LOCK]


@pytest.mark.parametrize(("name", "kind"), CASES)
def test_what_is_in_the_place_of_a_file_is_read_by_nobody_for_long(interrupted, tmp_path, name, kind):
    run_dir = interrupted(tmp_path / "run")
    path = at(run_dir, name)
    replace(path, kind)
    for reader in READ_BY[name]:
        read(reader, run_dir, tmp_path)


JSON = [name for name in READ_BY if name.endswith((".json", ".jsonl", ".box")) and name != STATE]


@pytest.mark.parametrize("most", [3, pytest.param(40, marks=pytest.mark.long)])
@pytest.mark.parametrize("name", JSON)
def test_a_value_of_a_wrong_type_is_no_traceback(interrupted, tmp_path, name, most):
    run_dir = interrupted(tmp_path / "run")
    path = at(run_dir, name)
    ways, sound = list(wrong_json(path)), path.read_bytes()
    for told, content in random.Random(most).sample(ways, min(most, len(ways))):
        for reader in READ_BY[name]:
            if reader != "resume":  # which would set it aside
                path.write_bytes(content)
                print(told, reader)  # shown if it fails
                read(reader, run_dir, tmp_path)
    path.write_bytes(sound)


@pytest.mark.parametrize("fields", [{"step": "7"}, {"time_s": 1e300}, {"files": []}, {"novel": 1}, {"objects": [{}]}])
def test_a_manifest_of_wrong_types_is_a_damage_and_the_checkpoint_before_is_used(interrupted, tmp_path, fields):
    store, said = Store(interrupted(tmp_path / "run")), []
    newest, before, _ = store.all()
    set_in_manifest(newest, **fields)
    found, _ = store.newest_sound(said.append)
    assert found == before
    assert str(newest / "manifest.json") in said[0]


def test_a_manifest_cannot_name_files_elsewhere(interrupted, tmp_path):
    store, said = Store(interrupted(tmp_path / "run")), []
    newest, before, _ = store.all()
    (tmp_path / "victim").write_text("precious")
    set_in_manifest(newest, files={"../../../victim": {"bytes": 8, "sha256": "0"}})
    assert store.newest_sound(said.append)[0] == before


SETTINGS = {"seed": 7, "accumulate": 2, "shards": 4, "threads": 3}


@pytest.mark.long
@pytest.mark.parametrize(("name", "value"), SETTINGS.items())
def test_a_birth_that_was_edited_is_restored_from_the_checkpoint_and_that_is_said(
    lab, interrupted, undisturbed, name, value
):
    interrupted(lab.run_dir)
    path = lab.run_dir / BIRTH
    before = json.loads(path.read_text())
    path.write_text(json.dumps({**before, name: value}))
    ended = lab.run(PLAIN, **dict.fromkeys(SETTINGS))  # so that the run has them from its birth
    assert ended.words == undisturbed(), ended
    assert f"{BIRTH} was missing, damaged or different: restored from" in ended.out + ended.err
    assert json.loads(path.read_text())[name] == before[name]


LINKED = ("lock", "events.jsonl", "blackbox/rank-0.box", "blackbox/rank-0.stacks", "digests/rank-0.jsonl")


@pytest.mark.long
@pytest.mark.parametrize("name", LINKED)
def test_a_run_is_not_resumed_through_a_link(lab, interrupted, name):
    interrupted(lab.run_dir)
    victim, path = lab.directory / "victim", lab.run_dir / name
    victim.write_text("precious\n")
    path.unlink()
    path.symlink_to(victim)
    ended = lab.run(PLAIN)
    assert victim.read_text() == "precious\n", ended
    assert (ended.status, ended.words) == (1, None), ended
    assert str(path) in ended.err, ended


@pytest.mark.long
@pytest.mark.parametrize("name", ["blackbox", "digests"])
def test_a_run_is_not_resumed_into_a_linked_directory(lab, interrupted, name):
    interrupted(lab.run_dir)
    (lab.run_dir / name).rename(lab.directory / "elsewhere")
    (lab.run_dir / name).symlink_to(lab.directory / "elsewhere")
    before = {path: path.read_bytes() for path in (lab.directory / "elsewhere").iterdir()}
    ended = lab.run(PLAIN)
    assert ended.status == 1, ended
    assert str(lab.run_dir / name) in ended.err, ended
    assert {path: path.read_bytes() for path in (lab.directory / "elsewhere").iterdir()} == before


@pytest.mark.long
def test_a_run_and_checkpoints_that_their_user_has_put_elsewhere_go_on(lab, interrupted, undisturbed):
    interrupted(lab.directory / "scratch")
    (lab.directory / "scratch" / "checkpoints").rename(lab.directory / "checkpoints")
    (lab.directory / "scratch" / "checkpoints").symlink_to(lab.directory / "checkpoints")
    lab.run_dir.symlink_to("scratch")
    ended = lab.run(PLAIN, nproc=2)
    assert ended.words == undisturbed(), ended
    assert lab.resumes()[-1] > 0
    assert lab.run_dir.is_symlink()


@pytest.mark.long
def test_the_run_of_another_user_is_refused_and_a_copy_goes_on(lab, interrupted, undisturbed, require):
    require("users", None if os.geteuid() == 0 else "only root can give something to another user")
    interrupted(lab.directory / "theirs")
    os.chown(lab.directory / "theirs", 65534, 65534)
    ended = lab.run(PLAIN, run_dir="theirs")
    assert ended.status == 1, ended
    assert "65534" in ended.err, ended
    (lab.directory / "theirs").rename(lab.run_dir)
    os.chown(lab.run_dir, os.geteuid(), os.getegid())
    assert lab.run(PLAIN).words == undisturbed()


@pytest.mark.long
@pytest.mark.parametrize("kind", ["a FIFO", "a link to a device", "a list"])
@pytest.mark.parametrize("name", [BIRTH, MANIFEST, STATE, WEIGHTS])
def test_a_run_goes_on_from_what_is_left_where_a_file_was_replaced(lab, interrupted, undisturbed, name, kind):
    interrupted(lab.run_dir)
    replace(at(lab.run_dir, name), kind)
    ended = lab.run(PLAIN)
    assert ended.words == undisturbed(), ended
