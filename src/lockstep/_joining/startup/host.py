"""Determines whether this process runs a training script, or a host: a program that calls functions
of others, such as submitit, a worker of Ray, or pytest.

A script's path and arguments identify the run to resume. A host has the same path and arguments for
every function that it calls, or different ones at each start, so they identify nothing."""

from __future__ import annotations

import contextlib
import importlib.metadata
import itertools
import signal
import site
import sys
import sysconfig
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import FrameType

from lockstep._state.rundir.fixed_settings import NO_SCRIPT


@dataclass(frozen=True, kw_only=True)
class Caller:
    """A function that is being called, or the main module."""

    module: str
    file: str
    is_main: bool = False

    @property
    def package(self) -> str:
        """The name of its top-level package."""
        return self.module.partition(".")[0]


@dataclass(frozen=True, kw_only=True)
class Installed:
    """The places of installed packages and commands of this interpreter."""

    packages: tuple[Path, ...]
    """The folders of packages, the innermost first."""
    commands: tuple[Path, ...]
    """The folders of commands."""
    entry: Caller | None = None
    """The module whose function the command of this process calls, according to the command's
    record; None: not recorded."""

    def package_of(self, path: Path) -> str | None:
        """The topmost package of a file; None: it is not in a folder for packages."""
        for folder in self.packages:
            if path.is_relative_to(folder) and path != folder:
                return path.relative_to(folder).parts[0].removesuffix(".py")
        return None

    def is_command(self, path: Path) -> bool:
        """Whether a file is in a folder for commands."""
        return path.parent in self.commands


def host_of(script: str, callers: Sequence[Caller], installed: Installed) -> str | None:
    """The host that runs in this process; None: what runs is the training's own program, or there
    is none.

    A program is a training's own if it is not installed (a script), if it calls ``join()`` itself,
    or if it is installed with what calls it (``python -m package.train``, or a command of that
    package).

    Args:
        script: ``sys.argv[0]``.
        callers: who called ``join()``, by whom that was called, and so on.
    """
    if script in NO_SCRIPT or (callers and callers[0].is_main):
        return None
    path = Path(script).resolve()
    package = installed.package_of(path)
    if package is None:
        if not installed.is_command(path):
            return None
        # (What is called first may be a library's: click's, for a function that click has
        # decorated.)
        inner = installed.entry or _called_by_main(callers)
        if inner is not None and installed.package_of(Path(inner.file).resolve()) is None:
            return None  # a command of a package that is installed in place (pip install -e)
        package = "" if inner is None else inner.package
    return None if callers and callers[0].package == package else package or path.name


def _called_by_main(callers: Sequence[Caller]) -> Caller | None:
    for inner, outer in itertools.pairwise(callers):
        if outer.is_main:
            return inner
    return None


def host_of_this_process() -> str | None:
    """Returns the host that runs in this process, in which ``join()`` is being called; None: there
    is none."""
    if hasattr(sys, "ps1"):  # a notebook or interactive session: its user sees what is resumed
        return None
    script = sys.argv[0] if sys.argv else ""
    return host_of(script, list(_callers(sys._getframe())), _installed(script))


def host_with_handler(number: signal.Signals) -> str | None:
    """The host of this process, if it handles a signal itself, as submitit does SIGTERM; None: it
    does not. (A handler of the script is the user's choice.)"""
    handler = signal.getsignal(number)
    code = getattr(getattr(handler, "__func__", handler), "__code__", None)
    if code is None:
        return None
    package = _installed("").package_of(Path(code.co_filename).resolve())
    return package if package is not None and package == host_of_this_process() else None


def _callers(frame: FrameType | None) -> Iterator[Caller]:
    main = vars(sys.modules["__main__"]) if "__main__" in sys.modules else None
    while frame is not None:
        module = str(frame.f_globals.get("__name__", ""))
        if module.partition(".")[0] != "lockstep":
            yield Caller(module=module, file=frame.f_code.co_filename, is_main=frame.f_globals is main)
        frame = frame.f_back


def _installed(script: str) -> Installed:
    packages = {sysconfig.get_path(name) for name in ("purelib", "platlib", "stdlib", "platstdlib")}
    packages |= {*site.getsitepackages(), site.getusersitepackages()}
    commands = {sysconfig.get_path("scripts"), str(Path(site.getuserbase()) / "bin")}
    with contextlib.suppress(KeyError):  # Debian's, beside those of pip
        commands.add(sysconfig.get_path("scripts", "posix_prefix"))
    # The innermost folder first: the standard library's has that of packages in it.
    folders = sorted((Path(each).resolve() for each in packages), key=lambda each: len(each.parts), reverse=True)
    in_commands = tuple(Path(each).resolve() for each in commands)
    return Installed(packages=tuple(folders), commands=in_commands, entry=_entry(Path(script).stem))


def _entry(command: str) -> Caller | None:
    """Returns the module with the function that a command is recorded to call, if the main module
    has just imported that function."""
    main = vars(sys.modules["__main__"]) if "__main__" in sys.modules else {}
    for entry in importlib.metadata.entry_points(group="console_scripts", name=command):
        module, name = sys.modules.get(entry.module), entry.attr.partition(".")[0]
        file = getattr(module, "__file__", None)
        if file is not None and name in main and main[name] is getattr(module, name, None):
            return Caller(module=entry.module, file=file)
    return None
