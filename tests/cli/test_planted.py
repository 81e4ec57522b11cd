"""Strings in the files of a run are anybody's: whatever is in them, commands print it as text."""

import hashlib
import json
import re
import shutil
import unicodedata
from pathlib import Path

import pytest
from crew import warm_server
from real_runs import run

from lockstep._cli.main import main
from lockstep._tools.explain.black_box import BlackBox, read_box

pytestmark = [pytest.mark.timeout(120), pytest.mark.long]

PLANT = "\x1b]0;planted\x07\r\b\x9b2J\x85\u202e\u2066\x7f"
STYLES = re.compile(r"\x1b\[[\d;]*m")
READ = {"event", "kind", "file", "files", "precision", "device", "crc32", "sha256", "shards", "gradients", "state", "newest"}
"""Fields that decide how the rest is read: with another value nothing would be shown."""


@pytest.fixture(scope="module")
def made(tmp_path_factory, request, outlives_tests):
    """A run on two processes that was killed and went on."""
    place, server = tmp_path_factory.mktemp("made"), warm_server(request, outlives_tests)
    words = {"nproc": 2, "options": ("--checkpoint-every", "4")}
    run(server, place, "runs/train-1", "--kill", "15", kill=True, **words)
    run(server, place, "runs/train-1", "--kill", "15", **words)
    return place / "runs" / "train-1"


def planted(value, spared):
    if isinstance(value, str):
        return value + PLANT
    if isinstance(value, list):
        return [planted(item, spared) for item in value]
    if isinstance(value, dict):
        return {key: item if key in spared else planted(item, spared) for key, item in value.items()}
    return value


def with_names(value):
    """The same with plants in the names that a script gives: of logged values, options,
    settings."""
    if isinstance(value, list):
        return [with_names(item) for item in value]
    if not isinstance(value, dict):
        return value
    return {
        key: {name + PLANT: given for name, given in item.items()}
        if key in ("values", "options", "settings")
        else with_names(item)
        for key, item in value.items()
    }


def signed(content):
    """A manifest with the checksum that makes it readable."""
    rest = {key: item for key, item in content.items() if key != "checksum"}
    text = json.dumps(rest, sort_keys=True, separators=(",", ":"))
    return {**rest, "checksum": hashlib.sha256(text.encode()).hexdigest()}


def plant(run_dir, spared=READ, only=""):
    """Plants in every string of the run's files, or of those with this name."""
    for path in sorted(run_dir.rglob("*")):
        if only and path.name != only:
            continue
        if path.name == "state.json" and not only:
            continue  # it is verified by a checksum before it is read
        if path.suffix == ".json":
            content = with_names(planted(json.loads(path.read_text()), spared))
            path.write_text(json.dumps(signed(content) if path.name == "manifest.json" and not only else content))
        elif path.suffix == ".jsonl":
            lines = [with_names(planted(json.loads(line), spared)) for line in path.read_text().splitlines()]
            path.write_text("".join(json.dumps(line) + "\n" for line in lines))
        elif path.suffix == ".box":
            record = planted(read_box(path), set())
            path.unlink()
            BlackBox(path).write(record)
        elif path.name == "lock":
            path.write_text("".join(line + PLANT + "\n" for line in path.read_text().splitlines()))


def commands(run_dir):
    """Every command that reads a run."""
    checkpoint = next((run_dir / "checkpoints").glob("step-*"))
    words = (
        ("runs", run_dir.parent),
        ("runs", run_dir),
        ("runs", run_dir.parent, "--json"),
        ("watch", run_dir, "--once"),
        ("report", run_dir, "--output", run_dir.parent / "page.html"),
        ("diff", run_dir, run_dir.parent / "other"),
        ("diff", run_dir.parent / "other", run_dir),
        ("replay", run_dir, "--step", "3"),
        ("stacks", run_dir),
        ("checkpoint", "inspect", run_dir),
        ("checkpoint", "inspect", checkpoint),
        ("checkpoint", "verify", run_dir, "--all"),
        ("checkpoint", "export", run_dir, run_dir.parent / "weights.safetensors", "--force"),
        ("checkpoint", "export", run_dir, run_dir.parent / "weights.safetensors", "--model", "none", "--force"),
        ("verify", run_dir / "none.py"),
        ("compare", run_dir / "none.py"),
        ("check", run_dir / "none.py"),
        ("run", run_dir / "none.py"),
        (run_dir.name,),
    )
    return [tuple(map(str, command)) for command in words]


def is_text(character):
    """Whether a terminal shows it, and does nothing else."""
    return character == "\n" or unicodedata.category(character) not in ("Cc", "Cf", "Cs", "Zl", "Zp")


def said(capsys, command):
    with pytest.raises(SystemExit):
        main(list(command))
    captured = capsys.readouterr()
    return captured.out + captured.err


@pytest.fixture
def place(made, tmp_path, monkeypatch):
    """A copy of the run beside an intact one, in a directory with a plant in its name."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("lockstep._launch.server.start_early", lambda: None)
    runs = tmp_path / f"runs{PLANT}"
    shutil.copytree(made, runs / "other")
    return Path(shutil.copytree(made, runs / f"planted{PLANT}"))


def test_control_characters_in_every_string_of_a_run_are_printed_as_text_by_every_command(place, capsys, monkeypatch):
    monkeypatch.setenv("FORCE_COLOR", "1")
    plant(place)
    for command in commands(place):
        text = STYLES.sub("", said(capsys, command))
        assert all(map(is_text, text)), (command, text)
        assert "Traceback" not in text, (command, text)
    page = (place.parent / "page.html").read_text()
    assert all(map(is_text, page))
    for text in (said(capsys, ("diff", str(place), str(place.parent / "other"))), page):
        assert r"\x1b]0;planted\x07" in text


@pytest.mark.parametrize("name", ["birth.json", "events.jsonl"])
def test_what_is_said_of_a_file_that_cannot_be_read_is_text_as_well(place, capsys, name):
    plant(place, spared=(), only=name)
    for command in commands(place):
        text = said(capsys, command)
        assert all(map(is_text, text)), (command, text)


def test_an_error_of_lockstep_is_text_where_a_script_prints_it_itself(place):
    import lockstep

    with pytest.raises(lockstep.LockstepError) as raised:
        lockstep.load_weights(place / "none")
    assert all(map(is_text, str(raised.value)))
