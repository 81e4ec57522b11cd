"""What is printed at the first training loader: what the run will do, and what in the allotted resources does not fit that."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from typing_extensions import override

from lockstep.base.config import RunConfig
from lockstep.base.stopping import say
from lockstep.base.visible import visible
from lockstep.joining.startup.allotment import misfits
from lockstep.joining.startup.banner import chosen_shards, first_line
from lockstep.listener import Listener
from lockstep.state.recovery.software import kernels_repeat
from lockstep.sync.table import promises_bits
from lockstep.world.comm.group import Transport
from lockstep.world.environment import World
from lockstep.world.machine.cores import num_cores


class Announcement(Listener):
    """Prints it, on rank 0.

    Args:
        shards_given: whether V was given, or the run has it from an earlier launch.
    """

    def __init__(
        self,
        config: RunConfig,
        world: World,
        devices: Sequence[torch.device],
        transport: Transport,
        run_dir: Path,
        *,
        shards_given: bool,
    ) -> None:
        self._config, self._world, self._devices = config, world, devices
        clause = "" if shards_given else f" ({chosen_shards(world.world_size)})"
        self._where = f"{transport}, run {run_dir}{clause}"

    @override
    def made_loader(self, loader: Any, number: int) -> None:
        """Print it, once."""
        if number > 1:
            return
        line = first_line(loader, self._config, self._world, len(self._devices))
        print(visible(f"{line}, {self._where}"), flush=True)
        on_gpu = self._devices[0].type != "cpu"
        if on_gpu and promises_bits(self._config.strategy) and not kernels_repeat():
            say(
                f"WARNING: strategy {self._config.strategy} adds in one order, but some kernels of a GPU do not, and may give "
                "other bits each time. For the same bits call torch.use_deterministic_algorithms(True) before training, with "
                "torch.backends.cudnn.benchmark left False: it costs some speed. strategy='ddp' promises no bits."
            )
        for misfit in misfits(
            self._world,
            num_cores=num_cores(),
            num_gpus=torch.accelerator.device_count() if on_gpu else 0,
            gpus_each=len(self._devices) if on_gpu else 0,
            workers=getattr(loader, "num_workers", 0),
        ):
            say(misfit)
