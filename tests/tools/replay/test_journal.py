"""The digest journal has each micro-batch that counts once, with its place, samples and losses,
whatever the shape of a step."""

import itertools

import pytest
import torch

from lockstep._plan.blocks import even_blocks
from lockstep._plan.shards import plan_step
from lockstep._tools.replay.digests import DIRECTORY, read_digests
from lockstep._tools.replay.journal import DigestJournal
from lockstep._tools.verify.trace.differences import compare
from lockstep._tools.verify.trace.lines import TraceWriter, exact
from lockstep._tools.verify.trace.subjects import Subjects

pytestmark = pytest.mark.timeout(20)
NUM_LOADERS = 2


def write(directory, losses_of, left=(), changed=None):
    """The journal of three steps of two phases and two shards, of one rank.

    Args:
        directory: of the run.
        losses_of: the losses of a micro-batch, by its step, phase and shard.
        left: attempts that end in an error: the step, and the micro-batches before that.
        changed: step, phase, shard and loader of a batch with other samples.
    """
    writer = TraceWriter(directory, "rank-0", DIRECTORY, is_fresh=False)
    writer.write(event="start", launch="a", after=0, every=0)
    journal = DigestJournal(writer, 0, None, Subjects(), is_main=True)
    plan = plan_step(1, (4,), 0, even_blocks(1, 2))
    attempts = [*left, *((step, None) for step in (1, 2, 3))]
    for step, until in sorted(attempts, key=lambda attempt: (attempt[0], attempt[1] is None)):
        journal.begin_step(step)
        numbers = itertools.count(1)
        for phase in (0, 1):
            for micro in plan.micro_batches:
                if until is not None and next(numbers) > until:
                    continue
                for loader in range(NUM_LOADERS):
                    place = step, phase, micro.shard, loader
                    micro.samples = [9 if place == changed else micro.shard]
                    journal.received(micro, None)
                for loss in losses_of(step, phase, micro.shard) if until is None else (99.0,):
                    journal.before_backward(torch.tensor(loss), None)
                journal.end_shard()
            if until is None:
                journal.end_phase(phase)
        if until is not None:
            journal.abandon_step()
        else:
            journal.end_step(step, 4)
            journal.agreed(step)
    journal.end_run(3, failed=False)
    return read_digests(directory)


def usual(step, phase, shard):
    """In the first loop no backward call, as where it only computes embeddings, in one shard of the
    second two."""
    return ([], [step + shard / 2.0] * (1 + shard))[phase]


@pytest.mark.parametrize("left", [(), ((2, 3),), ((1, 1), (3, 4), (3, 2))])
def test_each_micro_batch_that_counts_is_there_once(tmp_path, left):
    found = write(tmp_path, usual, left)
    entries = {tuple(key): line["losses"] for step in found.numbers() for key, ((_, line),) in found.shards_of(step)}
    places = itertools.product((1, 2, 3), (0, 1), (0, 1))
    assert entries == {(*place, 0): list(map(exact, usual(*place))) for place in places}


@pytest.mark.parametrize("place", [(1, 0, 0, 0), (2, 1, 1, 0), (3, 0, 1, 1)])
def test_other_samples_of_any_loader_in_any_loop_are_a_difference(tmp_path, place):
    one, two = write(tmp_path / "one", usual), write(tmp_path / "two", usual, changed=place)
    found = compare(one, two).difference
    assert (found.step, found.phase, found.shard, found.stage) == (*place[:3], "samples")
    assert compare(one, write(tmp_path / "again", usual, left=((2, 2),))).difference is None
