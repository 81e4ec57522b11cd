"""What the event log has of the program that a launch runs: enough to run it again."""

import hashlib
import sys
from importlib.machinery import ModuleSpec
from types import ModuleType

import pytest
import torch

from lockstep._base.config import RunConfig, merge_settings
from lockstep._joining.startup.announcement import start_event
from lockstep._state.rundir.fixed_settings import Command
from lockstep._world.comm.group import Transport
from lockstep._world.environment import World

pytestmark = pytest.mark.timeout(20)
SOURCE = b"print('a script')\n"


@pytest.fixture
def script(tmp_path, monkeypatch):
    """The script that this process runs, in the current directory."""
    path = tmp_path / "train.py"
    path.write_bytes(SOURCE)
    main = ModuleType("__main__")
    main.__file__, main.__spec__ = str(path), None
    monkeypatch.setitem(sys.modules, "__main__", main)
    monkeypatch.setattr(sys, "argv", ["train.py"])
    monkeypatch.chdir(tmp_path)
    return main


def written():
    transport = Transport(backend="gloo", interface="auto", timeout_s=10.0)
    return start_event(RunConfig(), World(), torch.device("cpu"), transport, ["here"])


def test_versions_of_a_gpus_libraries_are_null_on_the_cpu(script):
    event = written()
    assert {event[name] for name in ("driver", "cuda", "cudnn", "cublas", "nccl")} == {None}
    assert event["torch"] == torch.__version__


@pytest.mark.parametrize("of_launcher", [[], ["--local_rank=0"], ["--local-rank=3"]])
@pytest.mark.parametrize("own", [[], ["--lr", "0.1"], ["--local_rank", "x"], ["local_rank=1", "--local_ranks=2"]])
def test_a_programs_arguments_are_those_of_its_command_without_what_a_launcher_has_added(
    script, monkeypatch, own, of_launcher
):
    monkeypatch.setattr(sys, "argv", ["train.py", *of_launcher, *own])
    assert written()["args"] == own
    command = Command.of_this_process(0, is_program=True, asked=merge_settings({}, {}))
    assert tuple(own) == command.args, "`lockstep runs` compares them"


@pytest.mark.parametrize("module", [None, "package.train"])
def test_a_program_is_a_script_or_a_module_of_a_directory_with_a_digest(script, tmp_path, module):
    script.__spec__ = None if module is None else ModuleSpec(module, None)
    expected = {
        "script": "train.py",
        "module": module,
        "cwd": str(tmp_path),
        "script_sha256": hashlib.sha256(SOURCE).hexdigest(),
    }
    event = written()
    assert {name: event[name] for name in expected} == expected


@pytest.mark.parametrize("lacks", ["file", "name", "directory", "argv"])
def test_a_program_that_lacks_something_is_told_without_it(script, tmp_path, monkeypatch, lacks):
    if lacks == "file":
        (tmp_path / "train.py").unlink()
    elif lacks == "name":  # an interactive session
        del script.__file__
    elif lacks == "argv":
        monkeypatch.setattr(sys, "argv", [])
    else:
        gone = tmp_path / "gone"
        gone.mkdir()
        monkeypatch.chdir(gone)
        gone.rmdir()
    event = written()
    assert event["script"] == ("" if lacks == "argv" else "train.py")
    assert ("args" in event, "cwd" in event) == ((lacks != "directory",) * 2)
    assert (event.get("script_sha256") is None) == (lacks != "argv")
