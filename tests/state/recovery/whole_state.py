"""Runs that save themselves after every step, and what their checkpoints contain.

``trained`` runs in the processes of a crew, and keeps a copy of each checkpoint as a separate run
directory, ``KEPT/0``, ``KEPT/1``, ...: a run that was killed has left just that. So it takes no
kill to resume a run after any step, and one launch."""

import hashlib
import json
import os
import shutil
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import hosted_scripts
import torch
import whole_scripts
from safetensors.torch import load_file

import lockstep
from lockstep._state.checkpoint.manifest import Manifest
from lockstep._state.checkpoint.store import Store

SCRIPTS = {**whole_scripts.SCRIPTS, **hosted_scripts.SCRIPTS}

State = dict[str, str]
"""What a checkpoint contains: each value as text, by its place, and the digest of each tensor."""


class Logged(NamedTuple):
    """An event of the log, without its times."""

    step: int
    event: str
    epoch: int
    values: str
    apart: str


@dataclass
class Course:
    """What a launch restored and saved, on rank 0."""

    restored: list[State] = field(default_factory=list)
    """What a checkpoint would contain right after each time that the state was restored."""
    saved: list[State] = field(default_factory=list)
    """What each written checkpoint contained, and the last one after the end of the script."""
    ended: State = field(default_factory=dict)
    """What a checkpoint would contain at the end of the script, before the run is closed."""
    logged: list[Logged] = field(default_factory=list)
    """What the event log says of steps, evaluations and passes."""
    logged_before: list[tuple[int, list[int]]] = field(default_factory=list)
    """For each save its step, and the steps that were in the log before it."""


def trained(name: str, kept: str, source: str | None = None, num_epochs: int | None = None, **settings: Any) -> Course:
    """Trains by a script.

    Args:
        source: a copy of an earlier run, to resume.
        num_epochs: None: as many as the script has by itself.
        settings: settings for ``join``.
    """
    run_dir, course = Path(f"{kept}.run"), Course()
    if source is not None and os.environ.get("RANK", "0") == "0":
        shutil.copytree(source, run_dir)
    with lockstep.join(run_dir=str(run_dir), **{"checkpoint_every": 1, **settings}) as team:
        engine = team._engine
        save, keep_best, restorer = engine.saver.save, engine.saver.keep_best, engine.restorer

        def save_and_keep(*args: Any, **options: Any) -> None:
            if team.is_main:
                logged = [each.step for each in _logged(run_dir) if each.event == "step"]
                course.logged_before.append((args[1], [*dict.fromkeys(logged)]))
            save(*args, **options)
            assert engine.saver.wait_until_written()
            keep()

        def keep_best_at_once(*args: Any) -> None:
            keep_best(*args)
            # While it is written, no checkpoint is saved: so steps that are faster are saved, too.
            assert engine.saver.wait_until_written()

        def keep() -> None:
            if team.is_main:
                if source is None:
                    _copy(run_dir, Path(kept, str(len(course.saved))))
                course.saved.append(on_disk(run_dir))

        def apply(*, is_final: bool) -> None:
            type(restorer).apply(restorer, is_final=is_final)
            if is_final:
                course.restored.append(present())

        def present() -> State:
            files, state = engine.state.part(team.rank, team.world_size)
            parts = engine.collectives.all_gather_plain(_digests(files))
            return {**_leaves(state, "state"), **{k: v for part in parts for k, v in part.items()}}

        engine.saver.save, engine.saver.keep_best = save_and_keep, keep_best_at_once
        if restorer is not None:
            restorer.apply = apply
        SCRIPTS[name](team, *([] if num_epochs is None else [num_epochs]))
        course.ended = present()
    keep()
    if os.environ.get("RANK", "0") == "0":
        course.logged = _logged(run_dir)
    return course


def _logged(run_dir: Path) -> list[Logged]:
    events = [json.loads(line) for line in (run_dir / "events.jsonl").read_text().splitlines()]
    return [
        Logged(event["step"], event["event"], event["epoch"], repr(event.get("values")), repr(event.get("apart")))
        for event in events
        if event["event"] in ("step", "evaluate", "epoch")
    ]


def on_disk(run_dir: Path) -> State:
    """Returns what the newest checkpoint and the best weights of a run contain."""
    newest = Store(run_dir).newest()
    assert newest is not None
    best = run_dir / "best"
    return {**_of_directory(newest), **({f"best: {k}": v for k, v in _of_directory(best).items()} if best.exists() else {})}


def restored_part(state: State) -> State:
    """Returns the part that is put into the script's objects: no manifest, and no best weights."""
    return {place: text for place, text in state.items() if not place.startswith(("manifest", "best: "))}


def differences(one: State, other: State) -> list[str]:
    """Returns the places at which two states differ, with what each has there."""
    places = {**one, **other}
    return [f"{each}: {one.get(each)} / {other.get(each)}" for each in places if one.get(each) != other.get(each)]


def _copy(run_dir: Path, place: Path) -> None:
    newest = Store(run_dir).newest()
    assert newest is not None
    shutil.copytree(newest, place / "checkpoints" / newest.name)
    shutil.copyfile(run_dir / "birth.json", place / "birth.json")
    if (run_dir / "best").exists():
        shutil.copytree(run_dir / "best", place / "best")


def _of_directory(directory: Path) -> State:
    manifest = Manifest.read(directory)
    described = {
        name: getattr(manifest, name)
        for name in ("step", "epoch", "finished", "position", "birth", "objects", "registered", "loaders", "metric")
    }
    # A run of several processes has cut its tensors into files by size.
    tensors = _digests({path.name: load_file(path) for path in directory.glob("*.safetensors")})
    state = directory / "state.json"
    return {
        **_leaves(described, "manifest"),
        **(_leaves(json.loads(state.read_text()), "state") if state.exists() else {}),
        **tensors,
    }


def _digests(files: Mapping[str, Mapping[str, torch.Tensor]]) -> State:
    return {
        f"{'tensors' if file.startswith('state') else file}: {name}": _text(tensor)
        for file, tensors in files.items()
        for name, tensor in tensors.items()
    }


def _text(tensor: torch.Tensor) -> str:
    content = tensor.detach().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()
    return f"{tensor.dtype} {tuple(tensor.shape)} {hashlib.sha256(content).hexdigest()[:16]}"


def _leaves(value: Any, place: str) -> State:
    return dict(_walk(value, place))


def _walk(value: Any, place: str) -> Iterator[tuple[str, str]]:
    if isinstance(value, dict) and value:
        for key, item in value.items():
            yield from _walk(item, f"{place}.{key}")
    elif isinstance(value, (list, tuple)) and value:
        for number, item in enumerate(value):
            yield from _walk(item, f"{place}[{number}]")
    else:
        yield place, repr(value)
