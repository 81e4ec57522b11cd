"""One process of LockstepStrategy trains, logs and stops as Lightning does without it."""

import importlib.util
import math
import warnings

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

pytestmark = [pytest.mark.long, pytest.mark.timeout(100)]
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
    import lightning

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
