"""Training loops as people write them, in lockstep's form, each wrong in one way: the comment at a line says what is found."""

import collections
import copy
import random
import time

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


def add_to(totals, name, value):
    totals[name] = totals[name] + value  # LS103


def totals_by_a_function():
    team, model, optimizer, loader = start()
    totals = {"loss": 0.0, "samples": 0}
    for batch in loader:
        for x, y, _ in batch.shards:
            loss = F.cross_entropy(model(x), y)
            team.backward(loss)
            add_to(totals, "loss", loss.item())
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
            average.update(model)  # LS106
        optimizer.step()
        optimizer.zero_grad()
    if team.is_main:
        torch.save(average.module.state_dict(), "average.pt")


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
