"""What a disk can contain after a power loss, at each call of a program that changes it.

The calls run, on real files, and are noted. Of what was noted, on the disk are

- the content of a file at its last ``fsync``; of what was written since, nothing, zeros, a part or
  all;
- the names that a directory had at its last ``fsync``; of changes since, the first few, in their
  order over all directories, as journals of file systems keep it.
"""

import contextlib
import os
import random
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

Tree = tuple[tuple[str, bytes | None], ...]
"""The content of each file, by its path; of a directory, None."""
_ROOT = 0
_CALLS = ("open", "mkdir", "replace", "rename", "link", "unlink", "remove", "rmdir", "fsync", "fdatasync", "truncate")


def _rest_of(content: bytes, how: str) -> bytes:
    half = len(content) // 2
    return {"none": b"", "zeros": bytes(len(content)), "part": content[:half] + bytes(len(content) - half)}.get(how, content)


class _Change(NamedTuple):
    """A name that a file or directory got; ``node`` None: nothing has it now."""

    directory: int
    name: str
    node: int | None
    before: tuple[int, str] | None = None
    """Of a rename, the directory and the name that it had."""


class Disk:
    """The disk with a directory, all of which is on it now.

    Args:
        forgets: of files with this end of their names, what ``fsync`` has confirmed is lost all the
            same, as some disks do.
    """

    def __init__(self, root: Path, *, forgets: str | None = None, seed: int = 0) -> None:
        self._root = root
        self._forgets = forgets
        self._random = random.Random(seed)
        self._nodes: dict[int, int] = {root.stat().st_ino: _ROOT}  # the number of each inode
        self._num_nodes = 1
        self._start: dict[int, dict[str, int]] = {}
        self._content: dict[int, bytes] = {}
        self._synced: dict[int, bytes] = {}
        self._changes: list[_Change] = []
        self._synced_changes: set[int] = set()
        self._lock = threading.RLock()
        self.points: list[set[Tree]] = []
        """What the disk may contain before and after each call."""
        self._enter(root, _ROOT)
        self._synced.update(self._content)

    def _enter(self, path: Path, node: int) -> None:
        self._start[node] = {}
        for child in path.iterdir():
            self._start[node][child.name] = self._add(child.stat().st_ino)
            if child.is_dir():
                self._enter(child, self._nodes[child.stat().st_ino])
            else:
                self._content[self._nodes[child.stat().st_ino]] = child.read_bytes()

    def _add(self, inode: int) -> int:
        self._nodes[inode], self._num_nodes = self._num_nodes, self._num_nodes + 1
        return self._nodes[inode]

    # The calls

    @contextlib.contextmanager
    def watched(self) -> Iterator[None]:
        """Notes the calls of all threads."""
        with pytest.MonkeyPatch.context() as patch:
            for name in _CALLS:
                patch.setattr(os, name, self._noting(name, getattr(os, name)))
            yield

    def _noting(self, name: str, real: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **options: Any) -> Any:
            with self._lock:
                if name == "open" and not args[1] & os.O_CREAT:
                    return real(*args, **options)
                self._look()
                places = self._places(name, args, options)
                result = real(*args, **options)
                self._note(name, places, result if name == "open" else args[0])
                self._look()
                return result

        return call

    def _places(self, call: str, args: Any, options: Any) -> list[tuple[int, str, int | None]]:
        """The directory, the name in it and the number of each path of a call."""
        if call in ("fsync", "fdatasync", "truncate"):
            return []
        directories = [options.get("dir_fd")]
        if call in ("replace", "rename", "link"):
            directories = [options.get("src_dir_fd"), options.get("dst_dir_fd")]
        places = []
        for path, fd in zip(args, directories, strict=False):
            parent, name = os.path.split(os.fspath(path))
            found = os.stat(parent or ".", dir_fd=fd)
            directory = self._nodes.get(found.st_ino)
            if directory is not None:
                places.append((directory, name, self._names()[directory].get(name)))
        return places

    def _note(self, call: str, places: list[tuple[int, str, int | None]], of: Any) -> None:
        if call in ("fsync", "fdatasync"):
            node = self._nodes.get(os.fstat(of).st_ino)
            if node in self._content and not (self._forgets and self._path(node).name.endswith(self._forgets)):
                self._synced[node] = self._content[node]
            self._synced_changes.update(number for number, change in enumerate(self._changes) if change.directory == node)
            return
        if not places:
            return
        directory, name, node = places[0]
        if call == "open" and node is None:
            node = self._add(os.fstat(of).st_ino)
            self._content[node] = b""
            self._changes.append(_Change(directory, name, node))
        elif call == "mkdir":
            node = self._add((self._path(directory) / name).stat().st_ino)
            self._start[node] = {}
            self._changes.append(_Change(directory, name, node))
        elif call in ("unlink", "remove", "rmdir"):
            self._changes.append(_Change(directory, name, None))
        elif call == "link":
            self._changes.append(_Change(*places[1][:2], node))
        elif call in ("replace", "rename"):
            self._changes.append(_Change(*places[1][:2], node, before=(directory, name)))

    # What is there

    def _names(self, is_there: Callable[[int], bool] = lambda _: True) -> dict[int, dict[str, int]]:
        names = {directory: dict(entries) for directory, entries in self._start.items()}
        for change in (each for number, each in enumerate(self._changes) if is_there(number)):
            names[change.directory].pop(change.name, None)
            if change.node is not None:
                names[change.directory][change.name] = change.node
            if change.before is not None:
                names[change.before[0]].pop(change.before[1], None)
        return names

    def _path(self, wanted: int) -> Path:
        return next(path for path, node in self._walk(self._names()) if node == wanted)

    def _walk(self, names: dict[int, dict[str, int]], path: Path = Path(), node: int = _ROOT) -> Iterator[tuple[Path, int]]:
        yield self._root / path, node
        for name, child in sorted(names.get(node, {}).items()):
            yield from self._walk(names, path / name, child)

    def _look(self) -> None:
        for path, node in self._walk(self._names()):
            if node in self._content:
                self._content[node] = path.read_bytes()
        num_changes = len(self._changes)
        point = set()
        for first in {0, num_changes, self._random.randint(0, num_changes)}:
            names = self._names(lambda number, first=first: number < first or number in self._synced_changes)
            for how in ("none", "zeros", "part", "all", "any"):
                point.add(self._tree(names, how))
        self.points.append(point)

    def _tree(self, names: dict[int, dict[str, int]], how: str) -> Tree:
        tree = []
        for path, node in list(self._walk(names))[1:]:
            content = self._content.get(node)
            if content is not None and content != self._synced.get(node):
                each = self._random.choice(["none", "zeros", "part", "all"]) if how == "any" else how
                content = self._synced[node] if each == "none" and node in self._synced else _rest_of(content, each)
            tree.append((str(path.relative_to(self._root)), content))
        return tuple(tree)


def write_tree(tree: Tree, root: Path) -> Path:
    """Makes a directory with this content."""
    root.mkdir(parents=True)
    for name, content in tree:
        if content is None:
            (root / name).mkdir()
        else:
            (root / name).write_bytes(content)
    return root
