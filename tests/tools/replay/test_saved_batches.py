"""What a replay shows and saves of its steps: the batches are those of the loader, whatever the
script does with them."""

import pytest
import torch

from lockstep._base.stopping import Ended
from lockstep._plan.blocks import even_blocks
from lockstep._plan.shards import plan_step
from lockstep._tools.replay.shown_steps import FromStep, ShownSteps
from lockstep._tools.verify.trace.lines import TraceWriter, read_lines
from lockstep._tools.verify.trace.recorder import Recorder
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


@pytest.mark.parametrize(("first", "last"), [(1, 1), (2, 3), (3, 3)])
@pytest.mark.parametrize("shown_shard", [None, 1])
def test_the_steps_that_are_shown_are_all_from_the_first_to_the_last_with_the_sum_of_a_shards_gradients(
    tmp_path, first, last, shown_shard
):
    subjects, weight = Subjects(), torch.nn.Parameter(torch.zeros(2))
    subjects.prepared(torch.nn.ParameterList([weight]))
    recorder = ShownSteps(TraceWriter(tmp_path, "rank-0", is_fresh=False), subjects, last, shown_shard, None)
    shown = FromStep(recorder, first)
    shown.begin_pass(0, 1, 3, 0)
    plan = plan_step(1, (4,), 0, even_blocks(1, 2))
    for step in (1, 2, 3):
        shown.begin_step(step)
        shown.begin_phase(0)
        for micro in plan.micro_batches:
            shown.begin_shard(micro)
            for factor in (3.0, 4.0):  # two backward calls
                loss = (weight * torch.tensor([factor, 0.0])).sum() * step
                shown.before_backward(loss, None)
                loss.backward()
            shown.end_shard()
        shown.end_phase(0)
        shown.end_step(step, 4)
        weight.grad = None
        if step == last:
            with pytest.raises(Ended):
                shown.agreed(step)
            break
        shown.agreed(step)
    lines = [line for line in read_lines(tmp_path / "trace" / "rank-0.jsonl") if line["event"] == "shard"]
    assert [(line["step"], line["shard"]) for line in lines] == [
        (step, shard) for step in range(first, last + 1) for shard in (0, 1)
    ]
    for line in lines:
        norms = {"0": (7.0 * line["step"]).hex()} if shown_shard in (None, line["shard"]) else {}
        assert line["norms"] == norms


def recorded(directory, factors):
    """The digests of a shard's gradients in a step with so many backward calls, that is the last of
    its pass and of the trace; and of the end."""
    subjects, weight = Subjects(), torch.nn.Parameter(torch.zeros(2))
    subjects.prepared(torch.nn.ParameterList([weight]))
    recorder = Recorder(TraceWriter(directory, "rank-0"), subjects, 1)
    (micro,) = plan_step(1, (4,), 0, even_blocks(1, 1)).micro_batches
    recorder.begin_pass(0, 1, 1, 0)
    recorder.begin_step(1)
    recorder.begin_phase(0)
    recorder.begin_shard(micro)
    for factor in factors:
        (weight * factor).sum().backward()
    recorder.end_shard()
    recorder.end_phase(0)
    recorder.end_step(1, 4)
    recorder.end_pass(1, exhausted=True)
    recorder.agreed(1)
    with pytest.raises(Ended):
        recorder.begin_pass(0, 1, 1, 0)
    recorder.end_run(1, failed=False)
    lines = {line["event"]: line for line in read_lines(directory / "trace" / "rank-0.jsonl")}
    return lines["shard"]["gradients"], lines["end"]["weights"]


def test_each_backward_call_of_a_shard_counts_and_a_pass_that_would_follow_the_last_step_ends_the_script(tmp_path):
    factors = (3.0, 4.0), (5.0, 4.0), (3.0, 5.0), (4.0, 3.0), (7.0,)
    found = [recorded(tmp_path / str(number), each) for number, each in enumerate(factors)]
    assert len({str(gradients) for gradients, _ in found}) == len(factors)
    assert len({str(weights) for _, weights in found}) == 1
