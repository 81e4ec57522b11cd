"""Small trainings on a GPU. Each function is one rank's script."""

import contextlib
import copy
import itertools
import json
from pathlib import Path

import torch
from places import no_blocking_copies
from torch import nn
from torch.utils.data import DataLoader, Dataset, TensorDataset

import lockstep


class Points(Dataset):
    """Samples with noise, so that fetching draws too."""

    def __init__(self, length):
        generator = torch.Generator().manual_seed(7)
        self.inputs = torch.randn(length, 6, generator=generator)
        self.targets = torch.randint(0, 3, (length,), generator=generator)

    def __len__(self):
        return len(self.inputs)

    def __getitem__(self, index):
        return self.inputs[index] + 0.1 * torch.rand(()), self.targets[index]


def train(length=40, batch_size=16, epochs=2, pin_memory=False, nan_in_step=None):
    """Two epochs with BatchNorm and dropout. What came of it, on the CPU, and where it was
    computed."""
    with lockstep.join() as team:
        model = nn.Sequential(nn.Linear(6, 8, bias=False), nn.BatchNorm1d(8), nn.ReLU(), nn.Dropout(0.3), nn.Linear(8, 3))
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
        schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 10)
        loader = DataLoader(Points(length), batch_size, shuffle=True, pin_memory=pin_memory)
        test_loader = DataLoader(Points(10), 4)
        model, optimizer, schedule, loader = team.prepare(model, optimizer, schedule, loader)
        drawn, outside, losses, means = [], [], [], []
        for _ in team.epochs(epochs):
            for batch in loader:
                for inputs, targets in batch.shards:
                    outputs = model(inputs)
                    loss = nn.functional.cross_entropy(outputs, targets)
                    if team.step == nan_in_step:
                        loss = loss * float("nan")
                    team.backward(loss)
                    batch.add(loss=loss)
                    losses.append((team.step, len(inputs), loss.detach()))
                    drawn.append(torch.rand(3, device=team.device))
                team.log(loss=batch["loss"])
                team.clip_grad_norm_(model.parameters(), 1.0)
                optimizer.step()
                schedule.step()
                optimizer.zero_grad()
                means.append((team.step, batch["loss"]))
                outside.append(torch.rand(3, device=team.device))
            with team.evaluate(model, test_loader) as evaluation:
                for batch in evaluation:
                    for inputs, targets in batch.shards:
                        batch.add(accuracy=model(inputs).argmax(1) == targets)
        found = {
            "device": str(team.device),
            "backend": team._transport.backend,
            "devices": sorted({str(t.device) for t in [inputs, outputs, *model.state_dict().values()]}),
            "output": str(outputs.dtype),
            "state": {name: tensor.cpu() for name, tensor in model.state_dict().items()},
            "losses": [(step, weight, loss.item()) for step, weight, loss in losses],
            "means": means,
            "drawn": [tensor.cpu() for tensor in drawn],
            "drawn outside": [tensor.cpu() for tensor in outside],
            "accuracy": evaluation["accuracy"],
            "sum": team.all_reduce(torch.ones(2, device=team.device)).tolist(),
            "sum on the CPU": team.all_reduce(torch.ones(2)).tolist(),
        }
        run_dir = team.run_dir
    found["events"] = [json.loads(line) for line in (run_dir / "events.jsonl").read_text().splitlines()]
    return found


@contextlib.contextmanager
def deterministic_kernels():
    """Only in its block: the process may go on with another script. The launcher has set what such
    kernels need."""
    torch.use_deterministic_algorithms(True)
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(False)


@deterministic_kernels()
def train_clipped(parts):
    """A CNN with BatchNorm on ready batches, clipped; begun anew before each part, from the state
    that the last one left."""
    generator = torch.Generator().manual_seed(3)
    batches = [(torch.randn(12, 1, 8, 8, generator=generator), torch.arange(12) % 3) for _ in range(sum(parts))]
    kept, norms, means = None, [], []
    for first, length in zip(itertools.accumulate([0, *parts]), parts, strict=False):
        with lockstep.join() as team:
            torch.manual_seed(0)
            layers = [nn.Conv2d(1, 8, 3, bias=False), nn.BatchNorm2d(8), nn.ReLU(), nn.Flatten(), nn.Linear(288, 3)]
            model = nn.Sequential(*layers)
            optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
            if kept is not None:
                model.load_state_dict(kept[0])
            model, optimizer, loader = team.prepare(model, optimizer, batches[first : first + length])
            if kept is not None:
                optimizer.load_state_dict(kept[1])
            for batch in loader:
                for inputs, targets in batch.shards:
                    loss = nn.functional.cross_entropy(model(inputs), targets)
                    team.backward(loss)
                    batch.add(loss=loss)
                norms.append(team.clip_grad_norm_(model.parameters(), 0.5).item())
                means.append(batch["loss"])
                optimizer.step()
                optimizer.zero_grad()
            kept = copy.deepcopy((model.state_dict(), optimizer.state_dict()))
    state = {name: tensor.cpu() for name, tensor in kept[0].items()}
    for index, slots in kept[1]["state"].items():
        state.update({f"optimizer {index} {name}": torch.as_tensor(value).cpu() for name, value in slots.items()})
    return {"state": state, "norms": norms, "means": means}


def train_sharded():
    """A small transformer's layer with dropout, and the digest of its whole parameters and of the
    optimizer's state."""
    with lockstep.join() as team:
        torch.manual_seed(0)
        model = nn.Sequential(
            nn.Linear(6, 32), nn.Dropout(0.3), nn.Sequential(nn.Linear(32, 33), nn.ReLU()), nn.Linear(33, 3)
        )
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
        model, optimizer, loader = team.prepare(model, optimizer, DataLoader(Points(40), 8))
        for batch in loader:
            for inputs, targets in batch.shards:
                team.backward(nn.functional.cross_entropy(model(inputs), targets))
            team.clip_grad_norm_(model.parameters(), 0.5)
            optimizer.step()
            optimizer.zero_grad()
        team.save(model.state_dict(), "weights.pt")
        team.save([slots["exp_avg"] for slots in optimizer.state_dict()["state"].values()], "means.pt")
        team.barrier()
        weights, means = (torch.load(path, map_location="cpu") for path in ("weights.pt", "means.pt"))
        return [*weights.values(), *means]


def log_without_waiting(steps):
    """Log in every step and read nothing, from the fourth step to the last but one where it is an
    error to wait."""
    with lockstep.join(log_every=4, journal_every=0) as team:
        model = nn.Linear(6, 3)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        loader = DataLoader(TensorDataset(torch.ones(4 * steps, 6)), 4, pin_memory=True)
        model, optimizer, loader = team.prepare(model, optimizer, loader)
        with contextlib.ExitStack() as watched:
            for batch in loader:
                for (inputs,) in batch.shards:
                    loss = model(inputs).square().mean()
                    team.backward(loss)
                optimizer.step()
                optimizer.zero_grad()
                if team.step == 3:
                    watched.enter_context(no_blocking_copies())
                if team.step == steps - 1:
                    watched.close()
        return team.step


def train_with_long_kernels(num_steps):
    """A forward pass that is long on the GPU, and short for the script. The split of the epoch, and
    how long it took."""
    with lockstep.join(run_dir="run") as team:
        model, large = nn.Linear(6, 1), torch.randn(4096, 4096, device=team.device)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
        model, optimizer, loader = team.prepare(model, optimizer, DataLoader(Points(8 * num_steps), 8))
        for _ in team.epochs(1):
            for batch in loader:
                for inputs, _ in batch.shards:
                    for _ in range(20):
                        large = (large @ large).clamp(-1, 1)
                    team.backward(model(inputs).square().mean() + 0 * large[0, 0])
                optimizer.step()
                optimizer.zero_grad()
    events = [json.loads(line) for line in (Path(team.run_dir) / "events.jsonl").read_text().splitlines()]
    (epoch,) = [event for event in events if event["event"] == "epoch"]
    return epoch["split"], epoch["wall_s"]


def timeout_of_the_device():
    """How long the devices' collectives may take, in seconds, and those of lockstep's own
    numbers."""
    with lockstep.join(timeout_s=100.0) as team:
        backend = torch.distributed.group.WORLD._get_backend(team.device)
        return backend.options._timeout.total_seconds(), team._transport.timeout_s
