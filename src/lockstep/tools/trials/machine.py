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

_FLAGS = {"float16": {"avx512_fp16", "amx_fp16", "asimdhp"}, "bfloat16": {"avx512_bf16", "amx_bf16", "bf16"}}
"""Of processors that compute in these formats, as the kernel names them. Others emulate them, some five times slower than
float32."""


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
    """Load average of the last minute: other work spoils the timings."""
    python: str
    torch: str
    lockstep: str


def look(*, num_cores: int, num_gpus: int) -> Machine:
    """This machine now, with as many cores and GPUs as this process may use."""
    return Machine(
        date=datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        host=platform.node(),
        system=platform.platform(),
        cpu_name=cpu_name(),
        num_cores=num_cores,
        memory_bytes=psutil.virtual_memory().total,
        num_gpus=num_gpus,
        load=os.getloadavg()[0],
        python=platform.python_version(),
        torch=_version("torch"),
        lockstep=_version("torch-lockstep"),
    )


def find_components(*, num_gpus: int) -> set[str]:
    """Which of the components that some methods need this machine has."""
    formats = _native_formats()
    components = {
        "gpus": num_gpus > 0,
        "float16": num_gpus > 0 or "float16" in formats,
        "bfloat16": num_gpus > 0 or "bfloat16" in formats,
        "horovod": importlib.util.find_spec("horovod") is not None,
        "mpirun": shutil.which("mpirun") is not None,
    }
    return {name for name, is_here in components.items() if is_here}


def _version(distribution: str) -> str:
    try:
        return importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        return "unknown"


def cpu_name() -> str:
    """The name of the processor."""
    return _line("model name") or platform.processor() or platform.machine()


def _native_formats() -> set[str]:
    """The 16-bit formats, ``float16`` and ``bfloat16``, that this processor has instructions for."""
    flags = {*_line("flags", "features").split()}
    return {name for name, needed in _FLAGS.items() if needed & flags}


def _line(*names: str) -> str:
    """The first line of /proc/cpuinfo with one of these names; empty if there is none."""
    with contextlib.suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            name, _, value = line.partition(":")
            if name.strip().lower() in names:
                return value.strip()
    return ""
