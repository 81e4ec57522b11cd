"""``lockstep run --audit``: what the user sees, and what is left of the run."""

import json

import pytest
from warm import run_here

__all__ = ["run_here"]
pytestmark = pytest.mark.timeout(90)

SCRIPT = """
    import sys, torch, lockstep
    from torch import nn
    from torch.utils.data import DataLoader, TensorDataset

    team = lockstep.join(threads=1, progress="off", checkpoint_every=3)
    inputs = torch.randn(48, 4)
    if "unsendable" in sys.argv:
        samples = [(row, lambda: 0) for row in inputs]
        loader = DataLoader(samples, 8, collate_fn=lambda rows: (torch.stack([row for row, _ in rows]), rows[0][1]))
    else:
        loader = DataLoader(TensorDataset(inputs, inputs), 8)
    model = nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    model, optimizer, loader = team.prepare(model, optimizer, loader)
    if "wrong" in sys.argv and team.rank == 1:
        model.bias.register_hook(lambda gradient: gradient + 1)
    for epoch in team.epochs(2):
        for batch in loader:
            for x, _ in batch.shards:
                team.backward(model(x).square().mean())
            optimizer.step()
            optimizer.zero_grad()
    print(f"done after {team.step}")
"""


def test_a_wrong_rank_ends_the_run_which_is_not_saved_any_more_nor_started_again(run_here, tmp_path):
    done = run_here(
        SCRIPT, "--nproc", "3", "--shards", "6", "--audit", "4", "--max-restarts", "3", "--run-dir", "r", args=["wrong"]
    )
    assert done.returncode == 76
    events = [json.loads(line) for line in (tmp_path / "r" / "events.jsonl").read_text().splitlines()]
    [found] = [event for event in events if event["event"] == "audit"]
    assert (found["ranks"], found["parameter"]) == ([1], "bias")
    assert found["step"] in (4, 8)
    assert found["where"][0].endswith(", cpu")
    assert done.stderr.count(f"audit of step {found['step']}, shard {found['shard']}: rank 1 (") == 1
    assert "Traceback" not in done.stdout + done.stderr
    assert "restart 1" not in done.stdout + done.stderr
    # Whoever has told the launcher first is not to blame, and all ranks have ended with the same.
    assert f"wrong result: step {found['step']}, shard {found['shard']}, bias: rank 1 (" in done.stderr
    assert " failed: " not in done.stderr
    assert "failed after it" not in done.stderr
    saved = [int(path.name.split("-")[1]) for path in (tmp_path / "r" / "checkpoints").glob("step-*")]
    assert max(saved) < found["step"]
    assert not [event for event in events if event["event"] == "end"]


def test_samples_that_cannot_be_sent_are_refused(run_here):
    done = run_here(SCRIPT, "--nproc", "2", "--shards", "2", "--audit", "2", "--run-dir", "r", args=["unsendable"])
    assert done.returncode == 1, done.stderr
    assert "audit: cannot send" in done.stderr
    assert "--audit" in done.stderr
