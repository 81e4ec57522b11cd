"""What of a training the run's state holds, besides model, optimizer, schedule and positions in
data."""

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

_OF_PROCESS = ("is_local_process_zero", "is_world_process_zero", "stateful_callbacks", "log_history", "trial_params")
MOST_ITEMS = 1000
"""Items of a container or array that may be a count or a log of the script's own; larger ones are
data."""
_CONTAINERS = (list, tuple, dict, set, frozenset, deque, OrderedDict, Counter, defaultdict)
_FACTORIES = (None, int, float, list, dict, set, str)
_CLOCKS = ("_runtime", "_per_second", "_preparation_time")


def is_clock(name: str) -> bool:
    """Whether a logged value of this name is measured by a clock, or of memory, and so is another
    each time."""
    return name.endswith(_CLOCKS) or "_mem_" in name


class TrainingState:
    """The host's counters, log, control and callbacks, without what clocks say.

    Args:
        trainer: whose training begins.
        own: names of its attributes.
    """

    def __init__(self, trainer: Any, own: tuple[str, ...]) -> None:
        self._trainer = trainer
        self._state = trainer.state
        self._own = own
        self._restored: dict[str, Any] | None = None

    def state_dict(self) -> dict[str, Any]:
        """The state: plain values, the same on every rank."""
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
        """Restore it."""
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
        """Restore the attributes of the trainer, which it has reset since."""
        restored, self._restored = self._restored, None
        for name, value in (restored or {}).items():
            is_tensor = isinstance(getattr(self._trainer, name, None), Tensor)
            setattr(self._trainer, name, torch.tensor(value, device=self._trainer.args.device) if is_tensor else value)

    def _callbacks(self) -> dict[str, Any]:
        return _named(each for each in self._trainer.callback_handler.callbacks if isinstance(each, ExportableState))


class Attributes:
    """What a subclass of the script counts: attributes that the classes of transformers do not
    know.

    What a script does to them in ``compute_loss``, say, happens once a shard. So they differ on
    several processes, and the comparison of the ranks finds and names them. Each that exists when
    training begins is registered by itself.

    Args:
        trainer: whose attributes.
        chosen: whether an attribute is among them, by name.
    """

    def __init__(self, trainer: Any, chosen: Callable[[str], bool]) -> None:
        self._values = _Values(trainer, chosen)

    def state_dict(self) -> dict[str, Any]:
        """The attributes, by name."""
        return self._values.take()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore them."""
        self._values.put(state)


def attributes_of(trainer: Any) -> dict[str, Attributes]:
    """Those of a trainer, by the names under which they are registered."""
    known = names_in(type(trainer))
    there = list(_Values(trainer, lambda name: name not in known).take())
    kind = type(trainer).__name__
    own = {f"{kind}.{name}": Attributes(trainer, name.__eq__) for name in there}
    return {**own, f"{kind}, later": Attributes(trainer, lambda name: name not in known and name not in there)}


class CallbackAttributes:
    """The plain attributes of callbacks: rank 0's, since clocks are among them. Restored before
    ``on_train_begin``.

    Args:
        trainer: whose callbacks.
    """

    def __init__(self, trainer: Any) -> None:
        own = _named(each for each in trainer.callback_handler.callbacks if not _is_of_libraries(type(each)))
        self._callbacks = {key: _Values(callback) for key, callback in own.items()}
        self._restored: dict[tuple[str, str], str] = {}
        """Digests of what was restored, by callback and attribute."""

    def state_dict(self) -> dict[str, Any]:
        """The attributes, by the callback's class."""
        return {key: values.take() for key, values in self._callbacks.items()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore those of callbacks that are there again."""
        for key in self._callbacks.keys() & state.keys():
            self._callbacks[key].put(state[key])
            self._restored.update({(key, name): digest(value) for name, value in state[key].items()})

    def lost(self) -> list[str]:
        """The attributes that are no longer as they were restored, such as ``Averaging.losses``."""
        now = {(key, name): digest(value) for key, taken in self.state_dict().items() for name, value in taken.items()}
        lost = sorted(place for place, before in self._restored.items() if now.get(place) != before)
        return [f"{key.rpartition(' ')[0]}.{name}" for key, name in lost]


class Clocks:
    """What clocks said in the log: rank 0's. Added to the log that ``TrainingState`` has restored.

    Args:
        state: the host's ``TrainerState``.
    """

    def __init__(self, state: Any) -> None:
        self._state = state

    def state_dict(self) -> dict[str, Any]:
        """The values, by the number of the entry."""
        return {
            str(number): said
            for number, entry in enumerate(self._state.log_history)
            if (said := {name: value for name, value in entry.items() if is_clock(name)})
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Add them."""
        for number, said in state.items():
            if int(number) < len(self._state.log_history):
                self._state.log_history[int(number)].update(said)


class Outcome:
    """A file that tells later launches what has come of a training, should they resume behind it:
    ``train`` then returns what it had returned.

    Args:
        path: the file.
        parts: objects with ``state_dict`` and ``load_state_dict``.
    """

    def __init__(self, path: Path, parts: Sequence[Any]) -> None:
        self._path = path
        self._parts = parts

    def keep(self) -> None:
        """Write the file."""
        content = io.BytesIO()
        torch.save([part.state_dict() for part in self._parts], content)
        write_atomic(self._path, content.getvalue(), durable=True)

    def recall(self) -> None:
        """Restore the parts from the file.

        Raises:
            CheckpointError: it cannot be read.
        """
        try:
            states = torch.load(self._path, weights_only=True)
        except (OSError, RuntimeError, UnpicklingError) as error:
            raise CheckpointError(
                f"{self._path}, with the log of a training that this run has finished, cannot be read: {error}. Without it "
                "train() would return other numbers than it has. Start over, with --fresh (fresh=True)."
            ) from error
        for part, state in zip(self._parts, states, strict=True):
            part.load_state_dict(state)


class _Values:
    """Those attributes of an object that a checkpoint can hold, and that are not data.

    Data is what is large when it is first looked at. What is small then is followed, however long
    it becomes.

    Args:
        owner: the object.
        chosen: whether an attribute is looked at, by name.
    """

    def __init__(self, owner: Any, chosen: Callable[[str], bool] = lambda name: True) -> None:
        self._owner = owner
        self._chosen = chosen
        self._followed: set[str] = set()

    def take(self) -> dict[str, Any]:
        """The values, by name."""
        chosen = {name: value for name, value in vars(self._owner).items() if self._chosen(name)}
        taken = {name: value for name, value in chosen.items() if is_plain(value, is_small=name not in self._followed)}
        self._followed.update(taken)
        return taken

    def put(self, values: dict[str, Any]) -> None:
        """Restore them. Containers stay the same objects, since others may hold them, too."""
        self._followed.update(values)
        held = vars(self._owner)
        for name, value in values.items():
            now = held.get(name)
            if type(now) is not type(value) or now is value or not isinstance(now, (list, deque, dict, set)):
                held[name] = value
                continue
            now.clear()
            if isinstance(now, (list, deque)):
                now.extend(value)
            else:
                now.update(value)


def names_in(kind: type) -> set[str]:
    """The attributes that the methods of a class's bases in transformers and lockstep set. (Other
    names in their code, such as ``metrics``, may be those of a subclass's attributes.)"""
    names: set[str] = set()
    for base in kind.__mro__:
        if _is_of_libraries(base):
            for value in vars(base).values():
                function = getattr(value, "fget", value)  # of a property
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
    """Whether a checkpoint can hold the value: a number, text, a tensor, an array, or a container
    of them.

    Args:
        value: the value.
        is_small: whether it must be small, too.
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
    """The callbacks, by their class, and the number among those of one class."""
    named: dict[str, Any] = {}
    for callback in callbacks:
        kind = type(callback).__qualname__
        number = sum(key.rpartition(" ")[0] == kind for key in named)
        named[f"{kind} {number}"] = callback
    return named


def _number(value: Any) -> Any:
    return value.item() if isinstance(value, Tensor) else value
