"""Promises of the run directory: a run's birth is saved once, and applied to every later launch or refused."""

import json
import sys
import threading

import pytest

from lockstep.config import RunConfig
from lockstep.errors import ConfigError
from lockstep.rundir import Birth, default_run_dir, open_run_dir

pytestmark = pytest.mark.timeout(20)
BORN = Birth(shards=4, exact=False, accumulate=2, seed=3, threads=2, precision="32-true", device="cpu")


def launch(path, birth=BORN, **explicit):
    return open_run_dir(RunConfig(run_dir=str(path), **explicit), explicit, birth)


def test_a_new_run_gets_its_directory_and_its_birth_is_saved(tmp_path):
    path, birth = launch(tmp_path / "some" / "where")
    assert birth == BORN
    assert json.loads((path / "birth.json").read_text()) == {
        "format": 1,
        "shards": 4,
        "exact": False,
        "accumulate": 2,
        "seed": 3,
        "threads": 2,
        "precision": "32-true",
        "device": "cpu",
    }
    assert [file.name for file in path.iterdir()] == ["birth.json"]


def test_a_later_launch_takes_all_that_it_does_not_name_from_the_birth(tmp_path):
    launch(tmp_path)
    now = Birth(shards=1, exact=True, accumulate=1, seed=0, threads=8, precision="bf16-mixed", device="cpu")
    assert launch(tmp_path, now) == (tmp_path, BORN)
    assert json.loads((tmp_path / "birth.json").read_text())["shards"] == 4


@pytest.mark.parametrize(
    ("name", "was", "now"),
    [("shards", 4, 2), ("accumulate", 2, 1), ("seed", 3, 0), ("threads", 2, 1), ("precision", "32-true", "bf16-mixed")],
)
def test_a_setting_that_is_named_and_differs_is_an_error_with_both_values(tmp_path, name, was, now):
    launch(tmp_path)
    differing = Birth(**{**BORN.__dict__, name: now})
    with pytest.raises(ConfigError, match=rf"{name} is {now!r} now, and was {was!r}.*another directory"):
        launch(tmp_path, differing, **{name: now})
    assert launch(tmp_path, BORN, **{name: was})[1] == BORN


@pytest.mark.parametrize("exact", [True, False])
def test_a_run_whose_bits_are_promised_cannot_go_on_with_another_sum_nor_the_other_way_round(tmp_path, exact):
    born = Birth(**{**BORN.__dict__, "exact": exact})
    launch(tmp_path, born)
    other = Birth(**{**BORN.__dict__, "exact": not exact})
    assert launch(tmp_path, other)[1] == born  # nobody named a strategy: that of the birth
    with pytest.raises(ConfigError, match=r"strategy is .* now, and the run .* was born with"):
        launch(tmp_path, other, strategy="ddp" if exact else "exact")


def test_another_kind_of_device_is_an_error_although_nobody_named_it(tmp_path):
    launch(tmp_path)
    with pytest.raises(ConfigError, match="device is 'cuda' now, and was 'cpu'"):
        launch(tmp_path, Birth(**{**BORN.__dict__, "device": "cuda"}))


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{",
        "[]",
        "3",
        "null",
        "{}",
        '{"format": 1}',
        '{"format": 1, "shards": 4, "seed": 3, "threads": 2, "precision": "32-true", "device": "cpu", "more": 1}',
        '{"format": 1, "shards": "4", "seed": 3, "threads": 2, "precision": "32-true", "device": "cpu"}',
    ],
)
def test_a_birth_that_cannot_be_read_is_named_and_left_as_it_is(tmp_path, text):
    (tmp_path / "birth.json").write_text(text)
    with pytest.raises(ConfigError, match=r"birth\.json cannot be read as a run's birth"):
        launch(tmp_path)
    assert (tmp_path / "birth.json").read_text() == text


def test_a_birth_that_is_not_text_is_refused_too(tmp_path):
    (tmp_path / "birth.json").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(ConfigError, match="cannot be read"):
        launch(tmp_path)


def test_a_birth_of_another_format_says_so(tmp_path):
    (tmp_path / "birth.json").write_text('{"format": 2, "shards": 4}')
    with pytest.raises(ConfigError, match="has format 2, and this lockstep knows format 1"):
        launch(tmp_path)


def test_a_launch_killed_while_it_saved_the_birth_does_no_harm(tmp_path):
    (tmp_path / "birth.json.new").write_text('{"form')
    assert launch(tmp_path)[1] == BORN
    assert launch(tmp_path)[1] == BORN


def test_a_directory_that_cannot_be_used_is_an_error_with_the_remedy(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match="--run-dir"):
        launch(tmp_path / "file" / "run")


def test_without_a_name_a_run_gets_the_next_free_one_after_its_script(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["/some/where/digits.py"])
    (tmp_path / "runs" / "digits-2").mkdir(parents=True)
    paths = [open_run_dir(RunConfig(), {}, BORN)[0].as_posix() for _ in range(2)]
    assert paths == ["runs/digits-1", "runs/digits-3"]


@pytest.mark.parametrize(
    ("script", "name"),
    [("", "run-1"), ("-c", "run-1"), ("train.py", "train-1"), ("/a/package/__main__.py", "package-1")],
)
def test_a_run_is_named_after_what_was_started(tmp_path, script, name):
    assert default_run_dir(tmp_path / "runs", script).name == name


def test_runs_that_start_at_once_get_directories_of_their_own(tmp_path):
    found, gate = [], threading.Barrier(8)

    def start():
        gate.wait()
        found.append(default_run_dir(tmp_path, "a.py"))

    threads = [threading.Thread(target=start) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(set(found)) == 8
