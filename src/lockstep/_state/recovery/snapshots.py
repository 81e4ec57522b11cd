"""Copies of the run's state. Each is this rank's part in writing a checkpoint."""

from __future__ import annotations

import math
import platform
import threading
import time
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from lockstep._base.config import RunConfig
from lockstep._state.checkpoint.manifest import Manifest
from lockstep._state.checkpoint.staging import Staging
from lockstep._state.checkpoint.writer import Job
from lockstep._state.recovery.position import ScriptPosition
from lockstep._state.recovery.run_state import RunState
from lockstep._state.recovery.software import numerics, version
from lockstep._state.rundir.fixed_settings import FixedSettings
from lockstep._world.comm.collectives import Collectives


class Snapshots:
    """The taking of copies, of the whole state and of the weights alone.

    Args:
        config: the settings, with the number of checkpoints to keep.
        token: identifies this launch, the same on every rank.
    """

    def __init__(
        self, config: RunConfig, token: str, birth: FixedSettings, state: RunState, collectives: Collectives
    ) -> None:
        self.num_taken = 0
        """The number of copies of the whole state in this launch. The same on every rank."""
        self.is_rehearsed = False
        self._num_best = 0
        """The number of copies of the weights alone in this launch. The same on every rank."""
        self._keep = config.keep
        self._token = token
        self._birth = birth
        self._state = state
        self._collectives = collectives
        self._staging, self._staging_of_best = Staging(), Staging()
        self._touching: threading.Thread | None = None

    def accept_first_step(self) -> None:
        """Accepts what the first step has made, before anything is saved.

        Raises:
            ModelError: it has made what each rank would train by itself.
        """
        # Here, before the ranks' states are compared: such a part differs there, which says less.
        self._state.check_gradients()
        for adapter in self._state.objects:
            adapter.after_first_step()

    def rehearse(self) -> None:
        """Checks when all state exists, after a step, that it can be saved, and allocates memory
        for its copy. Every rank must call it."""
        # Without it, a value that cannot be saved would fail hours later, and the first copy would
        # pay for its page faults while training pauses (see ``Staging``).
        self.is_rehearsed = True
        mine, _ = self._state.part(self._collectives.rank, self._collectives.size)
        # Not the tensors themselves: the thread shall neither see nor keep what steps change.
        forms = {
            f"{file}/{name}": (tensor.shape, tensor.dtype)
            for file, part in mine.items()
            for name, tensor in part.items()
            if tensor.is_cpu
        }
        self._touching = threading.Thread(target=self._staging.prepare, args=(forms,), name="lockstep-staging", daemon=True)
        self._touching.start()

    def take(self, position: ScriptPosition, step: int, epoch: int, *, finished: bool) -> Job:
        """Copies the whole state. Every rank must call it, when nothing is being written."""
        if self._touching is not None:
            self._touching.join()
        mine, state = self._state.part(self._collectives.rank, self._collectives.size)
        manifest = Manifest(
            step=step,
            epoch=epoch,
            time_s=time.time(),
            finished=finished,
            position=position.as_json(),
            numerics=numerics(),
            **self._state.describe(),
            **self._origin(),
        )
        self.num_taken += 1
        return self._job(manifest, mine, state, self._staging)

    def take_weights(self, value: float, step: int, epoch: int) -> Job | None:
        """Copies the weights. If they are cut over the ranks, each rank copies its own rows.
        Otherwise rank 0 alone writes them, since they are the same on every rank; None on others.

        Every rank must call it, when nothing is being written. ``value``: the metric by which they
        are the best."""
        manifest = Manifest(
            kind="weights",
            step=step,
            epoch=epoch,
            time_s=time.time(),
            metric=value if math.isfinite(value) else None,
            objects=self._state.describe_objects(),
            **self._origin(),
        )
        weights = self._state.weights(self._collectives.rank)
        self._num_best += 1
        num_writers = self._collectives.size if self._state.is_cut else 1
        if self._collectives.rank >= num_writers:
            return None
        return replace(self._job(manifest, weights, {}, self._staging_of_best), world_size=num_writers)

    def _origin(self) -> dict[str, Any]:
        return {
            "birth": {**self._birth.as_json(), "script_seed": self._state.script_seed},
            "world_size": self._collectives.size,
            "versions": {"lockstep": version(), "torch": torch.__version__, "python": platform.python_version()},
        }

    def _job(self, manifest: Manifest, files: dict[str, dict[str, Tensor]], state: Any, staging: Staging) -> Job:
        flat = {f"{file}/{name}": tensor for file, part in files.items() for name, tensor in part.items()}
        copies, copied = staging.copy(flat)
        # The token is the same on all ranks, which have saved equally many checkpoints. The number
        # separates two saves of one step, of which the first may have failed on some ranks only.
        number = f"best-{self._num_best}" if manifest.kind == "weights" else self.num_taken
        return Job(
            manifest=manifest,
            token=f"{self._token}-{number}",
            rank=self._collectives.rank,
            world_size=self._collectives.size,
            keep=self._keep,
            tensors={file: {name: copies[f"{file}/{name}"] for name in part} for file, part in files.items()},
            state=state,
            copied=copied,
        )
