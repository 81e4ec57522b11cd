"""A tutorial's script: a data module and a classifier of handwritten digits, with callbacks,
metrics and a logger.

KILL=STEP: SIGKILL on all processes after that step, once a checkpoint is there; STOP=STEP: SIGTERM.
The last line has what it has come to.
"""

import hashlib
import os
import signal
import sys
import time
from pathlib import Path

import lightning as L
import torch
from lightning.pytorch.callbacks import EarlyStopping, ModelCheckpoint
from lightning.pytorch.loggers import CSVLogger
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import DataLoader, TensorDataset, random_split
from torchmetrics import MaxMetric, MeanMetric
from torchmetrics.classification import MulticlassAccuracy

from lockstep.integrations.lightning import LockstepStrategy

KILL, STOP = (int(os.environ.get(name, "0")) for name in ("KILL", "STOP"))
SETTINGS = {"shards": 6} | ({"run_dir": sys.argv[1], "checkpoint_every": 2} if sys.argv[1:] else {})


class Digits(L.LightningDataModule):
    def __init__(self, batch_size):
        super().__init__()
        self.batch_size = batch_size

    def setup(self, stage):
        images, labels = load_digits(return_X_y=True)
        inputs = torch.tensor(images, dtype=torch.float32).view(-1, 1, 8, 8) / 16
        data = TensorDataset(inputs[:600], torch.tensor(labels)[:600])
        self.train, self.val, self.test = random_split(data, [411, 89, 100], generator=torch.Generator().manual_seed(42))

    def train_dataloader(self):
        return DataLoader(self.train, self.batch_size, shuffle=True)

    def val_dataloader(self):
        return DataLoader(self.val, self.batch_size)

    def test_dataloader(self):
        return DataLoader(self.test, self.batch_size)


class Classifier(L.LightningModule):
    def __init__(self, lr):
        super().__init__()
        self.save_hyperparameters()
        self.net = nn.Sequential(
            nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Dropout(0.2), nn.Linear(144, 10)
        )
        self.criterion = nn.CrossEntropyLoss()
        self.train_acc, self.val_acc, self.test_acc = (MulticlassAccuracy(10) for _ in range(3))
        self.train_loss, self.val_acc_best = MeanMetric(), MaxMetric()
        self.val_logits = []

    def forward(self, x):
        return self.net(x)

    def model_step(self, batch):
        x, y = batch
        logits = self(x)
        return self.criterion(logits, y), logits.argmax(1), y, logits

    def on_train_start(self):
        self.val_acc_best.reset()  # after the sanity check

    def training_step(self, batch, batch_idx):
        loss, preds, y, _ = self.model_step(batch)
        self.train_loss(loss)
        self.train_acc(preds, y)
        self.log("train/loss", self.train_loss, on_step=False, on_epoch=True, prog_bar=True)
        self.log("train/acc", self.train_acc, on_step=True, on_epoch=True, prog_bar=True)
        self.log("train/plain", loss, on_step=True, on_epoch=True)
        return loss

    def validation_step(self, batch, batch_idx):
        loss, preds, y, logits = self.model_step(batch)
        self.val_acc(preds, y)
        self.val_logits.append(logits)
        self.log("val/loss", loss)
        self.log("val/acc", self.val_acc, prog_bar=True)

    def on_validation_epoch_end(self):
        self.val_acc_best(self.val_acc.compute())
        self.log("val/acc_best", self.val_acc_best.compute(), sync_dist=True, prog_bar=True)
        self.log("val/spread", torch.cat(self.val_logits).std())
        self.val_logits.clear()

    def test_step(self, batch, batch_idx):
        loss, preds, y, _ = self.model_step(batch)
        self.test_acc(preds, y)
        self.log_dict({"test/loss": loss, "test/acc": self.test_acc})

    def configure_optimizers(self):
        optimizer = torch.optim.AdamW(self.parameters(), lr=self.hparams.lr)
        schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.02, total_steps=self.trainer.estimated_stepping_batches)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": schedule, "interval": "step"}}


class Kill(L.Callback):
    def on_train_batch_end(self, trainer, *_):
        if STOP and trainer.strategy.team.step == STOP:
            os.kill(os.getpid(), signal.SIGTERM)
        if KILL and trainer.strategy.team.step == KILL:
            deadline = time.monotonic() + 60
            while not Path("run/checkpoints/newest").exists() and time.monotonic() < deadline:
                time.sleep(0.01)
            trainer.strategy.barrier()
            os.kill(os.getpid(), signal.SIGKILL)


def main():
    L.seed_everything(7)
    model, data = Classifier(lr=0.005), Digits(batch_size=36)
    trainer = L.Trainer(
        strategy=LockstepStrategy(**SETTINGS),
        accelerator="cpu",
        max_epochs=3,
        accumulate_grad_batches=2,
        gradient_clip_val=0.5,
        val_check_interval=0.5,
        log_every_n_steps=1,
        enable_progress_bar=False,
        logger=CSVLogger("logs"),
        callbacks=[ModelCheckpoint(monitor="val/acc", mode="max"), EarlyStopping("val/loss", patience=9), Kill()],
    )
    trainer.fit(model, data)
    metrics = dict(trainer.callback_metrics)
    trainer.test(model, data)
    metrics |= trainer.callback_metrics
    weights = b"".join(tensor.numpy().tobytes() for tensor in model.state_dict().values())
    results = repr((trainer.global_step, {name: float(value).hex() for name, value in sorted(metrics.items())})).encode()
    if trainer.is_global_zero:
        print("ended", trainer.global_step, hashlib.sha256(weights + results).hexdigest(), flush=True)
        if "SHOW" in os.environ:
            print({name: float(value) for name, value in sorted(metrics.items())})


if __name__ == "__main__":
    main()
