"""Observes the user's code, for evidence of what could make two runs differ. Slow: for ``trace="calls"``."""

from __future__ import annotations

import os
import sys
import types
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from torch import nn
from typing_extensions import override

from lockstep.base.digest import digest
from lockstep.base.tracebacks.frames import owner
from lockstep.listener import Listener, Stage
from lockstep.plan.shards import MicroStep
from lockstep.tools.verify.diagnosis.calls import call_by_frame, functions_in_c, functions_in_python
from lockstep.tools.verify.diagnosis.evidence import Evidence
from lockstep.tools.verify.diagnosis.generators import Generators
from lockstep.tools.verify.diagnosis.generators import describe as describe_generator
from lockstep.tools.verify.diagnosis.locations import Location, file_of, is_fetching, location_of
from lockstep.tools.verify.diagnosis.state import ObjectState, Weights, describe_change
from lockstep.tools.verify.trace.subjects import Subjects


class Witness(Listener):
    """Observes a process, and the loader workers forked from it, until the run ends: every call, with ``sys.setprofile``, and
    every line of the user's code, with ``sys.settrace``.

    Args:
        subjects: the prepared objects.
        evidence: to write to.
    """

    stage = Stage.LATE

    def __init__(self, subjects: Subjects, evidence: Evidence) -> None:
        self._subjects = subjects
        self._evidence = evidence
        self._pid = os.getpid()
        self._generators = Generators()
        self._num_shards = 0
        self._last: Location | None = None
        self._layers: list[list[str]] = []
        self._stack: list[tuple[str, ObjectState, str]] = []
        """The layers whose forward passes are running: name, state before, digest of the inputs."""
        self._fetched: ObjectState | None = None
        self._weights = Weights()
        self._kept: list[ObjectState] = []
        self._functions_in_c = functions_in_c()
        self._functions_in_python = functions_in_python()
        sys.setprofile(self._profile)
        sys.settrace(self._trace)
        frame = sys._getframe()
        while frame.f_back is not None:  # the frames of the script, which are running already
            frame = frame.f_back
            if owner(frame.f_code.co_filename) == "user":
                self._write("file", "", (frame.f_code.co_filename, None), "outside")
                frame.f_trace = self._follow

    # Prepared objects

    def prepared(self, item: Any) -> None:
        """Record the inputs and outputs of each layer of a model, and changes of its state."""
        prefix = self._subjects.prefix_of(item)
        if prefix is None:
            return
        self._weights.watch(prefix, item)
        for name, module in item.named_modules():
            shown = prefix + name or "the model"
            if owner(file_of(type(module))) == "user":
                self._keep(module, _layer(shown))
            self._watch_layer(shown, module)

    def _watch_layer(self, name: str, layer: nn.Module) -> None:
        # Plain functions: copying the model, to average its weights, copies its hooks, and must not copy the witness.
        def enter(module: nn.Module, arguments: Any, options: Mapping[str, Any]) -> None:
            watched = ObjectState(module, _layer(name))
            watched.remember()
            self._stack.append((name, watched, digest((arguments, options))))

        def leave(module: nn.Module, arguments: Any, options: Mapping[str, Any], output: Any) -> None:
            if not self._stack:
                return
            name, watched, inputs = self._stack[-1]
            self._note_changes(watched, self._evidence.scope)
            self._stack.pop()
            if self._evidence.in_shard:
                self._layers.append([name, type(module).__name__, inputs, digest(output)])

        layer.register_forward_pre_hook(enter, with_kwargs=True)
        layer.register_forward_hook(leave, with_kwargs=True, always_call=True)

    def prepared_loader(self, batches: Iterable[Any]) -> None:
        """Record changes of a data set's state while samples are fetched (in this process)."""
        dataset = getattr(batches, "dataset", batches)
        name = f"the data set {type(dataset).__name__}"
        self._fetched = ObjectState(dataset, name)
        self._keep(dataset, name)

    def _keep(self, holder: Any, name: str) -> None:
        kept = ObjectState(holder, name)
        kept.remember()
        self._kept.append(kept)

    # The loop

    @override
    def begin_pass(self, epoch: int, num_epochs: int | None, num_steps: int | None, done: int) -> None:
        self._generators.find(thoroughly=True)
        self._generators.refresh()
        self._begin_fetching()

    @override
    def begin_step(self, step: int) -> None:
        for kept in self._kept:
            if self._evidence.step:  # before the first one, the script was still setting up
                self._note_changes(kept, "outside", "kept")
            kept.remember()

    @override
    def begin_shard(self, micro: MicroStep) -> None:
        """Its samples have been fetched."""
        self._layers = []
        self._num_shards += 1
        if self._num_shards < 16 or self._num_shards & (self._num_shards - 1) == 0:
            self._generators.find(thoroughly=False)
        self._generators.refresh()
        self._weights.remember()
        if self._fetched is not None:
            self._note_changes(self._fetched, "data")

    @override
    def end_shard(self) -> None:
        if self._evidence.in_shard:
            self._note_weights(thoroughly=True)
            self._begin_fetching()
        self._stack.clear()

    drop = end_shard

    def _begin_fetching(self) -> None:
        if self._fetched is not None:
            self._fetched.remember()

    @override
    def end_run(self, step: int, *, failed: bool) -> None:
        """Stop observing."""
        sys.setprofile(None)
        sys.settrace(None)

    # Layers

    def take_layers(self) -> list[list[str]]:
        """The inputs and outputs of the layers in this shard, as ``layers`` in the trace."""
        layers, self._layers = self._layers, []
        return layers

    def _note_changes(self, watched: ObjectState, scope: str, kind: str = "state") -> None:
        for change in watched.changes():
            said = f"{change} of {watched.name}" if "." not in change else change
            self._write(kind, said, describe_change(watched.holder, change), scope)

    # Calls

    def _profile(self, frame: types.FrameType, event: str, argument: Any) -> None:
        if event == "c_call":
            try:
                call = self._functions_in_c.get(argument)
            except TypeError:  # a method of an unhashable object
                return
            if call is not None:
                self._note(*call, frame)
        elif event == "call":
            call = self._functions_in_python.get(frame.f_code) or call_by_frame(frame)
            if call is not None:
                self._note(*call, frame.f_back)

    def _trace(self, frame: types.FrameType, event: str, argument: Any) -> Callable[..., Any] | None:
        """Called for every call. The user's own code is traced line by line, to find the line that draws from a generator."""
        file = frame.f_code.co_filename
        if owner(file) != "user":
            return None
        self._write("file", "", (file, None), "outside")
        if location_of(frame.f_back) is None:
            self._generators.refresh()  # drawn by lockstep or PyTorch until now: by a sampler, say
        return self._follow

    def _follow(self, frame: types.FrameType, event: str, argument: Any) -> Callable[..., Any]:
        for generator in self._generators.drawn():
            if self._last is not None:
                self._write("generator", describe_generator(generator), self._last, self._scope_of(frame))
        if self._evidence.in_shard and os.getpid() == self._pid:
            self._note_weights(thoroughly=False)
        if event == "return":
            self._last = location_of(frame.f_back)
        else:
            self._last = frame.f_code.co_filename, frame.f_lineno
        return self._follow

    def _note_weights(self, *, thoroughly: bool) -> None:
        for name in self._weights.changes(thoroughly=thoroughly):
            self._write("weights", f"the weight {name} changes", self._last or (None, None), "shard")

    def _scope_of(self, frame: types.FrameType | None) -> str:
        return "data" if os.getpid() != self._pid or is_fetching(frame) else self._evidence.scope

    def _note(self, kind: str, what: str, frame: types.FrameType | None) -> None:
        location = location_of(frame)
        if location is None:
            return
        scope = self._scope_of(frame)
        if kind != "collective" or scope != "outside":  # outside of shards, collectives are fine
            self._write(kind, what, location, scope)

    def _write(self, kind: str, what: str, location: tuple[str | None, int | None], scope: str) -> None:
        self._evidence.write(kind, what, location, scope, self._stack[-1][0] if self._stack else None)


def _layer(name: str) -> str:
    return name if name == "the model" else f"layer {name}"
