"""The prepared objects that a step acts on, and what must hold of them while shards run."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from torch import Tensor, amp, nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler
from torch.optim.swa_utils import AveragedModel

from lockstep.comm.dtensors import is_dtensor
from lockstep.errors import ModelError, UsageError
from lockstep.prepare.model_precision import ModelPrecision
from lockstep.prepare.scaling import LossScaling
from lockstep.sync.buffers import version


class Watched:
    """Parameters, formats and optimizers of all that was prepared so far.

    Args:
        num_shards: V. With one shard nothing need be the same for others.
        is_plain: whether a step is that of a plain script: then ``.grad`` is what it is there.
        scaling: of the loss, if the precision wants it.
    """

    def __init__(self, num_shards: int, scaling: LossScaling | None, *, is_plain: bool) -> None:
        self.model_precisions: list[ModelPrecision] = []
        """Of the prepared models whose backward passes need them too."""
        self.parameters: dict[nn.Parameter, str] = {}
        """Those of all prepared models, with their names. (A dict, since it keeps their order.)"""
        self._ids: set[int] = set()
        """Theirs: to look for a tensor itself takes several times as long, and this is done for each one in every step."""
        self._scaling = scaling
        self._optimizers: list[Optimizer] = []
        self._schedules: list[LRScheduler] = []
        self._is_strict = num_shards > 1
        self._is_plain = is_plain
        self._marked: list[nn.Parameter] = []
        """The first parameter of each model: stands for all gradients that are not there yet."""
        self._before: Any = None

    def add_model(self, model: nn.Module, precision: ModelPrecision) -> None:
        """A model takes part."""
        if precision.reaches_backward:
            self.model_precisions.append(precision)
        first = next(model.parameters())
        if not self._is_plain and first.requires_grad and not is_dtensor(first):
            self._marked.append(first)
        for name, parameter in model.named_parameters():
            self.parameters.setdefault(parameter, name)
            self._ids.add(id(parameter))

    def add_optimizer(self, optimizer: Optimizer) -> None:
        """An optimizer takes part."""
        self._optimizers.append(optimizer)
        if self._scaling is not None:
            self._scaling.attach(optimizer)

    def add_schedule(self, schedule: LRScheduler) -> None:
        """A schedule takes part."""
        self._schedules.append(schedule)

    def scale(self, loss: Tensor) -> Tensor:
        """The loss as the backward pass needs it."""
        return loss if self._scaling is None else self._scaling.scale(loss)

    def unscale(self) -> None:
        """Gradients have met: make them those of the true loss."""
        if self._scaling is not None:
            self._scaling.unscale()

    def begin_phase(self) -> None:
        """Remember what no shard may change."""
        if self._is_strict:
            self._before = self._look()

    def _look(self) -> tuple[list[int], list[bool], list[Any]]:
        return (
            [version(parameter) for parameter in self.parameters],
            [parameter.requires_grad for parameter in self.parameters],
            [group["lr"] for optimizer in self._optimizers for group in optimizer.param_groups]
            + [progress_of(schedule) for schedule in self._schedules],
        )

    def check_unchanged(self, step: int) -> None:
        """The shards of this rank have run: see that they have left alone what is equal on all ranks.

        Raises:
            ModelError: parameters were changed, frozen or thawed.
            UsageError: a learning rate was changed.
        """
        if not self._is_strict:
            return
        versions, learning, rates = self._look()
        if (versions, learning, rates) == self._before:
            return
        for what, now, before in (
            ("changed", versions, self._before[0]),
            ("frozen or thawed (requires_grad)", learning, self._before[1]),
        ):
            for name, one, other in zip(self.parameters.values(), now, before, strict=True):
                if one != other:
                    raise ModelError(
                        f"parameter {name!r} was {what} inside batch.shards in step {step}: each process runs only its own "
                        "shards, so the weights would differ from rank to rank, and from one number of processes to another. "
                        "Do that once a step, behind the loop over batch.shards. (Embedding(max_norm=...) changes its weight "
                        "in the forward pass: leave max_norm out, and clip the rows behind that loop.)"
                    )
        raise UsageError(
            f"schedule.step() inside batch.shards in step {step} (or a learning rate that was changed there by hand): so it "
            "would act once a shard. Call it once a step, behind the loop over batch.shards."
        )

    def before_backward(self) -> None:
        """Take the marks of ``after_backward`` away."""
        for parameter in self._marked:
            if isinstance(parameter.grad, NotYet):
                parameter.grad = None

    def after_backward(self) -> None:
        """A shard's backward pass has run: who clips or reads gradients now is told that they have not met yet."""
        for parameter in self._marked:
            if parameter.grad is None:
                parameter.grad = NotYet.like(parameter)

    def end_shard(self, step: int, num_calls: int) -> None:
        """A micro-step is over: see that its gradients have come through ``team.backward``.

        Raises:
            UsageError: some have not.
        """
        if self._is_plain and num_calls:
            return
        self.before_backward()
        for parameter, name in self.parameters.items():
            if parameter.grad is not None:
                raise UsageError(
                    f"step {step}: {name!r} has a gradient that did not come through team.backward(loss): it would not meet "
                    "those of the other shards, so every process would train a model of its own. Call team.backward(loss) "
                    "where the script has loss.backward()."
                )

    def trains(self, optimizer: Optimizer) -> bool:
        """Whether an optimizer, prepared or not, has parameters of prepared models."""
        return any(id(parameter) in self._ids for parameter in parameters_of(optimizer))

    def sort_out(self, optimizer: Optimizer) -> tuple[bool, Tensor | None]:
        """Whether it has; and a parameter of it that has a gradient and belongs to no prepared model."""
        ids, trains, stranger = self._ids, False, None
        for group in optimizer.param_groups:
            for parameter in group["params"]:
                if id(parameter) in ids:
                    trains = True
                elif parameter.grad is not None:
                    stranger = parameter
        return trains, stranger


def progress_of(schedule: LRScheduler) -> list[int]:
    """How often a schedule was stepped. (A ChainedScheduler does not count itself: the schedules in it do.)"""
    return [getattr(one, "last_epoch", 0) for one in (schedule, *getattr(schedule, "_schedulers", ()))]


def parameters_of(optimizer: Optimizer) -> Iterator[nn.Parameter]:
    """Those of all its groups."""
    return (parameter for group in optimizer.param_groups for parameter in group["params"])


class NotYet(Tensor):
    """Stands in ``.grad`` inside ``batch.shards`` once a shard's backward pass has run. Whoever uses it gets an error."""

    @staticmethod
    def like(parameter: Tensor) -> NotYet:
        """Of a parameter's shape, and without memory of its own."""
        return parameter.detach().new_zeros(()).expand(parameter.shape).as_subclass(NotYet)

    @classmethod
    def __torch_function__(
        cls, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if getattr(func, "__name__", "") in ("__get__", "__set__"):  # its shape, say
            return super().__torch_function__(func, types, args, kwargs or {})  # type: ignore[no-untyped-call]
        raise UsageError(
            "a gradient was used inside batch.shards (clipped, scaled, looked at?): there is only a part of it there, that of "
            "this process's shards so far. Use gradients behind the loop over batch.shards, where they are those of the whole "
            "global batch, and the same on every rank."
        )


def refuse_inside(thing: Any, names: tuple[str, ...], guard: Callable[[str], None]) -> None:
    """Have an object's methods refused inside ``batch.shards``. They are replaced on that object, and act as before."""
    kind = "GradScaler" if isinstance(thing, amp.GradScaler) else type(thing).__name__
    for name in names:
        _guard_method(thing, name, guard, kind)


def _guard_method(thing: Any, name: str, guard: Callable[[str], None], kind: str) -> None:
    act = getattr(thing, name)

    def guarded(*args: Any, **kwargs: Any) -> Any:
        guard(f"{kind}.{name}()")
        return act(*args, **kwargs)

    guarded.__doc__ = act.__doc__
    setattr(thing, name, guarded)


def idle_in_replay(thing: Any, name: str, is_replaying: Callable[[], bool]) -> None:
    """Have a method do nothing where the script runs again what it had done before an interruption: the state is put back, and
    behind the end of a finished run nothing is to change either."""
    act = getattr(thing, name)

    def idle(*args: Any, **kwargs: Any) -> Any:
        return None if is_replaying() else act(*args, **kwargs)

    idle.__dict__.update(getattr(act, "__dict__", {}))  # PyTorch's schedules note there that they were called
    idle.__doc__ = act.__doc__
    setattr(thing, name, idle)
    if isinstance(thing, LRScheduler):
        state_of = thing.state_dict

        def state_dict() -> dict[str, Any]:
            # PyTorch's own takes all attributes of the object: what was put there is not part of its state.
            return {key: value for key, value in state_of().items() if key not in (name, "state_dict")}

        thing.state_dict = state_dict  # type: ignore[method-assign]


def keep_formats(average: AveragedModel) -> None:
    """Let an average take a model of other formats: that of 16-bit weights is better kept in float32."""
    act = average.update_parameters

    def update_parameters(model: nn.Module) -> None:
        act(_in_formats_of(average.module, model))

    average.update_parameters = update_parameters  # type: ignore[method-assign]


def _in_formats_of(average: nn.Module, model: nn.Module) -> nn.Module:
    """The model, or something with its parameters and buffers in the average's formats."""
    kept, seen = ([*module.parameters(), *module.buffers()] for module in (average, model))
    if all(one.dtype == other.dtype for one, other in zip(kept, seen, strict=False)):
        return model
    same = nn.Module()
    for number, (one, other) in enumerate(zip(kept, seen, strict=True)):
        cast = other.detach().to(one.dtype)
        if isinstance(one, nn.Parameter):
            same.register_parameter(str(number), nn.Parameter(cast, requires_grad=False))
        else:
            same.register_buffer(str(number), cast)
    return same
