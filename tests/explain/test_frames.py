"""Promises of a stack as reports show it: a deep one is shortened, and the user's own code is never what is left out."""

import os
import subprocess
import sys

import click
import numpy as np
import pytest
import torch

import lockstep
from lockstep.base.tracebacks.frames import claim, owner
from lockstep.tools.explain import frames


@pytest.mark.parametrize(
    ("file", "whose"),
    [
        (__file__, "user"),
        (lockstep.__file__, "lockstep"),
        (subprocess.__file__, "plumbing"),
        (torch.__file__, "plumbing"),
        (np.__file__, "plumbing"),
        (click.__file__, "library"),
        ("<frozen importlib._bootstrap>", "plumbing"),
    ],
)
def test_whose_code_a_file_is(file, whose):
    assert owner(file) == whose


@pytest.mark.long
@pytest.mark.parametrize("is_console_script", [False, True])
def test_the_package_of_the_program_is_the_users_wherever_it_is_installed(tmp_path, is_console_script):
    package = tmp_path / "site-packages" / "mine"
    package.mkdir(parents=True)
    (package / "__init__.py").touch()
    (package / "train.py").write_text(
        "from lockstep.base.tracebacks.frames import owner\n"
        "def main(): print(owner(__file__), owner(__file__.replace('mine', 'yours')))\n"
        "if __name__ == '__main__': main()\n"
    )
    command = [sys.executable, "-m", "mine.train"]
    if is_console_script:  # beside the interpreter, where pip puts them
        script = tmp_path / "mine-train"
        script.write_text(f"import sys; sys.executable = {str(tmp_path / 'python')!r}\nfrom mine.train import main\nmain()")
        command = [sys.executable, str(script)]
    environ = {**os.environ, "PYTHONPATH": str(package.parent)}
    assert subprocess.run(command, env=environ, check=True, capture_output=True, text=True).stdout == "user library\n"


def test_a_package_that_a_record_names_as_its_programs_is_the_users_too(tmp_path):
    file = f"{tmp_path}/site-packages/theirs/train.py"
    assert owner(file) == "library"
    claim(f"{tmp_path}/site-packages/theirs")
    assert owner(file) == "user"
    assert owner(f"{tmp_path}/site-packages/theirs_too/train.py") == "library"


def stack(*files: str):
    """From the outermost on, as one writes it."""
    return [(file, line, "function") for line, file in reversed(list(enumerate(files)))]


def lines_of(shown):
    return ["..." if frame is None else frame[1] for frame in reversed(shown)]


def test_a_stack_of_few_frames_is_shown_whole():
    assert lines_of(frames.shortened(stack(*["/me/train.py"] * 5))) == [0, 1, 2, 3, 4]
    assert frames.shortened([]) == []


def test_of_a_deep_stack_the_ends_are_shown():
    assert lines_of(frames.shortened(stack(*["/me/train.py"] * 9))) == [0, 1, "...", 6, 7, 8]


def test_the_function_that_called_a_deep_library_is_shown():
    library = subprocess.__file__
    deep = stack(*["/me/train.py"] * 5, *[library] * 6)
    assert lines_of(frames.shortened(deep)) == [0, 1, "...", 3, 4, "...", 8, 9, 10]


def test_a_function_that_a_library_has_called_is_shown():
    deep = stack("/me/train.py", *[torch.__file__] * 5, "/me/model.py", *[torch.__file__] * 5)
    assert lines_of(frames.shortened(deep)) == [0, 1, "...", 6, "...", 9, 10, 11]


def test_the_innermost_frames_are_recorded():
    def deeper(depth):
        return deeper(depth - 1) if depth else frames.stack_of(sys._getframe())

    recorded = deeper(100)
    assert len(recorded) == frames.MOST_FRAMES
    assert {name for _, _, name in recorded} == {"deeper"}
