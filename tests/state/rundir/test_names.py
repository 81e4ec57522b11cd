"""Promises of the names: each run has a directory of its own, is found again by its script, and is
never deleted."""

import threading

import pytest

from lockstep._state.rundir.names import default_run_dir, earlier_run_dirs, rename_old_run

pytestmark = pytest.mark.timeout(20)


def test_a_run_gets_a_number_above_all_others_of_its_script(tmp_path):
    (tmp_path / "runs" / "digits-2").mkdir(parents=True)
    (tmp_path / "runs" / "other-7").mkdir()
    assert [default_run_dir(tmp_path / "runs", "/some/where/digits.py").name for _ in range(2)] == ["digits-3", "digits-4"]


@pytest.mark.parametrize(
    ("script", "name"),
    [("", "run-1"), ("-c", "run-1"), ("train.py", "train-1"), ("/a/package/__main__.py", "package-1")],
)
def test_a_run_is_named_after_what_was_started(tmp_path, script, name):
    assert default_run_dir(tmp_path / "runs", script).name == name
    assert [path.name for path in earlier_run_dirs(tmp_path / "runs", script)] == [name]


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


def test_earlier_runs_of_a_script_are_found_newest_first_and_no_others(tmp_path):
    own = [default_run_dir(tmp_path, "a[1].py") for _ in range(11)]
    for other in ("a[1]-0", "a[1]-02", "a[1]-x", "a[1]-2.old-1", "a[1]-b-3", "a1-4", "a[1]x-5", "a[1]"):
        (tmp_path / other).mkdir()
    assert earlier_run_dirs(tmp_path, "/else/where/a[1].py") == own[::-1]
    assert earlier_run_dirs(tmp_path / "none", "a.py") == []


def test_a_run_that_is_set_aside_is_whole_and_takes_nobodys_place(tmp_path):
    for number in (1, 2, 3):
        (tmp_path / "run").mkdir()
        (tmp_path / "run" / "content").write_text(str(number))
        assert rename_old_run(tmp_path / "run") == tmp_path / f"run.old-{number}"
    assert {path.name: (path / "content").read_text() for path in tmp_path.iterdir()} == {
        "run.old-1": "1",
        "run.old-2": "2",
        "run.old-3": "3",
    }
