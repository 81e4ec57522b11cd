"""docs/doctor.md shows what the doctor really prints: its blocks are made anew, and compared but for numbers and paths."""

import re
from pathlib import Path

import pytest
from crew import warm_server
from launchers import nursery, warm_trials
from warm import run_on

from lockstep.tools.doctor.finding import STATES
from lockstep.tools.doctor.table import CHECKS

__all__ = ["nursery", "warm_trials"]

PAGE = (Path(__file__).parents[2] / "docs" / "doctor.md").read_text()
SHOWN = dict(re.findall(r"<!-- ([^>]*?) -->\n```text\n(.*?)```", PAGE, flags=re.DOTALL))
ON_EVERY_MACHINE = (
    "check ",
    "versions ",
    "NCCL ",
    "OMP and BLAS ",
    "run directory ",
    "loader ",
    "warn: OMP",
    "warn: loader",
)
SLOW = """
import time, torch, lockstep
class Images(torch.utils.data.Dataset):
    def __len__(self):
        return 100_000
    def __getitem__(self, index):
        time.sleep(0.01)
        return torch.ones(64), index % 10
team = lockstep.join()
model = torch.nn.Linear(64, 10)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
model, optimizer, loader = team.prepare(model, optimizer, torch.utils.data.DataLoader(Images(), 16))
for epoch in team.epochs(1):
    for batch in loader:
        for images, labels in batch.shards:
            team.backward(torch.nn.functional.cross_entropy(model(images), labels))
        optimizer.step()
        optimizer.zero_grad()
"""

pytestmark = pytest.mark.timeout(100)


def plain(text):
    """Without what differs from run to run: numbers, paths, and the width of columns."""
    text = re.sub(r"\S*/(here|shared|test_\w+)", "DIR", re.sub(r"\(\w+\) can be", "(FS) can be", text))
    text = re.sub(r"[0-9][0-9.,]*( [MG]B/s|\+cpu)?", "N", text)
    return [re.sub(r" +", " ", line).strip() for line in text.splitlines()]


@pytest.fixture
def run(warm_trials, outlives_tests, request, tmp_path):
    """``run(command)``: what it prints, in ``tmp_path``, on both streams."""

    def call(shown):
        variables, verb, rest = re.fullmatch(r"((?:\w+=\w+ )*)lockstep (\w+) (.*)", shown).groups()
        env = dict(pair.split("=") for pair in variables.split())
        done = run_on(warm_server(request, outlives_tests), tmp_path, rest.split(), env=env, verb=verb)
        return plain(done.stdout + done.stderr)

    return call


@pytest.mark.long
def test_the_table_is_what_the_command_prints(run, tmp_path):
    (tmp_path / "slow.py").write_text(SLOW)
    (shown,) = [command for command in SHOWN if "lockstep doctor" in command]
    printed = run(shown)
    assert [line for line in plain(SHOWN[shown]) if line.startswith(ON_EVERY_MACHINE) and line not in printed] == [], printed
    rows = [re.match(rf"(.*?) ({'|'.join(STATES)}) ", line) for line in plain(SHOWN[shown])]
    assert [row[1] for row in rows if row] == [*(check.name for check in CHECKS), "all-reduce", "loader"]


def test_what_preflight_prints_before_it_refuses(run, tmp_path):
    (tmp_path / "slow.py").write_text(SLOW)
    (tmp_path / "file").touch()
    (shown,) = [command for command in SHOWN if "--preflight" in command]
    printed = run(shown)
    assert [line for line in plain(SHOWN[shown]) if line not in printed] == [], printed


def test_every_check_is_explained():
    explained = {name for row in re.findall(r"^\| ([^|]+) \|", PAGE, flags=re.MULTILINE) for name in row.split(", ")}
    assert {check.name for check in CHECKS} <= explained
