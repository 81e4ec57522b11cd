"""A run of one process that is launched again goes on as if nothing had been, also in what a script
reads of it between passes, and what it has saved is in its log."""

import contextlib
import json
import random

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import lockstep

pytestmark = pytest.mark.timeout(60)


class EarlyEndError(Exception):
    pass


def join(run_dir, **settings):
    usual = {"run_dir": str(run_dir), "device": "cpu", "progress": "off", "shards": 2, "threads": 1, "log_every": 1}
    return lockstep.join(**{**usual, "checkpoint_every": 1, **settings})


class Training:
    """A training that can be stopped, and saves itself after every step: each save is whole before
    the next step begins."""

    def __init__(self, team, stop_at=None):
        self.team, self.stop_at = team, stop_at
        model = nn.Linear(1, 1)
        loader = DataLoader(TensorDataset(torch.arange(12.0).unsqueeze(1)), 4, shuffle=True)
        self.model, self.optimizer, self.loader = team.prepare(model, torch.optim.SGD(model.parameters(), lr=0.01), loader)
        saver = team._engine.saver
        save = saver.save

        def save_and_wait(*args, **options):
            save(*args, **options)
            assert saver.wait_until_written()

        saver.save = save_and_wait

    def one_pass(self):
        for batch in self.loader:
            for (x,) in batch.shards:
                self.team.backward(self.model(x).square().mean())
            self.optimizer.step()
            self.optimizer.zero_grad()
            if self.team.step == self.stop_at:
                raise EarlyEndError


def events_of(run_dir, kind):
    lines = (json.loads(line) for line in (run_dir / "events.jsonl").read_text().splitlines())
    return [event for event in lines if event["event"] == kind]


def counted_by_the_script(training):
    """What a script that counts its passes reads between them."""
    team, seen = training.team, []
    for number in range(3):
        seen.append(("before", number, team.epoch, torch.rand(()).item(), random.random()))
        training.one_pass()
        seen.append(("after", number, team.epoch, torch.rand(()).item()))
    return [*seen, team.step, training.model.weight.item()]


def in_epochs(training):
    """The same in epochs: a launch begins with the one that was interrupted."""
    team, seen = training.team, []
    for epoch in team.epochs(3):
        seen.append(("before", epoch, team.epoch, torch.rand(()).item(), random.random()))
        training.one_pass()
        seen.append(("after", epoch, team.epoch, torch.rand(()).item()))
    return [*seen, ("behind", team.epoch, torch.rand(()).item()), team.step, training.model.weight.item()]


@pytest.mark.parametrize("stop_at", [4, 8])
@pytest.mark.parametrize("script", [counted_by_the_script, in_epochs])
def test_a_script_reads_the_same_between_its_passes_in_a_later_launch(tmp_path, script, stop_at):
    with join(tmp_path / "whole") as team:
        whole = script(Training(team))
    with contextlib.suppress(EarlyEndError), join(tmp_path / "run") as team:
        script(Training(team, stop_at))
    with join(tmp_path / "run") as team:
        again = script(Training(team))
        assert events_of(team.run_dir, "resume")[0]["step"] == stop_at - 1
    skipped = 2 * ((stop_at - 1) // 3) if script is in_epochs else 0
    assert again == whole[skipped:]


def test_what_is_logged_behind_a_pass_is_in_the_log_before_the_end_of_its_epoch_is_saved(tmp_path):
    with join(tmp_path, checkpoint_every=3) as team:
        training, saver = Training(team), team._engine.saver
        save, logged = saver.save, []

        def noted_save(*args, **options):
            logged.append((args[1], events_of(team.run_dir, "step")[-1]["values"]))
            save(*args, **options)

        saver.save = noted_save
        for epoch in team.epochs(2):
            training.one_pass()
            team.log(tail=epoch)
    assert logged[:2] == [(3, {"tail": 0.0}), (6, {"tail": 1.0})]


def test_the_best_epoch_is_that_of_the_team(tmp_path):
    with join(tmp_path) as team:
        training, found = Training(team), []
        for number in range(2):
            training.one_pass()
            assert team.best(number)
            found.append((team.best_epoch, team.epoch))
        for epoch in team.epochs(2):
            training.one_pass()
            assert team.best(2 + epoch)
            found.append((team.best_epoch, epoch))
    assert all(best == now for best, now in found)
