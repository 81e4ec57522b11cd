"""Trainings for ``test_fsdp``: the same under every strategy."""

import itertools
import os
import time

import torch
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import Shard, distribute_tensor
from torch.nn.utils import clip_grad
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn
from torch.utils.data import DataLoader, TensorDataset

import lockstep
from lockstep._sync import norms
from lockstep._world.comm.dtensors import full_tensor, is_dtensor, to_local
from lockstep._world.comm.group import default_group

NUM_STEPS = 8


class Block(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.inner, self.norm, self.dropout = nn.Linear(width, width), nn.BatchNorm1d(width), nn.Dropout(0.1)

    def forward(self, x):
        return x + self.dropout(torch.tanh(self.norm(self.inner(x))))


class Model(nn.Module):
    """Widths that no number of processes divides, a frozen layer, a buffer, and a weight that two
    layers share."""

    def __init__(self):
        super().__init__()
        self.first = nn.Linear(5, 7)
        self.blocks = nn.ModuleList(Block(7) for _ in range(3))
        self.tail = nn.Sequential(nn.Linear(7, 3), nn.Tanh(), nn.Linear(3, 7), nn.Linear(7, 7))
        self.tail[3].weight = self.blocks[0].inner.weight
        self.frozen = nn.Linear(7, 7).requires_grad_(False)
        self.last = nn.Linear(7, 2)
        self.skipped = None
        """The number of a block that is left out."""
        self.chosen = None
        """The number of the block whose result alone is taken, although all run."""

    def forward(self, x):
        x = self.first(x)
        if self.chosen is not None:
            x = [block(x) for block in self.blocks][self.chosen]
        else:
            for number, block in enumerate(self.blocks, 1):
                x = block(x) if number != self.skipped else x
        return self.last(self.frozen(self.tail(x)))


class Drifting(torch.optim.AdamW):
    """AdamW, which keeps its parameters, averages of their gradients, and a count in attributes."""

    def __init__(self, groups, lr):
        super().__init__(groups, lr)
        self.mine = [parameter for group in self.param_groups for parameter in group["params"]]

    @torch.no_grad()
    def step(self, closure=None):
        super().step(closure)
        if not hasattr(self, "drifts"):
            self.drifts, self.count = [torch.zeros_like(parameter) for parameter in self.mine], 0
        self.count += 1
        for parameter, drift in zip(self.mine, self.drifts, strict=True):
            if parameter.grad is not None:
                parameter.sub_(drift.mul_(0.9).add_(parameter.grad), alpha=0.001 * self.count)


def made():
    torch.manual_seed(0)
    model = Model().double()
    wide = [p for p in model.parameters() if p.dim() > 1]
    narrow = [p for p in model.parameters() if p.dim() == 1]
    optimizer = Drifting([{"params": wide, "weight_decay": 0.1}, {"params": narrow, "lr": 0.02}], lr=0.01)
    return model, optimizer, torch.optim.lr_scheduler.StepLR(optimizer, 3, 0.5)


class ByHand:
    """An average of the weights that the script itself takes."""

    def __init__(self, model):
        self.values = {name: p.detach().clone() for name, p in model.named_parameters()}

    @torch.no_grad()
    def update(self, model):
        for name, p in model.named_parameters():
            self.values[name].mul_(0.9).add_(p, alpha=0.1)

    def state_dict(self):
        return {"values": self.values}

    def load_state_dict(self, state):
        self.values = state["values"]


def data():
    drawn = torch.Generator().manual_seed(1)
    x = torch.randn(68, 5, generator=drawn, dtype=torch.float64)
    return TensorDataset(x, torch.stack([x.sum(1), x.prod(1)], 1))


def numbers(model, optimizer, average):
    """All values of a model, its optimizer and its average, whole."""
    found = {
        f"{kind}{name}": full_tensor(value.detach()).tolist()
        for kind, each in (("", model), ("average: ", average))
        for name, value in [*each.named_parameters(), *each.named_buffers()]
    }
    for index, slots in optimizer.state_dict()["state"].items():
        found.update({f"{index}.{name}": full_tensor(value).tolist() for name, value in slots.items()})
    return found


def train(die_after=None, weight=None):
    """Two epochs with clipping and an evaluation. Returns what came of it."""
    with lockstep.join(checkpoint_every=die_after or "1h") as team:
        model, optimizer, schedule = made()
        whole = list(model.parameters())
        average = AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(0.7), use_buffers=True)
        loader = DataLoader(data(), 16, shuffle=True, drop_last=True)
        model, optimizer, schedule, average, loader = team.prepare(model, optimizer, schedule, average, loader)
        average.eval()
        by_hand = ByHand(model)
        team.register("an object", by_hand)
        summed = team.register("a dict", ByHand(model).values)
        single = team.register("a tensor", model.last.weight.detach().clone())
        norms = []
        for _ in team.epochs(2):
            for batch in loader:
                if die_after is not None and team.step > die_after:
                    _die_with_a_checkpoint(team, die_after)
                for x, y in batch.shards:
                    # with a graph, which no backward pass goes through
                    taught = average(x).detach()
                    loss = nn.functional.mse_loss(model(x), y) + 0.1 * nn.functional.mse_loss(model(x), taught)
                    team.backward(loss, weight=None if weight is None else weight * float(len(x)))
                model(torch.eye(5, dtype=torch.float64))  # nor through this one
                norms.append(float(team.clip_grad_norm_(model.parameters(), 1.0)))
                optimizer.step()
                schedule.step()
                optimizer.zero_grad()
                average.update_parameters(model)
                by_hand.update(model)
                for name, value in by_hand.values.items():
                    summed[name].add_(value)
                single.add_(by_hand.values["last.weight"])
            with team.evaluate([model, average], DataLoader(data(), 10)) as evaluation:
                for batch in evaluation:
                    for x, y in batch.shards:
                        batch.add(loss=nn.functional.mse_loss(model(x), y))
                        batch.add(average=nn.functional.mse_loss(average(x), y))
        parts = sum(to_local(p).numel() for p in model.parameters()) / sum(p.numel() for p in model.parameters())
        named = [*model.named_parameters(), *average.named_parameters()]
        by_hand = [*by_hand.values.items(), *summed.items(), ("single", single)]
        spread = [name for name, p in [*named, *by_hand] if not is_dtensor(p)]
        return {
            "numbers": numbers(model, optimizer, average),
            "by hand": [(name, full_tensor(value).tolist()) for name, value in by_hand],
            "norms": norms,
            "evaluated": evaluation["loss"] + evaluation["average"],
            "part": parts,
            "whole": sum(p.untyped_storage().nbytes() for p in whole),
            "not spread": spread,
            "rates": [group["lr"] for group in optimizer.param_groups],
            "step": team.step,
        }


def _die_with_a_checkpoint(team, step):
    deadline = time.monotonic() + 100
    while not (team.run_dir / "checkpoints" / f"step-{step:08d}").exists():
        assert time.monotonic() < deadline, "no checkpoint came"
        time.sleep(0.005)
    os._exit(7)


def keep_best():
    """The weights, as they are, and as they are read from the best ones, a checkpoint, and a file
    of the script's own; and the run's directory."""
    with lockstep.join(checkpoint_every="1h") as team:
        model, optimizer, _ = made()
        model, optimizer, loader = team.prepare(model, optimizer, DataLoader(data(), 16, drop_last=True))
        average = team.register("average by hand", ByHand(model).values)
        for batch in loader:
            for x, y in batch.shards:
                team.backward(nn.functional.mse_loss(model(x), y))
            optimizer.step()
            optimizer.zero_grad()
            for name, p in model.named_parameters():
                average[name].mul_(0.9).add_(p.detach(), alpha=0.1)
        team.best(1.0)
        team.save(model.state_dict(), team.run_dir / "weights.pt")
        weights = {name: full_tensor(value.detach()).tolist() for name, value in model.state_dict().items()}
        run_dir = team.run_dir
    read = (lockstep.load_weights(run_dir / "best"), lockstep.load_weights(run_dir), torch.load(run_dir / "weights.pt"))
    return weights, [{name: value.tolist() for name, value in each.items()} for each in read], str(run_dir.absolute())


LOOPS = {
    "the first": lambda number: number < 1,
    "the first three": lambda number: number < 3,
    "odd ones": lambda number: number % 2 == 1,
    "all but the first two": lambda number: number > 1,
    "the last": lambda number: number == 4,
    "none": lambda number: False,
}


def evaluate_in_part():
    """The losses over some of five batches, by the choice; the loop is left after the last that is
    chosen."""
    with lockstep.join() as team:
        model = team.prepare(made()[0])
        x, y = data().tensors
        found = {}
        for name, is_chosen in LOOPS.items():
            with team.evaluate(model, DataLoader(TensorDataset(x[:20], y[:20]), 4)) as evaluation:
                for number, batch in enumerate(evaluation):
                    team.barrier()
                    if not is_chosen(number):
                        continue
                    for inputs, targets in batch.shards:
                        batch.add(loss=nn.functional.mse_loss(model(inputs), targets))
                    if number == 3 or not any(map(is_chosen, range(number + 1, 5))):
                        for _ in range(number % 2):
                            for inputs, targets in batch.shards:
                                batch.add(again=nn.functional.mse_loss(model(inputs), targets))
                        break
            found[name] = dict(evaluation.results)
        return found


def train_narrow(kind=torch.optim.SGD):
    """The loss over all data before, between and after 24 steps, in the run's precision."""
    with lockstep.join(checkpoint_every="off") as team:
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(5, 32), nn.ReLU(), nn.Linear(32, 32), nn.ReLU(), nn.Linear(32, 2))
        optimizer = kind(model.parameters(), lr=0.02)
        x, y = data().tensors
        numbers = TensorDataset(x.float(), y.float())
        model, optimizer, loader = team.prepare(model, optimizer, DataLoader(numbers, 16, drop_last=True))
        found = []
        for _ in team.epochs(6):
            with team.evaluate(model, DataLoader(numbers, 34)) as evaluation:
                for batch in evaluation:
                    for inputs, targets in batch.shards:
                        batch.add(loss=nn.functional.mse_loss(model(inputs), targets))
            found.append(evaluation["loss"])
            for batch in loader:
                for inputs, targets in batch.shards:
                    team.backward(nn.functional.mse_loss(model(inputs), targets))
                optimizer.step()
                optimizer.zero_grad()
        return found


def try_to(what):
    """What goes wrong, by name."""
    with lockstep.join(checkpoint_every="off") as team:
        model, optimizer, _ = made()
        loader = DataLoader(data(), 16, drop_last=what != "few samples")
        if what == "used optimizer":
            model(torch.ones(2, 5, dtype=torch.float64)).sum().backward()
            optimizer.step()
        if what == "fused":
            optimizer = torch.optim.AdamW(model.parameters(), fused=True)
        if what == "whole tensors":
            optimizer = torch.optim.Muon([model.first.weight])
        if what == "other blocks":
            model.skipped = 2 + team.rank
        if what == "other results":
            model.chosen = 1 + team.rank
        if what == "scalar":
            model.scale = nn.Parameter(torch.ones(()))
        if what == "sharded before":
            torch.distributed.fsdp.fully_shard(model)
        if what == "shared parameters":
            other = nn.Linear(2, 2)
            other.weight = model.first.weight
            team.prepare(model, other)
        before = model.blocks[1].inner.bias
        model, loader = team.prepare(model, loader)
        if what == "fused later":
            optimizer = torch.optim.AdamW(model.parameters(), fused=True)
        optimizer = team.prepare(optimizer)
        for batch in loader:
            for x, y in batch.shards:
                loss = nn.functional.mse_loss(model(x), y)
                if what == "a penalty":
                    loss = loss + model.blocks[1].inner.bias.full_tensor().square().sum()
                if what == "a penalty of before":
                    loss = loss + before.square().sum()
                if what == "a penalty of parts":
                    loss = loss + model.blocks[1].inner.bias.square().sum()
                team.backward(loss, **({"create_graph": True} if what == "a graph of gradients" else {}))
            optimizer.step()
            optimizer.zero_grad()


def change_after_the_last_epoch(whose):
    """Train, and change the weights behind the loop over epochs: on all ranks, or the rows of one
    rank."""
    with lockstep.join() as team:
        torch.manual_seed(0)
        model = nn.Linear(3, 4)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        model, optimizer, loader = team.prepare(model, optimizer, DataLoader(TensorDataset(torch.randn(8, 3)), 4))
        for _ in team.epochs(1):
            for batch in loader:
                for (x,) in batch.shards:
                    team.backward(model(x).square().mean())
                optimizer.step()
                optimizer.zero_grad()
        with torch.no_grad():
            for parameter in model.parameters():
                if whose == "all" or team.rank == whose:
                    to_local(parameter).mul_(0.5)
        weights = {name: full_tensor(parameter).detach() for name, parameter in model.named_parameters()}
        return weights, str(team.run_dir)


DTYPES = {
    "float32": [torch.float32],
    "bfloat16": [torch.bfloat16],
    "complex64": [torch.complex64],
    "two": [torch.float32, torch.float64],
}


def clip(shapes, norm_type, most_bytes):
    """For each dtype the total norms of sharded gradients and the gradients when they are
    clipped, and the same of whole gradients. ``most_bytes``: that a rank gathers together."""
    found = {}
    functions = nn.utils.get_total_norm, clip_grad._get_total_norm
    before, norms._MOST_BYTES = norms._MOST_BYTES, most_bytes
    try:
        with lockstep.join(strategy="fsdp", checkpoint_every="off") as team:
            mesh = DeviceMesh.from_group(default_group(), team.device.type)
            for name, dtypes in DTYPES.items():
                kinds = list(zip(shapes, itertools.cycle(dtypes), strict=False))
                draw = torch.Generator().manual_seed(1)
                wholes = [torch.randn(shape, generator=draw, dtype=dtype) for shape, dtype in kinds]
                parts = [distribute_tensor(whole.clone(), mesh, [Shard(0)], src_data_rank=None) for whole in wholes]
                found[name] = [_clipped(gradients, wholes, norm_type) for gradients in (parts, wholes)]
    finally:
        norms._MOST_BYTES = before
    assert (nn.utils.get_total_norm, clip_grad._get_total_norm) == functions, "PyTorch's own are not restored"
    return found


def _clipped(gradients, wholes, norm_type):
    parameters = [nn.Parameter(torch.empty_like(gradient)) for gradient in gradients]
    for parameter, gradient in zip(parameters, gradients, strict=True):
        parameter.grad = gradient.clone()
    totals = [nn.utils.get_total_norm(some, norm_type) for some in (gradients, gradients[:1], [*gradients[1:], wholes[0]])]
    totals.append(nn.utils.clip_grad_norm_(parameters, 0.5, norm_type))
    return list(map(full_tensor, [*totals, *(parameter.grad for parameter in parameters)]))
