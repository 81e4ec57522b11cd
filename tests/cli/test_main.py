"""The command ``lockstep`` itself."""

import subprocess
import sys

import click
import pytest

from lockstep._base.errors import ConfigError, LaunchError, LossError, UsageError
from lockstep._cli.group import OVERVIEW, group

VERBS = [verb for verbs in OVERVIEW.values() for verb in verbs]


def test_help_lists_the_verbs_and_imports_neither_them_nor_torch():
    source = (
        "import sys; from lockstep._cli.main import main\n"
        "try: main(['--help'])\n"
        "finally: print({'torch', 'lockstep._cli.run', 'lockstep._tools.compare.command'} & set(sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", source], capture_output=True, text=True, timeout=100)
    assert done.returncode == 0
    assert all(verb in done.stdout for verb in VERBS)
    assert done.stdout.endswith("set()\n")


def test_every_verb_in_the_table_is_a_click_command():
    for verb in VERBS:
        assert isinstance(group.get_command(None, verb), click.Command)


@pytest.mark.parametrize("verb", [None, *VERBS])
def test_help_fits_a_terminal_of_80_columns(command, monkeypatch, verb):
    monkeypatch.setenv("COLUMNS", "80")
    status, out, _ = command(*([verb] if verb else []), "--help")
    assert status == 0
    assert [line for line in out.splitlines() if len(line) > 80] == []


def test_version(command):
    status, out, _ = command("--version")
    assert status == 0
    assert out.startswith("lockstep ")


def test_run_alone_is_told_its_usage(command):
    status, out, err = command("run")
    assert (status, out) == (2, "")
    assert err.startswith("Usage: lockstep run [OPTIONS] SCRIPT [ARGS]...")
    assert "Missing argument 'SCRIPT'" in err


def test_an_unknown_verb_is_told_the_known_ones(command):
    status, _, err = command("train.py")
    assert status == 2
    assert "new, run, verify" in err
    assert "lockstep run train.py" in err


@pytest.mark.parametrize(
    ("error", "status"),
    [(ConfigError("x"), 2), (UsageError("x"), 2), (LaunchError("x", 137), 137), (LossError("x"), 1)],
)
def test_our_errors_are_one_message_and_no_traceback(command, monkeypatch, error, status):
    def fail(*args, **kwargs):
        raise error

    monkeypatch.setattr("lockstep._cli.run.run_script", fail)
    assert command("run", "script.py") == (status, "", "error: x\n")


LEAVES_A_THREAD = """
import datetime, sys, threading, time
import lockstep._cli.run
from lockstep._cli.main import main
from lockstep._launch.server import take_server
from torch.distributed import TCPStore

def run(*args, **options):
    take_server().close()
    long = datetime.timedelta(seconds=60)
    server = TCPStore("127.0.0.1", 0, None, True, long, False)
    client = TCPStore("127.0.0.1", server.port, None, False, long, False)
    def ask():
        while True:
            client.check(["answer"])
    threading.Thread(target=ask, daemon=True).start()
    time.sleep(0.2)
    print("said before")
    raise lockstep.LaunchError("it failed", 7)

lockstep._cli.run.run_script = run
sys.argv = ["lockstep", "run", "script.py"]
main()
"""


@pytest.mark.long
@pytest.mark.longest
def test_a_thread_that_still_asks_a_store_changes_no_status_and_no_message():
    done = subprocess.run([sys.executable, "-c", LEAVES_A_THREAD], capture_output=True, text=True, timeout=100)
    assert (done.returncode, done.stdout, done.stderr) == (7, "said before\n", "error: it failed\n")


@pytest.mark.parametrize("path", ["loop", "loop/run", "file/run", "n" * 300])
@pytest.mark.parametrize("words", ["runs", "watch --once", "report", "stacks", "replay --step 1", "checkpoint inspect"])
def test_a_path_that_leads_nowhere_is_told_without_a_traceback(command, tmp_path, monkeypatch, words, path):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "file").touch()
    (tmp_path / "loop").symlink_to("loop")
    status, out, said = command(*words.split(), path)
    assert status in (1, 2)
    assert out == ""
    assert said.startswith("error: ")
    assert path in said
