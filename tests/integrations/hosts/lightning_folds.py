"""Cross-validation by Lightning in one script: a fit, and an evaluation, for each of two folds.

KILL=STEP: SIGKILL there, once a checkpoint of the same fold is there. Prints what each evaluation
finds, or the kind of error that refuses it."""

import logging
import os
import signal
import time
import warnings
from pathlib import Path

import lightning as L
from lightning_rows import SETTINGS, Net, loaders

from lockstep._base.errors import UsageError
from lockstep.integrations.lightning import LockstepStrategy

warnings.filterwarnings("ignore")
logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
KILL = int(os.environ.get("KILL", "0"))


def newest_step():
    newest = Path("run/checkpoints/newest")
    return int(newest.read_text().removeprefix("step-")) if newest.exists() else 0


class Kill(L.Callback):
    def on_train_start(self, trainer, *_):
        self.began_at = trainer.strategy.team.step

    def on_train_batch_end(self, trainer, *_):
        if trainer.strategy.team.step == KILL:
            deadline = time.monotonic() + 60
            while newest_step() <= self.began_at and time.monotonic() < deadline:
                time.sleep(0.01)
            trainer.strategy.barrier()
            os.kill(os.getpid(), signal.SIGKILL)


L.seed_everything(3)
for fold in range(2):
    train, test = loaders()
    module = Net()
    trainer = L.Trainer(
        strategy=LockstepStrategy(**{**SETTINGS, "run_dir": "run", "checkpoint_every": 1}),
        accelerator="cpu",
        max_epochs=2,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        callbacks=[Kill()],
    )
    trainer.fit(module, train)
    try:
        [found] = trainer.validate(module, test, verbose=False)
    except UsageError:
        found = "UsageError"
    if trainer.is_global_zero:
        print("fold", fold, found, flush=True)
