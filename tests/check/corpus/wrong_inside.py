"""Training loops as people write them, in lockstep's form, each wrong in one way: the comment at a line says what is found."""

import collections
import copy
import functools
import random
import time

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, Dataset, TensorDataset, get_worker_info

import lockstep


def start():
    team = lockstep.join(seed=1)
    model = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 3))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    data = TensorDataset(torch.randn(64, 6), torch.arange(64) % 3, torch.arange(64))
    return (team, *team.prepare(model, optimizer, DataLoader(data, 16, shuffle=True)))


def running_loss():
    team, model, optimizer, loader = start()
    for epoch in team.epochs(3):
        running_loss = 0.0
        for batch in loader:
            for x, y, _ in batch.shards:
                loss = F.cross_entropy(model(x), y)
                team.backward(loss)
                running_loss += loss.item()  # LS102
            optimizer.step()
            optimizer.zero_grad()
        team.print(f"epoch {epoch}: {running_loss / len(loader):.3f}")


def accuracy_of_training():
    team, model, optimizer, loader = start()
    for _ in team.epochs(3):
        correct, total = 0, 0
        for batch in loader:
            for x, y, _ in batch.shards:
                output = model(x)
                team.backward(F.cross_entropy(output, y))
                _, predicted = output.max(1)
                total += y.size(0)  # LS102
                correct += predicted.eq(y).sum().item()  # LS102
            optimizer.step()
            optimizer.zero_grad()
        print("accuracy", 100.0 * correct / total)


def losses_in_a_list():
    team, model, optimizer, loader = start()
    losses = []
    for batch in loader:
        for x, y, _ in batch.shards:
            loss = F.cross_entropy(model(x), y)
            team.backward(loss)
            losses.append(loss.item())  # LS103
        optimizer.step()
        optimizer.zero_grad()
    print(sum(losses) / len(losses))


class AverageMeter:
    def __init__(self):
        self.val = self.avg = self.sum = self.count = 0

    def update(self, val, n=1):
        self.val = val
        self.sum += val * n
        self.count += n
        self.avg = self.sum / self.count


def average_meter():
    team, model, optimizer, loader = start()
    losses = AverageMeter()
    for batch in loader:
        for x, y, _ in batch.shards:
            loss = F.cross_entropy(model(x), y)
            team.backward(loss)
            losses.update(loss.item(), x.size(0))  # LS103
        optimizer.step()
        optimizer.zero_grad()
    print(f"{losses.avg:.4f}")


def last_loss_is_printed():
    team, model, optimizer, loader = start()
    for i, batch in enumerate(loader):  # LS202?
        for x, y, _ in batch.shards:
            loss = F.cross_entropy(model(x), y)  # LS101
            team.backward(loss)
        optimizer.step()
        optimizer.zero_grad()
        if i % 100 == 0:
            print(i, loss.item())


def any_of_the_last_loss():
    team, model, optimizer, loader = start()
    for batch in loader:
        for x, y, _ in batch.shards:
            loss = F.cross_entropy(model(x), y)  # LS101
            team.backward(loss)
        optimizer.step()
        optimizer.zero_grad()
        if team.any(loss.item() < 0.1):
            break


def nan_check_on_the_last_loss():
    team, model, optimizer, loader = start()
    for batch in loader:
        for x, y, _ in batch.shards:
            loss = F.cross_entropy(model(x), y)  # LS101
            team.backward(loss)
        if not torch.isfinite(loss):
            optimizer.zero_grad()
            continue
        optimizer.step()
        optimizer.zero_grad()


def kl_warm_up():
    team, model, optimizer, loader = start()
    n = 0
    for batch in loader:
        for x, y, _ in batch.shards:
            n += 1  # LS102
            out = model(x)
            team.backward(F.cross_entropy(out, y) + min(1.0, n / 1000) * out.square().mean())
        optimizer.step()
        optimizer.zero_grad()


def class_counts():
    team, model, optimizer, loader = start()
    counts = torch.ones(3)
    for batch in loader:
        for x, y, _ in batch.shards:
            counts += torch.bincount(y, minlength=3)  # LS103
            team.backward(F.cross_entropy(model(x) + counts.log(), y))
        optimizer.step()
        optimizer.zero_grad()


def class_counts_by_index_add():
    team, model, optimizer, loader = start()
    counts = torch.ones(3)
    for batch in loader:
        for x, y, _ in batch.shards:
            counts.index_add_(0, y, torch.ones(len(y)))  # LS103
            team.backward(F.cross_entropy(model(x), y, weight=1 / counts))
        optimizer.step()
        optimizer.zero_grad()


def memory_bank():
    team, model, optimizer, loader = start()
    bank = F.normalize(torch.randn(64, 3), dim=1)
    for batch in loader:
        for x, _, index in batch.shards:
            z = F.normalize(model(x), dim=1)
            team.backward(F.cross_entropy(z @ bank.t() / 0.07, index))
            bank[index] = z.detach()  # LS103
        optimizer.step()
        optimizer.zero_grad()


class MoCo(nn.Module):
    def __init__(self):
        super().__init__()
        self.encoder = nn.Linear(6, 3)
        self.queue = F.normalize(torch.randn(3, 128), dim=0)
        self.ptr = 0

    @torch.no_grad()
    def enqueue(self, keys):
        n = keys.shape[0]
        self.queue[:, self.ptr : self.ptr + n] = keys.T  # LS103
        self.ptr = (self.ptr + n) % 128  # LS104

    def forward(self, x):
        q = F.normalize(self.encoder(x), dim=1)
        logits = q @ self.queue.clone().detach()
        self.enqueue(q.detach())
        return logits


def moco_queue_in_an_attribute():
    team = lockstep.join(seed=1)
    model = MoCo()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    model, optimizer, loader = team.prepare(model, optimizer, DataLoader(torch.randn(64, 6), 16))
    for batch in loader:
        for x in batch.shards:
            team.backward(model(x).logsumexp(1).mean())
        optimizer.step()
        optimizer.zero_grad()


def hard_example_mining():
    team = lockstep.join(seed=1)
    data = TensorDataset(torch.randn(64, 6), torch.arange(64) % 3, torch.arange(64))
    sampler = torch.utils.data.WeightedRandomSampler(torch.ones(64), 64)
    model = nn.Linear(6, 3)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    model, optimizer, loader = team.prepare(model, optimizer, DataLoader(data, 16, sampler=sampler))
    for _ in team.epochs(3):
        for batch in loader:
            for x, y, index in batch.shards:
                losses = F.cross_entropy(model(x), y, reduction="none")
                team.backward(losses.mean())
                sampler.weights[index] = losses.detach().double()  # LS103
            optimizer.step()
            optimizer.zero_grad()
    print(sampler.weights)


class RunningMeanStd:
    def __init__(self, shape):
        self.mean, self.var, self.count = torch.zeros(shape), torch.ones(shape), 1e-4

    def update(self, x):
        delta = x.mean(0) - self.mean
        total = self.count + x.shape[0]
        self.mean = self.mean + delta * x.shape[0] / total
        self.count = total

    def normalize(self, x):
        return (x - self.mean) / self.var.sqrt()


def observations_normalised():
    team, model, optimizer, loader = start()
    rms = RunningMeanStd((6,))
    for batch in loader:
        for x, y, _ in batch.shards:
            rms.update(x)  # LS103
            team.backward(F.cross_entropy(model(rms.normalize(x)), y))
        optimizer.step()
        optimizer.zero_grad()


def replay_buffer():
    team, model, optimizer, loader = start()
    memory = collections.deque(maxlen=1000)
    for batch in loader:
        for x, y, _ in batch.shards:
            memory.append((x, y))  # LS103
            old_x, old_y = random.choice(memory)
            team.backward(F.cross_entropy(model(x), y) + F.cross_entropy(model(old_x), old_y))
        optimizer.step()
        optimizer.zero_grad()


def image_pool():
    team, model, optimizer, loader = start()
    pool = []
    for batch in loader:
        for x, y, _ in batch.shards:
            if len(pool) < 50:
                pool.append(x.detach())  # LS103
                shown = x
            else:
                shown = pool[random.randrange(50)]
            team.backward(F.cross_entropy(model(shown), y))
        optimizer.step()
        optimizer.zero_grad()


def hidden_state_of_a_language_model():
    team = lockstep.join(seed=1)
    model = nn.LSTM(6, 6, batch_first=True)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    model, optimizer, loader = team.prepare(model, optimizer, DataLoader(torch.randn(64, 5, 6), 16))
    hidden = None
    for batch in loader:
        for x in batch.shards:
            if hidden is not None:
                hidden = tuple(h.detach() for h in hidden)
            output, hidden = model(x, hidden)  # LS101
            team.backward(output.square().mean())
        optimizer.step()
        optimizer.zero_grad()


def mixup_from_an_own_rng():
    team, model, optimizer, loader = start()
    rng = random.Random(3)
    for batch in loader:
        for x, y, _ in batch.shards:
            share = rng.random()  # LS105
            team.backward(share * F.cross_entropy(model(x), y) + (1 - share) * F.cross_entropy(model(x.flip(0)), y.flip(0)))
        optimizer.step()
        optimizer.zero_grad()


class Noisy(Dataset):
    def __init__(self):
        self.rng = np.random.default_rng(0)

    def __len__(self):
        return 64

    def __getitem__(self, index):
        return torch.full((6,), float(index)) + self.rng.normal()  # LS109


def data_set_with_an_own_rng():
    team = lockstep.join(seed=1)
    model = nn.Linear(6, 3)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    model, optimizer, loader = team.prepare(model, optimizer, DataLoader(Noisy(), 16))
    for batch in loader:
        for x in batch.shards:
            team.backward(model(x).square().mean())
        optimizer.step()
        optimizer.zero_grad()


class ByWorker(Dataset):
    def __len__(self):
        return 64

    def __getitem__(self, index):
        info = get_worker_info()  # LS107
        return torch.full((6,), float(index)) * (1 if info is None else info.id)


class Growing:
    """A collate function that masks more and more."""

    def __init__(self):
        self.calls = 0

    def __call__(self, rows):
        self.calls += 1  # LS109
        return torch.stack(rows) * min(1.0, self.calls / 100)


def collate_that_counts():
    team = lockstep.join(seed=1)
    model = nn.Linear(6, 3)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    data = DataLoader(ByWorker(), 16, num_workers=2, collate_fn=Growing())
    model, optimizer, loader = team.prepare(model, optimizer, data)
    for batch in loader:
        for x in batch.shards:
            team.backward(model(x).square().mean())
        optimizer.step()
        optimizer.zero_grad()


def ema_teacher_moved_inside():
    team, model, optimizer, loader = start()
    import copy

    teacher = copy.deepcopy(model)
    for batch in loader:
        for x, y, _ in batch.shards:
            with torch.no_grad():
                for t, s in zip(teacher.parameters(), model.parameters(), strict=True):
                    t.mul_(0.99).add_(s, alpha=0.01)  # LS106
            team.backward(F.cross_entropy(model(x), y) + F.mse_loss(model(x), teacher(x)))
        optimizer.step()
        optimizer.zero_grad()


def confusion_of_this_process():
    team, model, optimizer, loader = start()
    confusion = torch.zeros(3, 3)
    for batch in loader:
        for x, y, _ in batch.shards:
            logits = model(x)
            team.backward(F.cross_entropy(logits, y))
            for t, p in zip(y.view(-1), logits.argmax(1).view(-1), strict=True):
                confusion[t.long(), p.long()] += 1  # LS103
        optimizer.step()
        optimizer.zero_grad()
    print(confusion.diag() / confusion.sum(1))


def correct_by_class_in_a_dict():
    team, model, optimizer, loader = start()
    right = {"a": 0, "b": 0, "c": 0}
    for batch in loader:
        for x, y, _ in batch.shards:
            logits = model(x)
            team.backward(F.cross_entropy(logits, y))
            for name, hit in zip("abc", logits.argmax(1) == y, strict=False):
                right[name] += int(hit)  # LS103
        optimizer.step()
        optimizer.zero_grad()
    for name, count in right.items():
        print(name, count)


def evaluation_by_counters():
    team, model, _, _ = start()
    test = DataLoader(TensorDataset(torch.randn(40, 6), torch.arange(40) % 3), 8)
    correct = 0
    test_loss = 0.0
    with team.evaluate(model, test) as batches:
        for x, y in batches:  # LS306
            output = model(x)
            test_loss += F.cross_entropy(output, y, reduction="sum").item()  # LS102
            correct += output.argmax(1).eq(y).sum().item()  # LS102
    test_loss /= 40
    print(test_loss, correct)


def evaluation_by_counters_in_one_loop():
    team, model, _, _ = start()
    test = DataLoader(TensorDataset(torch.randn(40, 6), torch.arange(40) % 3), 8)
    names, shown, correct = iter(range(5)), [], 0
    with team.evaluate(model, test) as evaluation:
        for number, (x, y) in enumerate(evaluation.shards):  # LS107
            correct += model(x).argmax(1).eq(y).sum().item()  # LS102
            evaluation.add(number=float(number))
            shown.append(next(names))  # LS103
    print(correct, shown)


def predictions_of_an_evaluation():
    team, model, _, _ = start()
    predictions = []
    with team.evaluate(model, DataLoader(torch.randn(40, 6), 8)) as evaluation:
        for batch in evaluation:
            for x in batch.shards:
                predictions.extend(model(x).argmax(1).tolist())  # LS103
    np.savetxt("predictions.txt", predictions)


class Trainer:
    def __init__(self, team, model, optimizer, loader):
        self.team, self.model, self.optimizer, self.loader = team, model, optimizer, loader
        self.seen = 0

    def step(self, x, y):
        loss = F.cross_entropy(self.model(x), y)
        self.team.backward(loss)
        self.seen += len(x)  # LS104
        return loss

    def fit(self):
        for batch in self.loader:
            for x, y, _ in batch.shards:
                self.step(x, y)
            for group in self.optimizer.param_groups:
                group["lr"] = 0.1 / (1 + self.seen)
            self.optimizer.step()
            self.optimizer.zero_grad()


def trainer_that_counts_samples():
    Trainer(*start()).fit()


def over_shards(loader, optimizer, do):
    for batch in loader:
        for shard in batch.shards:
            do(*shard)
        optimizer.step()
        optimizer.zero_grad()


def body_in_a_closure():
    team, model, optimizer, loader = start()
    seen = 0

    def do(x, y, _):
        nonlocal seen
        seen += len(x)  # LS102
        team.backward(F.cross_entropy(model(x), y) / (1 + seen / 1000))

    over_shards(loader, optimizer, do)


def shards_of(loader, optimizer):
    for batch in loader:
        yield from batch.shards
        optimizer.step()
        optimizer.zero_grad()


def body_of_a_generator():
    team, model, optimizer, loader = start()
    smooth = None
    for x, y, _ in shards_of(loader, optimizer):
        loss = F.cross_entropy(model(x), y)
        smooth = loss.item() if smooth is None else 0.9 * smooth + 0.1 * loss.item()  # LS101
        team.backward(loss / smooth)


def loss_balanced_by_history():
    team, model, optimizer, loader = start()
    history = collections.defaultdict(list)
    for batch in loader:
        for x, y, _ in batch.shards:
            out = model(x)
            parts = {"ce": F.cross_entropy(out, y), "l2": out.square().mean()}
            for name, part in parts.items():
                history[name].append(part.item())  # LS103
            team.backward(sum(part / np.mean(history[name]) for name, part in parts.items()))
        optimizer.step()
        optimizer.zero_grad()


def best_of_the_shards():
    team, model, optimizer, loader = start()
    best = float("inf")
    for batch in loader:
        for x, y, _ in batch.shards:
            loss = F.cross_entropy(model(x), y)
            team.backward(loss)
            if loss.item() < best:
                best = loss.item()  # LS101
        optimizer.step()
        optimizer.zero_grad()
    print("best", best)


def loader_not_prepared():
    team = lockstep.join(seed=1)
    model = nn.Linear(6, 3)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    loader = DataLoader(torch.randn(64, 6), 16)
    model, optimizer = team.prepare(model, optimizer)
    for batch in loader:  # LS303
        for x in batch.shards:
            team.backward(model(x).square().mean())
        optimizer.step()
        optimizer.zero_grad()


def model_before_join():
    model = nn.Linear(6, 3)  # LS304
    team = lockstep.join(seed=1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    model, optimizer, loader = team.prepare(model, optimizer, DataLoader(torch.randn(64, 6), 16))
    for batch in loader:
        for x in batch.shards:
            team.backward(model(x).square().mean())
        optimizer.step()
        optimizer.zero_grad()


def throughput_and_a_counter():
    team, model, optimizer, loader = start()
    begin, samples = time.time(), 0
    for batch in loader:
        for x, y, _ in batch.shards:
            team.backward(F.cross_entropy(model(x), y))
            samples += len(x)  # LS102
        optimizer.step()
        optimizer.zero_grad()
        if samples > 10_000:
            break
    print(f"{time.time() - begin:.1f} s")


class SmoothedValue:
    def __init__(self, window=20):
        self.window, self.total, self.count = collections.deque(maxlen=window), 0.0, 0

    def update(self, value):
        self.window.append(value)
        self.count += 1
        self.total += value

    def __str__(self):
        return f"{self.total / self.count:.4f}"


class MetricLogger:
    def __init__(self):
        self.meters = collections.defaultdict(SmoothedValue)

    def update(self, **values):
        for name, value in values.items():
            self.meters[name].update(value.item())  # LS103

    def __str__(self):
        return ", ".join(f"{name}: {meter}" for name, meter in self.meters.items())


def metric_logger_of_detection():
    team, model, optimizer, loader = start()
    logger = MetricLogger()
    for batch in loader:
        for x, y, _ in batch.shards:
            losses = {"ce": F.cross_entropy(model(x), y), "l2": model(x).square().mean()}
            team.backward(sum(losses.values()))
            logger.update(**losses)
        optimizer.step()
        optimizer.zero_grad()
    print(logger)


def samples_counted_by_itertools():
    import itertools

    team, model, optimizer, loader = start()
    counter = itertools.count(1)
    for batch in loader:
        for x, y, _ in batch.shards:
            team.backward(F.cross_entropy(model(x), y) / next(counter))  # LS111
        optimizer.step()
        optimizer.zero_grad()


def temperature_set_inside():
    team, model, optimizer, loader = start()
    for batch in loader:
        for x, y, _ in batch.shards:
            model.tau = getattr(model, "tau", 1.0) * 0.99  # LS104
            team.backward(F.cross_entropy(model(x) / model.tau, y))
        optimizer.step()
        optimizer.zero_grad()


ticks = 0


def tick(by=1):
    global ticks
    ticks += by  # LS102


def a_global_counter():
    team, model, optimizer, loader = start()
    for batch in loader:
        for x, y, _ in batch.shards:
            tick()
            team.backward(F.cross_entropy(model(x), y) * min(1.0, ticks / 10))
        optimizer.step()
        optimizer.zero_grad()


class AnnealedCodes(nn.Module):
    def __init__(self, width, codes):
        super().__init__()
        self.logits, self.codes = nn.Linear(width, codes), nn.Embedding(codes, width)
        self.calls = 0

    def forward(self, z):
        self.calls += 1  # LS104
        return F.gumbel_softmax(self.logits(z), tau=max(0.5, 0.999**self.calls)) @ self.codes.weight


class Autoencoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.encode, self.quantize, self.decode = nn.Linear(6, 4), AnnealedCodes(4, 8), nn.Linear(4, 6)

    def forward(self, x):
        return self.decode(self.quantize(self.encode(x)))


def counter_in_a_module_of_a_module():
    team, _, _, loader = start()
    model = Autoencoder()
    model, optimizer = team.prepare(model, torch.optim.Adam(model.parameters()))
    for batch in loader:
        for x, _, _ in batch.shards:
            team.backward(F.mse_loss(model(x), x))
        optimizer.step()
        optimizer.zero_grad()


class SeededDropout(nn.Module):
    def __init__(self):
        super().__init__()
        self.draws = torch.Generator().manual_seed(0)

    def forward(self, x):
        return x * (torch.rand(x.shape, generator=self.draws) > 0.5)  # LS105


def generator_in_a_module_of_a_sequential():
    team, _, _, loader = start()
    model = nn.Sequential(SeededDropout(), nn.Linear(6, 3))
    model, optimizer = team.prepare(model, torch.optim.SGD(model.parameters(), lr=0.1))
    for batch in loader:
        for x, y, _ in batch.shards:
            team.backward(F.cross_entropy(model(x), y))
        optimizer.step()
        optimizer.zero_grad()


def best_in_a_list_of_one():
    team, model, optimizer, loader = start()
    best = [float("inf")]
    for _ in team.epochs(3):
        for batch in loader:
            for x, y, _ in batch.shards:
                loss = F.cross_entropy(model(x), y)
                team.backward(loss)
                best[0] = min(best[0], loss.item())  # LS103
            optimizer.step()
            optimizer.zero_grad()
        if best[0] < 0.1:
            break


def confusion_by_a_function_of_numpy():
    team, model, _, _ = start()
    confusion = np.zeros((3, 3), dtype=int)
    test = DataLoader(TensorDataset(torch.randn(64, 6), torch.arange(64) % 3), 16)
    with team.evaluate(model, test) as evaluation:
        for batch in evaluation:
            for x, y in batch.shards:
                np.add.at(confusion, (y.numpy(), model(x).argmax(1).numpy()), 1)  # LS103
    team.print(np.diag(confusion).sum() / confusion.sum())


def sum_by_an_out_argument():
    team, model, optimizer, loader = start()
    total = torch.zeros(())
    for batch in loader:
        for x, y, _ in batch.shards:
            loss = F.cross_entropy(model(x), y)
            team.backward(loss)
            torch.add(total, loss.detach(), out=total)  # LS103
        optimizer.step()
        optimizer.zero_grad()
    team.print(total / len(loader))


def losses_of(team, model, batch):
    for x, y, _ in batch.shards:
        loss = F.cross_entropy(model(x), y)
        team.backward(loss)
        yield loss.item()


def sum_of_what_a_generator_yields():
    team, model, optimizer, loader = start()
    for batch in loader:
        if sum(losses_of(team, model, batch)) < 100:  # LS103
            optimizer.step()
        optimizer.zero_grad()


def add_to(totals, name, value):
    totals[name] = totals[name] + value  # LS103


def totals_by_a_partial_function():
    team, model, optimizer, loader = start()
    totals = {"loss": 0.0, "samples": 0}
    add_loss = functools.partial(add_to, totals, "loss")
    for batch in loader:
        for x, y, _ in batch.shards:
            loss = F.cross_entropy(model(x), y)
            team.backward(loss)
            add_loss(loss.item())
            add_to(totals, "samples", len(x))
        optimizer.step()
        optimizer.zero_grad()
    team.print(totals["loss"] / totals["samples"])


class Average:
    def __init__(self, model):
        self.module = copy.deepcopy(model).eval()

    @torch.no_grad()
    def update(self, model):
        for a, p in zip(self.module.state_dict().values(), model.state_dict().values(), strict=True):
            a.copy_(0.99 * a + 0.01 * p)


def average_that_nothing_reads_yet():
    team, model, optimizer, loader = start()
    average = Average(team.unwrap(model))
    for batch in loader:
        for x, y, _ in batch.shards:
            team.backward(F.cross_entropy(model(x), y))
            average.update(model)  # LS103
        optimizer.step()
        optimizer.zero_grad()
    if team.is_main:
        torch.save(average.module.state_dict(), "average.pt")


class SeededByWorker(Dataset):
    def __len__(self):
        return 64

    def __getitem__(self, index):
        info = get_worker_info()  # LS107
        seed = 0 if info is None else info.id
        draws = torch.Generator().manual_seed(1000 * seed + index)
        return torch.randn(6, generator=draws), index % 3


def data_seeded_by_the_worker():
    team, model, optimizer, _ = start()
    loader = team.prepare(DataLoader(SeededByWorker(), 16, num_workers=2))
    for batch in loader:
        for x, y in batch.shards:
            team.backward(F.cross_entropy(model(x), y))
        optimizer.step()
        optimizer.zero_grad()


def words_numbered_by_a_set():
    team, model, optimizer, _ = start()
    text = ["the", "cat", "sat", "on", "the", "mat"]
    number = {}
    words = set(text)
    for word in words:  # LS305
        number[word] = len(number)
    loader = team.prepare(DataLoader([torch.full((6,), float(number[word])) for word in text], 3))
    for batch in loader:
        for x in batch.shards:
            team.backward(model(x).square().mean())
        optimizer.step()
        optimizer.zero_grad()


def accuracy_of_the_last_shard_in_the_state():
    team, model, optimizer, loader = start()
    best = team.state(accuracy=0.0)
    for _ in team.epochs(3):
        for batch in loader:
            for x, y, _ in batch.shards:
                output = model(x)
                accuracy = (output.argmax(1) == y).float().mean().item()  # LS101
                team.backward(F.cross_entropy(output, y))
            optimizer.step()
            optimizer.zero_grad()
        if accuracy > best.accuracy:
            best.accuracy = accuracy
