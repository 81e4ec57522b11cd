"""Scripts that LockstepStrategy refuses, by name, each with the code of the error that it must
raise."""

import collections
import contextlib
import logging
import warnings
from pathlib import Path

import lightning as L
import numpy as np
import torch
from lightning.pytorch import callbacks as cb
from lightning.pytorch.utilities import CombinedLoader
from lightning_rows import SETTINGS, Net, data, loaders, trainer
from torch.utils.data import DataLoader, IterableDataset
from torchmetrics import MetricTracker
from torchmetrics.classification import MulticlassAccuracy

from lockstep._base.errors import ConfigError, UsageError
from lockstep.integrations.lightning import LockstepStrategy

logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
REFUSED = {}


def run_refusal(name, root):
    """Returns whether the expected error is raised, in this directory, and the error."""
    Path(root).mkdir(exist_ok=True)
    with warnings.catch_warnings(), contextlib.chdir(root):
        warnings.simplefilter("ignore")
        strategy = LockstepStrategy(**SETTINGS)
        try:
            kind, code, function = REFUSED[name]
            try:
                function(strategy)
            except Exception as error:
                found = getattr(error, "code", "")
                return (type(error), found) == (kind, code), f"{found}: {error!r}"
            return False, "no error"
        finally:
            with contextlib.suppress(Exception):
                strategy.close()


def refused(code, kind=UsageError):
    def add(function):
        REFUSED[function.__name__] = kind, code, function
        return function

    return add


def fit(strategy, model=None, **settings):
    trainer(strategy, max_epochs=1, num_sanity_val_steps=0, **settings).fit(model or Net(), *loaders())


def in_step(name, body):
    """A module with this in a step."""

    def step(self, batch, *others):
        body(self, batch)
        return getattr(super(kind, self), name)(batch, *others)

    kind = type("Changed", (Net,), {name: step})
    return kind()


@refused("manual-optimization")
def manual_optimization(strategy):
    model = Net()
    model.automatic_optimization = False
    fit(strategy, model)


@refused("number-of-optimizers")
def no_optimizer(strategy):
    model = Net()
    model.configure_optimizers = lambda: None
    fit(strategy, model)


@refused("number-of-optimizers")
def several_optimizers(strategy):
    class Two(Net):
        def configure_optimizers(self):
            return [torch.optim.SGD(self.net[0].parameters(), 0.1), torch.optim.SGD(self.net[4].parameters(), 0.1)]

    fit(strategy, Two())


@refused("", RuntimeError)
def an_error_of_the_script(strategy):
    model = Net()

    def fails():
        raise RuntimeError("of the script")

    model.configure_optimizers = fails
    fit(strategy, model)


@refused("backward-overridden")
def backward_overridden(strategy):
    class Own(Net):
        def backward(self, loss):
            loss.backward()

    fit(strategy, Own())


@refused("several-loaders")
def several_training_loaders(strategy):
    one = loaders()[0]
    trainer(strategy).fit(Net(), CombinedLoader({"a": one, "b": one}))


@refused("several-loaders")
def validation_loaders_side_by_side(strategy):
    train, val = loaders()
    trainer(strategy).fit(Net(), train, CombinedLoader({"a": val, "b": val}, "min_size"))


@refused("checkpoint-of-lightning")
def a_checkpoint_to_go_on_from(strategy):
    model, one = Net(), trainer(strategy, max_epochs=1)
    one.fit(model, *loaders())
    one.save_checkpoint("saved.ckpt")
    one.fit(model, *loaders(), ckpt_path="saved.ckpt", weights_only=False)


@refused("devices-of-trainer")
def several_devices(strategy):
    fit(strategy, devices=2)


@refused("devices-of-trainer")
def several_nodes(strategy):
    fit(strategy, num_nodes=2)


@refused("precision-of-trainer", ConfigError)
def float16(strategy):
    fit(strategy, precision="16-true")


@refused("reloaded-loaders")
def loaders_made_again(strategy):
    fit(strategy, reload_dataloaders_every_n_epochs=1)


@refused("validation-by-time")
def validation_by_the_clock(strategy):
    fit(strategy, val_check_interval="00:00:00:05")


@refused("callback-not-supported")
def weight_averaging(strategy):
    fit(strategy, callbacks=[cb.StochasticWeightAveraging(0.1)])


@refused("endless-training")
def epochs_without_end(strategy):
    trainer(strategy, max_epochs=-1).fit(Net(), *loaders())


@refused("loader-without-length")
def a_loader_of_unknown_length(strategy):
    class Stream(IterableDataset):
        def __iter__(self):
            return iter(data())

    trainer(strategy).fit(Net(), DataLoader(Stream(), 10))


@refused("samples-in-hook")
def samples_in_a_hook(strategy):
    class Reads(L.Callback):
        def on_train_batch_start(self, trainer, module, batch, batch_idx):
            _, labels = batch
            return labels

    fit(strategy, callbacks=[Reads()])


@refused("samples-in-hook")
def samples_in_a_hook_of_validation(strategy):
    class Reads(L.Callback):
        def on_validation_batch_end(self, trainer, module, outputs, batch, batch_idx, dataloader_idx=0):
            return batch[0]

    fit(strategy, callbacks=[Reads()])


@refused("value-of-one-shard")
def other_outputs_in_a_hook(strategy):
    class Returns(Net):
        def training_step(self, batch, batch_idx):
            return {"loss": super().training_step(batch, batch_idx), "inputs": batch[0]}

        def on_train_batch_end(self, outputs, batch, batch_idx):
            torch.sum(outputs["inputs"])

    fit(strategy, Returns())


@refused("metric-read-in-step")
def a_metric_computed_in_a_step(strategy):
    fit(strategy, in_step("validation_step", lambda self, _: self.val_acc.compute()))


@refused("metric-in-container")
def a_metric_in_a_list(strategy):
    model = Net()
    model.others = [MulticlassAccuracy(3)]
    fit(strategy, model)


@refused("value-of-one-shard")
def a_count_of_steps(strategy):
    def count(self, _):
        self.num_steps += 1

    model = in_step("training_step", count)
    model.num_steps = 0
    fit(strategy, model)


@refused("attribute-changed-in-step")
def a_sum_in_place(strategy):
    def add(self, _):
        self.total += 1

    model = in_step("validation_step", add)
    model.total = torch.zeros(())
    fit(strategy, model)


@refused("attribute-changed-in-step")
def a_count_in_a_mapping(strategy):
    def count(self, _):
        self.counts["steps"] += 1

    model = in_step("validation_step", count)
    model.counts = {"steps": 0}
    fit(strategy, model)


@refused("value-of-one-shard")
def a_value_of_the_last_shard(strategy):
    def keep(self, batch):
        self.newest = batch[0]

    model = in_step("training_step", keep)
    model.on_train_epoch_end = lambda: model.newest.mean()
    fit(strategy, model)


@refused("list-read-in-evaluation")
def a_list_read_in_an_evaluation(strategy):
    def few(self, batch):
        if len(self.few) < 2:
            self.few.append(batch[0])

    model = in_step("validation_step", few)
    model.few = []
    fit(strategy, model)


class Meter:
    """A running average, as many scripts have one."""

    def __init__(self):
        self.total, self.count, self.values = 0.0, 0, []

    def update(self, value):
        self.total, self.count = self.total + value, self.count + 1


@refused("attribute-changed-in-step")
def a_running_average_in_an_object(strategy):
    model = in_step("training_step", lambda self, batch: self.meter.update(float(batch[0].mean())))
    model.meter = Meter()
    fit(strategy, model)


@refused("attribute-changed-in-step")
def a_list_in_an_object(strategy):
    model = in_step("validation_step", lambda self, batch: self.meter.values.append(len(batch[0])))
    model.meter = Meter()
    fit(strategy, model)


@refused("metric-in-container")
def a_metric_in_an_object(strategy):
    model = Net()
    model.meter = Meter()
    model.meter.accuracy = MulticlassAccuracy(3)
    fit(strategy, model)


@refused("metric-created-later")
def a_metric_that_is_made_later(strategy):
    class Tracks(Net):
        def __init__(self):
            super().__init__()
            self.tracker = MetricTracker(MulticlassAccuracy(3))

        def on_train_epoch_start(self):
            self.tracker.increment()

    fit(strategy, Tracks())


@refused("attribute-changed-in-step")
def counts_in_an_array(strategy):
    def count(self, batch):
        self.confusion[0, batch[1][0]] += 1

    model = in_step("validation_step", count)
    model.confusion = np.zeros((3, 3))
    fit(strategy, model)


@refused("attribute-changed-in-step")
def counts_in_a_list(strategy):
    def count(self, _):
        self.counts[0] += 1

    model = in_step("training_step", count)
    model.counts = [0]
    fit(strategy, model)


@refused("attribute-changed-in-step")
def a_list_that_forgets(strategy):
    model = in_step("training_step", lambda self, batch: self.newest.append(len(batch[0])))
    model.newest = collections.deque(maxlen=3)
    fit(strategy, model)


@refused("attribute-changed-in-step")
def a_generator_of_the_module(strategy):
    model = in_step("training_step", lambda self, _: torch.rand((), generator=self.generator))
    model.generator = torch.Generator()
    fit(strategy, model)


@refused("buffer-changed-in-evaluation")
def a_buffer_changed_in_an_evaluation(strategy):
    def add(self, _):
        self.seen += 1

    model = in_step("validation_step", add)
    model.register_buffer("seen", torch.zeros(()))
    fit(strategy, model)


@refused("", UserWarning)
def a_count_of_a_submodule(strategy):
    def count(self, _):
        self.net[0].num_calls += 1

    model = in_step("training_step", count)
    model.net[0].num_calls = 0
    warnings.simplefilter("error")
    warnings.filterwarnings("ignore", module="lightning")
    fit(strategy, model)


@refused("value-of-one-shard")
def a_value_of_a_step_that_is_compared(strategy):
    def keep(self, _):
        self.phase = "warm-up"

    model = in_step("training_step", keep)
    model.on_train_batch_end = lambda *_: model.phase == "warm-up"
    fit(strategy, model)


@refused("gather-in-step")
def gathered_in_a_step(strategy):
    fit(strategy, in_step("training_step", lambda self, batch: self.all_gather(batch[0])))


@refused("setting-of-lightning", ConfigError)
def accumulation_by_lockstep(_):
    LockstepStrategy(shards=4, accumulate=2)


@refused("settings-of-joined-run")
def another_run(_):
    LockstepStrategy(shards=8)
