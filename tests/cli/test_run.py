"""``lockstep run``: what its command line means."""

import dataclasses
import json
import re

import pytest

from lockstep._base.config import setting_kinds
from lockstep._base.errors import LaunchError
from lockstep._base.option import help_of, options_of
from lockstep._launch.options import LaunchOptions
from lockstep._launch.script import Interruption


def test_what_follows_the_script_is_the_scripts_own(command, asked):
    command("run", "--nproc-per-node", "2", "train.py", "--seed", "3", "--help", "-m")
    [(script, args, options, settings)] = asked
    assert (script, args) == ("train.py", ("--seed", "3", "--help", "-m"))
    assert options == LaunchOptions(nproc_per_node="2")
    assert settings == {}


def test_dashes_that_separate_the_script_from_its_arguments_are_none_of_them(command, asked):
    command("run", "train.py", "--", "--epochs", "1", "--", "x")
    command("run", "--", "train.py", "--epochs", "1")
    assert [args for _, args, _, _ in asked] == [("--epochs", "1", "--", "x"), ("--epochs", "1")]


def test_only_settings_that_were_given_travel(command, asked):
    command("run", "--shards", "4", "--timeout", "9", "--on-nan", "warn", "-m", "package.train")
    [(_, _, options, settings)] = asked
    assert settings == {"shards": 4, "timeout_s": 9.0, "on_nan": "warn"}
    assert options == LaunchOptions(is_module=True)


def test_every_setting_of_a_run_and_of_a_launch_has_one_option_and_its_help(command, asked):
    for kind in (LaunchOptions, *setting_kinds()):
        assert set(options_of(kind)) == set(help_of(kind)) == {field.name for field in dataclasses.fields(kind)}
    command(
        "run",
        "--log-every",
        "5",
        "--batch-dim",
        "1",
        "--find-unused-parameters",
        "--allow",
        "data",
        "--allow",
        "shards",
        "x.py",
    )
    [(_, _, _, settings)] = asked
    assert settings == {"log_every": 5, "batch_dim": 1, "find_unused_parameters": True, "allow": ("data", "shards")}


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (("nope.py",), "nope.py: no such script"),
        (("--strategy", "dpp", "x.py"), "auto, single"),
        (("--nproc-per-node", "0", "x.py"), "1 or more"),
        (("--nproc-per-node", "2", "--shards", "1", "x.py"), "2 processes but only 1 shard:"),
        (("--nproc-per-node", "2", "--strategy", "single", "x.py"), "strategy single"),
        (("--nproc-per-node", "2", "--attach", "2", "x.py"), "ranks go from 0 to 1"),
        (("--pass-local-rank", "yes", "x.py"), "--pass-local-rank yes: "),
        (("--shards", "many", "x.py"), "not a valid integer"),
    ],
)
def test_what_cannot_be_meant_is_one_message_and_status_2(command, monkeypatch, tmp_path, args, words):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "x.py").touch()
    status, out, err = command("run", *args)
    assert status == 2
    assert out == ""
    assert words in err
    assert "Traceback" not in err


def test_a_signal_is_told_in_one_line(command, monkeypatch):
    ctrl_c = Interruption(status=130, message="stopped by Ctrl-C: all have ended")
    monkeypatch.setattr("lockstep._cli.run.run_script", lambda *args: ctrl_c)
    status, out, err = command("run", "x.py")
    assert (status, out) == (130, "")
    assert err.startswith("stopped by Ctrl-C")
    assert err.count("\n") == 1


def test_help_is_grouped_and_shows_examples(command):
    status, out, _ = command("run", "--help")
    assert status == 0
    for words in ("Processes:", "Training", "Output:", "Examples:", "--nproc-per-node"):
        assert words in out


def test_help_shows_some_twenty_options_and_says_how_to_see_all(command):
    _, some, _ = command("run", "--help")
    _, every, _ = command("run", "--help-all")
    listed = [set(re.findall(r"^  (?:-\w, )?(--[\w-]+)", text, flags=re.MULTILINE)) for text in (some, every)]
    assert 18 <= len(listed[0]) <= 25
    assert listed[0] < listed[1]
    assert {"--audit", "--rdzv-id"} <= listed[1] - listed[0]
    assert re.search(r"\d\d more options: lockstep run --help-all", some)


@pytest.mark.timeout(40)
def test_settings_reach_the_worker_and_the_scripts_status_comes_back(run_here):
    done = run_here(
        "import os, sys; print(os.environ['LOCKSTEP_SETTINGS'], sys.argv[1:]); sys.exit(5)", "--seed", "3", args=("a",)
    )
    assert done.returncode == 5
    settings, argv = done.stdout.split(" ", 2)[:2], done.stdout.rstrip().rpartition(" ")[2]
    assert json.loads(" ".join(settings)) == {"seed": 3}
    assert argv == "['a']"
    assert "sys.exit(5)" in done.stderr
    assert LaunchError("", 5).exit_status == 5
