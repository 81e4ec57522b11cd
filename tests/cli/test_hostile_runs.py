"""Whatever is in the place of a file of a run: each command ends at once, in words, and nothing
outside of the run changes."""

import os
import shutil
import threading
import time
from pathlib import Path

import pytest
from crew import warm_server
from real_runs import run

from lockstep._cli.main import main

pytestmark = [pytest.mark.timeout(120), pytest.mark.long]

MOST_CPU_S = 15  # of a command: one that waits is ended by the time limit of the test
STEP = "checkpoints/step-00000020"
FILES = (
    "birth.json",
    "events.jsonl",
    "lock",
    "blackbox/rank-0.box",
    "digests/rank-0.jsonl",
    "checkpoints/newest",
    f"{STEP}/manifest.json",
    f"{STEP}/state.json",
    f"{STEP}/model.safetensors",
    "best/manifest.json",
    "blackbox",
    "digests",
    "checkpoints",
    STEP,
    "best",
)


def _holding(content):
    return lambda path, _: path.write_bytes(content)


def _hole(path, _):
    with path.open("wb") as file:
        file.truncate(1 << 30)


KINDS = {
    "a FIFO": lambda path, _: os.mkfifo(path),
    "a directory": lambda path, _: path.mkdir(),
    "a link to a file elsewhere": lambda path, elsewhere: path.symlink_to(elsewhere / "file"),
    "a link to a directory elsewhere": lambda path, elsewhere: path.symlink_to(elsewhere),
    "a link to what it replaced": None,
    "a link to itself": lambda path, _: path.symlink_to(path.name),
    "a link to a device": lambda path, _: path.symlink_to("/dev/zero"),
    "a gigabyte of zeros": _hole,
    "deep": _holding(b"[" * 100_000),
    "less deep": _holding(b'{"format": 2, "event": "start", "command": ' + b'{"a": [' * 300 + b"]}" * 300 + b"}\n"),
    "random": _holding(bytes(range(256)) * 100),
    "empty": _holding(b""),
    "nothing": lambda path, _: None,
    "not ours to read": lambda path, _: (path.touch(), path.chmod(0)),
}


def plant(path, kind, elsewhere):
    """Something else in the place of a file or directory."""
    if kind == "a link to what it replaced":
        moved = elsewhere / "moved"
        shutil.rmtree(moved, ignore_errors=True) if moved.is_dir() else moved.unlink(missing_ok=True)
        path.rename(moved)
        path.symlink_to(moved)
        return
    shutil.rmtree(path) if path.is_dir() else path.unlink()
    KINDS[kind](path, elsewhere)


def tree(directory):
    """All that is in a directory, and when it was changed."""
    found = {}
    for path in (directory, *sorted(directory.rglob("*"))):
        status = path.lstat()
        found[path] = status.st_mode, status.st_ino, status.st_size, status.st_mtime_ns
    return found


def commands(run_dir, out):
    """Every command that reads a run, or a checkpoint of it."""
    words = (
        ("runs", run_dir.parent),
        ("runs", run_dir),
        ("watch", run_dir, "--once"),
        ("report", run_dir, "--output", out / "page.html"),
        ("stacks", run_dir),
        ("diff", run_dir, run_dir.parent / "other"),
        ("replay", run_dir, "--step", "18"),
        ("checkpoint", "inspect", run_dir),
        ("checkpoint", "inspect", run_dir / STEP),
        ("checkpoint", "verify", run_dir, "--all"),
        ("checkpoint", "export", run_dir, out / "weights.safetensors", "--force"),
        ("checkpoint", "export", run_dir / "best", out / "weights.safetensors", "--force"),
    )
    return [tuple(map(str, command)) for command in words]


@pytest.fixture(scope="module")
def made(tmp_path_factory, request, outlives_tests):
    """A run on two processes that was killed and went on."""
    place, server = tmp_path_factory.mktemp("made"), warm_server(request, outlives_tests)
    words = {"nproc": 2, "options": ("--checkpoint-every", "4")}
    run(server, place, "runs/train-1", "--kill", "15", kill=True, **words)
    run(server, place, "runs/train-1", "--kill", "15", **words)
    return place / "runs" / "train-1"


@pytest.fixture
def place(made, tmp_path, monkeypatch):
    """A directory with a copy of the run, ``runs/other``, and one outside of all runs,
    ``elsewhere``."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("lockstep._launch.server.start_early", lambda: None)
    shutil.copytree(made, tmp_path / "runs" / "other")
    for name in ("elsewhere", "out"):
        (tmp_path / name).mkdir()
    (tmp_path / "elsewhere" / "file").write_text("precious\n")
    return tmp_path


def ends_in_words(command, capsys, about):
    began = time.process_time()
    with pytest.raises(SystemExit) as ended:
        main(list(command))
    took_s, said = time.process_time() - began, "".join(capsys.readouterr())
    assert ended.value.code in (None, 0, 1, 2), (about, command, said)
    assert said.strip(), (about, command)
    assert "Traceback" not in said, (about, command, said)
    assert took_s < MOST_CPU_S, (about, command, said)


def look(made, place, capsys, kind, name, choose):
    """Some commands on a run in which something else is in the place of a file."""
    if kind == "not ours to read" and os.geteuid() == 0:
        pytest.skip("root may read everything")
    run_dir = Path(shutil.copytree(made, place / "runs" / "planted"))
    plant(run_dir / name, kind, place / "elsewhere")
    before = tree(place / "runs"), tree(place / "elsewhere")
    for command in choose(commands(run_dir, place / "out")):
        ends_in_words(command, capsys, name)
    assert (tree(place / "runs"), tree(place / "elsewhere")) == before, name
    shutil.rmtree(run_dir)


@pytest.mark.parametrize("kind", KINDS)
def test_commands_end_in_words_whatever_is_in_the_place_of_a_file(made, place, capsys, kind):
    turn = [*KINDS].index(kind)
    for number, name in enumerate(FILES):  # each command meets each file, and each kind
        look(made, place, capsys, kind, name, lambda words, begin=(turn + number) % 4: words[begin::4])


@pytest.mark.longest
@pytest.mark.timeout(600)
@pytest.mark.parametrize("kind", KINDS)
def test_every_command_ends_in_words_whatever_is_in_the_place_of_every_file(made, place, capsys, kind):
    for name in FILES:
        look(made, place, capsys, kind, name, lambda words: words)


def test_commands_end_in_words_while_files_come_and_go(made, place, capsys):
    run_dir = Path(shutil.copytree(made, place / "runs" / "planted"))
    is_over = threading.Event()

    def come_and_go():
        number = 0
        while not is_over.is_set():
            path = run_dir / FILES[number % len(FILES)]
            away = path.with_name(f".away-{path.name}")
            path.rename(away)
            is_over.wait(0.002 * (number % 5))
            away.rename(path)
            number += 1

    thread = threading.Thread(target=come_and_go)
    thread.start()
    try:
        for _ in range(10):
            for command in commands(run_dir, place / "out"):
                ends_in_words(command, capsys, "")
    finally:
        is_over.set()
        thread.join()
