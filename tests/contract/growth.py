"""What a training keeps, counted in the midst of it."""

import gc
import os
import threading
import time
from collections import Counter, deque

import torch
from torch import nn
from torch.nn import functional
from torch.utils.data import DataLoader, TensorDataset

import lockstep
from lockstep._world.comm.dtensors import to_local

LOOKS = (34, 54)
"""The steps after which is counted, each four steps after an evaluation and a checkpoint."""
VARYING = {"_closed", "_marks", "_said"}
"""The attributes whose number of items depends on times: lines of the log that are not complete
yet, the marks of a step's clock, and the kinds of notices that were given."""
MOST_S = 5.0
"""For how long what another thread of this process has under way is waited for."""


def kept():
    """The bytes and the number of living tensors, the objects of each class of lockstep, the items
    in each of their attributes, the open files and the threads."""
    gc.collect()
    count, storages = Counter(), {}
    for each in gc.get_objects():
        kind = type(each)
        if issubclass(kind, torch.Tensor):
            storage = to_local(each).untyped_storage()
            storages[storage.data_ptr()] = storage.nbytes()
            count["tensors"] += 1
        # (What watches the process from outside of a step has threads of its own.)
        elif kind.__module__.startswith("lockstep.") and not kind.__module__.startswith("lockstep._tools"):
            count[kind.__qualname__] += 1
            for name, value in list(getattr(each, "__dict__", {}).items()):
                if name in VARYING:
                    continue
                if type(value) in (list, dict, set, Counter) or (type(value) is deque and value.maxlen is None):
                    count[f"{kind.__qualname__}.{name}"] += len(value)
    count["bytes of tensors"] = sum(storages.values())
    count["open files"] = len(os.listdir("/proc/self/fd"))  # noqa: PTH208
    count["threads"] = threading.active_count()
    return count


def train():
    """A training with all that a step can have: accumulation, two phases, an evaluation, best
    weights and a checkpoint every 5 steps. What there is more of after the last of ``LOOKS``."""
    gc.freeze()  # what is there already is not looked at, which would take most of the time
    with lockstep.join(checkpoint_every=5, accumulate=2, log_every=5) as team:
        model = nn.Sequential(nn.Linear(6, 64), nn.BatchNorm1d(64), nn.Dropout(0.1), nn.Linear(64, 64), nn.Linear(64, 2))
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
        schedule = torch.optim.lr_scheduler.StepLR(optimizer, 5)
        data = TensorDataset(torch.randn(160, 6), torch.arange(160) % 2)
        model, optimizer, schedule = team.prepare(model, optimizer, schedule)
        loader, held_out = team.prepare(DataLoader(data, 8, shuffle=True)), DataLoader(data, 80)
        for _ in team.epochs(6):
            for batch in loader:
                for _phase in range(2):
                    for x, y in batch.shards:
                        loss = functional.cross_entropy(model(x), y)
                        team.backward(loss)
                        batch.add(loss=loss)
                    optimizer.step()
                    optimizer.zero_grad()
                schedule.step()
                team.log(loss=batch["loss"])
                if team.step % 5 == 0:
                    evaluate(team, model, held_out)
                    team.best(team.step)
                # The next step reads its result: nothing is under way when it is counted.
                assert team._engine.saver._writer.wait(60)
                if team.step == LOOKS[0]:
                    first = kept()
                    # Less than one tensor a step: a variable may hold one more later, and a thread
                    # that still reads a gradient when its bucket's memory is wanted costs a second
                    # one, once.
                    first += Counter({"tensors": 12, "bytes of tensors": 20_000, "Flat": 1, "Bucket._lent": 1})
                elif team.step == LOOKS[1]:
                    more = kept_longer(first)
    return more


def kept_longer(first):
    """What there is more of than at the first look, and still is after some seconds."""
    until_s = time.monotonic() + MOST_S
    while True:
        now = kept()
        more = {name: (first[name], now[name]) for name in now - first}
        if not more or time.monotonic() > until_s:
            return more
        time.sleep(0.2)


def evaluate(team, model, loader):
    """An evaluation, whose variables end with it. (Before Python 3.13, the look for objects that no
    checkpoint has keeps the variables that a loop had then.)"""
    with team.evaluate(model, loader) as evaluation:
        for batch in evaluation:
            for x, y in batch.shards:
                batch.add(loss=functional.cross_entropy(model(x), y))


def new_memory():
    """The sizes of the tensors that lockstep allocates in each step, from the third on."""
    sizes = []
    with lockstep.join(checkpoint_every="off") as team:
        model = nn.Sequential(*(nn.Linear(100, 100) for _ in range(3)))
        model, loader = team.prepare(model, [torch.randn(6, 100) for _ in range(8)])
        makers = {name: getattr(torch, name) for name in ("empty", "zeros", "empty_like", "zeros_like")}
        for name, make in makers.items():
            setattr(torch, name, _noting(make, sizes))
        try:
            for batch in loader:
                if team.step == 2:
                    sizes.clear()
                for x in batch.shards:
                    team.backward(model(x).square().mean())
                model.zero_grad()
        finally:
            for name, make in makers.items():
                setattr(torch, name, make)
    return [size for size in sizes if size >= 100 * 100]


def _noting(make, sizes):
    def noting(*args, **options):
        made = make(*args, **options)
        sizes.append(made.numel())
        return made

    return noting
