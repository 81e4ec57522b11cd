"""Trainings for the tests of audits. Every function is one rank's script."""

import contextlib
import json
import random
from dataclasses import dataclass

import numpy
import torch
from bits import Seen
from features import loader_of
from torch.nn import functional
from toy_models import Net, Plain

import lockstep
from lockstep._base.errors import UsageError
from lockstep._base.stopping import AuditFailed
from lockstep._sync import buckets, exact


def train_carelessly():
    """A body that draws from every generator, changes its samples and its shard's own state in
    place, and logs."""
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
            optimizer.step()
            optimizer.zero_grad()
            seen.step(loss=batch["loss"], hidden=batch["hidden"], seen=batch["seen"], drawn=random.random())
            team.log(outer=batch["loss"])
    state = {"hidden": hidden.state_dict(), "counts": counts.state_dict()}
    seen.step(state=state)
    directory, rank = team.run_dir.resolve(), team.rank
    team.close()
    digests = _lines(directory / "digests" / f"rank-{rank}.jsonl")
    return seen.result(model, optimizer, digests=digests, written=[] if rank else _lines(directory / "events.jsonl"))


def _lines(path):
    return [{**json.loads(line), "time_s": 0} for line in path.read_text().splitlines()]


@dataclass
class Wrong:
    """Changes one element of one gradient on this rank (None: on all).

    ``when``: ``always`` by as much; in the first run of one shard of one step ``(step, shard)``; or
    ``by chance``, each time by something else.
    """

    rank: int | None
    when: str | tuple[int, int] = "always"

    def infect(self, team, model):
        if self.rank in (None, team.rank):
            dice, done = random.Random(team.rank), []

            def change(gradient):
                micro = team._loop.phases.micro
                if isinstance(self.when, tuple) and (done or (team.step, micro.shard) != self.when):
                    return gradient
                done.append(True)
                gradient = gradient.clone()
                gradient.view(-1)[3] += dice.random() if self.when == "by chance" else 1e-3
                return gradient

            dict(model.named_parameters())["last.weight"].register_hook(change)


def train_wrongly(wrong, task=""):
    """A training that an audit ends: the words and status that it ends with, and the step."""
    team = lockstep.join()
    model = Plain()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    length, size = (2, 1) if task == "few samples" else (24, 8)
    loaders = [loader_of("samples", length, size) for _ in range(2)]
    model, optimizer, loader, other = team.prepare(model, optimizer, *loaders)
    twin = team.prepare(Plain()) if task == "two models" else model
    wrong.infect(team, twin)
    try:
        for _ in team.epochs(4):
            for batch, beside in zip(loader, other, strict=True) if task == "two loaders" else ((b, None) for b in loader):
                for _ in range(2 if task == "in phases" else 1):
                    for (inputs, targets, _), *others in zip(
                        batch.shards, *([beside.shards] if beside else []), strict=False
                    ):
                        inputs = inputs + sum(more[0] for more in others)
                        if task == "dropout":
                            inputs = functional.dropout(inputs)
                        outputs = model(inputs) + (twin(inputs) if twin is not model else 0)
                        team.backward(functional.cross_entropy(outputs, targets))
                optimizer.step()
                optimizer.zero_grad()
    except AuditFailed as found:
        return found.headline, found.code, team.step
    return None, 0, team.step


def train_and_steer(how):
    """A training that changes what steps act on inside ``batch.shards``, as a single shard may; or
    the error."""
    team = lockstep.join()
    model = Plain()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 2)
    model, optimizer, schedule, loader = team.prepare(model, optimizer, schedule, loader_of("samples", 40, 8))
    seen = Seen(team)
    try:
        for batch in loader:
            for inputs, targets, indices in batch.shards:
                loss = functional.cross_entropy(model(inputs), targets)
                seen.loss(indices, loss)
                team.backward(loss)
                if how == "schedule":
                    schedule.step()
                elif how == "weights":
                    next(model.parameters()).data.clamp_(-0.01, 0.01)
                elif how == "learning rate":
                    optimizer.param_groups[0]["lr"] *= 0.9
            optimizer.step()
            optimizer.zero_grad()
            seen.step(lr=optimizer.param_groups[0]["lr"])
    except UsageError as error:
        return str(error)
    return seen.result(model, optimizer, schedule)


def leave_an_audit():
    """The gradient that is left of the first step when the second is left while it is audited."""
    team = lockstep.join()
    model = Plain()
    model, loader = team.prepare(model, loader_of("samples", 40, 8))
    grads = []
    for batch in loader:
        for inputs, targets, _ in batch.shards:
            team.backward(functional.cross_entropy(model(inputs), targets))
            if team.in_audit:
                break
        if team.in_audit:
            break
        grads = [parameter.grad.clone() for parameter in model.parameters()]
    return [torch.equal(parameter.grad, grad) for parameter, grad in zip(model.parameters(), grads, strict=True)]


@contextlib.contextmanager
def many_buckets():
    """A bucket for each parameter, sent during the backward pass: as with more than 30 MB of
    gradients."""
    before = buckets._FIRST_BYTES, buckets._MOST_BYTES, exact.MAX_SINGLE_MESSAGE_BYTES
    buckets._FIRST_BYTES = buckets._MOST_BYTES = exact.MAX_SINGLE_MESSAGE_BYTES = 0
    try:
        yield
    finally:
        buckets._FIRST_BYTES, buckets._MOST_BYTES, exact.MAX_SINGLE_MESSAGE_BYTES = before


def train_in_buckets(wrong, size, skipped=False):
    """A training with many buckets, whose passes end with a small global batch: what an audit said,
    and the steps taken."""
    with many_buckets(), lockstep.join() as team:
        model = torch.nn.ModuleDict({name: torch.nn.Linear(3, 3) for name in ("a", "b", "c", "last")})
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        model, optimizer, loader = team.prepare(model, optimizer, loader_of("samples", 8 + size, 8))
        wrong.infect(team, model)
        try:
            for _ in team.epochs(4):
                for batch in loader:
                    for inputs, _, indices in batch.shards:
                        if skipped and 7 in indices:
                            continue
                        outputs = inputs[:, :3]
                        for part in model.values():
                            outputs = part(outputs)
                        team.backward(outputs.square().mean())
                    optimizer.step()
                    optimizer.zero_grad()
        except AuditFailed as found:
            return found.headline.split(" (")[0], team.step
        return None, team.step
