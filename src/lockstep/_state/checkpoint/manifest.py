"""The description of a checkpoint, ``manifest.json``.

It is the last file written into a checkpoint, and lists the size and checksum of all others. So a
directory with a valid manifest was complete, and a later change of any file is detected. Its own
checksum is inside it, since no other file is written after it.

=================  ===============================================================================
``format``         version of this format
``kind``           ``checkpoint`` (all that a run needs to resume) or ``weights`` (the best weights)
``step``           steps taken so far in the run
``epoch``          the current epoch, from 0
``time_s``         the time of the save, in seconds since 1970
``finished``       whether the script had finished
``position``       the position in the script (see ``_state/recovery/position.py``)
``birth``          the settings with which the run was created; ``script_seed``, the argument of a
                   ``torch.manual_seed`` after ``join()``
``numerics``       PyTorch's global settings that can change results
``world_size``     number of processes that wrote it
``versions``       the versions of lockstep, torch and Python
``objects``        the prepared objects in order: ``kind``, ``name``, ``lines`` (which must be the
                   same on resume), ``options`` (of optimizers and schedules) and ``file`` (a
                   model's weights, or the name from which the names of their parts derive: see
                   ``parts``)
``registered``     names passed to ``team.register``
``loaders``        for each prepared loader, a list of lines that must be the same on resume
``metric``         for ``weights``: the metric for which they were saved
``files``          name, ``bytes`` and ``crc32`` of every other file of the directory; in format
                   3, ``sha256``
``checksum``       SHA-256 of all the above, written as JSON without spaces and with sorted keys
=================  ===============================================================================
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

FORMAT = 4
OLDEST_FORMAT = 3
"""The oldest format that can be read."""
FILE_NAME = "manifest.json"
_Name = Annotated[str, lambda name: "/" not in name and name not in ("", ".", "..")]
"""The name of a file in the checkpoint's directory. A path to another place is refused."""


class NewerFormatError(CheckpointError):
    """A checkpoint was written by a newer version of lockstep."""


class _File(TypedDict):
    bytes: Count


class File(_File, total=False):
    """A file of a checkpoint, with one of the checksums."""

    crc32: str
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
    """The content of ``manifest.json``: the table above, without ``format`` and ``checksum``."""

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
        """The total size of all files except the manifest."""
        return sum(int(entry["bytes"]) for entry in self.files.values())

    def write(self, directory: Path, *, within: Path | None = None) -> None:
        """Writes the manifest atomically. ``within``: the directory that no symbolic link on the
        path may leave."""
        content = {"format": FORMAT, **dataclasses.asdict(self)}
        write_json(directory / FILE_NAME, {**content, "checksum": _digest(content)}, within=within)

    @staticmethod
    def read(directory: Path) -> Manifest:
        """Reads and verifies a manifest, but not the files that it lists (see ``verify``).

        Raises:
            CheckpointError: the manifest is missing, damaged, or of another version.
        """
        path = directory / FILE_NAME
        try:
            content = parse(read_bytes(path))
            content = content if isinstance(content, dict) else {}
            is_whole = content.pop("checksum", None) == _digest(content)
        except FileNotFoundError:
            raise CheckpointError(
                f"{path} is missing: {directory} is not a checkpoint, or an unfinished one", code="manifest-missing"
            ) from None
        except (OSError, ValueError) as error:
            raise CheckpointError(f"cannot read {path}: {error}", code="checkpoint-unreadable") from error
        version = content.pop("format", None)
        if not is_whole:
            raise CheckpointError(f"{path} was damaged: its checksum does not match its content", code="checkpoint-damaged")
        # The version is compared after the checksum: damage must not look like another version.
        if isinstance(version, int) and version > FORMAT:
            raise NewerFormatError(
                f"{path} has format {version}, but this lockstep reads formats up to {FORMAT}. Use the newer version that "
                "wrote it.",
                code="checkpoint-format-newer",
            )
        if not isinstance(version, int) or version < OLDEST_FORMAT:
            raise CheckpointError(
                f"{path} has format {version!r}, but this lockstep reads formats {OLDEST_FORMAT} to {FORMAT}",
                code="checkpoint-format",
            )
        try:
            return check(Manifest(**content))
        except (TypeError, ValueError) as error:
            raise CheckpointError(f"{path} was damaged: {error}", code="checkpoint-damaged") from error


def _digest(content: Mapping[str, Any]) -> str:
    # Sorted and without spaces, so that the digest depends on the values alone, not on the layout.
    text = json.dumps(content, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()


def verify(directory: Path, *, sizes_only: bool = False) -> Manifest:
    """Verifies the checksums of a checkpoint.

    Args:
        sizes_only: check only that all files exist, with the right sizes.

    Raises:
        CheckpointError: a file is missing or damaged.
    """
    manifest = Manifest.read(directory)
    for name in manifest.files:
        verify_file(directory, manifest, name, sizes_only=sizes_only)
    return manifest


def is_intact(path: Path, entry: File) -> bool:
    """Returns whether a file has the checksum in its entry. Raises OSError."""
    kind = "crc32" if "crc32" in entry else "sha256"
    return checksum(path, kind) == entry.get(kind)


def verify_file(directory: Path, manifest: Manifest, name: str, *, sizes_only: bool = False) -> None:
    """Verifies one file of a checkpoint. With ``sizes_only`` the file is not read.

    Raises:
        CheckpointError: the file is missing or damaged.
    """
    path, entry = directory / name, manifest.files[name]
    try:
        size = size_of(path)
        if size != entry["bytes"]:
            raise CheckpointError(
                f"{path} was damaged: it has {size} bytes, and {entry['bytes']} were written", code="checkpoint-damaged"
            )
        if not (sizes_only or is_intact(path, entry)):
            raise CheckpointError(
                f"{path} was damaged: its content is not what was written (checksum)", code="checkpoint-damaged"
            )
    except FileNotFoundError:
        raise CheckpointError(f"{path} is missing", code="checkpoint-damaged") from None
    except OSError as error:
        raise CheckpointError(f"cannot read {path}: {error}", code="checkpoint-unreadable") from error
