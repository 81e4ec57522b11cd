"""A disk that is slower than checkpoints fall due: they come later, at the first step they can, and none is forgotten."""

import json
from itertools import pairwise

import pytest

from lockstep.journal.history import read_events

pytestmark = pytest.mark.timeout(90)

STEPS = 40
SOON = 10  # steps, of at least 50 ms: the thread that writes may have to wait for the processor
# A disk that takes as long as many steps do. Rank 0 notes which checkpoints the journal tells of, in every step.
SCRIPT = """
import json, os, time
from pathlib import Path
import torch, lockstep
from lockstep.journal.history import read_events
team = lockstep.join()
sync = os.fsync
os.fsync = lambda file: (time.sleep(0.1), sync(file))
model = torch.nn.Linear(4, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
data = torch.utils.data.TensorDataset(torch.randn(320, 4))
model, optimizer, loader = team.prepare(model, optimizer, torch.utils.data.DataLoader(data, 8))
seen = {}
for epoch in team.epochs(1):
    for batch in loader:
        if team.is_main:
            for event in read_events(team.run_dir):
                if event["event"] == "checkpoint":
                    seen.setdefault(event["step"], team.step - 1)
        for (x,) in batch.shards:
            team.backward(model(x).square().mean())
        optimizer.step()
        optimizer.zero_grad()
        time.sleep(0.05 if seen else 0.5)  # the first is written before the end on the slowest disk, too
if team.is_main:
    Path("seen.json").write_text(json.dumps(seen))
"""


def test_one_that_is_due_while_the_last_is_written_is_saved_soon_after_it_and_stands_for_all(run_here, tmp_path):
    ended = run_here(SCRIPT, "--nproc", "2", "--checkpoint-every", "1", "--run-dir", "run")
    assert ended.returncode == 0, ended.stderr
    written = {int(step): after for step, after in json.loads((tmp_path / "seen.json").read_text()).items()}
    steps = [event["step"] for event in read_events(tmp_path / "run") if event["event"] == "checkpoint"]
    late = 0
    for saved, following in pairwise(steps[:-1]):  # (the last one is that of the end)
        known = written.get(saved, STEPS)  # it was not there when this step began, and was when the next one did
        assert max(saved + 1, known) <= following <= max(saved + 1, min(known + SOON, STEPS)), (steps, written)
        late += following > saved + 1
    assert late, (steps, written)
