"""In no checkpoint: what an object that a callback, a library or an optimizer has is given or made to hold."""

import itertools

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
from tqdm import tqdm

import lockstep


def start(loader=None):
    team = lockstep.join(seed=1)
    model = nn.Sequential(nn.Linear(6, 8), nn.Dropout(0.5), nn.Linear(8, 3))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    data = TensorDataset(torch.randn(64, 6), torch.arange(64) % 3)
    return (team, *team.prepare(model, optimizer, loader or DataLoader(data, 16, shuffle=True)))


def train_step(team, model, optimizer, batch):
    for x, y in batch.shards:
        loss = F.cross_entropy(model(x), y)
        team.backward(loss)
        batch.add(loss=loss)
    optimizer.step()
    optimizer.zero_grad()
    return batch["loss"]


class Rate:
    def on_step_end(self, trainer):
        for group in trainer.optimizer.param_groups:
            group["lr"] = 0.1 / (1 + 0.2 * trainer.global_step)


class Average:
    def __init__(self):
        self.shadow = None

    @torch.no_grad()
    def on_step_end(self, trainer):
        if self.shadow is None:
            self.shadow = {name: value.clone() for name, value in trainer.model.state_dict().items()}
        for name, value in trainer.model.state_dict().items():
            self.shadow[name].lerp_(value, 0.1)


class Trainer:
    def __init__(self, callbacks):
        self.team, self.model, self.optimizer, self.loader = start()
        self.callbacks, self.global_step = callbacks, 0

    def call(self, event, *args):
        for callback in self.callbacks:
            getattr(callback, f"on_{event}")(self, *args)  # LS203

    def fit(self):
        for _ in self.team.epochs(3):
            for batch in self.loader:
                train_step(self.team, self.model, self.optimizer, batch)
                self.global_step += 1  # LS201
                self.call("step_end")


def callbacks_called_by_name():
    average = Average()
    trainer = Trainer([Rate(), average])
    trainer.fit()
    trainer.model.load_state_dict(average.shadow)


def rate_of_a_module_moved_on():
    team, model, optimizer, loader = start()
    for epoch in team.epochs(3):
        for batch in loader:
            train_step(team, model, optimizer, batch)
        model[1].p = 0.5 / (1 + epoch)  # LS201


def weights_of_a_sampler():
    sampler = torch.utils.data.WeightedRandomSampler(torch.ones(64), 64)
    data = TensorDataset(torch.randn(64, 6), torch.arange(64) % 3)
    team, model, optimizer, loader = start(DataLoader(data, 16, sampler=sampler))
    for epoch in team.epochs(3):
        for batch in loader:
            train_step(team, model, optimizer, batch)
        sampler.weights = torch.ones(64) / (2 + epoch)  # LS201


class Clock:
    def __init__(self):
        self.num_ticks = 0

    def tick(self):
        self.num_ticks += 1
        return self.num_ticks


class Restless(torch.optim.SGD):
    """What it has beside plain values is in no checkpoint."""

    def __init__(self, params, **options):
        super().__init__(params, **options)
        self.clock, self.other, self.ticks = Clock(), Clock(), itertools.count(1)

    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            for p in group["params"]:
                p.grad.div_(self.clock.tick())  # LS203
                p.grad.mul_(1 / next(self.ticks))  # LS206
                self.other.num_ticks += 1  # LS203
                p.grad.mul_(self.other.num_ticks)
        super().step(closure)


def optimizer_with_objects():
    team, model, _, loader = start()
    optimizer = team.prepare(Restless(model.parameters(), lr=0.1))
    for batch in loader:
        train_step(team, model, optimizer, batch)


class Shadow:
    def __init__(self, model):
        self.model, self.shadow = model, {name: p.detach().clone() for name, p in model.named_parameters()}

    @torch.no_grad()
    def update(self):
        for name, p in self.model.named_parameters():
            if p.requires_grad:
                moved = 0.9 * self.shadow[name] + 0.1 * p
                self.shadow[name] = moved.clone()

    def apply(self):
        for name, p in self.model.named_parameters():
            p.data.copy_(self.shadow[name])


def average_by_name():
    team, model, optimizer, loader = start()
    shadow = Shadow(model)
    for batch in loader:
        train_step(team, model, optimizer, batch)
        shadow.update()  # LS203
    shadow.apply()


class Patience:
    """Its ``state_dict()`` leaves two of three out."""

    def __init__(self):
        self.best, self.num_bad, self.recent = 1e9, 0, []

    def is_over(self, loss):
        self.recent.append(loss)  # LS203
        if loss < self.best:
            self.best, self.num_bad = loss, 0  # LS203
        else:
            self.num_bad += 1
        return self.num_bad > 3 and sum(self.recent[-3:]) > 1.0

    def state_dict(self):
        return {"best": self.best}

    def load_state_dict(self, state):
        self.best = state["best"]


def early_stopping_that_is_registered_in_part():
    team, model, optimizer, loader = start()
    patience = team.register("patience", Patience())
    for _ in team.epochs(9):
        for batch in loader:
            train_step(team, model, optimizer, batch)
        if patience.is_over(loader.averages["loss"]):
            break


def epochs_of_so_many_steps():
    team, model, optimizer, loader = start()
    for _ in team.epochs(3):
        for batch in itertools.islice(loader, 2):  # LS207
            train_step(team, model, optimizer, batch)
        for _, batch in zip(range(2), loader):  # LS207
            train_step(team, model, optimizer, batch)


def so_many_steps():
    team, model, optimizer, loader = start()
    batches = iter(loader)
    for _ in range(100):  # LS207
        batch = next(batches)
        train_step(team, model, optimizer, batch)


def rates_beside_epochs():
    team, model, optimizer, loader = start()
    rates = [0.1, 0.01, 0.001]
    for epoch, rate in zip(team.epochs(3), rates):  # LS208
        for group in optimizer.param_groups:
            group["lr"] = rate
        for batch in loader:
            train_step(team, model, optimizer, batch)


def number_of_epochs():
    team, model, optimizer, loader = start()
    epochs = team.epochs(3)
    for number, epoch in enumerate(epochs):  # LS208
        model[1].p = 0.5 if number < 2 else 0.0
        for batch in loader:
            train_step(team, model, optimizer, batch)


def share_beside_epochs():
    team, model, optimizer, loader = start()
    for share, _ in zip((1.0, 0.5, 0.25), tqdm(team.epochs(3))):  # LS208
        for batch in loader:
            for x, y in batch.shards:
                team.backward(share * F.cross_entropy(model(x), y))
            optimizer.step()
            optimizer.zero_grad()
