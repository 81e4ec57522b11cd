"""The batches that a replay saves are those of the loader, whatever the script does with them."""

import pytest
import torch

from lockstep._plan.blocks import even_blocks
from lockstep._plan.shards import plan_step
from lockstep._tools.replay.shown_steps import ShownSteps
from lockstep._tools.verify.trace.lines import TraceWriter
from lockstep._tools.verify.trace.subjects import Subjects

pytestmark = pytest.mark.timeout(20)
BATCHES = {
    "a tensor": lambda rows: torch.arange(4.0)[rows],
    "nested": lambda rows: {"x": [torch.arange(4.0)[rows], (torch.arange(4)[rows],)], "names": ["a", "b"]},
}


def change(batch):
    """What a script does in place."""
    if isinstance(batch, torch.Tensor):
        batch.mul_(0)
    elif not isinstance(batch, str):
        for part in batch.values() if isinstance(batch, dict) else batch:
            change(part)


@pytest.mark.parametrize("shard", [None, 1])
@pytest.mark.parametrize("kind", BATCHES)
def test_batches_are_saved_as_the_loader_gave_them(tmp_path, kind, shard):
    out = tmp_path / "batch.pt"
    shown = ShownSteps(TraceWriter(tmp_path, "rank-0", is_fresh=False), Subjects(), 1, shard, out)
    plan = plan_step(1, (4,), 0, even_blocks(1, 2))
    shown.begin_step(1)
    shown.begin_phase(0)
    for micro in plan.micro_batches:
        micro.samples = list(range(micro.rows.start, micro.rows.stop))
        data = BATCHES[kind](micro.rows)
        shown.begin_shard(micro)
        shown.received(micro, data)
        change(data)
        shown.end_shard()
    shown.end_run(1, failed=True)
    kept = torch.load(out)
    assert [each["shard"] for each in kept] == [0, 1][shard or 0 : 2]
    for each in kept:
        rows = plan.micro_batches[each["shard"]].rows
        assert each["samples"] == list(range(rows.start, rows.stop))
        assert repr(each["batch"]) == repr(BATCHES[kind](rows))
