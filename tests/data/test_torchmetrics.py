"""Evaluation with metrics as people use them: the values of a plain loop in one process, to the
bit, on every rank."""

import pytest
import torch
from torch import nn
from torch.nn import functional
from torch.utils.data import DataLoader, TensorDataset

import lockstep

pytestmark = pytest.mark.timeout(90)


def parts(length, batch_size):
    """Samples of ten classes, in batches of which the last is smaller, and a model for them."""
    torch.manual_seed(3)
    inputs, targets = torch.randn(length, 6), torch.randint(0, 10, (length,))
    model = nn.Sequential(nn.Linear(6, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Dropout(0.3), nn.Linear(16, 10))
    return model, DataLoader(TensorDataset(inputs, targets), batch_size)


def make_metrics():
    import torchmetrics  # 4 s, which whoever only collects tests need not wait for
    from torchmetrics.classification import (
        MulticlassAccuracy,
        MulticlassAUROC,
        MulticlassConfusionMatrix,
        MulticlassF1Score,
    )

    return {
        "top-1": MulticlassAccuracy(10, average="micro"),
        "top-5": MulticlassAccuracy(10, top_k=5),
        "f1": MulticlassF1Score(10),
        "confusion": MulticlassConfusionMatrix(10),
        "mean": torchmetrics.MeanMetric(),
        "correlation": torchmetrics.PearsonCorrCoef(num_outputs=10),
        "area": MulticlassAUROC(10),  # keeps every prediction
        "several": torchmetrics.MetricCollection({"a": MulticlassAccuracy(10), "b": MulticlassF1Score(10)}),
        "best": torchmetrics.MinMaxMetric(MulticlassAccuracy(10)),
    }


def arguments(name, logits, targets):
    if name == "mean":
        return (functional.cross_entropy(logits, targets),)
    return (logits, functional.one_hot(targets, 10).float()) if name == "correlation" else (logits, targets)


def averages(logits, targets):
    top5 = (logits.topk(5).indices == targets.unsqueeze(1)).any(1)
    return {"loss": functional.cross_entropy(logits, targets), "top1": logits.argmax(1) == targets, "top5": top5}


def plain_loop(length, batch_size):
    """Without lockstep."""
    model, loader = parts(length, batch_size)
    model.eval()
    metrics, sums = make_metrics(), {}
    with torch.no_grad():
        for inputs, targets in loader:
            logits = model(inputs)
            for name, metric in metrics.items():
                metric.update(*arguments(name, logits, targets))
            for name, value in averages(logits, targets).items():
                sums[name] = sums.get(name, 0.0) + value.double().mean().item() * len(targets)
    return {name: metric.compute() for name, metric in metrics.items()}, {k: v / length for k, v in sums.items()}


def with_team(team, length, batch_size):
    model, loader = parts(length, batch_size)
    model = team.prepare(model)
    metrics = make_metrics()
    with team.evaluate(model, loader, list(metrics.values())) as evaluation:
        for batch in evaluation:
            for inputs, targets in batch.shards:
                logits = model(inputs)
                for name, metric in metrics.items():
                    batch.update(metric, *arguments(name, logits, targets))
                batch.add(**averages(logits, targets))
    return {name: metric.compute() for name, metric in metrics.items()}, dict(evaluation.results)


CASES = [(103, 16), (97, 32), (5, 8)]  # the last has one batch, so most processes have none


def run_cases():
    # One launch for all cases, and the plain loop before them: to import torchmetrics takes each
    # process 4 s.
    torch.set_num_threads(1)
    expected = [plain_loop(*case) for case in CASES]
    with lockstep.join() as team:
        return [with_team(team, *case) for case in CASES], expected


@pytest.mark.long
def test_losses_accuracies_and_metrics_are_those_of_a_plain_loop_to_the_bit(crew):
    for found, expected in crew(2, run_cases, shards=4):
        assert 0 < expected[0][1]["top1"] < expected[0][1]["top5"] < 1
        for (metrics, results), (expected_metrics, expected_results) in zip(found, expected, strict=True):
            assert results == expected_results
            torch.testing.assert_close(metrics, expected_metrics, rtol=0, atol=0, equal_nan=True)
