"""Every command that the documentation shows, run as it is written."""

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from horovod_helpers import why_missing
from warm import run_here

__all__ = ["run_here"]

ROOT = Path(__file__).parents[2]
# Scripts that know nothing of lockstep, and a few that do, written as others write them.
SCRIPTS = ROOT / "tests" / "outside" / "scripts"
OUTSIDE = re.compile("|".join(rf"\b{re.escape(path.name)}\b" for path in sorted(SCRIPTS.iterdir()) if path.name[0] != "_"))
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
HOW_TO = sorted((ROOT / "docs" / "how-to").glob("*.md"))  # their commands run in test_how_to.py

TRAIN = """
import argparse, torch, lockstep
parser = argparse.ArgumentParser()
parser.add_argument("--epochs", type=int, default=1)
args = parser.parse_args()
team = lockstep.join(shards=8)
model = torch.nn.Linear(4, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
data = torch.utils.data.TensorDataset(torch.randn(32, 4))
model, optimizer, loader = team.prepare(model, optimizer, torch.utils.data.DataLoader(data, 8))
for epoch in team.epochs(args.epochs):
    for batch in loader:
        for (x,) in batch.shards:
            loss = model(x).square().mean()
            team.backward(loss)
            batch.add(loss=loss)
        optimizer.step()
        optimizer.zero_grad()
        team.log(loss=batch["loss"])
"""

BY_HAND = """
import argparse, lockstep
parser = argparse.ArgumentParser()
parser.add_argument("--init-method")
parser.add_argument("--rank", type=int)
parser.add_argument("--world-size", type=int)
args = parser.parse_args()
team = lockstep.join(init_method=args.init_method, rank=args.rank, world_size=args.world_size, timeout_s=60.0)
assert team.world_size == 2
team.barrier()
"""
[RUN_TOML] = re.findall(r'```toml title="run.toml"\n(.*?)```', (ROOT / "docs" / "launching.md").read_text(), flags=re.DOTALL)
# What makes a command small: a part of it, and what stands there instead.
SMALLER = {
    "compare examples/digits.py": "compare --rounds 1 examples/digits.py",
    "compare --methods single,single+bf16-mixed train.py": "compare --methods single,single+bf16-mixed --rounds 1 train.py",
    # Once is enough for torchrun, at a free port. (tests/contract/test_matrix.py has it start an
    # example's model.)
    "torchrun --standalone --nproc-per-node 2 train.py": "torchrun --nproc-per-node 2 train.py",
    "torchrun --nproc-per-node 2 examples/digits.py": "torchrun --nproc-per-node 2 train.py",
    "torchrun --nproc-per-node 2 with_lockstep.py": "torchrun --nproc-per-node 2 train.py",
    "torchrun --nproc-per-node 2": "torchrun --standalone --nproc-per-node 2",
    "verify examples/digits.py": "verify --world-sizes 1,2 --no-resume --launchers local examples/digits.py",
    "single+16-mixed,single+16-master,single+16-true,single+bf16-mixed,single+bf16-true --threads 1 "
    "examples/digits.py --epochs 2": "single+16-true,single+bf16-mixed --rounds 1 --threads 1 examples/digits.py --epochs 1",
}
# Left out of CI: what they start runs in other tests, but for the words of the command.
LONGEST = re.compile(
    # tests/cli, tests/tools/tune, tests/examples
    r"(verify|compare) --|(verify|compare|run .*) examples/|lockstep tune"
    r"|[^n] (--\S+ (\d )?)*with_lockstep|spawn_env|gpt\.train|--no-python"  # tests/outside
    # tests/world/comm/test_rendezvous.py, tests/contract/test_matrix.py,
    # tests/state/recovery/test_stopped.py
    r"|by_hand|^torchrun|^until"
    r"|^horovodrun|^mpirun"  # tests/sync/test_horovod.py, tests/launch/test_mpirun.py
)
# These need no shell and no process of their own. (The sessions, and tests/cli, start the command
# itself.)
WARM = re.compile(r"lockstep run [\w ./:=$-]+")
# In the table of methods, and run by tests/sync/test_dp.py and tests/cuda.
ON_GPUS = {"lockstep run --strategy dp train.py"}
# It runs, beside others with the same answer, in tests/outside/test_same_result.py.
SPAWNING = "lockstep run imagenet.py --multiprocessing-distributed --world-size 1 --rank 0 --dist-url tcp://127.0.0.1:23456"
# mpirun does not like to be run by root, and these say that it may.
AS_ROOT = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}


def commands():
    """Each command with the page that shows it, and one of those that are the same when made small.

    Not those of the table of examples, which has a test of its own.
    """
    in_table = set(re.findall(r"`([^`]+)`", (ROOT / "examples" / "README.md").read_text()))
    found = {}
    for page in PAGES:
        for block in re.findall(r"```console\n(.*?)```", page.read_text(), flags=re.DOTALL):
            for line in re.sub(r" *\\\n *", " ", block).splitlines():
                if line.startswith("$ "):
                    found.setdefault(re.sub(r"\s{2,}#.*", "", line[2:]).strip(), page.name)
    for command in sorted(commands_of_methods() - ON_GPUS):
        found.setdefault(command, "strategies.md")
    by_run = {as_run(command): (command, page) for command, page in found.items() if command not in (*in_table, SPAWNING)}
    return dict(by_run.values())


def as_run(command):
    for usual, smaller in SMALLER.items():
        command = command.replace(usual, smaller)
    return f"{command} --epochs 1" if command.endswith("examples/digits.py") else command


def commands_of_methods():
    """Those in the table of methods."""
    section = (ROOT / "docs" / "strategies.md").read_text().partition("## Methods and commands")[2]
    table = re.findall(r"^\|.*\|$", section, flags=re.MULTILINE)
    cells = [row.split(" | ")[2] for row in table[2:]]
    return {command for cell in cells for command in re.findall(r"`([^`]+)`", cell)}


def marked(command, page):
    slow = page not in ("README.md", "launching.md") or "examples/" in command or OUTSIDE.search(command)
    marks = [pytest.mark.long, pytest.mark.timeout(1000)] if slow else [pytest.mark.timeout(90)]
    if LONGEST.search(command):
        marks.append(pytest.mark.longest)
    return pytest.param(command, marks=marks, id=command)


@pytest.mark.parametrize("command", [marked(*found) for found in commands().items() if not found[0].startswith("make ")])
def test_a_command_of_the_documentation_runs_as_written(command, tmp_path, require, run_here):
    if command.startswith("mpirun"):
        require("mpi", None if shutil.which("mpirun") else "mpirun is missing (on Debian: apt-get install openmpi-bin)")
    if re.search(r"^horovodrun|--strategy horovod", command):
        require("horovod", why_missing())
    shutil.copytree(ROOT / "examples", tmp_path / "examples")
    shutil.copytree(SCRIPTS, tmp_path, dirs_exist_ok=True)
    (tmp_path / "train.py").write_text(TRAIN)
    (tmp_path / "by_hand.py").write_text(BY_HAND)
    (tmp_path / "run.toml").write_text(RUN_TOML)
    (tmp_path / "package").mkdir()
    (tmp_path / "package" / "train.py").write_text(TRAIN)
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    environ = {**AS_ROOT, "PATH": path, "OMP_NUM_THREADS": "1"}
    if WARM.fullmatch(command):
        done = run_here(None, *as_run(command).replace("$PWD", str(tmp_path)).split()[2:], env=environ)
    else:
        done = subprocess.run(
            as_run(command),
            shell=True,
            cwd=tmp_path,
            env={**os.environ, **environ},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=900,
        )
    assert done.returncode == 0, done.stdout + done.stderr
    if command == "lockstep compare examples/digits.py":
        assert_every_method_of_this_machine_ran(tmp_path / "comparison")


def assert_every_method_of_this_machine_ran(comparison):
    rows = json.loads((comparison / "results.json").read_text())["rows"]
    assert [row["reason"] for row in rows] == [None] * len(rows)
    methods = [row["method"] for row in rows]
    assert methods[:4] == ["single", "ddp", "exact", "fsdp"]
    assert ("ddp@mpirun" in methods) == (shutil.which("mpirun") is not None)
    assert {"horovod", "horovod@horovodrun"}.issubset(methods) == (why_missing() is None)
    assert not [method for method in methods if "+" in method]  # processors emulate 16-bit formats
    losses = {row["method"]: row["figures"]["loss"] for row in rows}
    for method in methods:
        assert losses[method] == pytest.approx(losses["single"], rel=0.01), method


def sessions():
    """Blocks of commands that belong together."""
    for page in PAGES:
        for number, block in enumerate(re.findall(r"```console session\n(.*?)```", page.read_text(), flags=re.DOTALL), 1):
            yield pytest.param("\n".join(re.findall(r"^\$ (.*)", block, flags=re.MULTILINE)), id=f"{page.name}-{number}")


@pytest.mark.long
@pytest.mark.timeout(180)
@pytest.mark.parametrize("session", list(sessions()))
def test_a_session_of_the_documentation_runs_as_written_and_ends_with_equal_digests(session, tmp_path):
    shutil.copytree(ROOT / "examples", tmp_path / "examples")
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    session = session.replace("examples/digits.py", "examples/digits.py --epochs 1").replace("00000115", "00000023")
    done = subprocess.run(
        ["bash", "-ec", session],
        cwd=tmp_path,
        env={**os.environ, "PATH": path},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=850,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    digests = re.findall(r"^[0-9a-f]{64}(?=  )", done.stdout, flags=re.MULTILINE)
    assert len(digests) > 1
    assert len(set(digests)) == 1, done.stdout


@pytest.mark.parametrize("command", [command for command in commands() if command.startswith("make ")])
def test_a_target_of_the_documentation_exists(command):
    done = subprocess.run(["make", "-n", *command.split()[1:]], cwd=ROOT, capture_output=True, text=True, timeout=30)
    assert done.returncode == 0, done.stderr


def test_the_table_of_methods_has_commands():
    assert len(commands_of_methods()) > 20
    assert all(re.match("lockstep|torchrun|mpirun|horovodrun", command) for command in commands_of_methods())


def test_the_documentation_shows_commands_at_all():
    assert {"make demo", "lockstep compare examples/digits.py"} <= commands().keys()


def anchors(page):
    """What GitHub makes of a page's headings, and of the lines of code."""
    if page.suffix == ".py":
        return {f"L{number}" for number in range(1, len(page.read_text().splitlines()) + 1)}
    headings = re.findall(r"^#+ (.*)", page.read_text(), flags=re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", [*PAGES, *HOW_TO], ids=lambda page: page.name)
def test_links_of_the_documentation_lead_somewhere(page):
    text = re.sub(r"^```.*?^```", "", page.read_text(), flags=re.DOTALL | re.MULTILINE)
    for target, anchor in re.findall(r"\]\((?!http)([^)#]*)(?:#([^)]+))?\)", text):
        there = page.parent / target if target else page
        assert there.exists(), f"{page.name} links to {target}"
        assert not anchor or anchor in anchors(there), f"{page.name} links to {target}#{anchor}"


def rows_of(page):
    """The tables of a page by the first cell of each row, every cell by the heading of its
    column."""
    headings, rows = [], {}
    for line in page.read_text().splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")] if line.startswith("|") else []
        if not cells:
            headings = []
        elif not headings:
            headings = cells
        elif not set(line) <= set("|-: "):
            rows[cells[0]] = dict(zip(headings, cells, strict=True))
    return rows


def test_the_readme_shows_what_was_measured_of_samples():
    columns = {
        "resumed": "killed after 20 of 64, resumed: seen twice / never",
        "resumed on 3": "killed after 18 of 40 on 2 processes, resumed on 3: seen twice / never",
        "gradient": "3, 61, 17 and 40 labels on 2 processes x 2 batches: error of the gradient",
        "weights": "the same with dropout",
    }
    measured = rows_of(ROOT / "docs" / "why.md")
    text = (ROOT / "README.md").read_text().partition("## Evidence")[2].partition("## ")[0]
    shown = []
    for table in re.findall(r"(?:^\|.*\n)+", text, flags=re.MULTILINE):
        head, _, *rows = [[cell.strip("* ") for cell in line.strip("|\n").split("|")] for line in table.splitlines()]
        shown += [(heading, row[0], cell) for row in rows for heading, cell in zip(head[1:], row[1:], strict=True)]
    assert {heading for heading, *_ in shown} == columns.keys()
    assert {peer for _, peer, _ in shown} == {"accelerate", "Lightning", "Trainer", "DDP", "lockstep"}
    for heading, peer, cell in shown:
        assert cell == measured[columns[heading]][peer], (heading, peer)
