"""Looking at the user's script before anything is started: does it exist, does it parse, what does it expect."""

from __future__ import annotations

import ast
import importlib.machinery
import sys
import warnings
from collections.abc import Sequence
from pathlib import Path

from lockstep.errors import ConfigError
from lockstep.launch.spec import Script

LOCAL_RANK_OPTIONS = ("--local_rank", "--local-rank")
PASS_LOCAL_RANK = ("auto", "none", *LOCAL_RANK_OPTIONS)


def find_script(target: str, *, is_module: bool) -> Path | None:
    """The file that ``target`` names; None for a module that is not a plain source file.

    Raises:
        ConfigError: there is no such script or module.
    """
    if is_module:
        return _find_module(target)
    path = Path(target)
    if path.is_file():
        return path
    if path.is_dir():
        raise ConfigError(f"{target} is a directory: name the script in it, or a module after -m")
    hint = ""
    if "." in target and not target.endswith(".py") and "/" not in target:
        hint = f". To run a module, put -m before it: lockstep run -m {target}"
    elif path.with_suffix(".py").is_file():
        hint = f". Did you mean {path.with_suffix('.py')}?"
    raise ConfigError(f"there is no script {target} (looked in {Path.cwd()}){hint}")


def check_script(target: str, source: Path | None, *, is_module: bool, args: Sequence[str], pass_local_rank: str) -> Script:
    """Parse the script; returns what the workers are to run.

    Raises:
        ConfigError: it does not parse, or cannot be read.
    """
    option = pass_local_rank if pass_local_rank in LOCAL_RANK_OPTIONS else None
    if source is not None:
        tree = _parse(source)
        if pass_local_rank == "auto":
            option = _local_rank_option(tree)
    return Script(target=target, is_module=is_module, args=tuple(args), local_rank_option=option)


def _parse(path: Path) -> ast.AST:
    try:
        source = path.read_bytes()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # the workers will show them
            tree = ast.parse(source, str(path))
            compile(tree, str(path), "exec", dont_inherit=True)  # some errors ('return' outside a function) show here
    except SyntaxError as error:
        place = f"{path}, line {error.lineno}" if error.lineno else str(path)
        line = f"\n    {error.text.strip()}" if error.text else ""
        raise ConfigError(f"{place}: {error.msg}{line}\nNothing was started.") from error
    except ValueError as error:  # null bytes
        raise ConfigError(f"{path} is not Python source: {error}") from error
    except OSError as error:
        raise ConfigError(f"{path} cannot be read: {error.strerror or error}") from error
    return tree


def _local_rank_option(tree: ast.AST) -> str | None:
    """Which spelling the script itself uses, if any: scripts for torch.distributed.launch expect it as an argument."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and node.value in LOCAL_RANK_OPTIONS:
            return str(node.value)
    return None


def _find_module(name: str) -> Path | None:
    """As ``python -m`` would, but without importing parent packages: they may import torch, or do anything."""
    spec = _find_spec(name)
    if spec is not None and spec.submodule_search_locations is not None:
        spec = _find_spec(f"{name}.__main__")
        if spec is None:
            raise ConfigError(f"{name} is a package without a __main__ module: name the module of it that should run")
    if spec is None:
        raise ConfigError(f"there is no module {name} (looked in {Path.cwd()} and where Python finds its modules)")
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
