"""The steps of scripts that know nothing of lockstep: counted and timed by what PyTorch tells, and not disturbed."""

import copy
import sys
import time
import warnings

import pytest
import torch
from torch import nn
from torch.optim import optimizer as optimizers
from torch.utils.data import DataLoader, Dataset

from lockstep.tools.explain import script_clock
from lockstep.tools.explain.flight_recorder import Counts
from lockstep.tools.explain.places import where
from lockstep.tools.explain.script_clock import SAMPLES, ScriptClock, own_share


@pytest.fixture
def clock():
    clock = ScriptClock()
    yield clock
    clock.close()
    assert not optimizers._global_optimizer_pre_hooks
    assert not optimizers._global_optimizer_post_hooks


def make():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 8), nn.Linear(8, 1))
    return model, torch.optim.Adam(model.parameters(), lr=0.01)


def train(model, optimizer, num_steps, between=lambda: None):
    for step in range(num_steps):
        model(torch.full((2, 4), float(step))).sum().backward()
        between()
        optimizer.step()
        optimizer.zero_grad()


def hooked(model):
    return [name for name, parameter in model.named_parameters() if parameter._post_accumulate_grad_hooks]


def test_steps_are_counted_and_what_comes_between_the_last_gradient_and_the_optimizer_is_waiting(clock):
    train(*make(), 41, lambda: time.sleep(0.002))
    history = clock.history()
    assert history["num_steps"] == 41
    assert len(history["newest"]) == 10
    assert all(waited_s >= 0.002 for _, waited_s in history["newest"])
    assert [window[0] for window in history["windows"]] == [1, 2, 3, 4]
    for _, low_s, median_s, busy_s, waited_s, *_ in history["windows"]:
        assert 0 < low_s <= median_s
        assert busy_s > 0
        assert waited_s >= 0.002


def test_what_the_script_does_between_the_backward_pass_and_the_optimizer_is_being_busy(clock):
    def clip():
        clock.glance(sys._getframe())
        time.sleep(0.02)

    train(*make(), 21, clip)
    assert all(busy_s >= 0.02 for busy_s, _ in clock.history()["newest"])


def test_of_a_script_that_does_both_its_own_share_is_what_chance_does_not_explain():
    assert [own_share(num_own, 10) for num_own in (0, 6, 10)] == [0, 0, 1]
    assert [own_share(num_own, 200) for num_own in (0, 5, 190)] == [0, pytest.approx(0.003, abs=1e-3), 1]
    assert own_share(80, 200) == pytest.approx(0.33, abs=0.01)


def test_all_reduces_of_the_script_between_the_backward_pass_and_the_optimizer_are_waiting(clock, monkeypatch):
    monkeypatch.setattr(script_clock, "counts", lambda: Counts(2, {"0": 3}))

    def reduce():
        clock.glance(sys._getframe())
        time.sleep(0.002)

    train(*make(), 21, reduce)
    assert all(waited_s >= 0.002 for _, waited_s in clock.history()["newest"])
    assert clock.history()["windows"][-1][SAMPLES] == {}, "samples of a rank that waits are not of what it is busy with"


@pytest.mark.parametrize(
    ("name", "file", "expected"),
    [
        ("all_reduce", "c10d.py", {script_clock.WAITING: 9, "script": 9}),
        ("recv", "c10d.py", {"script": 18}),
        ("_step", "pipelining/schedules.py", {"script": 18}),
    ],
)
def test_samples_in_a_collective_anywhere_else_are_of_waiting_but_not_those_between_ranks_of_different_tasks(
    clock, name, file, expected
):
    code = compile(f"def {name}(clock): clock.glance(sys._getframe())", f"/lib/torch/distributed/{file}", "exec")
    room = {"sys": sys}
    exec(code, room)
    model, optimizer = make()
    for _ in range(10):
        train(model, optimizer, 1)
        room[name](clock)
        clock.glance(sys._getframe())
    assert clock.history()["windows"][0][SAMPLES] == expected


def test_micro_steps_before_the_last_one_count_as_what_they_are(clock):
    model, optimizer = make()

    class Seen(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x.clone()

        @staticmethod
        def backward(ctx, gradient):
            clock.glance(sys._getframe())
            return gradient

    for _ in range(10):
        for _ in range(3):
            Seen.apply(model(torch.ones(2, 4))).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
    assert clock.history()["windows"][-1][SAMPLES] == {"backward": 27}


def test_steps_of_parameters_that_do_not_tell_of_their_gradients_are_timed_as_a_whole(clock):
    weight = nn.Parameter(torch.ones(1))
    optimizer = torch.optim.SGD([weight], lr=0.1)
    for _ in range(11):
        weight.grad = torch.ones(1)  # as FSDP does
        time.sleep(0.002)
        optimizer.step()
    assert clock.num_steps == 11
    assert all(busy_s >= 0.002 and waited_s == 0 for busy_s, waited_s in clock.history()["newest"])


def test_the_end_of_a_backward_pass_is_known_after_all_that_was_queued_in_it():
    order = []
    weight = torch.ones(1, requires_grad=True)

    def ready(_):
        script_clock.call_after_backward(lambda: order.append("ours"))
        # As DistributedDataParallel does, to wait for its all-reduces:
        torch.autograd.Variable._execution_engine.queue_callback(lambda: order.append("theirs"))

    weight.register_post_accumulate_grad_hook(ready)
    weight.sum().backward()
    assert order == ["theirs", "ours"]


def test_of_all_parameters_it_listens_to_that_which_has_its_gradient_last(clock):
    model, optimizer = make()
    train(model, optimizer, 1)
    assert len(hooked(model)) == 4
    train(model, optimizer, 2)
    assert hooked(model) in (["0.weight"], ["0.bias"])
    clock.close()
    assert hooked(model) == []


def test_a_backward_pass_that_is_given_to_the_optimizer_as_a_closure_is_timed_too(clock):
    model, optimizer = make()

    def closure():
        optimizer.zero_grad()
        loss = model(torch.ones(2, 4)).sum()
        loss.backward()
        time.sleep(0.002)
        return loss

    for _ in range(5):
        optimizer.step(closure)
    assert clock.num_steps == 5
    assert len(clock.history()["newest"]) == 4
    assert all(waited_s >= 0.002 for _, waited_s in clock.history()["newest"])


def test_optimizers_that_act_on_the_same_gradients_make_one_step(clock):
    model, _ = make()
    pair = [torch.optim.SGD(layer.parameters(), lr=0.1) for layer in model]
    for _ in range(10):
        model(torch.ones(2, 4)).sum().backward()
        for optimizer in pair:
            optimizer.step()
            optimizer.zero_grad()
    assert clock.num_steps in (10, 11)  # of the first nobody knows


def test_the_weights_are_the_same_to_the_bit_and_copies_and_files_have_nothing_of_it(tmp_path):
    model, optimizer = make()
    train(model, optimizer, 5)
    with_clock, with_clock_optimizer = make()
    clock = ScriptClock()
    train(with_clock, with_clock_optimizer, 5)
    assert hooked(copy.deepcopy(with_clock)) == []
    torch.save(with_clock, tmp_path / "model.pt")
    torch.save(with_clock_optimizer, tmp_path / "optimizer.pt")
    clock.close()
    assert b"lockstep" not in (tmp_path / "model.pt").read_bytes() + (tmp_path / "optimizer.pt").read_bytes()
    for one, other in zip(model.parameters(), with_clock.parameters(), strict=True):
        assert torch.equal(one, other)


def test_nothing_is_done_in_what_is_being_compiled(clock, monkeypatch):
    monkeypatch.setattr(clock, "_is_compiling", lambda: True)
    train(*make(), 3)
    assert clock.num_steps == 0


@pytest.mark.long
def test_a_backward_pass_that_is_compiled_is_so_without_its_hooks(clock):
    model, optimizer = make()

    @torch.compile(backend="eager")
    def forward_and_backward():
        model(torch.ones(2, 4)).sum().backward()

    with torch._dynamo.config.patch(compiled_autograd=True), warnings.catch_warnings():
        warnings.simplefilter("error")  # Dynamo warns of what it cannot trace
        for _ in range(3):
            forward_and_backward()
            optimizer.step()
            optimizer.zero_grad()


class Seen(torch.autograd.Function):
    """Notes where it is seen in both directions."""

    places: list = []  # noqa: RUF012

    @staticmethod
    def forward(ctx, x):
        Seen.places.append(where(sys._getframe())[0])
        return x.clone()

    @staticmethod
    def backward(ctx, gradient):
        Seen.places.append(where(sys._getframe())[0])
        return gradient


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(1, 1)

    def forward(self, x):
        return Seen.apply(self.layer(x))


class Samples(Dataset):
    def __len__(self):
        return 1

    def __getitem__(self, index):
        Seen.places.append(where(sys._getframe())[0])
        return torch.ones(1)


def test_what_a_thread_does_is_told_by_its_stack(monkeypatch):
    monkeypatch.setattr(Seen, "places", [])
    for x in DataLoader(Samples()):
        Net()(x).sum().backward()
    assert Seen.places == ["data", "forward", "backward"]
    activity, place = where(sys._getframe())
    assert activity == "script"
    assert place.endswith(" in test_what_a_thread_does_is_told_by_its_stack")


def test_samples_belong_to_the_steps_in_which_they_are_taken(clock):
    def before_the_loop():
        clock.glance(sys._getframe())

    def once():
        time.sleep(0.2)
        clock.glance(sys._getframe())

    def in_each_step():
        clock.glance(sys._getframe())

    for _ in range(100):
        before_the_loop()
    model, optimizer = make()
    for step in range(10):
        in_each_step()
        if step == 5:
            once()
        train(model, optimizer, 1)
    history = clock.history()
    ((*_, spent),) = history["windows"]
    seconds = {history["places"][index][1].rpartition(" in ")[2]: (usual, whole) for index, usual, whole in spent}
    assert set(seconds) == {"once", "in_each_step"}
    assert seconds["once"][0] == 0
    assert seconds["once"][1] >= 0.2
