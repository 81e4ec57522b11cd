"""Resumes an interrupted run: compares its checkpoint with the objects that the script prepares,
and restores them.

::

    join            rank 0 finds the checkpoint, all ranks get its manifest
    each prepare    check_objects, check_loaders: refuse a difference where it is made, before
                    hours of data loading
    the position    apply(is_final=False) at the beginning of an epoch to resume in
                    apply(is_final=True) at the position itself: all objects must exist, and the
                    numeric settings must be equal

A difference is refused, not adapted to: the promise is that a resumed run has the results of a run
that was never interrupted. ``--allow NAME`` gives the promise up for one kind of difference.
"""

from __future__ import annotations

import dataclasses
import itertools
import json
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NoReturn

from torch import Tensor
from torch.optim import Optimizer

from lockstep._base.errors import CheckpointError, MismatchError
from lockstep._base.regular_files import read_bytes
from lockstep._state.checkpoint.manifest import Manifest, Object
from lockstep._state.checkpoint.parts import state_files, weights_files
from lockstep._state.checkpoint.tree import put_together, take_apart
from lockstep._state.checkpoint.weights import Form, Tensors
from lockstep._state.checkpoint.writer import STATE
from lockstep._state.recovery.position import ScriptPosition
from lockstep._state.recovery.run_state import RunState
from lockstep._state.recovery.software import numerics

_MOST_BYTES = 1 << 32
"""The largest size of ``state.json``: 4 GiB. It contains no tensors."""


@dataclass(frozen=True, kw_only=True)
class Checkpoint:
    """The checkpoint from which a launch resumes. The same on every rank."""

    path: Path
    manifest: Manifest

    @property
    def position(self) -> ScriptPosition:
        """The position in the script at which it was saved."""
        return ScriptPosition.from_json(self.manifest.position)

    def as_json(self) -> dict[str, Any]:
        """Returns the JSON object for the other ranks."""
        return {"path": str(self.path), "manifest": dataclasses.asdict(self.manifest)}

    @staticmethod
    def from_json(value: Mapping[str, Any]) -> Checkpoint:
        """Returns the checkpoint for a result of ``as_json``."""
        return Checkpoint(path=Path(value["path"]), manifest=Manifest(**value["manifest"]))


@dataclass
class Restorer:
    """The restoring of a checkpoint into the script's objects.

    Args:
        state: the state of the run, which grows as the script prepares objects.
        allow: the names of the differences to accept, as in ``RunConfig.allow``.
    """

    checkpoint: Checkpoint
    state: RunState
    allow: Collection[str]
    is_done: bool = False
    """Whether all state has been restored."""
    _changed_options: dict[int, list[str]] = field(default_factory=dict)
    """The names of the options that differ from the checkpoint, by the number of the object."""

    def check_seed(self, seed: int | None) -> None:
        """Compares the seed that the script has set after ``join`` with the checkpoint's; None: the
        script has set none.

        Raises:
            MismatchError: the seeds differ, and with them all random streams.
        """
        before = self.checkpoint.manifest.birth.get("script_seed", seed)
        if before != seed:
            now, was = (f"torch.manual_seed({each})" if each is not None else "none" for each in (seed, before))
            self._refuse(f"the seed that the script sets after join() is {now} now, and was {was}", code="seed-changed")

    def check_objects(self) -> None:
        """Compares the objects prepared so far with the objects of the checkpoint.

        Raises:
            MismatchError: an object differs; the message names the difference.
        """
        then, now = self.checkpoint.manifest.objects, self.state.describe_objects()
        for number, new in enumerate(now):
            if number >= len(then):
                self._refuse(f"object {number + 1} in prepare(), {_article(new['kind'])} ({new['type']}), is new")
            old = then[number]
            # The class of a model may have been renamed: its parameters identify it.
            if old["kind"] != new["kind"] or (old["type"] != new["type"] and new["kind"] != "model"):
                self._refuse(
                    f"object {number + 1} in prepare() is {_article(new['kind'])} ({new['type']}) now, and was "
                    f"{_article(old['kind'])} ({old['type']})"
                )
            self._check_lines(f"{new['name']} ({new['type']})", old["lines"], new["lines"])
            changed = [
                key for key in {**old["options"], **new["options"]} if old["options"].get(key) != new["options"].get(key)
            ]
            if changed and "optimizer" not in self.allow:
                differences = ", ".join(
                    f"{k}={new['options'].get(k, 'none')} (was {old['options'].get(k, 'none')})" for k in changed
                )
                self._refuse(f"{new['name']} ({new['type']}) has other options now: {differences}", "optimizer")
            self._changed_options[number] = changed

    def check_loaders(self) -> None:
        """Compares the loaders prepared so far with the loaders of the checkpoint.

        Raises:
            MismatchError: a loader differs; the message names the difference.
        """
        then, now = self.checkpoint.manifest.loaders, [loader.describe_data() for loader in self.state.loaders]
        if "data" in self.allow:
            return
        for number, new in enumerate(now):
            if number >= len(then):
                self._refuse(f"training loader {number + 1} is new: there were {len(then)}", "data")
            self._check_lines(f"training loader {number + 1}", then[number], new, "data")

    def _check_lines(self, label: str, old: list[str], new: list[str], allowable: str = "") -> None:
        for was, is_now in itertools.zip_longest(old, new, fillvalue="nothing more"):
            if was != is_now:
                self._refuse(f"{label} has `{is_now}` now, and had `{was}`", allowable)

    def _refuse(self, difference: str, allowable: str = "", *, code: str = "") -> NoReturn:
        manifest = self.checkpoint.manifest
        back = "Change it back" + ("," if allowable else " or")
        allowed = f", or accept different results with --allow {allowable}" if allowable else ""
        raise MismatchError(
            f"cannot resume from step {manifest.step} in {self.checkpoint.path.parent}: {difference}. {back} start a new run "
            f"with --fresh (fresh=True){allowed}.",
            code=code or (f"{allowable}-changed" if allowable else "objects-changed"),
        )

    def script_has_restored(self) -> bool:
        """Returns whether an optimizer has state of steps before lockstep has restored any: the
        script has loaded it."""
        optimizers = [adapter.target for adapter in self.state.objects if isinstance(adapter.target, Optimizer)]
        return not self.is_done and any(has_stepped(slots) for optimizer in optimizers for slots in optimizer.state.values())

    def apply(self, *, is_final: bool) -> None:
        """Restores all state.

        Args:
            is_final: whether all objects of the checkpoint must be prepared. Otherwise the prepared
                ones are restored.

        Raises:
            MismatchError: an object differs or is missing.
        """
        manifest, directory = self.checkpoint.manifest, self.checkpoint.path
        if is_final:
            self.is_done = True
            self._check_all_there()
            self._check_numerics()
        tensors, devices = Tensors([directory / name for name in state_files(manifest.files)]), self.state.devices
        state = self._read_state(directory / STATE)
        records = zip(manifest.objects, state["objects"], strict=True)
        # By position: names such as ``model-2`` follow from the order of prepare(), and a final
        # call has checked that none is missing. zip stops at the objects prepared so far.
        for number, (adapter, (record, object_state)) in enumerate(zip(self.state.objects, records, strict=False)):
            form = adapter.forms()
            weights = self._weights(record, form)
            object_state = put_together(object_state, tensors.formed(form, f"{record['name']}."), devices)
            adapter.load_state_dict(object_state, weights)
            adapter.apply_options(self._changed_options.get(number, []), record["options"])
        for loader, value in zip(self.state.loaders, state["loaders"], strict=False):
            loader.load_state(put_together(value, tensors, devices))
        registered = put_together(state["registered"], tensors.formed(self._registered_forms()), devices)
        for name, adapter in self.state.registered.items():
            if name in registered:
                adapter.load_state_dict(registered[name])
        self.state.best, self.state.best_epoch = put_together(state["best"], {}), state["best_epoch"]

    def _weights(self, record: Object, form: Form) -> Mapping[str, Tensor] | None:
        """Returns a model's weights; None: the object is not a model."""
        if "file" not in record:
            return None
        files = weights_files(record["file"], self.checkpoint.manifest.files)
        return Tensors([self.checkpoint.path / name for name in files]).formed(form)

    def _registered_forms(self) -> Form:
        """Returns the forms of registered tensors. They are determined only if tensors may be cut
        over the ranks, since the ``state_dict`` of a class in the script need not work before its
        state is restored."""
        if not self.state.is_cut:
            return lambda _: None
        now = {name: value for name, adapter in self.state.registered.items() for _, value in adapter.compared()}
        return take_apart(now, "registered")[1].get

    def _read_state(self, file: Path) -> Any:
        try:
            state = json.loads(read_bytes(file, _MOST_BYTES))  # rank 0 has verified the checksum
        except (OSError, ValueError, RecursionError) as error:
            raise CheckpointError(f"cannot read {file}: {error}", code="checkpoint-unreadable") from error
        objects = state.get("objects") if isinstance(state, dict) else None
        if not isinstance(objects, list) or len(objects) != len(self.checkpoint.manifest.objects):
            raise CheckpointError(f"{file} lacks the state of objects that its manifest lists", code="checkpoint-damaged")
        return state

    def _check_all_there(self) -> None:
        manifest, state = self.checkpoint.manifest, self.state
        if len(state.objects) < len(manifest.objects):
            missing = manifest.objects[len(state.objects)]
            self._refuse(f"{missing['name']} ({missing['type']}) is not prepared now, and was")
        if len(state.loaders) < len(manifest.loaders) and "data" not in self.allow:
            self._refuse(f"{len(state.loaders)} training loaders are prepared now, and {len(manifest.loaders)} were", "data")
        missing_names = [name for name in manifest.registered if name not in state.registered]
        if missing_names:
            self._refuse(f"{missing_names[0]!r} is not registered now, and was")

    def _check_numerics(self) -> None:
        if "numerics" in self.allow:
            return
        was = self.checkpoint.manifest.numerics
        for name, value in numerics().items():
            if name in was and was[name] != value:
                self._refuse(f"{_owner(name)}{name} is {value!r} now, and was {was[name]!r}", "numerics")


def has_stepped(slots: Any) -> bool:
    """Returns whether the state of one parameter in an optimizer is of a step. A constructor may
    also make state (Adagrad's), but with step 0."""
    return bool(slots) and not (isinstance(slots, Mapping) and "step" in slots and not slots["step"])


def _owner(name: str) -> str:
    return "the variable " if name.isupper() else "PyTorch's "


def _article(kind: str) -> str:
    return f"{'an' if kind[0] in 'aeiou' else 'a'} {kind}"
