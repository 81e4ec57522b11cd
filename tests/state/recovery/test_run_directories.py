"""Which run a command resumes: its own that was interrupted, and no other."""

import os
import random
import signal

import pytest
from crew import crew
from laboratory import HERE, KILLED, PLAIN

from lockstep._base.errors import LaunchError

__all__ = ["crew"]

pytestmark = pytest.mark.timeout(60)


def kill(lab, place, *args, **options):
    """A launch that is killed at a random step, when it has a checkpoint."""
    nproc = place.choice([1, 2])
    fault = {"at": "step", "number": place.randint(3, 14), "rank": place.randrange(nproc), "what": "kill", "first": 1}
    ended = lab.run(PLAIN, *args, nproc=nproc, fault=fault, **options)
    assert ended.status == KILLED, ended
    return ended


def runs(lab):
    return sorted(path.name for path in (lab.directory / "runs").iterdir())


def test_the_same_command_goes_on_in_its_directory_until_it_has_ended(lab, undisturbed):
    seed = 701
    place = random.Random(seed)
    for _ in range(2):
        kill(lab, place, run_dir=None)
        assert runs(lab) == ["plain-1"], f"seed {seed}"
    ended = lab.run(PLAIN, nproc=place.choice([1, 2]), run_dir=None)
    assert ended.words == undisturbed(), f"seed {seed}\n{ended}"
    assert lab.resumes(lab.directory / "runs" / "plain-1")[-1] > 0, f"seed {seed}\n{ended}"
    assert "run runs/plain-1 resumes after step" in ended.out
    ended = lab.run(PLAIN, run_dir=None)
    assert (ended.words, runs(lab)) == (undisturbed(), ["plain-1", "plain-2"]), "a run that has ended is not resumed"
    assert "goes on" not in ended.out


def test_another_command_or_setting_is_another_run_and_each_goes_on_with_its_own(lab, undisturbed):
    seed = 702
    place = random.Random(seed)
    commands = [(("lr=0.02",), 0), ((), 7)]
    for args, asked in commands:
        kill(lab, place, *args, run_dir=None, seed=asked)
    assert runs(lab) == ["plain-1", "plain-2"], f"seed {seed}"
    for number, (args, asked) in enumerate(commands, 1):
        ended = lab.run(PLAIN, *args, nproc=place.choice([1, 2]), run_dir=None, seed=asked)
        assert ended.words == undisturbed(PLAIN, *args, seed=asked), f"seed {seed}\n{ended}"
        assert f"lockstep: run runs/plain-{number} resumes after step" in ended.out, f"seed {seed}\n{ended}"
    assert runs(lab) == ["plain-1", "plain-2"], f"seed {seed}"


def test_a_setting_that_contradicts_an_interrupted_run_is_said_to_begin_a_new_one(lab):
    place = random.Random(703)
    kill(lab, place, run_dir=None)
    other = kill(lab, place, run_dir=None, seed=7)
    assert "runs/plain-1 was interrupted" in other.out, other
    assert "(seed: 7 now, not set then)" in other.out, other


def test_fresh_is_a_new_run_and_the_old_one_can_still_be_gone_on_with(lab, undisturbed):
    seed = 704
    place = random.Random(seed)
    kill(lab, place)
    ended = lab.run(PLAIN, nproc=2, fresh=True)
    assert ended.words == undisturbed(), f"seed {seed}\n{ended}"
    assert "resumes after" not in ended.out
    assert f"{lab.run_dir} to {lab.run_dir}.old-1" in ended.out, ended
    assert lab.resumes() == []
    ended = lab.run(PLAIN, run_dir="run.old-1")
    assert ended.words == undisturbed(), f"seed {seed}\n{ended}"
    assert lab.resumes(lab.directory / "run.old-1")[-1] > 0, f"seed {seed}\n{ended}"


def test_a_fresh_run_that_is_started_again_goes_on_with_itself(lab, undisturbed):
    seed = 705
    place = random.Random(seed)
    kill(lab, place)
    fault = {"at": "step", "number": place.randint(3, 14), "what": "kill", "first": 1}
    ended = lab.run(PLAIN, nproc=2, fresh=True, fault=fault, max_restarts=1)
    told = f"seed {seed}\n{ended}"
    assert (ended.status, ended.words) == (0, undisturbed()), told
    assert sorted(path.name for path in lab.directory.glob("run*")) == ["run", "run.old-1"], told
    assert lab.resumes()[0] > 0, told


def test_a_restart_before_the_first_checkpoint_begins_again_where_it_was(lab, undisturbed):
    fault = {"at": "step", "number": 2, "rank": 1, "what": "kill"}
    ended = lab.run(PLAIN, nproc=2, run_dir=None, fault=fault, max_restarts=1)
    assert (ended.status, ended.words) == (0, undisturbed()), ended
    assert runs(lab) == ["plain-1"], ended
    assert lab.resumes(lab.directory / "runs" / "plain-1") == [0]


def train(kill_at):
    """What a function trains that is given to ``lockstep.launch``."""
    import sys

    sys.path.append(str(HERE))
    import torch
    from striking import digest, network, samples, wait_for_checkpoints
    from torch import nn

    import lockstep

    team = lockstep.join()
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    model, optimizer, batches = team.prepare(model, optimizer, samples())
    for _ in team.epochs(2):
        for batch in batches:
            for features, labels in batch.shards:
                team.backward(nn.functional.cross_entropy(model(features), labels))
            optimizer.step()
            optimizer.zero_grad()
            if team.step == kill_at and team.rank == 0:
                wait_for_checkpoints(team, 1)
                os.kill(os.getpid(), signal.SIGKILL)
    team.close()
    return digest(model), str(team.run_dir)


def test_a_function_never_goes_on_with_an_earlier_call_unless_its_directory_is_named(crew, tmp_path):
    settings = {"shards": 2, "checkpoint_every": 2}
    (expected, _), *_ = crew(2, train, 0, **settings)
    place = random.Random(706)
    for name in (None, "named"):
        named = {} if name is None else {"run_dir": str(tmp_path / name)}
        with pytest.raises(LaunchError, match="SIGKILL"):
            crew(2, train, place.randint(3, 9), **settings, **named)
        ((answer, where),) = crew(1, train, 0, **settings, **named)
        assert answer == expected
        assert (where == str(tmp_path / "named")) == (name is not None)
        events = (tmp_path / where / "events.jsonl").read_text()
        assert events.count('"event": "resume"') == (name is not None)
    assert len(list((tmp_path / "runs").iterdir())) == 3


ENDS_ITSELF = """
import os, sys
import torch, lockstep
team = lockstep.join(checkpoint_every=2)
model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
data = torch.utils.data.TensorDataset(torch.randn(40, 4))
model, optimizer, loader = team.prepare(model, optimizer, torch.utils.data.DataLoader(data, 4))
for epoch in team.epochs(1):
    for batch in loader:
        for (x,) in batch.shards:
            team.backward(model(x).sum())
        optimizer.step()
        optimizer.zero_grad()
        if team.step == 5 and not os.path.exists("licence"):
            sys.exit("no licence")
"""


def test_a_run_that_its_script_has_ended_in_words_is_not_finished_and_resumes(run_here, tmp_path):
    ended = run_here(ENDS_ITSELF)
    assert ended.returncode == 1
    assert "no licence" in ended.stderr
    (tmp_path / "licence").touch()
    ended = run_here(ENDS_ITSELF)
    assert ended.returncode == 0, ended.stderr
    assert "run runs/script-1 resumes after step" in ended.stdout + ended.stderr
