"""The state of a Trainer in lockstep's checkpoints, in addition to model, optimizer, schedule and
the positions in data.

Trainer, its subclasses and callbacks keep counters and lists in attributes. A resumed run is equal
to an uninterrupted one only if these are restored. Four parts are registered with the run:

- ``TrainingState``: Trainer's counters, log and control. Ranks compare them.
- ``Attributes``: attributes of the script's subclass. Ranks compare them, and so find a subclass
  that counts shards of one rank.
- ``CallbackAttributes``: attributes of callbacks, which may be times. Rank 0's are saved.
- ``Clocks``: times in the log. Rank 0's are saved."""

from __future__ import annotations

import dataclasses
import dis
import inspect
import io
import itertools
from collections import Counter, OrderedDict, defaultdict, deque
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from pickle import UnpicklingError
from types import CodeType
from typing import Any

import numpy as np
import torch
from torch import Tensor
from transformers.trainer_callback import ExportableState

from lockstep._base.atomic import write_atomic
from lockstep._base.digest import digest
from lockstep._base.errors import CheckpointError
from lockstep._state.checkpoint.kinds import IN_NUMPY, TAGS
from lockstep._state.checkpoint.tree import put_together, take_apart

_OF_PROCESS = ("is_local_process_zero", "is_world_process_zero", "stateful_callbacks", "log_history", "trial_params")
MOST_ITEMS = 1000
"""The largest number of items of a container or array that is saved as a count or log of the
script. Larger ones are data, which every launch loads again."""
_CONTAINERS = (list, tuple, dict, set, frozenset, deque, OrderedDict, Counter, defaultdict)
_FACTORIES = (None, int, float, list, dict, set, str)
_CLOCKS = ("_runtime", "_per_second", "_preparation_time")


def is_clock(name: str) -> bool:
    """Returns whether a logged value of this name is a time or a size of memory, which differs in
    each run."""
    return name.endswith(_CLOCKS) or "_mem_" in name


class TrainingState:
    """Trainer's counters, log, control and exportable callbacks, without times.

    Args:
        trainer: the trainer whose training begins.
        own: the names of its private attributes to save.
    """

    def __init__(self, trainer: Any, own: tuple[str, ...]) -> None:
        self._trainer = trainer
        self._state = trainer.state
        self._own = own
        self._restored: dict[str, Any] | None = None

    def state_dict(self) -> dict[str, Any]:
        """Returns the state as plain values, which are equal on every rank."""
        trainer, state = self._trainer, self._state
        fields = [each.name for each in dataclasses.fields(state) if each.name not in _OF_PROCESS]
        return {
            "state": {name: getattr(state, name) for name in fields},
            "log_history": [
                {name: value for name, value in entry.items() if not is_clock(name)} for entry in state.log_history
            ],
            "own": {name: _number(getattr(trainer, name, 0.0)) for name in self._own},
            "control": dataclasses.asdict(trainer.control),
            "callbacks": {name: dict(callback.state()["attributes"]) for name, callback in self._callbacks().items()},
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restores the state."""
        for name, value in state["state"].items():
            setattr(self._state, name, value)
        self._state.log_history = [dict(entry) for entry in state["log_history"]]
        for name, value in state["control"].items():
            setattr(self._trainer.control, name, value)
        callbacks = self._callbacks()
        for key in callbacks.keys() & state["callbacks"].keys():
            for name, value in state["callbacks"][key].items():
                setattr(callbacks[key], name, value)
        self._restored = state["own"]

    def reapply(self) -> None:
        """Restores the private attributes, which Trainer resets after ``load_state_dict``."""
        restored, self._restored = self._restored, None
        for name, value in (restored or {}).items():
            is_tensor = isinstance(getattr(self._trainer, name, None), Tensor)
            setattr(self._trainer, name, torch.tensor(value, device=self._trainer.args.device) if is_tensor else value)

    def _callbacks(self) -> dict[str, Any]:
        return _named(each for each in self._trainer.callback_handler.callbacks if isinstance(each, ExportableState))


class Attributes:
    """Attributes that the script's subclass adds to Trainer, such as counters.

    Code in ``compute_loss`` runs once per shard, so a counter in it differs between ranks. The
    comparison of the ranks' states then finds it and prints its name. Therefore each attribute that
    exists when training begins is registered separately.

    Args:
        trainer: the owner of the attributes.
        chosen: returns whether an attribute of this name is included.
    """

    def __init__(self, trainer: Any, chosen: Callable[[str], bool]) -> None:
        self._values = _Values(trainer, chosen)
        # Now: until the first checkpoint, what is small may grow so large that it counts as data.
        self._values.take()

    def state_dict(self) -> dict[str, Any]:
        """Returns the attributes by name."""
        return self._values.take()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restores the attributes."""
        self._values.put(state)


def attributes_of(trainer: Any) -> dict[str, Attributes]:
    """Returns the attributes of a trainer's subclass by the names under which to register them."""
    known = names_in(type(trainer))
    there = list(_Values(trainer, lambda name: name not in known).take())
    kind = type(trainer).__name__
    own = {f"{kind}.{name}": Attributes(trainer, name.__eq__) for name in there}
    return {**own, f"{kind}, later": Attributes(trainer, lambda name: name not in known and name not in there)}


class CallbackAttributes:
    """The plain attributes of the script's callbacks. Rank 0's are saved, since they may be times.
    They are restored before ``on_train_begin``.

    Args:
        trainer: the trainer with the callbacks.
    """

    def __init__(self, trainer: Any) -> None:
        own = _named(each for each in trainer.callback_handler.callbacks if not _is_of_libraries(type(each)))
        self._callbacks = {key: _Values(callback) for key, callback in own.items()}
        self._restored: dict[tuple[str, str], str] = {}
        """The digests of restored values, by callback and attribute."""

    def state_dict(self) -> dict[str, Any]:
        """Returns the attributes by the callback's class."""
        return {key: values.take() for key, values in self._callbacks.items()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restores the attributes of callbacks that exist in this launch as well."""
        for key in self._callbacks.keys() & state.keys():
            self._callbacks[key].put(state[key])
            self._restored.update({(key, name): digest(value) for name, value in state[key].items()})

    def lost(self) -> list[str]:
        """Returns the attributes that changed after they were restored, such as
        ``Averaging.losses``."""
        now = {(key, name): digest(value) for key, taken in self.state_dict().items() for name, value in taken.items()}
        lost = sorted(place for place, before in self._restored.items() if now.get(place) != before)
        return [f"{key.rpartition(' ')[0]}.{name}" for key, name in lost]


class Clocks:
    """The times in the log of rank 0, which are added to the log that ``TrainingState`` restored.

    Args:
        state: Trainer's ``TrainerState``.
    """

    def __init__(self, state: Any) -> None:
        self._state = state

    def state_dict(self) -> dict[str, Any]:
        """Returns the times by the number of the log entry."""
        return {
            str(number): times
            for number, entry in enumerate(self._state.log_history)
            if (times := {name: value for name, value in entry.items() if is_clock(name)})
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Adds the times to the log."""
        for number, times in state.items():
            if int(number) < len(self._state.log_history):
                self._state.log_history[int(number)].update(times)


class Outcome:
    """A file with the result of a finished training.

    A script may train several times. If the run resumes in a later training, ``train`` of the
    finished ones reads this file and returns the same result as before.

    Args:
        path: the file.
        parts: objects with ``state_dict`` and ``load_state_dict``.
    """

    def __init__(self, path: Path, parts: Sequence[Any]) -> None:
        self._path = path
        self._parts = parts

    def keep(self) -> None:
        """Writes the file."""
        content = io.BytesIO()
        # In the form of checkpoints: a safe torch.load reads neither a deque nor a defaultdict.
        state, tensors = take_apart([part.state_dict() for part in self._parts], "result")
        torch.save({"state": state, "tensors": {name: tensor.cpu() for name, tensor in tensors.items()}}, content)
        write_atomic(self._path, content.getvalue(), durable=True)

    def recall(self) -> None:
        """Restores the parts from the file.

        Raises:
            CheckpointError: the file cannot be read.
        """
        try:
            saved = torch.load(self._path, weights_only=True)
            states = put_together(saved["state"], saved["tensors"])
        except (OSError, RuntimeError, UnpicklingError, TypeError, KeyError) as error:
            raise CheckpointError(
                f"cannot read {self._path}, the result of a finished training of this run: {error}. Without it, train() "
                "would return different numbers. Start over with --fresh (fresh=True).",
                code="unreadable-result",
            ) from error
        for part, state in zip(self._parts, states, strict=True):
            part.load_state_dict(state)


class _Values:
    """The attributes of an object that a checkpoint can contain, except data.

    An attribute that is large at first is data. An attribute that is small at first is saved, also
    after it has grown.

    Args:
        owner: the object.
        chosen: returns whether an attribute of this name is included.
    """

    def __init__(self, owner: Any, chosen: Callable[[str], bool] = lambda name: True) -> None:
        self._owner = owner
        self._chosen = chosen
        self._followed: set[str] = set()

    def take(self) -> dict[str, Any]:
        """Returns the values by name."""
        chosen = {name: value for name, value in vars(self._owner).items() if self._chosen(name)}
        taken = {name: value for name, value in chosen.items() if is_plain(value, is_small=name not in self._followed)}
        self._followed.update(taken)
        return taken

    def put(self, values: dict[str, Any]) -> None:
        """Restores the values. Containers stay the same objects, since the script may have other
        references to them."""
        self._followed.update(values)
        attributes = vars(self._owner)
        for name, value in values.items():
            now = attributes.get(name)
            if type(now) is not type(value) or now is value or not isinstance(now, (list, deque, dict, set)):
                attributes[name] = value
                continue
            now.clear()
            if isinstance(now, (list, deque)):
                now.extend(value)
            else:
                now.update(value)


def names_in(kind: type) -> set[str]:
    """Returns the names of attributes that methods of transformers and lockstep set on ``self``.

    They are read from bytecode, since transformers does not list them. Names that the code only
    reads, such as ``metrics``, are not included: a subclass may use them for its attributes."""
    names: set[str] = set()
    for base in kind.__mro__:
        if _is_of_libraries(base):
            for value in vars(base).values():
                function = getattr(value, "fget", value)  # The function of a property.
                code = getattr(inspect.unwrap(function), "__code__", None) if callable(function) else None
                names.update(*(_names(code),) if code is not None else ())
    return names


def _names(code: CodeType) -> set[str]:
    steps = list(dis.get_instructions(code))
    own = {
        step.argval
        for before, step in itertools.pairwise(steps)
        if step.opname == "STORE_ATTR"
        and "self" in (before.argval, *(before.argval if type(before.argval) is tuple else ()))
    }
    return own.union(*(_names(each) for each in code.co_consts if isinstance(each, CodeType)))


def is_plain(value: Any, *, is_small: bool = True) -> bool:
    """Returns whether a checkpoint can contain the value: a number, text, a tensor, an array, or a
    container of them.

    Args:
        value: the value.
        is_small: whether the value must also be small.
    """
    kind = type(value)
    if kind in _CONTAINERS:
        if (is_small and len(value) > MOST_ITEMS) or (kind is defaultdict and value.default_factory not in _FACTORIES):
            return False
        items = [*value, *value.values()] if isinstance(value, dict) else value
        return all(is_plain(each, is_small=is_small) for each in items)
    if kind is np.ndarray:
        return value.dtype.name in IN_NUMPY and (value.size <= MOST_ITEMS or not is_small)
    return value is None or kind in (bool, int, float, str, Tensor) or kind in TAGS


def _is_of_libraries(kind: type) -> bool:
    return kind.__module__.partition(".")[0] in ("transformers", "lockstep")


def _named(callbacks: Iterable[Any]) -> dict[str, Any]:
    """Returns the callbacks by class name and number among the callbacks of that class."""
    named: dict[str, Any] = {}
    for callback in callbacks:
        kind = type(callback).__qualname__
        number = sum(key.rpartition(" ")[0] == kind for key in named)
        named[f"{kind} {number}"] = callback
    return named


def _number(value: Any) -> Any:
    return value.item() if isinstance(value, Tensor) else value
