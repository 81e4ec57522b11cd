"""What ``team.register`` takes: the script's own things that belong to the run's state."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
from torch import Tensor

from lockstep.data.states import has_state, is_generator, put_state, take_state
from lockstep.errors import MismatchError, UsageError
from lockstep.prepare.contents import Content
from lockstep.prepare.per_shard import PerShard


class StatefulContent(Content):
    """Of an object with ``state_dict`` and ``load_state_dict``, or of a random generator."""

    def state_dict(self) -> Any:
        """See Content. A copy."""
        return take_state(self.thing)

    def load_state_dict(self, state: Any, weights: Mapping[str, Tensor] | None = None) -> None:
        """See Content."""
        put_state(self.thing, state)


class ShardsContent(StatefulContent):
    """Of values that each shard has of its own, which no two ranks have alike."""

    def compared(self) -> Iterator[tuple[str, Any]]:
        """See Content."""
        return iter(())


class PlainContent(Content):
    """Of a tensor, a list or a dict: filled again in place."""

    def state_dict(self) -> Any:
        """See Content."""
        return self.thing.detach() if isinstance(self.thing, Tensor) else self.thing

    @torch.no_grad()
    def load_state_dict(self, state: Any, weights: Mapping[str, Tensor] | None = None) -> None:
        """See Content.

        Raises:
            MismatchError: the state is of a thing of another kind, or of a tensor of another shape.
        """
        thing = self.thing
        now, was = _kind(thing), _kind(state)
        if now != was:
            raise MismatchError(
                f"register({self.name!r}, ...): {now} is registered now, and {was} was when the checkpoint was saved, so it "
                "cannot be put back. Change it back, or start a new run with --fresh (fresh=True)."
            )
        if isinstance(thing, Tensor):
            thing.copy_(state)
        elif isinstance(thing, list):
            thing[:] = state
        else:
            thing.clear()
            thing.update(state)


def _kind(thing: Any) -> str:
    if isinstance(thing, Tensor):
        return f"a tensor of shape {tuple(thing.shape)}, {str(thing.dtype).removeprefix('torch.')}"
    return next((f"a {kind.__name__}" for kind in (list, dict) if isinstance(thing, kind)), f"a {type(thing).__name__}")


REGISTERED: tuple[tuple[Callable[[Any], bool], type[Content]], ...] = (
    (lambda thing: isinstance(thing, PerShard), ShardsContent),
    (lambda thing: has_state(thing) or is_generator(thing), StatefulContent),
    (lambda thing: isinstance(thing, (Tensor, list, dict)), PlainContent),
)
"""What can be registered: the first row that knows a thing is its adapter."""


def registered_content(name: str, thing: Any) -> Content:
    """The part of the run's state of something that is registered.

    Raises:
        UsageError: nothing could be saved of it, or nothing put back.
    """
    for knows, kind in REGISTERED:
        if knows(thing):
            content = kind(thing)
            content.name = name
            return content
    raise UsageError(
        f"register({name!r}, ...): a {type(thing).__name__} cannot be given its state back. Register a tensor, a list or a "
        "dict (they are filled again), a random generator, or an object with state_dict() and load_state_dict()."
    )
