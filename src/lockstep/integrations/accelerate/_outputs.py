"""The output of a script: files in accelerate's format, and values for trackers."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from accelerate.optimizer import AcceleratedOptimizer
from accelerate.scheduler import AcceleratedScheduler
from accelerate.utils import ProfileKwargs, ProjectConfiguration
from torch import Tensor, nn

import lockstep
from lockstep.integrations.accelerate import _files as files
from lockstep.integrations.accelerate import _host as host
from lockstep.integrations.accelerate._processes import Processes
from lockstep.integrations.accelerate._promise import Promise, value_of


class Outputs(Processes):
    """The part of ``Accelerator`` that writes files and logs values.

    Args:
        team: the team of this process.
        project: the directory, and the folder names of ``save_state``.
        log_with: the trackers, as in accelerate.
        profile: the options of the profiler.
    """

    def __init__(self, team: lockstep.Team, project: ProjectConfiguration, log_with: Any, profile: ProfileKwargs) -> None:
        super().__init__(team)
        self.project_configuration = project
        self.log_with = log_with
        self.profile_handler = profile
        self.trackers: Sequence[Any] = []
        self._models: list[nn.Module] = []
        self._optimizers: list[AcceleratedOptimizer] = []
        self._schedulers: list[AcceleratedScheduler] = []
        self._registered: list[Any] = []
        self._counts = team.register("accelerator", {"accumulated": 0, "saved": 0, "since": False, "by_hand": False})

    def save_state(self, output_dir: Any = None, safe_serialization: bool = True, **_: Any) -> str:
        """Writes a folder that plain accelerate can load. Every rank must call it; rank 0 writes.
        lockstep never reads the folder, since it writes its own checkpoints automatically."""
        folder = files.folder_of_state(output_dir, self.project_configuration, self._counts["saved"])
        self._counts["saved"] += 1
        numbered = (
            (f"{name}{f'_{number}' if number else ''}.bin", item)
            for name, items in (("optimizer", self._optimizers), ("scheduler", self._schedulers))
            for number, item in enumerate(items)
        )
        custom = ((f"custom_checkpoint_{number}.pkl", item) for number, item in enumerate(self._registered))
        limit = self.project_configuration.total_limit if self.project_configuration.automatic_checkpoint_naming else None
        files.save_state(self.team, folder, self._models, [*numbered, *custom], limit)
        return str(folder)

    def save_model(
        self, model: nn.Module, save_directory: Any, max_shard_size: Any = None, safe_serialization: bool = True
    ) -> None:
        """Writes a model's weights to one file. Every rank must call it; rank 0 writes."""
        files.save_model(self.team, model, Path(save_directory), safe=safe_serialization)

    def save(self, obj: Any, f: Any, safe_serialization: bool = False) -> None:
        """Calls ``torch.save`` on rank 0. Every rank must call it."""
        self.team.save(obj, f)

    def get_state_dict(self, model: nn.Module, unwrap: bool = True) -> Mapping[str, Any]:
        """Returns the model's weights."""
        weights: Mapping[str, Any] = model.state_dict()
        return weights

    def unwrap_model(self, model: nn.Module, keep_fp32_wrapper: bool = True, keep_torch_compile: bool = True) -> nn.Module:
        """Returns the script's model, without the wrapper of ``prepare``."""
        return self.team.unwrap(model)

    def init_trackers(
        self, project_name: str, config: Mapping[str, Any] | None = None, init_kwargs: Mapping[str, Any] | None = None
    ) -> None:
        """Starts the trackers on rank 0."""
        if self.log_with is not None and self.is_main_process:
            self.trackers = host.make_trackers(self.log_with, self.logging_dir, project_name, config, init_kwargs or {})

    def log(self, values: Mapping[str, Any], step: int | None = None, log_kwargs: Mapping[str, Any] | None = None) -> None:
        """Writes values to the trackers. Numbers among the values also go to lockstep's event log
        and progress display. Every rank must call it, with equal values."""
        values = {name: value_of(value) if isinstance(value, Promise) else value for name, value in values.items()}
        numbers = {name: value for name, value in values.items() if _is_number(value)}
        if numbers:
            self.team.log(**numbers)
        for tracker in self.trackers:
            tracker.log(values, step=step, **(log_kwargs or {}).get(tracker.name, {}))

    def get_tracker(self, name: str, unwrap: bool = False) -> Any:
        """Returns a tracker on rank 0, and a tracker that does nothing on other ranks.

        Raises:
            ValueError: no tracker has that name.
        """
        for tracker in self.trackers:
            if tracker.name == name:
                return tracker.tracker if unwrap else tracker
        if not self.is_main_process:
            return host.BLANK_TRACKER
        raise ValueError(
            f"tracker {name} is not available. Create the Accelerator with log_with={name!r} and call init_trackers()."
        )

    @property
    def logging_dir(self) -> Any:
        """The directory in which trackers write."""
        return self.project_configuration.logging_dir

    @property
    def project_dir(self) -> Any:
        """The directory of the project."""
        return self.project_configuration.project_dir

    @contextlib.contextmanager
    def profile(self, profile_handler: Any = None) -> Iterator[Any]:
        """Profiles the block with torch's profiler and the options of ``ProfileKwargs``."""
        handler = profile_handler or self.profile_handler
        with handler.build() as profiler:
            yield profiler
        if handler.output_trace_dir is not None:
            folder = Path(handler.output_trace_dir)
            folder.mkdir(parents=True, exist_ok=True)
            profiler.export_chrome_trace(str(folder / f"profile_{self.process_index}.json"))
            self.wait_for_everyone()

    def end_training(self) -> None:
        """Finishes the trackers. Every rank must call it."""
        for tracker in self.trackers:
            tracker.finish()
        self.team.barrier()


def _is_number(value: Any) -> bool:
    if isinstance(value, Tensor):
        return value.numel() == 1
    return (
        isinstance(value, (int, float))
        and not isinstance(value, bool)
        and not (isinstance(value, float) and math.isinf(value))
    )
