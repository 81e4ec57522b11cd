"""Checking the user's script before anything is started: whether it exists, and how it must be
started."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from lockstep._base.errors import ConfigError
from lockstep._launch.nodes import plan_nodes
from lockstep._launch.options import LaunchOptions
from lockstep._launch.source import LOCAL_RANK_OPTIONS, Source
from lockstep._launch.spec import Script


def find_script(target: str, *, is_module: bool, is_executable: bool = False) -> Path | None:
    """The file that ``target`` names; None: it is a program, or a module that is elsewhere.

    Raises:
        ConfigError: there is no such script or program. (A module that does not exist is for the
            worker to report.)
    """
    if is_executable:
        _find_program(target, is_module=is_module)
        return None
    if not (target.strip(".") if is_module else target):
        raise ConfigError(
            "the script's name is empty. Pass the path of a script, or -m and the name of a module", code="no-such-script"
        )
    if is_module:
        return _find_module(target)
    path = Path(target)
    if path.is_file():
        return path
    if path.is_dir():
        raise ConfigError(f"{target} is a directory. Pass a script in it, or a module after -m", code="no-such-script")
    hint = ""
    if "." in target and not target.endswith(".py") and "/" not in target:
        hint = f". To run a module, put -m before it: lockstep run -m {target}"
    elif path.with_suffix(".py").is_file():
        hint = f". Did you mean {path.with_suffix('.py')}?"
    raise ConfigError(f"{target}: no such script (looked in {Path.cwd()}){hint}", code="no-such-script")


def check_script(target: str, source: Source | None, args: Sequence[str], options: LaunchOptions) -> Script:
    """What the workers are to run, as far as the options and the script's source show.

    A script that could start its processes itself, or be launched, is launched if the options give
    a number of processes or machines. ``source``: None: the script is not plain Python.
    """
    option = options.local_rank_option if options.local_rank_option in LOCAL_RANK_OPTIONS else None
    script = Script(
        target=target,
        is_module=options.is_module,
        is_executable=options.is_executable,
        args=tuple(args),
        local_rank_option=option,
        starter="--spawns yes" if options.spawns == "yes" else None,
        has_optimizer=options.is_module,  # unless its source says that it has none
    )
    if source is None:
        return script
    starter, guesses = script.starter, list[str]()
    if options.spawns == "auto":
        is_counted = options.nproc_per_node is not None or plan_nodes(options) is not None
        spawning = source.starter()
        if spawning and is_counted and source.asks_launcher():
            guesses.append(
                f"the script may start processes itself ({spawning}), but also reads a launcher's ranks: "
                "launching it (--spawns yes starts it once)"
            )
        elif spawning:
            starter = spawning
            guesses.append(f"the script starts its own processes ({starter}): starting it once (--spawns no launches it)")
    if options.local_rank_option == "auto" and starter is None:
        option, where = source.local_rank_option() or (None, "")
        if option:
            guesses.append(
                f"{where} defines {option}: each process gets {option}=RANK (--pass-local-rank none turns this off)"
            )
    return replace(
        script,
        local_rank_option=option,
        starter=starter,
        has_optimizer=source.has_optimizer(),
        guesses=tuple(guesses),
    )


def check_starter(script: Script, nproc: int) -> None:
    """Checks that a script that starts its processes itself is started once.

    Raises:
        ConfigError: several processes were requested.
    """
    if script.starter is not None and nproc > 1:
        raise ConfigError(
            f"the script starts its own processes ({script.starter}), so --nproc-per-node {nproc} "
            f"would start {nproc} copies of them. Remove --nproc-per-node. If the script does not "
            "spawn under a launcher, pass --spawns no",
            code="script-starts-itself",
        )


def _find_program(target: str, *, is_module: bool) -> None:
    if is_module:
        raise ConfigError("--no-python and -m: a module is Python. Remove one of the two", code="no-python-with-module")
    if shutil.which(target) is None:
        why = f"{target} is not executable (chmod +x {target})" if Path(target).is_file() else f"{target}: no such program"
        raise ConfigError(f"--no-python: {why}. To run a Python script, remove --no-python", code="program-not-executable")


def _find_module(name: str) -> Path | None:
    """A module under the working directory, where ``python -m`` looks first; None: it is elsewhere,
    and for the worker to find.

    (Looking elsewhere would import parent packages, which may import torch, or do anything.)
    """
    path = Path(*name.split("."))
    is_package = (path / "__init__.py").is_file()
    file = path / "__main__.py" if is_package else path.with_name(f"{path.name}.py")
    return file if file.is_file() else None
