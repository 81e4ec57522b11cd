"""Public names of a package that are imported on first use.

The package's stub, ``__init__.pyi``, is the only list of its names. Type checkers read the stub
itself. ``read`` gives the same list at run time, so that ``import lockstep`` and the command line
do not wait seconds for torch.
"""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module


def read(file: str) -> dict[str, str]:
    """Read the module of each public name from the stub next to a package's ``__file__``.

    A name is a line ``from MODULE import NAME as NAME``. Every command reads this, so nothing is
    imported to parse it: ``pathlib`` alone takes 6 ms.
    """
    modules = {}
    with open(f"{file.removesuffix('.py')}.pyi", encoding="utf-8") as stub:  # noqa: PTH123
        for line in stub:
            match line.split():
                case ["from", module, "import", name, "as", alias] if name == alias:
                    modules[name] = module
    return modules


def load(package: str, modules: Mapping[str, str], name: str) -> object:
    """Import a public name.

    Raises:
        AttributeError: the package has no such name.
    """
    if name not in modules:
        raise AttributeError(f"module {package!r} has no attribute {name!r}")
    return getattr(import_module(modules[name]), name)
