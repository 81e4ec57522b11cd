"""What people do with Lightning's Trainer, as rows: each trains, and returns what it came to."""

import contextlib
import hashlib
import logging
import warnings
from pathlib import Path

import lightning as L
import torch
from lightning.pytorch import callbacks as cb
from lightning.pytorch.loggers import CSVLogger
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
from torchmetrics import MeanMetric, MetricCollection
from torchmetrics.classification import MulticlassAccuracy, MulticlassF1Score

from lockstep.integrations.lightning import LockstepStrategy

logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
ROWS = {}
SETTINGS = {"shards": 4, "run_dir": "run", "checkpoint_every": "off", "progress": "off"}


def data(num_samples=68, seed=5):
    generator = torch.Generator().manual_seed(seed)
    inputs = torch.randn(num_samples, 6, generator=generator)
    return TensorDataset(inputs, inputs[:, :3].argmax(1))


class Net(L.LightningModule):
    """Batch norm, dropout, metric objects, and values of each kind of self.log."""

    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Dropout(0.2), nn.Linear(8, 3))
        self.train_acc, self.val_acc = MulticlassAccuracy(3), MulticlassAccuracy(3)

    def forward(self, x):
        return self.net(x)

    def step(self, batch):
        x, y = batch
        logits = self(x)
        return nn.functional.cross_entropy(logits, y), logits, y

    def training_step(self, batch, batch_idx):
        loss, logits, y = self.step(batch)
        self.train_acc(logits, y)
        self.log("train_loss", loss, on_step=True, on_epoch=True, prog_bar=True)
        self.log("train_acc", self.train_acc, on_step=True, on_epoch=True)
        return loss

    def validation_step(self, batch, batch_idx, dataloader_idx=0):
        loss, logits, y = self.step(batch)
        self.val_acc(logits, y)
        self.log("val_loss", loss)
        self.log("val_acc", self.val_acc)

    def test_step(self, batch, batch_idx):
        self.log("test_loss", self.step(batch)[0])

    def predict_step(self, batch, batch_idx, dataloader_idx=0):
        return self(batch[0]).argmax(1)

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), 0.1, momentum=0.9)


def trainer(strategy, **settings):
    settings = {"max_epochs": 2, "logger": False, "enable_checkpointing": False, **settings}
    return L.Trainer(
        strategy=strategy,
        accelerator="cpu",
        default_root_dir=Path.cwd(),
        enable_progress_bar=False,
        enable_model_summary=False,
        log_every_n_steps=1,
        **settings,
    )


def outcome(model, trained, *more):
    """Digest of the weights, the steps, and all metrics."""
    digest = hashlib.sha256()
    for tensor in model.state_dict().values():
        digest.update(tensor.detach().float().numpy().tobytes())
    metrics = {name: float(value).hex() for name, value in sorted(trained.callback_metrics.items())}
    return digest.hexdigest()[:16], trained.global_step, metrics, *more


def loaders(batch_size=10):
    return DataLoader(data(), batch_size, shuffle=True), DataLoader(data(31, 9), 7)


def row(function):
    ROWS[function.__name__] = function
    return function


def fitted(strategy, model=None, train=None, val=None, **settings):
    model = model or Net()
    mine = loaders()
    one = trainer(strategy, **settings)
    one.fit(model, mine[0] if train is None else train, mine[1] if val is None else val)
    return outcome(model, one)


def run_row(name, root):
    """What a row returns, run in this directory, which all processes have."""
    Path(root).mkdir(exist_ok=True)
    with warnings.catch_warnings(), contextlib.chdir(root):
        warnings.simplefilter("ignore")
        strategy = LockstepStrategy(**SETTINGS)
        try:
            L.seed_everything(3, verbose=False)
            return ROWS[name](strategy)
        finally:
            strategy.close()


@row
def plain(strategy):
    return fitted(strategy)


@row
def accumulation_and_clipping_by_norm(strategy):
    return fitted(strategy, accumulate_grad_batches=3, gradient_clip_val=0.05)


@row
def clipping_by_value(strategy):
    return fitted(strategy, gradient_clip_val=0.01, gradient_clip_algorithm="value")


class EveryLog(Net):
    """self.log with each option, in steps and in hooks."""

    def __init__(self):
        super().__init__()
        self.scores = MetricCollection({"acc": MulticlassAccuracy(3), "f1": MulticlassF1Score(3)}, prefix="train_")
        self.val_scores = MetricCollection({"acc": MulticlassAccuracy(3), "f1": MulticlassF1Score(3)}, prefix="val2_")
        self.mean = MeanMetric()

    def training_step(self, batch, batch_idx):
        loss, logits, y = self.step(batch)
        self.log_dict({"a": loss, "b": float(loss) ** 2}, sync_dist=True, on_step=True, on_epoch=True)
        self.log("sum", loss, reduce_fx="sum", on_epoch=True)
        self.log("max", loss, reduce_fx=torch.max, on_step=True, on_epoch=True)
        self.log("min", loss, reduce_fx=min, on_epoch=True)
        self.log("sized", loss, batch_size=3, on_epoch=True)
        self.log("count", len(y), reduce_fx="sum", on_epoch=True)
        if self.trainer.is_global_zero:
            self.log("main", loss, rank_zero_only=True, on_epoch=True)
        self.log("of_call", self.scores(logits, y)["train_acc"], on_step=True, on_epoch=True)
        self.log_dict(self.scores, on_step=True, on_epoch=True)
        self.mean.update(loss)
        self.log("mean_metric", self.mean, on_step=False, on_epoch=True)
        if batch_idx == 1 and y[0] == 0:  # some shards do, some do not
            self.log("seldom", loss, on_epoch=True)
        return {"loss": loss, "logits": logits}

    def validation_step(self, batch, batch_idx):
        loss, logits, y = self.step(batch)
        self.val_scores.update(logits, y)
        self.log("val_of_call", self.val_acc(logits, y), on_step=True, on_epoch=True)
        self.log_dict(self.val_scores)
        self.log_dict({"val_loss": loss, "val_max": loss}, prog_bar=True, sync_dist=True)

    def on_train_batch_end(self, outputs, batch, batch_idx):
        self.log("hook_loss", outputs["loss"], on_step=True, on_epoch=True)

    def on_after_backward(self):
        self.log("grad", self.net[0].weight.grad.norm(), on_step=True)

    def on_train_epoch_end(self):
        self.log("epoch_f1", self.scores["f1"].compute())


@row
def every_kind_of_log(strategy):
    return fitted(strategy, EveryLog(), max_epochs=3, accumulate_grad_batches=2)


class Collecting(Net):
    """Lists that steps append to, as Lightning's documentation shows them."""

    def __init__(self):
        super().__init__()
        self.train_losses, self.val_losses, self.outputs = [], [], {"logits": [], "labels": []}

    def training_step(self, batch, batch_idx):
        loss = super().training_step(batch, batch_idx)
        self.train_losses.append(loss.detach())
        self.scratch = loss * 2  # used within the step
        return loss + 0 * self.scratch

    def on_train_epoch_end(self):
        self.log("train_mean", torch.stack(self.train_losses).mean())
        self.log("train_count", float(len(self.train_losses)))
        self.train_losses.clear()

    def validation_step(self, batch, batch_idx):
        loss, logits, y = self.step(batch)
        self.val_losses.append(loss)
        self.outputs["logits"].append(logits)
        self.outputs["labels"].append(y)
        return {"loss": loss, "logits": logits}

    def on_validation_batch_end(self, outputs, batch, batch_idx, dataloader_idx=0):
        self.log("first_logit", outputs["logits"][0, 0], batch_size=1)

    def on_validation_epoch_end(self):
        self.log("val_mean", torch.stack(self.val_losses).mean())
        self.log(
            "val_accuracy", (torch.cat(self.outputs["logits"]).argmax(1) == torch.cat(self.outputs["labels"])).float().mean()
        )
        self.val_losses, self.outputs = [], {"logits": [], "labels": []}


class Uneven(Net):
    """Values that depend on the number of the batch, and lists, without hooks between batches."""

    def __init__(self):
        super().__init__()
        self.found = {"logits": [], "numbers": []}

    def validation_step(self, batch, batch_idx):
        loss, logits, _ = self.step(batch)
        self.log("val_loss", loss)
        self.log("numbered", loss * batch_idx, on_step=True, on_epoch=True)
        self.found["numbers"].append(batch_idx)
        if batch_idx % 2 == 0:
            self.found["logits"].append(logits)
            self.log("even", float(len(logits)), reduce_fx="sum")

    def on_validation_epoch_end(self):
        assert self.found["numbers"] == list(range(len(self.found["numbers"])))
        self.log("spread", torch.cat(self.found["logits"]).std())
        self.found = {"logits": [], "numbers": []}


@row
def batches_by_their_number(strategy):
    return fitted(strategy, Uneven())


@row
def lists_that_steps_append_to(strategy):
    return fitted(strategy, Collecting())


class Recorder(L.Callback):
    """The calls of hooks, with what does not depend on the process."""

    def __init__(self):
        self.calls = []

    def on_train_start(self, trainer, module):
        self.calls.append("start")

    def on_train_epoch_start(self, trainer, module):
        self.calls.append(f"epoch {trainer.current_epoch}")

    def on_train_batch_end(self, trainer, module, outputs, batch, batch_idx):
        self.calls.append((batch_idx, float(outputs["loss"]).hex()))

    def on_before_zero_grad(self, trainer, module, optimizer):
        self.calls.append(("zero", module.net[0].weight.grad is None))

    def on_before_optimizer_step(self, trainer, module, optimizer):
        self.calls.append(("step", float(module.net[0].weight.grad.norm()).hex()))

    def on_validation_end(self, trainer, module):
        self.calls.append("validated")

    def on_train_end(self, trainer, module):
        self.calls.append("end")


@row
def callbacks(strategy):
    recorder, best = Recorder(), cb.ModelCheckpoint("checkpoints", monitor="val_loss", save_top_k=1, filename="best")
    rates = cb.LearningRateMonitor("step")
    settings = {
        "callbacks": [recorder, best, rates, cb.EarlyStopping("val_loss", patience=1, min_delta=0.05), cb.LambdaCallback()],
        "enable_checkpointing": True,
        "logger": CSVLogger("logs", flush_logs_every_n_steps=1),
        "max_epochs": 9,
    }
    model, one = Net(), trainer(strategy, **settings)
    one.fit(model, *loaders())
    result = outcome(model, one)
    tested = one.test(model, loaders()[1], ckpt_path="best", verbose=False)
    strategy.barrier()
    logs = Path("logs/lightning_logs/version_0/metrics.csv").read_text()
    saved = torch.load(best.best_model_path, weights_only=True)["state_dict"]
    return (
        *result,
        tested,
        recorder.calls,
        logs,
        float(best.best_model_score).hex(),
        float(saved["net.0.weight"].sum()).hex(),
    )


@row
def limits_and_intervals(strategy):
    settings = {"limit_train_batches": 5, "limit_val_batches": 0.5, "val_check_interval": 2, "check_val_every_n_epoch": None}
    recorder = Recorder()
    return *fitted(strategy, max_epochs=3, callbacks=[recorder], **settings), recorder.calls


@row
def fractions(strategy):
    recorder = Recorder()
    settings = {"limit_train_batches": 0.7, "val_check_interval": 0.5, "num_sanity_val_steps": 0, "callbacks": [recorder]}
    return *fitted(strategy, **settings), recorder.calls


@row
def validation_every_second_epoch(strategy):
    return fitted(strategy, max_epochs=4, check_val_every_n_epoch=2)


@row
def max_steps(strategy):
    return fitted(strategy, max_epochs=-1, max_steps=10)


@row
def stopped_within_an_epoch(strategy):
    class Stop(L.Callback):
        def on_train_batch_end(self, trainer, *_):
            trainer.should_stop = trainer.global_step == 9

    return fitted(strategy, max_epochs=5, callbacks=[Stop()])


@row
def validate_test_predict(strategy):
    model, one = Net(), trainer(strategy)
    before = one.validate(model, loaders()[1], verbose=False)
    one.fit(model, *loaders())
    after = one.validate(model, loaders()[1], verbose=False), one.test(model, loaders()[1], verbose=False)
    predicted = one.predict(model, [loaders()[1], DataLoader(data(12, 2), 5)])
    return outcome(model, one, before, after, [[part.tolist() for part in each] for each in predicted])


@row
def several_validation_loaders(strategy):
    one = trainer(strategy)
    model, (train, val) = Net(), loaders()
    one.fit(model, train, [val, DataLoader(data(12, 2), 5)])
    return outcome(model, one)


@row
def stopped_by_a_shard(strategy):
    class Stops(Net):
        def training_step(self, batch, batch_idx):
            if self.global_step == 9 and self.global_rank == 3:
                self.trainer.should_stop = True
            return super().training_step(batch, batch_idx)

    return fitted(strategy, Stops(), max_epochs=5)


class Scheduled(Net):
    def __init__(self, kind):
        super().__init__()
        self.kind = kind

    def configure_optimizers(self):
        optimizer = torch.optim.AdamW(self.parameters(), 0.01)
        if self.kind == "step":
            one = {"scheduler": torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.05, total_steps=14), "interval": "step"}
        elif self.kind == "epoch":
            return [optimizer], [torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.5)]
        else:
            plateau = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, patience=0, threshold=0.5)
            one = {"scheduler": plateau, "monitor": "val_loss"}
        return {"optimizer": optimizer, "lr_scheduler": one}

    def on_train_batch_end(self, *_):
        self.log("rate", self.optimizers().param_groups[0]["lr"], on_step=True, on_epoch=True)


@row
def schedule_by_step(strategy):
    return fitted(strategy, Scheduled("step"))


@row
def schedule_by_epoch(strategy):
    return fitted(strategy, Scheduled("epoch"), max_epochs=3)


@row
def schedule_by_plateau(strategy):
    return fitted(strategy, Scheduled("plateau"), max_epochs=3)


@row
def bf16_mixed(strategy):
    return fitted(strategy, precision="bf16-mixed")


@row
def bf16_true(strategy):
    return fitted(strategy, precision="bf16-true")


@row
def double(strategy):
    return fitted(strategy, precision="64-true")


class Data(L.LightningDataModule):
    """The steps of a data module, and hooks that change batches."""

    def prepare_data(self):
        assert self.trainer.local_rank == 0
        with Path("prepared").open("a") as file:
            file.write("once\n")

    def setup(self, stage):
        assert Path("prepared").read_text() == "once\n"

    def train_dataloader(self):
        return DataLoader(data(), 10, shuffle=True, num_workers=1)

    def val_dataloader(self):
        return DataLoader(data(31, 9), 7)

    def on_before_batch_transfer(self, batch, dataloader_idx):
        return [batch[0] + 1, batch[1]]

    def on_after_batch_transfer(self, batch, dataloader_idx):
        return [batch[0] * torch.rand(()), batch[1]]


@row
def data_module(strategy):
    model, one = Net(), trainer(strategy)
    one.fit(model, datamodule=Data())
    return outcome(model, one)


@row
def overfit_batches(strategy):
    return fitted(strategy, overfit_batches=2)


@row
def fast_dev_run(strategy):
    return fitted(strategy, fast_dev_run=2)


class Overriding(Net):
    """Hooks of the optimizer, which run once per step."""

    def optimizer_step(self, epoch, batch_idx, optimizer, optimizer_closure):
        for group in optimizer.param_groups:
            group["lr"] = 0.1 / (1 + self.trainer.global_step)
        optimizer.step(closure=optimizer_closure)

    def optimizer_zero_grad(self, epoch, batch_idx, optimizer):
        optimizer.zero_grad(set_to_none=False)

    def configure_gradient_clipping(self, optimizer, gradient_clip_val=None, gradient_clip_algorithm=None):
        self.clip_gradients(optimizer, gradient_clip_val=0.02, gradient_clip_algorithm="norm")

    def training_step(self, batch, batch_idx):
        if batch_idx == 2 and batch[1][0] == 0:
            return None  # this shard is left out of the mean
        return super().training_step(batch, batch_idx)


@row
def overridden_hooks(strategy):
    return fitted(strategy, Overriding(), callbacks=[cb.GradientAccumulationScheduler({0: 2, 1: 1})])


class Dicts(Net):
    """Values that a step keeps in a list of dicts, and a metric that each epoch creates again."""

    def __init__(self):
        super().__init__()
        self.kept = []

    def training_step(self, batch, batch_idx):
        loss = super().training_step(batch, batch_idx)
        self.kept.append({"loss": loss.detach(), "size": len(batch[0])})
        return loss

    def on_train_epoch_end(self):
        self.log("kept", sum(float(one["loss"]) * one["size"] for one in self.kept))
        self.kept.clear()

    def on_validation_epoch_start(self):
        self.val_acc = MulticlassAccuracy(3)

    def validation_step(self, batch, batch_idx):
        super().validation_step(batch, batch_idx)
        return float(batch[0].sum())


@row
def dicts_metrics_and_functions_as_callbacks(strategy):
    sums = []
    one = cb.LambdaCallback(on_validation_batch_end=lambda _, __, outputs, *rest: sums.append(outputs.hex()))
    return *fitted(strategy, Dicts(), callbacks=[one]), sums


@row
def max_steps_with_a_schedule_of_accumulation(strategy):
    return fitted(strategy, max_epochs=-1, max_steps=20, callbacks=[cb.GradientAccumulationScheduler({0: 1, 1: 4})])


@row
def predictions_written_by_a_callback(strategy):
    written = []

    class Writer(cb.BasePredictionWriter):
        def write_on_batch_end(self, trainer, module, prediction, batch_indices, batch, batch_idx, dataloader_idx):
            written.append((batch_idx, prediction.tolist(), batch_indices))

        def write_on_epoch_end(self, trainer, module, predictions, batch_indices):
            written.append(batch_indices)

    trainer(strategy, callbacks=[Writer("batch_and_epoch")]).predict(Net(), loaders()[1])
    return written


@row
def lbfgs(strategy):
    class Closures(Net):
        def configure_optimizers(self):
            return torch.optim.LBFGS(self.parameters(), 0.1, max_iter=3)

    return fitted(strategy, Closures(), max_epochs=1)


@row
def iterable_data(strategy):
    class Stream(torch.utils.data.IterableDataset):
        def __iter__(self):
            return iter(data())

    return fitted(
        strategy, train=DataLoader(Stream(), 10), val=DataLoader(Stream(), 8), limit_train_batches=6, limit_val_batches=3
    )


@row
def fit_twice(strategy):
    model = Net()
    first = trainer(strategy)
    first.fit(model, *loaders())
    second = trainer(LockstepStrategy(**SETTINGS), max_epochs=1)
    second.fit(model, *loaders())
    first.fit_loop.max_epochs = 3
    first.fit(model, *loaders())
    return outcome(model, second, *outcome(model, first))
