"""Guards of prepared objects: they detect what a shard must not do to them, since each process runs
only its own shards.

::

    begin_phase    record versions, requires_grad, options, addresses (and sums of bits, in steps
                   1, 2, 4, 8, ...)
    each shard     before_backward: no parameter may have a gradient that team.backward did not make
                   after it: an IncompleteGrad in ``.grad`` of one parameter per model
                   end_shard: no parameter may have other memory (``p.data = ...``)
    end_phase      compare all that was recorded

A change of weights inside a shard is an error even if it is the same on all shards: with another
number of processes it would happen another number of times. PyTorch counts most writes in a
tensor's version, so the comparison costs a few list operations per step. Writes through ``.data``
leave no trace but the bits, which are too costly to sum in every step.
"""

from __future__ import annotations

import itertools
import operator
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NoReturn

from torch import Tensor, nn
from torch.autograd.graph import Node, get_gradient_edge
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from lockstep._base.digest import bit_sums
from lockstep._base.errors import ModelError, UsageError
from lockstep._base.versions import version
from lockstep._plan.powers_of_two import PowersOfTwo
from lockstep._plan.shards import MicroBatch
from lockstep._prepare.trained import TrainedObjects
from lockstep._prepare.unprepared import UnpreparedParameters
from lockstep._world.comm.dtensors import is_dtensor

_gradient_of: Callable[[nn.Parameter], Tensor | None] = operator.attrgetter("grad")


class ShardWeights:
    """The guard of weights, options and schedules against changes inside ``batch.shards``.

    Args:
        parameters: the parameters of all prepared models, with their names.
    """

    def __init__(
        self, parameters: dict[nn.Parameter, str], optimizers: list[Optimizer], schedules: list[LRScheduler]
    ) -> None:
        self._parameters = parameters
        self._optimizers = optimizers
        self._schedules = schedules
        self._stored: list[nn.Parameter] = []
        """The parameters whose memory has an address. (Parameters of ``fully_shard`` have none.)"""
        self._before: _Snapshot | None = None
        self._addresses: list[int] = []
        self._bits: list[int] | None = None
        """The sums of the bits of ``_stored`` at the beginning of the phase; None: this step does
        not compare them."""
        self._looks = PowersOfTwo()

    def add_model(self, model: nn.Module) -> None:
        """Guards a model's weights."""
        self._stored += [parameter for parameter in model.parameters() if type(parameter.data) is Tensor]

    def begin_phase(self, step: int) -> None:
        """Records what no shard may change."""
        self._before = self._snapshot()
        self._addresses = self._find_addresses()
        self._bits = bit_sums(self._stored) if self._looks.take(step) else None

    def _snapshot(self) -> _Snapshot:
        return _Snapshot(
            list(map(version, self._parameters)),
            [parameter.requires_grad for parameter in self._parameters],
            [_options(group) for optimizer in self._optimizers for group in optimizer.param_groups],
            [progress_of(schedule) for schedule in self._schedules],
        )

    def _find_addresses(self) -> list[int]:
        return list(map(Tensor.data_ptr, self._stored))

    def end_shard(self, step: int) -> None:
        """Checks after a micro-batch that no weights were replaced, as ``p.data = ...`` does.

        Raises:
            ModelError: weights were replaced.
        """
        # After each shard, not at the end of the phase: the next shard may put back the old memory.
        addresses = self._find_addresses()
        if addresses != self._addresses:
            self._refuse("changed", self._stored, addresses, self._addresses, step)

    def check_unchanged(self, step: int) -> None:
        """Checks that the shards of this rank have not changed what must be equal on all ranks.

        Raises:
            ModelError: parameters were changed, frozen or unfrozen.
            UsageError: an option of an optimizer was changed.
        """
        now, before = self._snapshot(), self._before
        assert before is not None
        if now != before:
            everything = list(self._parameters)
            self._refuse("changed", everything, now.versions, before.versions, step)
            self._refuse("frozen or unfrozen (requires_grad)", everything, now.learns, before.learns, step)
            _refuse_option(now.options, before.options, step)
        if self._bits is not None:  # an in-place write through ``p.data`` leaves no other trace
            self._refuse("changed", self._stored, bit_sums(self._stored), self._bits, step)

    def _refuse(self, change: str, parameters: Sequence[nn.Parameter], now: list[Any], before: list[Any], step: int) -> None:
        for parameter, value, old_value in zip(parameters, now, before, strict=True):
            if value != old_value:
                raise ModelError(
                    f"parameter {self._parameters[parameter]!r} was {change} inside batch.shards in step {step}, so weights "
                    "would differ between ranks. Change it once per step, after the loop over batch.shards (an EMA after "
                    "optimizer.step()). For a loss with other weights, pass moved copies to torch.func.functional_call. "
                    "Instead of Embedding(max_norm=...), clip the rows after that loop.",
                    code="weights-changed-inside",
                )

    def contents(self) -> tuple[list[int], list[Any]]:
        """Returns checksums of all weights, and the options of optimizers and schedules. They are
        equal if nothing has changed.

        This reads all weights, since changes through ``.data`` have no version. That takes little
        time compared with a shard."""
        snapshot = self._snapshot()
        return bit_sums(list(self._parameters)), [snapshot.options, snapshot.progress]

    def first_change(self, before: tuple[list[int], list[Any]]) -> str | None:
        """Returns the first thing that has changed since ``contents`` returned ``before``; None:
        nothing has changed."""
        sums, options = self.contents()
        for name, now, earlier in zip(self._parameters.values(), sums, before[0], strict=True):
            if now != earlier:
                return f"parameter {name!r}"
        return None if options == before[1] else "a learning rate"


@dataclass(slots=True)
class _Snapshot:
    """The values that no shard may change."""

    versions: list[int]
    """The number of in-place changes of each parameter."""
    learns: list[bool]
    """Whether each parameter has ``requires_grad``."""
    options: list[dict[str, Any]]
    """The options of each group of each optimizer."""
    progress: list[Any]
    """The step counts of each schedule."""


def _options(group: dict[str, Any]) -> dict[str, Any]:
    """Returns the numbers among the options of a group. An optimizer of the script may have no
    "lr"."""
    return {name: value for name, value in group.items() if isinstance(value, (int, float, tuple)) or name == "lr"}


def _refuse_option(now: list[dict[str, Any]], before: list[dict[str, Any]], step: int) -> NoReturn:
    names = [name for group, old in zip(now, before, strict=False) for name in old if group.get(name) != old[name]]
    what = "a learning rate" if not names or names[0] == "lr" else f"the option {names[0]!r} of an optimizer"
    raise UsageError(
        f"schedule.step() inside batch.shards in step {step} (or {what} that was changed there by hand): it would act once "
        "per shard. Call it once per step, after the loop over batch.shards.",
        code="options-changed-inside",
    )


def progress_of(schedule: LRScheduler) -> list[int]:
    """Returns the step counts of a schedule and of the schedules inside it. (A ChainedScheduler
    alone has none.)"""
    return [getattr(item, "last_epoch", 0) for item in (schedule, *getattr(schedule, "_schedulers", ()))]


class ShardGradients:
    """The guard of gradients inside ``batch.shards``.

    Args:
        parameters: the parameters of all prepared models, with their names.
        is_plain: whether a step has the same ``.grad`` as in a plain single-device script.
    """

    def __init__(self, parameters: dict[nn.Parameter, str], *, is_plain: bool) -> None:
        self._parameters = parameters
        self._is_plain = is_plain
        self.marked: list[nn.Parameter] = []
        """The first parameter of each model, whose ``.grad`` is an IncompleteGrad while gradients
        are incomplete. One is enough: code that reads gradients reads them all."""
        self._placeholders: dict[int, IncompleteGrad] = {}
        """The placeholders of these parameters, by ``id``. To make one takes most of the time that
        guarding the gradients of a shard takes, so the shards of a phase use them again. None
        exists outside of the shard loop: a script that looks through all living tensors, to find
        where its memory is, must not meet one."""
        self._accumulating: list[Node] = []
        """The autograd nodes that write the gradients of first parameters. Autograd keeps them by
        weak references, and their hooks with them, so they are kept here."""
        self.micro: MicroBatch | None = None
        """The running micro-batch, which the loop sets; None: outside the shard loop."""
        self.is_running = False
        """Whether ``team.backward`` runs. The loop resets it, also after an error."""
        self.have_been = False
        """Whether any parameter is known to have had a gradient when an optimizer stepped."""

    def add_model(self, model: nn.Module) -> None:
        """Guards a model's gradients."""
        # A loss module may have buffers only.
        name, first = next(model.named_parameters(), ("", None))
        if first is None or not first.requires_grad or is_dtensor(first):
            return
        if not self._is_plain:
            self.marked.append(first)
        # The hook runs in Tensor.backward() only. autograd.grad() and inputs= do not reach this
        # node, and they are allowed: they leave ``.grad`` unchanged.
        node = get_gradient_edge(first).node
        self._accumulating.append(node)

        def check(_: Any) -> None:
            if self.micro is not None and not self.is_running:
                self._refuse(name, self.micro)

        node.register_prehook(check)

    def before_backward(self, call: int) -> None:
        """Begins the backward pass of ``team.backward``.

        Args:
            call: the number of the call within the micro-batch, from 0.

        Raises:
            UsageError: there are gradients that ``team.backward`` did not compute.
        """
        if not self._is_plain or call == 0:
            self._check_none()
        self.is_running = True

    def put_placeholders(self) -> None:
        """Puts placeholders into ``.grad`` of the ``marked`` parameters after a backward pass.
        Using one raises an error."""
        for parameter in self.marked:
            if parameter.grad is None:
                placeholder = self._placeholders.get(id(parameter))
                # The script may move its model or change its precision between two shards.
                if placeholder is None or placeholder.form != form_of(parameter):
                    placeholder = self._placeholders[id(parameter)] = IncompleteGrad.like(parameter)
                parameter.grad = placeholder

    def end_shard(self, num_calls: int) -> None:
        """Ends the micro-batch.

        Args:
            num_calls: the number of calls of ``team.backward`` in the micro-batch.

        Raises:
            UsageError: there are gradients that ``team.backward`` did not compute.
        """
        self.is_running = False
        if not (self._is_plain and num_calls):
            self._check_none()
        if self.micro is not None and self.micro.is_last:
            self._placeholders.clear()
        self.micro = None

    def drop(self) -> None:
        """Forgets the micro-batch after the script left the shard loop early. The loop clears
        ``.grad``, placeholders included."""
        self.micro, self.is_running = None, False
        self._placeholders.clear()

    def _check_none(self) -> None:
        """Checks that nothing but placeholders, which are removed, is in any ``.grad``."""
        for parameter in self.marked:
            if isinstance(parameter.grad, IncompleteGrad):
                parameter.grad = None
        gradients = map(_gradient_of, self._parameters)
        if all(map(operator.is_, gradients, itertools.repeat(None))):
            return
        for parameter, name in self._parameters.items():
            if parameter.grad is not None:
                assert self.micro is not None
                self._refuse(name, self.micro)

    def _refuse(self, name: str, micro: MicroBatch) -> NoReturn:
        raise UsageError(
            f"step {micro.step}, shard {micro.shard}: {name!r} has a gradient that was not computed by team.backward(loss), "
            "so it would not be combined with other shards. To train, replace loss.backward() by team.backward(loss). For "
            "other gradients (a penalty, an adversarial example), call torch.autograd.grad(loss, inputs) or "
            "loss.backward(inputs=[...]). Instead of torch.utils.swap_tensors(), copy values: parameter.copy_(...).",
            code="gradient-by-script",
        )

    def check_first_step(self, call: str, step: int) -> None:
        """Checks before the first step of an optimizer in a launch (while ``have_been`` is False)
        that a parameter has a gradient.

        Args:
            call: the call of the optimizer, for the message.

        Raises:
            UsageError: no parameter of any prepared model has a gradient.
        """
        self.have_been = any(parameter.grad is not None for parameter in self._parameters)
        if not self.have_been:
            raise UsageError(
                f"{call} in step {step} has no effect: no team.backward(loss) in this step gave a prepared model a gradient. "
                "Call team.backward(loss) in the loop over batch.shards, and step after that loop. If the step skips all of "
                "its shards on purpose, skip this call, too.",
                code="step-without-gradients",
            )


form_of: Callable[[Tensor], tuple[Any, ...]] = operator.attrgetter("shape", "dtype", "device", "layout")
"""What the gradient of a tensor has in common with it."""


class IncompleteGrad(Tensor):
    """A placeholder in ``.grad`` after a backward pass inside ``batch.shards``. Any operation on it
    raises UsageError."""

    form: tuple[Any, ...]
    """The form of the parameter."""

    @staticmethod
    def like(parameter: Tensor) -> IncompleteGrad:
        """Returns a placeholder of a parameter's shape, which takes no memory (one element,
        expanded)."""
        made = parameter.detach().new_zeros(()).expand(parameter.shape).as_subclass(IncompleteGrad)
        made.form = form_of(parameter)
        return made

    @classmethod
    def __torch_function__(
        cls, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if getattr(func, "__name__", "") in ("__get__", "__set__"):  # for example its shape
            return super().__torch_function__(func, types, args, kwargs or {})  # type: ignore[no-untyped-call]
        raise UsageError(
            "a gradient was used inside batch.shards (clipped, scaled, printed?), where it is incomplete: the sum over this "
            "process's shards so far. Use gradients after the loop over batch.shards.",
            code="gradient-used-inside",
        )


class ShardGuards:
    """The guards of gradients, of weights, and of parameters that belong to no prepared model.

    Args:
        num_shards: V. With a single shard, changes inside ``batch.shards`` are allowed.
        is_plain: whether a step has the same ``.grad`` as in a plain single-device script.
    """

    def __init__(self, trained: TrainedObjects, num_shards: int, *, is_plain: bool) -> None:
        self.is_strict = num_shards > 1
        """Whether changes inside ``batch.shards`` are refused."""
        self.gradients = ShardGradients(trained.parameters, is_plain=is_plain)
        self.unprepared = UnpreparedParameters(trained.ids)
        self.weights = ShardWeights(trained.parameters, trained.optimizers, trained.schedules)

    def add_model(self, model: nn.Module) -> None:
        """Guards a model."""
        self.gradients.add_model(model)
        self.weights.add_model(model)
