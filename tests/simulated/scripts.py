"""Small trainings for the simulated device. Each function is one rank's script."""

import dataclasses
import functools
import hashlib
import json
import os
import socket
import sys
import types
from pathlib import Path

import torch
from torch import nn
from torch.nn.utils.rnn import pack_sequence
from torch.utils.checkpoint import checkpoint
from torch.utils.data import DataLoader, TensorDataset

import lockstep


def account():
    """What the simulation has counted and reported in this process; on the CPU: nothing."""
    device = getattr(torch, "sim", None)
    if device is None:
        return {"reports": [], "waits": {}, "launches": {}}
    return {name: getattr(device.library, name)() for name in ("reports", "waits", "launches")}


def digest(tensors):
    """Of whole tensors, also where each rank has a part."""
    text = hashlib.sha256()
    for name, tensor in sorted(tensors.items()):
        text.update(name.encode())
        whole = tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor
        text.update(whole.detach().cpu().reshape(-1).view(torch.uint8).numpy().tobytes())
    return text.hexdigest()


def data(length=24):
    generator = torch.Generator().manual_seed(5)
    return TensorDataset(torch.randn(length, 1, 8, 8, generator=generator), torch.arange(length) % 3)


def network():
    torch.manual_seed(0)
    above = [nn.ReLU(), nn.Flatten(), nn.Dropout(0.5), nn.Linear(144, 3)]
    return nn.Sequential(nn.Conv2d(1, 4, 3, bias=False), nn.BatchNorm2d(4), *above)


def train(epochs=2, num_workers=0, pinned=True):
    """A CNN with BatchNorm, dropout and momentum. A digest of all its state, and what the
    simulation reports."""
    with lockstep.join() as team:
        model = network()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
        loader = DataLoader(data(), 8, shuffle=True, num_workers=num_workers, pin_memory=pinned)
        model, optimizer, loader = team.prepare(model, optimizer, loader)
        losses = []
        for _ in team.epochs(epochs):
            for batch in loader:
                for images, labels in batch.shards:
                    loss = nn.functional.cross_entropy(model(images), labels)
                    team.backward(loss)
                    batch.add(loss=loss)
                optimizer.step()
                optimizer.zero_grad()
                losses.append(batch["loss"])
        state = dict(model.state_dict())
        for index, slots in optimizer.state_dict()["state"].items():
            state[f"momentum {index}"] = slots["momentum_buffer"]
        if epochs == 2:
            state["losses of the last epoch"] = torch.tensor(losses[-3:])
        return {
            "digest": digest(state),
            "device": str(team.device),
            "backend": team._transport.backend,
            "is pinned": images.is_pinned(),
            "opens a context": getattr(torch, "sim", None) is not None and torch.sim.is_initialized(),
            **account(),
        }


def on_hosts(ranks_per_host, fn, *args):
    """What ``fn(*args)`` returns where this rank is on one of several hosts, as the launcher and
    the host's name tell."""
    rank, world_size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    os.environ |= {
        "LOCAL_RANK": str(rank % ranks_per_host),
        "LOCAL_WORLD_SIZE": str(ranks_per_host),
        "GROUP_RANK": str(rank // ranks_per_host),
        "GROUP_WORLD_SIZE": str(world_size // ranks_per_host),
    }
    socket.gethostname = lambda: f"host{rank // ranks_per_host}"
    return fn(*args)


def send_gradients(steps=4):
    """The digest of a training in one bucket, its bytes, and the account of its last step."""
    with lockstep.join(checkpoint_every="off", journal_every=0) as team:
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(64, 128), nn.Tanh(), nn.Linear(128, 64))
        num_bytes = sum(parameter.nbytes for parameter in model.parameters())
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
        batches = [torch.randn(16, 64) for _ in range(steps)]
        model, optimizer, loader = team.prepare(model, optimizer, batches)
        for batch in loader:
            if team.step == steps and team.device.type != "cpu":  # the last
                begin_to_count()
            for inputs in batch.shards:
                team.backward(model(inputs).square().mean())
            found = account()
            optimizer.step()
            optimizer.zero_grad()
        sent = getattr(torch, "sim", None) and torch.sim.library.sent()
        return {"digest": digest(model.state_dict()), "bytes": num_bytes, "sent": sent, **found}


def fail_on_one_rank():
    with lockstep.join() as team:
        model, loader = team.prepare(nn.Linear(2, 1), [torch.ones(4, 2)] * 4)
        for batch in loader:
            for inputs in batch.shards:
                if team.rank == 1 and team.step == 2:
                    raise ValueError("planted")
                team.backward(model(inputs).mean())


def deep(num_blocks=8):
    """As many kinds of kernels, and buffers, as an image model has."""
    torch.manual_seed(0)
    blocks = [[nn.Conv2d(4, 4, 3, padding=1, bias=False), nn.BatchNorm2d(4), nn.ReLU()] for _ in range(num_blocks)]
    layers = [layer for block in blocks for layer in block]
    return nn.Sequential(nn.Conv2d(1, 4, 1), *layers, nn.Flatten(), nn.Linear(256, 3))


def begin_to_count():
    torch.accelerator.synchronize()
    torch.sim.library.reset()


def count_plain(num_shards, num_blocks, steps=4):
    """The account of a step of a plain loop over the same shards, on data that is on the device."""
    model = deep(num_blocks).to("sim")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    for step in range(steps):
        if step == steps - 1:
            begin_to_count()
        for _ in range(num_shards):
            images, labels = torch.ones(4, 1, 8, 8, device="sim"), torch.zeros(4, dtype=torch.int64, device="sim")
            nn.functional.cross_entropy(model(images), labels).backward()
        optimizer.step()
        optimizer.zero_grad()
    return account()


def count(num_blocks=8, steps=6, reads=True, clips=False):
    """The account of a step of lockstep's loop, from its beginning to that of the next, and that of
    a plain loop.

    ``reads``: a value is added to the batch, and logged. ``clips``: gradients are clipped.
    """
    with lockstep.join() as team:
        model = deep(num_blocks)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
        model, optimizer, loader = team.prepare(model, optimizer, DataLoader(data(8 * steps), 8, pin_memory=True))
        found = None
        for batch in loader:
            if team.step == steps - 1:
                begin_to_count()
            if team.step == steps:
                found = account()
            for images, labels in batch.shards:
                loss = nn.functional.cross_entropy(model(images), labels)
                team.backward(loss)
                if reads:
                    batch.add(loss=loss)
            if reads:
                team.log(loss=batch["loss"])
            if clips:
                team.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad()
        num_shards = 2 // team.world_size  # V is 2
    return {"step": found, "plain": count_plain(num_shards, num_blocks)}


def train_weighted(steps=6):
    """Losses that are means over the tokens of a shard, of which one has none: its loss is NaN, and
    its weight 0."""
    with lockstep.join(log_every=1, journal_every=0) as team:
        torch.manual_seed(0)
        model = nn.Linear(4, 2)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
        mask = torch.arange(4 * steps * 3).view(-1, 3).remainder(5).sign().float()
        mask[4:6] = 0.0
        tokens = torch.randn(4 * steps, 3, 4)
        model, optimizer, loader = team.prepare(
            model, optimizer, DataLoader(TensorDataset(tokens, mask), 4, pin_memory=True)
        )
        means, waits = [], {}
        for batch in loader:
            if team.step == steps - 1 and team.device.type != "cpu":
                begin_to_count()
            if team.step == steps:
                waits = account()["waits"]
            for inputs, counted in batch.shards:
                weight = counted.sum()
                loss = (model(inputs).square().mean(-1) * counted).sum() / weight
                team.backward(loss, weight=weight)
                batch.add(loss=loss, tokens=weight)
            optimizer.step()
            optimizer.zero_grad()
            means.append((batch["loss"], batch["tokens"]))
            team.log(loss=batch["loss"])
        run_dir = team.run_dir
        momentum = {f"momentum {n}": slots["momentum_buffer"] for n, slots in optimizer.state_dict()["state"].items()}
        found = digest({**model.state_dict(), **momentum})
    events = [json.loads(line) for line in (run_dir / "events.jsonl").read_text().splitlines()]
    logged = [event["values"] for event in events if event["event"] == "step"]
    return {"digest": found, "means": means, "logged": logged}, waits, account()["reports"]


def count_evaluation(num_batches):
    """The waits of an evaluation whose values and weights are on the device, and its result."""
    with lockstep.join(checkpoint_every="off") as team:
        torch.manual_seed(0)
        model = team.prepare(nn.Sequential(nn.Flatten(), nn.Linear(64, 3)))
        loader = DataLoader(data(4 * num_batches), 4, pin_memory=True)
        if team.device.type != "cpu":
            begin_to_count()
        with team.evaluate(model, loader) as evaluation:
            for images, labels in evaluation.shards:
                scores = model(images)
                hits = scores.argmax(1) == labels
                evaluation.add(loss=nn.functional.cross_entropy(scores, labels), weight=labels.sum())
                evaluation.add(classes=torch.nn.functional.one_hot(labels, 3).sum(0), hits=hits.sum(), reduction="sum")
        found = {name: str(evaluation[name]) for name in ("loss", "classes", "hits")}
        return found, account()


def gather_rows():
    """Rows of other numbers on each rank, of each dtype; and the account of gathering them."""
    with lockstep.join(checkpoint_every="off") as team:
        given = [torch.arange(6.0 * number).view(number, 3, 2) + team.rank for number in range(team.rank + 1)]
        dtypes = [torch.float32, torch.bfloat16, torch.int16, torch.bool, torch.complex64]
        parts = {dtype: [part.to(team.device, dtype) for part in given[1:]] for dtype in dtypes}
        if team.device.type != "cpu":
            begin_to_count()
        found = {str(dtype): team.all_gather_rows(of_dtype) for dtype, of_dtype in parts.items()}
        counts = account()
        assert {rows.device for rows, _ in found.values()} == {team.device}
        return {name: (rows.tolist(), slices) for name, (rows, slices) in found.items()}, counts


@dataclasses.dataclass
class Record:
    """A batch that nobody but lockstep can pin and move."""

    images: torch.Tensor
    labels: torch.Tensor


class Own:
    """A batch with ways of its own to be pinned and moved."""

    def __init__(self, images, labels):
        self.images, self.labels = images, labels

    def pin_memory(self):
        return Own(self.images.pin_memory(), self.labels.pin_memory())

    def to(self, device, non_blocking=False):
        return Own(*(part.to(device, non_blocking=non_blocking) for part in (self.images, self.labels)))


def packed(images, labels):
    """The rows of images as series, the longest first."""
    rows = [image.reshape(8, 8)[: 8 - number] for number, image in enumerate(images)]
    return pack_sequence(rows, enforce_sorted=False), labels


def _collate(kind, samples):
    return kind(torch.stack([image for image, _ in samples]), torch.stack([label for _, label in samples]))


def train_on_kind(kind, num_workers=0, steps=10, counted=7):
    """A training on batches of this kind. A digest; and the account of a step, from its beginning
    to that of the next."""
    with lockstep.join(checkpoint_every="off") as team:
        torch.manual_seed(0)
        model = nn.Linear(8, 3)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        collate = functools.partial(_collate, kind)
        loader = DataLoader(data(8 * steps), 8, collate_fn=collate, num_workers=num_workers, pin_memory=True)
        model, optimizer, loader = team.prepare(model, optimizer, loader)
        counts = None
        for batch in loader:
            if team.step == counted and team.device.type != "cpu":
                begin_to_count()
            if team.step == counted + 1:
                counts = account()
            for samples in batch.shards:
                if kind is packed:
                    series, labels = samples
                    scores = model(series.data).mean(0).expand(len(labels), 3)
                else:
                    scores, labels = model(samples.images.reshape(-1, 8, 8)).sum(1), samples.labels
                team.backward(nn.functional.cross_entropy(scores, labels))
            optimizer.step()
            optimizer.zero_grad()
        return digest(model.state_dict()), counts, account()["reports"]


def train_in_parts(steps=1):
    """A layer in two blocks that are run again in the backward pass: its gradient comes in two
    parts."""
    with lockstep.join() as team:
        torch.manual_seed(0)
        shared, last = nn.Linear(4, 4), nn.Linear(4, 1)
        model = nn.ModuleList([shared, last])
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        model, optimizer, loader = team.prepare(model, optimizer, [torch.randn(4, 4) for _ in range(steps)])
        for batch in loader:
            for inputs in batch.shards:
                hidden = inputs.requires_grad_()
                for _ in range(2):
                    hidden = checkpoint(shared, hidden, use_reentrant=True).tanh()
                team.backward(last(hidden).square().mean())
            optimizer.step()
            optimizer.zero_grad()
        return digest(model.state_dict())


class Choice(nn.Module):
    """Of two layers, one is chosen by the inputs: so parameters have gradients in some steps only,
    and on some ranks."""

    def __init__(self):
        super().__init__()
        self.both, self.left, self.right = nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(4, 4)

    def forward(self, inputs):
        side = self.left if inputs[0, 0] > 0 else self.right
        return side(self.both(inputs)).square().mean()


def choose(sides):
    """Trains with a side for each shard of each step. By step, which parameters had a gradient; and
    a digest of the weights."""
    with lockstep.join() as team:
        torch.manual_seed(0)
        model = Choice()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        batches = [torch.tensor([[side, 1.0, 2.0, 3.0] for side in of_step]) for of_step in sides]
        model, optimizer, loader = team.prepare(model, optimizer, batches)
        found = []
        for batch in loader:
            for inputs in batch.shards:
                team.backward(model(inputs))
            found.append([name for name, parameter in model.named_parameters() if parameter.grad is not None])
            optimizer.step()
            optimizer.zero_grad()
        return found, digest(model.state_dict())


def kernels():
    """What decides whether kernels give the same bits each time."""
    return {
        "mode": torch.get_deterministic_debug_mode(),
        "fills": torch.utils.deterministic.fill_uninitialized_memory,
        "cublas": os.environ.get("CUBLAS_WORKSPACE_CONFIG"),
    }


def see_kernels(mode=0, benchmark=False):
    """``kernels`` before a run, in its step, and after it, where the script has set this mode."""
    os.environ.pop("CUBLAS_WORKSPACE_CONFIG", None)  # which `lockstep run` sets; torchrun does not
    torch.set_deterministic_debug_mode(mode)
    torch.backends.cudnn.benchmark = benchmark
    found = {"before": kernels()}
    with lockstep.join() as team:
        # A layer that PyTorch would refuse on CUDA.
        model, loader = team.prepare(nn.Sequential(nn.Linear(2, 1), nn.ReflectionPad1d(0)), [torch.ones(4, 2)] * 2)
        for batch in loader:
            for inputs in batch.shards:
                team.backward(model(inputs).mean())
                found["open"] = kernels()
    return {**found, "closed": kernels()}


def train_on(products, epochs=1):
    """``train`` on the products of these names, and with these versions of cuDNN: a pair for each
    rank."""
    product, version = products[int(os.environ["RANK"])]
    torch.sim.get_device_name = lambda device=None: product
    torch.backends.cudnn.version = lambda: version
    return train(epochs)


def notices(package=None, uses=False, variable=None):
    """The codes of what a run says at its start, where the script has imported this package, or
    used the device before."""
    os.environ.pop("CUBLAS_WORKSPACE_CONFIG", None)
    if variable is not None:
        os.environ["CUBLAS_WORKSPACE_CONFIG"] = variable
    reports = Path(f"{os.getpid()}.jsonl").resolve()
    reports.touch()
    os.environ["LOCKSTEP_REPORTS"] = str(reports)
    if uses:
        torch.ones(2, 2, device="sim") @ torch.ones(2, 2, device="sim")
    with lockstep.join() as team:
        if package is not None:
            sys.modules[package] = types.ModuleType(package)
        team.prepare(nn.Linear(2, 1), [torch.ones(4, 2)] * 2)
    return [json.loads(line)["code"] for line in reports.read_text().splitlines()]


def train_with(variables, epochs=1):
    """``train`` with these environment variables."""
    os.environ.update(variables)
    return train(epochs)


def keep_on_the_device(fails_after=None, epochs=2):
    """The state of an RNN for each shard, and tensors of the script's own on both kinds of devices,
    which each step changes."""
    with lockstep.join() as team:
        torch.manual_seed(0)
        model = nn.ModuleDict({"cell": nn.Linear(7, 4), "head": nn.Linear(4, 3)})
        optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
        series = torch.sin(torch.arange(6 * 40) / 7.0).view(-1, 4)
        loader = DataLoader(TensorDataset(series[:, :3], series[:, 1:]), 6)
        model, optimizer, loader = team.prepare(model, optimizer, loader)
        hidden = team.per_shard("hidden", None)
        kept = {"sums": [torch.zeros(4, device=team.device)], "count": torch.zeros(()), "where": team.device}
        team.register("kept", kept)
        state = team.state(last=None, tree={"norms": []})
        for _ in team.epochs(epochs):
            hidden.reset()
            for batch in loader:
                for x, y in batch.shards:
                    before = x.new_zeros(len(x), 4) if hidden.value is None else hidden.value["state"]
                    after = torch.tanh(model["cell"](torch.cat([x, before], 1)))
                    # on the CPU, for whatever device
                    number = 1 if hidden.value is None else hidden.value["number"] + 1
                    hidden.value = {"state": after.detach(), "number": torch.as_tensor(number)}
                    team.backward((model["head"](after) - y).square().mean())
                optimizer.step()
                optimizer.zero_grad()
                bias = model["head"].weight.detach()[0]
                kept["sums"][0] = kept["sums"][0] + bias.to(kept["where"])
                kept["count"] = kept["count"] + 1
                state.last = bias + (state.last if state.last is not None else 0)
                state.tree = {"norms": [*state.tree["norms"][-2:], bias.norm() * sum(state.tree["norms"], bias.norm())]}
                if team.step == fails_after:
                    raise ValueError("planted")
        own = team._engine.blocks().by_rank[team.rank]
        parts = team.all_gather_object([_plain(hidden.of(shard)) for shard in own])
        tensors = {**model.state_dict(), "sums": kept["sums"][0], "last": state.last}
        tensors |= {f"norm {number}": norm for number, norm in enumerate(state.tree["norms"])}
        on_device = {str(tensor.device) for tensor in (kept["sums"][0], state.last, *state.tree["norms"])}
        return {
            "digest": digest(tensors),
            "values": [value for part in parts for value in part],
            "count": kept["count"].item(),
            "where": [on_device == {str(team.device)}, str(kept["count"].device), kept["where"] == team.device],
        }


def _plain(value):
    return value["state"].cpu().flatten().tolist(), str(value["number"])


class Refilled:
    """Ready-made batches, all in the same memory, which is pinned on a machine with the device."""

    def __init__(self, num_batches):
        self.num_batches = num_batches
        pins = getattr(torch, "sim", None) is not None
        self.memory = torch.empty(8, 4, pin_memory=pins), torch.empty(8, 1, pin_memory=pins)

    def __len__(self):
        return self.num_batches

    def __iter__(self):
        for number in range(self.num_batches):
            dice = torch.Generator().manual_seed(number)
            for memory in self.memory:
                memory.copy_(torch.randn(memory.shape, generator=dice))
            yield self.memory


def train_refilled(breaks=False):
    """A training and evaluations on batches that share their memory."""
    with lockstep.join(checkpoint_every="off") as team:
        torch.manual_seed(0)
        model = nn.Linear(4, 1)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        model, optimizer, loader, other = team.prepare(model, optimizer, Refilled(5), Refilled(5))
        found = []
        for _ in range(3):
            for batch, beside in zip(loader, other, strict=True):
                for (x, y), (z, _) in zip(batch.shards, beside.shards, strict=True):
                    team.backward((model(x) - y + z.sum(1, keepdim=True)).square().mean())
                optimizer.step()
                optimizer.zero_grad()
                if breaks and team.step % 5 == 2:
                    break
            with team.evaluate(model, Refilled(4)) as evaluation:
                for batch in evaluation:
                    for x, y in batch.shards:
                        batch.add(loss=(model(x) - y).square().mean())
                    if breaks and batch.number == 2:
                        break
            found.append(evaluation["loss"])
        return found, digest(model.state_dict()), account()["reports"]


class Towers(nn.Module):
    """Two towers side by side, of which the second runs on a stream of the script, where there are
    streams."""

    def __init__(self):
        super().__init__()
        self.towers = nn.ModuleList(nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 2)) for _ in range(2))
        self.head = nn.Linear(4, 1)

    def forward(self, inputs):
        with beside(inputs) as second:
            found = [self.towers[1](inputs)]
        found.append(self.towers[0](inputs))
        second.join(found[0])
        return self.head(torch.cat(found, 1))


SECOND_STREAMS = {}


class beside:  # noqa: N801 - a context, as torch.device is
    """A second stream, behind what the current one has been given; on the CPU: none."""

    def __init__(self, inputs):
        self.first = self.stream = None
        if not inputs.is_cpu:
            self.first = torch.accelerator.current_stream(inputs.device)
            self.stream = SECOND_STREAMS.setdefault(inputs.device, torch.Stream(inputs.device))
            self.stream.wait_stream(self.first)
            inputs.record_stream(self.stream)

    def __enter__(self):
        if self.stream is not None:
            self.stream.__enter__()
        return self

    def __exit__(self, *error):
        if self.stream is not None:
            self.stream.__exit__(*error)

    def join(self, result):
        if self.stream is not None:
            self.first.wait_stream(self.stream)
            result.record_stream(self.first)


def train_towers(steps=4):
    """A model whose forward pass uses two streams, and a value that is added on the second."""
    with lockstep.join() as team:
        torch.manual_seed(0)
        model = Towers()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
        loader = DataLoader(TensorDataset(torch.randn(8 * steps, 4), torch.randn(8 * steps, 1)), 8)
        model, optimizer, loader = team.prepare(model, optimizer, loader)
        means = []
        for batch in loader:
            for x, y in batch.shards:
                loss = (model(x) - y).square().mean()
                team.backward(loss)
                with beside(loss):
                    batch.add(loss=loss.detach())
            means.append(batch["loss"])
            optimizer.step()
            optimizer.zero_grad()
        with team.evaluate(model, loader) as evaluation:
            for x, y in evaluation.shards:
                with beside(x):
                    error = (model(x) - y).square().mean()
                    evaluation.add(error=error, weight=error.exp())
        means.append(evaluation["error"])
        return {"digest": digest(model.state_dict()), "means": means}, account()["reports"]
