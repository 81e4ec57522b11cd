"""The files of a run name a program: one that may be somebody else's does not run unless the user
says so."""

import json
import os
import pty
import shutil
import signal
import subprocess
import sys

import pytest

pytestmark = [pytest.mark.timeout(120), pytest.mark.long]
NOBODY = 65534
MARK = """
import pathlib, sys
pathlib.Path("mark").write_text(" ".join(sys.argv[1:]))
"""


@pytest.fixture
def healthy(bench):
    """A run of this test alone."""
    shutil.rmtree(bench.directory / "runs", ignore_errors=True)
    (bench.directory / "mark").unlink(missing_ok=True)
    shutil.copy(bench.directory / "spiky.py", bench.directory / "mine.py")
    run = bench.train("healthy", nproc=1)
    yield run
    shutil.copy(bench.directory / "mine.py", bench.directory / "spiky.py")


def hostile(bench, run):
    """The run's files name another script, and arguments."""
    script = bench.directory / "evil.py"
    script.write_text(MARK)
    birth = json.loads((run / "birth.json").read_text())
    birth["command"]["script"] = str(script)
    (run / "birth.json").write_text(json.dumps(birth))
    lines = [json.loads(line) for line in (run / "events.jsonl").read_text().splitlines()]
    for line in lines:
        if line["event"] == "start":
            line["args"] = ["--erase", "everything"]
    (run / "events.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))


def test_a_directory_that_was_unpacked_here_runs_nothing_unasked_and_what_it_names_is_shown(bench, healthy, tmp_path):
    run = shutil.copytree(healthy, tmp_path / "healthy")
    hostile(bench, run)
    done = bench.replay(run, "--step", 4)
    assert (done.status, done.code) == (2, "replay-cannot-ask"), done.all
    assert "evil.py --erase everything" in done.err, done.all
    assert "--yes" in done.err, done.all
    assert not (bench.directory / "mark").exists()
    bench.replay(run, "--step", 4, "--json", "--yes")
    assert (bench.directory / "mark").read_text() == "--erase everything"


def test_commands_that_read_a_run_run_nothing_that_it_names(bench, healthy):
    hostile(bench, healthy)
    commands = (
        ("runs", healthy),
        ("watch", healthy, "--once"),
        ("report", healthy, "--output", bench.directory / "page.html"),
        ("diff", healthy, healthy),
        ("stacks", healthy),
        ("checkpoint", "inspect", healthy),
        ("checkpoint", "verify", healthy),
        ("checkpoint", "export", healthy, bench.directory / "weights.safetensors", "--force"),
    )
    for verb, *words in commands:
        assert bench.say(verb, *words).status == 0, verb
    assert not (bench.directory / "mark").exists()


def test_the_users_own_run_is_replayed_without_a_question_only_with_the_script_that_it_ran(bench, healthy):
    done = bench.replay(healthy, "--step", 4)
    assert (done.status, done.err) == (0, ""), done.all
    (bench.directory / "spiky.py").write_text(MARK)
    done = bench.replay(healthy, "--step", 4)
    assert (done.status, done.code, "spiky.py" in done.err) == (2, "replay-cannot-ask", True), done.all
    assert not (bench.directory / "mark").exists()
    done = bench.replay(healthy, "--step", 4, "--script", bench.directory / "mine.py")
    assert done.status == 0, done.all


def test_files_of_another_user_are_not_trusted(bench, healthy, require):
    name = "events.jsonl"
    require("users", None if os.geteuid() == 0 else "only root can act as two users")
    os.chown(healthy / name, NOBODY, NOBODY)
    done = bench.replay(healthy, "--step", 4, "--script", bench.directory / "mine.py")
    assert (done.status, f"user id {NOBODY}" in done.err) == (2, True), done.all
    os.chown(healthy / name, 0, 0)
    (healthy / name).chmod(0o777)
    assert bench.replay(healthy, "--step", 4).status == 2


def test_at_a_terminal_it_asks(bench, healthy, tmp_path):
    run = shutil.copytree(healthy, tmp_path / "healthy")
    hostile(bench, run)
    ours, theirs = pty.openpty()
    command = [sys.executable, "-m", "lockstep._cli.main", "replay", str(run), "--step", "4"]
    process = subprocess.Popen(
        command, cwd=bench.directory, stdin=theirs, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    os.close(theirs)
    try:
        os.write(ours, b"y\n")
        said, _ = process.communicate(timeout=100)
    finally:
        if process.poll() is None:
            process.send_signal(signal.SIGKILL)
        process.wait()
        os.close(ours)
    assert "Run it?" in said
    assert (bench.directory / "mark").exists(), said
