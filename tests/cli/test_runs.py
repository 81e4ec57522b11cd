"""Promises of ``lockstep runs``."""

import json
import random
import shutil
import subprocess
import sys
import types
from pathlib import Path

import pytest
from crew import warm_server
from real_runs import STEPS, run, until, waiting
from rich.console import Console

from lockstep._cli.main import main
from lockstep._state.checkpoint import manifest
from lockstep._state.rundir.lock import holder_of
from lockstep._tools.runs import command as runs_verb
from lockstep._tools.runs import inventory

pytestmark = pytest.mark.timeout(180)


@pytest.fixture(scope="module")
def made(tmp_path_factory, request, outlives_tests):
    """Runs in every state, made by the real command: killed and finished, killed, killed too early,
    and going on."""
    place, server = tmp_path_factory.mktemp("made"), warm_server(request, outlives_tests)
    run(server, place, "runs/finished-1", "--kill", "15", nproc=2, kill=True)
    run(server, place, "runs/finished-1", "--kill", "14")
    run(server, place, "runs/stopped-1", "--kill", "15", nproc=2, kill=True)
    run(server, place, "runs/early-1", "--kill", "3", kill=True)
    with waiting(place, "runs/going-1", "--wait", "9"):
        until((place / "runs" / "going-1" / "checkpoints" / "newest").exists, (place / "log").read_text)
        yield place


@pytest.fixture
def look(capsys, monkeypatch):
    """``lockstep runs ARGS`` in a directory: its exit status, and what it printed."""

    def call(place, *args):
        monkeypatch.chdir(place)
        with pytest.raises(SystemExit) as ended:
            main(["runs", *map(str, args)])
        captured = capsys.readouterr()
        return types.SimpleNamespace(status=ended.value.code or 0, out=captured.out, err=captured.err)

    return call


@pytest.fixture
def stopped(made, tmp_path):
    """A copy of the interrupted run, to be damaged."""
    return Path(shutil.copytree(made / "runs" / "stopped-1", tmp_path / "runs" / "stopped-1"))


def rows(out):
    return {line.split()[0]: line for line in out.splitlines() if "-1  " in line}


@pytest.mark.long
def test_every_run_is_one_line_with_its_state_and_the_one_active_last_comes_last(made, look):
    done = look(made)
    assert done.status == 0, done.err
    lines = done.out.splitlines()
    assert [line.split()[0] for line in lines[:5]] == ["run", "finished-1", "stopped-1", "early-1", "going-1"]
    for name, words in {
        "finished-1": ("finished", f"{STEPS}  ", "2 → 1", "0.75", "train.py --kill 14"),
        "stopped-1": ("interrupted in epoch 2", "0.75", "train.py --kill 15"),
        "early-1": ("ended before its first checkpoint", "train.py --kill 3"),
        "going-1": ("running: process ", " 6 "),
    }.items():
        for word in words:
            assert word in rows(done.out)[name]


def test_how_to_go_on_is_said_below_the_table(made, look):
    last = look(made).out.splitlines()[-1]
    assert "repeat its command" in last
    assert "--run-dir runs/stopped-1" in last
    assert "again" not in look(made, "runs/finished-1").out


def test_what_other_programs_get_is_what_the_files_say(made, look):
    found = {run["name"]: run for run in json.loads(look(made, "--json").out)}
    assert {name: run["state"] for name, run in found.items()} == {
        "finished-1": "finished",
        "stopped-1": "interrupted",
        "early-1": "failed",
        "going-1": "running",
    }
    finished, stopped, early, going = (found[f"{name}-1"] for name in ("finished", "stopped", "early", "going"))
    assert (finished["world_sizes"], finished["num_launches"], finished["shards"]) == ([2, 1], 2, 2)
    assert (finished["step"], finished["checkpoint"]["step"], finished["checkpoint"]["finished"]) == (STEPS, STEPS, True)
    assert (finished["script"], finished["args"]) == (str(made / "train.py"), ["--kill", "14"])
    files = saved(made / "runs" / "stopped-1")
    size = sum(file.stat().st_size for file in files.iterdir() if file.name != "manifest.json")
    assert stopped["checkpoint"] == {**stopped["checkpoint"], "name": files.name, "bytes": size, "epoch": 1}
    assert stopped["step"] >= 12
    assert stopped["best"] == 0.75
    assert stopped["ran_s"] > 0
    assert (early["checkpoint"], early["best"]) == (None, None)
    assert going["holder"].startswith("process ")
    assert [run["active_s"] for run in found.values()] == sorted(run["active_s"] for run in found.values())


def test_an_interrupted_run_whose_newest_launch_had_other_arguments_than_the_first_is_told_how_to_resume(look, stopped):
    [found] = json.loads(look(stopped.parent.parent, "--json").out)
    assert found["remarks"] == []
    with (stopped / "events.jsonl").open("a") as journal:
        journal.write('{"event": "start", "time_s": 2e9, "args": ["--kill", "16"], "world_size": 1}\n')
    [found] = json.loads(look(stopped.parent.parent, "--json").out)
    assert found["args"] == ["--kill", "16"]
    assert ["--run-dir" in remark for remark in found["remarks"]] == [True]


def test_a_very_long_command_is_cut_in_the_table_and_whole_in_json(look, stopped):
    many = [f"--worker-argument={number}" for number in range(60)]
    with (stopped / "events.jsonl").open("a") as journal:
        journal.write(json.dumps({"event": "start", "time_s": 2e9, "args": many, "world_size": 1}) + "\n")
    [found] = json.loads(look(stopped.parent.parent, "--json").out)
    assert found["args"] == many
    row = rows(look(stopped.parent.parent).out)["stopped-1"].rstrip()
    assert many[0] in row
    assert many[-1] not in row
    assert row.endswith("…")


def test_looking_takes_nothing_from_a_run_and_writes_nothing(made, look):
    path = made / "runs" / "stopped-1"
    before = {file: file.stat().st_mtime_ns for file in path.rglob("*")}
    holder = holder_of(made / "runs" / "going-1")
    look(made)
    assert {file: file.stat().st_mtime_ns for file in path.rglob("*")} == before
    assert holder_of(made / "runs" / "going-1") == holder is not None


def test_listing_runs_does_not_import_torch(made):
    program = (
        "import sys; from lockstep._cli.main import main\ntry: main(['runs'])\nfinally: assert 'torch' not in sys.modules"
    )
    done = subprocess.run([sys.executable, "-c", program], cwd=made, capture_output=True, text=True, timeout=100)
    assert (done.returncode, done.stderr) == (0, "")
    assert "going-1" in done.stdout


def test_on_a_narrow_terminal_no_column_is_lost(made, capsys, monkeypatch):
    monkeypatch.chdir(made)
    found = inventory.read_runs(Path("runs"))
    for width in (60, 200):
        runs_verb.show(found, Console(width=width, force_terminal=True, color_system=None))
        out = capsys.readouterr().out
        for word in ("state", "saved", "age", "size", "best", "ran", "launches", "processes", "shards", "script", "2 → 1"):
            assert word in out
        assert out.count("stopped-1") >= (2 if width == 60 else 1)


# Damage


def rewrite(path, change):
    content = json.loads(path.read_text())
    change(content)
    path.write_text(json.dumps(content))


def of_later_version(content):
    del content["checksum"]
    content["format"] = 99
    content["checksum"] = manifest._digest(content)


def flip(path, number=100):
    content = bytearray(path.read_bytes())
    content[number % len(content)] ^= 1
    path.write_bytes(bytes(content))


def replace(path, content=b""):
    path.unlink()
    path.write_bytes(content)


NEWEST, BEFORE = "checkpoints/step-00000012", "checkpoints/step-00000006"


def saved(run_dir, number=-1):
    return sorted((run_dir / "checkpoints").glob("step-*"))[number]


DAMAGE = {
    "birth cut short": (
        lambda d: replace(d / "birth.json", b'{"format": 2,'),
        "unreadable",
        None,
        "birth.json cannot be read",
    ),
    "no birth": (lambda d: (d / "birth.json").unlink(), "unreadable", None, "birth.json is missing"),
    "a manifest with a flipped bit": (lambda d: flip(saved(d) / "manifest.json"), "interrupted", -2, "was damaged"),
    "a file cut short": (
        lambda d: replace(saved(d) / "model.safetensors", b"x" * 9),
        "interrupted",
        -2,
        "it has 9 bytes, and",
    ),
    "a newest manifest of a later version": (  # what that version did would be undone
        lambda d: rewrite(saved(d) / "manifest.json", of_later_version),
        "unreadable",
        None,
        "format 99",
    ),
    "all checkpoints": (
        lambda d: [flip(saved(d, c) / "manifest.json") for c in (-1, -2)],
        "unreadable",
        None,
        "was damaged",
    ),
    "the journal tells nonsense": (
        lambda d: replace(
            d / "events.jsonl",
            b'{"event": "start", "world_size": "many", "time_s": [], "step": {}}\n"x"\n{"event": "step", "step": 1e999}\n[{',
        ),
        "interrupted",
        -1,
        "",
    ),
    "the best one": (lambda d: flip(d / "best" / "manifest.json"), "interrupted", -1, "best/manifest.json was damaged"),
}


@pytest.mark.parametrize("damage", DAMAGE)
def test_a_damaged_run_is_shown_with_the_reason(look, stopped, tmp_path, damage):
    wreck, state, number, reason = DAMAGE[damage]
    name = None if number is None else saved(stopped, number).name
    wreck(stopped)
    done = look(tmp_path)
    assert (done.status, done.err) == (0, "")
    (found,) = json.loads(look(tmp_path, "--json").out)
    assert found["state"] == state
    if name is not None:
        assert found["checkpoint"]["name"] == name
    assert reason in " ".join(found["remarks"])
    assert reason in done.out
    assert bool(found["remarks"]) == bool(reason)
    assert state in rows(done.out)["stopped-1"]


@pytest.mark.parametrize("seed", range(5))
def test_no_damage_at_any_place_brings_it_down(look, stopped, tmp_path, seed):
    luck = random.Random(seed)
    for _ in range(luck.randint(1, 4)):
        file = luck.choice(sorted(path for path in stopped.rglob("*") if path.is_file()))
        content = bytearray(file.read_bytes())
        way = luck.choice(["flip", "cut", "remove", "insert"])
        at = luck.randrange(len(content) or 1)
        if way == "flip" and content:
            content[at] ^= 1 << luck.randrange(8)
        elif way == "cut":
            del content[at:]
        elif way == "insert":
            content[at:at] = luck.randbytes(20)
        if way == "remove":
            file.unlink()
        else:
            file.write_bytes(bytes(content))
    done = look(tmp_path)
    assert (done.status, done.err) == (0, ""), done.err
    assert "stopped-1" in done.out
    (found,) = json.loads(look(tmp_path, "--json").out)
    assert found["state"] in ("interrupted", "failed", "unreadable")


def test_a_step_that_was_saved_and_not_told_of_counts(look, stopped, tmp_path):
    journal = stopped / "events.jsonl"
    kept = [line for line in journal.read_text().splitlines() if '"start"' in line]
    replace(journal, "\n".join(kept).encode())
    (found,) = json.loads(look(tmp_path, "--json").out)
    step = int(saved(stopped).name.removeprefix("step-"))
    assert (found["step"], found["world_sizes"], found["ran_s"]) == (step, [2], 0.0)


def test_a_run_that_came_to_its_end_has_not_ended_before_its_first_checkpoint(look, stopped, tmp_path):
    shutil.rmtree(stopped / "checkpoints")
    (start,) = [line for line in (stopped / "events.jsonl").read_text().splitlines() if '"start"' in line]
    end = '{"event": "end", "time_s": 1e9, "step": 16}'
    replace(stopped / "events.jsonl", f"{start}\n{end}\n".encode())
    assert rows(look(tmp_path).out)["stopped-1"].split()[:3] == ["stopped-1", "finished", "16"]
    replace(stopped / "events.jsonl", f"{start}\n".encode())
    shutil.copytree(stopped, stopped.with_name("stopped-2"))
    done = look(tmp_path)
    assert "ended before its first checkpoint" in rows(done.out)["stopped-1"]
    [remark] = [line for line in done.out.splitlines() if line.startswith("stopped-1, stopped-2: ")]
    assert "starts over" in remark


# Where there is nothing


def test_directories_that_are_no_runs_are_not_shown(made, look, stopped, tmp_path):
    for name in ("notes", "plots", ".hidden"):
        (tmp_path / "runs" / name).mkdir()
    (tmp_path / "runs" / "a file").touch()
    done = look(tmp_path)
    assert set(rows(done.out)) == {"stopped-1"}
    assert len(json.loads(look(tmp_path, "--json").out)) == 1


def test_where_there_is_no_run_it_says_where_it_looked(look, tmp_path):
    done = look(tmp_path)
    assert done.status == 0
    assert f"no runs in {tmp_path / 'runs'}: no such directory" in done.out
    assert look(tmp_path, "--json").out == "[]\n"
    (tmp_path / "runs").mkdir()
    assert f"{tmp_path / 'runs'}: no directory in it" in look(tmp_path).out


@pytest.mark.parametrize("name", ["missing", "file"])
def test_a_directory_that_is_none_is_an_error(look, tmp_path, name):
    (tmp_path / "file").touch()
    done = look(tmp_path, name)
    assert (done.status, done.out) == (2, "")
    assert str(tmp_path / name) in done.err
    assert "Traceback" not in done.err


def test_a_run_that_has_only_just_begun_is_running(look, tmp_path):
    path = tmp_path / "runs" / "train-1"
    path.mkdir(parents=True)
    holds = "import sys; from pathlib import Path; from lockstep._state.rundir.lock import RunLock\n"
    holds += "lock = RunLock(Path(sys.argv[1])); print(flush=True); input()"
    with subprocess.Popen([sys.executable, "-c", holds, str(path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as other:
        other.stdout.readline()
        (found,) = json.loads(look(tmp_path, "--json").out)
        other.communicate(b"\n", timeout=100)
    assert (found["state"], found["holder"].split()[:2]) == ("running", ["process", str(other.pid)])
    assert found["remarks"] == []
