"""The description of a checkpoint, ``manifest.json``.

=================  =====================================================================================================
``format``         version of this format
``kind``           ``checkpoint`` (all that a run needs to resume) or ``weights`` (the best weights)
``step``           steps taken so far in the run
``epoch``          the current epoch, from 0
``time_s``         when it was saved, in seconds since 1970
``finished``       whether the script had ended
``position``       the position in the script (see ``lockstep._state.recovery.position``)
``birth``          the settings with which the run was created; ``script_seed``, that of a ``torch.manual_seed`` behind
                   ``join()``
``numerics``       PyTorch's global settings that can change an answer
``world_size``     number of processes that wrote it
``versions``       of lockstep, torch and Python
``objects``        the prepared objects in order: ``kind``, ``name``, ``lines`` (which must be the same on resume),
                   ``options`` (of optimizers and schedules) and ``file`` (a model's weights, or
                   what the names of their parts derive from: see ``parts``)
``registered``     names given to ``team.register``
``loaders``        for each prepared loader, a list of lines that must be the same on resume
``metric``         for ``weights``: the metric for which they were saved
``files``          name, ``bytes`` and ``sha256`` of every other file of the directory
``checksum``       SHA-256 of all the above, written as JSON without spaces and with sorted keys
=================  =====================================================================================================
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, TypedDict

from lockstep._base.errors import CheckpointError
from lockstep._base.regular_files import read_bytes, size_of
from lockstep._base.shapes import Count, Ranks, Seconds, check, parse
from lockstep._state.checkpoint.files import checksum, write_json

FORMAT = 3
FILE_NAME = "manifest.json"
_Name = Annotated[str, lambda name: "/" not in name and name not in ("", ".", "..")]
"""Of a file in the checkpoint's directory, not elsewhere."""


class NewerFormatError(CheckpointError):
    """A checkpoint was written by a newer version of lockstep."""


class File(TypedDict):
    """A file of a checkpoint."""

    bytes: Count
    sha256: str


class _Object(TypedDict):
    kind: Annotated[str, bool]
    name: str
    type: str
    lines: list[str]
    options: dict[str, str]


class Object(_Object, total=False):
    """A prepared object."""

    file: _Name


@dataclass(frozen=True, kw_only=True)
class Manifest:
    """See the table above."""

    kind: str = "checkpoint"
    step: Count
    epoch: Count
    time_s: Seconds
    finished: bool = False
    position: Mapping[str, Count | bool | None] = field(default_factory=dict)
    birth: Mapping[str, Any] = field(default_factory=dict)
    numerics: Mapping[str, Any] = field(default_factory=dict)
    world_size: Ranks = 1
    versions: Mapping[str, str] = field(default_factory=dict)
    objects: list[Object] = field(default_factory=list)
    registered: list[str] = field(default_factory=list)
    loaders: list[list[str]] = field(default_factory=list)
    metric: float | None = None
    files: Mapping[_Name, File] = field(default_factory=dict)

    @property
    def num_bytes(self) -> int:
        """Total size of all files except the manifest."""
        return sum(int(entry["bytes"]) for entry in self.files.values())

    def write(self, directory: Path, *, within: Path | None = None) -> None:
        """Write it atomically. ``within``: see ``open_to_write``."""
        content = {"format": FORMAT, **dataclasses.asdict(self)}
        write_json(directory / FILE_NAME, {**content, "checksum": _digest(content)}, within=within)

    @staticmethod
    def read(directory: Path) -> Manifest:
        """Read and verify a manifest, but not the files that it lists (see ``verify``).

        Raises:
            CheckpointError: it is missing, damaged, or of another version.
        """
        path = directory / FILE_NAME
        try:
            content = parse(read_bytes(path))
            content = content if isinstance(content, dict) else {}
            is_whole = content.pop("checksum", None) == _digest(content)
        except FileNotFoundError:
            raise CheckpointError(f"{path} is missing: {directory} is not a checkpoint, or an unfinished one") from None
        except (OSError, ValueError) as error:
            raise CheckpointError(f"{path} cannot be read: {error}") from error
        version = content.pop("format", None)
        if not is_whole:
            raise CheckpointError(f"{path} was damaged: its checksum does not match its content")
        if isinstance(version, int) and version > FORMAT:
            raise NewerFormatError(
                f"{path} has format {version}, and this lockstep knows format {FORMAT}: it was written by a newer "
                "lockstep. Use that version."
            )
        if version != FORMAT:
            raise CheckpointError(f"{path} has format {version!r}, and this lockstep knows format {FORMAT}")
        try:
            return check(Manifest(**content))
        except (TypeError, ValueError) as error:
            raise CheckpointError(f"{path} was damaged: {error}") from error


def _digest(content: Mapping[str, Any]) -> str:
    text = json.dumps(content, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()


def verify(directory: Path, *, sizes_only: bool = False) -> Manifest:
    """Verify the checksums of a checkpoint.

    Args:
        sizes_only: check only that all files exist, with the right sizes.

    Raises:
        CheckpointError: a file is missing, or its content is not what was written.
    """
    manifest = Manifest.read(directory)
    for name in manifest.files:
        verify_file(directory, manifest, name, sizes_only=sizes_only)
    return manifest


def verify_file(directory: Path, manifest: Manifest, name: str, *, sizes_only: bool = False) -> None:
    """Verify one file of a checkpoint; with ``sizes_only`` it is not read.

    Raises:
        CheckpointError: it is missing, or its content is not what was written.
    """
    path, entry = directory / name, manifest.files[name]
    try:
        size = size_of(path)
        if size != entry["bytes"]:
            raise CheckpointError(f"{path} was damaged: it has {size} bytes, and {entry['bytes']} were written")
        if not sizes_only and checksum(path) != entry["sha256"]:
            raise CheckpointError(f"{path} was damaged: its content is not what was written (SHA-256)")
    except FileNotFoundError:
        raise CheckpointError(f"{path} is missing") from None
    except OSError as error:
        raise CheckpointError(f"{path} cannot be read: {error}") from error
