"""What ``team.register`` takes: the script's own things that belong to the run's state."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from lockstep.data.states import has_state, is_generator, put_state, take_state
from lockstep.errors import MismatchError, UsageError


def check_registered(name: str, thing: Any) -> None:
    """Make sure that something can be registered.

    Raises:
        UsageError: nothing could be saved of it, or nothing put back.
    """
    if isinstance(thing, (Tensor, list, dict)) or is_generator(thing) or has_state(thing):
        return
    raise UsageError(
        f"register({name!r}, ...): a {type(thing).__name__} cannot be given its state back. Register a tensor, a list or a "
        "dict (they are filled again), a random generator, or an object with state_dict() and load_state_dict()."
    )


def state_of_registered(thing: Any) -> Any:
    """Its state: a tree of plain values and tensors."""
    if isinstance(thing, Tensor):
        return thing.detach()
    return thing if isinstance(thing, (list, dict)) and not has_state(thing) else take_state(thing)


@torch.no_grad()
def restore_registered(name: str, thing: Any, state: Any) -> None:
    """Give it that state, in place.

    Raises:
        MismatchError: the state is of a thing of another kind, or of a tensor of another shape.
    """
    if not isinstance(thing, (Tensor, list, dict)) or has_state(thing):
        put_state(thing, state)
        return
    now, was = _kind(thing), _kind(state)
    if now != was:
        raise MismatchError(
            f"register({name!r}, ...): {now} is registered now, and {was} was when the checkpoint was cut, so it cannot be "
            "put back. Change it back, or start a new run with --fresh (fresh=True)."
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
