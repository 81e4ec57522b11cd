"""The page of ports shows scripts that run, and counts their lines as they are."""

import importlib.util
import os
import re

import ports
import pytest
from launchers import nursery, python_here
from test_how_to import FINE_TUNE, SCRIPTS, digests
from warm import run_here

__all__ = ["nursery", "python_here", "run_here"]

pytestmark = pytest.mark.timeout(120)

ALL_IN_TURN = """
import os, pathlib, runpy, sys
import accelerate, transformers  # once
for script in {scripts!r}:
    place = pathlib.Path({folder!r}, pathlib.Path(script).stem)
    place.mkdir()
    if not (child := os.fork()):  # each as if it were alone
        os.chdir(place)
        sys.stdout = open("told", "w")
        runpy.run_path(script, run_name="__main__")
        sys.exit()
    assert os.waitpid(child, 0)[1] == 0, script
"""


def told(text):
    return re.findall(r"^(?:epoch|step) \d+: .*", text, flags=re.MULTILINE)


def test_the_page_shows_the_scripts_as_they_are():
    assert ports.PAGE.read_text() == ports.page(), (
        f"{os.path.relpath(ports.PAGE)} is not up to date: run python tests/docs/ports.py"
    )


@pytest.mark.parametrize("name", ports.NAMES)
def test_a_port_to_lockstep_takes_at_most_a_line_more_than_one_to_accelerate(name):
    accelerate, lockstep = ports.port(name, "accelerate"), ports.port(name, "lockstep")
    assert 0 < len(lockstep.changed) <= len(accelerate.changed) + 1
    assert 0 < accelerate.num_to_resume < len(accelerate.changed)


def test_the_fine_tune_of_the_page_on_hugging_face_is_the_port():
    assert [text for _, name, text in SCRIPTS if name == FINE_TUNE] == [ports.script("lm", "lockstep")]


@pytest.mark.longest
@pytest.mark.timeout(300)
def test_plain_scripts_and_ports_to_accelerate_tell_the_same_on_one_process(python_here, require, tmp_path):
    for name in ("accelerate", "transformers"):
        require(name, None if importlib.util.find_spec(name) else f"{name} is not installed (pip install {name})")
    scripts = [str(ports.SCRIPTS / f"{name}_{kind}.py") for name in ports.NAMES for kind in ("plain", "accelerate")]
    (tmp_path / "all.py").write_text(ALL_IN_TURN.format(scripts=scripts, folder=str(tmp_path)))
    done = python_here(tmp_path / "all.py", env={"OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}, timeout=280)
    assert done.returncode == 0, done.stdout + done.stderr
    for name in ports.NAMES:
        plain, accelerate = (told((tmp_path / f"{name}_{kind}" / "told").read_text()) for kind in ("plain", "accelerate"))
        assert len(plain) > 1
        assert plain == accelerate


@pytest.mark.long
# which test_how_to.py runs
@pytest.mark.parametrize("name", [name for name in ports.NAMES if name != "lm"])
def test_a_port_to_lockstep_gives_one_answer_on_one_process_and_on_two(name, run_here, tmp_path):
    lines, left = [], []
    for nproc in ("1", "2"):
        run_dir = tmp_path / f"on-{nproc}"
        options = ("--nproc-per-node", nproc, "--threads", "1", "--device", "cpu", "--run-dir", str(run_dir))
        done = run_here(ports.script(name, "lockstep"), *options)
        assert done.returncode == 0, done.stderr
        lines.append(told(done.stdout))
        left.append(digests(run_dir))
    assert len(lines[0]) > 1
    assert left[0]
    assert lines[0] == lines[1]
    assert left[0] == left[1]
