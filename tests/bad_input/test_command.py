"""Bad input to the command: one message, an exit status that is not 0, no process left, nothing
hangs."""

import json
import subprocess
import sys
import textwrap

import pytest

from lockstep._events.failure import read_failure

pytestmark = pytest.mark.timeout(60)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("--strategy", "dpp"), "'dp' or 'ddp'"),
        (("--precision", "fp8"), "32-true, 16-mixed, 16-master, 16-true"),
        (("--nproc-per-node", "3", "--shards", "2"), "3 processes but only 2 shards"),
        (("--device", "cuda", "--nproc-per-node", "99"), "99 processes, but"),
    ],
)
def test_what_cannot_be_meant_is_refused_before_the_script_runs(run_here, options, words):
    done = run_here("print('the script has run')", *options)
    assert done.returncode == 2
    assert words in done.stderr
    assert "Traceback" not in done.stderr
    assert done.stdout == ""


def test_a_script_that_does_not_exist_is_told(run_here, tmp_path):
    done = run_here(tmp_path / "nope.py", "--nproc-per-node", "2")
    assert done.returncode == 2
    assert "no such script" in done.stderr
    assert "nope.py" in done.stderr


def test_a_script_that_fails_on_import_is_shown_once(run_here):
    done = run_here("import lockstep\nimport no_such_module\n", "--nproc-per-node", "2")
    assert done.returncode == 1
    assert done.stderr.count("ModuleNotFoundError: No module named 'no_such_module'") == 1
    assert 'script.py", line 2' in done.stderr


def test_an_unknown_method_is_refused_with_the_valid_ones(tmp_path):
    (tmp_path / "script.py").write_text("print('the script has run')")
    command = [sys.executable, "-m", "lockstep._cli.main", "compare", "--methods", "single,dpp", "script.py"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=100)
    assert done.returncode == 2
    assert "choose one of" in done.stderr
    assert "the script has run" not in done.stdout
    assert [path.name for path in tmp_path.iterdir()] == ["script.py"]


def test_a_run_directory_of_other_settings_is_refused(run_here, tmp_path):
    (tmp_path / "run").mkdir()
    command = {"script": "", "args": [], "number": 0}
    birth = {"format": 2, "command": command, "shards": 4, "exact": True, "accumulate": 1, "seed": 0, "threads": 1}
    birth |= {"precision": "32-true", "device": "cpu"}
    (tmp_path / "run" / "birth.json").write_text(json.dumps(birth))
    done = run_here("import lockstep; lockstep.join(device='cpu')", "--run-dir", "run", "--seed", "7")
    assert done.returncode == 1
    assert "seed is 7" in done.stderr


@pytest.mark.long
def test_a_loader_worker_that_imports_a_script_without_guard_ends_the_run(run_here):
    script = """
        import torch, lockstep
        class Data(torch.utils.data.Dataset):
            def __len__(self): return 16
            def __getitem__(self, index): return torch.full((3,), float(index))
        team = lockstep.join(shards=2, checkpoint_every="off")
        model = torch.nn.Linear(3, 1)
        loader = torch.utils.data.DataLoader(Data(), batch_size=8, num_workers=1, multiprocessing_context="spawn")
        model, loader = team.prepare(model, loader)
        for batch in loader:
            for inputs in batch.shards:
                team.backward(model(inputs).mean())
        """
    done = run_here(script)
    assert done.returncode == 1
    assert "UsageError: join()" in done.stderr
    assert done.stderr.count('if __name__ == "__main__":') >= 2  # of the worker, and of the run


UNPREPARED = """
    import torch, lockstep
    team = lockstep.join(checkpoint_every="off")
    model = team.prepare(torch.nn.Linear(3, 1))
    for batch in {loader}:
        for inputs in batch.shards:
            team.backward(model(inputs).mean())
    """


LOADERS = ("torch.utils.data.DataLoader([torch.zeros(3)] * 8, 4)", "[[torch.zeros(3)]]", "[{}]")


@pytest.mark.parametrize("loader", [LOADERS[0], *(pytest.param(loader, marks=pytest.mark.long) for loader in LOADERS[1:])])
def test_the_batch_of_a_loader_that_was_not_prepared_is_told(run_here, loader):
    done = run_here(UNPREPARED.format(loader=loader))
    assert done.returncode == 1
    assert "team.prepare(" in done.stderr


def test_it_is_told_without_a_launcher_too(python_here, tmp_path):
    script = tmp_path / "script.py"
    script.write_text(textwrap.dedent(UNPREPARED.format(loader="[[torch.zeros(3)]]")))
    done = python_here(script, env={"LOCKSTEP_FAILURE": str(tmp_path / "failure")})
    assert done.returncode == 1
    assert done.stderr.count("error: AttributeError") == 1
    assert "team.prepare(" in done.stderr
    told = read_failure(tmp_path / "failure")
    assert told.summary.startswith("AttributeError: ")
    assert told.report.strip() in done.stderr.replace("[rank0]: ", "")  # PyTorch's


BAD_SETTING = "import lockstep\nlockstep.join(shards=int())\n"


def test_a_bad_setting_takes_three_lines_unless_the_whole_traceback_is_asked_for(run_here):
    message, file, line = run_here(BAD_SETTING, "--nproc", "2").stderr.splitlines()
    assert message.startswith("error: ")
    assert "shards=0" in message
    assert 'script.py", line 2' in file
    assert line == "    lockstep.join(shards=int())"
    whole = run_here(BAD_SETTING, "--nproc", "2", env={"LOCKSTEP_TRACEBACK": "full"}).stderr
    assert "Traceback" in whole
    assert "join.py" in whole


def test_nor_does_it_show_more_without_a_launcher(python_here, tmp_path):
    script = tmp_path / "script.py"
    script.write_text(BAD_SETTING)
    # between them, what stands in for `python` in tests
    message, *_, file, line = python_here(script).stderr.splitlines()
    assert message.startswith("error: ")
    assert 'script.py", line 2' in file
    assert line == "    lockstep.join(shards=int())"
    assert "join.py" in python_here(script, env={"LOCKSTEP_TRACEBACK": "full"}).stderr
