"""Data-parallel PyTorch training with bit-identical results on any number of processes."""

from __future__ import annotations

from importlib import import_module as _import_module

from lockstep._base import exit_status as _exit_status  # noqa: F401 - starts to note how the script ends
from lockstep._base import exports as _exports

_MODULES = _exports.read(__file__)
# The stub shows type checkers a join() with the options of all tools. No program imports that one.
_MODULES["join"] = "lockstep._joining.join"

__all__ = list(_MODULES)


def __getattr__(name: str) -> object:
    if name == "__version__":
        # Defined in pyproject.toml; reading the installed metadata is slow.
        metadata = _import_module("importlib.metadata")
        try:
            return metadata.version("torch-lockstep")
        except metadata.PackageNotFoundError:  # run from a checkout without installation
            return "unknown"
    value = globals()[name] = _exports.load(__name__, _MODULES, name)
    return value


def __dir__() -> list[str]:
    return __all__
