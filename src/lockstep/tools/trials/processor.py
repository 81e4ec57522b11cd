"""What the processor of this machine says of itself."""

from __future__ import annotations

import contextlib
import platform
from pathlib import Path

_FLAGS = {"float16": {"avx512_fp16", "amx_fp16", "asimdhp"}, "bfloat16": {"avx512_bf16", "amx_bf16", "bf16"}}
"""Of processors that compute in these formats, as the kernel names them. Others emulate them, some five times slower than
float32."""


def cpu_name() -> str:
    """The name of the processor."""
    return _line("model name") or platform.processor() or platform.machine()


def native_formats() -> set[str]:
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
