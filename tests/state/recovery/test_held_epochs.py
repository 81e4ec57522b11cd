"""A loop over epochs ends where the script leaves it, whatever still holds it."""

import pytest

pytestmark = pytest.mark.timeout(100)
SCRIPT = """
from striking import arm, network, samples, say_last_words, strike
import torch
from torch import nn

import lockstep

team = lockstep.join()
arm(team)
model = network()
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
model, optimizer, loader = team.prepare(model, optimizer, samples())


def train():
    for batch in loader:
        for features, labels in batch.shards:
            team.backward(nn.functional.cross_entropy(model(features), labels))
        optimizer.step()
        optimizer.zero_grad()
        strike(team)


def as_tqdm_does(epochs):
    for epoch in epochs:
        yield epoch
        print("epoch", epoch)


bar = {bar}
for epoch in bar:
    train()
    if epoch == 1:
        break
{then}:
    train()
say_last_words(team, model, optimizer)
"""
BARS = {
    "by a name": "team.epochs(5)",
    "by its iterator": "iter(team.epochs(5))",
    "by a generator": "as_tqdm_does(team.epochs(5))",
}
THEN = {"another loop": "for epoch in team.epochs(2)", "what is left of it": "for epoch in bar"}


@pytest.mark.parametrize(
    ("bar", "then"),
    [
        ("by a name", "another loop"),
        ("by its iterator", "another loop"),
        ("by a generator", "another loop"),
        ("by a name", "what is left of it"),
        ("by its iterator", "what is left of it"),
    ],
)
def test_a_run_that_is_stopped_in_a_later_loop_goes_on_in_it(lab, undisturbed, bar, then):
    script, told = SCRIPT.format(bar=BARS[bar], then=THEN[then]), ""
    for number in (7, 13, 18):
        ended = lab.run(script, fault={"at": "step", "number": number, "what": "SIGTERM", "to": "me"})
        told += f"{ended}\n"
        assert ended.status == 75, told
    ended = lab.run(script)
    assert lab.resumes() == [7, 13, 18], told
    assert ended.words == undisturbed(script), f"{told}{ended}"
