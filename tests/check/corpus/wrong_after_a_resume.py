"""Equal on every number of processes, and not after a resume: something of the script's own is in no checkpoint."""

import collections
import copy
import math
import random

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn
from torch.optim.swa_utils import AveragedModel
from torch.utils.data import DataLoader, Dataset, TensorDataset

import lockstep


def start():
    team = lockstep.join(seed=1)
    model = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 3))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    data = TensorDataset(torch.randn(64, 6), torch.arange(64) % 3)
    return (team, *team.prepare(model, optimizer, DataLoader(data, 16, shuffle=True)))


def train_step(team, model, optimizer, batch):
    for x, y in batch.shards:
        loss = F.cross_entropy(model(x), y)
        team.backward(loss)
        batch.add(loss=loss)
    optimizer.step()
    optimizer.zero_grad()
    return batch["loss"]


def validate(team, model):
    with team.evaluate(model, DataLoader(TensorDataset(torch.randn(40, 6), torch.arange(40) % 3), 8)) as evaluation:
        for batch in evaluation:
            for x, y in batch.shards:
                batch.add(loss=F.cross_entropy(model(x), y))
    return evaluation["loss"]


def nano_gpt():
    team, model, optimizer, loader = start()
    best_val_loss = 1e9
    for batch in loader:
        train_step(team, model, optimizer, batch)
        if team.step % 10 == 0:
            val_loss = validate(team, model)
            if val_loss < best_val_loss:
                best_val_loss = val_loss  # LS201
                if team.is_main:
                    torch.save(model.state_dict(), "ckpt.pt")


class EarlyStopping:
    def __init__(self, patience=3):
        self.patience, self.best, self.bad = patience, math.inf, 0

    def __call__(self, loss):
        if loss < self.best:
            self.best, self.bad = loss, 0
        else:
            self.bad += 1
        return self.bad >= self.patience


def early_stopping_object():
    team, model, optimizer, loader = start()
    stopping = EarlyStopping()
    for _ in team.epochs(20):
        for batch in loader:
            train_step(team, model, optimizer, batch)
        if stopping(validate(team, model)):  # LS203
            break


def rate_halved_by_hand():
    team, model, optimizer, loader = start()
    lr, last = 0.1, None
    for _ in team.epochs(20):
        for batch in loader:
            train_step(team, model, optimizer, batch)
        loss = validate(team, model)
        if last is not None and loss > last:
            lr /= 2  # LS201
            for group in optimizer.param_groups:
                group["lr"] = lr
        last = loss  # LS201


def warm_up_by_enumerate():
    team, model, optimizer, loader = start()
    for step, batch in enumerate(loader):  # LS202
        optimizer.param_groups[0]["lr"] = 0.1 * min(1.0, (step + 1) / 100)
        train_step(team, model, optimizer, batch)


def a_hundred_steps_by_next():
    team, model, optimizer, loader = start()
    batches = iter(loader)
    for _ in range(100):  # LS202
        train_step(team, model, optimizer, next(batches))


def reinforce_baseline():
    team, model, optimizer, loader = start()
    running_reward = 10.0
    for batch in loader:
        for x, y in batch.shards:
            choices = torch.distributions.Categorical(logits=model(x))
            actions = choices.sample()
            rewards = (actions == y).float()
            team.backward(-((rewards - running_reward) * choices.log_prob(actions)).mean())
            batch.add(reward=rewards)
        optimizer.step()
        optimizer.zero_grad()
        running_reward = 0.95 * running_reward + 0.05 * batch["reward"]  # LS201


class EMA:
    def __init__(self, model, decay=0.99):
        self.decay = decay
        self.shadow = {name: p.detach().clone() for name, p in model.named_parameters()}

    def update(self, model):
        for name, p in model.named_parameters():
            self.shadow[name] = self.decay * self.shadow[name] + (1 - self.decay) * p.detach()

    def copy_to(self, model):
        for name, p in model.named_parameters():
            p.data.copy_(self.shadow[name])


def ema_class():
    team, model, optimizer, loader = start()
    ema = EMA(model)
    for batch in loader:
        train_step(team, model, optimizer, batch)
        ema.update(model)  # LS203
    ema.copy_to(model)


def mean_teacher():
    team, model, optimizer, loader = start()
    teacher = copy.deepcopy(model)
    for batch in loader:
        for x, y in batch.shards:
            team.backward(F.cross_entropy(model(x), y) + F.mse_loss(model(x), teacher(x)))
        optimizer.step()
        optimizer.zero_grad()
        with torch.no_grad():
            for t, s in zip(teacher.parameters(), model.parameters(), strict=True):
                t.lerp_(s, 0.01)  # LS204


def average_not_prepared():
    team, model, optimizer, loader = start()
    average = AveragedModel(model)
    for batch in loader:
        train_step(team, model, optimizer, batch)
        average.update_parameters(model)  # LS204
    validate(team, average)


def target_network():
    team, model, optimizer, loader = start()
    target = copy.deepcopy(model)
    for batch in loader:
        for x, y in batch.shards:
            team.backward(F.mse_loss(model(x), 0.9 * target(x)) + F.cross_entropy(model(x), y))
        optimizer.step()
        optimizer.zero_grad()
        if team.step % 10 == 0:
            target.load_state_dict(model.state_dict())  # LS204


def noise_on_gradients():
    team, model, optimizer, loader = start()
    generator = torch.Generator().manual_seed(3)
    for batch in loader:
        for x, y in batch.shards:
            team.backward(F.cross_entropy(model(x), y))
        for p in model.parameters():
            p.grad += 0.01 * torch.randn(p.shape, generator=generator)  # LS205
        optimizer.step()
        optimizer.zero_grad()


def mixup_share_from_numpy():
    team, model, optimizer, loader = start()
    rng = np.random.default_rng(3)
    for batch in loader:
        share = rng.beta(0.4, 0.4)  # LS205
        for x, y in batch.shards:
            team.backward(share * F.cross_entropy(model(x), y) + (1 - share) * F.cross_entropy(model(x.flip(0)), y.flip(0)))
        optimizer.step()
        optimizer.zero_grad()


def unlabelled_by_next():
    team, model, optimizer, loader = start()
    unlabelled = iter(DataLoader(torch.randn(640, 6), 16))
    for batch in loader:
        more = next(unlabelled)  # LS206
        for x, y in batch.shards:
            team.backward(F.cross_entropy(model(x), y) + model(more).square().mean())
        optimizer.step()
        optimizer.zero_grad()


def loss_spikes_skipped():
    team, model, optimizer, loader = start()
    average = None
    for batch in loader:
        for x, y in batch.shards:
            loss = F.cross_entropy(model(x), y)
            team.backward(loss)
            batch.add(loss=loss)
        if average is None or batch["loss"] < 3 * average:
            optimizer.step()
            average = batch["loss"] if average is None else 0.9 * average + 0.1 * batch["loss"]  # LS201
        optimizer.zero_grad()


def clip_by_history():
    team, model, optimizer, loader = start()
    norms = []
    for batch in loader:
        for x, y in batch.shards:
            team.backward(F.cross_entropy(model(x), y))
        norm = torch.nn.utils.get_total_norm([p.grad for p in model.parameters()])
        norms.append(norm.item())  # LS203
        torch.nn.utils.clip_grad_norm_(model.parameters(), float(np.percentile(norms, 10)))
        optimizer.step()
        optimizer.zero_grad()


def curriculum_by_loss():
    team, model, optimizer, loader = start()
    level = 1
    for _ in team.epochs(20):
        for batch in loader:
            for x, y in batch.shards:
                team.backward(F.cross_entropy(model(x[:, : level * 2].repeat(1, 3)[:, :6]), y))
            optimizer.step()
            optimizer.zero_grad()
        if validate(team, model) < 0.5:
            level += 1  # LS201


class Fit:
    def __init__(self):
        self.team, self.model, self.optimizer, self.loader = start()
        self.best = math.inf

    def run(self):
        for _ in self.team.epochs(20):
            for batch in self.loader:
                train_step(self.team, self.model, self.optimizer, batch)
            loss = validate(self.team, self.model)
            if loss < self.best:
                self.best = loss  # LS201
                torch.save(self.model.state_dict(), "best.pt")


def trainer_with_a_best():
    Fit().run()


def dino_centre():
    team, model, optimizer, loader = start()
    centre = torch.zeros(3)
    for batch in loader:
        for x, _ in batch.shards:
            out = model(x)
            team.backward(F.cross_entropy(out, (out.detach() - centre).softmax(1)))
            batch.add(**{f"c{i}": out[:, i].mean() for i in range(3)})
        optimizer.step()
        optimizer.zero_grad()
        centre = 0.9 * centre + 0.1 * torch.tensor([batch[f"c{i}"] for i in range(3)])  # LS201


def steps_by_a_counter():
    team, model, optimizer, loader = start()
    global_step = 0
    for _ in team.epochs(3):
        for batch in loader:
            train_step(team, model, optimizer, batch)
            global_step += 1  # LS201
            if global_step % 100 == 0:
                for group in optimizer.param_groups:
                    group["lr"] *= 0.5


def accumulation_by_enumerate():
    team, model, optimizer, loader = start()
    for i, batch in enumerate(loader):  # LS202
        for x, y in batch.shards:
            team.backward(F.cross_entropy(model(x), y) / 4)
        if (i + 1) % 4 == 0:
            optimizer.step()
            optimizer.zero_grad()


def bandit_over_augmentations():
    team, model, optimizer, loader = start()
    scores = {"flip": 1.0, "roll": 1.0}
    for batch in loader:
        name = random.choices(list(scores), list(scores.values()))[0]
        for x, y in batch.shards:
            loss = F.cross_entropy(model(x.flip(1) if name == "flip" else x.roll(1, 1)), y)
            team.backward(loss)
            batch.add(loss=loss)
        optimizer.step()
        optimizer.zero_grad()
        scores[name] = 0.9 * scores[name] + 0.1 * batch["loss"]  # LS203


class WarmUp:
    def __init__(self, optimizer):
        self.optimizer, self.num = optimizer, 0

    def step(self):
        self.num += 1
        for group in self.optimizer.param_groups:
            group["lr"] = 0.1 * min(1.0, self.num / 100)


def schedule_of_its_own_class():
    team, model, optimizer, loader = start()
    warm_up = WarmUp(optimizer)
    for batch in loader:
        warm_up.step()  # LS203
        train_step(team, model, optimizer, batch)


def stage_set_by_an_epoch():
    team, model, optimizer, loader = start()
    size = 2
    for epoch in team.epochs(10):
        if epoch == 5:
            size = 6  # LS201
        for batch in loader:
            for x, y in batch.shards:
                team.backward(F.cross_entropy(model(F.pad(x[:, :size], (0, 6 - size))), y))
            optimizer.step()
            optimizer.zero_grad()


def plateau_by_the_mean_of_an_epoch():
    team, model, optimizer, loader = start()
    schedule = team.prepare(torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer))
    for _ in team.epochs(10):
        losses = []
        for batch in loader:
            losses.append(train_step(team, model, optimizer, batch))  # LS203
        schedule.step(sum(losses) / len(losses))


def average_by_zip_that_nothing_reads_yet():
    team, model, optimizer, loader = start()
    average = copy.deepcopy(team.unwrap(model))
    for batch in loader:
        train_step(team, model, optimizer, batch)
        with torch.no_grad():
            for a, p in zip(average.parameters(), model.parameters(), strict=True):
                a.mul_(0.99).add_(p, alpha=0.01)  # LS204


def shadows_by_name():
    team, model, optimizer, loader = start()
    shadow = {name: p.detach().clone() for name, p in model.named_parameters()}
    for batch in loader:
        train_step(team, model, optimizer, batch)
        for name, p in model.named_parameters():
            shadow[name].mul_(0.99).add_(p.detach(), alpha=0.01)  # LS203
    torch.save(shadow, "average.pt")


def shadows_of_a_copied_state():
    team, model, optimizer, loader = start()
    average = copy.deepcopy(model.state_dict())
    for batch in loader:
        train_step(team, model, optimizer, batch)
        for name, value in model.state_dict().items():
            average[name] = 0.99 * average[name] + 0.01 * value  # LS203
    torch.save(average, "average.pt")


def slow_weights():
    team, model, optimizer, loader = start()
    slow = [p.detach().clone() for p in model.parameters()]
    for batch in loader:
        train_step(team, model, optimizer, batch)
        if team.step % 5 == 0:
            with torch.no_grad():
                for s, p in zip(slow, model.parameters(), strict=True):
                    s.add_(p - s, alpha=0.5)  # LS203
                    p.copy_(s)


def best_in_a_dict_that_is_updated():
    team, model, optimizer, loader = start()
    record = {"loss": float("inf"), "epoch": -1}
    for epoch in team.epochs(5):
        for batch in loader:
            train_step(team, model, optimizer, batch)
        if loader.averages["loss"] < record["loss"]:
            record.update(loss=loader.averages["loss"], epoch=epoch)  # LS203
            if team.is_main:
                torch.save(model.state_dict(), "best.pt")


def stop_by_a_window_of_averages():
    team, model, optimizer, loader = start()
    window = collections.deque(maxlen=10)
    for _ in team.epochs(50):
        for batch in loader:
            train_step(team, model, optimizer, batch)
        window.append(loader.averages["loss"])  # LS203
        if np.mean(window) < 0.1:
            break


def clip_by_an_average_norm():
    team, model, optimizer, loader = start()
    average = None
    for batch in loader:
        for x, y, _ in batch.shards:
            team.backward(F.cross_entropy(model(x), y))
        norm = nn.utils.clip_grad_norm_(model.parameters(), 1e9 if average is None else 2 * average)
        average = norm.item() if average is None else 0.9 * average + 0.1 * norm.item()  # LS201
        optimizer.step()
        optimizer.zero_grad()


class Growing(Dataset):
    def __init__(self):
        self.stage = 1

    def __len__(self):
        return 64

    def __getitem__(self, index):
        return torch.full((6,), index / 64) * (torch.arange(6) < 2 * self.stage), index % 3


def stage_of_the_data_set():
    team, model, optimizer, _ = start()
    data = Growing()
    loader = team.prepare(DataLoader(data, 16))
    for _ in team.epochs(3):
        for batch in loader:
            for x, y in batch.shards:
                team.backward(F.cross_entropy(model(x), y))
            optimizer.step()
            optimizer.zero_grad()
        data.stage += 1  # LS201
