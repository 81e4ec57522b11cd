"""A loader for scripts that keep their own loop under DDP: each sample of a pass once, also where the number of ranks changes.

It has no team: no weights, no gradients. A position in the data is all that it keeps.
"""

from __future__ import annotations

import itertools
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from lockstep.base.errors import ConfigError, DataError, MismatchError, UsageError
from lockstep.base.stopping import say
from lockstep.data.batches import pin
from lockstep.data.place import Comparison, Place, check_place, find_place, is_open
from lockstep.data.portable import from_portable, to_portable
from lockstep.data.rank_parts import first_step, rank_parts
from lockstep.data.source import StepData
from lockstep.data.sources import choose_source
from lockstep.data.streams import preserve_rng
from lockstep.data.torch_loader import check_not_split, length_of
from lockstep.plan.shards import StepPlan
from lockstep.world import devices

_FORMAT = 1
"""Of ``state_dict``."""
_MISSING = ("batch_sampler", "drop_last")
"""Attributes of a DataLoader by which libraries make another one, which would not be split."""

_ONE_AHEAD = ("lightning.pytorch.", "pytorch_lightning.")
"""Whose code has a batch more than its loop has been given, of a loader whose length it does not know."""


@dataclass(slots=True)
class _Position:
    """Behind ``done`` batches of an epoch."""

    epoch: int
    done: int = 0
    source: Any = None
    """The state of the source, if it was loaded."""
    is_loaded: bool = False


@dataclass(eq=False, slots=True)
class _Pass:
    """A pass over the loader, and how far it has come."""

    epoch: int
    done: int
    is_left: bool = False
    """Whether its iterator was closed."""


class _Sampler:
    """``loader.sampler.set_epoch(epoch)`` is a line of many scripts, and of Lightning."""

    def __init__(self, loader: ResumableLoader) -> None:
        self._loader = loader

    def set_epoch(self, epoch: int) -> None:
        """As ``loader.set_epoch``."""
        self._loader.set_epoch(epoch)


class ResumableLoader:
    """What ``lockstep.resumable`` returns: this rank's part of each global batch.

    ``len()`` counts global batches: the iterations of every rank. ``dataset``, ``batch_size`` and other attributes are those of
    the loader that was given, and cannot be set.
    """

    def __init__(self, loader: Iterable[Any], *, seed: int, place: Place, compare: bool) -> None:
        self._loader = loader
        self._seed = seed
        self._place = place
        self._source = choose_source(loader, rank_parts(place.rank, place.world_size, seed))
        self._comparison = Comparison() if compare and place.world_size > 1 else None
        self._is_compared = False
        """Whether the ranks have found that they read the same data."""
        self._next = _Position(0)
        """Where the next pass begins, if none is under way."""
        self._pass: _Pass | None = None
        """The newest, until it has come to its end."""
        self._weight = 1.0
        self._is_weight_read = self._is_padding_said = False

    def __len__(self) -> int:
        return self._source.num_steps()

    def __getattr__(self, name: str) -> Any:
        if name in _MISSING:
            raise AttributeError(
                f"a resumable loader has no .{name}, from which a second loader could be made that reads all samples on every "
                "rank. Iterate the resumable loader itself. Instead of skip_first_batches(loader, n), as transformers' Trainer "
                "does it when it resumes: loader.load_state_dict(state)"
            )
        if name.startswith("_"):
            raise AttributeError(name)
        return getattr(self._loader, name)

    if not TYPE_CHECKING:  # so that type checkers report unknown attributes too

        def __setattr__(self, name: str, value: Any) -> None:
            if not name.startswith("_"):
                raise UsageError(
                    f"loader.{name} = ... would have no effect on a resumable loader, which has taken over how batches are "
                    "fetched: set it on the DataLoader, before resumable()"
                )
            object.__setattr__(self, name, value)

    @property
    def sampler(self) -> _Sampler:
        """Its ``set_epoch(epoch)`` is that of the loader, as in scripts with a ``DistributedSampler``."""
        return _Sampler(self)  # made anew: a cycle would keep persistent workers until it is collected

    @property
    def epoch(self) -> int:
        """The epoch of the pass that is under way, or was left early; else that of the next pass."""
        return self._position().epoch

    @property
    def weight(self) -> float:
        """This rank's share of the samples of the newest global batch, times the number of ranks: 1 if all have equally many.

        DDP averages the gradients of the ranks: ``(loss * loader.weight).backward()``, with a loss that is a mean over this
        rank's samples, makes of that the gradient of the mean over the global batch. It is 0 on a rank that was given a sample
        of another.
        """
        self._is_weight_read = True
        return self._weight

    def set_epoch(self, epoch: int) -> None:
        """Begin the next pass at the beginning of this epoch. Every rank calls it.

        Passes follow one another without it. It is needed where a pass was left early: to say which epoch is next.

        Raises:
            UsageError: ``load_state_dict`` has put the loader into another epoch.
        """
        if epoch < 0:
            raise ConfigError(f"loader.set_epoch({epoch}): epochs are numbered from 0")
        now, this = self._position(), self._pass
        if epoch == now.epoch and (this is None or not this.is_left):
            return
        if now.is_loaded and not (epoch == now.epoch + 1 and self._is_whole(now)):
            raise UsageError(
                f"loader.set_epoch({epoch}), and the loaded state is {now.done} batches into epoch {now.epoch}: samples would "
                "be used again, or left out. Begin the loop there: for epoch in range(loader.epoch, num_epochs)"
            )
        if now.is_loaded:
            self._finish(now)
        self._pass, self._next = None, _Position(epoch)

    def state_dict(self) -> dict[str, Any]:
        """The position behind the newest batch that the loop was given, whatever workers have fetched.

        It is small and the same on every rank, so that one rank can save it, and consists of tensors and plain values
        (``torch.load(..., weights_only=True)`` reads it), but for what data sets and samplers give as a state of their own.

        Raises:
            UsageError: Lightning asks, within a pass over a loader without a length.
        """
        if self._pass is not None and length_of(self) is None:
            caller = str(sys._getframe(1).f_globals.get("__name__"))
            if caller.startswith(_ONE_AHEAD):
                raise UsageError(
                    f"{caller.partition('.')[0]} prefetches a batch of a loader without a length, so its checkpoint "
                    "would leave a batch out: give the data set a __len__(), or save at the ends of epochs only"
                )
        now = self._position()
        last = None if self._pass is None else first_step(now.epoch) + now.done - 1
        source = now.source if now.is_loaded else self._source.state(last)
        return {
            "format": _FORMAT,
            "data": self._describe(),
            "epoch": now.epoch,
            "batches": now.done,
            "source": to_portable(source),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from a state of another process, or of this one earlier. Every rank calls it, before it iterates.

        The numbers of ranks and loader workers may be others. The next pass is the rest of that epoch: no batch, if the state
        was taken behind the last one, so that the code between two passes runs.

        Raises:
            MismatchError: the state is of another seed, batch size or data set, or of another format.
        """
        if state.get("format") != _FORMAT:
            raise MismatchError(
                f"the format of this state is {state.get('format')!r}, and this version of lockstep reads format {_FORMAT}: it "
                "is of another kind of loader, or of another version of lockstep"
            )
        then, now = state["data"], self._describe()
        if now != then:
            was, found = next(pair for pair in itertools.zip_longest(then, now) if pair[0] != pair[1])
            raise MismatchError(
                f"this state is of a loader with {was}, and this loader has {found}: {state['batches']} batches into epoch "
                f"{state['epoch']}, other samples would be left than those that are. Change it back; or load no state, and "
                "begin an epoch with loader.set_epoch(epoch)"
            )
        source = from_portable(state["source"])
        self._source.load_state(source)
        self._pass, self._next = None, _Position(state["epoch"], state["batches"], source, is_loaded=True)

    def __iter__(self) -> Iterator[Any]:
        this = self._begin()
        compares = self._comparison is not None and is_open()
        steps = self._steps(this, compared=compares and not self._is_compared)
        try:
            while True:
                with preserve_rng():  # what is fetched draws from streams of its own
                    step = next(steps, None)
                if this is not self._pass:
                    raise UsageError(
                        "an iterator of a resumable loader was used after a newer one, set_epoch() or load_state_dict(): there "
                        "is one position in the data, and it was moved"
                    )
                if compares:
                    self._compare(this, step)
                    compares = False
                if step is None:
                    break
                this.done += 1
                yield self._part(this, *step)
            self._pass, self._next = None, _Position(this.epoch + 1)
        finally:
            this.is_left = True

    def _begin(self) -> _Pass:
        begin, before = self._next, self._pass
        if before is not None:
            if not self._is_whole(before):
                raise UsageError(
                    f"the pass before was left after {before.done} batches of epoch {before.epoch}, and the loader is iterated "
                    f"again: which samples are next? loader.set_epoch({before.epoch}) begins that epoch again (if a batch was "
                    f"only looked at, say), loader.set_epoch({before.epoch + 1}) the next one"
                )
            begin = _Position(before.epoch + 1)  # whoever counts to len() does not ask for the end
        check_place(self._place)
        self._pass = this = _Pass(begin.epoch, begin.done)
        return this

    def _position(self) -> _Position:
        return self._next if self._pass is None else _Position(self._pass.epoch, self._pass.done)

    def _is_whole(self, position: _Position | _Pass) -> bool:
        """Whether all batches of the epoch are done, if its length is known."""
        return 0 < position.done == length_of(self)

    def _finish(self, position: _Position) -> None:
        """Bring samplers and data set from the beginning of the epoch, where a loaded state has put them, to its end."""
        with preserve_rng():
            for _ in self._source.steps(first_step(position.epoch), position.epoch, position.done):
                pass

    def _steps(self, this: _Pass, *, compared: bool) -> Iterator[StepData]:
        """The steps of a pass that are left. The source is told of each that the loop takes: see ``Source.taken``."""
        next_step = first_step(this.epoch) + this.done
        try:
            for step in self._source.steps(first_step(this.epoch), this.epoch, this.done, compared=compared):
                next_step = step[0].number + 1
                self._source.taken(step[0].number)
                yield step
        except MismatchError as error:  # the engine's remedies are options of a run
            name = type(getattr(self._loader, "dataset", self._loader)).__name__
            raise MismatchError(
                f"{name} or its sampler does not repeat itself: read again, the first {this.done} batches of epoch "
                f"{this.epoch} are others than before, so some samples would be used twice and others never. Let their order "
                f"depend on fixed seeds alone. Or load no state, and begin the epoch again: loader.set_epoch({this.epoch})"
            ) from error
        except Exception:
            self._source.taken(next_step)
            raise
        self._source.ended()

    def _part(self, this: _Pass, plan: StepPlan, data: list[Any]) -> Any:
        rank, world_size, num_samples = self._place.rank, self._place.world_size, plan.num_samples
        self._weight = plan.micro_steps[0].num_samples * world_size / num_samples if rank < num_samples else 0.0
        if num_samples < world_size and rank == 0 and not (self._is_weight_read or self._is_padding_said):
            self._is_padding_said = True
            say(
                f"WARNING: a global batch of epoch {this.epoch} has fewer samples ({num_samples}) than there are ranks "
                f"({world_size}): the last ranks are given samples of others, which count twice in DDP's average. "
                "`loss * loader.weight` counts each once; DataLoader(..., drop_last=True) leaves such a batch out."
            )
        # (If the script began to use its GPU only after it made the loader, the source does not pin.)
        pins = getattr(self._loader, "pin_memory", False) and devices.in_use() is not None
        return pin(data[0]) if pins else data[0]

    def _compare(self, this: _Pass, step: StepData | None) -> None:
        assert self._comparison is not None
        first = "nothing" if step is None else f"{step[0].num_samples} samples with the digest {step[0].digest[:8]}"
        self._comparison.check(
            {
                "what is read": (", ".join(self._describe()), "Give every rank the same data set and seed."),
                "the position": (
                    f"{this.done} batches into epoch {this.epoch}",
                    "Call load_state_dict() and set_epoch() on every rank, with the same state.",
                ),
                "the first global batch": (
                    first,
                    "Give every rank the whole data set, in the same order: this loader splits it. (If machines decode the "
                    "same file to other bits: compare=False.)",
                ),
            }
        )
        self._is_compared = True

    def _describe(self) -> list[str]:
        """What must be the same on every rank, and behind a resume."""
        return [f"seed={self._seed}", *self._source.describe(), *self._source.describe_samples()]


def resumable(
    loader: Iterable[Any],
    *,
    seed: int = 0,
    rank: int | None = None,
    world_size: int | None = None,
    compare: bool = True,
) -> ResumableLoader:
    """A loader whose position any number of ranks can go on from, for a loop of your own under DistributedDataParallel.

    ``lockstep.join`` is not needed. ::

        loader = lockstep.resumable(DataLoader(data, 64, shuffle=True))  # 64: the global batch
        for epoch in range(loader.epoch, num_epochs):
            for batch in loader:  # this rank's part of the next global batch
                ...
                state = {"model": ..., "loader": loader.state_dict()}  # the same on every rank: one of them saves it

    After a restart, every rank calls ``loader.load_state_dict(state["loader"])`` before the loop. The numbers of ranks and
    workers may be others. Each sample of an epoch is used once, and all ranks have equally many iterations: in a global batch
    with fewer samples than ranks, the last ranks are given samples of others, and a ``weight`` of 0.

    The order of samples depends on ``seed``, the epoch and the loader alone. Each sample of a map-style data set draws random
    numbers from a stream of its own, whatever the number of ranks and workers; ``collate_fn`` draws from one for each rank.

    Args:
        loader: a ``DataLoader`` over the whole data set, whose batch size is the global one, without a ``DistributedSampler``;
            or another iterable, of ready batches, which are cut along dimension 0.
        seed: of the order of samples, and of the random numbers that they draw. The same on every rank.
        rank: this process's. If it is not given: that of the open process group, else what the launcher has set (torchrun,
            ``lockstep run``, mpirun, srun), else 0 of 1.
        world_size: the number of ranks. Given together with ``rank``.
        compare: whether ranks compare that they have the same data, seed and position, with the first batch of each pass, which
            every rank must then ask for. (Only where a process group is open.)

    Raises:
        ConfigError: ``rank`` is out of range, or two sources of it disagree.
        DataError: the loader is split over ranks already, or can be read only once.
    """
    if isinstance(loader, ResumableLoader):
        raise DataError("resumable() was given a resumable loader, whose parts would be split over the ranks again")
    check_not_split(loader)
    return ResumableLoader(loader, seed=seed, place=find_place(rank, world_size), compare=compare)
