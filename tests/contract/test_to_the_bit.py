"""The contract, to the bit: with ``shards=`` every feature gives the same answer at every number of
processes, and resumed.

The same are weights, buffers, the state of optimizers, schedules, averages and scalers on every
rank, the loss of every shard of every step, and in every step, on every rank, with samples or
without, the gradients, their norm, and the values that were added to the batch.
"""

import os
import pickle
import shutil
import signal
from collections import Counter
from functools import partial

import features
import pytest
import whole_steps
from bits import Seen, assert_same_bits, differences
from contract_corpus import CORPUS, SHARDED, short, special, trained
from moving import while_shards_move

from lockstep._base.errors import LaunchError
from lockstep._base.stopping import REQUEUE_STATUS

pytestmark = pytest.mark.timeout(90)
NARROW = ("16-mixed", "16-master", "16-true", "bf16-mixed", "bf16-true")
BLOCKS = ("Deep", "not reentrant", "reentrant")


@pytest.fixture(scope="module")
def known():
    return {}


@pytest.fixture
def alone(standing_crew, known):
    """``alone(training)``: its result in a single process."""

    def result(training):
        key = pickle.dumps((training.task, training.settings))
        if key not in known:
            settings = {"shards": 4, "checkpoint_every": "off", **training.settings}
            [known[key]] = standing_crew(1, training.task, **settings)
        return known[key]

    return result


@pytest.fixture
def same_bits_on(standing_crew, alone):
    """``same_bits_on(nprocs, training)``: check that it gives the same bits there; its result in a
    single process."""

    def check(nprocs, training):
        for nproc in nprocs:
            assert_same_bits(alone(training), standing_crew(nproc, training.task, **{"shards": 4, **training.settings}))
        return alone(training)

    return check


def stopped_in(step, task):
    """What is seen of the training until a signal comes in this step, by which it is saved and
    ends."""

    def disturb(now):
        if now == step:
            Seen.disturb = None
            os.kill(os.getpid(), signal.SIGTERM)

    Seen.disturb = staticmethod(disturb)
    try:
        task()
    except SystemExit as ended:
        return ended.code, Seen.last.so_far()
    finally:
        Seen.disturb = None
    return 0, Seen.last.so_far()


@pytest.mark.parametrize("name", CORPUS)
def test_a_training_gives_the_same_bits_on_any_number_of_processes_and_in_two_pieces(
    standing_crew, alone, same_bits_on, name
):
    training = CORPUS[name]
    if not training.resumes:
        same_bits_on((3,), training)
        return
    # On two processes, which exchange gradients as one message, and between which shards move,
    # until it is stopped; then on three, which exchange them in buckets.
    whole, stop = alone(training), 1 + sorted(CORPUS).index(name) % min(4, training.num_steps - 1)
    settings = {"shards": 4, "checkpoint_every": "1h", "run_dir": "run", **training.settings}
    first = standing_crew(2, partial(stopped_in, stop), partial(while_shards_move, training.task), **settings)
    assert {status for status, _ in first} == {REQUEUE_STATUS}
    then = standing_crew(3, training.task, **settings)
    by_rank = [seen for _, seen in first] + then
    losses = {}
    for seen in by_rank:
        assert losses.keys().isdisjoint(seen["losses"]), "samples were used twice"
        losses.update(seen["losses"])
        for step, values in seen["by_step"].items():
            assert differences(whole["by_step"][step], values) == [], f"step {step}"
    assert differences(whole["losses"], losses) == []
    for seen in then:
        assert set(first[0][1]["by_step"]).isdisjoint(seen["by_step"])
        assert differences(whole["state"], seen["state"]) == []


@pytest.mark.parametrize("name", SHARDED)
def test_a_sharded_model_has_the_bits_of_a_whole_one(standing_crew, alone, name):
    training = SHARDED[name]
    settings = {"shards": 4, "checkpoint_every": "off", **training.settings}
    assert_same_bits(alone(training), standing_crew(2, training.task, **settings, strategy="fsdp"))


def values_of(result, name):
    """A value of each step."""
    return [values[name] for values in result["by_step"].values()]


def test_the_trainings_do_what_they_are_there_for(alone):
    unused = alone(CORPUS["unused parameters"])
    assert {"None"} < set(values_of(unused, "step.gradients.0.sometimes.weight"))
    assert set(values_of(unused, "step.gradients.0.never.weight")) == {"None"}
    frozen = alone(CORPUS["frozen"])["by_step"]
    assert [step for step, values in frozen.items() if values["step.gradients.0.first.weight"] == "None"] == [3, 4]
    assert alone(CORPUS["averages"])["updates"] == [2, 6]
    assert all(values["step.first"] != values["step.second"] for values in alone(CORPUS["sharpness"])["by_step"].values())
    for kind in whole_steps.CLOSURES:
        phases = [int(value) for value in values_of(alone(CORPUS[f"closures of {kind}"]), "step.phases")]
        assert (max(phases) > 1) == kind.startswith("LBFGS")
    random = alone(CORPUS["random numbers"])
    drawn = [value for values in random["by_step"].values() for value in values.values()]
    assert len({*drawn, *random["losses"].values()}) == len(drawn) + len(random["losses"]), "a number was drawn twice"
    assert len(set(values_of(alone(CORPUS["ReduceLROnPlateau on the loss"]), "step.rate"))) > 2
    assert alone(CORPUS["two loaders, accumulated"])["steps"] == 6
    assert alone(CORPUS["accumulation"])["steps"] == 2 * -(-8 // 3)


# Where shards move between processes


def shards_by_rank(results):
    """How many shards each rank has run, step by step."""
    by_rank = [Counter(step for step, *_ in seen["losses"]) for seen in results]
    return {tuple(counts[step] for counts in by_rank) for step in by_rank[0]}


@pytest.mark.parametrize(
    "training",
    [
        pytest.param(trained(shards=6, workers=1, epochs=2, length=77), id="workers"),
        pytest.param(
            trained(model="Plain", loader="stream", weight="tokens", length=91, batch_size=6, accumulate=2, shards=6),
            id="stream, accumulated",
        ),
        pytest.param(trained(model="Deep", loader="ready", length=80, batch_size=20, shards=6), id="ready"),
        pytest.param(special(whole_steps.train_in_words, shards=6), id="states of shards"),
        pytest.param(special(whole_steps.train_gan, shards=6), id="a GAN"),
    ],
)
def test_shards_that_move_all_the_time_change_nothing(standing_crew, alone, training):
    # also while a move is yet to come into force
    settings = {**training.settings, "checkpoint_every": 1}
    # (On two, as those of the corpus do.)
    results = standing_crew(3, while_shards_move, training.task, **settings)
    assert_same_bits(alone(training), results)
    assert len(shards_by_rank(results)) > 2, "they have not moved"


# Where the processes are more than the shards of a step, or than its samples


@pytest.mark.parametrize(
    ("nproc", "training"),
    [
        pytest.param(6, trained(model="Plain", length=1, batch_size=6, weight="tokens", shards=6), id="one sample"),
        pytest.param(6, trained(model="Plain", batch_size=20, shards=8), id="six processes of eight shards"),
        pytest.param(
            4, trained(model="Plain", length=16, batch_size=5, weight="zeros", accumulate=3, shards=6), id="accumulated"
        ),
        pytest.param(4, short(precision="16-mixed"), id="scaled"),
        pytest.param(4, trained(model="LateBuffer"), id="late buffer"),
    ],
)
def test_processes_without_samples_have_the_same_bits(same_bits_on, nproc, training):
    same_bits_on((nproc,), training)


def test_parameters_frozen_in_a_step_in_which_some_have_no_samples(standing_crew):
    # Steps 3 and 6 have one sample each: most processes have none.
    task = partial(features.train_frozen, "Plain", 33, (4, 5))
    [whole] = standing_crew(1, task, shards=4)
    assert_same_bits(whole, standing_crew(4, task, shards=4))


# What is given to the script, and beside PyTorch


@pytest.mark.parametrize("strategy", ["exact", "ddp"])
def test_gradients_that_the_script_keeps_do_not_change_under_its_hands(standing_crew, strategy):
    for result in standing_crew(3, features.keep_what_was_given, shards=4, strategy=strategy):
        assert result["num_kept"] == 6 * 5 * len(features.KEEPING)
        assert result["changed"] == []


# Precisions


@pytest.mark.parametrize("precision", NARROW)
def test_every_precision_computes_in_it_and_checkpointed_blocks_as_plain_ones(alone, precision):
    # AdamW divides by 0 in float16
    optimizer = "SGD, foreach" if precision == "16-true" else "AdamW, foreach"
    narrow = [alone(trained(model=model, optimizer=optimizer, precision=precision)) for model in BLOCKS]
    plain = alone(trained(model="Deep", optimizer=optimizer))
    assert narrow[0]["losses"].keys() == plain["losses"].keys()
    assert not narrow[0]["losses"].items() & plain["losses"].items(), "it computes in float32"
    assert [differences(narrow[0]["state"], other["state"]) for other in narrow[1:]] == [[], []]


def test_an_overflow_in_one_shard_skips_the_step_everywhere_and_training_goes_on(alone):
    seen = alone(CORPUS["scaled by the run"])
    assert moved(seen) == [2, 4, 5, 6, 7, 8, 9]
    assert seen["scale"] == 2.0**10  # halved in step 3, doubled after steps 4 to 7
    halved = [step for step, scale in enumerate(values_of(seen, "step.scale"), 1) if float.fromhex(scale) < 2.0**10]
    assert halved[0] == 3
    assert len([key for key in seen["losses"] if key[0] != 3]) == 8 * 4


def moved(seen):
    """The steps that changed the weights."""
    weights = values_of(seen, "step.weight")
    return [step for step in range(2, 10) if weights[step - 1] != weights[step - 2]]


def test_the_run_s_own_scaler_gives_what_the_script_s_gives_and_shows_true_losses(alone):
    run, script = (alone(CORPUS[f"scaled by the {whose}"]) for whose in ("run", "script"))
    assert run["losses"] == script["losses"]
    assert differences(run["state"], script["state"]) == []


@pytest.mark.parametrize("whose", ["run", "script"])
def test_an_overflow_skips_the_step_on_all_ranks_with_pytorchs_own_sum_too(standing_crew, whose):
    first, *others = standing_crew(3, features.train_scaled, whose, "AdamW, foreach", strategy="ddp", shards=4)
    assert moved(first) == [2, 4, 5, 6, 7, 8, 9]
    assert first["scale"] == 2.0**10
    for other in others:
        assert differences(first["state"], other["state"]) == []


def test_an_overflow_skips_the_update_of_its_own_phase_and_no_other(standing_crew):
    [alone] = standing_crew(1, whole_steps.overflow_in_one_phase, shards=4)
    assert values_of(alone, "step.judge") == ["True"] * 4
    assert values_of(alone, "step.maker") == ["True", "False", "True", "True"]
    assert_same_bits(alone, standing_crew(2, whole_steps.overflow_in_one_phase, shards=4))


@pytest.mark.timeout(240)
def test_compiled_models_with_inductor(same_bits_on, require):
    require("compiler", None if shutil.which("c++") or shutil.which("g++") else "torch.compile needs a compiler")
    same_bits_on((2,), trained(model="compiled, inductor", length=32, epochs=1))


def test_compiled_models_of_16_bits(same_bits_on):
    same_bits_on((2,), trained(model="compiled, aot_eager", length=32, epochs=1, precision="16-master"))


# Disturbed


@pytest.mark.parametrize("length", [64, 33])
def test_processes_that_are_late_at_random_change_nothing(standing_crew, length):
    [alone] = standing_crew(1, features.train_wide, False, length, shards=4)
    assert_same_bits(alone, standing_crew(3, features.train_wide, True, length, shards=4))


# Refused (as are the loops of tests/idioms/topics)


# The first rank that is refused ends the others, so the launch has the error.
@pytest.mark.parametrize(
    ("what", "named"), [("late buffer", "'scale' of LateBuffer"), ("used inside and outside", r"'layer\.\w+'")]
)
@pytest.mark.parametrize("nproc", [1, 2])
def test_what_could_not_be_the_same_is_refused_at_every_world_size(crew, nproc, what, named):
    with pytest.raises(LaunchError, match=f"ModelError: .*{named}"):
        crew(nproc, features.refused, what, shards=3)
