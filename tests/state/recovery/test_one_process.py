"""A run of one process that is launched again goes on as if nothing had been, also in what a script
reads of it between passes; what it has saved is in its log; and what it cannot do it says."""

import contextlib
import functools
import json
import random

import pytest
import torch
from codes import raises
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import lockstep
from lockstep._base.errors import ConfigError, ModelError, UsageError
from lockstep._base.reports import REPORTS

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


@pytest.fixture
def told(monkeypatch, tmp_path):
    """``told()``: the codes of what was said since it was last called."""
    file = tmp_path / "reports"
    monkeypatch.setenv(REPORTS, str(file))

    def codes():
        found = [json.loads(line)["code"] for line in file.read_text().splitlines()] if file.exists() else []
        file.unlink(missing_ok=True)
        return found

    return codes


def interrupted(run_dir, script, stop_at):
    with contextlib.suppress(EarlyEndError), join(run_dir) as team:
        script(Training(team, stop_at))


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """``whole(script)``: what the script reads in an undisturbed run."""

    @functools.cache
    def run(script):
        with join(tmp_path_factory.mktemp("whole")) as team:
            return script(Training(team))

    return run


@pytest.mark.parametrize(("script", "stop_at"), [(counted_by_the_script, 4), (counted_by_the_script, 8), (in_epochs, 8)])
def test_a_script_reads_the_same_between_its_passes_in_a_later_launch(tmp_path, told, whole, script, stop_at):
    interrupted(tmp_path / "run", script, stop_at)
    told()
    with join(tmp_path / "run") as team:
        again = script(Training(team))
        assert events_of(team.run_dir, "resume")[0]["step"] == stop_at - 1
    skipped = 2 * ((stop_at - 1) // 3) if script is in_epochs else 0
    assert again == whole(script)[skipped:]
    assert told() == ([] if script is in_epochs else ["passes-skipped"])


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


# What a launch says, and refuses


def loads_its_own_state(training):
    optimizer, weights = training.optimizer, [*training.model.parameters()]
    state = {number: {"momentum_buffer": torch.ones_like(weight)} for number, weight in enumerate(weights)}
    optimizer.load_state_dict({**optimizer.state_dict(), "state": state})
    counted_by_the_script(training)


def too_few_passes(training):
    training.one_pass()


def no_pass(training):
    pass


@pytest.mark.parametrize(
    ("script", "said"), [(loads_its_own_state, ["script-restored"]), (no_pass, ["end-before-resuming"])]
)
def test_what_a_launch_does_otherwise_than_the_first_is_said_once(tmp_path, told, script, said):
    interrupted(tmp_path / "run", counted_by_the_script, 3)
    told()
    with join(tmp_path / "run") as team:
        script(Training(team))
    assert told() == said


def test_what_is_prepared_within_an_epoch_is_said_once_where_checkpoints_are_saved(tmp_path, told):
    for every, said in (("off", []), (1000, ["prepared-in-epoch"])):
        with join(tmp_path / str(every), checkpoint_every=every) as team:
            training = Training(team)
            training.one_pass()
            team.prepare([torch.ones(2, 1)])  # before a loop over epochs, nothing is said
            assert told() == []
            for _ in team.epochs(2):
                team.prepare([torch.ones(2, 1)])
        assert told() == said


def test_a_script_that_ends_before_it_resumes_is_refused(tmp_path):
    interrupted(tmp_path / "run", counted_by_the_script, 8)
    with raises(UsageError, "end-before-resuming"), join(tmp_path / "run") as team:
        too_few_passes(Training(team))


def test_a_last_step_that_is_left_is_said_to_be_discarded_and_the_end_is_that_before(tmp_path, told):
    with join(tmp_path) as team:
        training = Training(team)
        training.one_pass()
        steps = iter(training.loader)
        next(next(steps).shards)
    assert told() == ["step-discarded"]
    newest = max((tmp_path / "checkpoints").glob("step-*/manifest.json"))
    manifest = json.loads(newest.read_text())
    assert (manifest["step"], manifest["finished"]) == (3, True)


class Made(nn.Linear):
    """Its buffer is made in its first forward pass."""

    def __init__(self):
        super().__init__(1, 1)
        self.register_buffer("scale", None)

    def forward(self, x):
        self.scale = x.detach().abs().max() + (0.0 if self.scale is None else self.scale)
        return super().forward(x)


def grows(team, training):
    team.unwrap(training.model).more = nn.Linear(1, 1)
    forward = training.model
    training.model = lambda x: forward(x) + team.unwrap(forward).more(x)
    training.one_pass()


def loses_its_gradient(team, training):
    model = nn.Linear(1, 1)
    model.weight.register_post_accumulate_grad_hook(lambda weight: setattr(weight, "grad", None))
    training.model = team.prepare(model)
    training.one_pass()


def has_a_buffer_made_late(team, training):
    training.model = team.prepare(Made())
    training.one_pass()


def has_an_unknown_mode(team, training):
    training.one_pass()
    team.best(1.0, mode="least")


REFUSED = [
    (grows, ModelError, "parameter-added-late", {}),
    (loses_its_gradient, ModelError, "gradient-removed", {}),
    (has_a_buffer_made_late, ModelError, "late-buffer", {}),
    (has_an_unknown_mode, ConfigError, "best-mode", {}),
    (lambda team, _: team.per_shard("kept", 0).value, UsageError, "per-shard-outside", {}),
    (
        lambda _, training: training.optimizer.step(lambda: 0.0),
        UsageError,
        "closure-with-scaling",
        {"precision": "16-mixed"},
    ),
]


@pytest.mark.parametrize(("script", "kind", "code", "settings"), REFUSED, ids=[code for _, _, code, _ in REFUSED])
def test_what_would_be_wrong_is_refused(tmp_path, script, kind, code, settings):
    with raises(kind, code), join(tmp_path, **settings) as team:
        script(team, Training(team))
