"""Gradients and weights that nothing combines over the processes are never used in silence."""

import pytest
import stray_scripts

pytestmark = pytest.mark.timeout(60)
SETTINGS = [(2, {"shards": 4}), (2, {"strategy": "ddp"})]


@pytest.mark.parametrize(("nproc", "settings"), SETTINGS)
@pytest.mark.parametrize(("when", "layer"), [("before", "last"), ("after", "first")])
def test_a_plain_backward_pass_that_reaches_weights_is_refused_in_any_order(standing_crew, nproc, settings, when, layer):
    for code, message in standing_crew(nproc, stray_scripts.told, stray_scripts.backward_beside, when, layer, **settings):
        assert code == "gradient-by-script"
        assert "step 1, shard " in message
        assert f"'{layer}." in message
        assert "torch.autograd.grad(loss, inputs)" in message


@pytest.mark.parametrize("when", ["before", "after"])
def test_it_is_refused_on_one_process_too_where_a_step_is_that_of_a_plain_script(standing_crew, when):
    [(code, message)] = standing_crew(1, stray_scripts.told, stray_scripts.backward_beside, when, "first")
    assert code == "gradient-by-script"
    assert "step 1, shard 0" in message
    assert "torch.autograd.grad(loss, inputs)" in message


@pytest.mark.parametrize(("nproc", "settings"), [*SETTINGS, (1, {})])
def test_backward_passes_for_inputs_alone_are_left_in_peace(standing_crew, nproc, settings):
    assert standing_crew(nproc, stray_scripts.told, stray_scripts.backward_for_inputs, **settings) == [None] * nproc


@pytest.mark.parametrize(("first", "use"), [(3, "step"), (1, "norm")])
def test_a_gradient_of_no_prepared_model_cannot_be_used_outside(standing_crew, first, use):
    for code, message in standing_crew(2, stray_scripts.told, stray_scripts.forget_from, first, use, shards=4):
        assert code == "gradient-of-unprepared"
        assert use == "norm" or f"Adam.step() in step {first}: " in message
        assert "shape (2, 2)" in message
        assert "team.prepare(model, head" in message


def test_nor_can_one_from_a_plain_backward_pass_inside(standing_crew):
    for code, message in standing_crew(2, stray_scripts.told, stray_scripts.train_apart, shards=4):
        assert code == "gradient-of-unprepared"
        assert "SGD.step() in step 2: " in message


def test_a_model_that_is_trained_outside_is_left_in_peace(standing_crew):
    assert standing_crew(2, stray_scripts.told, stray_scripts.train_outside, shards=4) == [None, None]


@pytest.mark.parametrize("nproc", [1, 2])
def test_a_scaler_without_gradients_is_told_too(standing_crew, nproc):
    for code, message in standing_crew(nproc, stray_scripts.told, stray_scripts.no_gradient_for_a_scaler, shards=2):
        assert code == "step-without-gradients"
        assert "GradScaler.step() in step 1" in message


@pytest.mark.parametrize("script", [(stray_scripts.forget_from, 1, "nothing"), (stray_scripts.prepare_late,)])
def test_a_gradient_that_nobody_uses_is_no_error(standing_crew, script):
    assert standing_crew(2, stray_scripts.told, *script, shards=4) == [None, None]


@pytest.mark.parametrize(("step", "how"), [(3, "exchanged"), pytest.param(1, "in place", marks=pytest.mark.quick)])
def test_weights_written_through_data_inside_are_found(standing_crew, step, how):
    for code, message in standing_crew(2, stray_scripts.told, stray_scripts.write_through_data, step, how, shards=4):
        assert code == "weights-changed-inside"
        assert "'last.weight'" in message
        assert f"step {step}" in message


def test_weights_that_are_moved_back_or_written_outside_are_none_of_these(standing_crew):
    script = stray_scripts.write_through_data
    assert standing_crew(2, stray_scripts.told, script, 1, "moved and moved back", shards=4) == [None, None]
