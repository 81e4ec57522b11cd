"""Options that people bring from torchrun and torch.distributed.launch."""

from pathlib import Path

import pytest

from lockstep.cli.main import main


def call(capsys, *args):
    with pytest.raises(SystemExit) as caught:
        main(("run", *args))
    return caught.value.code or 0, capsys.readouterr().err


@pytest.fixture
def asked(monkeypatch):
    """What the command would have run."""
    calls = []
    monkeypatch.setattr("lockstep.cli.run.run_script", lambda *args, **options: calls.append((args, options)))
    return calls


def test_what_is_always_so_is_taken_and_underscores_are_dashes(capsys, asked):
    call(capsys, "--standalone", "--nproc_per_node=2", "--max_restarts", "3", "x.py", "a_b")
    assert asked[0][0] == ("x.py", ("a_b",))
    assert asked[0][1]["nproc"] == "2"
    assert asked[0][1]["max_restarts"] == 3
    assert asked[0][1]["settings"] == {}


@pytest.mark.parametrize(
    ("args", "expected"),
    [
        (("--use_env",), {"pass_local_rank": "none"}),
        (("--no_python",), {"is_executable": True}),
        (("-t", "3"), {"tee": True}),
        (("-t", "0", "-r", "0"), {"tee": False, "log_dir": None}),
        (("-r", "3", "--log_dir", "d"), {"tee": False, "log_dir": Path("d")}),
        (("--redirects", "3", "-t", "3", "--log-dir", "d"), {"tee": True, "log_dir": Path("d")}),
    ],
)
def test_what_has_another_name_here_is_taken_for_it(capsys, asked, args, expected):
    call(capsys, *args, "x.py")
    assert {name: asked[0][1][name] for name in expected} == expected


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (("-t", "0:3,1:1"), "'0:3,1:1' is not one of '0', '3'"),
        (("-r", "1", "--log-dir", "d"), "'1' is not one of '0', '3'"),
        (("-r", "3"), "-r 3 without a directory: --log-dir DIR writes"),
        (("--tee", "3"), "Leave 3 out"),
        (("--tee", "0:3,1:1"), "Leave 0:3,1:1 out"),
        (("--role", "trainer"), "No such option '--role'"),
    ],
)
def test_what_there_is_no_such_choice_of_is_an_error_before_anything_starts(capsys, asked, args, words):
    status, err = call(capsys, *args, "x.py")
    assert status == 2
    assert words in err
    assert not asked


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (("--no-python", "nothing-of-this-name"), "nothing-of-this-name: no such program"),
        (("--no-python", "./x.py"), "not executable"),
        (("--no-python", "-m", "x"), "a module is Python"),
    ],
)
def test_a_program_that_cannot_be_run_is_found_out_before_any_process_starts(capsys, tmp_path, monkeypatch, args, words):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "x.py").touch()
    status, err = call(capsys, *args)
    assert status == 2
    assert words in err
