"""``lockstep doctor SCRIPT``: whether the script's loader keeps up is measured by running it."""

import pytest

from lockstep.tools.doctor.finding import FAIL, OK, WARN
from lockstep.tools.doctor.loader import judge, look

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


class Silent:
    """An Observer."""

    def started(self, what):
        pass

    waiting = ended = started


@pytest.fixture
def finding(warm_trials, tmp_path, monkeypatch):
    """``finding(source, *args, nproc=1, **settings)``: what is found of a script."""
    monkeypatch.chdir(tmp_path)

    def examine(source, *args, nproc=1, **settings):
        (tmp_path / "script.py").write_text(source)
        program = ["script.py", *map(str, args)]
        found = judge(**look(program, nproc, settings, 0.7, 100.0, Silent()))
        assert [path.name for path in tmp_path.iterdir()] == ["script.py"]
        return found

    return examine


def test_a_slow_loader_is_said_to_be_slow_and_workers_help(finding):
    found = finding(TRAIN, 0.004, 0, 0.001, nproc=2)
    assert found.state == WARN, found
    assert " for the loader, in " in found.found
    assert found.remedy.startswith("more loader workers")


def test_a_loader_that_keeps_up_is_well_and_settings_reach_the_script(finding):
    found = finding(TRAIN, 0.004, 0, 0.1, workers=2)
    assert found.state == OK, found


def test_a_script_that_is_over_at_once_is_measured_whole(finding):
    found = finding(SHORT, 0.004, 0, 0.0)
    assert found.state == WARN, found
    assert found.found.endswith(" for the loader, in 12 steps")


def test_a_script_that_fails_is_a_failure_with_its_error(finding):
    found = finding(FAILS)
    assert (found.state, found.found) == (FAIL, "the script failed: ValueError: no such data")


def test_a_script_that_knows_nothing_of_lockstep_is_not_measured_and_that_is_said(finding):
    found = finding(OTHER)
    assert found.state == WARN
    assert found.found.startswith("not measured: the script has not called lockstep.join()")


def test_a_script_that_takes_no_steps_is_not_measured_and_that_is_said():
    found = judge(error="", joined=True, num_steps=0, splits=[], limit_s=65.0)
    assert (found.state, found.found) == (WARN, "not measured: the script took too few steps within 65 s")
