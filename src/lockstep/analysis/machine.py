"""What machine a comparison ran on."""

from __future__ import annotations

import contextlib
import datetime
import importlib.metadata
import importlib.util
import os
import platform
import shutil
from dataclasses import dataclass
from pathlib import Path

import psutil

_FLOAT16_FLAGS = {"avx512_fp16", "amx_fp16", "asimdhp"}
"""Of processors that compute in float16, as the kernel names them. Others emulate it, some five times slower than float32."""
_BFLOAT16_FLAGS = {"avx512_bf16", "amx_bf16", "bf16"}
"""The same for bfloat16."""


@dataclass(frozen=True, kw_only=True)
class Machine:
    """The machine, and what is installed on it, when the comparison began."""

    date: str
    host: str
    system: str
    cpu_name: str
    num_cores: int
    """That this process may use."""
    memory_bytes: int
    num_gpus: int
    load: float
    """Processes that wanted a core in the minute before: work of others spoils the timings."""
    python: str
    torch: str
    lockstep: str


def look(*, num_cores: int, num_gpus: int) -> Machine:
    """This machine now, with as many cores and GPUs as this process may use."""
    return Machine(
        date=datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
        host=platform.node(),
        system=platform.platform(),
        cpu_name=_cpu_name(),
        num_cores=num_cores,
        memory_bytes=psutil.virtual_memory().total,
        num_gpus=num_gpus,
        load=os.getloadavg()[0],
        python=platform.python_version(),
        torch=_version("torch"),
        lockstep=_version("torch-lockstep"),
    )


def find_components(*, num_gpus: int) -> set[str]:
    """What this machine has of that which some methods need."""
    flags = {*_cpu_line("flags", "features").split()}
    components = {
        "gpus": num_gpus > 0,
        "float16": num_gpus > 0 or bool(_FLOAT16_FLAGS & flags),
        "bfloat16": num_gpus > 0 or bool(_BFLOAT16_FLAGS & flags),
        "horovod": importlib.util.find_spec("horovod") is not None,
        "mpirun": shutil.which("mpirun") is not None,
    }
    return {name for name, is_here in components.items() if is_here}


def _version(distribution: str) -> str:
    try:
        return importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        return "unknown"


def _cpu_name() -> str:
    return _cpu_line("model name") or platform.processor() or platform.machine()


def _cpu_line(*names: str) -> str:
    """The first line of /proc/cpuinfo with one of these names; empty if there is none."""
    with contextlib.suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            name, _, value = line.partition(":")
            if name.strip().lower() in names:
                return value.strip()
    return ""
