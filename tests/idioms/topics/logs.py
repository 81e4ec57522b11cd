"""Logging."""

import logging
import sys
import time

import torch
from torch import nn
from torch.nn import functional

from topics.promises import differs, equal
from topics.shared import dataset, gradients, mlp, prepared, step, update


@equal()
def team_log(team):
    """`team.log`."""
    model, optimizer, loader = prepared(team)
    for batch in loader:
        for inputs, targets in batch.shards:
            logits = model(inputs)
            loss = functional.cross_entropy(logits, targets)
            team.backward(loss)
            team.log(accuracy=(logits.argmax(dim=1) == targets).float().mean())
            batch.add(loss=loss)
        update(optimizer)
        team.log(loss=batch["loss"], rate=optimizer.param_groups[0]["lr"])
    return model, loader.averages


@equal()
def logging_by_hand(team):
    """`logging` and CSV on rank 0."""
    model, optimizer, loader = prepared(team)
    logger = logging.getLogger("training")
    table = (team.run_dir / "losses.csv").open("w") if team.is_main else None
    for epoch in team.epochs(2):
        for batch in loader:
            step(team, model, optimizer, batch)
            if table is not None:
                print(team.step, batch["loss"], sep=",", file=table)
        logger.debug("epoch %d: %.4f", epoch, loader.averages["loss"])
    if table is not None:
        table.close()
    team.barrier()
    return model, (team.run_dir / "losses.csv").read_text()


class Bar:
    def __init__(self, batches):
        self.batches, self.text = batches, ""

    def __iter__(self):
        for number, batch in enumerate(self.batches, 1):
            self.number = number
            yield batch

    def show(self, loss):
        self.text = f"\r{'#' * self.number:{len(self.batches)}} {loss:.4f}"
        print(self.text, end="", file=sys.stderr)


@equal()
def progress_bar(team):
    """A progress bar."""
    model, optimizer, loader = prepared(team)
    bar = Bar(loader)
    for batch in bar:
        step(team, model, optimizer, batch)
        bar.show(batch["loss"])
    return model, bar.text


@equal(heavy=True)
def summary_writer(team):
    """SummaryWriter on rank 0."""
    from torch.utils.tensorboard import SummaryWriter

    model, optimizer, loader = prepared(team)
    writer = SummaryWriter(team.run_dir / "board") if team.is_main else None
    for batch in loader:
        gradients(team, model, batch)
        if writer is not None:
            writer.add_scalar("loss", batch["loss"], team.step)
            writer.add_histogram("gradient", model[0].weight.grad, team.step)
        update(optimizer)
    if writer is not None:
        writer.close()
    return model


@equal()
def several_values(team):
    """Values with weights of their own."""
    model, optimizer, loader = prepared(team)
    rows = []
    for batch in loader:
        for inputs, targets in batch.shards:
            logits = model(inputs)
            team.backward(functional.cross_entropy(logits, targets))
            right = logits.argmax(dim=1) == targets
            for label in range(3):
                mine = targets == label
                batch.add(**{f"recall{label}": right[mine].float().mean()}, weight=mine.sum())
        update(optimizer)
        for inputs, targets in batch.shards:
            with torch.no_grad():
                batch.add(after=functional.cross_entropy(model(inputs), targets))
        rows.append([batch[f"recall{label}"] for label in range(3)] + [batch["after"]])
    return model, rows, loader.averages


@equal()
def timing(team):
    """Step times printed."""
    model, optimizer, loader = prepared(team)
    times = []
    for batch in loader:
        begin = time.perf_counter()
        step(team, model, optimizer, batch)
        times.append(time.perf_counter() - begin)
    team.print(f"{len(times)} steps, {max(times):.3f} s at most, {batch.num_samples} samples in the last")
    return model


@equal()
def class_counts(team):
    """Class counts (logit adjustment)."""
    model, optimizer, loader = prepared(team, nn.Linear(6, 3))
    counts = team.register("counts", torch.ones(3, dtype=torch.long))
    for batch in loader:
        for inputs, targets in batch.shards:
            logits = model(inputs) + (counts / counts.sum()).log()
            team.backward(functional.cross_entropy(logits, targets))
            batch.add(counts=targets.bincount(minlength=3), reduction="sum")
        counts += batch["counts"]
        update(optimizer)
    return model, counts


@equal()
def confusion_matrix(team):
    """A confusion matrix."""
    model, optimizer, loader = prepared(team)
    total = torch.zeros(3, 3, dtype=torch.long)
    for batch in loader:
        for inputs, targets in batch.shards:
            logits = model(inputs)
            team.backward(functional.cross_entropy(logits, targets))
            pairs = 3 * targets + logits.argmax(dim=1)
            batch.add(confusion=pairs.bincount(minlength=9).view(3, 3), reduction="sum")
        total += batch["confusion"]
        update(optimizer)
    return model, total


@differs("Equal up to rounding; `batch.add` adds in shard order. (Integers are exact.)")
def summed_by_all_reduce(team):
    """Losses summed by `team.all_reduce`."""
    model, optimizer, loader = prepared(team, mlp(), data=dataset(82))
    losses = []
    for batch in loader:
        total = torch.zeros(1)
        for inputs, targets in batch.shards:
            loss = functional.cross_entropy(model(inputs), targets)
            team.backward(loss)
            total += loss.detach() * len(inputs) / 7
        losses.append(team.all_reduce(total))
        update(optimizer)
    return model, losses


@equal(heavy=True)
def metric_object(team):
    """Torchmetrics."""
    import torchmetrics

    model, optimizer, loader = prepared(team)
    accuracy = torchmetrics.classification.MulticlassAccuracy(3, average="micro")
    results = []
    for batch in loader:
        for inputs, targets in batch.shards:
            logits = model(inputs)
            team.backward(functional.cross_entropy(logits, targets))
            accuracy.update(logits, targets)
        update(optimizer)
    results.append(accuracy.compute())
    return model, results
