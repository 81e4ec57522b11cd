"""Why each finding is one, with an example and what to write instead: for ``lockstep check --explain``, and docs/check.md.

In the examples, ``team``, ``model``, ``optimizer``, ``loader`` (prepared), ``test_loader`` (not), ``criterion`` and ``F``
(``torch.nn.functional``) are as in every script.
"""

from __future__ import annotations

import textwrap
from typing import NamedTuple


class Explanation(NamedTuple):
    """What there is to say about a code."""

    why: str
    bad: str
    good: str


def _of(why: str, bad: str, good: str) -> Explanation:
    return Explanation(textwrap.dedent(why).strip(), textwrap.dedent(bad).strip(), textwrap.dedent(good).strip())


EXPLANATIONS = {
    "LS101": _of(
        """
        Behind `batch.shards`, a variable that was bound inside holds what the last shard of this process left there:
        a different shard's on another number of processes, and nothing where a process has no samples.
        """,
        """
        for batch in loader:
            for x, y in batch.shards:
                loss = criterion(model(x), y)
                team.backward(loss)
            optimizer.step()
            schedule.step(loss.item())
        """,
        """
        for batch in loader:
            for x, y in batch.shards:
                loss = criterion(model(x), y)
                team.backward(loss)
                batch.add(loss=loss)
            optimizer.step()
            schedule.step(batch["loss"])
        """,
    ),
    "LS102": _of(
        """
        A counter or a sum inside `batch.shards`, or inside an evaluation, covers the shards of this process: half of
        the samples on two processes.
        """,
        """
        correct = total = 0
        for batch in loader:
            for x, y in batch.shards:
                out = model(x)
                team.backward(criterion(out, y))
                correct += (out.argmax(1) == y).sum().item()
                total += len(y)
            optimizer.step()
        print(correct / total)
        """,
        """
        for batch in loader:
            for x, y in batch.shards:
                out = model(x)
                team.backward(criterion(out, y))
                batch.add(accuracy=out.argmax(1) == y)
            optimizer.step()
        print(loader.averages["accuracy"])
        """,
    ),
    "LS103": _of(
        """
        A list, dict, tensor or object of the script that is filled or changed inside gets the samples of this process
        only. What all processes have found is gathered outside; ranks are in the order of shards.
        """,
        """
        table = torch.zeros(1000, 10)
        for batch in loader:
            for x, y, index in batch.shards:
                p = model(x).softmax(1)
                team.backward(F.mse_loss(p, table[index]))
                table[index] = 0.7 * table[index] + 0.3 * p.detach()
            optimizer.step()
        """,
        """
        table = team.register("table", torch.zeros(1000, 10))
        for batch in loader:
            found = []
            for x, y, index in batch.shards:
                p = model(x).softmax(1)
                team.backward(F.mse_loss(p, table[index]))
                found.append((index, p.detach()))
            optimizer.step()
            for part in team.all_gather_object(found):
                for index, p in part:
                    table[index] = 0.7 * table[index] + 0.3 * p
        """,
    ),
    "LS104": _of(
        """
        A plain attribute that `forward`, or another method called inside, sets from its own old value or from the
        samples, is changed once a shard of this process. A buffer is combined over the shards; `team.step` counts
        steps.
        """,
        """
        class Cooling(torch.nn.Module):
            def __init__(self):
                super().__init__()
                self.layer, self.calls = torch.nn.Linear(4, 2), 0

            def forward(self, x):
                self.calls += 1
                return self.layer(x) / self.calls


        model = team.prepare(Cooling())
        for batch in loader:
            for x, y in batch.shards:
                team.backward(criterion(model(x), y))
            optimizer.step()
        """,
        """
        class Cooling(torch.nn.Module):
            def __init__(self):
                super().__init__()
                self.layer, self.calls = torch.nn.Linear(4, 2), 1

            def forward(self, x):
                return self.layer(x) / self.calls


        model = team.prepare(Cooling())
        for batch in loader:
            model.calls = team.step
            for x, y in batch.shards:
                team.backward(criterion(model(x), y))
            optimizer.step()
        """,
    ),
    "LS105": _of(
        """
        A generator of the script's own runs on from shard to shard, so what a shard draws follows from how many came
        before it on this process. The global generators are reseeded for each shard.
        """,
        """
        generator = torch.Generator().manual_seed(0)
        for batch in loader:
            for x, y in batch.shards:
                noise = torch.randn(x.shape, generator=generator)
                team.backward(criterion(model(x + noise), y))
            optimizer.step()
        """,
        """
        for batch in loader:
            for x, y in batch.shards:
                team.backward(criterion(model(x + torch.randn(x.shape)), y))
            optimizer.step()
        """,
    ),
    "LS106": _of(
        """
        An average of the weights that is moved inside moves once a shard: four times a step on one process with four
        shards, once on four processes.
        """,
        """
        average = team.prepare(copy.deepcopy(model))
        teacher = copy.deepcopy(model)
        for batch in loader:
            for x, y in batch.shards:
                team.backward(criterion(model(x), y) + F.mse_loss(model(x), teacher(x)))
                for t, p in zip(teacher.parameters(), model.parameters()):
                    t.lerp_(p.detach(), 0.01)
            optimizer.step()
        """,
        """
        teacher = team.prepare(copy.deepcopy(model))
        for batch in loader:
            for x, y in batch.shards:
                team.backward(criterion(model(x), y) + F.mse_loss(model(x), teacher(x)))
            optimizer.step()
            for t, p in zip(teacher.parameters(), model.parameters()):
                t.data.lerp_(p.data, 0.01)
        """,
    ),
    "LS107": _of(
        """
        `enumerate(batch.shards)` numbers this process's shards from 0; `get_worker_info().id` numbers its loader
        workers. Both change with the number of processes or workers. (As an index into a list of this process they are
        right.)
        """,
        """
        for batch in loader:
            for number, (x, y) in enumerate(batch.shards):
                team.backward((1 + number) * criterion(model(x), y))
            optimizer.step()
        """,
        """
        for batch in loader:
            for x, y in batch.shards:
                team.backward((1 + team.step) * criterion(model(x), y))
            optimizer.step()
        """,
    ),
    "LS108": _of(
        """
        Weights that are written through `.data` inside are written once a shard of this process. PyTorch does not count
        such writes, so it is not refused when it runs.
        """,
        """
        model = team.prepare(torch.nn.Linear(4, 2))
        for batch in loader:
            for x, y in batch.shards:
                team.backward(criterion(model(x), y))
                for p in model.parameters():
                    p.data *= 0.99
            optimizer.step()
        """,
        """
        model = team.prepare(torch.nn.Linear(4, 2))
        for batch in loader:
            for x, y in batch.shards:
                team.backward(criterion(model(x), y))
            optimizer.step()
            for p in model.parameters():
                p.data *= 0.99
        """,
    ),
    "LS109": _of(
        """
        Each process, and each of its loader workers, has a data set and a `collate_fn` of its own. What they count,
        draw from a generator of their own, or cache after drawing it, changes with the number of processes or
        workers.
        """,
        """
        class Cached(torch.utils.data.Dataset):
            def __init__(self, samples):
                self.samples, self.cache = samples, {}

            def __getitem__(self, index):
                if index not in self.cache:
                    self.cache[index] = self.samples[index] + torch.randn(4)
                return self.cache[index]


        loader = team.prepare(torch.utils.data.DataLoader(Cached(samples), 64))
        """,
        """
        class Drawn(torch.utils.data.Dataset):
            def __init__(self, samples):
                self.samples = samples

            def __getitem__(self, index):
                generator = torch.Generator().manual_seed(index)
                return self.samples[index] + torch.randn(4, generator=generator)


        loader = team.prepare(torch.utils.data.DataLoader(Drawn(samples), 64))
        """,
    ),
    "LS110": _of(
        """
        Buffers of prepared modules are combined over the shards. Those of a module that is not prepared, such as a loss
        with a running mean, or a teacher with BatchNorm in training mode, follow the shards of this process.
        """,
        """
        teacher = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.BatchNorm1d(8))
        for batch in loader:
            for x, y in batch.shards:
                team.backward(F.mse_loss(model(x), teacher(x)))
            optimizer.step()
        torch.save(teacher, "teacher.pt")
        """,
        """
        teacher = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.BatchNorm1d(8)).eval()
        for batch in loader:
            for x, y in batch.shards:
                team.backward(F.mse_loss(model(x), teacher(x)))
            optimizer.step()
        torch.save(teacher, "teacher.pt")
        """,
    ),
    "LS111": _of(
        """
        `next()` inside takes one item for each shard of this process: which one a shard gets follows from the shards
        before it.
        """,
        """
        unlabelled = iter(torch.utils.data.DataLoader(more, 16))
        for batch in loader:
            for x, y in batch.shards:
                team.backward(criterion(model(x), y) + model(next(unlabelled)).square().mean())
            optimizer.step()
        """,
        """
        unlabelled = team.prepare(torch.utils.data.DataLoader(more, 64))
        for batch, other in zip(loader, unlabelled):
            for (x, y), z in zip(batch.shards, other.shards):
                team.backward(criterion(model(x), y) + model(z).square().mean())
            optimizer.step()
        """,
    ),
    "LS112": _of(
        """
        Scripts for DistributedDataParallel scale the rate with the number of processes, because their batch grows with
        it. Here the batch size in the script is the global one, and the answer must not depend on how many there are.
        """,
        """
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1 * team.world_size)
        """,
        """
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        """,
    ),
    "LS201": _of(
        """
        A resumed run begins at the top of the script: a variable that is carried from step to step or from epoch
        to epoch starts over, and so does what depends on it. `team.state` keeps such values in every checkpoint.
        """,
        """
        best, bad = 0.0, 0
        for epoch in team.epochs(100):
            for batch in loader:
                for x, y in batch.shards:
                    loss = criterion(model(x), y)
                    team.backward(loss)
                    batch.add(loss=loss)
                optimizer.step()
            score = -loader.averages["loss"]
            best, bad = (score, 0) if score > best else (best, bad + 1)
            if bad == 3:
                break
        """,
        """
        state = team.state(best=0.0, bad=0)
        for epoch in team.epochs(100):
            for batch in loader:
                for x, y in batch.shards:
                    loss = criterion(model(x), y)
                    team.backward(loss)
                    batch.add(loss=loss)
                optimizer.step()
            score = -loader.averages["loss"]
            state.best, state.bad = (score, 0) if score > state.best else (state.best, state.bad + 1)
            if state.bad == 3:
                break
        """,
    ),
    "LS202": _of(
        """
        After a resume in mid-epoch, `enumerate(loader)` counts the steps that are left, from 0; and `for _ in
        range(100): next(batches)` takes 100 more.
        """,
        """
        for step, batch in enumerate(loader):
            optimizer.param_groups[0]["lr"] = 0.1 * min(1.0, (step + 1) / 100)
            for x, y in batch.shards:
                team.backward(criterion(model(x), y))
            optimizer.step()
        """,
        """
        for batch in loader:
            optimizer.param_groups[0]["lr"] = 0.1 * min(1.0, team.step / 100)
            for x, y in batch.shards:
                team.backward(criterion(model(x), y))
            optimizer.step()
        """,
    ),
    "LS203": _of(
        """
        A list, dict or tensor of the script that steps change, and later steps read, is in no checkpoint unless it is
        registered.
        """,
        """
        norms = []
        for batch in loader:
            for x, y in batch.shards:
                team.backward(criterion(model(x), y))
            norms.append(torch.nn.utils.get_total_norm([p.grad for p in model.parameters()]).item())
            torch.nn.utils.clip_grad_norm_(model.parameters(), sorted(norms)[len(norms) // 10])
            optimizer.step()
        """,
        """
        norms = team.register("norms", [])
        for batch in loader:
            for x, y in batch.shards:
                team.backward(criterion(model(x), y))
            norms.append(torch.nn.utils.get_total_norm([p.grad for p in model.parameters()]).item())
            torch.nn.utils.clip_grad_norm_(model.parameters(), sorted(norms)[len(norms) // 10])
            optimizer.step()
        """,
    ),
    "LS204": _of(
        """
        A copy of a model that follows it (a mean teacher, a target network, an average of the weights) is made from the
        first weights again when a run resumes, unless it is prepared.
        """,
        """
        teacher = copy.deepcopy(model)
        for batch in loader:
            for x, y in batch.shards:
                team.backward(criterion(model(x), y) + F.mse_loss(model(x), teacher(x)))
            optimizer.step()
            for t, p in zip(teacher.parameters(), model.parameters()):
                t.data.lerp_(p.data, 0.01)
        """,
        """
        teacher = team.prepare(copy.deepcopy(model))
        for batch in loader:
            for x, y in batch.shards:
                team.backward(criterion(model(x), y) + F.mse_loss(model(x), teacher(x)))
            optimizer.step()
            for t, p in zip(teacher.parameters(), model.parameters()):
                t.data.lerp_(p.data, 0.01)
        """,
    ),
    "LS205": _of(
        """
        A generator of the script's own starts from its seed again when a run resumes, unless it is registered.
        """,
        """
        rng = np.random.default_rng(0)
        for batch in loader:
            share = rng.beta(0.4, 0.4)
            for x, y in batch.shards:
                team.backward(share * criterion(model(x), y))
            optimizer.step()
        """,
        """
        for batch in loader:
            share = np.random.beta(0.4, 0.4)
            for x, y in batch.shards:
                team.backward(share * criterion(model(x), y))
            optimizer.step()
        """,
    ),
    "LS206": _of(
        """
        The position of an iterator over something that is not prepared is in no checkpoint: it starts at the first item
        again.
        """,
        """
        unlabelled = iter(torch.utils.data.DataLoader(more, 16))
        for batch in loader:
            z = next(unlabelled)
            for x, y in batch.shards:
                team.backward(criterion(model(x), y) + model(z).square().mean())
            optimizer.step()
        """,
        """
        unlabelled = team.prepare(torch.utils.data.DataLoader(more, 16))
        for batch, other in zip(loader, unlabelled):
            for x, y in batch.shards:
                team.backward(criterion(model(x), y))
            for z in other.shards:
                team.backward(model(z).square().mean())
            optimizer.step()
        """,
    ),
    "LS301": _of(
        """
        Only `team.backward` puts a gradient into the sum over the shards. For a gradient that is not part of the step,
        such as that of an attack on the inputs, use `torch.autograd.grad`.
        """,
        """
        for batch in loader:
            for x, y in batch.shards:
                loss = criterion(model(x), y)
                loss.backward()
            optimizer.step()
        """,
        """
        for batch in loader:
            for x, y in batch.shards:
                loss = criterion(model(x), y)
                team.backward(loss)
            optimizer.step()
        """,
    ),
    "LS302": _of(
        """
        Inside, there is no gradient of the whole batch yet.
        """,
        """
        for batch in loader:
            for x, y in batch.shards:
                team.backward(criterion(model(x), y))
                optimizer.step()
                optimizer.zero_grad()
        """,
        """
        for batch in loader:
            for x, y in batch.shards:
                team.backward(criterion(model(x), y))
            optimizer.step()
            optimizer.zero_grad()
        """,
    ),
    "LS303": _of(
        """
        A plain loader yields plain batches, the same on every process: it has no shards.
        """,
        """
        loader = torch.utils.data.DataLoader(data, 64)
        model, optimizer = team.prepare(model, optimizer)
        for batch in loader:
            for x, y in batch.shards:
                team.backward(criterion(model(x), y))
            optimizer.step()
        """,
        """
        loader = torch.utils.data.DataLoader(data, 64)
        model, optimizer, loader = team.prepare(model, optimizer, loader)
        for batch in loader:
            for x, y in batch.shards:
                team.backward(criterion(model(x), y))
            optimizer.step()
        """,
    ),
    "LS304": _of(
        """
        `join()` seeds the random numbers. What is drawn before it comes from the process's own seed: initial weights
        that differ in each launch. (All ranks get those of rank 0.)
        """,
        """
        model = torch.nn.Linear(4, 2)
        team = lockstep.join(seed=1)
        model = team.prepare(model)
        """,
        """
        team = lockstep.join(seed=1)
        model = torch.nn.Linear(4, 2)
        model = team.prepare(model)
        """,
    ),
    "LS305": _of(
        """
        Python orders a set of strings by their hashes, which differ in each process; so do the numbers that `enumerate`
        gives them.
        """,
        """
        words = set(open("text.txt").read().split())
        number = {word: i for i, word in enumerate(words)}
        loader = team.prepare(torch.utils.data.DataLoader([number[word] for word in open("text.txt").read().split()], 64))
        """,
        """
        words = set(open("text.txt").read().split())
        number = {word: i for i, word in enumerate(sorted(words))}
        loader = team.prepare(torch.utils.data.DataLoader([number[word] for word in open("text.txt").read().split()], 64))
        """,
    ),
    "LS306": _of(
        """
        An evaluation has the grammar of the training loop: one iteration is one batch of the loader, on every process, and
        the loop over its shards runs on the process that has it.
        """,
        """
        with team.evaluate(model, test_loader) as evaluation:
            for x, y in evaluation:
                evaluation.add(loss=criterion(model(x), y))
        """,
        """
        with team.evaluate(model, test_loader) as evaluation:
            for batch in evaluation:
                for x, y in batch.shards:
                    batch.add(loss=criterion(model(x), y))
        """,
    ),
}
"""By code."""


def explain(code: str) -> str:
    """All that there is to say about a code, as Markdown. ``KeyError``: there is no such code."""
    explanation = EXPLANATIONS[code]
    return (
        f"{explanation.why}\n\nWrong:\n\n```python\n{explanation.bad}\n```\n\nRight:\n\n```python\n{explanation.good}\n```\n"
    )
