"""Digests of what every layer is given and returns, to find the first one that computes something else."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import nn
from typing_extensions import override

from lockstep.base.digest import digest
from lockstep.listener import Listener, Stage
from lockstep.plan.shards import MicroStep
from lockstep.tools.verify.trace.subjects import Subjects


class Layers(Listener):
    """Follows the layers of the prepared models. Must precede the recorder.

    Args:
        subjects: the prepared objects.
    """

    stage = Stage.EARLY

    def __init__(self, subjects: Subjects) -> None:
        self._subjects = subjects
        self._in_shard = False
        self._inputs: list[str] = []
        """Of the layers whose forward passes are running."""
        self._done: list[list[str]] = []

    @override
    def prepared(self, item: Any) -> None:
        prefix = self._subjects.prefix_of(item)
        if prefix is not None:
            for name, module in item.named_modules():
                self._follow(prefix + name or "the model", module)

    def _follow(self, name: str, layer: nn.Module) -> None:
        # Plain functions: copying the model, to average its weights, copies its hooks, and must not copy this object.
        def enter(module: nn.Module, arguments: Any, options: Mapping[str, Any]) -> None:
            self._inputs.append(digest((arguments, options)))

        def leave(module: nn.Module, arguments: Any, options: Mapping[str, Any], output: Any) -> None:
            inputs = self._inputs.pop() if self._inputs else ""
            if self._in_shard:
                self._done.append([name, type(module).__name__, inputs, digest(output)])

        layer.register_forward_pre_hook(enter, with_kwargs=True)
        layer.register_forward_hook(leave, with_kwargs=True, always_call=True)

    @override
    def begin_shard(self, micro: MicroStep) -> None:
        self._in_shard, self._inputs, self._done = True, [], []

    @override
    def drop(self) -> None:
        self._in_shard = False

    def take(self) -> list[list[str]]:
        """Those of the shard that has just ended, as ``layers`` in the trace."""
        done, self._done, self._in_shard = self._done, [], False
        return done
