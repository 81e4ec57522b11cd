"""A model in parts on the devices of its process gives the answer that it gives on one. (Here they
are all the CPU.)"""

import pytest
import torch
from bits import differences, state_of
from torch import nn
from torch.utils.data import DataLoader
from toy_models import Points

import lockstep

pytestmark = pytest.mark.timeout(90)


class Halves(nn.Module):
    def __init__(self, devices):
        super().__init__()
        self.devices = devices[0], devices[-1]
        self.first = nn.Sequential(nn.Linear(6, 8, bias=False), nn.BatchNorm1d(8), nn.ReLU()).to(devices[0])
        self.last = nn.Sequential(nn.Dropout(0.2), nn.Linear(8, 3)).to(devices[-1])

    def to(self, *_, **__):
        raise AssertionError("the script has placed the model, and nobody may move it")

    def forward(self, x):
        return self.last(self.first(x.to(self.devices[0])).to(self.devices[1]))


def train(num_devices, epochs=2):
    """With clipping, an average, and a schedule: everything that touches all parameters at once."""
    with lockstep.join() as team:
        assert team.devices == (team.device,) * num_devices
        model = Halves(team.devices)
        average = torch.optim.swa_utils.AveragedModel(model)
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
        schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 10)
        loader = DataLoader(Points(56), 16, shuffle=True)
        model, average, optimizer, schedule, loader = team.prepare(model, average, optimizer, schedule, loader)
        for _ in team.epochs(epochs):
            for batch in loader:
                for inputs, targets, _ in batch.shards:
                    outputs = model(inputs)
                    team.backward(nn.functional.cross_entropy(outputs, targets.to(outputs.device)))
                team.clip_grad_norm_(model.parameters(), 1.0)
                optimizer.step()
                schedule.step()
                average.update_parameters(model)
                optimizer.zero_grad()
        return state_of(team.unwrap(model), average, optimizer, schedule)


@pytest.fixture(scope="module")
def alone():
    """The answer of one process with two devices. Filled by the first test that needs it."""
    return {}


@pytest.mark.parametrize(("nproc", "num_devices"), [(1, 3), (2, 2), (4, 3)])
def test_the_answer_is_the_same_to_the_bit_for_every_number_of_devices_and_processes(
    standing_crew, alone, nproc, num_devices
):
    if not alone:
        (found,) = standing_crew(1, train, 2, shards=4, devices_per_process=2)
        alone.update(found)
    for state in standing_crew(nproc, train, num_devices, shards=4, devices_per_process=num_devices):
        assert differences(alone, state) == []


def test_ddp_has_it_up_to_rounding_without_device_ids(standing_crew):
    with_two = standing_crew(2, train, 2, shards=2, strategy="ddp", devices_per_process=2)
    with_three = standing_crew(2, train, 3, shards=2, strategy="ddp", devices_per_process=3)
    assert differences(with_two[0], with_two[1]) == []
    assert differences(with_two[0], with_three[0]) == []


def test_a_run_goes_on_with_another_number_of_devices(standing_crew):
    (whole,) = standing_crew(1, train, 2, shards=2, devices_per_process=2)
    standing_crew(2, train, 2, 1, shards=2, devices_per_process=2, run_dir="run")
    for state in standing_crew(1, train, 4, shards=2, devices_per_process=4, run_dir="run"):
        assert differences(whole, state) == []
