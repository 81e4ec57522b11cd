"""All private parts of accelerate that lockstep uses, in one place.

A new version of accelerate may change them without notice, so ``check_host`` looks for each of them
when an ``Accelerator`` is created:

- ``AcceleratorState(_from_accelerator=True)``: accelerate refuses to create the state otherwise,
  and its optimizers, schedules and trackers read it.
- ``GradientState.sync_gradients``: the only switch by which accelerate's optimizers and schedules
  skip a step.
- ``tracking.LOGGER_TYPE_TO_CLASS`` and ``filter_trackers``: the way from ``log_with`` to trackers.
"""

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
    """Makes accelerate see a single process, whose index is this rank, so that ``is_main_process``
    and accelerate's loggers work.

    Raises:
        ConfigError: ``accelerate launch`` selects another way to train in parallel.
    """
    check_host()
    for flag, name in _STRANGERS.items():
        if parse_flag_from_env(flag):
            raise ConfigError(
                f"accelerate launch sets {flag}, but {name} trains in parallel in a different way. Start the script with "
                "lockstep run or torchrun. To shard parameters, pass strategy='fsdp'.",
                code="other-parallelism",
            )
    # With the launcher's variables, accelerate would open a second process group.
    with team.hide_launcher():
        state = PartialState(cpu=cpu)
        state.process_index, state.local_process_index, state.device = team.rank, team.local_rank, team.device
        made = AcceleratorState(
            mixed_precision=mixed_precision, cpu=cpu, dynamo_plugin=TorchDynamoPlugin(backend="no"), _from_accelerator=True
        )
    if made.num_processes != 1:
        raise UsageError(
            f"accelerate joined a group of {made.num_processes} processes before lockstep's Accelerator was created. Create "
            "lockstep's Accelerator before any other object of accelerate (PartialState(), its own Accelerator).",
            code="accelerate-joined-before",
        )
    return made


def mixed_precision(given: str | None) -> str:
    """Returns the precision that the script passes; without one, the precision of ``accelerate
    launch``."""
    return parse_choice_from_env("ACCELERATE_MIXED_PRECISION", "no") if given is None else str(given).lower()


def num_to_accumulate(given: int) -> int:
    """Returns the batches per optimizer step of ``accelerate launch``; without them, the script's
    number."""
    return int(parse_choice_from_env("ACCELERATE_GRADIENT_ACCUMULATION_STEPS", str(given)))


def check_host() -> None:
    """Checks that accelerate has the private parts that lockstep needs.

    Raises:
        ConfigError: one of them is missing.
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
            f"accelerate {accelerate.__version__} has no {', '.join(missing)}, which lockstep needs. Install a tested "
            "version: accelerate 1.15.",
            code="untested-version",
        )


def refuse_local_sgd(kind: type) -> None:
    """Makes ``LocalSGD(accelerator=...)`` raise for accelerators of a type. It finds a single
    process, so it would silently do nothing."""
    made = local_sgd.LocalSGD.__init__
    if getattr(made, "refuses", None) is kind:
        return

    @functools.wraps(made)
    def init(self: Any, accelerator: Any, *args: Any, **kwargs: Any) -> None:
        if isinstance(accelerator, kind):
            raise UsageError(
                "LocalSGD trains a separate model on each process, so its results depend on the number of processes. Remove "
                "it: lockstep synchronizes gradients in every step.",
                code="local-sgd",
            )
        made(self, accelerator, *args, **kwargs)

    init.refuses = kind  # type: ignore[attr-defined]
    local_sgd.LocalSGD.__init__ = init


def set_sync_gradients(value: bool) -> None:
    """Sets whether accelerate's optimizers and schedules step."""
    GradientState().sync_gradients = value


def make_trackers(
    log_with: Any, logging_dir: Any, project_name: str, config: Mapping[str, Any] | None, options: Mapping[str, Any]
) -> Sequence[tracking.GeneralTracker]:
    """Creates and starts the trackers in ``log_with``, and stores the run's configuration in
    them."""
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
