"""Fits that save the run after every step, and fits that are resumed from one of these
checkpoints."""

import contextlib
import warnings

import lightning as L
from checkpoint_files import save_at_once
from lightning.pytorch import callbacks as cb
from lightning_rows import SETTINGS, Net, data, outcome, trainer
from torch.utils.data import DataLoader
from torchmetrics import MaxMetric

from lockstep.integrations.lightning import LockstepStrategy

HOW = {
    "three batches an epoch": {},
    "accumulation": {"accumulate_grad_batches": 2, "val_check_interval": 2},
}
"""Arguments of Trainer."""


class Seen(L.Callback):
    """What hooks see."""

    def __init__(self):
        self.seen = []

    def state_dict(self):
        return {"seen": list(self.seen)}

    def load_state_dict(self, state):
        self.seen = list(state["seen"])

    def on_train_epoch_start(self, trainer, pl_module):
        self.seen.append((trainer.current_epoch, trainer.global_step))

    def on_train_batch_end(self, trainer, pl_module, outputs, batch, batch_idx):
        self.seen.append((batch_idx, trainer.global_step, float(outputs["loss"])))

    def on_validation_end(self, trainer, pl_module):
        self.seen.append(float(trainer.callback_metrics["val_loss"]))


class Kept(Net):
    """With counts in Lightning's checkpoints, and a metric over all steps."""

    def __init__(self):
        super().__init__()
        self.largest, self.steps = MaxMetric(), 0

    def training_step(self, batch, batch_idx):
        self.largest.update(batch[0])
        return super().training_step(batch, batch_idx)

    def on_train_batch_end(self, *_):
        self.steps += 1

    def on_train_epoch_start(self):
        self.trainer.datamodule.epochs += 1

    def on_save_checkpoint(self, checkpoint):
        checkpoint["steps"] = self.steps

    def on_load_checkpoint(self, checkpoint):
        assert checkpoint["state_dict"].keys() == self.state_dict().keys()
        self.steps = checkpoint["steps"]


class Data(L.LightningDataModule):
    """Counts its epochs."""

    epochs = 0

    def train_dataloader(self):
        return DataLoader(data(30), 10, shuffle=True)

    def val_dataloader(self):
        return DataLoader(data(11, 9), 7)

    def state_dict(self):
        return {"epochs": self.epochs}

    def load_state_dict(self, state):
        self.epochs = state["epochs"]


def fitted(how, run_dir):
    """What a training comes to, with a checkpoint after every step."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        strategy = LockstepStrategy(**{**SETTINGS, "run_dir": str(run_dir), "checkpoint_every": 1, "keep": 99})
        save_at_once(strategy.team._engine.saver)
        try:
            L.seed_everything(3, verbose=False)
            seen, one, model = Seen(), trainer(strategy, max_epochs=3, **HOW[how]), Kept()
            best, stopping = (
                cb.ModelCheckpoint("best", monitor="val_loss", save_top_k=2),
                cb.EarlyStopping("val_loss", patience=9),
            )
            one.callbacks += [seen, best, stopping]
            one.fit(model, datamodule=Data())
            scores = sorted(map(float, best.best_k_models.values())), best.current_score.item()
            counts = stopping.wait_count, float(stopping.best_score), model.steps, one.datamodule.epochs
            return outcome(model, one, seen.seen, scores, counts, float(model.largest.compute()))
        finally:
            strategy.close()


def fit(how, root, run_dirs):
    """What trainings come to, one after the other, in these directories below a directory that all
    processes have."""
    with contextlib.chdir(root):
        return [fitted(how, run_dir) for run_dir in run_dirs]
