"""Every command that the documentation shows, run as it is written."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]

TRAIN = """
import argparse, torch, lockstep
parser = argparse.ArgumentParser()
parser.add_argument("--epochs", type=int, default=1)
args = parser.parse_args()
team = lockstep.join()
model = torch.nn.Linear(4, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
data = torch.utils.data.TensorDataset(torch.randn(32, 4))
model, optimizer, loader = team.prepare(model, optimizer, torch.utils.data.DataLoader(data, 8))
for epoch in team.epochs(args.epochs):
    for (x,) in loader:
        loss = model(x).square().mean()
        team.backward(loss)
        optimizer.step()
        optimizer.zero_grad()
        team.log(loss=loss)
"""


def commands():
    found = {}
    for page in PAGES:
        for block in re.findall(r"```console\n(.*?)```", page.read_text(), flags=re.DOTALL):
            for line in block.splitlines():
                if line.startswith("$ "):
                    found.setdefault(re.sub(r"\s{2,}#.*", "", line[2:]).strip(), page.name)
    return found


def marked(command):
    slow = command.startswith(("lockstep compare", "lockstep verify")) or "examples/" in command
    return pytest.param(command, marks=[pytest.mark.long, pytest.mark.timeout(300)] if slow else [], id=command)


@pytest.mark.timeout(90)
@pytest.mark.parametrize("command", [marked(command) for command in commands() if not command.startswith("make ")])
def test_a_command_of_the_documentation_runs_as_written(command, tmp_path):
    shutil.copytree(ROOT / "examples", tmp_path / "examples")
    (tmp_path / "train.py").write_text(TRAIN)
    (tmp_path / "package").mkdir()
    (tmp_path / "package" / "train.py").write_text(TRAIN)
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    done = subprocess.run(
        command,
        shell=True,
        cwd=tmp_path,
        env={**os.environ, "PATH": path, "OMP_NUM_THREADS": "1"},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=280,
    )
    assert done.returncode == 0, done.stdout + done.stderr


def sessions():
    """Blocks of commands that belong together."""
    for page in PAGES:
        for number, block in enumerate(re.findall(r"```console session\n(.*?)```", page.read_text(), flags=re.DOTALL), 1):
            yield pytest.param("\n".join(re.findall(r"^\$ (.*)", block, flags=re.MULTILINE)), id=f"{page.name}-{number}")


@pytest.mark.timeout(180)
@pytest.mark.parametrize("session", list(sessions()))
def test_a_session_of_the_documentation_runs_as_written_and_ends_with_equal_digests(session, tmp_path):
    shutil.copytree(ROOT / "examples", tmp_path / "examples")
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    done = subprocess.run(
        ["bash", "-ec", session],
        cwd=tmp_path,
        env={**os.environ, "PATH": path},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=150,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    digests = re.findall(r"^[0-9a-f]{64}(?=  )", done.stdout, flags=re.MULTILINE)
    assert len(digests) > 1
    assert len(set(digests)) == 1, done.stdout


@pytest.mark.parametrize("command", [command for command in commands() if command.startswith("make ")])
def test_a_target_of_the_documentation_exists(command):
    done = subprocess.run(["make", "-n", *command.split()[1:]], cwd=ROOT, capture_output=True, text=True, timeout=30)
    assert done.returncode == 0, done.stderr


def test_the_documentation_shows_commands_at_all():
    assert {"make demo", "lockstep run --nproc-per-node 2 examples/digits.py"} <= commands().keys()


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_of_the_documentation_lead_somewhere(page):
    for target in re.findall(r"\]\((?!http)([^)#]+)", page.read_text()):
        assert (page.parent / target).exists(), f"{page.name} links to {target}"
