"""Loops as people write them with accelerate. Each returns numbers, which are equal on any number
of processes."""

import contextlib
import hashlib
import itertools
import operator

import torch
from torch import nn
from torch.utils.data import DataLoader, IterableDataset, TensorDataset

from lockstep._base.errors import LockstepError
from lockstep.integrations.accelerate import Accelerator


def parts(accelerator, batch_size=10, num_samples=26, models=1, **options):
    """Models, their optimizers, a training loader of tuples and an evaluation loader, prepared."""
    accelerator.free_memory()
    torch.manual_seed(3)
    x = torch.randn(num_samples, 6)
    train, test = TensorDataset(x, x[:, :3].argmax(1)), TensorDataset(x[:11] + 0.3, x[:11, :3].argmax(1))
    made = [
        nn.Sequential(nn.Linear(6, 8), nn.LayerNorm(8), nn.ReLU(), nn.Dropout(0.2), nn.Linear(8, 3)) for _ in range(models)
    ]
    optimizers = [torch.optim.SGD(model.parameters(), lr=0.1) for model in made]
    loaders = DataLoader(train, batch_size, shuffle=True, **options), DataLoader(test, 4)
    return accelerator.prepare(*made, *optimizers, *loaders)


def digest(*models):
    weights = b"".join(tensor.numpy().tobytes() for model in models for tensor in model.state_dict().values())
    return hashlib.sha256(weights).hexdigest()[:16]


def sums_of_losses(accelerator):
    """Added before and after backward, to a number, a tensor and a list."""
    model, optimizer, loader, _ = parts(accelerator)
    before, tensor, numbers, divided = 0, torch.zeros(()), [], 0.0
    model.train()
    for x, y in loader:
        loss = nn.functional.cross_entropy(model(x), y)
        before += loss.detach().float()
        whole = loss
        loss /= 2
        accelerator.backward(loss)
        tensor += whole.detach()
        numbers.append(loss.item())
        divided = divided + loss * 2
        optimizer.step()
        optimizer.zero_grad()
    assert before.item() == tensor.item() == divided.item() == float(f"{before}")
    assert abs(before.item() - 2 * sum(numbers)) < 1e-5
    return before.item(), numbers, digest(model)


def counts(accelerator):
    """Counts right predictions and samples over the global batch, as on one process."""
    model, optimizer, loader, _ = parts(accelerator)
    mean, std = torch.tensor([0.1] * 6), torch.tensor([2.0] * 6)
    criterion = nn.CrossEntropyLoss()
    right, seen, rows, fractions, unread = 0, 0, 0, [], 0
    for x, y in loader:
        x, y = x.to(accelerator.device), y.to(accelerator.device)
        outputs = model((x - mean) / std)
        loss = criterion(outputs, y)
        rows += y.size(0)
        accelerator.backward(loss)
        optimizer.step()
        optimizer.zero_grad()
        found = outputs.argmax(dim=1)
        right += (found == y).sum().item()
        unread += (found == y).sum()
        seen += len(y)
        fractions.append((found == y).float().mean().item())
        assert outputs.shape == (len(y), 3)
        assert x.size(0) == y.shape[0] == len(x)
    assert (seen, rows, unread) == (26, 26, right)
    assert abs(sum(f * n for f, n in zip(fractions, (10, 10, 6), strict=True)) - right) < 1e-5
    return right, fractions, digest(model)


def dictionaries(accelerator):
    """Batches that are dicts, nested, with text; ``model(**batch)`` and a model that returns a
    dict."""

    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(6, 3)

        def forward(self, x, labels=None, more=None):
            logits = self.layer(x + more["shift"][:, None])
            return {"loss": nn.functional.cross_entropy(logits, labels), "logits": logits, "unused": None}

    torch.manual_seed(3)
    x = torch.randn(14, 6)
    data = [{"x": row, "labels": row[:3].argmax(), "more": {"shift": torch.tensor(0.1 * i)}} for i, row in enumerate(x)]
    named = [{**sample, "name": f"sample {i}"} for i, sample in enumerate(data)]
    model = Model()
    model, optimizer, loader = accelerator.prepare(model, torch.optim.SGD(model.parameters(), lr=0.1), DataLoader(named, 7))
    told = []
    for step, batch in enumerate(loader):
        names = batch.pop("name")
        batch = {key: value if key == "more" else value.to(accelerator.device) for key, value in batch.items()}
        outputs = model(**batch)
        accelerator.backward(outputs["loss"])
        told += [outputs["loss"].item(), accelerator.gather_for_metrics(outputs["logits"]).sum(dim=1).tolist(), list(names)]
        assert torch.equal(accelerator.gather(batch["labels"]), x[7 * step : 7 * step + 7, :3].argmax(1))
        optimizer.step()
        optimizer.zero_grad()
    return told, digest(model)


def sums_and_weights(accelerator):
    """A loss that is a sum over samples; then means over tokens, whose numbers differ from shard to
    shard."""
    model, optimizer, loader, _ = parts(accelerator, num_samples=20)
    told = []
    for x, y in loader:
        loss = nn.functional.cross_entropy(model(x), y, reduction="sum")
        accelerator.backward(loss, reduction="sum")
        told.append(loss.item())
        optimizer.step()
        optimizer.zero_grad()
    for x, y in loader:
        kept = (y > 0).float()
        loss = (nn.functional.cross_entropy(model(x), y, reduction="none") * kept).sum() / kept.sum().clamp(min=1)
        number = accelerator.reduce(kept.sum(), reduction="sum")
        accelerator.backward(loss, weight=kept.sum())
        told += [loss.item(), number.item(), kept.sum().item()]
        assert told[-2] == told[-1]
        optimizer.step()
        optimizer.zero_grad()
    return told, digest(model)


def parts_of_a_loss(accelerator):
    """Two models, one of which is not trained; a loss of two parts; a penalty; noise."""
    model, teacher, optimizer, _, loader, _ = parts(accelerator, models=2)

    def noisy(x):
        return x + torch.randn(x.shape) * 0.1

    def with_penalty(loss):
        return loss + 0.01 * sum(p.pow(2).sum() for p in model.parameters())

    told = []
    for x, y in loader:
        with torch.no_grad():
            wanted = teacher(x)
        moved = accelerator.per_shard(noisy)(x)
        kept = torch.rand((x.shape[0], 1), device=x.device) > 0.1
        found = model(torch.where(kept, moved, x))
        first, second = nn.functional.cross_entropy(found, y), nn.functional.mse_loss(found, wanted)
        loss = accelerator.per_shard(with_penalty)(first + 0.5 * second)
        part = accelerator.reduce(second, reduction="mean")
        accelerator.backward(loss)
        told += [loss.item(), part.item(), (moved - x).std().item(), (found - wanted).abs().max().item()]
        optimizer.step()
        optimizer.zero_grad()
    return told, digest(model)


def two_models_by_turns(accelerator):
    """Runs two backward passes per batch, each with a separate optimizer."""
    first, second, optimizer, other, loader, _ = parts(accelerator, models=2)
    told = []
    for x, y in loader:
        loss = nn.functional.cross_entropy(first(x), y)
        accelerator.backward(loss)
        optimizer.step()
        optimizer.zero_grad()
        distance = nn.functional.mse_loss(second(x), first(x).detach())
        accelerator.backward(distance)
        other.step()
        other.zero_grad()
        told += [loss.item(), distance.item()]
    return told, digest(first, second)


def losses_of_an_evaluation(accelerator):
    """Repeats the loss of each batch for its samples, so that the smaller last batch counts
    less."""
    model, _, _, test = parts(accelerator)
    model.eval()
    losses, sizes = [], []
    for x, y in test:
        loss = nn.functional.cross_entropy(model(x), y)
        losses.append(accelerator.gather_for_metrics(loss.repeat(test.batch_size)))
        sizes.append(len(y))
    assert [len(part) for part in losses] == sizes
    assert sizes[-1] < sizes[0]
    return torch.cat(losses).mean().item()


def accumulation(accelerator):
    """By ``accumulate``, with a schedule and clipping; then by the script's own count."""
    model, optimizer, loader, _ = parts(accelerator, batch_size=4)
    schedule = accelerator.prepare(torch.optim.lr_scheduler.StepLR(optimizer, 2, 0.5))
    accelerator.gradient_accumulation_steps = 3
    told = []
    for x, y in loader:
        with accelerator.accumulate(model), accelerator.autocast():
            loss = nn.functional.cross_entropy(model(x), y)
            accelerator.backward(loss)
            if accelerator.sync_gradients:
                told.append(accelerator.clip_grad_norm_(model.parameters(), 0.5).item())
                accelerator.clip_grad_value_(model.parameters(), 0.2)
            optimizer.step()
            schedule.step()
            optimizer.zero_grad()
        told += [accelerator.sync_gradients, schedule.get_last_lr()[0]]
    assert [is_step for is_step in told if isinstance(is_step, bool)] == [False, False, True, False, False, True, True]
    accelerator.gradient_accumulation_steps = 1
    accelerator.gradient_state.sync_gradients = True
    for step, (x, y) in enumerate(loader):
        with torch.autocast("cpu", torch.bfloat16):
            loss = nn.functional.cross_entropy(model(x), y) / 2
        with contextlib.nullcontext() if step % 2 else accelerator.no_sync(model):
            accelerator.backward(loss)
        if step % 2:
            optimizer.step()
            optimizer.zero_grad()
        told.append(loss.item())
    return told, digest(model)


def evaluation(accelerator):
    """Each row once, in order; single numbers; what is read of some batches only; an early end."""
    model, _, _, test = parts(accelerator)
    model.eval()
    rows, sizes, told, total, seen, right = [], [], [], 0, 0, 0
    for step, (x, y) in enumerate(test):
        with torch.no_grad():
            logits = model(x)
        loss = nn.functional.cross_entropy(logits, y)
        total += loss
        seen += y.shape[0]
        if step == 1:
            told.append(loss.item())
        found, labels = accelerator.gather_for_metrics((logits.argmax(1), y))
        rows += [*found.tolist(), *labels.cpu().numpy().tolist()]
        sizes.append(len(labels))
        right += (logits.argmax(1) == y).sum().item()
        if step == 2:
            told += logits.softmax(1).max(dim=1).values.tolist()
    assert sizes == [4, 4, 3]
    assert seen == 11
    alone = model(test.dataset.tensors[0]).argmax(1)
    assert torch.equal(alone, torch.tensor([row for n in (0, 8, 16) for row in rows[n : n + 4]][:11]))
    assert right == (alone == test.dataset.tensors[1]).sum()
    for x, _ in itertools.islice(test, 2):
        told.append(model(x).sum().item())
    model.train()
    assert model.training
    return rows, told, total.item()


def helpers(accelerator):
    """What asks for processes."""
    accelerator.wait_for_everyone()
    once = []
    accelerator.on_main_process(once.append)(1)
    assert len(once) == accelerator.is_main_process
    with accelerator.main_process_first(), accelerator.local_main_process_first():
        pass
    if accelerator.process_index == accelerator.team.world_size - 1:
        accelerator.set_trigger()
    assert accelerator.check_trigger()
    assert not accelerator.check_trigger()
    values = torch.arange(3)
    assert torch.equal(accelerator.gather(values), values)
    assert torch.equal(accelerator.reduce(values), values)
    assert torch.equal(accelerator.pad_across_processes(values), values)
    assert accelerator.num_processes == 1
    assert accelerator.state.is_main_process == accelerator.is_main_process
    return 0


LOOPS = [
    sums_of_losses,
    counts,
    dictionaries,
    sums_and_weights,
    parts_of_a_loss,
    two_models_by_turns,
    losses_of_an_evaluation,
    accumulation,
    evaluation,
    helpers,
]


def run_all(audit):
    torch.set_num_threads(1)
    accelerator = Accelerator(cpu=True, shards=5, progress="off", audit=audit)
    return {loop.__name__: loop(accelerator) for loop in LOOPS}


# What is refused


def before_backward(use):
    """A loop that needs a value before backward."""

    def loop(accelerator):
        model, optimizer, loader, _ = parts(accelerator)
        for x, y in loader:
            outputs = model(x)
            loss = nn.functional.cross_entropy(outputs, y)
            use(x, outputs, loss)
            accelerator.backward(loss)
            optimizer.step()
            optimizer.zero_grad()

    return loop


def after_backward(use):
    """A loop that does something after backward."""

    def loop(accelerator):
        model, _, loader, _ = parts(accelerator)
        for x, y in loader:
            outputs = model(x)
            loss = nn.functional.cross_entropy(outputs, y)
            accelerator.backward(loss)
            use(accelerator, model, x, outputs, loss)

    return loop


def changed_weights(accelerator):
    model, optimizer, loader, _ = parts(accelerator)
    for x, y in loader:
        loss = nn.functional.cross_entropy(model(x), y)
        with torch.no_grad():
            next(model.parameters()).mul_(2)
        accelerator.backward(loss)
        optimizer.step()


def never_in_training_mode(accelerator):
    model, _, loader, _ = parts(accelerator)
    model.eval()
    for x, y in loader:
        accelerator.backward(nn.functional.cross_entropy(model(x), y))


def read_after_an_evaluation(accelerator):
    model, _, _, test = parts(accelerator)
    model.eval()
    torch.cat([model(x) for x, _ in test])


def unlike_shards(accelerator):
    """Shards have one entry and two entries alternately, so that every rank finds a difference."""
    data = [torch.full((6,), float(n)) for n in range(10)]
    model, loader = accelerator.prepare(
        nn.Linear(6, 1), DataLoader(data, 10, collate_fn=lambda rows: rows[: 1 + int(rows[0][0]) // 2 % 2])
    )
    for batch in loader:
        accelerator.backward(sum(model(x[None]).mean() for x in batch) / len(batch))


def padded_shards(accelerator):
    data = [torch.ones(n + 1, 6) for n in range(10)]
    model = nn.Linear(6, 1)
    model, loader = accelerator.prepare(
        model, DataLoader(data, 10, collate_fn=lambda rows: nn.utils.rnn.pad_sequence(rows, True))
    )
    for x in loader:
        outputs = model(x)
        accelerator.backward(outputs.mean())
        accelerator.gather(outputs)


def no_length(accelerator):
    class Stream(IterableDataset):
        def __iter__(self):
            return iter(torch.randn(10, 6))

    model, _, _, _ = parts(accelerator)
    loader = accelerator.prepare(DataLoader(Stream(), 5))
    accelerator.gradient_accumulation_steps = 2
    try:
        for x in loader:
            with accelerator.accumulate(model):
                accelerator.backward(model(x).mean())
    finally:
        accelerator.gradient_accumulation_steps = 1


def two_batches_at_once(accelerator):
    model, _, loader, _ = parts(accelerator)
    batches = iter(loader)
    (x, _), (_, y) = next(batches), next(batches)
    accelerator.backward(nn.functional.cross_entropy(model(x), y))


REFUSED = {
    "if": (before_backward(lambda x, outputs, loss: loss > 1 and None), "value-before-backward"),
    "item": (before_backward(lambda x, outputs, loss: loss.item()), "value-before-backward"),
    "float": (before_backward(lambda x, outputs, loss: float(loss)), "value-before-backward"),
    "format": (before_backward(lambda x, outputs, loss: f"{loss:.3f}"), "value-before-backward"),
    "len": (before_backward(lambda x, outputs, loss: len(x)), "value-before-backward"),
    "a range": (before_backward(lambda x, outputs, loss: range(x.size(0))), "value-before-backward"),
    "numpy": (before_backward(lambda x, outputs, loss: outputs.detach().cpu().numpy()), "value-before-backward"),
    "unpacked": (before_backward(lambda x, outputs, loss: list(outputs)), "value-before-backward"),
    "isnan": (before_backward(lambda x, outputs, loss: bool(torch.isnan(loss))), "value-before-backward"),
    "in place": (before_backward(lambda x, outputs, loss: x.clamp_(0, 1)), "in-place-before-backward"),
    "into a tensor": (before_backward(lambda x, outputs, loss: torch.zeros(()).add_(loss)), "in-place-before-backward"),
    "masked": (before_backward(lambda x, outputs, loss: x.__setitem__(0, 1.0)), "in-place-before-backward"),
    "added to a tensor": (
        before_backward(lambda x, outputs, loss: operator.iadd(torch.zeros(()), loss)),
        "in-place-before-backward",
    ),
    "a graph from outside": (
        before_backward(lambda x, outputs, loss: loss + nn.Linear(1, 1).weight.pow(2).sum()),
        "graph-from-outside",
    ),
    "backward twice": (
        after_backward(lambda accelerator, model, x, outputs, loss: accelerator.backward(loss)),
        "backward-twice",
    ),
    "backward by the same call": (
        after_backward(lambda accelerator, model, x, outputs, loss: accelerator.backward(outputs.mean())),
        "graph-used-before",
    ),
    "a call after backward": (
        after_backward(lambda accelerator, model, x, outputs, loss: model(x).sum().item()),
        "call-after-backward",
    ),
    "other noise": (
        after_backward(lambda accelerator, model, x, outputs, loss: torch.randn_like(x).sum().item()),
        "other-random-numbers",
    ),
    "a number": (
        after_backward(lambda accelerator, model, x, outputs, loss: accelerator.backward(torch.ones(()))),
        "loss-without-batch",
    ),
    "load_state": (lambda accelerator: accelerator.load_state("folder"), "AttributeError"),
    "unknown": (lambda accelerator: accelerator.no_such_thing, "AttributeError"),
    "never in training mode": (never_in_training_mode, "backward-in-evaluation"),
    "read after an evaluation": (read_after_an_evaluation, "evaluation-value-too-late"),
    "shards of different length": (padded_shards, "unequal-rows"),
    "accumulation without a length": (no_length, "accumulation-without-length"),
    "two batches at once": (two_batches_at_once, "value-before-backward"),
    "changed weights": (changed_weights, "model-changed"),
    "shards of different structure": (unlike_shards, "unequal-structure"),
}


def refuse_all():
    """Returns the code of each error; of errors without one, the type."""
    torch.set_num_threads(1)
    accelerator = Accelerator(cpu=True, shards=5, progress="off", checkpoint_every="off")
    errors = {}
    for name, (loop, _) in REFUSED.items():
        try:
            loop(accelerator)
        except (LockstepError, AttributeError) as error:
            print(f"{name}: {error}", flush=True)
            errors[name] = getattr(error, "code", type(error).__name__)
            # An error inside a shard is reported again when the next pass begins.
            with contextlib.suppress(LockstepError):
                next(iter(parts(accelerator)[2]))
        else:
            errors[name] = None
    return errors
