"""What a script's source shows about how it must be started. It is parsed, and never imported."""

from __future__ import annotations

import ast
import re
import warnings
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from lockstep._base.errors import ConfigError

LOCAL_RANK_OPTIONS = ("--local_rank", "--local-rank")
"""Options that ``torch.distributed.launch`` passes to its scripts: the first until PyTorch 1.13,
the second since."""

_DEFINES_OPTIONS = {"add_argument", "add_option", "option", "Option", "startswith"}
_STARTERS = {"torch.multiprocessing.spawn", "torch.multiprocessing.start_processes"}
_OPTIM = re.compile(rb"\boptim\b")
_OF_LAUNCHES = ("--nproc", "--nproc-per-node", "--nnodes", "--node-rank")
"""Options that hardly any script has."""
_OF_A_LAUNCHER = {"RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "TORCHELASTIC_RUN_ID"}


@dataclass(frozen=True, kw_only=True)
class Source:
    """A script that parses, and the modules next to it that it imports."""

    path: Path
    root: Path
    """The directory of the script's own modules: the first entry of its ``sys.path``."""
    text: bytes
    tree: ast.Module

    @staticmethod
    def read(path: Path, root: Path | None = None) -> Source:
        """Parses a file. ``root``: None: its directory.

        Raises:
            ConfigError: it does not parse, or cannot be read.
        """
        try:
            text = path.read_bytes()
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # the workers will show them
                tree = ast.parse(text, str(path))
                # Some errors, such as a `return` outside of a function, are found here and not by
                # the parser.
                compile(tree, str(path), "exec", dont_inherit=True)
        except SyntaxError as error:
            where = f"{path}, line {error.lineno}" if error.lineno else str(path)
            line = f"\n    {error.text.strip()}" if error.text else ""
            raise ConfigError(f"{where}: {error.msg}{line}\nNothing was started.", code="script-not-python") from error
        except ValueError as error:  # null bytes
            raise ConfigError(f"{path} is not Python source: {error}", code="script-not-python") from error
        except OSError as error:
            raise ConfigError(f"{path} cannot be read: {error.strerror or error}", code="script-unreadable") from error
        return Source(path=path, root=root or path.resolve().parent, text=text, tree=tree)

    def local_rank_option(self) -> tuple[str, str] | None:
        """The spelling of the option for the local rank, and where it is defined; None: the script
        takes none."""
        for source in (self, *self._imported(b"local")):
            for node in ast.walk(source.tree):
                for option in _options_in(node):
                    return option, source.line_of(node)
        return None

    def starter(self) -> str | None:
        """The way in which the script itself starts processes that train together, and where; None:
        it starts none.

        Scripts start processes for other things too, to prepare data or write logs. So a
        ``multiprocessing.Process`` counts only with a process group that is opened by rank; and
        neither it nor ``mp.spawn`` counts if the script calls ``lockstep.join()`` without a rank:
        its rank is then passed, so a launcher starts it.
        """
        calls = self.calls()
        says_rank = any(name.endswith("init_process_group") and _has_rank(node) for node, name in calls)
        is_told = any(name == "lockstep.join" and not _has_rank(node) for node, name in calls)
        for node, name in calls:
            is_process = name.rpartition(".")[2] == "Process" and not name.startswith("psutil.")
            starts_ranks = name in _STARTERS or (is_process and says_rank)
            if name == "lockstep.launch" or (starts_ranks and not is_told):
                return f"{name} in {self.line_of(node)}"
        return None

    def asks_launcher(self) -> bool:
        """Whether the script or a module of its own reads environment variables that a launcher
        sets."""
        return any(_asks(source.tree) for source in (self, *self._imported(b"RANK")))

    def has_optimizer(self) -> bool:
        """Whether the word ``optim`` is in the script or one of its modules. (Only the duration of
        a start depends on it.)"""
        return any(_OPTIM.search(source.text) for source in (self, *self._imported(b"optim")))

    def lacks(self, args: Iterable[str]) -> list[str]:
        """The script's arguments that are options of launchers, and that the script itself does not
        mention."""
        names = {arg: arg.lstrip("-").replace("-", "_") for arg in args if arg.replace("_", "-") in _OF_LAUNCHES}
        text = self.text.replace(b"-", b"_")
        return [arg for arg, name in names.items() if name.encode() not in text]

    def line_of(self, node: ast.AST) -> str:
        """The place of a node in the source, as ``train.py, line 3``."""
        return f"{self.path}, line {getattr(node, 'lineno', 0)}"

    def calls(self) -> list[tuple[ast.Call, str]]:
        """All calls, with the full names of what is called."""
        names = _imported_names(self.tree)
        return [(node, _full_name(node.func, names)) for node in ast.walk(self.tree) if isinstance(node, ast.Call)]

    def _imported(self, about: bytes = b"") -> Iterator[Source]:
        """The modules under ``root`` that it imports itself, if they contain these bytes."""
        seen = {self.path.resolve()}
        for path in self._import_candidates():
            if path.resolve() not in seen and path.is_file():
                seen.add(path.resolve())
                try:
                    if about in path.read_bytes():
                        yield Source.read(path, self.root)
                except (OSError, ConfigError):
                    continue  # left to the script, which fails there if it gets that far

    def _import_candidates(self) -> Iterator[Path]:
        parents = self.path.resolve().parents
        for node in ast.walk(self.tree):
            modules: list[tuple[Path, str]] = []
            if isinstance(node, ast.Import):
                modules = [(self.root, alias.name) for alias in node.names]
            elif isinstance(node, ast.ImportFrom) and node.level <= len(parents):
                base = parents[node.level - 1] if node.level else self.root
                inside = [node.module] if node.module else []
                # `from a import b` imports the module a, and perhaps its module a.b.
                paths = (inside, *([*inside, alias.name] for alias in node.names))
                modules = [(base, ".".join(parts)) for parts in paths if parts]
            for base, module in modules:
                path = base.joinpath(*module.split("."))
                yield path.with_name(path.name + ".py")
                yield path / "__init__.py"


def _imported_names(tree: ast.Module) -> dict[str, str]:
    """The full names of imported names: ``torch.multiprocessing`` of ``mp``."""
    targets = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            targets.update({alias.asname: alias.name for alias in node.names if alias.asname})
        elif isinstance(node, ast.ImportFrom) and not node.level:
            targets.update({alias.asname or alias.name: f"{node.module}.{alias.name}" for alias in node.names})
    return targets


def _full_name(node: ast.expr, names: Mapping[str, str]) -> str:
    """The name of what is called, as far as the imports show; empty if it has none."""
    if isinstance(node, ast.Name):
        return names.get(node.id, node.id)
    if isinstance(node, ast.Attribute):
        inner = _full_name(node.value, names)
        return f"{inner}.{node.attr}" if inner else ""
    if isinstance(node, ast.Call):
        inner = _full_name(node.func, names)
        return f"{inner}()" if inner else ""
    return ""


def _options_in(node: ast.AST) -> Iterator[str]:
    """The options for the local rank that a node itself defines or looks for. (In a list, they are
    for another program.)"""
    values: list[ast.expr] = []
    if isinstance(node, ast.Call):
        name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
        # A flag takes no value, so it cannot be the option for a rank.
        is_flag = any(keyword.arg in ("action", "is_flag") for keyword in node.keywords)
        values = node.args if name in _DEFINES_OPTIONS and not is_flag else []
    elif isinstance(node, ast.Compare):
        values = [node.left, *node.comparators]
    for value in values:
        if isinstance(value, ast.Constant) and isinstance(value.value, str):
            option = value.value.rstrip("=")
            if option in LOCAL_RANK_OPTIONS:
                yield option


def _has_rank(call: ast.Call) -> bool:
    # `rank` is the fifth parameter of init_process_group. (`join` takes it by name only.)
    return any(keyword.arg == "rank" for keyword in call.keywords) or len(call.args) >= 5


def _asks(tree: ast.Module) -> bool:
    # A script that assigns RANK sets it for processes that it starts, and reads no launcher's.
    written = {
        id(node.slice) for node in ast.walk(tree) if isinstance(node, ast.Subscript) and isinstance(node.ctx, ast.Store)
    }
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            if node.value in _OF_A_LAUNCHER and id(node) not in written:
                return True
        elif isinstance(node, ast.Attribute) and node.attr == "is_torchelastic_launched":
            return True
    return False
