"""``torch.compile`` as a proposal: what it takes, what it brings, and why not if it fails."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import nn

from lockstep.config import STRATEGIES
from lockstep.prepare.contents import innermost
from lockstep.prepare.model import unwrap
from lockstep.tuning.numerics import Change
from lockstep.tuning.session import Session
from lockstep.tuning.windows import Windows


def compiles(session: Session, _: Windows) -> list[Change]:
    """The forward pass of each model, compiled with PyTorch's defaults and a kernel for each shape."""
    models = [unwrap(model) for model in session.models]
    if not models:
        return []
    if any(innermost(model) is not model for model in models):
        return [Change(name="compile", why_not="the script compiles its model already")]
    why_not = "" if STRATEGIES[session.config.strategy].calls_model else f"not tried with strategy {session.config.strategy}"
    forwards = [Compiled(model) for model in models]

    @contextlib.contextmanager
    def made() -> Iterator[None]:
        with contextlib.ExitStack() as stack:
            for forward in forwards:
                stack.enter_context(forward.in_place())
            yield

    def failure() -> str:
        return next((f"it fails: {forward.failure}" for forward in forwards if forward.failure), "")

    def remark() -> str:
        most = max(forward.num_graphs for forward in forwards)
        return f"in {most} graphs, as parts of the model cannot be compiled" if most > 1 else ""

    how = "model = torch.compile(model, dynamic=False) before team.prepare()"
    return [Change(name="compile", how=how, made=made, why_not=why_not, remark=remark, failure=failure)]


class Compiled:
    """A model's forward pass, compiled when it is first run. If compiling fails, the model runs as before.

    Args:
        model: the user's.
        backend: turns a graph and its inputs into a callable.
    """

    def __init__(self, model: nn.Module, backend: Callable[..., Any] | None = None) -> None:
        self._model = model
        self._eager = model.forward
        self._backend = backend
        self._compiled: Callable[..., Any] = torch.compile(model.forward, dynamic=False, backend=self._count)
        self.num_graphs = 0
        """How many pieces the model was compiled in, for batches of the first size."""
        self.failure = ""
        """Why it failed; empty: it did not."""
        self._has_run = False

    @contextlib.contextmanager
    def in_place(self) -> Iterator[None]:
        """Within this context the model runs it."""
        own = vars(self._model).get("forward")
        self._model.forward = self._run
        try:
            yield
        finally:
            del self._model.forward
            if own is not None:
                self._model.forward = own

    def _run(self, *args: Any, **kwargs: Any) -> Any:
        if not self.failure:
            try:
                output = self._compiled(*args, **kwargs)
                self._has_run = True
                return output
            except Exception as error:  # of any kind: no compiler, an operation that it does not know, ...
                if self._has_run:
                    raise
                self.failure = _first_line(error)
        return self._eager(*args, **kwargs)

    def _count(self, graph: torch.fx.GraphModule, inputs: list[torch.Tensor]) -> Callable[..., Any]:
        if not self._has_run:  # later ones are for batches of other sizes
            self.num_graphs += 1
        backend = self._backend or _inductor()
        compiled: Callable[..., Any] = backend(graph, inputs)
        return compiled


def _inductor() -> Callable[..., Any]:
    from torch._dynamo import lookup_backend  # slow; PyTorch's documentation of custom backends imports it from there

    backend: Callable[..., Any] = lookup_backend("inductor")
    return backend


def _first_line(error: BaseException) -> str:
    error = getattr(error, "inner_exception", error)  # the backend's own, where the compiler reports that it failed
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return f"{type(error).__name__}{f': {lines[0]}' if lines else ''}"[:200]
