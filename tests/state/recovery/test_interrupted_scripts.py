"""Scripts of many kinds are killed at a random step, and go on at another world size: to the digest
of the undisturbed run."""

import random

import pytest
from interrupted_scripts import LONGER, SCRIPTS, TAILS, source_of, steps_of
from laboratory import KILLED, content_of

pytestmark = pytest.mark.timeout(60)


FROM_THE_END_OF_AN_EPOCH = "a second loader that goes round by itself"
AFTER_NUMBERS = "numbers drawn between two passes of an epoch"
OTHERS = [name for name in SCRIPTS if name not in (*TAILS, FROM_THE_END_OF_AN_EPOCH, AFTER_NUMBERS)]


def interrupt_and_go_on(lab, undisturbed, name, seed, at="step"):
    place, script, told = random.Random(f"{name} {seed}"), source_of(name), f"seed {seed}"
    words = undisturbed(script)
    assert words["step"] == steps_of(name)
    nproc = place.choice([1, 2])
    if at == "tail":
        where, number = at, place.choice(TAILS[name])
    else:
        where, number = place.choice(["shard", "step"]), place.randint(3, steps_of(name))
    # another may be without samples in that step
    rank = 0 if where == "shard" else place.randrange(nproc)
    fault = {"at": where, "number": number, "rank": rank, "what": "kill", "first": 1}
    ended = lab.run(script, nproc=nproc, fault=fault)
    told += f"\n{ended}\nthere are {lab.names()}"
    assert ended.status == KILLED, told
    ended = lab.run(script, nproc=3 - nproc)
    told += f"\n{ended}"
    assert ended.words == words, told
    assert lab.resumes()[0] > 0, told


@pytest.mark.parametrize("name", OTHERS)
def test_a_killed_script_ends_as_if_nothing_had_been(lab, undisturbed, name):
    interrupt_and_go_on(lab, undisturbed, name, 801)


@pytest.mark.parametrize("name", TAILS)
def test_a_script_that_is_killed_after_the_loop_does_too(lab, undisturbed, name):
    interrupt_and_go_on(lab, undisturbed, name, 802, at="tail")


def test_a_script_that_goes_on_from_the_end_of_an_epoch_does_too(lab, undisturbed):
    script = source_of(FROM_THE_END_OF_AN_EPOCH)
    fault = {"at": "step", "number": 7, "what": "kill", "first": 1}
    killed = lab.run(script, nproc=2, fault=fault, checkpoint_every=5)
    ended = lab.run(script, checkpoint_every=5)
    told = f"{killed}\n{ended}"
    # with a second loader's pass still open, the checkpoint may come a step later
    assert lab.resumes()[0] in (5, 6), told
    assert ended.words == undisturbed(script), told


@pytest.mark.parametrize("name", LONGER)
def test_a_finished_run_goes_on_to_the_end_of_a_longer_one(lab, undisturbed, name):
    script, seed = LONGER[name], 803
    place = random.Random(f"{name} {seed}")
    ended = lab.run(script, "2", nproc=2)
    assert ended.words == undisturbed(script, "2"), ended
    before = content_of(lab.run_dir)
    # Started again as it was, it has nothing left to do. (What a plain loop counts in its tail, it
    # counts again.)
    ended = lab.run(script, "2")
    assert ended.words["digest"] == undisturbed(script, "2")["digest"], ended
    assert "Warning" not in ended.err, ended
    assert content_of(lab.run_dir) == before, ended
    done = 10
    fault = {"at": "step", "number": place.randint(done + 3, done + 10), "rank": place.randrange(2), "what": "kill"}
    ended = lab.run(script, "4", nproc=2, fault=fault)
    assert ended.status == KILLED, f"seed {seed}\n{ended}"
    again = lab.run(script, "4")
    assert again.words == undisturbed(script, "4"), f"seed {seed}\n{ended}\n{again}"
    assert lab.resumes()[:2] == [done, done], f"seed {seed}\n{ended}\n{again}"


def test_a_resumed_script_draws_the_same_numbers_outside_of_passes(lab, undisturbed):
    """They decide what is learned from there on, and the passes before them are skipped."""
    script, saved = source_of(AFTER_NUMBERS), 14
    fault = {"at": "step", "number": saved + 2, "what": "kill", "first": 1}
    killed = lab.run(script, nproc=2, fault=fault, checkpoint_every=saved)
    ended = lab.run(script)
    told = f"{killed}\n{ended}"
    assert lab.resumes() == [saved], told
    assert ended.words == undisturbed(script), told
