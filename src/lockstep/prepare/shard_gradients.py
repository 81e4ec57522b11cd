"""Gradients while shards run: incomplete, and computed by ``team.backward`` alone."""

from __future__ import annotations

from typing import Any, NoReturn

from torch import Tensor, nn
from torch.autograd.graph import Node, get_gradient_edge

from lockstep.base.errors import UsageError
from lockstep.plan.shards import MicroStep
from lockstep.world.comm.dtensors import is_dtensor


class ShardGradients:
    """Guards the gradients inside ``batch.shards``.

    Args:
        parameters: of all prepared models, with their names.
        is_plain: whether a step is that of a plain single-device script, with the same ``.grad``.
    """

    def __init__(self, parameters: dict[nn.Parameter, str], *, is_plain: bool) -> None:
        self._parameters = parameters
        self._is_plain = is_plain
        self._marked: list[nn.Parameter] = []
        """The first parameter of each model, whose ``.grad`` is a NotYet while gradients are incomplete."""
        self._accumulating: list[Node] = []
        """Autograd's nodes that write the gradients of first parameters: they keep a hook only while they exist."""
        self.micro: MicroStep | None = None
        """The running micro-step, which the loop sets."""
        self._is_running = False
        """Whether ``team.backward`` runs."""
        self.have_been = False
        """Whether any parameter is known to have had a gradient when an optimizer stepped."""

    def add_model(self, model: nn.Module) -> None:
        """Guard a model's gradients."""
        name, first = next(model.named_parameters(), ("", None))  # a loss module may have buffers only
        if first is None or not first.requires_grad or is_dtensor(first):
            return
        if not self._is_plain:
            self._marked.append(first)
        node = get_gradient_edge(first).node  # runs in Tensor.backward only: autograd.grad() and inputs= pass it by
        self._accumulating.append(node)

        def check(_: Any) -> None:
            if self.micro is not None and not self._is_running:
                self._refuse(name, self.micro)

        node.register_prehook(check)

    def before_backward(self, call: int) -> None:
        """Begin the backward pass of ``team.backward``.

        Args:
            call: its number within the micro-step, from 0.

        Raises:
            UsageError: there are gradients already that it did not compute.
        """
        if self._marked:
            self._remove_placeholders()
        if not self._is_plain or call == 0:
            self._check_none()
        self._is_running = True

    def after_backward(self) -> None:
        """End the backward pass: put placeholders for gradients, which raise an error when used."""
        self._is_running = False
        for parameter in self._marked:
            if parameter.grad is None:
                parameter.grad = NotYet.like(parameter)

    def end_shard(self, num_calls: int) -> None:
        """End the micro-step.

        Args:
            num_calls: of ``team.backward`` in the micro-step.

        Raises:
            UsageError: there are gradients that ``team.backward`` did not compute.
        """
        self._is_running = False
        if not (self._is_plain and num_calls):
            self._remove_placeholders()
            self._check_none()
        self.micro = None

    def drop(self) -> None:
        """The phase was left."""
        self.micro, self._is_running = None, False
        self._remove_placeholders()

    def _remove_placeholders(self) -> None:
        for parameter in self._marked:
            if isinstance(parameter.grad, NotYet):
                parameter.grad = None

    def _check_none(self) -> None:
        for parameter in self._parameters:
            if parameter.grad is not None:
                assert self.micro is not None
                self._refuse(self._parameters[parameter], self.micro)

    def _refuse(self, name: str, micro: MicroStep) -> NoReturn:
        raise UsageError(
            f"step {micro.step}, shard {micro.shard}: {name!r} has a gradient that was not computed by team.backward(loss): it "
            "would not be combined with those of the other shards, or would be mixed into the step's. To train, call "
            "team.backward(loss) in place of loss.backward(). For a gradient by something else (an adversarial example, a "
            "penalty) call torch.autograd.grad(loss, inputs), or loss.backward(inputs=[...]), which leave .grad of the weights "
            "alone. (optimizer.zero_grad() is not needed inside batch.shards.)"
        )

    def check_first_step(self, call: str, step: int) -> None:
        """Check before the first step of an optimizer in a launch, while not ``have_been``, that there is anything to step on.

        Args:
            call: the optimizer's, for the message.

        Raises:
            UsageError: no parameter of any prepared model has a gradient.
        """
        self.have_been = any(parameter.grad is not None for parameter in self._parameters)
        if not self.have_been:
            raise UsageError(
                f"{call} in step {step}: no team.backward(loss) in this step has given any parameter of a prepared model a "
                "gradient, so it would do nothing. Call team.backward(loss) in the loop over batch.shards, and step after that "
                "loop. (If the step has left out all of its shards on purpose, skip this call too.)"
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
