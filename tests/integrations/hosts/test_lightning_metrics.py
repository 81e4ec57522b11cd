"""The torchmetrics objects of a module don't communicate, whenever the script has made them: each
process has all updates, which would count once for each process."""

import importlib.util

import pytest
import torch
from torch import nn

pytestmark = [pytest.mark.long, pytest.mark.timeout(100)]
NUM_PROCESSES = 3
VALUES = torch.tensor([1.0, 2.0, 3.0])
"""What each shard of a step updates the metrics with."""
KINDS = ("a metric", "a collection", "a metric around another", "a list", "a module")


@pytest.fixture
def module(require, monkeypatch):
    """``module(kind)``: a module of Lightning with metrics as on one of several processes, all of
    which have the same updates. ``module.replace(kind)`` makes new ones."""
    require("lightning", None if importlib.util.find_spec("lightning") else "lightning is not installed")
    monkeypatch.setenv("PYTORCH_NVML_BASED_CUDA_CHECK", "1")  # as Lightning does
    from lightning.pytorch import LightningModule  # seconds, which whoever only collects tests need not wait for
    from torchmetrics import MeanMetric, MetricCollection, SumMetric
    from torchmetrics.wrappers import MinMaxMetric

    def total(made=SumMetric):
        return made(distributed_available_fn=lambda: True, dist_sync_fn=lambda value, group=None: [value] * NUM_PROCESSES)

    kinds = {
        "a metric": total,
        "a mean": lambda: total(MeanMetric),
        "a collection": lambda: MetricCollection({"a": total(), "b": total()}, compute_groups=False),
        "a metric around another": lambda: MinMaxMetric(total()),
        "a list": lambda: nn.ModuleList([total(), total()]),
        "a module": lambda: nn.Sequential(nn.Identity(), nn.ModuleDict({"total": total()})),
    }

    class Module(LightningModule):
        def __init__(self, kind):
            super().__init__()
            self.replace(kind)

        def replace(self, kind):
            self.part = kinds[kind]()

    return Module


def totals(module):
    """The value of each metric after an update."""
    from torchmetrics import Metric

    for metric in [part for part in module.modules() if isinstance(part, Metric)]:
        metric.reset()
        metric.update(VALUES)
        value = metric.compute()
        yield float(value["raw"] if isinstance(value, dict) else value)


@pytest.mark.parametrize("kind", KINDS)
def test_each_metric_counts_an_update_once_however_often_the_script_has_replaced_it(module, kind):
    from lockstep.integrations.lightning._metrics import Metrics

    trained = module(kind)
    assert set(totals(trained)) == {NUM_PROCESSES * 6.0}, "without lockstep it communicates"
    metrics = Metrics(trained)
    for _ in range(3):
        metrics.refresh()
        assert set(totals(trained)) == {6.0}
        trained.replace(kind)


@pytest.mark.parametrize("kind", ["a metric", "a collection"])
def test_what_is_called_in_a_step_gives_the_value_of_the_metric_that_is_there(module, kind):
    from lockstep.integrations.lightning._metrics import Metrics

    def in_it(part):
        return part if kind == "a metric" else part["a"]

    trained = module(kind)
    metrics = Metrics(trained)
    for of_shard, of_batch, successor in ((6.0, 12.0, "a mean"), (2.0, 2.0, "a metric"), (6.0, 12.0, "a mean")):
        shards = []
        for _ in range(2):
            metrics.shadow(updates := [], "training_step")
            assert float(in_it(trained.part(VALUES))) == of_shard
            metrics.restore()
            shards.append(updates)
        metrics.replay(shards, lambda tensor: tensor, with_values=True)
        assert float(in_it(trained.part)._forward_cache) == of_batch
        assert float(in_it(trained.part).compute()) == of_batch
        if kind == "a metric":
            trained.replace(successor)
        else:
            trained.part["a"] = module(successor).part
