"""Scripts that do what nobody thought of. Each function is one rank's script."""

import itertools
import multiprocessing
import os
import random

import torch
from team_scripts import linear, numbers
from torch import nn
from torch.optim.optimizer import _global_optimizer_pre_hooks
from torch.optim.swa_utils import AveragedModel
from torch.utils.data import (
    DataLoader,
    Dataset,
    IterableDataset,
    Subset,
    SubsetRandomSampler,
    TensorDataset,
    random_split,
)

import lockstep


def part(how, at_step, num_steps=12):
    """Train, and let rank 1 do something else behind a step. The steps taken, the code and message
    of the error, and the run directory."""
    team = lockstep.join(checkpoint_every=1)
    model = nn.Linear(1, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    generator = torch.Generator().manual_seed(0)
    loader = DataLoader(numbers(4 * num_steps), 4, shuffle=True, generator=generator)
    model, optimizer, loader = team.prepare(model, optimizer, loader)
    table = team.register("table", torch.zeros(3))
    try:
        for batch in loader:
            for (inputs,) in batch.shards:
                team.backward(model(inputs).mean())
            optimizer.step()
            optimizer.zero_grad()
            if team.rank == 1 and team.step == at_step:
                _go_astray(how, model, optimizer, table, generator)
        team.close()
    except lockstep.MismatchError as error:
        return team.step, error.code, str(error), str(team.run_dir)
    return team.step, "", "", str(team.run_dir)


def _go_astray(how, model, optimizer, table, generator):
    with torch.no_grad():
        if how == "option":
            optimizer.param_groups[0]["lr"] = 0.02
        if how == "state":
            optimizer.state[next(iter(model.parameters()))]["momentum_buffer"].add_(0.5)
        elif how == "registered":
            table[2] = 1e-9
        elif how == "stream":
            random.random()
        elif how == "sampler":
            generator.seed()


def part_after_training(how):
    """Train two epochs, and then do something else on each rank, or on rank 0 alone. The code
    and message of the error, and the run directory."""
    team = lockstep.join()
    model = nn.Linear(1, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    model, optimizer, loader = team.prepare(model, optimizer, DataLoader(numbers(16), 4))
    table = team.register("table", torch.zeros(3))
    for epoch in team.epochs(2):
        for batch in loader:
            for (inputs,) in batch.shards:
                team.backward(model(inputs).mean())
            optimizer.step()
            optimizer.zero_grad()
        trained = {name: value.clone() for name, value in model.state_dict().items()}
        if epoch == 1 and "break" in how:
            break
    # the others have what they had
    other = {name: value + (team.rank == 0) for name, value in trained.items()}
    if "every rank" in how or ("alone" in how and team.rank == 0):
        model.load_state_dict(other)
    if "registered" in how:
        table[0] = team.rank
    try:
        if "best" in how:
            team.best(1.0)
        team.close()
    except lockstep.MismatchError as error:
        return error.code, str(error), str(team.run_dir)
    return "", "", str(team.run_dir)


def draw(seed, where):
    """What a run shuffles and drops with a seed of the script's own."""
    if where == "before":
        torch.manual_seed(seed)
    with lockstep.join() as team:
        if where == "after":
            torch.manual_seed(seed)
        model, loader = team.prepare(linear(), DataLoader(numbers(16), 4, shuffle=True))
        samples, drawn = [], []
        for batch in loader:
            for (inputs,) in batch.shards:
                team.backward(model(inputs).mean())
                samples += inputs.flatten().tolist()
                drawn.append(torch.rand(()).item())
            drawn.append(torch.rand(()).item())
        return samples, drawn


def seed_by_rank():
    with lockstep.join() as team:
        torch.manual_seed(team.rank)
        team.prepare(linear(), DataLoader(numbers(16), 4))


LOSSES = {
    "mean": lambda output: nn.functional.mse_loss(output, torch.ones_like(output)),
    "sum by the loss": lambda output: nn.functional.mse_loss(output, torch.ones_like(output), reduction="sum"),
    "sum by hand": lambda output: output.square().sum(),
    "sum over tasks": lambda output: torch.stack([(output - task).square().mean() for task in range(2)]).sum(),
    "sum, divided": lambda output: output.square().sum() / len(output),
}


def train_with(name, reduction):
    """The weight after a step with this loss, or the error's code."""
    with lockstep.join() as team:
        model = linear()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.001)
        model, optimizer, loader = team.prepare(model, optimizer, DataLoader(numbers(8), 8))
        try:
            for batch in loader:
                for (inputs,) in batch.shards:
                    team.backward(LOSSES[name](model(inputs)), reduction=reduction)
                optimizer.step()
        except lockstep.LossError as error:
            return error.code
        return model.weight.item()


def _train_and_leave(how):
    team = lockstep.join(run_dir="left", progress="off", threads=1)
    model, loader = team.prepare(linear(), DataLoader(numbers(8), 4))
    for _ in team.epochs(2):
        for batch in loader:
            for (inputs,) in batch.shards:
                team.backward(model(inputs).mean())
    if how == "os._exit":
        os._exit(0)


def leave(method, how):
    """A child of multiprocessing trains to the end, and leaves. Its exit status."""
    child = multiprocessing.get_context(method).Process(target=_train_and_leave, args=(how,))
    child.start()
    child.join()
    return child.exitcode


def best_of_each():
    """``team.best`` with a value of this rank's own."""
    with lockstep.join() as team:
        model, loader = team.prepare(linear(), DataLoader(numbers(8), 4))
        for batch in loader:
            for (inputs,) in batch.shards:
                team.backward(model(inputs).mean())
        team.best(float(team.rank))


USES = {
    "clip_grad_norm_": lambda model: nn.utils.clip_grad_norm_(model.parameters(), 1.0),
    "by hand": lambda model: [p.grad.mul_(0.5) for p in model.parameters() if p.grad is not None],
    "data": lambda model: model.weight.grad.data.add_(1.0),
}


def use_gradients(how):
    """Use gradients inside the shards, and train on. The code of the error, and the gradient in the
    end."""
    with lockstep.join() as team:
        model, loader = team.prepare(linear(), DataLoader(numbers(8), 8))
        code = ""
        for batch in loader:
            for (inputs,) in batch.shards:
                team.backward(model(inputs).mean())
                try:
                    USES[how](model)
                except lockstep.UsageError as error:
                    code = error.code
        return code, model.weight.grad.item(), type(model.weight.grad)


class Split(IterableDataset):
    """A stream that leaves each rank a part of its own, from some place on."""

    def __init__(self, rank, world_size, common=0):
        self.rank, self.world_size, self.common = rank, world_size, common

    def __iter__(self):
        numbers = ((torch.tensor([float(number)]),) for number in range(32))
        yield from itertools.islice(numbers, self.common)
        yield from itertools.islice(numbers, self.rank, None, self.world_size)


def split_stream():
    with lockstep.join() as team:
        model, loader = team.prepare(linear(), DataLoader(Split(team.rank, team.world_size, common=24), 8))
        for batch in loader:
            for (inputs,) in batch.shards:
                team.backward(model(inputs).mean())


class Rows(Dataset):
    """Samples of a list that the script has put into an order of its own."""

    def __init__(self, rows):
        self.rows = rows

    def __len__(self):
        return len(self.rows)

    def __getitem__(self, index):
        return torch.tensor([float(self.rows[index])]), f"/host/of/{os.getpid()}/sample"


def _shuffled(rank):
    rows = list(range(16))
    random.Random(rank).shuffle(rows)
    return rows


UNLIKE = {
    "random_split": lambda rank, _: random_split(numbers(32), [16, 16], torch.Generator().manual_seed(rank))[0],
    "Subset": lambda rank, size: Subset(numbers(16 * size), range(rank, 16 * size, size)),
    "drawn": lambda rank, _: TensorDataset(torch.randn(16, 1, generator=torch.Generator().manual_seed(rank))),
    "shuffled": lambda rank, _: Rows(_shuffled(rank)),
    "stream": Split,
    "empty": lambda rank, _: Split(32 * rank, 1),
    "ready": lambda rank, size: [torch.full((4, 1), float(number)) for number in range(rank, 4 * size, size)],
    "sampler": lambda rank, size: DataLoader(
        numbers(16 * size), 4, sampler=SubsetRandomSampler(range(rank, 16 * size, size))
    ),
}


def read_data(name, by_rank=True):
    """Train on data that each rank makes or splits in its own way (or not). Steps taken, and the
    code and message that came."""
    with lockstep.join() as team:
        data = UNLIKE[name](team.rank, team.world_size) if by_rank else UNLIKE[name](0, 1)
        if not isinstance(data, (DataLoader, list)):
            data = DataLoader(data, 4)
        model, loader = team.prepare(linear(), data)
        try:
            for _ in team.epochs(2):
                for batch in loader:
                    for inputs in batch.shards:
                        team.backward(model(inputs[0] if isinstance(inputs, (tuple, list)) else inputs).mean())
        except lockstep.MismatchError as error:
            return team.step, error.code, str(error)
        return team.step, "", ""


class UnlikeLater:
    """An order that is the rank's own from the second pass on."""

    def __init__(self, rank):
        self.rank = rank
        self.epoch = 0

    def set_epoch(self, epoch):
        self.epoch = epoch

    def __len__(self):
        return 16

    def __iter__(self):
        return iter([(index + self.epoch * (1 + self.rank)) % 16 for index in range(16)])


def read_data_that_differ_later(beside):
    """Train on them, alone or beside another loader. Steps taken, and the error that came."""
    with lockstep.join() as team:
        data = DataLoader(numbers(16), 4, sampler=UnlikeLater(team.rank))
        model, other, loader = team.prepare(linear(), DataLoader(numbers(16), 4), data)
        try:
            for _ in team.epochs(2):
                for batch in zip(other, loader, strict=True) if beside else zip(loader, strict=False):
                    for (inputs,) in batch[0].shards:
                        team.backward(model(inputs).mean())
        except lockstep.DataError as error:
            return team.step, str(error)
        return team.step, ""


class Trainer:
    """What a script keeps its objects in, with their states."""

    def __init__(self, *parts):
        self.parts = parts

    def state_dict(self):
        return {str(number): part.state_dict() for number, part in enumerate(self.parts)}

    def load_state_dict(self, state):
        for number, part in enumerate(self.parts):
            part.load_state_dict(state[str(number)])


def leave_out(how, **settings):
    """Train with an optimizer, a schedule, an average and a loss scaler, of which some are no part
    of the run."""
    with lockstep.join(**settings) as team:
        model = linear()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
        constant = torch.optim.lr_scheduler.ConstantLR(optimizer, 0.5, 1)
        schedule = torch.optim.lr_scheduler.ChainedScheduler([torch.optim.lr_scheduler.StepLR(optimizer, 3), constant])
        average = AveragedModel(model)
        scaler = torch.amp.GradScaler("cpu", enabled=team.config.precision == "32-true" and team.config.strategy != "fsdp")
        everything = [optimizer, schedule, average, scaler]
        kept = [one for one in everything if how == "prepared" or type(one).__name__ == how]
        model, loader, *_ = team.prepare(model, DataLoader(numbers(16), 4), *kept)
        if how == "registered":
            team.register("trainer", Trainer(*everything))
        other = torch.optim.SGD([torch.zeros(1, requires_grad=True)])
        for _ in team.epochs(2):
            for batch in loader:
                for (inputs,) in batch.shards:
                    team.backward(scaler.scale(model(inputs).mean()))
                scaler.step(optimizer)
                scaler.update()
                other.step()
                optimizer.zero_grad()
                average.update_parameters(model)
            schedule.step()
    return len(_global_optimizer_pre_hooks)


def train_without_loader(with_team):
    """Train on batches that no loader makes. The message of what came of it."""
    team = lockstep.join()
    model = nn.Linear(1, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    model, optimizer = team.prepare(model, optimizer)
    try:
        for _ in range(3):
            loss = model(torch.randn(2, 1)).mean()
            if with_team:
                team.backward(loss)
            else:
                loss.backward()
            optimizer.step()
    except lockstep.UsageError as error:
        return str(error)
    return ""


class Growing(nn.Module):
    """Its second layer is made in its first forward pass, from the random stream of a shard."""

    def __init__(self):
        super().__init__()
        self.first = nn.Linear(2, 2)

    def forward(self, x):
        if not hasattr(self, "second"):
            self.second = nn.Linear(2, 1)
        return self.second(self.first(x))


def grow():
    """Trains such a model; the code of the error."""
    try:
        with lockstep.join() as team:
            model = Growing()
            optimizer = torch.optim.SGD(model.parameters(), 0.1)
            model, optimizer, loader = team.prepare(model, optimizer, DataLoader(torch.ones(16, 2), 4))
            for batch in loader:
                for x in batch.shards:
                    team.backward(model(x).mean())
                optimizer.step()
                optimizer.zero_grad()
    except lockstep.ModelError as error:
        return error.code
    return ""
