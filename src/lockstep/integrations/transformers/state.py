"""What of a training the run's state holds, besides model, optimizer, schedule and positions in data."""

from __future__ import annotations

import dataclasses
import inspect
import io
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from pickle import UnpicklingError
from types import CodeType
from typing import Any

import torch
from torch import Tensor
from transformers.trainer_callback import ExportableState

from lockstep.base.atomic import write_atomic
from lockstep.base.errors import CheckpointError

_OF_PROCESS = ("is_local_process_zero", "is_world_process_zero", "stateful_callbacks", "log_history", "trial_params")
MOST_ITEMS = 1000
"""Items of a list or dict that may be a count or a log of the script's own; larger ones are data."""
_CLOCKS = ("_runtime", "_per_second", "_preparation_time")


def is_clock(name: str) -> bool:
    """Whether a logged value of this name is measured by a clock, or of memory, and so is another each time."""
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
    """What a subclass of the script counts: attributes that the classes of transformers do not know.

    What a script does to them in ``compute_loss``, say, happens once a shard. So they differ on several processes, and the
    comparison of the ranks finds and names them. Each that exists when training begins is registered by itself.

    Args:
        trainer: whose attributes.
        chosen: whether an attribute is among them, by name.
    """

    def __init__(self, trainer: Any, chosen: Callable[[str], bool]) -> None:
        self._trainer = trainer
        self._chosen = chosen

    def state_dict(self) -> dict[str, Any]:
        """The attributes, by name."""
        return {name: value for name, value in vars(self._trainer).items() if self._chosen(name) and is_plain(value)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore them."""
        vars(self._trainer).update(state)


def attributes_of(trainer: Any) -> dict[str, Attributes]:
    """Those of a trainer, by the names under which they are registered."""
    known = names_in(type(trainer))
    there = [name for name, value in vars(trainer).items() if name not in known and is_plain(value)]
    kind = type(trainer).__name__
    own = {f"{kind}.{name}": Attributes(trainer, name.__eq__) for name in there}
    return {**own, f"{kind}, later": Attributes(trainer, lambda name: name not in known and name not in there)}


class CallbackAttributes:
    """The plain attributes of callbacks: rank 0's, since clocks are among them. Restored before ``on_train_begin``.

    Args:
        trainer: whose callbacks.
    """

    def __init__(self, trainer: Any) -> None:
        self._callbacks = _named(each for each in trainer.callback_handler.callbacks if not _is_of_libraries(type(each)))

    def state_dict(self) -> dict[str, Any]:
        """The attributes, by the callback's class."""
        return {
            key: {name: value for name, value in vars(callback).items() if is_plain(value)}
            for key, callback in self._callbacks.items()
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore those of callbacks that are there again."""
        for key in self._callbacks.keys() & state.keys():
            vars(self._callbacks[key]).update(state[key])


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
    """A file that tells later launches what has come of a training, should they resume behind it: ``train`` then returns what
    it had returned.

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


def names_in(kind: type) -> set[str]:
    """All names that the methods of a class use, among them the attributes that they set."""
    names: set[str] = set()
    for base in kind.__mro__:
        if _is_of_libraries(base):
            for value in vars(base).values():
                function = getattr(value, "fget", value)  # of a property
                code = getattr(inspect.unwrap(function), "__code__", None) if callable(function) else None
                names.update(*(_names(code),) if code is not None else ())
    return names


def _names(code: CodeType) -> set[str]:
    inner = [_names(each) for each in code.co_consts if isinstance(each, CodeType)]
    return set(code.co_names).union(*inner)


def is_plain(value: Any) -> bool:
    """Whether a checkpoint can hold the value, and it is not data: a number, text, a tensor, or a small tree of them."""
    if isinstance(value, (list, tuple, dict)):
        items = value.values() if isinstance(value, dict) else value
        is_keyed = not isinstance(value, dict) or all(isinstance(key, str) for key in value)
        return type(value) in (list, tuple, dict) and is_keyed and len(value) <= MOST_ITEMS and all(map(is_plain, items))
    return value is None or type(value) in (bool, int, float, str, Tensor)


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
