"""What host.py relies on, read in a process that has transformers."""

import inspect

import transformers
from accelerate.state import PartialState
from transformers.trainer_callback import CallbackHandler

from lockstep.integrations.transformers import _host as host

PARAMETERS = {
    "_inner_training_loop": "batch_size args resume_from_checkpoint trial ignore_keys_for_eval",
    "_init_training_state": "max_steps num_update_steps_per_epoch num_train_epochs resume_from_checkpoint trial",
    "_prepare_for_training": "max_steps train_dataloader resume_from_checkpoint",
    "_run_epoch": "model epoch train_dataloader steps_in_epoch num_update_steps_per_epoch trial ignore_keys_for_eval "
    "start_time resume_from_checkpoint epochs_trained steps_trained_in_current_epoch",
    "_finalize_training": "trial num_train_samples start_time",
    "_maybe_log_save_evaluate": "tr_loss grad_norm model trial epoch ignore_keys_for_eval start_time learning_rate",
    "_wrap_model": "model training dataloader",
    "_evaluate": "trial ignore_keys_for_eval skip_scheduler",
    "_get_num_items_in_batch": "batch_samples device",
    "_track_num_input_tokens": "inputs",
    "_save_checkpoint": "model trial",
    "_save_rng_state": "output_dir",
    "_save": "output_dir state_dict",
    "_get_output_dir": "trial",
    "get_batch_samples": "epoch_iterator num_batches device",
    "set_initial_training_values": "args dataloader",
    "training_step": "model inputs num_items_in_batch",
    "prediction_step": "model inputs prediction_loss_only ignore_keys",
    "evaluation_loop": "dataloader description prediction_loss_only ignore_keys metric_key_prefix",
}


def moved():
    """Returns the differences from the expected version."""
    found = []
    for name, expected in PARAMETERS.items():
        method = getattr(transformers.Trainer, name, None)
        actual = None if method is None else [*inspect.signature(method).parameters][1:]
        if actual != expected.split():
            found.append(f"Trainer.{name}{actual}")
    loop = transformers.Trainer._inner_training_loop.__code__.co_names
    found += [f"Trainer.{name} is not set" for name in host.OWN if name not in (*loop, "current_flos")]
    arguments = transformers.TrainingArguments
    found += [
        f"TrainingArguments.{name}" for name in ("_setup_devices", "_VALID_DICT_FIELDS") if not hasattr(arguments, name)
    ]
    found += [f"CallbackHandler.{name}" for name in ("call_event", "on_epoch_begin") if not hasattr(CallbackHandler, name)]
    attributes = ("process_index", "local_process_index", "device")
    return found + [f"PartialState.{name}" for name in attributes if name not in PartialState._known_attrs]
