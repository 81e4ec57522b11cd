"""All that belongs to a run: what its checkpoints hold, what it resumes with, and in what its ranks must agree."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from torch import Tensor

from lockstep.checkpoint.weights import weights_name
from lockstep.data.loader import PreparedLoader
from lockstep.prepare.contents import Content, Weights, content_of
from lockstep.prepare.registered import registered_content


class RunState:
    """Everything whose state is the run's. It grows as the script prepares and registers more."""

    def __init__(self) -> None:
        self.objects: list[Content] = []
        """What ``team.prepare`` was given, less loaders, and the run's own loss scaler."""
        self.loaders: list[PreparedLoader] = []
        self.registered: dict[str, Content] = {}
        self.best: float | None = None
        """The best value that ``Team.best`` was given."""

    def keep(self, thing: Any) -> None:
        """An object of ``team.prepare``: from now on its state is the run's."""
        content = content_of(thing)
        number = 1 + sum(other.kind == content.kind for other in self.objects)
        content.name = content.kind if number == 1 else f"{content.kind}-{number}"
        self.objects.append(content)

    def register(self, name: str, thing: Any) -> None:
        """Something of ``team.register``. See ``registered_content`` for errors."""
        self.registered[name] = registered_content(name, thing)

    def describe(self) -> dict[str, Any]:
        """What a manifest says of all this."""
        return {
            "objects": self.describe_objects(),
            "registered": list(self.registered),
            "loaders": [loader.describe() for loader in self.loaders],
        }

    def describe_objects(self) -> list[dict[str, Any]]:
        """What a manifest says of the objects."""
        return [_record(content) for content in self.objects]

    def weights(self) -> dict[str, Weights]:
        """The weights of all models, by the name of the file that they go to."""
        taken = ((content.name, content.weights()) for content in self.objects)
        return {weights_name(name): weights for name, weights in taken if weights is not None}

    def state_dict(self) -> dict[str, Any]:
        """The rest: a tree of plain values and tensors, which are the objects' own. Every rank must call it."""
        return {
            "objects": [content.state_dict() for content in self.objects],
            "loaders": [loader.state() for loader in self.loaders],
            "registered": {name: content.state_dict() for name, content in self.registered.items()},
            "best": self.best,
        }

    def compared(self) -> Iterator[tuple[str, Tensor | Any]]:
        """What must be the same on all ranks, with words that name it: tensors, and trees of plain values and tensors."""
        for content in self.objects:
            yield from ((f"{what} of {content.name}", value) for what, value in content.compared())
        for name, content in self.registered.items():
            yield from ((f"the registered {name!r}", value) for _, value in content.compared())


def _record(content: Content) -> dict[str, Any]:
    record = {"kind": content.kind, "name": content.name, "type": type(content.target).__name__}
    if content.kind in ("model", "average"):
        record["file"] = weights_name(content.name)
    options = {key: repr(value) for key, value in content.options_at_birth.items()}
    return {**record, "lines": content.describe(), "options": options}
