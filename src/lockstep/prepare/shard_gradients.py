"""Gradients while shards run: incomplete, and computed by ``team.backward`` alone."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn

from lockstep.comm.dtensors import is_dtensor
from lockstep.errors import UsageError


class ShardGradients:
    """Guards the gradients inside ``batch.shards``.

    Args:
        parameters: of all prepared models, with their names.
        is_plain: whether a step is that of a plain single-device script, with the same ``.grad``.
    """

    def __init__(self, parameters: dict[nn.Parameter, str], *, is_plain: bool) -> None:
        self._parameters = parameters
        self._is_plain = is_plain
        self.marked: list[nn.Parameter] = []
        """The first parameter of each model, whose ``.grad`` is a NotYet while gradients are incomplete."""

    def add_model(self, model: nn.Module) -> None:
        """Guard a model's gradients."""
        first = next(model.parameters())
        if not self._is_plain and first.requires_grad and not is_dtensor(first):
            self.marked.append(first)

    def before_backward(self) -> None:
        """Remove the placeholders of ``after_backward``."""
        for parameter in self.marked:
            if isinstance(parameter.grad, NotYet):
                parameter.grad = None

    def after_backward(self) -> None:
        """Put placeholders for gradients after a shard's backward pass, which raise an error when used."""
        for parameter in self.marked:
            if parameter.grad is None:
                parameter.grad = NotYet.like(parameter)

    def end_shard(self, step: int, num_calls: int) -> None:
        """Check after a micro-step that all gradients were computed by ``team.backward``.

        Raises:
            UsageError: some were not.
        """
        if self._is_plain and num_calls:
            return
        self.before_backward()
        for parameter, name in self._parameters.items():
            if parameter.grad is not None:
                raise UsageError(
                    f"step {step}: {name!r} has a gradient that was not computed by team.backward(loss): it would not be "
                    "combined with those of the other shards, so every process would train a different model. Call "
                    "team.backward(loss) in place of loss.backward()."
                )


class NotYet(Tensor):
    """A placeholder in ``.grad`` after a backward pass inside ``batch.shards``. Any operation on it raises UsageError."""

    @staticmethod
    def like(parameter: Tensor) -> NotYet:
        """A placeholder of a parameter's shape, which takes no memory."""
        return parameter.detach().new_zeros(()).expand(parameter.shape).as_subclass(NotYet)

    @classmethod
    def __torch_function__(
        cls, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if getattr(func, "__name__", "") in ("__get__", "__set__"):  # its shape, say
            return super().__torch_function__(func, types, args, kwargs or {})  # type: ignore[no-untyped-call]
        raise UsageError(
            "a gradient was used inside batch.shards (clipped, scaled, printed?): it is incomplete there, the sum over this "
            "process's shards so far. Use gradients after the loop over batch.shards, where they are those of the whole "
            "global batch, and the same on every rank."
        )
