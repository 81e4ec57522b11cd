"""Packages with own GPU kernels, of which PyTorch's setting for deterministic kernels does not
know. What they compute may differ from run to run, and no error shows it."""

from __future__ import annotations

import importlib.util
from collections.abc import Container

PACKAGES = {
    "apex": "apex",
    "bitsandbytes": "bitsandbytes",
    "flash_attn": "flash-attn",
    "flash_attn_interface": "flash-attn 3",
    "transformer_engine": "Transformer Engine",
    "xformers": "xformers",
}
"""What users call a package, by the name of its module."""


def packages_in(modules: Container[str]) -> list[str]:
    """Returns the names of the imported packages. ``modules``: such as ``sys.modules``."""
    return [name for module, name in PACKAGES.items() if module in modules]


def packages_installed() -> list[str]:
    """Returns the names of the installed packages. Imports none."""
    return [name for module, name in PACKAGES.items() if importlib.util.find_spec(module) is not None]
