"""What a run says of its script's loop."""

import pytest

from lockstep._tools.check import instrument as reading
from lockstep._tools.check.findings import make

SCRIPT = """\
import torch
from torch.utils.data import DataLoader

import lockstep

team = lockstep.join(seed=1, shards=2, checkpoint_every=1, progress="off")
model = torch.nn.Linear(2, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
model, optimizer, loader = team.prepare(model, optimizer, DataLoader(torch.randn(8, 2), 4))
best, seen = 9.0, 0
for epoch in team.epochs(2):
    for batch in loader:
        for x in batch.shards:
            loss = model(x).square().mean()
            team.backward(loss)
            batch.add(loss=loss)
            seen += len(x)
        optimizer.step()
        optimizer.zero_grad()
    best = min(best, loader.averages["loss"])
    if best < 0.0:
        break
    if epoch == 0 and {stops}:
        raise SystemExit(3)
print("samples", seen)
"""


def lines(output):
    return [line for line in output.splitlines() if line.startswith("lockstep: ")]


@pytest.mark.long
def test_a_run_says_what_differs_and_what_starts_anew_and_again_when_it_resumes(python_here, tmp_path):
    script = tmp_path / "train.py"
    for stops in (True, False):
        script.write_text(SCRIPT.format(stops=stops))
        said = lines(python_here("train.py").stdout)
        assert [line for line in said if "train.py:17" in line and "WARNING" in line and "LS102" in line]
        [carried] = [line for line in said if "team.state(" in line]
        assert "`best` (train.py:20)" in carried
        assert "team.state(best=" in carried


def test_all_names_that_start_anew_stand_in_one_line():
    findings = [make("LS201", "train.py", line, 1, name) for line, name in ((3, "best"), (4, "self.bad"))]
    [line] = reading.notices(findings, resumes=True)
    assert "`best` (train.py:3), `self.bad` (train.py:4)" in line
    assert "team.state(best=..., bad=...)" in line


def test_many_warnings_are_cut_short():
    findings = [make("LS102", "train.py", line, 1, f"n{line}") for line in range(9)]
    said = reading.notices(findings, resumes=True)
    assert len(said) < len(findings)
    assert "lockstep check train.py" in said[-1]
