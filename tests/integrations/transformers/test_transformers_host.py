"""What of transformers' Trainer is private, and relied upon: these tests fail first where another
version has moved it."""

import pytest

pytestmark = [pytest.mark.long, pytest.mark.timeout(120)]

MOVED = (
    "transformers' Trainer has moved a private part on which lockstep.integrations.transformers._host relies. Read what "
    "it does now, adapt _host.py, and add the version to versions.TESTED"
)
BEFORE = """
get_train_dataloader set_initial_training_values _init_training_state _prepare_for_training
on_train_begin on_epoch_begin _run_epoch
"""
STEP = """
get_batch_samples
on_step_begin training_step floating_point_ops _track_num_input_tokens on_substep_end
training_step floating_point_ops _track_num_input_tokens
_clip_grad_norm optimizer.step schedule.step on_step_end _maybe_log_save_evaluate
"""
AFTER = """
on_epoch_end _maybe_log_save_evaluate evaluation_loop prediction_step _save_checkpoint save_model _save_rng_state
_finalize_training
"""


def test_the_stages_of_training_come_in_the_order_that_is_relied_upon(there, tmp_path):
    (calls,) = there(1, "trainer_features.stages", tmp_path / "out")
    assert calls == f"{BEFORE}{STEP}{STEP}{AFTER}".split(), MOVED


def test_private_methods_take_what_is_given_to_them(there):
    (moved,) = there(1, "trainer_host.moved")
    assert moved == [], MOVED
