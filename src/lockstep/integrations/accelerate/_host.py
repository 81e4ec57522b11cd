"""What lockstep needs of accelerate besides its public classes, all in one place: see
``check_host``."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from typing import Any

import accelerate
from accelerate import local_sgd, tracking
from accelerate.state import AcceleratorState, GradientState, PartialState
from accelerate.utils import TorchDynamoPlugin, parse_choice_from_env, parse_flag_from_env

import lockstep
from lockstep._base.errors import ConfigError, UsageError

BLANK_TRACKER = tracking.GeneralTracker(_blank=True)
_STRANGERS = {
    "ACCELERATE_USE_DEEPSPEED": "DeepSpeed",
    "ACCELERATE_USE_FSDP": "FSDP",
    "ACCELERATE_USE_MEGATRON_LM": "Megatron-LM",
}


def enter_single_process(team: lockstep.Team, mixed_precision: str | None, *, cpu: bool) -> AcceleratorState:
    """Let accelerate find a single process, whose index is this rank: ``is_main_process`` and
    loggers are right by that.

    Raises:
        ConfigError: ``accelerate launch`` was told to use another way to train in parallel.
    """
    check_host()
    for flag, name in _STRANGERS.items():
        if parse_flag_from_env(flag):
            raise ConfigError(
                f"accelerate launch sets {flag}: {name} brings a way to train in parallel of its own. Start the script "
                "with lockstep run or torchrun; with strategy='fsdp' lockstep shards parameters itself."
            )
    with team.hide_launcher():
        state = PartialState(cpu=cpu)
        state.process_index, state.local_process_index, state.device = team.rank, team.local_rank, team.device
        made = AcceleratorState(
            mixed_precision=mixed_precision, cpu=cpu, dynamo_plugin=TorchDynamoPlugin(backend="no"), _from_accelerator=True
        )
    if made.num_processes != 1:
        raise UsageError(
            f"accelerate had joined a group of {made.num_processes} processes before lockstep's Accelerator was made. "
            "Make the Accelerator before anything else of accelerate (PartialState(), its own Accelerator)."
        )
    return made


def mixed_precision(given: str | None) -> str:
    """The precision that the script asks for, or ``accelerate launch``."""
    return parse_choice_from_env("ACCELERATE_MIXED_PRECISION", "no") if given is None else str(given).lower()


def num_to_accumulate(given: int) -> int:
    """The batches to a step that ``accelerate launch`` asks for, or the script."""
    return int(parse_choice_from_env("ACCELERATE_GRADIENT_ACCUMULATION_STEPS", str(given)))


def check_host() -> None:
    """Check that accelerate is as lockstep knows it.

    Raises:
        ConfigError: something that lockstep needs has moved.
    """
    needed = {
        "accelerate.tracking.LOGGER_TYPE_TO_CLASS": getattr(tracking, "LOGGER_TYPE_TO_CLASS", None),
        "accelerate.tracking.filter_trackers": getattr(tracking, "filter_trackers", None),
        "accelerate.local_sgd.LocalSGD": getattr(local_sgd, "LocalSGD", None),
        "accelerate.state.GradientState.sync_gradients": hasattr(GradientState(), "sync_gradients") or None,
    }
    missing = [name for name, found in needed.items() if found is None]
    if missing:
        raise ConfigError(
            f"accelerate {accelerate.__version__} has no {', '.join(missing)}, which lockstep needs. Install a version "
            "that lockstep is tested with: accelerate 1.15."
        )


def refuse_local_sgd(kind: type) -> None:
    """Let ``LocalSGD(accelerator=...)`` raise for accelerators of a type: with the single process
    that it finds, it would do nothing, without a word."""
    made = local_sgd.LocalSGD.__init__
    if getattr(made, "refuses", None) is kind:
        return

    @functools.wraps(made)
    def init(self: Any, accelerator: Any, *args: Any, **kwargs: Any) -> None:
        if isinstance(accelerator, kind):
            raise UsageError(
                "LocalSGD trains a model of its own on each process, so its result depends on their number. Leave it "
                "out: lockstep synchronizes gradients in every step."
            )
        made(self, accelerator, *args, **kwargs)

    init.refuses = kind  # type: ignore[attr-defined]
    local_sgd.LocalSGD.__init__ = init


def set_sync_gradients(value: bool) -> None:
    """Tell accelerate's optimizers and schedules whether a step is to be taken."""
    GradientState().sync_gradients = value


def make_trackers(
    log_with: Any, logging_dir: Any, project_name: str, config: Mapping[str, Any] | None, options: Mapping[str, Any]
) -> Sequence[tracking.GeneralTracker]:
    """The trackers that a script has asked for, with the run's configuration stored."""
    made = []
    for kind in tracking.filter_trackers(log_with, logging_dir):
        if isinstance(kind, tracking.GeneralTracker):
            tracker = kind
        else:
            of_kind = tracking.LOGGER_TYPE_TO_CLASS[str(kind)]
            places = [logging_dir] if of_kind.requires_logging_directory else []
            tracker = of_kind(project_name, *places, **options.get(str(kind), {}))
        made.append(tracker)
    for tracker in made:
        if hasattr(tracker, "start"):
            tracker.start()
        if config is not None:
            tracker.store_init_configuration(config)
    return made
