"""The files that are checked: a script, and the user's modules next to it. Only this module opens
files."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from lockstep._tools.check.findings import Finding
from lockstep._tools.check.reader import Reader, read_source

_MOST_FILES = 50
_MOST_BYTES = 1_000_000
_LIBRARIES = {"site-packages", "dist-packages"}


def read_script(path: Path) -> list[Finding]:
    """The findings in a script and in the user's modules that it imports: modules next to it, and
    modules of its package. Files that cannot be read or parsed, and installed packages, have no
    findings."""
    text = _text(path)
    if text is None or _LIBRARIES & {*path.absolute().parts}:
        return []
    modules = _Modules(path)
    return read_source(text, str(path), modules.load)


def read_function(path: Path, name: str) -> list[Finding]:
    """The findings in a function that a file defines, or in a method (``Class.method``), as if the
    file called it at its end."""
    text = _text(path)
    owner, _, method = name.rpartition(".")
    if text is None or not all(part.isidentifier() for part in name.split(".")):
        return []
    call = f"{owner}().{method}()" if owner else f"{name}()"
    return read_source(f"{text}\n\n{call}\n", str(path), _Modules(path).load)


def has_loop(path: Path) -> bool:
    """Whether there is anything to read in a script: it, or a module of the user's own that it
    imports, joins a run of lockstep's or runs over shards."""
    text = _text(path)
    reader = Reader(_Modules(path).load)
    return text is not None and reader.look_ahead(str(path), text) is not None and reader.has_loop


class _Modules:
    """Finds modules as Python would for this script."""

    def __init__(self, script: Path) -> None:
        self._script = script
        top = script.parent
        while (top / "__init__.py").is_file() and top != top.parent:
            top = top.parent
        self._roots = list(dict.fromkeys((script.parent, top)))
        self._num_read = 0

    def load(self, name: str, importer: str) -> tuple[str, str] | None:
        """The path and the text of a module that a file imports; None: it is none of the user's
        own."""
        for path in self._candidates(name, Path(importer)):
            if not path.is_file() or _LIBRARIES & {*path.absolute().parts} or self._num_read >= _MOST_FILES:
                continue
            text = _text(path)
            self._num_read += 1
            return None if text is None else (str(path), text)
        return None

    def _candidates(self, name: str, importer: Path) -> Iterator[Path]:
        inner = name.lstrip(".")
        level = len(name) - len(inner)
        roots = self._roots
        if level:
            folder = importer.parent
            for _ in range(level - 1):
                folder = folder.parent
            roots = [folder]
        parts = [part for part in inner.split(".") if part]
        for root in roots:
            if parts:
                yield root.joinpath(*parts).with_suffix(".py")
            yield root.joinpath(*parts, "__init__.py")


def _text(path: Path) -> str | None:
    try:
        if path.stat().st_size > _MOST_BYTES:
            return None
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError, ValueError):
        return None
