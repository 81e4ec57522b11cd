"""``lockstep doctor SCRIPT``: whether the script's loader keeps up is measured by running it."""

import json
import os
import subprocess
import sys

import pytest

pytestmark = [pytest.mark.timeout(100), pytest.mark.long]

TRAIN = """
import sys, time, torch, lockstep
slow_s, num_workers, work_s = float(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3])
class Samples(torch.utils.data.Dataset):
    def __len__(self):
        return 100_000
    def __getitem__(self, index):
        time.sleep(slow_s)
        return torch.ones(6), torch.ones(1)
team = lockstep.join()
model = torch.nn.Linear(6, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
loader = torch.utils.data.DataLoader(Samples(), 8, num_workers=num_workers)
model, optimizer, loader = team.prepare(model, optimizer, loader)
for epoch in team.epochs(1):
    for batch in loader:
        for x, y in batch.shards:
            loss = (model(x) - y).square().mean()
            time.sleep(work_s)
            team.backward(loss)
        optimizer.step()
        optimizer.zero_grad()
"""
SHORT = TRAIN.replace("100_000", "96")
OTHER = "import time\nfor _ in range(5): time.sleep(0.01)\n"
FAILS = "import lockstep\nteam = lockstep.join()\nraise ValueError('no such data')\n"


@pytest.fixture
def loader(tmp_path):
    """``loader(source, *args)``: the exit status, and what the doctor says of a script's loader."""

    def examine(source, *args, options=()):
        (tmp_path / "script.py").write_text(source)
        command = [sys.executable, "-m", "lockstep", "doctor", "--json", "--seconds", "1.5", *options, "script.py"]
        done = subprocess.run(
            [*command, *map(str, args)], cwd=tmp_path, env={**os.environ}, capture_output=True, text=True, timeout=300
        )
        findings = json.loads(done.stdout)
        assert [path.name for path in tmp_path.iterdir()] == ["script.py"]
        assert findings[-1]["check"] == "loader"
        return done.returncode, findings[-1]

    return examine


def test_a_slow_loader_is_said_to_be_slow_and_workers_help(loader):
    status, found = loader(TRAIN, 0.004, 0, 0.001, options=("--nproc", "2"))
    assert (status, found["state"]) == (0, "warn"), found
    assert "for the loader, in " in found["found"]
    assert found["remedy"].startswith("more loader workers")
    assert len(found["values"]["splits"]) == 2


def test_a_loader_that_keeps_up_is_well_and_settings_reach_the_script(loader):
    status, found = loader(TRAIN, 0.004, 0, 0.1, options=("--workers", "2"))
    assert (status, found["state"]) == (0, "ok"), found


def test_a_script_that_is_over_at_once_is_measured_whole(loader):
    _, found = loader(SHORT, 0.004, 0, 0.0)
    assert found["state"] == "warn", found
    assert found["values"]["num_steps"] == 12


def test_a_script_that_knows_nothing_of_lockstep_is_not_measured_and_that_is_said(loader):
    status, found = loader(OTHER)
    assert (status, found["state"]) == (0, "warn")
    assert found["found"].startswith("not measured: the script has not called lockstep.join()")


def test_a_script_that_fails_is_a_failure_with_its_error(loader):
    status, found = loader(FAILS)
    assert (status, found["state"]) == (1, "fail")
    assert found["found"] == "the script failed: ValueError: no such data"
