"""Looking at the user's script before anything is started: does it exist, does it parse, what does it expect."""

from __future__ import annotations

import difflib
import importlib.machinery
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path

from lockstep.errors import ConfigError
from lockstep.launch.source import LOCAL_RANK_OPTIONS, Source
from lockstep.launch.spec import Script

SPAWNS = ("auto", "yes", "no")
"""Whether a script starts its processes itself; ``auto``: its source tells."""
PASS_LOCAL_RANK = ("auto", "none", *LOCAL_RANK_OPTIONS)


def find_script(target: str, *, is_module: bool, is_executable: bool = False) -> Path | None:
    """The file that ``target`` names; None for what is not plain Python source: some modules, and programs.

    Raises:
        ConfigError: there is no such script, module or program.
    """
    if is_executable:
        _find_program(target, is_module=is_module)
        return None
    if is_module:
        return _find_module(target)
    path = Path(target)
    if path.is_file():
        return path
    if not target:
        raise ConfigError("the script's name is empty: give the path of a script, or -m and the name of a module")
    if path.is_dir():
        raise ConfigError(f"{target} is a directory: name the script in it, or a module after -m")
    hint = ""
    if "." in target and not target.endswith(".py") and "/" not in target:
        hint = f". To run a module, put -m before it: lockstep run -m {target}"
    elif path.with_suffix(".py").is_file():
        hint = f". Did you mean {path.with_suffix('.py')}?"
    else:
        beside = [str(neighbour) for neighbour in path.parent.glob("*.py")] if path.parent.is_dir() else []
        if near := difflib.get_close_matches(target, beside, n=1):
            hint = f". Did you mean {near[0]}?"
    raise ConfigError(f"{target}: no such script (looked in {Path.cwd()}){hint}")


def check_script(
    target: str,
    source: Path | None,
    *,
    is_module: bool,
    is_executable: bool = False,
    args: Sequence[str],
    pass_local_rank: str,
    spawns: str = "no",
    nproc_given: bool = True,
) -> Script:
    """Parse the script; returns what the workers are to run.

    ``source`` is what ``find_script`` found. ``spawns`` says whether the script starts its processes itself (see ``SPAWNS``).
    A script that could do either is started by us where somebody said in how many processes, or on how many machines:
    ``nproc_given``.

    Raises:
        ConfigError: it does not parse, or cannot be read.
    """
    option = pass_local_rank if pass_local_rank in LOCAL_RANK_OPTIONS else None
    starter = "--spawns yes" if spawns == "yes" else None
    has_optimizer, own_horovod, store_client, debug_level = False, None, None, None
    guesses = []
    if source is not None:
        read = Source.read(source)
        # The first entry of the script's sys.path: where its own modules are.
        root = Path.cwd() if is_module else source.resolve().parent
        has_optimizer, own_horovod = read.has_optimizer(root), read.starts_horovod()
        debug_level = read.set_before_torch("TORCH_DISTRIBUTED_DEBUG")
        spawning = read.starter() if spawns == "auto" else None
        alone = read.starter_if_alone() if spawns == "auto" and not nproc_given else None
        if spawning or alone:
            if spawning and nproc_given and read.asks_launcher(root):
                guesses.append(
                    f"the script may start processes itself ({spawning}), but also asks who a launcher has started: it is "
                    "launched (--spawns yes starts it once)"
                )
            else:
                starter = spawning or alone
                how = "--spawns no" if spawning else "--nproc-per-node N"
                guesses.append(f"the script starts its processes itself ({starter}): it is started once ({how} launches it)")
        store_client = read.store_client(root) if starter is None else None
        if store_client is not None:
            guesses.append(f"the script is a client of its launcher's store ({store_client}): it is served, on loopback")
        if pass_local_rank == "auto" and starter is None:
            option, where = read.local_rank_option(root) or (None, "")
            if option:
                guesses.append(
                    f"{where} defines {option}: each process is passed {option}=RANK; --pass-local-rank none leaves it out"
                )
    return Script(
        target=target,
        is_module=is_module,
        args=tuple(args),
        local_rank_option=option,
        starter=starter,
        is_executable=is_executable,
        own_horovod=own_horovod,
        has_optimizer=has_optimizer,
        is_store_client=store_client is not None,
        debug_level=debug_level,
        guesses=tuple(guesses),
    )


def check_starter(script: Script, nproc: int) -> None:
    """A script that starts its processes itself, or knows of others by Horovod alone, is started once.

    Raises:
        ConfigError: several were asked for.
    """
    if script.own_horovod is not None and nproc > 1:
        raise ConfigError(
            f"{script.own_horovod} calls hvd.init(), which takes its ranks from horovodrun or mpirun: started by lockstep run, "
            f"each of the {nproc} processes would train a model of its own. Start it with: horovodrun -np {nproc} python "
            f"{script.target}. (To port it to lockstep.join(), which has --strategy horovod: docs/methods.md.)"
        )
    if script.starter is not None and nproc > 1:
        raise ConfigError(
            f"{nproc} processes of a script that starts its processes itself ({script.starter}): each of them would start "
            "all of its own, and they would take one another's port. Leave --nproc-per-node out. If the script does not do "
            "that when a launcher has started it, say --spawns no. Nothing was started."
        )


def _find_program(target: str, *, is_module: bool) -> None:
    if is_module:
        raise ConfigError("--no-python and -m: a module is Python. Leave one of the two out")
    if shutil.which(target) is None:
        why = f"{target} is not executable (chmod +x {target})" if Path(target).is_file() else f"{target}: no such program"
        raise ConfigError(f"--no-python: {why}. To run a Python script, leave --no-python out")


def _find_module(name: str) -> Path | None:
    """As ``python -m`` would, but without importing parent packages: they may import torch, or do anything."""
    spec = _find_spec(name)
    if spec is not None and spec.submodule_search_locations is not None:
        spec = _find_spec(f"{name}.__main__")
        if spec is None:
            raise ConfigError(f"{name} is a package without a __main__ module: name the module of it that should run")
    if spec is None:
        raise ConfigError(f"{name}: no such module (looked in {Path.cwd()} and where Python finds its modules)")
    return Path(spec.origin) if isinstance(spec.loader, importlib.machinery.SourceFileLoader) and spec.origin else None


def _find_spec(name: str) -> importlib.machinery.ModuleSpec | None:
    search: Sequence[str] | None = None
    spec: importlib.machinery.ModuleSpec | None = None
    parts = name.split(".")
    if not all(part.isidentifier() for part in parts):
        return None
    for depth in range(len(parts)):
        full_name = ".".join(parts[: depth + 1])
        # python -m looks in the working directory first.
        spec = importlib.machinery.PathFinder.find_spec(full_name, [str(Path.cwd())]) if depth == 0 else None
        for finder in sys.meta_path:
            spec = spec or finder.find_spec(full_name, search)
        if spec is None:
            return None
        search = spec.submodule_search_locations
        if search is None and depth < len(parts) - 1:
            return None
    return spec
