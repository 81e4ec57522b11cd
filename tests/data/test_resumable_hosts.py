"""What accelerate, Lightning and transformers' Trainer do with a resumable loader: keep its
position, or are refused."""

import importlib.util
import re
from collections import Counter
from pathlib import Path

import pytest

pytestmark = [pytest.mark.timeout(150), pytest.mark.long]

PAGE = Path(__file__).parents[2] / "docs" / "how-to" / "resumable-loader.md"
WITH_TRAINER = re.search(r'```python title="with_trainer.py"\n(.*?)```', PAGE.read_text(), re.DOTALL)[1]


@pytest.fixture
def require_packages(require):
    def check(*names):
        for name in names:
            require(name, None if importlib.util.find_spec(name) else f"{name} is not installed (pip install {name})")

    return check


ACCELERATE = """
import torch
from accelerate import Accelerator, skip_first_batches
from accelerate.utils import gather_object
from torch import nn
from torch.utils.data import DataLoader, IterableDataset

import lockstep


class Stream(IterableDataset):
    def __iter__(self):
        return iter(range(30))


def make(data, **options):
    return lockstep.resumable(DataLoader(data, 4, **options))


def refused(call, kind):
    try:
        call()
    except kind:
        return
    raise AssertionError(f"{call} was not refused")


accelerator = Accelerator(cpu=True)
loader = make(range(30), shuffle=True)
model, prepared = accelerator.prepare(nn.Linear(1, 1), loader)
assert prepared is loader
accelerator.register_for_checkpointing(loader)
used = []
for batch in loader:
    used += gather_object(batch.tolist())
    if len(used) == 12:
        accelerator.save_state("state")
used = used[:12]
loader.set_epoch(7)
accelerator.load_state("state")
for batch in loader:
    used += gather_object(batch.tolist())
assert sorted(used) == list(range(30)), used
for data in (range(30), Stream()):
    refused(lambda: skip_first_batches(make(data), 2), AttributeError)
    refused(lambda: lockstep.resumable(accelerator.prepare(DataLoader(data, 4))), lockstep.DataError)
print("passed")
"""


def test_accelerate_saves_and_loads_the_position_and_splits_nothing_again(run_here, require_packages):
    require_packages("accelerate")
    done = run_here(ACCELERATE, "--nproc-per-node", "2")
    assert done.returncode == 0, done.stderr
    assert "passed" in done.stdout


LIGHTNING = """
import warnings

import lightning
import torch
from lightning.pytorch.callbacks import ModelCheckpoint
from torch import nn
from torch.utils.data import DataLoader, IterableDataset

import lockstep

warnings.simplefilter("ignore")


class Stream(IterableDataset):
    def __iter__(self):
        return iter(range(30))


class Module(lightning.LightningModule):
    def __init__(self, data, shuffle):
        super().__init__()
        self.layer = nn.Linear(1, 1)
        self.loader = lockstep.resumable(DataLoader(data, 4, shuffle=shuffle), seed=5)
        self.used = []

    def train_dataloader(self):
        return self.loader

    def training_step(self, batch, number):
        self.used.append((self.current_epoch, batch.tolist()))
        return self.layer(batch.float().unsqueeze(1)).mean()

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1)


def fit(module, resume=None):
    saving = ModelCheckpoint("saved", filename="{step}", every_n_train_steps=1, save_top_k=-1)
    trainer = lightning.Trainer(
        accelerator="cpu", devices=1, max_epochs=3, logger=False, enable_progress_bar=False, enable_model_summary=False,
        callbacks=[saving],
    )
    trainer.fit(module, ckpt_path=resume)
    return module.used


whole = fit(Module(range(30), True))
assert [epoch for epoch, _ in whole] == [0] * 8 + [1] * 8 + [2] * 8
for step in (3, 8, 13):  # within epochs, and at the end of one
    rest = fit(Module(range(30), True), f"saved/step={step}.ckpt")
    assert rest == whole[step:], step
fabric = lightning.Fabric(accelerator="cpu", devices=1)
loader, other = Module(range(30), True).loader, Module(range(30), True).loader
used = [batch.tolist() for batch, _ in zip(loader, range(3), strict=False)]
fabric.save("fabric.ckpt", {"loader": loader})
fabric.load("fabric.ckpt", {"loader": other})
done = loader.state_dict()["batches"]
assert [batch.tolist() for batch in other] == [batch for _, batch in whole[done:8]]
try:
    fit(Module(Stream(), False))
except lockstep.UsageError:
    print("passed")
"""


def test_lightning_saves_and_loads_the_position_and_is_refused_where_it_prefetches(run_here, require_packages):
    require_packages("lightning")
    done = run_here(LIGHTNING)
    assert done.returncode == 0, done.stderr
    assert "passed" in done.stdout


def noting(text, stop):
    """The page's script, which notes what it uses, and stops behind a step: on rank 0, which has
    written the checkpoint by then."""
    noted = text.replace("for x in torch.randn(600, 8)]", "for number, x in enumerate(torch.randn(600, 8))]")
    noted = noted.replace('{"x": x,', '{"number": number, "x": x,').replace(
        "def forward(self, x,", "def forward(self, number, x,"
    )
    noted = noted.replace("        return {", "        print('used', *number.tolist())\n        return {")
    stopping = (
        "    def on_step_begin(self, args, state, control, **_):\n"
        f"        if state.global_step == {stop}:\n"
        "            exec('1 / 0' if state.is_world_process_zero else 'import time; time.sleep(100)')\n\n"
    )
    return noted.replace("    def on_save", stopping + "    def on_save", 1)


def test_trainer_goes_on_within_an_epoch_with_the_script_of_the_page(run_here, require_packages):
    """30 steps, 10 an epoch, a checkpoint after each fourth."""
    require_packages("transformers", "accelerate")
    used = []
    for nproc, stop in ((2, 16), (1, 99)):
        done = run_here(noting(WITH_TRAINER, stop), "--nproc-per-node", str(nproc))
        assert (done.returncode == 0) == (stop == 99), done.stderr
        used += [int(number) for line in re.findall(r"^used (.*)$", done.stdout, re.MULTILINE) for number in line.split()]
    assert "trained 30 steps" in done.stdout
    assert Counter(used) == dict.fromkeys(range(600), 3)
