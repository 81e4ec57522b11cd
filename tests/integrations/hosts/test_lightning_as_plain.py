"""LockstepStrategy, alone and in this process: it trains, logs, calls hooks and stops as Lightning
does without it, a resumed run is an undisturbed one, and what one process must not do is
refused."""

import collections
import importlib
import importlib.util
import math
import shutil
import sys
import warnings

import numpy as np
import pytest
import torch
from codes import raises, refusal_of
from kept_imports import keep_imports
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from lockstep._base.errors import UsageError

pytestmark = pytest.mark.timeout(100)
ASKED = {
    "nothing": {},
    "accumulation": {"accumulate_grad_batches": 3, "gradient_clip_val": 0.5},
    "a step limit": {"max_steps": 9, "max_epochs": -1},
}
CHANGED_LATER = {"mean": torch.mean, "sum": torch.sum, "max": torch.max, "min": torch.min}
"""What is logged, and then changed in place, by the reduction of its shards."""


@pytest.fixture
def lightning(require, monkeypatch):
    require("lightning", None if importlib.util.find_spec("lightning") else "lightning is not installed")
    monkeypatch.setenv("PYTORCH_NVML_BASED_CUDA_CHECK", "1")  # as Lightning does
    is_first = "lightning" not in sys.modules
    import lightning

    if is_first:
        keep_imports()
    return lightning


@pytest.fixture
def strategy(lightning, tmp_path):
    from lockstep.integrations.lightning import LockstepStrategy

    made = LockstepStrategy(4, threads=1, run_dir=str(tmp_path / "run"), checkpoint_every="off", progress="off")
    yield made
    made.close()


def made_net(lightning):
    """Without layers and values that depend on the other samples of a shard."""

    class Net(lightning.LightningModule):
        def __init__(self):
            super().__init__()
            self.net = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 3))
            self.seen = []

        def training_step(self, batch, batch_idx):
            loss = nn.functional.cross_entropy(self.net(batch[0]), batch[1])
            self.log("loss", loss, on_step=True, on_epoch=True)
            self.log("count", float(len(batch[1])), reduce_fx="sum", on_epoch=True)
            self.log("largest", batch[0].max(), reduce_fx=torch.max, on_epoch=True)
            self.log("least", batch[0].min(), reduce_fx="min", on_epoch=True)
            for reduction, of_samples in CHANGED_LATER.items():
                changed = of_samples(batch[0])
                self.log(f"{reduction} of what changes later", changed, reduce_fx=reduction, on_epoch=True)
                changed.fill_(1000.0)
            return loss

        def on_train_batch_end(self, outputs, batch, batch_idx):
            self.seen.append(float(outputs["loss"]))
            self.log("of_hook", outputs["loss"], on_epoch=True)

        def validation_step(self, batch, batch_idx):
            self.log("val_loss", nn.functional.cross_entropy(self.net(batch[0]), batch[1]))

        def configure_optimizers(self):
            optimizer = torch.optim.SGD(self.parameters(), 0.5)
            return [optimizer], [{"scheduler": torch.optim.lr_scheduler.StepLR(optimizer, 2, 0.7), "interval": "step"}]

    torch.manual_seed(3)
    return Net()


def fitted(lightning, strategy, folder, **asked):
    """Returns the logged values, the loss of each step, and the weights."""
    x = torch.randn(29, 6, generator=torch.Generator().manual_seed(5))
    data, net = TensorDataset(x, x[:, :3].argmax(1)), made_net(lightning)
    quiet = {"logger": False, "enable_checkpointing": False, "enable_progress_bar": False, "enable_model_summary": False}
    asked = {"max_epochs": 2, "default_root_dir": folder, "accelerator": "cpu", "devices": 1, **quiet, **asked}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        trainer = lightning.Trainer(strategy=strategy, **asked)
        trainer.fit(net, DataLoader(data, 8), DataLoader(data, 8))
    logged = {name: float(value) for name, value in trainer.callback_metrics.items()}
    return logged, [*net.seen, *torch.cat([each.detach().flatten() for each in net.parameters()]).tolist()]


@pytest.mark.parametrize("asked", ASKED)
def test_a_training_has_the_values_and_weights_of_plain_lightning(lightning, strategy, tmp_path, asked):
    logged, numbers = fitted(lightning, strategy, tmp_path, **ASKED[asked])
    plain, expected = fitted(lightning, "auto", tmp_path, **ASKED[asked])
    assert {"loss_epoch", "of_hook", "val_loss"} <= logged.keys()
    assert logged == pytest.approx(plain, rel=1e-4)
    assert numbers == pytest.approx(expected, rel=1e-4, abs=1e-5)


def wide(lightning, strategy, folder):
    """What a trainer that much is asked of comes to: names with numbers, and names."""
    from lightning.pytorch import callbacks
    from torchmetrics import MeanMetric, MetricCollection
    from torchmetrics.classification import MulticlassAccuracy, MulticlassF1Score

    seen = []
    x = torch.randn(29, 6, generator=torch.Generator().manual_seed(5))
    data = TensorDataset(x, x[:, :3].argmax(1))

    class Net(type(made_net(lightning))):
        def __init__(self):
            super().__init__()
            self.scores = MetricCollection([MulticlassAccuracy(3, average="micro"), MulticlassF1Score(3)])
            self.val_scores, self.mean = self.scores.clone(prefix="val_"), MeanMetric()
            self.kept, self.of_kinds = [], {"logits": [], "labels": []}

        def training_step(self, batch, batch_idx):
            loss, (x, y) = super().training_step((batch[0].clone(), batch[1]), batch_idx), batch
            self.scores.update(self.net(x), y)
            self.log_dict(self.scores, on_step=False, on_epoch=True)
            self.log("mean_x", self.mean(x), on_step=True, on_epoch=True, prog_bar=True)
            self.kept.append((x.sum().item(), len(y)))
            if self.global_step == 4 and torch.equal(x[-1], data[7][0]):  # one shard of the first batch
                self.trainer.should_stop = True
            return {"loss": loss}

        def validation_step(self, batch, batch_idx):
            super().validation_step(batch, batch_idx)
            logits = self.net(batch[0])
            self.val_scores.update(logits, batch[1])
            self.log_dict(self.val_scores)
            self.log("of_batch", float(batch_idx), on_step=True, on_epoch=True)
            self.of_kinds["logits"].append(logits)
            self.of_kinds["labels"].append((batch_idx, batch[1].sum().item()))

        def on_validation_epoch_end(self):
            self.log("spread", torch.cat(self.of_kinds["logits"]).std())
            seen.append(("labels", [*self.of_kinds["labels"]]))
            for values in self.of_kinds.values():
                values.clear()

        def on_train_epoch_end(self):
            self.log("kept", sum(total for total, _ in self.kept))
            seen.append(("kept", sum(size for _, size in self.kept)))
            self.kept.clear()

        def test_step(self, batch, batch_idx):
            self.log("test_loss", nn.functional.cross_entropy(self.net(batch[0]), batch[1]))
            return batch[1].sum()

        def predict_step(self, batch, batch_idx, dataloader_idx=0):
            return self.net(batch[0]) + batch_idx + 10 * dataloader_idx

    def noted(name):
        def hook(self, trainer, *args, **kwargs):
            where = trainer.current_epoch, trainer.global_step, trainer.sanity_checking, trainer.global_rank
            seen.append((name, *where, [each for each in args if type(each) is int]))

        return hook

    hooks = [name for name in dir(lightning.Callback) if name.startswith("on_") and name != "on_exception"]
    recorder = type("Recorder", (lightning.Callback,), {name: noted(name) for name in hooks})
    best = callbacks.ModelCheckpoint(folder / "best", monitor="val_loss", save_top_k=1, filename="{step}")
    asked = {"max_epochs": 4, "accumulate_grad_batches": 2, "val_check_interval": 2, "gradient_clip_val": 0.5}
    quiet = {"logger": False, "enable_progress_bar": False, "enable_model_summary": False, "log_every_n_steps": 1}
    torch.manual_seed(3)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        trainer = lightning.Trainer(
            strategy=strategy,
            accelerator="cpu",
            devices=1,
            default_root_dir=folder,
            callbacks=[recorder(), best, callbacks.EarlyStopping("val_loss", patience=2, min_delta=0.001)],
            **asked,
            **quiet,
        )
        net = Net()
        trainer.fit(net, DataLoader(data, 8), DataLoader(data, 9))
        metrics = [dict(trainer.callback_metrics), dict(trainer.logged_metrics), dict(trainer.progress_bar_metrics)]
        metrics += trainer.test(net, DataLoader(data, 7), ckpt_path="best", verbose=False)
        predicted = trainer.predict(net, [DataLoader(data, 10), DataLoader(data, 13)])
    numbers = [(name, float(value)) for each in metrics for name, value in sorted(each.items())]
    numbers += [("predicted", value) for value in torch.cat([*predicted[0], *predicted[1]]).flatten().tolist()]
    numbers += [("loss", value) for value in net.seen]
    files = [path.name for path in (folder / "best").iterdir()]
    return numbers, [seen, files, trainer.global_step, trainer.should_stop]


def test_a_training_has_the_metrics_hooks_and_files_of_plain_lightning(lightning, strategy, tmp_path):
    numbers, names = wide(lightning, "auto", tmp_path / "plain")
    found, same = wide(lightning, strategy, tmp_path / "own")
    assert [name for name, _ in found] == [name for name, _ in numbers]
    assert [value for _, value in found] == pytest.approx([value for _, value in numbers], rel=1e-3, abs=1e-5)
    assert same == names


def test_a_fit_is_the_same_from_each_kind_of_step(lightning, tmp_path, monkeypatch):
    for name in ("PL_GLOBAL_SEED", "PL_SEED_WORKERS"):
        monkeypatch.setenv(name, "0")  # which Lightning sets
    fit = importlib.import_module("lightning_resumed").fit
    [whole] = fit("accumulation", tmp_path, ["whole"])
    names = sorted(path.name for path in (tmp_path / "whole" / "checkpoints").glob("step-*"))
    chosen = [names[number] for number in (1, 2, 6)]  # within an epoch after a validation, at the end of it, in the last
    for name in chosen:
        shutil.copytree(tmp_path / "whole" / "checkpoints" / name, tmp_path / name / "checkpoints" / name)
        shutil.copyfile(tmp_path / "whole" / "birth.json", tmp_path / name / "birth.json")
    assert dict(zip(chosen, fit("accumulation", tmp_path, chosen), strict=True)) == dict.fromkeys(chosen, whole)


def test_what_would_give_other_results_is_refused_with_each_code(lightning, tmp_path):
    refusals = importlib.import_module("lightning_refusals")
    by_code = {code: name for name, (_, code, _) in reversed(refusals.REFUSED.items())}
    for name in by_code.values():
        is_refused, error = refusals.run_refusal(name, tmp_path / name)
        assert is_refused, f"{name}: {error}"


class Meter:
    """An object of the script."""

    def __init__(self):
        self.count, self.values, self.sum = 0, [], torch.zeros(2)


APPENDED = {
    "an item": (lambda: [1], lambda self: self.value.append(2), [(("value",), [2])]),
    "items of a list in a dict": (
        lambda: {"a": []},
        lambda self: self.value["a"].extend([1, 2]),
        [(("value", "a"), [1, 2])],
    ),
    "a list in a list": (lambda: [0], lambda self: self.value.append([1]), [(("value",), [[1]])]),
    "a new list of a defaultdict": (
        lambda: collections.defaultdict(list),
        lambda self: self.value["b"].append(3),
        [(("value", "b"), [3])],
    ),
    "a deque": (collections.deque, lambda self: self.value.append(1), [(("value",), [1])]),
    "nothing": (lambda: [1], lambda self: None, []),
    "the same number": (lambda: 3, lambda self: setattr(self, "value", 3), []),
}
"""The first value of an attribute, what a step does, and what is appended on each rank."""
ASSIGNED = {
    "a number": ("value", 0, 1),
    "a text": ("value", "", "x"),
    "a list": ("value", [0], [0]),
    "a tensor": ("value", torch.zeros(1), torch.zeros(1)),
    "a new attribute": ("other", 0, None),
}
CHANGED = {
    "an item that is replaced": (lambda: [0], lambda self: self.value.__setitem__(0, 1)),
    "an item that is removed": (lambda: [0], lambda self: self.value.pop()),
    "a full deque": (lambda: collections.deque([0], 1), lambda self: self.value.append(1)),
    "a count in a mapping": (lambda: {"a": 0}, lambda self: self.value.__setitem__("a", 1)),
    "a new count in a mapping": (dict, lambda self: self.value.__setitem__("a", 1)),
    "a mapping that is cleared": (lambda: {"a": 0}, lambda self: self.value.clear()),
    "a set": (set, lambda self: self.value.add(1)),
    "a tensor": (lambda: torch.zeros(2), lambda self: self.value.add_(1)),
    "a tensor in a list": (lambda: [torch.zeros(2)], lambda self: self.value[0].add_(1)),
    "an array": (lambda: np.zeros(2), lambda self: self.value.__setitem__(0, 1)),
    "a generator": (torch.Generator, lambda self: torch.rand(1, generator=self.value)),
    "a long mapping": (lambda: dict.fromkeys(range(300)), lambda self: self.value.__setitem__("new", 1)),
    "a number of an object": (Meter, lambda self: setattr(self.value, "count", 1)),
    "a list of an object": (Meter, lambda self: self.value.values.append(1)),
    "a tensor of an object": (Meter, lambda self: self.value.sum.add_(1)),
    "an object in a list": (lambda: [Meter()], lambda self: setattr(self.value[0], "count", 1)),
}


def test_what_a_step_changes_is_shared_hidden_or_refused(lightning):
    from lockstep.integrations.lightning._attributes import Attributes

    def made(first):
        module = lightning.LightningModule()
        module.value = first()
        attributes = Attributes(module)
        return module, attributes, attributes.look()

    for first, step, expected in APPENDED.values():
        module, attributes, before = made(first)
        step(module)
        grown, assigned = attributes.changes(before, "training_step")
        assert (grown, assigned) == (expected, [])
        assert module.value == first() or not any(module.value.values()), "it is as before, until all shards are known"
        for rank in (module, made(first)[0]):
            for path, items in [*grown, *grown]:
                Attributes(rank).append(path, items)
            plain = made(first)[0]
            step(plain)
            step(plain)
            assert rank.value == plain.value
    for name, first, value in ASSIGNED.values():
        module, attributes, before = made(lambda first=first: first)
        setattr(module, name, value)
        assert attributes.changes(before, "training_step") == ([], [name])
        with raises(UsageError, "value-of-one-shard"):
            getattr(module, name) + 1
        setattr(module, name, 3)  # by a hook
        assert attributes.changes(attributes.look(), "training_step") == ([], [])
        assert getattr(module, name) == 3
    for name, (first, step) in CHANGED.items():
        module, attributes, before = made(first)
        step(module)
        refusal = refusal_of(attributes.changes, before, "training_step")
        assert refusal is not None, name
        assert refusal[1] == "attribute-changed-in-step"


def test_logs_of_shards_are_combined_as_their_options_say(lightning):
    from lockstep.integrations.lightning._logs import combine

    def combined(*values, **options):
        shards = [
            ([("name", value, {"reduce_fx": "mean", **options})], size)
            for value, size in zip(values, (1, 3, 0), strict=False)
        ]
        ((_, value, found),) = combine(shards)
        return value.item(), found["batch_size"]

    assert combined(8.0, 4.0) == (5.0, 4)
    assert combined(8.0, 4.0, batch_size=2) == (6.0, 4)
    assert combined(8.0, 4.0, reduce_fx="sum") == (12.0, 4)
    assert combined(4.0, 8.0, reduce_fx="max") == (8.0, 4)
    assert combined(4.0, 8.0, reduce_fx="min") == (4.0, 4)
    for kind in ("max", "min"):
        assert all(math.isnan(combined(*values, reduce_fx=kind)[0]) for values in ((math.nan, 1.0), (1.0, math.nan)))
    assert combined(1.0, 1.0, 1.0) == (1.0, 4)


@pytest.mark.parametrize(
    "changed",
    [
        torch.tensor(1.0),
        torch.tensor([1.0]),
        torch.tensor(1),
        nn.Parameter(torch.tensor(1.0)),
        torch.arange(3.0)[1],
        torch.ones(2, 2).diagonal()[:1],
    ],
    ids=["number", "one item", "integer", "weight", "part of a tensor", "part of a view"],
)
def test_a_logged_tensor_keeps_the_value_that_it_had(lightning, changed):
    from lockstep.integrations.lightning._logs import as_plain

    options = {"reduce_fx": torch.max, "sync_dist": True}
    value, plain = as_plain(changed, options, {})
    with torch.no_grad():
        changed.fill_(7)
    assert (value.item(), value.requires_grad, value.shape) == (1, False, changed.shape)
    assert plain == {"reduce_fx": "max"}
    assert options == {"reduce_fx": torch.max, "sync_dist": True}
