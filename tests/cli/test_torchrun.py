"""Options that people bring from torchrun and torch.distributed.launch."""

from pathlib import Path

import pytest

from lockstep._launch.options import LaunchOptions


def test_what_is_always_so_is_taken_and_underscores_are_dashes(command, asked):
    command("run", "--standalone", "--nproc_per_node=2", "--max_restarts", "3", "x.py", "a_b")
    assert asked == [("x.py", ("a_b",), LaunchOptions(standalone=True, nproc_per_node="2", max_restarts=3), {})]


def test_what_needs_no_saying_here_is_accepted(command, asked):
    command(
        "run", "--role", "trainer", "--monitor-interval", "0.5", "--start_method", "spawn", "--local_addr", "one", "x.py"
    )
    said = {"role": "trainer", "monitor_interval": 0.5, "start_method": "spawn", "local_addr": "one"}
    assert asked == [("x.py", (), LaunchOptions(**said), {})]


def test_torchruns_variables_are_options_where_the_command_line_says_nothing(command, asked, monkeypatch):
    monkeypatch.setenv("PET_NPROC_PER_NODE", "2")
    monkeypatch.setenv("PET_MAX_RESTARTS", "1")
    command("run", "--max-restarts", "3", "x.py")
    assert asked == [("x.py", (), LaunchOptions(nproc_per_node="2", max_restarts=3), {})]


@pytest.mark.parametrize(
    ("args", "expected"),
    [
        (("--use_env",), {"local_rank_option": "none"}),
        (("--no_python",), {"is_executable": True}),
        (("-t", "3"), {"shows_ranks": True}),
        (("-t", "0", "-r", "0"), {"shows_ranks": False, "log_dir": None}),
        (("-r", "3", "--log_dir", "d"), {"shows_ranks": False, "log_dir": Path("d")}),
        (("--redirects", "3", "-t", "3", "--log-dir", "d"), {"shows_ranks": True, "log_dir": Path("d")}),
    ],
)
def test_what_has_another_name_here_is_taken_for_it(command, asked, args, expected):
    command("run", *args, "x.py")
    [(_, _, options, _)] = asked
    assert {name: getattr(options, name) for name in expected} == expected


@pytest.mark.parametrize(
    ("args", "code"),
    [
        (("-t", "0:3,1:1"), "option-value-unknown"),
        (("-r", "1", "--log-dir", "d"), "option-value-unknown"),
        (("-r", "3"), "redirects-without-log-dir"),
    ],
)
def test_what_there_is_no_such_choice_of_is_an_error_before_anything_starts(command, asked, refusals, args, code):
    status, _, _ = command("run", *args, "x.py")
    assert (status, refusals()) == (2, [code])
    assert not asked


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (("--no-python", "nothing-of-this-name"), "nothing-of-this-name: no such program"),
        (("--no-python", "./x.py"), "not executable"),
        (("--no-python", "-m", "x"), "a module is Python"),
    ],
)
def test_a_program_that_cannot_be_run_is_found_out_before_any_process_starts(command, tmp_path, monkeypatch, args, words):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "x.py").touch()
    status, _, err = command("run", *args)
    assert status == 2
    assert words in err
