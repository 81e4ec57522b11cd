"""What an audit computes again is no value of a batch: of any rank's shard, before or after this
rank's own."""

from dataclasses import dataclass
from types import SimpleNamespace

import pytest
import torch

from lockstep.integrations.accelerate._batches import TrainingBatch
from lockstep.integrations.accelerate._models import per_shard
from lockstep.integrations.accelerate._structure import shape_of

pytestmark = pytest.mark.timeout(20)


@dataclass(frozen=True)
class Part:
    """A shard's samples of one of the step's global batches."""

    shard: int
    num_samples: int
    number: int = 0
    """Of the global batch."""

    @property
    def samples(self):
        return torch.arange(1.0, self.num_samples + 1) + 10 * self.shard + 100 * self.number


STEPS = {
    "one batch": [Part(0, 2), Part(1, 3), Part(2, 2), Part(3, 1)],
    "two batches": [
        Part(shard, size, number) for number in (0, 1) for shard, size in enumerate((3 - number, 2, 2 - number))
    ],
}


class Rank:
    """The team and the batch of a rank with the shards ``own`` of a step, which runs ``repeated``
    once more for an audit, as often before its own and after them."""

    device = torch.device("cpu")

    def __init__(self, step, own, repeated, before, after):
        mine = [part for part in step if part.shard in own]
        again = [(part, True) for part in step if part.shard == repeated]
        self.plan = SimpleNamespace(micro_batches=mine)
        self.order = again * before + [(part, False) for part in mine] + again * after
        self.others = [part for part in step if part not in mine]
        self.ran = []

    @property
    def shards(self):
        for part, in_audit in self.order:
            self.shard, self.in_audit = part.shard, in_audit
            yield part.samples

    def backward(self, loss, **_):
        self.ran.append(loss.item())

    def add(self, **_):
        pass

    def __getitem__(self, name):
        return 1.0

    def all_gather_object(self, mine):
        """With the values of the other ranks, which are twice their samples."""
        return [mine, [(part.shard, part.num_samples, 0, 2 * part.samples) for part in self.others]]


@pytest.mark.parametrize(("before", "after"), [(0, 0), (1, 0), (0, 1), (1, 1)])
@pytest.mark.parametrize("own", [(), (0,), (1, 2), (0, 1, 2, 3)])
@pytest.mark.parametrize("step", STEPS)
def test_a_value_has_the_rows_of_each_shard_once_whichever_an_audit_repeats(step, own, before, after):
    doubled = per_shard(lambda x: 2 * x)
    in_order = sorted(STEPS[step], key=lambda part: part.shard)
    for repeated in {part.shard for part in in_order}:
        rank = Rank(STEPS[step], own, repeated, before, after)
        batch = TrainingBatch(rank, rank, shape_of(torch.ones(1)))
        outputs = doubled(batch.promised(batch.structure))
        batch.backward(outputs.sum(), 1, None, None, {})
        assert rank.ran == [2 * part.samples.sum().item() for part, _ in rank.order]
        assert outputs.tolist() == (2 * torch.cat([part.samples for part in in_order])).tolist()
