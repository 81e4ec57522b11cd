"""What a run says once of how global batches are split: which V it chose, what BatchNorm sees, and
who has no work."""

import json

import pytest
from torch import nn
from torch.optim.swa_utils import AveragedModel
from torch.utils.data import DataLoader

from lockstep._joining.startup.announcement import chosen_shards
from lockstep._joining.startup.split_remarks import SplitRemarks

pytestmark = pytest.mark.timeout(60)
TRAINING = """
    import sys, torch, lockstep
    from torch import nn
    from torch.utils.data import DataLoader, TensorDataset
    team = lockstep.join(progress="off")
    model = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    loader = DataLoader(TensorDataset(torch.randn(18, 3)), int(sys.argv[1]))
    model, optimizer, loader = team.prepare(model, optimizer, loader)
    for epoch in team.epochs(2):
        for batch in loader:
            for (x,) in batch.shards:
                model.train(len(x) > 1)
                team.backward(model(x).square().mean())
            optimizer.step()
            optimizer.zero_grad()
"""


def said(models, batch_size=12, passes=1):
    """What is said in passes over a loader of such batches, with four shards."""
    lines = []
    remarks = SplitRemarks(4, lines.append)
    for model in models:
        remarks.prepared(model)
    remarks.prepared_loader(DataLoader(range(99), batch_size))
    for epoch in range(passes):
        remarks.begin_pass(epoch, passes, 3, 0)
    return lines


def frozen(model):
    model.requires_grad_(False)
    return model.eval()


def test_batch_norm_is_told_once_over_how_many_samples_it_normalises():
    model = nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2), nn.Sequential(nn.BatchNorm2d(3)))
    [line] = said([model], passes=3)
    assert "'1' and 1 other layer" in line
    assert "3 samples (12 / 4 shards)" in line
    [line] = said([nn.BatchNorm1d(2)], batch_size=None)
    assert "1/4 of a global batch" in line


@pytest.mark.parametrize(
    "model",
    [
        nn.Sequential(nn.Linear(2, 2), nn.LayerNorm(2), nn.GroupNorm(1, 2), nn.InstanceNorm1d(2, track_running_stats=True)),
        nn.Sequential(nn.Linear(2, 2), frozen(nn.BatchNorm1d(2))),
        AveragedModel(nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2)), use_buffers=True),
        nn.SyncBatchNorm(2),
        object(),
    ],
    ids=["other norms", "frozen", "an average", "over the processes", "no model"],
)
def test_what_does_not_normalise_by_statistics_of_a_shard_is_not_spoken_of(model):
    assert said([model]) == []


@pytest.mark.parametrize(("processes", "better"), [(2, 8), (8, 8), (9, 16), (64, 64)])
def test_a_number_of_shards_that_nobody_gave_is_said_to_follow_processes(processes, better):
    assert f"{processes} shards" in chosen_shards(processes)
    assert f"shards={better}" in chosen_shards(processes)


def test_the_first_line_and_its_company_say_what_the_split_means(run_here, tmp_path):
    alone = run_here(TRAINING, "--run-dir", "a", args=[6])
    assert (alone.returncode, alone.stderr) == (0, "")
    assert chosen_shards(1) in alone.stdout.splitlines()[0]
    assert "shards=8" in chosen_shards(1)
    two = run_here(TRAINING, "--nproc", "2", "--run-dir", "b", args=[6])
    assert chosen_shards(2) in two.stdout.splitlines()[0]
    assert "BatchNorm (layer '1')" in two.stderr
    assert "3 samples (6 / 2 shards)" in two.stderr
    again = run_here(TRAINING, "--nproc", "1", "--run-dir", "b", args=[6])
    assert (again.returncode, chosen_shards(1) in again.stdout) == (0, False), "a run whose V is settled"
    given = run_here(TRAINING, "--nproc", "4", "--shards", "8", "--run-dir", "c", "--reports", "reports", args=[6])
    assert given.stdout.splitlines()[0].endswith("run c")
    reports = [json.loads(line) for line in (tmp_path / "reports").read_text().splitlines()]
    assert [report["code"] for report in reports] == ["batch-smaller-than-shards"]
    assert given.stderr.count("BatchNorm") == 1
