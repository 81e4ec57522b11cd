"""The contract, to the bit: with ``shards=`` every feature gives the same answer at every number of processes.

The same are weights, buffers, the state of optimizers, schedules, averages and scalers on every rank, the loss of every
shard of every step, and in every step, on every rank, with samples or without, the gradients, their norm, and the values
that were added to the batch.
"""

import pickle
from functools import partial

import features
import pytest
import torch
import whole_steps
from bits import assert_same_bits, differences

from lockstep.base.config import PRECISIONS
from lockstep.base.errors import LaunchError

pytestmark = pytest.mark.timeout(90)


@pytest.fixture(scope="module")
def known():
    return {}


@pytest.fixture
def same_bits_on(standing_crew, known):
    """``same_bits_on(nprocs, task, ...)``: check that it gives the same bits there; its result in a single process."""

    def check(nprocs, task, *args, shards=4, **settings):
        key = pickle.dumps((task, args, shards, settings))
        if key not in known:
            known[key] = standing_crew(1, task, *args, shards=shards, **settings)[0]
        for nproc in nprocs:
            assert_same_bits(known[key], standing_crew(nproc, task, *args, shards=shards, **settings))
        return known[key]

    return check


@pytest.fixture(params=[3, pytest.param(2, marks=pytest.mark.long)], ids="on {}".format)
def same_bits(request, same_bits_on):
    """``same_bits(task, ...)``: the same on three processes, which exchange gradients in buckets; on two it is one message."""
    return partial(same_bits_on, (request.param,))


def trained(**options):
    return partial(features.train, **options)


# What a loop is made of


@pytest.mark.parametrize("optimizer", features.OPTIMIZERS)
def test_every_variant_of_an_optimizer(same_bits_on, optimizer):
    assert same_bits_on((3,), trained(optimizer=optimizer))["steps"] == 6


@pytest.mark.parametrize("schedule", features.SCHEDULES)
def test_schedules(same_bits_on, schedule):
    same_bits_on((3,), trained(schedule=schedule))


@pytest.mark.parametrize("weight", ["tokens", "zeros"])
@pytest.mark.parametrize("loader", ["samples", "stream", "ready"])
def test_weights_of_every_kind(same_bits, weight, loader):
    same_bits(trained(weight=weight, loader=loader))


@pytest.mark.parametrize("shards", [3, 6, 8])
def test_numbers_of_shards_that_are_no_power_of_two_or_more_than_twice_the_processes(same_bits_on, shards):
    same_bits_on((2, 3) if shards == 3 else (3, 6), trained(model="Plain", batch_size=20), shards=shards)


@pytest.mark.parametrize("length", [1, 3, 7])
def test_steps_smaller_than_the_shards_and_than_the_processes(same_bits_on, length):
    same_bits_on((2, 4, 6), trained(model="Plain", length=length, batch_size=6, weight="tokens"), shards=6)


def test_processes_of_two_threads(same_bits):
    same_bits(trained(), threads=2)


def test_gradients_that_are_set_to_zero_and_not_to_none(same_bits):
    same_bits(trained(set_to_none=False))


def test_several_optimizers_that_act_at_different_times(same_bits):
    same_bits(features.train_two_optimizers)


def test_averages_of_weights_and_buffers(same_bits):
    assert same_bits(features.train_averages)["updates"] == [2, 6]


@pytest.mark.parametrize("how", ["by samples", "by weights", "with a forward pass between them", "in phases"])
def test_two_backward_passes_for_each_shard(same_bits, how):
    same_bits(features.train_two_losses, how)


def test_parameters_that_only_some_shards_or_none_use(same_bits):
    alone = same_bits(trained(model="SometimesUnused", batch_size=8, epochs=3))
    gradients = [values["step.gradients.0.sometimes.weight"] for values in alone["by_step"].values()]
    assert {"None"} < set(gradients), "the layer is always used, or never: a weak test"
    assert {values["step.gradients.0.never.weight"] for values in alone["by_step"].values()} == {"None"}


def test_parameters_that_are_frozen_and_thawed_between_steps(same_bits):
    alone = same_bits(features.train_frozen)
    without = [step for step, values in alone["by_step"].items() if values["step.gradients.0.first.weight"] == "None"]
    assert without == [3, 4]


@pytest.mark.parametrize("frozen", [(4, 5), (4, 5, 6, 7)])
def test_parameters_that_are_frozen_in_a_step_in_which_some_processes_have_no_samples(same_bits_on, frozen):
    # Steps 3 and 6 have one sample each: most processes have none.
    same_bits_on((2, 4), features.train_frozen, "Plain", 33, frozen)


@pytest.mark.parametrize("optimizer", ["SGD, foreach", "AdamW, foreach"])
def test_parameters_of_many_dtypes_shapes_and_memory_orders(same_bits, optimizer):
    same_bits(trained(model="Mixed", optimizer=optimizer, weight="tokens"))


@pytest.mark.parametrize("how", features.KEEPING)
@pytest.mark.parametrize("strategy", ["exact", "ddp", "ddp, in buckets"])
def test_gradients_that_the_script_keeps_do_not_change_under_its_hands(standing_crew, strategy, how):
    for nproc in (1, 3):
        for result in standing_crew(nproc, features.keep_what_was_given, how, shards=4, strategy=strategy):
            assert result["num_kept"] == 6 * 5
            assert result["changed"] == []


@pytest.mark.parametrize(
    "how",
    ["after the backward pass", "after the update, without gradients", "after the update, over the shards", "evaluation"],
)
def test_models_that_run_again_in_the_same_step(same_bits, how):
    same_bits(features.train_and_look, how)


def test_constant_buffers_that_are_made_in_the_first_forward_pass(same_bits_on):
    same_bits_on((2, 4), trained(model="LateBuffer"))


@pytest.mark.parametrize(("accumulate", "strict"), [(1, True), (2, True), (1, False)])
def test_two_loaders_side_by_side(same_bits, accumulate, strict):
    alone = same_bits(features.train_two_loaders, strict, accumulate=accumulate, shards=3)
    assert alone["steps"] == 2 * 6 / accumulate


@pytest.mark.parametrize("model", ["not reentrant", "reentrant"])
def test_checkpointing(same_bits, same_bits_on, model):
    checkpointed = same_bits(trained(model=model))
    plain = same_bits_on((), trained(model="Deep"))
    assert differences(plain["state"], checkpointed["state"]) == []


# Phases, and what stands between the shards of two steps


def test_phases_of_a_gan_with_ranks_without_samples(same_bits):
    alone = same_bits(whole_steps.train_gan)
    assert alone["by_step"].keys() == set(range(1, 11))


@pytest.mark.parametrize(("model", "length", "batch_size"), [("Net", 43, 16), ("Quiet", 33, 8)])
def test_a_second_gradient_over_the_same_samples(same_bits, model, length, batch_size):
    alone = same_bits(whole_steps.train_sharp, model, length, batch_size)
    assert all(values["step.first"] != values["step.second"] for values in alone["by_step"].values())


@pytest.mark.parametrize("kind", whole_steps.CLOSURES)
def test_closures(same_bits_on, kind):
    alone = same_bits_on((3,), whole_steps.train_with_closures, kind)
    phases = [int(values["step.phases"]) for values in alone["by_step"].values()]
    assert (max(phases) > 1) == kind.startswith("LBFGS")


@pytest.mark.parametrize(("loader", "weight"), [("ready", False), ("samples", True)])
def test_a_state_that_each_shard_carries_from_batch_to_batch(same_bits, loader, weight):
    same_bits(whole_steps.train_in_words, loader, weight)


def test_random_numbers_drawn_outside_of_the_shards_are_those_of_the_step_on_every_rank(same_bits):
    alone = same_bits(whole_steps.draw_everywhere)
    drawn = [value for values in alone["by_step"].values() for value in values.values()]
    assert len({*drawn, *alone["losses"].values()}) == len(drawn) + len(alone["losses"]), "a number was drawn twice"


@pytest.mark.parametrize("idiom", whole_steps.IDIOMS)
def test_what_scripts_do_between_two_steps(same_bits_on, idiom):
    alone = same_bits_on((3,), whole_steps.train_idiom, idiom)
    if idiom == "islice":
        assert alone["steps"] == 3 * 3
    elif idiom == "early stopping on the loss":
        assert alone["steps"] < 3 * 5, "nothing stops: a weak test"
    else:
        assert alone["steps"] == 3 * 5
    if idiom == "ReduceLROnPlateau on the loss":
        assert len({values["step.rate"] for values in alone["by_step"].values()}) > 2, "the rate stays: a weak test"


# Accumulation


@pytest.mark.parametrize("loader", ["samples", "stream", "ready"])
@pytest.mark.parametrize("k", [2, 3])
def test_accumulation_with_a_ragged_last_group(same_bits, k, loader):
    # 8 batches, the last of 6 samples.
    alone = same_bits(trained(model="Deep", loader=loader, length=62, batch_size=8), accumulate=k, shards=3)
    assert alone["steps"] == 2 * -(-8 // k)


@pytest.mark.parametrize("model", ["Plain", "SometimesUnused", "reentrant"])
def test_accumulation_with_weights(same_bits, model):
    same_bits(trained(model=model, weight="tokens", length=59, batch_size=16), accumulate=3)


def test_accumulation_of_batches_smaller_than_the_processes(same_bits_on):
    same_bits_on((2, 4, 6), trained(model="Plain", length=16, batch_size=5, weight="zeros"), accumulate=3, shards=6)


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("k", [2, 3])
@pytest.mark.parametrize("strategy", ["single", "exact"])
def test_accumulation_is_the_loop_that_people_write(standing_crew, k, weighted, strategy):
    # One shard: the same batches through the same BatchNorm, one after another.
    [by_hand] = standing_crew(1, features.accumulate_by_hand, k, True, weighted)
    [state] = standing_crew(1, features.accumulate_with_team, True, weighted, strategy=strategy, shards=1, accumulate=k)
    for name, value in by_hand.items():
        torch.testing.assert_close(state[name], value, rtol=1e-5, atol=1e-6, msg=lambda m, n=name: f"{n}: {m}")


@pytest.mark.parametrize("k", [2, 3])
@pytest.mark.parametrize(
    ("strategy", "nproc", "shards"),
    [("single", 1, 4), ("ddp", 2, 2), *[("ddp, in buckets", nproc, 4) for nproc in (2, 3)], ("exact", 3, 4)],
)
def test_accumulation_in_shards_is_the_loop_that_people_write(standing_crew, k, strategy, nproc, shards):
    [by_hand] = standing_crew(1, features.accumulate_by_hand, k, False, False)
    settings = {"strategy": strategy, "shards": shards, "accumulate": k}
    for state in standing_crew(nproc, features.accumulate_with_team, False, False, **settings):
        for name, value in by_hand.items():
            torch.testing.assert_close(state[name], value, rtol=1e-5, atol=1e-6, msg=lambda m, n=name: f"{n}: {m}")


@pytest.mark.parametrize("k", [2, 3])
def test_accumulation_with_batch_norm_and_pytorchs_own_sum_is_the_same_up_to_rounding(standing_crew, k):
    settings = {"shards": 4, "accumulate": k}
    [alone] = standing_crew(1, features.accumulate_with_team, True, True, 56, strategy="single", **settings)
    for nproc, strategy in ((2, "ddp"), (2, "ddp, in buckets"), (3, "ddp, in buckets"), (4, "ddp, in buckets")):
        for state in standing_crew(nproc, features.accumulate_with_team, True, True, 56, strategy=strategy, **settings):
            for name, value in alone.items():
                torch.testing.assert_close(state[name], value, rtol=2e-5, atol=2e-5, msg=lambda m, n=name: f"{n}: {m}")


# Precisions


NARROW = [name for name in PRECISIONS if name != "32-true"]


def narrow(precision, **options):
    """A training that suits a precision: AdamW divides by 0 in float16."""
    return trained(**options, **({"optimizer": "SGD, foreach"} if precision == "16-true" else {}))


@pytest.mark.parametrize("model", ["Net", *(pytest.param(name, marks=pytest.mark.long) for name in ("Deep", "reentrant"))])
@pytest.mark.parametrize("precision", NARROW)
def test_every_precision(same_bits, same_bits_on, precision, model):
    alone = same_bits(narrow(precision, model=model), precision=precision)
    plain = same_bits_on((), narrow(precision, model=model))
    assert alone["losses"].keys() == plain["losses"].keys()
    assert not alone["losses"].items() & plain["losses"].items(), "it computes in float32"


@pytest.mark.parametrize("precision", NARROW)
def test_every_precision_with_token_weights_steps_smaller_than_the_processes_and_unused_parameters(same_bits_on, precision):
    task = narrow(precision, model="SometimesUnused", length=17, batch_size=8, weight="tokens", epochs=3)
    same_bits_on((2, 4), task, precision=precision)


@pytest.mark.parametrize("precision", ["16-master", "16-true", "bf16-true"])
def test_checkpointed_blocks_are_the_plain_ones_in_every_precision(same_bits_on, precision):
    states = [same_bits_on((), narrow(precision, model=model), precision=precision)["state"] for model in BLOCKS]
    assert [differences(states[0], state) for state in states[1:]] == [[], []]


BLOCKS = ("Deep", "not reentrant", "reentrant")


@pytest.mark.parametrize("precision", ["16-master", "16-true", "bf16-true"])
def test_averages_in_every_precision(same_bits, precision):
    assert same_bits(features.train_averages, precision=precision)["updates"] == [2, 6]


@pytest.mark.long
@pytest.mark.parametrize("precision", ["16-master", "16-true", "bf16-true"])
def test_compiled_models_in_every_precision(same_bits_on, precision):
    task = narrow(precision, model="compiled, aot_eager", length=32, epochs=1)
    same_bits_on((2,), task, precision=precision)


# Not: Adam of float16, whose eps is 0 there; fused SGD, which reads memory that nobody has written (PyTorch 2.13).
@pytest.mark.parametrize(
    ("dtype", "optimizer"),
    [
        ("float16", "SGD, foreach"),
        ("bfloat16", "SGD, foreach"),
        ("bfloat16", "AdamW, foreach"),
        ("bfloat16", "AdamW, fused"),
    ],
)
def test_parameters_of_16_bits(same_bits, dtype, optimizer):
    same_bits(trained(model=dtype, optimizer=optimizer, weight="tokens"))


@pytest.mark.parametrize("optimizer", ["SGD, foreach", "AdamW, foreach", "AdamW, fused"])
@pytest.mark.parametrize("whose", ["run", "script"])
def test_an_overflow_in_one_shard_skips_the_step_everywhere_and_training_goes_on(same_bits, whose, optimizer):
    alone = same_bits(features.train_scaled, whose, optimizer)
    weights = [values["step.weight"] for values in alone["by_step"].values()]
    moved = [step for step in range(2, 10) if weights[step - 1] != weights[step - 2]]
    assert moved == [2, 4, 5, 6, 7, 8, 9]
    assert alone["scale"] == 2.0**10  # halved in step 3, doubled after steps 4 to 7
    scales = [float.fromhex(values["step.scale"]) for values in alone["by_step"].values()]
    halved = [step for step, scale in enumerate(scales, 1) if scale < 2.0**10]
    assert halved[0] == 3
    losses = {key: value for key, value in alone["losses"].items() if key[0] != 3}
    assert len(losses) == 8 * 4


def test_the_run_s_own_scaler_gives_what_the_script_s_gives_and_shows_true_losses(same_bits_on):
    run, script = (same_bits_on((), features.train_scaled, whose, "AdamW, foreach") for whose in ("run", "script"))
    assert run["losses"] == script["losses"]
    assert differences(run["state"], script["state"]) == []


@pytest.mark.parametrize("whose", ["run", "script"])
@pytest.mark.parametrize("nproc", [2, 3])
def test_an_overflow_skips_the_step_on_all_ranks_with_pytorchs_own_sum_too(standing_crew, nproc, whose):
    first, *others = standing_crew(nproc, features.train_scaled, whose, "AdamW, foreach", strategy="ddp", shards=4)
    weights = [values["step.weight"] for values in first["by_step"].values()]
    assert [step for step in range(2, 10) if weights[step - 1] != weights[step - 2]] == [2, 4, 5, 6, 7, 8, 9]
    assert first["scale"] == 2.0**10
    for other in others:
        assert differences(first["state"], other["state"]) == []


@pytest.mark.parametrize("whose", ["run", "script"])
def test_scaled_losses_with_accumulation_and_without_clipping(same_bits, whose):
    same_bits(features.train_scaled, whose, "SGD, foreach", 2, False)


@pytest.mark.parametrize("length", [17, 1])
def test_scaled_losses_with_steps_smaller_than_the_processes(same_bits_on, length):
    same_bits_on((2, 4), trained(model="Plain", length=length, batch_size=8, epochs=3), precision="16-mixed")


def test_an_overflow_skips_the_update_of_its_own_phase_and_no_other(same_bits_on):
    alone = same_bits_on((2,), whole_steps.overflow_in_one_phase)
    assert [values["step.judge"] for values in alone["by_step"].values()] == ["True"] * 4
    assert [values["step.maker"] for values in alone["by_step"].values()] == ["True", "False", "True", "True"]


@pytest.mark.parametrize("precision", ["32-true", "16-mixed"])
def test_a_loop_left_after_a_step_goes_on_with_the_next(same_bits, precision):
    assert same_bits(features.leave_the_loop, precision)["steps"] == 4


# Compiled


def test_compiled_models(same_bits_on):
    same_bits_on((2,), trained(model="compiled, aot_eager", length=32, epochs=1))


@pytest.mark.long
@pytest.mark.timeout(240)
def test_compiled_models_with_inductor(same_bits_on):
    same_bits_on((3,), trained(model="compiled, inductor", length=32, epochs=1))


# Disturbed, and in two pieces


@pytest.mark.parametrize("length", [64, 33])
def test_processes_that_are_late_at_random_change_nothing(standing_crew, length):
    [alone] = standing_crew(1, features.train_wide, False, length, shards=4)
    for nproc in (2, 3):
        assert_same_bits(alone, standing_crew(nproc, features.train_wide, True, length, shards=4))


@pytest.mark.parametrize("then", [1, 2, 3])
def test_a_training_goes_on_after_its_first_steps_at_another_world_size(standing_crew, then):
    [whole] = standing_crew(1, features.train_on, None, range(6), shards=4)
    for num_first in (1, 3):
        first = standing_crew(2, features.train_on, None, range(num_first), shards=4)
        for result in standing_crew(then, features.train_on, first[0]["saved"], range(num_first, 6), shards=4):
            assert differences(whole["state"], result["state"]) == []


# Refused


@pytest.mark.parametrize(
    ("what", "said"),
    [
        ("SyncBatchNorm", r"layer 'norm' is SyncBatchNorm"),
        ("create_graph", r"torch\.autograd\.grad"),
        ("late buffer", r"buffer 'scale' of LateBuffer was None"),
        ("used inside and outside", r"'layer\.\w+' came in several parts"),
    ],
)
@pytest.mark.parametrize("nproc", [1, 2, 3])
def test_what_could_not_be_the_same_is_refused_at_every_world_size(crew, nproc, what, said):
    with pytest.raises(LaunchError, match=said):
        crew(nproc, features.refused, what, shards=3)
