"""The arguments, methods and models of transformers that lockstep does not support, with remedies.
All functions are pure."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from lockstep._base.errors import ConfigError, UsageError
from lockstep._data.states import generators_of


@dataclass(frozen=True)
class Refusal:
    """An argument that lockstep does not support.

    Args:
        name: the name of the argument.
        applies: returns whether the arguments use it.
        why: the reason and the remedy.
    """

    name: str
    applies: Callable[[Any], Any]
    why: str


def _is_set(name: str) -> Callable[[Any], Any]:
    return lambda args: getattr(args, name, None)


def _strategy(args: Any) -> Any:
    return args.lockstep.get("strategy") if isinstance(args.lockstep, dict) else None


_OTHER_PARALLELISM = (
    "lockstep distributes the training itself. Remove it; for a model that is too large for one device, set "
    'lockstep={"strategy": "fsdp"}.'
)
_FULL_EVAL = "it would cast the trained weights. Remove it; with bf16=True, evaluation uses bfloat16 autocast."
_IN_BACKWARD = (
    "it updates weights during the backward pass, from the gradient of one process's samples, so each process would train "
    "a different model. Choose an optimizer that updates weights in step()."
)

ARGUMENTS = (
    Refusal("deepspeed", _is_set("deepspeed"), _OTHER_PARALLELISM),
    Refusal("fsdp", _is_set("fsdp"), _OTHER_PARALLELISM),
    Refusal("parallelism_config", _is_set("parallelism_config"), _OTHER_PARALLELISM),
    Refusal(
        "torch_compile",
        lambda args: args.torch_compile or args.torch_compile_backend or args.torch_compile_mode,
        "accelerate would compile the model, but lockstep prepares it instead. Compile the model before you pass it to "
        "Trainer: model.compile(dynamic=False).",
    ),
    Refusal("fp16_full_eval", _is_set("fp16_full_eval"), _FULL_EVAL),
    Refusal("bf16_full_eval", _is_set("bf16_full_eval"), _FULL_EVAL),
    Refusal(
        "enable_jit_checkpoint",
        _is_set("enable_jit_checkpoint"),
        "lockstep already saves the run on SIGTERM and SIGINT, and a signal can have only one handler. Remove it.",
    ),
    Refusal(
        "data_seed",
        lambda args: args.data_seed is not None and args.data_seed != args.seed,
        "all random streams of a run are computed from seed, including the order of samples. Set seed instead.",
    ),
    Refusal(
        "optim",
        lambda args: any(word in str(getattr(args.optim, "value", args.optim)) for word in ("lomo", "layerwise")),
        _IN_BACKWARD,
    ),
    Refusal(
        "optim",
        lambda args: "fused" in str(getattr(args.optim, "value", args.optim)) and args.use_cpu and _strategy(args) == "fsdp",
        "on the CPU, the fused kernel computes the last elements of a tensor with different instructions, and with strategy "
        "fsdp the end of a process's slice depends on the number of processes. Set optim='adamw_torch'.",
    ),
    Refusal(
        "accelerator_config",
        lambda args: getattr(args.accelerator_config, "split_batches", False),
        "split_batches has no meaning on lockstep: the global batch is per_device_train_batch_size * shards * "
        "gradient_accumulation_steps on any number of processes. Remove it.",
    ),
    Refusal(
        "accelerator_config",
        lambda args: (getattr(args.accelerator_config, "gradient_accumulation_kwargs", None) or {}).keys() & {"num_steps"},
        "num_steps is read after the run has started. Set gradient_accumulation_steps instead.",
    ),
    Refusal(
        "accelerator_config",
        lambda args: getattr(args.accelerator_config, "use_configured_state", False),
        "lockstep resets accelerate's state, so that accelerate sees a single process. Remove use_configured_state.",
    ),
    Refusal(
        "mixed_precision",
        lambda args: args.mixed_precision not in ("no", "bf16", "fp16"),
        "this precision is not supported. Use bf16=True, fp16=True or lockstep={'precision': ...}.",
    ),
)

PRIVATE = (
    "_inner_training_loop",
    "_init_training_state",
    "_prepare_for_training",
    "_run_epoch",
    "_finalize_training",
    "_maybe_log_save_evaluate",
    "_wrap_model",
    "get_batch_samples",
    "create_accelerator_and_postprocess",
)
"""The methods of Trainer that lockstep replaces, so that a subclass cannot override them."""


def check_arguments(args: Any) -> None:
    """Checks that lockstep supports the arguments.

    Raises:
        ConfigError: lockstep does not support an argument.
    """
    for refusal in ARGUMENTS:
        if refusal.applies(args):
            value = _short(getattr(args, refusal.name))
            raise ConfigError(
                f"TrainingArguments({refusal.name}={value}) is not supported on lockstep: {refusal.why}",
                code="argument-of-trainer",
            )


def _short(value: Any) -> str:
    """Returns a text of one line."""
    text = repr(value)
    return f"{type(value).__name__}(...)" if "\n" in text else text


def check_methods(kind: type) -> None:
    """Checks that a subclass of the script does not override methods that lockstep replaces.

    Args:
        kind: the class of the trainer.

    Raises:
        UsageError: the class or one of its bases overrides such a method.
    """
    own = ("transformers", "lockstep")
    for name in PRIVATE:
        owners = [each for each in kind.__mro__ if name in vars(each) and each.__module__.partition(".")[0] not in own]
        if owners:
            raise UsageError(
                f"{owners[0].__name__}.{name}() overrides a private method of Trainer that lockstep replaces, so it would not "
                "run. Override compute_loss, training_step, prediction_step, create_optimizer, create_scheduler or log, or "
                "use callbacks.",
                code="private-method-overridden",
            )


def check_model(model: Any) -> None:
    """Checks that the model is not already distributed over devices or processes.

    Raises:
        ConfigError: it is.
    """
    if getattr(model, "is_distributed_loading_by_transformers", False) or (getattr(model, "tp_size", None) or 1) > 1:
        raise ConfigError(
            "the model was loaded with tensor parallelism (tp_plan or distributed_config), which lockstep does not support. "
            'Load it without; for a model that is too large for one device, set lockstep={"strategy": "fsdp"}.',
            code="model-distributed",
        )


def check_collator(loader: Any) -> None:
    """Checks that a loader's collator draws from the global random generators only.

    Each process collates only its samples. A separate generator would be in a different state on
    each process, so the numbers of a sample would depend on the number of processes.

    Raises:
        ConfigError: the collator has a generator, or creates one from a seed in its first call.
    """
    collate = getattr(loader, "collate_fn", None)
    # Trainer wraps the collator to remove columns.
    collator = getattr(collate, "data_collator", collate)
    seed = getattr(collator, "seed", None) if hasattr(collator, "generator") else None
    names = [f"seed={seed!r}"] if seed is not None else [*generators_of(collator)]
    if names:
        raise ConfigError(
            f"data_collator={type(collator).__name__}(...) with {names[0]} uses a separate random generator, so the numbers "
            "that a sample gets would depend on the number of processes. Remove it and use the global generators, which "
            "lockstep seeds for each sample.",
            code="collator-generator",
        )


def check_resume(resume_from_checkpoint: Any) -> None:
    """Checks the argument ``resume_from_checkpoint`` of ``train``.

    Raises:
        UsageError: it is neither a path nor True, False or None.
    """
    is_path = isinstance(resume_from_checkpoint, str) or hasattr(resume_from_checkpoint, "__fspath__")
    if not (is_path or resume_from_checkpoint in (None, True, False)):
        raise UsageError(
            f"train(resume_from_checkpoint={resume_from_checkpoint!r}) is invalid. Pass True, None or a path.",
            code="invalid-resume",
        )
