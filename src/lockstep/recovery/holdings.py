"""All whose state belongs to a run."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

from lockstep.checkpoint.weights import weights_name
from lockstep.data.loader import PreparedLoader
from lockstep.prepare.contents import kind_of, lines_of, take_out


@dataclass
class Holdings:
    """All whose state is saved."""

    objects: list[Any] = field(default_factory=list)
    """What ``team.prepare`` was given, less loaders."""
    loaders: list[PreparedLoader] = field(default_factory=list)
    registered: dict[str, Any] = field(default_factory=dict)
    options: dict[int, dict[str, Any]] = field(default_factory=dict)
    """By number of the object: the options that an optimizer or a schedule had when it was prepared."""

    def names(self) -> list[str]:
        """A name for each object: its kind, with a number from the second on."""
        found: list[str] = []
        counts: dict[str, int] = {}
        for thing in self.objects:
            kind = kind_of(thing)
            counts[kind] = counts.get(kind, 0) + 1
            found.append(kind if counts[kind] == 1 else f"{kind}-{counts[kind]}")
        return found

    def describe(self) -> list[dict[str, Any]]:
        """What a manifest says of the objects."""
        return [self._describe_one(number, name) for number, name in enumerate(self.names())]

    def weights(self) -> dict[str, dict[str, Tensor]]:
        """The weights of all models, by the name of the file that they go to."""
        taken = ((name, take_out(thing)[0]) for name, thing in zip(self.names(), self.objects, strict=True))
        return {weights_name(name): own for name, own in taken if own is not None}

    def _describe_one(self, number: int, name: str) -> dict[str, Any]:
        thing = self.objects[number]
        options = {key: repr(value) for key, value in self.options.get(number, {}).items()}
        record = {"kind": kind_of(thing), "name": name, "type": type(thing).__name__}
        if record["kind"] in ("model", "average"):
            record["file"] = weights_name(name)
        return {**record, "lines": lines_of(thing), "options": options}
