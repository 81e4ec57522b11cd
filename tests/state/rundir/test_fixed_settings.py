"""Promises of a run's birth: it is saved once, and applied to every later launch or refused."""

import json
import sys
from dataclasses import replace
from unittest.mock import patch

import pytest
from codes import raises

from lockstep._base.config import IN_SCRIPT, merge_settings
from lockstep._base.errors import ConfigError
from lockstep._state.rundir.fixed_settings import (
    Command,
    FixedSettings,
    read_fixed_settings,
    reconcile,
    write_fixed_settings,
)

pytestmark = pytest.mark.timeout(20)
BORN = FixedSettings(shards=4, exact=False, accumulate=2, seed=3, threads=2, precision="32-true", device="cpu")
COMMAND = Command(script="/a/train.py", args=("--lr", "0.1"), number=0, settings={"seed": 3})
FIELDS = {"shards": 4, "exact": False, "accumulate": 2, "seed": 3, "threads": 2, "precision": "32-true", "device": "cpu"}


def born_with(**changes):
    return FixedSettings(**{**BORN.__dict__, **changes})


def launch(now=BORN, allow=(), **explicit):
    """The settings of a later launch of the run: ``now`` with what of it was given by name."""
    return reconcile("RUN", BORN, merge_settings({}, explicit).givers, now, allow)


def test_a_birth_and_its_command_are_saved_and_read_back(tmp_path):
    assert read_fixed_settings(tmp_path) is None
    write_fixed_settings(tmp_path, BORN, COMMAND)
    assert read_fixed_settings(tmp_path) == (BORN, COMMAND)
    command = {"script": "/a/train.py", "args": ["--lr", "0.1"], "number": 0, "part": "", "settings": {"seed": 3}}
    assert json.loads((tmp_path / "birth.json").read_text()) == {
        "format": 2,
        "command": command,
        **FIELDS,
        "nondeterministic": [],  # which a birth of an earlier version lacks
    }
    assert [file.name for file in tmp_path.iterdir()] == ["birth.json"]


def test_operations_that_a_run_allows_are_read_back_as_they_were(tmp_path):
    born = born_with(nondeterministic=("ctc_loss", "cumsum"))
    asked = merge_settings({"nondeterministic": ["cumsum", "ctc_loss"]}, {"nondeterministic": "ctc_loss,cumsum_cuda_kernel"})
    command = Command.of_this_process(0, is_program=True, asked=asked)
    write_fixed_settings(tmp_path, born, command)
    assert read_fixed_settings(tmp_path) == (born, command)
    assert command.settings == {"nondeterministic": ["ctc_loss", "cumsum"]}


def test_a_later_launch_takes_all_that_it_does_not_name_from_the_birth():
    now = FixedSettings(shards=1, exact=True, accumulate=1, seed=0, threads=8, precision="bf16-mixed", device="cpu")
    assert launch(now) == BORN
    assert launch(now, strategy="auto", threads=None) == BORN


DIFFERING = [
    ("shards", 4, 2),
    ("accumulate", 2, 1),
    ("seed", 3, 0),
    ("threads", 2, 1),
    ("precision", "32-true", "bf16-mixed"),
    ("nondeterministic", (), ("ctc_loss", "cumsum")),
]


@pytest.mark.parametrize(("name", "was", "now"), DIFFERING)
def test_a_setting_that_is_named_and_differs_is_an_error_with_both_values(name, was, now):
    with raises(ConfigError, "fixed-setting-changed") as caught:
        launch(born_with(**{name: now}), **{name: now})
    assert f"{name} is {now!r}" in str(caught.value)
    assert f"with {was!r}" in str(caught.value)
    assert (f"--allow {name}" in str(caught.value)) == (name in ("shards", "threads"))
    assert launch(**{name: was}) == BORN


@pytest.mark.parametrize(("name", "was", "now"), [row for row in DIFFERING if row[0] in ("shards", "threads")])
def test_what_is_allowed_to_differ_is_as_it_is_named_now_and_else_as_it_was(name, was, now):
    other = born_with(**{name: now})
    assert launch(other, allow=[name], **{name: now}) == other
    assert launch(other, allow=[name]) == BORN


@pytest.mark.parametrize("exact", [True, False])
def test_a_run_whose_bits_are_promised_cannot_go_on_with_another_sum(exact):
    born, other = born_with(exact=exact), born_with(exact=not exact)
    assert reconcile("RUN", born, {}, other) == born  # nobody named a strategy: that of the birth
    with raises(ConfigError, "strategy-changed"):
        reconcile("RUN", born, {"strategy": IN_SCRIPT}, other)


def test_another_kind_of_device_is_an_error_unless_it_is_allowed():
    with raises(ConfigError, "fixed-setting-changed") as caught:
        launch(born_with(device="cuda"))
    assert "--allow device" in str(caught.value)
    assert launch(born_with(device="cuda"), allow=["device"]).device == "cuda"


GOOD = {"format": 2, "command": {"script": "", "args": [], "number": 0}, **FIELDS}
WRONG = [{"more": 1}, {"shards": 0}, {"command": None}, {"command": {"script": ""}}]


@pytest.mark.parametrize(
    "text",
    ["", "[]", "{}", "\xff\xfe\0", *(json.dumps({**GOOD, **wrong}) for wrong in WRONG)],
)
def test_a_birth_that_cannot_be_read_is_named_and_left_as_it_is(tmp_path, text):
    (tmp_path / "birth.json").write_text(text, encoding="latin-1")
    with raises(ConfigError, "birth-unreadable"):
        read_fixed_settings(tmp_path)
    assert (tmp_path / "birth.json").read_text(encoding="latin-1") == text


@pytest.mark.parametrize("version", [1, 3])
def test_a_birth_of_another_format_says_so(tmp_path, version):
    (tmp_path / "birth.json").write_text(json.dumps({"format": version, "shards": 4}))
    with raises(ConfigError, "birth-format"):
        read_fixed_settings(tmp_path)


def test_a_launch_killed_while_it_saved_the_birth_does_no_harm(tmp_path):
    with patch("os.replace", side_effect=KeyboardInterrupt), pytest.raises(KeyboardInterrupt):
        write_fixed_settings(tmp_path, BORN, COMMAND)
    assert read_fixed_settings(tmp_path) is None
    write_fixed_settings(tmp_path, BORN, COMMAND)
    assert read_fixed_settings(tmp_path) == (BORN, COMMAND)


# The command


def test_the_same_command_is_the_same_script_and_arguments_from_anywhere(tmp_path, monkeypatch):
    script = tmp_path / "train.py"
    script.touch()
    (tmp_path / "link.py").symlink_to(script)
    commands = []
    for place, name in ((tmp_path, "train.py"), (tmp_path.parent, str(script)), (tmp_path, "link.py")):
        monkeypatch.chdir(place)
        monkeypatch.setattr(sys, "argv", [name, "--lr", "1"])
        commands.append(Command.of_this_process(0, is_program=True, asked=merge_settings({}, {})))
    assert commands == [Command(script=str(script.resolve()), args=("--lr", "1"), number=0)] * 3
    monkeypatch.setattr(sys, "argv", ["train.py", "--lr", "2"])
    assert Command.of_this_process(0, is_program=True, asked=merge_settings({}, {})) != commands[0]
    # torch.distributed.launch adds it
    monkeypatch.setattr(sys, "argv", [str(script), "--local-rank=0", "--lr", "1"])
    assert Command.of_this_process(0, is_program=True, asked=merge_settings({}, {})) == commands[0]


@pytest.mark.parametrize(("argv", "is_program"), [([""], True), (["-c"], True), ([], True), (["train.py"], False)])
def test_what_is_no_program_has_no_script(monkeypatch, argv, is_program):
    monkeypatch.setattr(sys, "argv", argv)
    assert Command.of_this_process(0, is_program=is_program, asked=merge_settings({}, {})).script == ""


def test_settings_differ_if_either_command_has_one():
    with_seed, without = replace(COMMAND, settings={"seed": 3}), replace(COMMAND, settings={})
    assert with_seed.differing(without) == without.differing(with_seed) == ["seed"]
    assert without.differing(with_seed, allow=["seed"]) == with_seed.differing(with_seed) == []
