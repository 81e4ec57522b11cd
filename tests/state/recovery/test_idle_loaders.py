"""A loader beside another one that is not read for a while keeps no run from being saved, and goes
on where it stood."""

import pytest
from laboratory import KILLED

pytestmark = pytest.mark.timeout(100)
SCRIPT = """
import torch
from striking import arm, network, samples, say_last_words, strike
from torch import nn

import lockstep

team = lockstep.join()
arm(team)
model = network()
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
model, optimizer, loader, more = team.prepare(model, optimizer, samples(), samples(64))
extra = {first}


def learn(batch):
    for features, labels in batch.shards:
        team.backward(nn.functional.cross_entropy(model(features), labels))
    optimizer.step()
    optimizer.zero_grad()


for epoch in team.epochs(3):
    for batch in loader:
        number = (team.step - 1) % 5
        learn(batch)
        {make}
        if {draws}:
            learn(next(extra))
        strike(team)
say_last_words(team, model, optimizer)
"""
READ = {
    "late in the second epoch": ("iter(more)", "pass", "(epoch, number) < (0, 2) or epoch == 1 and number > 2"),
    "in the first epoch, and again in the last": (
        "iter(more)",
        "if (epoch, number) == (2, 0): extra = iter(more)",
        "epoch != 1",
    ),
    "late in the second epoch, when first needed": (
        "None",
        "if extra is None: extra = iter(more)",
        "(epoch, number) < (0, 2) or epoch == 1 and number > 2",
    ),
    "made again in each epoch, while the last is held": (
        "None",
        "if number == 2 or (number > 2 and extra is None): extra = iter(more)",
        "number >= 2",
    ),
}


def source(read):
    first, make, draws = READ[read]
    return SCRIPT.format(first=first, make=make, draws=draws)


@pytest.mark.parametrize("read", [read for read in READ if not read.startswith("made again")])
def test_a_run_that_is_to_stop_is_saved_at_once_and_goes_on_as_if_it_had_not_been(lab, undisturbed, read):
    script, told = source(read), ""
    for number in (7, 8, 11):
        fault = {"at": "step", "number": number, "what": "SIGTERM", "to": "me"}
        ended = lab.run(script, fault=fault, checkpoint_every=1000)
        told += f"{ended}\n"
        assert ended.status == 75, told
    ended = lab.run(script, checkpoint_every=1000)
    assert lab.resumes() == [7, 8, 11], told
    assert ended.words == undisturbed(script), f"{told}{ended}"


@pytest.mark.parametrize("read", READ)
def test_a_run_is_saved_meanwhile_where_it_is_known_what_comes_next(lab, undisturbed, read):
    script, told = source(read), ""
    for number in (8, 11):
        fault = {"at": "step", "number": number, "what": "kill", "first": 1}
        ended = lab.run(script, fault=fault, checkpoint_every=1)
        told += f"{ended}\n"
        assert ended.status == KILLED, told
    ended = lab.run(script)
    assert ended.words == undisturbed(script), f"{told}{ended}"
