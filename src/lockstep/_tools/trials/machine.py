"""Describes the machine on which a comparison ran."""

from __future__ import annotations

import datetime
import importlib.metadata
import importlib.util
import platform
import shutil
from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Machine:
    """The machine, and what is installed on it, when the comparison began."""

    date: str
    host: str
    num_cores: int
    """The number of cores that this process may use."""
    num_gpus: int
    python: str
    torch: str
    lockstep: str


def look(*, num_cores: int, num_gpus: int) -> Machine:
    """This machine now, with as many cores and GPUs as this process may use."""
    return Machine(
        date=datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        host=platform.node(),
        num_cores=num_cores,
        num_gpus=num_gpus,
        python=platform.python_version(),
        torch=_version("torch"),
        lockstep=_version("torch-lockstep"),
    )


def find_components(*, num_gpus: int) -> set[str]:
    """Which of the components that some methods need this machine has."""
    components = {
        "gpus": num_gpus > 0,
        "horovod": importlib.util.find_spec("horovod") is not None,
        "mpirun": shutil.which("mpirun") is not None,
    }
    return {name for name, is_here in components.items() if is_here}


def _version(distribution: str) -> str:
    try:
        return importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        return "unknown"
