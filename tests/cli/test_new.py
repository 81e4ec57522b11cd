"""``lockstep new``: what it writes is never written over another file, and is in the wheel."""

import ast
import functools
from pathlib import Path

import pytest

pytestmark = pytest.mark.timeout(60)

TEMPLATES = Path(__file__).parents[2] / "src/lockstep/_cli/template"


@pytest.fixture
def new(tmp_path, monkeypatch, command):
    """``new(...)``: the command's status, output and errors, in ``tmp_path``."""
    monkeypatch.chdir(tmp_path)
    return functools.partial(command, "new")


def test_the_commands_that_it_says_are_for_what_it_has_written(new, tmp_path):
    told = [line.strip() for line in new("my training")[1].splitlines()]
    go = "cd 'my training' && lockstep"
    assert told == ["wrote my training/train.py", "next:", f"{go} run --nproc-per-node 2 train.py", f"{go} verify train.py"]


@pytest.mark.parametrize(
    ("args", "file", "another"),
    [
        ((), "train.py", "lockstep new train-2.py"),
        (("there",), "there/train.py", "lockstep new there/train-2.py"),
    ],
)
def test_a_file_that_exists_is_left_as_it_is_and_a_free_name_is_said(new, tmp_path, refusals, args, file, another):
    (tmp_path / file).parent.mkdir(exist_ok=True)
    (tmp_path / file).write_text("mine")
    status, out, said = new(*args)
    assert (status, out) == (2, "")
    assert refusals() == ["file-exists"]
    assert said.rstrip().endswith(another)
    assert (tmp_path / file).read_text() == "mine"
    assert new(*another.split()[2:])[0] == 0


def test_a_file_of_any_name_can_be_asked_for(new, tmp_path):
    assert new("models/spirals.py")[1].splitlines()[-1].strip() == "cd models && lockstep verify spirals.py"
    assert "lockstep verify spirals.py" in (tmp_path / "models" / "spirals.py").read_text()


@pytest.mark.parametrize("place", ["file", "file/there"])
def test_a_file_in_place_of_the_directory_is_told(new, tmp_path, refusals, place):
    (tmp_path / "file").touch()
    status, out, said = new(place)
    assert (status, out, refusals()) == (2, "", ["file-not-writable"])
    assert f"{place}/train.py" in said


def test_the_script_is_in_the_package_and_names_the_commands_itself():
    assert '"_cli/template/*.py"' in (TEMPLATES.parents[3] / "pyproject.toml").read_text()
    said = ast.get_docstring(ast.parse((TEMPLATES / "mlp.py").read_text()))
    assert "lockstep run --nproc-per-node 2 train.py" in said
    assert "lockstep verify train.py" in said
