"""What a checkpoint says of itself, in ``manifest.json``.

=================  =====================================================================================================
``format``         version of this format
``kind``           ``checkpoint`` (all that a run needs to go on) or ``weights`` (the best ones, kept apart)
``step``           steps taken so far in the run
``epoch``          the epoch at hand, from 0
``time_s``         when it was saved, in seconds since 1970
``finished``       whether the script had come to its end
``position``       where in the script the run was (see ``lockstep.recovery.position``)
``birth``          the settings that the run was born with
``numerics``       PyTorch's own switches that can change an answer
``world_size``     number of processes that wrote it
``versions``       of lockstep, torch and Python
``objects``        the prepared objects in order: ``kind``, ``name``, ``lines`` (what must be the same when the run goes
                   on), ``options`` (of optimizers and schedules) and ``file`` (a model's weights)
``registered``     names given to ``team.register``
``loaders``        what must be the same of each prepared loader, a list of lines
``metric``         of weights: the value they were kept for
``files``          name, ``bytes`` and ``sha256`` of every other file of the directory
``checksum``       SHA-256 of all the above, written as JSON without spaces and with sorted keys
=================  =====================================================================================================
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from lockstep.checkpoint.files import checksum, write_json
from lockstep.errors import CheckpointError

FORMAT = 2
FILE_NAME = "manifest.json"


@dataclass(frozen=True, kw_only=True)
class Manifest:
    """See the table above."""

    kind: str = "checkpoint"
    step: int
    epoch: int
    time_s: float
    finished: bool = False
    position: Mapping[str, Any] = field(default_factory=dict)
    birth: Mapping[str, Any] = field(default_factory=dict)
    numerics: Mapping[str, Any] = field(default_factory=dict)
    world_size: int = 1
    versions: Mapping[str, str] = field(default_factory=dict)
    objects: list[dict[str, Any]] = field(default_factory=list)
    registered: list[str] = field(default_factory=list)
    loaders: list[list[str]] = field(default_factory=list)
    metric: float | None = None
    files: Mapping[str, dict[str, Any]] = field(default_factory=dict)

    @property
    def num_bytes(self) -> int:
        """Of all files, without the manifest itself."""
        return sum(int(entry["bytes"]) for entry in self.files.values())

    def write(self, directory: Path) -> None:
        """Write it, whole or not at all."""
        content = {"format": FORMAT, **dataclasses.asdict(self)}
        write_json(directory / FILE_NAME, {**content, "checksum": _digest(content)})

    @staticmethod
    def read(directory: Path) -> Manifest:
        """Read and check it. (The files that it names are checked by ``verify``.)

        Raises:
            CheckpointError: it is missing, damaged, or of another version.
        """
        path = directory / FILE_NAME
        try:
            content = json.loads(path.read_bytes())
        except FileNotFoundError:
            raise CheckpointError(f"{path} is missing: {directory} is no checkpoint, or an unfinished one") from None
        except (OSError, ValueError, RecursionError) as error:
            raise CheckpointError(f"{path} cannot be read: {error}") from error
        content = content if isinstance(content, dict) else {}
        version, fits = content.get("format"), content.pop("checksum", None) == _digest(content)
        if not fits:
            raise CheckpointError(f"{path} was damaged: its checksum does not fit its content")
        if isinstance(version, int) and version > FORMAT:
            raise CheckpointError(
                f"{path} has format {version}, and this lockstep knows formats up to {FORMAT}: it was written by a newer "
                "lockstep. Use that one (pip install --upgrade torch-lockstep)."
            )
        if version != FORMAT:
            raise CheckpointError(f"{path} has format {version!r}, and this lockstep knows format {FORMAT}")
        del content["format"]
        return Manifest(**content)


def _digest(content: Mapping[str, Any]) -> str:
    text = json.dumps(content, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()


def verify(directory: Path, *, sizes_only: bool = False, progress: Callable[[int], None] | None = None) -> Manifest:
    """Read all of a checkpoint, and compare it with its checksums.

    Args:
        directory: of the checkpoint.
        sizes_only: only look whether all files are there, in full length.
        progress: called now and then with the number of bytes read since.

    Raises:
        CheckpointError: a file is missing, or not what was written.
    """
    manifest = Manifest.read(directory)
    for name in manifest.files:
        verify_file(directory, manifest, name, sizes_only=sizes_only, progress=progress)
    return manifest


def verify_file(
    directory: Path,
    manifest: Manifest,
    name: str,
    *,
    sizes_only: bool = False,
    progress: Callable[[int], None] | None = None,
) -> None:
    """The same for one of its files; with ``sizes_only`` it is not read.

    Raises:
        CheckpointError: it is missing, or not what was written.
    """
    path, entry = directory / name, manifest.files[name]
    try:
        size = path.stat().st_size
        if size != entry["bytes"]:
            raise CheckpointError(f"{path} was damaged: it has {size} bytes, and {entry['bytes']} were written")
        if not sizes_only and checksum(path, progress) != entry["sha256"]:
            raise CheckpointError(f"{path} was damaged: its content is not what was written (SHA-256)")
    except FileNotFoundError:
        raise CheckpointError(f"{path} is missing") from None
    except OSError as error:
        raise CheckpointError(f"{path} cannot be read: {error}") from error
