"""Faults strike at random, seeded places, the same command is given again, and nothing was lost.

See ``striking`` for how a fault gets into the process that trains.
"""

import os
import random
import re
import signal
import socket

import psutil
import pytest
from laboratory import KILLED, PLAIN
from seeds import seeds

from lockstep._base.errors import CheckpointError
from lockstep._state.checkpoint.manifest import verify
from lockstep._state.checkpoint.store import Store

pytestmark = pytest.mark.timeout(60)

NUM_STEPS = 15
# How often rank 0 calls these to write one checkpoint of the plain script, and the other rank does.
CALLS = {"fsync": (8, 2), "replace": (4, 1), "save": (2, 1)}


def draw_while_writing(place, nproc):
    """A fault somewhere in the writing of a launch's first checkpoint, or its second."""
    at = place.choice(sorted(CALLS))
    rank = place.randrange(nproc)
    when = place.choice(["before", "after", "within"] if at == "save" else ["before", "after"])
    number = place.randint(1, 2 * CALLS[at][rank > 0])
    what = place.choice(["kill", "kill all"]) if nproc > 1 else "kill"
    return {"at": at, "number": number, "rank": rank, "when": when, "what": what}


def newest_whole(run_dir):
    """The step of the newest checkpoint that is whole, whatever its directory is called; 0: there
    is none."""
    found = [0]
    for path in Store(run_dir).directory.glob("*/"):
        try:
            found.append(verify(path).step)
        except CheckpointError:
            continue
    return max(found)


def play(lab, seed, num_kills, **settings):
    """Launches that are killed while they write, and one that is not. Returns how many were, and
    what happened."""
    place, story, killed = random.Random(seed), [f"seed {seed}"], 0
    for _ in range(num_kills):
        nproc = place.choice([1, 2])
        ended = lab.run(PLAIN, nproc=nproc, fault=draw_while_writing(place, nproc), **settings)
        story.append(str(ended))
        assert ended.status in (0, KILLED), "\n".join(story)
        if ended.status == 0:  # there was less left to write than it waited for
            break
        killed += 1
        whole = newest_whole(lab.run_dir)
        story.append(f"the newest whole checkpoint is of step {whole}, there are {lab.names()}")
    else:
        ended = lab.run(PLAIN, nproc=place.choice([1, 2]), **settings)
        story.append(str(ended))
        assert lab.resumes()[-1] == whole, "\n".join(story)
    assert killed, "\n".join(story)
    return ended.words, "\n".join(story)


@pytest.mark.parametrize("seed", range(101, 103))
def test_killed_while_it_writes_a_run_goes_on_from_the_newest_whole_checkpoint(lab, undisturbed, seed):
    words, story = play(lab, seed, num_kills=1)
    assert words == undisturbed(), story


@pytest.mark.long
@pytest.mark.parametrize("seed", seeds(201))
def test_killed_again_and_again_while_checkpoints_are_written_it_does_too(lab, undisturbed, seed):
    words, story = play(lab, seed, num_kills=4, keep=1 + seed % 2)
    assert words == undisturbed(), story


@pytest.mark.parametrize(("what", "seed"), [("kill", 301), ("kill all", 303)])
def test_killed_during_a_step_a_run_goes_on_from_its_newest_checkpoint(lab, undisturbed, what, seed):
    place = random.Random(seed)
    # A checkpoint is cut after every second step, and the fault waits until the first one is
    # written.
    fault = {"at": "step", "number": place.randint(3, NUM_STEPS), "rank": place.randrange(2), "what": what, "first": 1}
    ended = lab.run(PLAIN, nproc=2, fault=fault)
    told = f"seed {seed}\n{ended}"
    assert (ended.status, ended.words) == (KILLED, None), told
    named = rf"rank (\d) of 2 on {socket.gethostname()} failed: SIGKILL: "
    assert re.search(named, ended.err), told
    if what == "kill":
        assert re.search(named, ended.err)[1] == str(fault["rank"]), told
    whole = newest_whole(lab.run_dir)
    again = lab.run(PLAIN, nproc=place.choice([1, 2]))
    told += f"\n{again}"
    assert again.words == undisturbed(), told
    assert lab.resumes() == [whole], told
    assert whole > 0, told
    assert f"run {lab.run_dir} resumes after step {whole} (checkpoint of 2" in again.out, told
    assert "To start over: --fresh" in again.out, told


def test_after_the_launcher_was_killed_nobody_holds_the_run_and_it_goes_on(lab, undisturbed):
    seed = 305
    place = random.Random(seed)
    fault = {
        "at": "step",
        "number": place.randint(3, NUM_STEPS),
        "rank": place.randrange(2),
        "what": "kill launcher",
        "first": 1,
    }
    launcher = lab.start(PLAIN, nproc=2, fault=fault)
    _, err = launcher.communicate(timeout=100)
    assert launcher.returncode == -signal.SIGKILL, f"seed {seed}\n{err}"
    ended = lab.run(PLAIN, nproc=place.choice([1, 2]))
    told = f"seed {seed}\n{ended}"
    assert (ended.status, ended.words) == (0, undisturbed()), told
    assert lab.resumes()[0] > 0, told


def test_a_stopped_rank_is_found_and_named_and_the_run_starts_again(lab, undisturbed):
    seed = 401
    place = random.Random(seed)
    timeout_s = 6.0
    fault = {"at": "step", "number": place.randint(3, NUM_STEPS), "rank": place.randrange(2), "what": "stop", "first": 1}
    ended = lab.run(PLAIN, nproc=2, fault=fault, max_restarts=1, timeout_s=timeout_s)
    told = f"seed {seed}\n{ended}"
    assert (ended.status, ended.words) == (0, undisturbed()), told
    assert lab.resumes()[0] > 0, told
    other, stopped = 1 - fault["rank"], fault["rank"]
    assert re.search(rf"rank {other} .* rank {stopped}\.\n  rank {stopped} .*: stopped ", ended.err), told
    assert "lockstep: restart 1 of 1" in ended.err, told


def test_a_second_launch_names_the_holder_and_goes_on_once_that_was_killed(lab, undisturbed):
    seed = 501
    place = random.Random(seed)
    enough = lab.directory / "enough"
    step = place.randint(3, NUM_STEPS - 2)
    holder = lab.start(PLAIN, f"pause={step}", nproc=2)
    try:
        rank_0 = int(lab.until((lab.directory / "paused-0").read_text))
        before = sorted(path.name for path in lab.run_dir.iterdir())
        refused = lab.run(PLAIN, nproc=place.choice([1, 2]))
        told = f"seed {seed}\n{refused}"
        assert refused.status == 1, told
        holder_is = f"process {rank_0} on {socket.gethostname()}"
        assert f"{lab.run_dir} is in use by {holder_is}" in refused.err, told
        assert "--run-dir" in refused.err, told
        assert sorted(path.name for path in lab.run_dir.iterdir()) == before, told
        assert psutil.Process(rank_0).is_running()
        enough.touch()  # the first goes on as if nothing had been
        lab.until((lab.directory / "went-on-0").read_text)
        os.kill(holder.pid, signal.SIGKILL)
    finally:
        holder.kill()
        holder.communicate(timeout=100)
    ended = lab.run(PLAIN, nproc=place.choice([1, 2]))
    told += f"\n{ended}"
    assert (ended.status, ended.words) == (0, undisturbed()), told
    assert lab.resumes()[0] > 0, told
