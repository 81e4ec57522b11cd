"""Describes a run at its start: for its event log, and for the user at the first training loader,
with the allotted resources that do not fit."""

from __future__ import annotations

import contextlib
import platform
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from typing_extensions import override

from lockstep._base.config import STRATEGIES, RunConfig
from lockstep._base.escape_control import escape_control
from lockstep._base.own_kernels import packages_in
from lockstep._base.reports import NOTICE, Report, publish, warn
from lockstep._base.stopping import say
from lockstep._joining.startup.allotment import misfits
from lockstep._joining.startup.split_remarks import batch_size_of
from lockstep._listener import Listener
from lockstep._state.recovery.software import version
from lockstep._state.rundir.fixed_settings import own_args, script_sha256
from lockstep._world.comm.group import Transport
from lockstep._world.devices import product_of
from lockstep._world.environment import World
from lockstep._world.kernels import kernels_repeat, needs_deterministic_kernels
from lockstep._world.libraries import library_versions
from lockstep._world.machine.cores import num_cores
from lockstep._world.machine.sizes import counted


class Announcement(Listener):
    """A listener that prints the description, on rank 0.

    Args:
        shards_are_set: whether V was set, or the run has it from an earlier launch.
    """

    def __init__(
        self,
        config: RunConfig,
        world: World,
        devices: Sequence[torch.device],
        transport: Transport,
        run_dir: Path,
        *,
        shards_are_set: bool,
    ) -> None:
        self._config, self._world, self._devices = config, world, devices
        clause = "" if shards_are_set else f" ({chosen_shards(world.world_size)})"
        self._where = f"{transport}, run {run_dir}{clause}"

    @override
    def made_loader(self, loader: Any, number: int) -> None:
        """Prints the description, once."""
        if number > 1:
            return
        line = first_line(loader, self._config, self._world, len(self._devices))
        print(escape_control(f"{line}, {self._where}"), flush=True)
        batch_size, num_shards = batch_size_of(loader), self._config.shards or 1
        # Larger shards come first: fewer samples than shards are in the first ones, one in each.
        if batch_size is not None and batch_size < num_shards:
            warn(
                f"a global batch has {counted(batch_size, 'sample')} but {num_shards} shards, so the last shards are always "
                f"empty. Use batch_size={num_shards} or more, or shards={batch_size} (either changes results).",
                code="batch-smaller-than-shards",
            )
        on_gpu = self._devices[0].type != "cpu"
        if on_gpu and STRATEGIES[self._config.strategy].repeats and not kernels_repeat():
            warn(
                "results may not be reproducible: GPU kernels can be nondeterministic (torch.backends.cudnn.benchmark "
                "is True, torch.use_deterministic_algorithms is off or warn_only, or --allow numerics or --nondeterministic "
                "was passed).",
                code="kernels-nondeterministic",
            )
        # Now, since most scripts have imported what they use when they prepare a loader.
        packages = packages_in(sys.modules) if needs_deterministic_kernels(self._config, self._devices[0]) else []
        if packages:
            names = ", ".join(packages)
            text = (
                f"{names} may use GPU kernels of which PyTorch's setting for deterministic kernels does not know. If training "
                "calls one that adds in an order that depends on timing, results are not repeatable, and no error shows it. "
                "`lockstep verify SCRIPT` compares runs"
            )
            publish(Report(kind=NOTICE, text=text, code="kernels-unseen", is_warning=False))
        for misfit in misfits(
            self._world,
            num_cores=num_cores(),
            num_gpus=torch.accelerator.device_count() if on_gpu else 0,
            gpus_each=len(self._devices) if on_gpu else 0,
            workers=getattr(loader, "num_workers", 0),
        ):
            say(misfit.text)


def start_event(
    config: RunConfig, world: World, device: torch.device, transport: Transport, hosts: Sequence[str]
) -> dict[str, Any]:
    """Returns the fields of the event ``start``. ``hosts``: the host name of each rank."""
    return {
        **_program(),
        "launcher": world.launcher,
        "world_size": world.world_size,
        "num_nodes": world.num_nodes,
        "hosts": list(hosts),
        "strategy": config.strategy,
        "precision": config.precision,
        "nondeterministic": list(config.nondeterministic),
        "shards": config.shards,
        "accumulate": config.accumulate,
        "seed": config.seed,
        "threads": config.threads,
        "device": device.type,
        "device_name": product_of(device) or platform.machine(),
        "backend": transport.backend,
        "num_cores": world.num_cores or num_cores(),
        "torch": torch.__version__,
        **library_versions(device),
        "python": platform.python_version(),
        "lockstep": version(),
    }


def _program() -> dict[str, Any]:
    """Returns what this process runs, and where. ``lockstep replay`` needs it to run the script
    again."""
    main = sys.modules["__main__"]
    spec = getattr(main, "__spec__", None)
    file = Path(getattr(main, "__file__", None) or "")
    with contextlib.suppress(OSError):
        return {
            "script": sys.argv[0] if sys.argv else "",
            "args": list(own_args()),
            "module": None if spec is None else spec.name,
            "cwd": str(Path.cwd()),
            "script_sha256": script_sha256(file),
        }
    return {"script": sys.argv[0] if sys.argv else ""}  # the working directory was removed


def first_line(loader: Any, config: RunConfig, world: World, num_devices: int) -> str:
    """Returns the line that describes how the loader's batches are split into shards and assigned
    to processes."""
    devices = f" and {num_devices} devices" if num_devices > 1 else ""
    return (
        f"{_describe_batch(loader, config.shards or 1)} on {counted(world.world_size, 'process', 'processes')}, "
        f"{counted(config.threads or 1, 'thread')}{devices} each"
    )


def chosen_shards(world_size: int) -> str:
    """Returns the clause about a V that was not set, and is therefore the number of processes."""
    # The next power of two, which 1, 2, 4 and more processes divide evenly; at least 8.
    better = max(8, 1 << (world_size - 1).bit_length())
    if world_size == 1:
        return (
            f"1 shard: only one process can train or resume this run. shards={better} allows 1 to {better} processes with "
            "identical results"
        )
    return (
        f"{world_size} shards (one per process, the default). Set shards={better} to get the same result on other numbers of "
        "processes"
    )


def _describe_batch(loader: Any, num_shards: int) -> str:
    batch_size = batch_size_of(loader)
    if batch_size is None:
        return f"global batches of {counted(num_shards, 'shard')}"
    upto = "" if batch_size % num_shards == 0 else "up to "
    return f"global batch {batch_size} = {counted(num_shards, 'shard')} x {upto}{-(-batch_size // num_shards)}"
