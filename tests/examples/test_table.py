"""The table of the examples is complete, and its commands run."""

import importlib.util
import re
import shutil
from pathlib import Path

import on_disk
import pytest

EXAMPLES = Path(__file__).parents[2] / "examples"
ROW = re.compile(r"^\| \[(\w+\.py)\]\(\1\) \| [^|]+ \| `([^`]+)` \| `([^`]+)` \|$", flags=re.MULTILINE)
ROWS = ROW.findall((EXAMPLES / "README.md").read_text())
COMMANDS = [pytest.param(script, command, id=command) for script, *commands in ROWS for command in commands]

# What makes a command small. Options that come later win.
SMALLER = {
    "digits.py": "--epochs 1",
    "transformer.py": "--epochs 1 --batch-size 256",
    "cifar10.py": "--epochs 1",
    "imagenet.py": "--epochs 1 --arch resnet18 --image-size 32 --workers 1",
    "gan.py": "--epochs 1",
    "fine_tuning.py": "--epochs 1",
    "lora.py": "--epochs 1",
    "streaming.py": "--epochs 1",
    "contrastive.py": "--epochs 1",
}


def test_every_example_has_a_row_of_its_own():
    scripts = sorted(path.name for path in EXAMPLES.glob("*.py") if "__main__" in path.read_text())
    assert sorted(script for script, *_ in ROWS) == scripts


def test_every_row_has_a_command_for_one_process_and_one_for_several():
    assert ROWS
    for script, one, several in ROWS:
        assert one.startswith(f"python examples/{script}")
        assert re.match(rf"lockstep run --nproc-per-node \d (.* )?examples/{re.escape(script)}", several)


def test_links_beside_the_table_lead_somewhere():
    targets = re.findall(r"\]\((?!http)([^)#]+)", (EXAMPLES / "README.md").read_text())
    assert targets
    assert [target for target in targets if not (EXAMPLES / target).exists()] == []


@pytest.mark.longest  # each example runs in another file, too
@pytest.mark.timeout(180)
@pytest.mark.parametrize(("script", "command"), COMMANDS)
def test_a_command_of_the_table_runs(script, command, tmp_path, require, run_here, python_here):
    if script == "fine_tuning.py":
        missing = importlib.util.find_spec("transformers") is None
        require("transformers", "transformers is not installed (pip install transformers)" if missing else None)
    shutil.copytree(EXAMPLES, tmp_path / "examples", ignore=shutil.ignore_patterns("__pycache__"))
    on_disk.write_cifar(tmp_path / "data", per_batch=8)
    on_disk.write_images(tmp_path / "data" / "imagenet")
    command = " ".join((command, SMALLER.get(script, "")))
    if command.startswith("lockstep run"):
        done = run_here(None, *command.split()[2:], env={"OMP_NUM_THREADS": "1"})
    else:
        done = python_here(*command.split()[1:], env={"OMP_NUM_THREADS": "1"})
    assert done.returncode == 0, done.stdout + done.stderr
    processes = re.search(r"--nproc-per-node (\d)", command)
    count = int(processes[1]) if processes else 1
    assert f" on {count} process{'es' if count > 1 else ''}, " in done.stdout
