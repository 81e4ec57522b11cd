"""What of transformers' arguments and subclasses would not mean on lockstep what it says, and what
to do instead. Pure."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from lockstep._base.errors import ConfigError, UsageError
from lockstep._data.states import generators_of


@dataclass(frozen=True)
class Refusal:
    """An argument that is refused.

    Args:
        name: of the argument.
        applies: whether it is refused, from the arguments.
        why: the consequence and the remedy.
    """

    name: str
    applies: Callable[[Any], Any]
    why: str


def _is_set(name: str) -> Callable[[Any], Any]:
    return lambda args: getattr(args, name, None)


def _strategy(args: Any) -> Any:
    return args.lockstep.get("strategy") if isinstance(args.lockstep, dict) else None


_OTHER_PARALLELISM = (
    "lockstep is what runs several processes here, each with the whole model. For a model that is too large for one device: "
    'lockstep={"strategy": "fsdp"}, with equal results.'
)
_FULL_EVAL = "it would cast the weights that are trained. With bf16=True, evaluation computes in bfloat16 by autocast."
_IN_BACKWARD = (
    "updates weights within the backward pass, from the gradient of one process's samples, so each would train another "
    "model. Choose an optimizer that has a step."
)

ARGUMENTS = (
    Refusal("deepspeed", _is_set("deepspeed"), _OTHER_PARALLELISM),
    Refusal("fsdp", _is_set("fsdp"), _OTHER_PARALLELISM),
    Refusal("parallelism_config", _is_set("parallelism_config"), _OTHER_PARALLELISM),
    Refusal(
        "torch_compile",
        lambda args: args.torch_compile or args.torch_compile_backend or args.torch_compile_mode,
        "accelerate would compile the model, and lockstep prepares it instead. Compile it in the script, before it is given to "
        "Trainer: model.compile(dynamic=False).",
    ),
    Refusal("fp16_full_eval", _is_set("fp16_full_eval"), _FULL_EVAL),
    Refusal("bf16_full_eval", _is_set("bf16_full_eval"), _FULL_EVAL),
    Refusal(
        "enable_jit_checkpoint",
        _is_set("enable_jit_checkpoint"),
        "lockstep saves the run itself when it is told to stop (SIGTERM, SIGINT), and two handlers of a signal exclude each "
        "other. Leave it out.",
    ),
    Refusal(
        "data_seed",
        lambda args: args.data_seed is not None and args.data_seed != args.seed,
        "all random streams of a run have one root, the seed, so another order of samples would need another run. Set seed.",
    ),
    Refusal(
        "optim",
        lambda args: any(word in str(getattr(args.optim, "value", args.optim)) for word in ("lomo", "layerwise")),
        _IN_BACKWARD,
    ),
    Refusal(
        "optim",
        lambda args: "fused" in str(getattr(args.optim, "value", args.optim)) and args.use_cpu and _strategy(args) == "fsdp",
        "with strategy fsdp on the CPU, the kernel of fused=True computes the last elements of a tensor with other "
        "instructions, and where a process's part ends depends on the number of processes. Set optim='adamw_torch'.",
    ),
    Refusal(
        "accelerator_config",
        lambda args: getattr(args.accelerator_config, "split_batches", False),
        "with split_batches, per_device_train_batch_size would be the global batch size on some numbers of processes. Leave it "
        "out: the global batch is per_device_train_batch_size * shards * gradient_accumulation_steps on any number.",
    ),
    Refusal(
        "accelerator_config",
        lambda args: (getattr(args.accelerator_config, "gradient_accumulation_kwargs", None) or {}).keys() & {"num_steps"},
        "its num_steps is read after the run has begun. Set gradient_accumulation_steps.",
    ),
    Refusal(
        "accelerator_config",
        lambda args: getattr(args.accelerator_config, "use_configured_state", False),
        "accelerate's state is configured anew, so that it finds a single process. Leave out use_configured_state.",
    ),
    Refusal(
        "mixed_precision",
        lambda args: args.mixed_precision not in ("no", "bf16", "fp16"),
        "the precisions are bf16=True and fp16=True (and those of lockstep, by lockstep={'precision': ...}).",
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
"""Methods of Trainer whose place is taken here: one of a subclass would not run as it was
written."""


def check_arguments(args: Any) -> None:
    """Refuse arguments that cannot be honoured.

    Raises:
        ConfigError: there is one. It names the argument, the value, the consequence and the remedy.
    """
    for refusal in ARGUMENTS:
        if refusal.applies(args):
            value = getattr(args, refusal.name)
            raise ConfigError(f"TrainingArguments({refusal.name}={value!r}) on lockstep: {refusal.why}")


def check_methods(kind: type) -> None:
    """Refuse subclasses of others that override what is private in Trainer, and replaced here.

    Args:
        kind: the class of the trainer.

    Raises:
        UsageError: it, or a class from which it derives, has one.
    """
    own = ("transformers", "lockstep")
    for name in PRIVATE:
        owners = [each for each in kind.__mro__ if name in vars(each) and each.__module__.partition(".")[0] not in own]
        if owners:
            raise UsageError(
                f"{owners[0].__name__}.{name}() overrides a stage of Trainer's loop that lockstep replaces, so it would not "
                "run as it was written. Override compute_loss, training_step, prediction_step, create_optimizer, "
                "create_scheduler or log, or use callbacks."
            )


def check_model(model: Any) -> None:
    """Refuse models that are spread over devices or processes by other means.

    Raises:
        ConfigError: it is one.
    """
    if getattr(model, "is_distributed_loading_by_transformers", False) or (getattr(model, "tp_size", None) or 1) > 1:
        raise ConfigError(
            f"the model was loaded with tensor parallelism (tp_plan or distributed_config): {_OTHER_PARALLELISM} Load it "
            "without them."
        )


def check_collator(loader: Any) -> None:
    """Refuse loaders whose collator draws from a random generator of its own: each process would
    draw for its own samples, in their order, and the next samples would get other numbers on other
    processes.

    Raises:
        ConfigError: it has one, or makes one from a seed when it is first called.
    """
    collate = getattr(loader, "collate_fn", None)
    # without the host's wrapper, which removes columns
    collator = getattr(collate, "data_collator", collate)
    seed = getattr(collator, "seed", None) if hasattr(collator, "generator") else None
    names = [f"seed={seed!r}"] if seed is not None else [*generators_of(collator)]
    if names:
        raise ConfigError(
            f"data_collator={type(collator).__name__}(...) with {names[0]}: a random generator of its own. Each process "
            "collates its own samples, so what they get would depend on the number of processes. Leave it out, and draw from "
            "the global generators: these follow from the seed of the run, and are the same on any number of processes."
        )


def check_resume(resume_from_checkpoint: Any) -> None:
    """Refuse what ``train`` cannot resume from.

    Raises:
        UsageError: it is neither a path nor True, False or None.
    """
    is_path = isinstance(resume_from_checkpoint, str) or hasattr(resume_from_checkpoint, "__fspath__")
    if not (is_path or resume_from_checkpoint in (None, True, False)):
        raise UsageError(f"train(resume_from_checkpoint={resume_from_checkpoint!r}): give True, None or a path")
