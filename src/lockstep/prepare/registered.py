"""Adapters for objects given to ``team.register``."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
from torch import Tensor
from typing_extensions import override

from lockstep.base.errors import MismatchError, UsageError
from lockstep.data.states import has_state, is_generator, put_state, take_state
from lockstep.prepare.contents import Content
from lockstep.prepare.per_shard import PerShard


class StatefulContent(Content):
    """An object with ``state_dict`` and ``load_state_dict``, or a random generator."""

    @override
    def state_dict(self) -> Any:
        """A copy."""
        return take_state(self.target)

    @override
    def load_state_dict(self, state: Any, weights: Mapping[str, Tensor] | None = None) -> None:
        put_state(self.target, state)


class ShardsContent(StatefulContent):
    """Values per shard, which differ between ranks, so none are compared."""

    @override
    def compared(self) -> Iterator[tuple[str, Any]]:
        return iter(())


class PlainContent(Content):
    """A tensor, a list or a dict: restored in place."""

    @override
    def state_dict(self) -> Any:
        return self.target.detach() if isinstance(self.target, Tensor) else self.target

    @torch.no_grad()
    @override
    def load_state_dict(self, state: Any, weights: Mapping[str, Tensor] | None = None) -> None:
        """Raises:
        MismatchError: the state is that of an object of another kind, or of a tensor of another shape.
        """
        target = self.target
        now, was = _kind(target), _kind(state)
        if now != was:
            raise MismatchError(
                f"register({self.name!r}, ...): {now} is registered now, but {was} was when the checkpoint was saved, so it "
                "cannot be restored. Change it back, or start a new run with --fresh (fresh=True)."
            )
        if isinstance(target, Tensor):
            target.copy_(state)
        elif isinstance(target, list):
            target[:] = state
        else:
            target.clear()
            target.update(state)


def _kind(value: Any) -> str:
    if isinstance(value, Tensor):
        return f"a tensor of shape {tuple(value.shape)}, {str(value.dtype).removeprefix('torch.')}"
    return next((f"a {kind.__name__}" for kind in (list, dict) if isinstance(value, kind)), f"a {type(value).__name__}")


REGISTERED: tuple[tuple[Callable[[Any], bool], type[Content]], ...] = (
    (lambda target: isinstance(target, PerShard), ShardsContent),
    (lambda target: has_state(target) or is_generator(target), StatefulContent),
    (lambda target: isinstance(target, (Tensor, list, dict)), PlainContent),
)
"""The kinds of objects that can be registered: the first row whose function accepts an object has its adapter."""


def registered_content(name: str, target: Any) -> Content:
    """The adapter for a registered object.

    Raises:
        UsageError: its state cannot be saved and restored.
    """
    for accepts, kind in REGISTERED:
        if accepts(target):
            content = kind(target)
            content.name = name
            return content
    raise UsageError(
        f"register({name!r}, ...): a {type(target).__name__} has no state that can be restored. Register a tensor, a list or a "
        "dict (restored in place), a random generator, or an object with state_dict() and load_state_dict()."
    )
