"""Trainings for the tests of audits. Every function is one rank's script."""

import random
from pathlib import Path

import numpy
import torch
from bits import Seen
from features import loader_of
from tasks import Net, Plain
from torch.nn import functional

import lockstep
from lockstep.stopping import AuditFailed


def train_carelessly():
    """A body that draws from every generator, changes its samples and its shard's own state in place, and logs."""
    team = lockstep.join(journal_every=2, checkpoint_every="off")
    model = Net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    model, optimizer, loader = team.prepare(model, optimizer, loader_of("ready", 46, 16))
    hidden = team.per_shard("hidden", torch.zeros(6))
    counts = team.per_shard("counts", {"samples": 0})
    seen = Seen(team)
    for _ in team.epochs(2):
        for batch in loader:
            for inputs, targets, indices in batch.shards:
                inputs.mul_(1 + random.random()).add_(float(numpy.random.rand()))
                loss = functional.cross_entropy(model(inputs + hidden.value), targets)
                hidden.value.add_(inputs.mean(0)).mul_(torch.rand(()))
                counts.value["samples"] += len(inputs)
                seen.loss(indices, loss)
                team.backward(loss)
                batch.add(loss=loss, hidden=hidden.value.sum(), seen=counts.value["samples"])
                team.log(inner=loss)
            optimizer.step()
            optimizer.zero_grad()
            seen.step(loss=batch["loss"], hidden=batch["hidden"], seen=batch["seen"], drawn=random.random())
            team.log(outer=batch["loss"])
    state = {"hidden": hidden.state_dict(), "counts": counts.state_dict()}
    seen.step(state=state)
    directory, rank = str(team.run_dir.resolve()), team.rank
    team.close()
    written = [Path(directory, "digests", f"rank-{rank}.jsonl").read_text()] if rank else _written(directory)
    return seen.result(model, optimizer, written=written)


def _written(directory):
    return [Path(directory, name).read_text() for name in ("digests/rank-0.jsonl", "events.jsonl")]


def train_with_a_wrong_rank(wrong, *, when="always", model="Plain", loader="samples", steps=12):
    """The training of which ``wrong`` computes one element of one gradient wrongly: always, or ``(step, shard)``, once.

    Returns what the audit has found, and the steps that were taken.
    """
    team = lockstep.join()
    network = {"Plain": Plain, "Net": Net}[model]()
    optimizer = torch.optim.SGD(network.parameters(), lr=0.1)
    network, optimizer, loader = team.prepare(network, optimizer, loader_of(loader, 24, 8))
    done = []

    def change(gradient):
        micro = team._loop.phases.micro
        if when == "always" or ((team.step, micro.shard) == when and not done):
            done.append(True)
            gradient = gradient.clone()
            gradient.view(-1)[3] += 1e-6
        return gradient

    if team.rank == wrong:
        dict(network.named_parameters())["last.weight"].register_hook(change)
    try:
        for _ in team.epochs(steps // 3):
            for batch in loader:
                for inputs, targets, _indices in batch.shards:
                    team.backward(functional.cross_entropy(network(inputs), targets))
                optimizer.step()
                optimizer.zero_grad()
    except AuditFailed as found:
        return found.headline, found.code, team.step
    return None, 0, team.step
