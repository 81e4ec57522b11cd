"""lockstep's Accelerator, alone and in this process: it trains as accelerate's own does, whatever
is asked of both, runs loops as people write them, and refuses what would give another number."""

import contextlib
import importlib
import warnings

import accelerate
import loops
import pytest
import resumed
import sizes
import torch
from accelerate.state import AcceleratorState, GradientState
from accelerate.utils import GradientAccumulationPlugin, ProjectConfiguration
from kept_imports import keep_imports
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from lockstep._base.errors import LockstepError
from lockstep.integrations.accelerate import Accelerator

pytestmark = pytest.mark.timeout(100)
ASKED = {
    "nothing": dict,
    "accumulation": lambda: {"gradient_accumulation_steps": 3},
    "a schedule of batches": lambda: {"gradient_accumulation_steps": 3, "step_scheduler_with_optimizer": False},
    "accumulation over epochs": lambda: {
        "gradient_accumulation_plugin": GradientAccumulationPlugin(num_steps=4, sync_with_dataloader=False)
    },
    "bfloat16": lambda: {"mixed_precision": "bf16"},
}
"""Arguments of both Accelerators. (Of plugins a new one each: they contain states.)"""


class Counted:
    """What a script registers."""

    number = 0

    def state_dict(self):
        return {"number": self.number}

    def load_state_dict(self, state):
        self.number = state["number"]


@pytest.fixture(scope="module")
def _frozen():
    """After the imports of a training: the end of each run would look through them."""
    importlib.import_module("torch._dynamo")
    keep_imports()


@pytest.fixture
def own(_frozen, tmp_path):
    """``own(**arguments)``: lockstep's Accelerator of a run in ``tmp_path``."""
    made = []

    def make(**arguments):
        forget()
        made.append(Accelerator(cpu=True, shards=3, threads=1, run_dir=str(tmp_path / "run"), progress="off", **arguments))
        return made[-1]

    yield make
    for each in made:
        each.team.close()
    forget()


def forget():
    """Ends accelerate's state of this process."""
    AcceleratorState._reset_state(reset_partial_state=True)
    GradientState._reset_state()


def prepared(accelerator):
    torch.manual_seed(3)
    x = torch.randn(26, 6)
    data = TensorDataset(x, x[:, :3].argmax(1))
    model = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 3))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 2, 0.7)
    return accelerator.prepare(model, optimizer, schedule, DataLoader(data, 5), DataLoader(data, 8, drop_last=True))


def train(accelerator, folder):
    """Returns the numbers that a loop has seen, the weights, and the folders that it saves."""
    accelerator.project_configuration.set_directories(str(folder))
    model, optimizer, schedule, loader, test = prepared(accelerator)
    accelerator.register_for_checkpointing(Counted())
    accelerator.gradient_accumulation_steps = accelerator.gradient_accumulation_steps  # all else stays
    with accelerator.autocast():
        told = [(torch.ones(2, 2) @ torch.ones(2, 2)).dtype == torch.bfloat16]
    for _ in range(2):
        model.train()
        for x, y in loader:
            with accelerator.accumulate(model):
                distance = nn.functional.mse_loss(model(x)[:, 0], x[:, 1])
                loss = nn.functional.cross_entropy(model(x), y) - 0.1 * distance
                accelerator.backward(loss)
                told += [loss.item(), distance.item(), accelerator.sync_gradients]
                optimizer.step()
                with warnings.catch_warnings():  # accelerate's schedules step before its optimizers
                    warnings.simplefilter("ignore")
                    schedule.step()
                optimizer.zero_grad()
            told.append(schedule.get_last_lr()[0])
        model.eval()
        for x, y in test:
            with torch.no_grad():
                logits = model(x)
                loss = nn.functional.cross_entropy(logits, y)
            logits = accelerator.gather_for_metrics(logits)
            told.append(torch.equal(logits.bfloat16().float(), logits.float()))
            losses = accelerator.gather_for_metrics(loss.repeat(8))
            told += [len(losses), losses.mean().item()]
        accelerator.save_state()
    told += torch.cat([each.detach().flatten() for each in model.parameters()]).tolist()
    saved = {path.relative_to(folder).as_posix() for path in folder.rglob("*.*")}
    return told, {path for path in saved if not path.endswith(("sampler.bin", "random_states_0.pkl"))}


@pytest.mark.parametrize("asked", ASKED)
def test_a_training_has_the_numbers_and_files_of_plain_accelerate(own, tmp_path, asked):
    def project():
        return ProjectConfiguration(automatic_checkpoint_naming=True, total_limit=1)

    plain, with_plugin = tmp_path / "plain", ASKED[asked]
    forget()
    expected, files = train(accelerate.Accelerator(cpu=True, project_config=project(), **with_plugin()), plain)
    found, saved = train(own(project_config=project(), checkpoint_every="off", **with_plugin()), tmp_path / "own")
    is_rounded = asked == "bfloat16"
    assert found == pytest.approx(expected, rel=1e-2, abs=1e-2)
    assert (found == pytest.approx(expected, rel=1e-4, abs=1e-5)) != is_rounded  # by other shards
    assert saved == {path.replace("model.safetensors", "pytorch_model.bin") for path in files}


@pytest.fixture
def accelerators(_frozen, one_thread, tmp_path, monkeypatch):
    """Accelerators of this process, whose runs are closed when the test ends."""
    made = []

    def make(**settings):
        close()
        forget()
        run_dir = str(tmp_path / f"run-{len(made)}")
        made.append(Accelerator(**{**settings, "threads": 1, "run_dir": run_dir, "checkpoint_every": "off"}))
        return made[-1]

    def close():
        with contextlib.suppress(LockstepError):
            for each in made[-1:]:
                each.team.close()

    for module in (loops, sizes):
        monkeypatch.setattr(module, "Accelerator", make)
    yield make
    close()
    forget()


@pytest.mark.filterwarnings("ignore")
def test_loops_have_the_numbers_that_they_assert(accelerators):
    assert loops.run_all(0).keys() == {loop.__name__ for loop in loops.LOOPS}


@pytest.mark.filterwarnings("ignore")
def test_what_would_give_another_number_is_refused_by_one_process(accelerators):
    for name, (loop, expected) in loops.REFUSED.items():
        with pytest.raises((LockstepError, AttributeError)) as raised:
            loop(accelerators(cpu=True, shards=5, progress="off"))
        assert getattr(raised.value, "code", type(raised.value).__name__) == expected, name


@pytest.mark.filterwarnings("ignore")
def test_a_loss_that_a_size_scales_is_refused(accelerators):
    assert sizes.refused() == dict.fromkeys(sizes.SCALED, "loss-scaled-by-size")


@pytest.mark.filterwarnings("ignore")
def test_sizes_are_those_of_shards_in_one_process(accelerators):
    mean, *others = sizes.meant()
    for other in others:
        assert other == pytest.approx(mean, rel=1e-5, abs=1e-7)


class LeftError(BaseException):
    """No error that a script catches."""


@pytest.fixture
def trained(_frozen, one_thread, tmp_path, monkeypatch):
    """``trained(function, place, leave_at=0)``: what a function of ``resumed`` returns in this
    directory, or None if it is left at that step, once its checkpoint is there."""
    made = []

    def make(**settings):
        forget()
        made.append(Accelerator(**settings, threads=1))
        return made[-1]

    def leave(accelerator):
        assert accelerator.team._engine.saver.wait_until_written()
        raise LeftError

    monkeypatch.setattr(resumed, "Accelerator", make)
    monkeypatch.setattr(resumed, "die", leave)

    def run(function, place, leave_at=0):
        (tmp_path / place).mkdir(exist_ok=True)
        monkeypatch.chdir(tmp_path / place)
        with warnings.catch_warnings(), contextlib.suppress(LeftError):
            warnings.simplefilter("ignore")
            try:
                return function(leave_at)
            finally:
                with contextlib.suppress(LockstepError):
                    made[-1].team.close()
        return None

    yield run
    forget()


def test_a_run_that_is_left_is_resumed_as_an_undisturbed_one_or_not_at_all(trained):
    whole = trained(resumed.train, "whole")
    assert trained(resumed.train, "parts", 4) is None  # between two steps of the optimizer
    assert trained(resumed.train, "parts") == whole
    for step in (2, 3):  # after the last step of a pass, and after the first of the next
        assert trained(resumed.count_from_the_first_epoch, f"range {step}", step) is None
        assert trained(resumed.count_from_the_first_epoch, f"range {step}") == "epochs-by-range"
    assert trained(resumed.accumulate_by_hand, "by hand") == (None, 1)
    assert trained(resumed.accumulate_by_hand, "by hand, left", 3) is None
    assert trained(resumed.accumulate_by_hand, "by hand, left") == ("accumulation-by-script", None)


def test_only_a_script_that_accumulates_by_itself_is_warned(accelerators):
    def step(accelerator, num_backward, drops, steps=True, block=contextlib.nullcontext):
        model, optimizer, loader, _ = loops.parts(accelerator)
        with warnings.catch_warnings(record=True) as found:
            warnings.simplefilter("always")
            for x, y in loader:
                with block(model):
                    for _ in range(num_backward):
                        accelerator.backward(nn.functional.cross_entropy(model(x), y))
                    if steps:
                        optimizer.step()
                    if drops:
                        optimizer.zero_grad()
        return sum("accelerator.accumulate" in str(one.message) for one in found)

    made = accelerators(cpu=True, shards=2, progress="off")
    assert step(made, 1, drops=True) == 0
    assert step(made, 2, drops=True) == 0
    assert step(made, 1, drops=False) == 0
    assert step(made, 1, drops=True, steps=False) == 0
    made.gradient_accumulation_steps = 2
    assert step(made, 1, drops=True, block=made.accumulate) == 0
    made.gradient_accumulation_steps = 1
    assert step(made, 1, drops=False, steps=False) == 1


def test_weights_and_sums_are_those_of_the_whole_batch(accelerators):
    accelerator = accelerators(cpu=True, shards=5, progress="off")
    torch.manual_seed(3)
    plain, x = nn.Linear(6, 3), torch.randn(26, 6)
    y = x[:, :3].argmax(1)
    model = nn.Linear(6, 3)
    model.load_state_dict(plain.state_dict())
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    model, optimizer, loader = accelerator.prepare(model, optimizer, DataLoader(TensorDataset(x, y), 26))
    for reduction, weighted in (("sum", False), (None, True), (None, False)):
        rows = nn.functional.cross_entropy(plain(x), y, reduction="none") * (y > 0)
        expected = rows.sum() if reduction else rows.sum() / ((y > 0).sum() if weighted else len(y))
        expected.backward()
        for inputs, labels in loader:
            kept = labels > 0
            rows = nn.functional.cross_entropy(model(inputs), labels, reduction="none") * kept
            loss = rows.sum() if reduction else rows.sum() / kept.sum() if weighted else rows.mean()
            count = accelerator.reduce(kept.sum(), reduction="sum")
            accelerator.backward(loss, weight=kept.sum() if weighted else None, reduction=reduction)
            assert loss.item() == pytest.approx(expected.item(), rel=1e-5)
            assert (accelerator.reduce(count).dtype, count.item()) == (torch.int64, (y > 0).sum().item())
        for own, other in zip(model.parameters(), plain.parameters(), strict=True):
            assert torch.allclose(own.grad, other.grad, rtol=1e-4, atol=1e-6)
            other.grad = None
        optimizer.zero_grad()
