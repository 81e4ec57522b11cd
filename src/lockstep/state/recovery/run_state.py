"""The state of a run: what its checkpoints hold, what it resumes with, and what must be the same on all its ranks."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from torch import Tensor

from lockstep.data.loader import PreparedLoader
from lockstep.prepare.contents import Content, Weights, content_of
from lockstep.prepare.registered import registered_content
from lockstep.state.checkpoint.manifest import Object
from lockstep.state.checkpoint.parts import deal_out
from lockstep.state.checkpoint.tree import take_apart
from lockstep.state.checkpoint.weights import weights_name


class RunState:
    """All objects whose state belongs to the run. It grows as the script prepares and registers objects."""

    def __init__(self) -> None:
        self.objects: list[Content] = []
        """The objects given to ``team.prepare``, except loaders, and the run's own loss scaler."""
        self.loaders: list[PreparedLoader] = []
        self.registered: dict[str, Content] = {}
        self.script_seed: int | None = None
        """That of a ``torch.manual_seed`` called after ``join``; None: it was not called."""
        self.best: float | None = None
        """The best metric given to ``Team.best``."""
        self.best_epoch = -1
        """The epoch in which it was given; -1: there is none."""

    def keep(self, target: Any) -> None:
        """Add an object of ``team.prepare``."""
        content = content_of(target)
        number = 1 + sum(earlier.kind == content.kind for earlier in self.objects)
        content.name = content.kind if number == 1 else f"{content.kind}-{number}"
        self.objects.append(content)

    def register(self, name: str, target: Any) -> None:
        """Add an object of ``team.register``. See ``registered_content`` for errors."""
        self.registered[name] = registered_content(name, target)

    def describe(self) -> dict[str, Any]:
        """The description for a manifest."""
        return {
            "objects": self.describe_objects(),
            "registered": list(self.registered),
            "loaders": [loader.describe() for loader in self.loaders],
        }

    def describe_objects(self) -> list[Object]:
        """The description of the objects for a manifest."""
        return [_record(content) for content in self.objects]

    def weights(self) -> dict[str, Weights]:
        """The weights of all models, by the name of their file."""
        named = ((content.name, content.weights()) for content in self.objects)
        return {weights_name(name): weights for name, weights in named if weights is not None}

    def divide(self, world_size: int) -> tuple[list[dict[str, Weights]], dict[str, Any]]:
        """For each rank the files that it writes of a checkpoint, with their tensors, and the JSON value of ``state.json``; the
        same on every rank. Rank 0 writes the weights, and the rest goes to the ranks with least to write. Every rank must call
        it."""
        tensors: dict[str, Tensor] = {}

        def apart(tree: Any, name: str) -> Any:
            value, parts = take_apart(tree, name)
            tensors.update(parts)
            return value

        weights = self.weights()
        state = {
            "objects": [apart(content.state_dict(), content.name) for content in self.objects],
            "loaders": [apart(loader.state(), f"loader-{number}") for number, loader in enumerate(self.loaders, 1)],
            "registered": apart({name: content.state_dict() for name, content in self.registered.items()}, "registered"),
            "best": apart(self.best, "best"),
            "best_epoch": self.best_epoch,
        }
        held = [sum(tensor.nbytes for file in weights.values() for tensor in file.values())] + [0] * (world_size - 1)
        parts: list[dict[str, Weights]] = [weights, *({} for _ in held[1:])]
        for rank, names in enumerate(deal_out({name: tensor.nbytes for name, tensor in tensors.items()}, held)):
            if names:
                parts[rank][f"state-{rank}.safetensors"] = {name: tensors[name] for name in names}
        return parts, state

    def compared(self) -> Iterator[tuple[str, str, Tensor | Any]]:
        """The object, the part of its state, and the value, for all that must be the same on all ranks: a tensor, or a tree of
        plain values and tensors."""
        for content in self.objects:
            yield from ((content.name, part, value) for part, value in content.compared())
        for name, content in self.registered.items():
            yield from ((f"the registered {name!r}", part, value) for part, value in content.compared())


def _record(content: Content) -> Object:
    record: Object = {
        "kind": content.kind,
        "name": content.name,
        "type": type(content.target).__name__,
        "lines": content.describe(),
        "options": {key: repr(value) for key, value in content.options_at_birth.items()},
    }
    if content.kind in ("model", "average"):
        record["file"] = weights_name(content.name)
    return record
