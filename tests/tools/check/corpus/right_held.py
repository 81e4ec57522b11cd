"""Right, though objects of the script change: registered, prepared, or the same on all ranks. Nothing is found."""

import collections
import copy
import functools
import itertools
import math
import os

import numpy as np
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

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


class Average:
    """Holds a copy of the model, and counts."""

    def __init__(self, model):
        self.model = copy.deepcopy(model).requires_grad_(False)
        self.num_updates = 0

    @torch.no_grad()
    def update(self, model):
        self.num_updates += 1
        decay = min(0.99, self.num_updates / 10)
        for a, p in zip(self.model.parameters(), model.parameters(), strict=True):
            a.lerp_(p, 1 - decay)

    def state_dict(self):
        return {"model": self.model.state_dict(), "num_updates": self.num_updates}

    def load_state_dict(self, state):
        self.model.load_state_dict(state["model"])
        self.num_updates = state["num_updates"]


def average_of_a_class_that_is_registered():
    team, model, optimizer, loader = start()
    average = Average(model)
    team.register("average", average)
    for batch in loader:
        train_step(team, model, optimizer, batch)
        average.update(model)
    team.save(average.model.state_dict(), "average.pt")


class Shadow:
    """Makes its copies when it is updated first, under the names of the parameters."""

    def __init__(self):
        self.shadow = {}
        self.history = None

    @torch.no_grad()
    def update(self, model):
        if self.history is None:
            self.history = []
        for name, p in model.named_parameters():
            if name not in self.shadow:
                self.shadow[name] = p.clone()
            self.shadow[name].mul_(0.9).add_(p, alpha=0.1)
        self.history.append(self.shadow["0.weight"].norm().item())

    def state_dict(self):
        return {"shadow": self.shadow, "history": self.history}

    def load_state_dict(self, state):
        self.shadow, self.history = state["shadow"], state["history"]


def shadow_that_is_registered_and_filled_later():
    team, model, optimizer, loader = start()
    shadow = team.register("shadow", Shadow())
    for batch in loader:
        train_step(team, model, optimizer, batch)
        shadow.update(model)
    model.load_state_dict(shadow.shadow)
    team.save([model.state_dict(), shadow.history], "average.pt")


class Tracker:
    """Of several parts, each with a state."""

    def __init__(self, model):
        self.average = Average(model)
        self.best = {"loss": math.inf}
        self.recent = collections.deque(maxlen=3)

    def step(self, model, loss):
        self.average.update(model)
        self.recent.append(loss)
        self.best["loss"] = min(self.best["loss"], sum(self.recent))

    def state_dict(self):
        return {"average": self.average.state_dict(), "best": self.best, "recent": list(self.recent)}

    def load_state_dict(self, state):
        self.average.load_state_dict(state["average"])
        self.best.update(state["best"])
        self.recent.extend(state["recent"])


def parts_of_what_is_registered():
    team, model, optimizer, loader = start()
    tracker = Tracker(model)
    team.register("tracker", tracker)
    for batch in loader:
        tracker.step(model, train_step(team, model, optimizer, batch))
        if tracker.best["loss"] < 0.1:
            break
    team.save(tracker.average.model.state_dict(), "average.pt")


class SAM(torch.optim.Optimizer):
    """Keeps the weights in ``self.state``, as PyTorch's optimizers do."""

    def __init__(self, params, base, rho=0.05, **options):
        super().__init__(params, dict(rho=rho, **options))
        self.base = base(self.param_groups, **options)
        self.param_groups = self.base.param_groups

    @torch.no_grad()
    def ascend(self):
        for group in self.param_groups:
            norm = torch.stack([p.grad.norm() for p in group["params"] if p.grad is not None]).norm()
            for p in group["params"]:
                if p.grad is None:
                    continue
                self.state[p]["old"] = p.data.clone()
                self.state[p]["e_w"] = p.grad * (group["rho"] / (norm + 1e-12))
                p.add_(self.state[p]["e_w"])
        self.zero_grad()

    @torch.no_grad()
    def descend(self):
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is None:
                    continue
                p.data = self.state[p]["old"]
                p.sub_(self.state[p]["e_w"] * 0.0)
        self.base.step()
        self.zero_grad()


def sharpness_aware_minimization():
    team = lockstep.join(seed=1)
    model = nn.Linear(6, 3)
    optimizer = SAM(model.parameters(), torch.optim.SGD, lr=0.1)
    data = DataLoader(TensorDataset(torch.randn(64, 6), torch.arange(64) % 3), 16)
    model, optimizer, loader = team.prepare(model, optimizer, data)
    for batch in loader:
        for x, y in batch.shards:
            team.backward(F.cross_entropy(model(x), y))
        optimizer.ascend()
        for x, y in batch.shards:
            team.backward(F.cross_entropy(model(x), y))
        optimizer.descend()


class Momentum(torch.optim.Optimizer):
    """Keeps plain values in attributes: checkpoints hold them."""

    def __init__(self, params, lr=0.05):
        super().__init__(params, {"lr": lr})
        self.num_steps = 0
        self.velocity = [torch.zeros_like(p) for p in self.param_groups[0]["params"]]
        self.norms = {"last": 0.0}
        self.rng, self.recent = np.random.default_rng(0), collections.deque(maxlen=4)

    @torch.no_grad()
    def step(self, closure=None):
        self.num_steps += 1
        for p, v in zip(self.param_groups[0]["params"], self.velocity, strict=True):
            v.mul_(0.9).add_(p.grad * (1 + 0.1 * self.rng.normal()))
            self.recent.append(v.norm())
            v.div_(sum(self.recent))
            self.norms["last"] = v.norm().item()
            p.sub_(v / (1 - 0.9**self.num_steps), alpha=self.param_groups[0]["lr"] / (1 + self.norms["last"]))


def optimizer_with_attributes():
    team = lockstep.join(seed=1)
    model = nn.Linear(6, 3)
    optimizer = Momentum(model.parameters())
    data = DataLoader(TensorDataset(torch.randn(64, 6), torch.arange(64) % 3), 16)
    model, optimizer, loader = team.prepare(model, optimizer, data)
    for batch in loader:
        train_step(team, model, optimizer, batch)


def gradients_scaled_in_place():
    team, model, optimizer, loader = start()
    for batch in loader:
        for x, y in batch.shards:
            team.backward(F.cross_entropy(model(x), y))
        for p in model.parameters():
            p.grad.mul_(0.5)
            p.grad.data.clamp_(-1.0, 1.0)
            p.grad += 1e-4 * p.detach()
        model[0].weight.grad.add_(torch.ones(8, 6), alpha=1e-3)
        grads = [p.grad for p in model.parameters() if p.grad is not None]
        torch._foreach_mul_(grads, 0.5)
        for g in grads:
            g.div_(2.0)
        optimizer.step()
        optimizer.zero_grad()


def decided_by_all_ranks():
    team, model, optimizer, loader = start()
    for batch in loader:
        worst, least, failed, clean, odd = 0.0, math.inf, False, True, False
        for x, y in batch.shards:
            loss = F.cross_entropy(model(x), y)
            worst = max(worst, loss.item())
            least = min(loss.item(), least)
            failed = failed or not torch.isfinite(loss)
            failed |= bool(loss.isnan())
            clean = clean and bool(torch.isfinite(loss))
            clean &= bool(loss > 0)
            if loss > 1e3:
                odd = True
            team.backward(loss)
        if team.any(worst > 100) or team.any(least < 1e-9) or team.any(failed) or team.any(not clean):
            break
        if not team.any(not worst <= 1e-3) or team.any(bool(odd)) or team.any(worst >= 50 or least < 1e-6):
            break
        optimizer.step()
        optimizer.zero_grad()


def rate_set_for_each_step():
    team, model, optimizer, loader = start()
    for epoch in team.epochs(3):
        model[1].p = 0.5 / (1 + epoch)
        for batch in loader:
            for module in model.modules():
                if isinstance(module, nn.Dropout):
                    module.p = 0.5 * team.step / 100
            train_step(team, model, optimizer, batch)


def weights_of_a_sampler_set_for_each_epoch():
    sampler = torch.utils.data.WeightedRandomSampler(torch.ones(64), 64)
    data = TensorDataset(torch.randn(64, 6), torch.arange(64) % 3)
    team, model, optimizer, loader = start(DataLoader(data, 16, sampler=sampler))
    for epoch in team.epochs(3):
        sampler.weights = torch.ones(64) / (1 + epoch)
        for batch in loader:
            train_step(team, model, optimizer, batch)


class Masked(nn.Module):
    """Its mask is drawn once, on all ranks alike."""

    def __init__(self):
        super().__init__()
        self.head = nn.Linear(6, 3)

    @functools.lru_cache  # noqa: B019
    def mask(self, n):
        return torch.rand(n) > 0.5

    @functools.cached_property
    def steps(self):
        return torch.arange(6)

    def forward(self, x):
        return self.head(x * self.mask(x.shape[1]) + self.steps)


def cache_filled_before_the_loop():
    team, _, _, loader = start()
    model = Masked()
    model.mask(6)
    model, optimizer = team.prepare(model, torch.optim.SGD(model.parameters(), lr=0.1))
    for batch in loader:
        train_step(team, model, optimizer, batch)


def processes_counted_for_a_file_name():
    team, model, optimizer, loader = start()
    world, rank = dist.get_world_size(), int(os.environ["RANK"])
    for batch in loader:
        loss = train_step(team, model, optimizer, batch)
        if rank == 0:
            print(f"{world} processes: {loss}", os.environ.get("WORLD_SIZE"))
            torch.save({"world": world}, f"of-{world}.pt")


class Ascent:
    """Keeps for each parameter how far it was moved, until it is moved back in the same step."""

    def __init__(self, optimizer, model):
        self.optimizer, self.model, self.state = optimizer, model, {}

    @torch.no_grad()
    def up(self):
        norm = torch.stack([p.grad.norm() for p in self.model.parameters() if p.grad is not None]).norm()
        for name, p in self.model.named_parameters():
            if p.grad is None:
                continue
            moved = self.state.get(name)
            moved = p.grad / norm
            self.state[name] = moved
            p.add_(moved)
        self.optimizer.zero_grad()

    @torch.no_grad()
    def down(self):
        for name, p in self.model.named_parameters():
            if p.grad is not None:
                p.sub_(self.state[name])
        self.optimizer.step()
        self.optimizer.zero_grad()


def moved_and_moved_back():
    team, model, optimizer, loader = start()
    ascent = Ascent(optimizer, model)
    for batch in loader:
        for x, y in batch.shards:
            team.backward(F.cross_entropy(model(x), y))
        ascent.up()
        for x, y in batch.shards:
            team.backward(F.cross_entropy(model(x), y))
        ascent.down()


def decided_by_all_ranks_from_a_list():
    team, model, optimizer, loader = start()
    for batch in loader:
        losses, bad, skip = [], torch.zeros((), dtype=torch.bool), 0
        for x, y in batch.shards:
            loss = F.cross_entropy(model(x), y)
            losses.append(loss.item())
            bad = bad | ~torch.isfinite(loss)
            if not math.isfinite(loss.item()):
                skip = 1
            team.backward(loss)
        if team.any(max(losses, default=0.0) > 10) or team.any(any(value > 10 for value in losses)):
            break
        if team.any(bad) or team.any(skip):
            continue
        worst = team.all_reduce(torch.tensor(max(losses, default=0.0)), op="max")
        if worst > 1:
            break
        optimizer.step()
        optimizer.zero_grad()


class Warm:
    """Counts in a number from which its state follows, and says by a method of its own what its state is."""

    def __init__(self):
        self.num_steps, self.rate, self.seen = 0, 0.0, {}

    def step(self, optimizer):
        self.num_steps += 1
        self.seen["last"] = self.num_steps
        self.set_rate()
        for group in optimizer.param_groups:
            group["lr"] = self.rate * self.seen["last"]

    def set_rate(self):
        self.rate = min(1.0, self.num_steps / 100 + 0.0 * self.rate)

    def state(self):
        return {"num_steps": self.num_steps, "seen": self.seen}

    def state_dict(self):
        return self.state()

    def load_state_dict(self, state):
        self.num_steps, self.seen = state["num_steps"], state["seen"]
        self.set_rate()


class Rest(Warm):
    def state_dict(self):
        return {name: value for name, value in self.__dict__.items() if name != "unused"}

    def load_state_dict(self, state):
        vars(self).update(state)


class Counted:
    """Its rate follows from what is in its state."""

    def __init__(self):
        self.count = 0

    @property
    def rate(self):
        return 0.1 / (1 + self.count)

    def step(self, optimizer):
        self.count = self.count + 1
        self.shown = f"{self.count}"
        optimizer.param_groups[0]["lr"] = self.rate

    def state_dict(self):
        return {"count": self.count}

    def load_state_dict(self, state):
        self.count = state["count"]


def schedules_that_say_what_their_state_is():
    team, model, optimizer, loader = start()
    schedules = [Warm(), Rest(), Counted()]
    for number, schedule in enumerate(schedules):
        team.register(f"schedule {number}", schedule)
    for batch in loader:
        train_step(team, model, optimizer, batch)
        for schedule in schedules:
            schedule.step(optimizer)


def epochs_of_so_many_steps(test_loader):
    team, model, optimizer, loader = start()
    for _ in team.epochs(3):
        for batch in loader.take(2):
            train_step(team, model, optimizer, batch)
        for _, batch in zip(range(len(loader)), loader):
            train_step(team, model, optimizer, batch)
        with team.evaluate(model, test_loader) as evaluation:
            for batch in itertools.islice(evaluation, 3):
                for x, y in batch.shards:
                    batch.add(loss=F.cross_entropy(model(x), y))


def epochs_beside_what_is_not_computed_with():
    team, model, optimizer, loader = start()
    rates = [0.1, 0.01, 0.001]
    for epoch, label, decay in zip(team.epochs(3), ("a", "b", "c"), itertools.repeat(0.5)):
        model[1].p = decay * rates[epoch]
        for batch in loader:
            train_step(team, model, optimizer, batch)
        print(label)
    for number, epoch in enumerate(team.epochs(6)):
        optimizer.param_groups[0]["lr"] = rates[epoch % 3]
        for batch in loader:
            train_step(team, model, optimizer, batch)
        print(number)
