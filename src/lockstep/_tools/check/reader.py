"""Reading a script: running it in the abstract, from its first line to its last, and whatever it
defines and does not call."""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Iterable, Iterator, Mapping

from typing_extensions import override

from lockstep._tools.check import hosts, source
from lockstep._tools.check.findings import Finding
from lockstep._tools.check.machine import TooMuch
from lockstep._tools.check.statements import Statements
from lockstep._tools.check.values import Frame, Object, Value

_OK = re.compile(r"#\s*lockstep:\s*ok\b((?:[ ,]+LS\d+)*)")

Load = Callable[[str, str], "tuple[str, str] | None"]
"""Given the dotted name of a module, and the path of the file that imports it: its path and its
text; None: it is no module of the user's own."""


class Reader(Statements):
    """One reading of a script and of the user's modules that it imports."""

    def __init__(self, load: Load) -> None:
        super().__init__()
        self.load = load
        self.known: dict[tuple[str, str], tuple[str, str] | None] = {}
        self.parsed: dict[str, ast.Module] = {}
        self.files: dict[str, Object] = {}
        self.uses_lockstep = False
        self.has_loop = False
        """Whether a file joins a run, runs over shards, or imports a library's interface that
        does."""
        self.texts: dict[str, str] = {}

    def read(self, path: str, text: str) -> None:
        """Read a script. One that cannot be parsed has no findings."""
        tree = self.look_ahead(path, text)
        if tree is None or not self.uses_lockstep:
            return
        frame = Frame(None, path)
        try:
            self._run_file(frame, tree, text)
            self._run_what_is_left(frame)
        except (TooMuch, RecursionError):
            pass
        finally:
            source.forget()

    def look_ahead(self, path: str, text: str) -> ast.Module | None:
        """Parse a script, and learn which functions run over shards, also in modules that are
        imported later."""
        tree = _parse(text)
        if tree is None:
            return None
        waiting, known = [(path, tree)], {path}
        nodes: list[ast.AST] = []
        while waiting:
            importer, current = waiting.pop()
            own = list(source.walk(current))
            nodes += own
            for name in _imported(own):
                self.uses_lockstep = self.uses_lockstep or name.partition(".")[0] == "lockstep"
                found = self._load(name, importer)
                inner = None if found is None or found[0] in known else _parse(found[1])
                if found is not None and inner is not None:
                    known.add(found[0])
                    self.parsed[found[0]] = inner
                    waiting.append((found[0], inner))
        self.with_shards = source.functions_with_shards(nodes)
        lockstep = {a.asname or a.name for n in nodes if isinstance(n, ast.Import) for a in n.names if a.name == "lockstep"}
        joins = {f"{name}.join" for name in lockstep}
        self.has_loop = self.uses_lockstep and any(_is_of_a_loop(node, joins) for node in nodes)
        return tree

    def _load(self, name: str, importer: str) -> tuple[str, str] | None:
        key = name, importer if name.startswith(".") else ""
        if key not in self.known:
            self.known[key] = self.load(name, importer)
        return self.known[key]

    def _run_file(self, frame: Frame, tree: ast.Module, text: str) -> None:
        self.texts[frame.path] = text
        outer, active, returned, jumps = self.frame, self.active, self.returned, self.jumps
        self.frame, self.active, self.returned, self.jumps = frame, [], [], []
        try:
            self.block(tree.body)
        finally:
            self.frame, self.active, self.returned, self.jumps = outer, active, returned, jumps

    @override
    def file(self, name: str) -> Value | None:
        found = self._load(name, self.frame.path)
        if found is None or found[0] not in self.parsed:
            return None
        path, text = found
        if path not in self.files:
            made = self.files[path] = Object("file", name, frame=Frame(None, path))
            assert made.frame is not None
            self._run_file(made.frame, self.parsed[path], text)
        return Value.of(self.files[path])

    def _run_what_is_left(self, frame: Frame) -> None:
        """Functions with a loop over shards that the script itself does not call, such as a
        ``main`` for others to call."""
        state = self.state
        frames = [frame, *(o.frame for o in self.files.values() if o.frame is not None)]
        for current in frames:
            for (owner, _), cell in list(state.cells.items()):
                for target in cell.value.objects if owner is current else ():
                    self.state = state.copy()
                    self._run_unused(target, current)

    def _run_unused(self, target: Object, frame: Frame) -> None:
        self.frame = frame
        if target.kind == "function" and self._is_unused(target):
            self.has_joined = "lockstep.join" not in source.loaded_names(target.definition or ast.Pass())
            self.run(target, [], {}) if not source.is_generator(target.definition or ast.Pass()) else None

    def _is_unused(self, function: Object) -> bool:
        definition = function.definition
        if definition is None or id(definition) in self.seen:
            return False
        if function.name in self.with_shards:
            return True
        attributes = {node.attr for node in source.walk(definition) if isinstance(node, ast.Attribute)}
        return bool(attributes & {"evaluate", "prepare", "epochs"})

    def results(self) -> list[Finding]:
        """What was found, without what a comment accepts."""
        lines = {path: text.splitlines() for path, text in self.texts.items()}
        return [finding for finding in self.report.findings() if not _is_accepted(finding, lines)]


def _is_accepted(finding: Finding, lines: Mapping[str, list[str]]) -> bool:
    of_file = lines.get(finding.path, [])
    if not 0 < finding.line <= len(of_file):
        return False
    found = _OK.search(of_file[finding.line - 1])
    return found is not None and (not found[1].strip() or finding.code in found[1])


def _is_of_a_loop(node: ast.AST, joins: set[str]) -> bool:
    if isinstance(node, ast.ImportFrom):
        if (node.module or "").startswith(hosts.INTEGRATIONS):
            return True
        return node.module == "lockstep" and any(alias.name == "join" for alias in node.names)
    return isinstance(node, ast.Attribute) and (node.attr == "shards" or source.dotted(node) in joins)


def _imported(nodes: Iterable[ast.AST]) -> Iterator[str]:
    """Names of modules, and of what may be modules, that are imported."""
    for node in nodes:
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            module = "." * node.level + (node.module or "")
            yield module
            yield from (f"{module}.{alias.name}" if node.module else module + alias.name for alias in node.names)


def _parse(text: str) -> ast.Module | None:
    try:
        return ast.parse(text)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None


def read_source(text: str, path: str = "script.py", load: Load = lambda name, importer: None) -> list[Finding]:
    """What the reading finds in a script's text. Pure.

    Args:
        text: of the script. Nothing is found in one that cannot be parsed.
        path: that findings name.
        load: gives the user's own modules that it imports.
    """
    reader = Reader(load)
    reader.read(path, text)
    return reader.results()
