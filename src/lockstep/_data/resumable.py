"""A loader for scripts with their own DDP loop: it resumes within an epoch, at any number of ranks.

::

    lockstep's sources (the same as in a run) <- RankParts: one shard per rank, W = number of ranks
       | rank r yields its rows of each global batch
    state_dict()   epoch, batches done, state of samplers or stream: equal on every rank
    resume         the pass is drawn again from its beginning, and the done batches are skipped

It needs no team. Its state is a position in the data. The script saves weights and optimizers. The
number of ranks may change, because the global batch is the unit: its indices do not depend on W,
and each sample has a random stream for its row.
"""

from __future__ import annotations

import itertools
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from lockstep._base.digest import digest
from lockstep._base.errors import ConfigError, MismatchError, UsageError
from lockstep._base.stopping import say
from lockstep._data.batches import pin
from lockstep._data.place import Comparison, Place, check_place, find_place, is_open
from lockstep._data.portable import from_portable, to_portable
from lockstep._data.rank_parts import first_step, rank_parts
from lockstep._data.source import StepData
from lockstep._data.sources import choose_source
from lockstep._data.streams import preserve_rng
from lockstep._data.torch_loader import check_not_split, length_of
from lockstep._plan.shards import StepPlan
from lockstep._world import devices

_FORMAT = 1
"""The version of the format of ``state_dict``."""
_MISSING = ("batch_sampler", "drop_last")
"""Attributes from which libraries build a second DataLoader. It would read the whole global batch
on every rank."""
_PREFETCHING = ("lightning.pytorch.", "pytorch_lightning.")
"""Modules that take one batch ahead of their loop from a loader without a length."""


@dataclass(slots=True)
class _Position:
    """A position in the data: after ``done`` batches of an epoch."""

    epoch: int
    done: int = 0
    source: Any = None
    """The loaded state of the source."""
    is_loaded: bool = False


@dataclass(eq=False, slots=True)
class _Pass:
    """A pass over the loader, and the number of its batches that the loop has received."""

    epoch: int
    done: int
    is_left: bool = False
    """Whether its iterator was closed."""


class _Sampler:
    """Supports ``loader.sampler.set_epoch(epoch)``, which DDP scripts and Lightning call."""

    def __init__(self, loader: ResumableLoader) -> None:
        self._loader = loader

    def set_epoch(self, epoch: int) -> None:
        """As ``loader.set_epoch``."""
        self._loader.set_epoch(epoch)


class ResumableLoader:
    """Yields this rank's part of each global batch of a loader. Made by ``lockstep.resumable``.

    ``len()`` is the number of global batches, and so of iterations on every rank. ``dataset``,
    ``batch_size`` and other attributes are read from the wrapped loader. They are read-only.
    """

    is_split_over_ranks = True

    def __init__(self, loader: Iterable[Any], *, seed: int, place: Place, compare: bool) -> None:
        self._loader = loader
        self._seed = seed
        self._place = place
        self._source = choose_source(loader, rank_parts(place.rank, place.world_size, seed))
        self._comparison = Comparison() if compare and place.world_size > 1 else None
        self._is_compared = False
        """Whether the ranks have compared the content of a batch."""
        self._next = _Position(0)
        """The beginning of the next pass, if no pass is under way."""
        self._pass: _Pass | None = None
        """The newest pass, until the loop has asked for a batch after its last one."""
        self._weight = 1.0
        self._is_weight_read = self._is_padding_said = False

    def __len__(self) -> int:
        return self._source.num_steps()

    def __getattr__(self, name: str) -> Any:
        if name in _MISSING:
            raise AttributeError(
                f"a resumable loader has no .{name}: a second loader made from it would read all samples on every rank. "
                "Iterate the resumable loader itself. Instead of skip_first_batches(loader, n): loader.load_state_dict(state). "
                "With transformers' Trainer, set ignore_data_skip=True and load the state before train()."
            )
        if name.startswith("_"):
            raise AttributeError(name)
        return getattr(self._loader, name)

    if not TYPE_CHECKING:  # so that type checkers report unknown attributes too

        def __setattr__(self, name: str, value: Any) -> None:
            if not name.startswith("_"):
                raise UsageError(
                    f"loader.{name} = ... would have no effect, because a resumable loader fetches batches by itself: set it "
                    "on the DataLoader before resumable()"
                )
            object.__setattr__(self, name, value)

    @property
    def sampler(self) -> _Sampler:
        """An object whose ``set_epoch(epoch)`` calls the loader's, for scripts that had a
        ``DistributedSampler``."""
        # not kept: a reference cycle would delay the end of persistent workers
        return _Sampler(self)

    @property
    def epoch(self) -> int:
        """The epoch of the current position. After a completed pass, it is the next epoch."""
        return self._position().epoch

    @property
    def weight(self) -> float:
        """This rank's share of the samples of the newest global batch, times the number of ranks.
        It is 1 if parts are equal.

        DDP averages the gradients of the ranks. With a loss that is a mean over this rank's
        samples, ``(loss * loader.weight).backward()`` gives the gradient of the mean over the
        global batch. The weight is 0 on a rank that received a sample of another rank, because the
        global batch has fewer samples than ranks."""
        self._is_weight_read = True
        return self._weight

    def set_epoch(self, epoch: int) -> None:
        """Move the position to the beginning of an epoch. Every rank must call it.

        The loader counts completed passes by itself. The call is required only after a pass was
        left early, to say which epoch is next. It does nothing if it names the epoch of a loaded
        state or of the running pass.

        Raises:
            ConfigError: ``epoch`` is negative.
            UsageError: a state was loaded, and it is in another epoch.
        """
        if epoch < 0:
            raise ConfigError(f"loader.set_epoch({epoch}): epochs are numbered from 0")
        now, this = self._position(), self._pass
        if epoch == now.epoch and (this is None or not this.is_left):
            return
        if now.is_loaded and not (epoch == now.epoch + 1 and self._is_whole(now)):
            raise UsageError(
                f"loader.set_epoch({epoch}) after a state was loaded that is {now.done} batches into epoch {now.epoch}: "
                "samples would be used twice or never. Start the loop there: for epoch in range(loader.epoch, num_epochs)"
            )
        if now.is_loaded:
            self._finish(now)
        self._pass, self._next = None, _Position(epoch)

    def state_dict(self) -> dict[str, Any]:
        """Return the position after the newest batch that the loop has received, regardless of what
        workers have prefetched.

        It is small, and equal on every rank, so one rank saves it. It consists of tensors and plain
        values, which ``torch.load(..., weights_only=True)`` reads, unless a dataset or sampler has
        other values in its own ``state_dict()``.

        Raises:
            UsageError: Lightning calls it within a pass over a loader without a length.
        """
        if self._pass is not None and length_of(self) is None:
            caller = str(sys._getframe(1).f_globals.get("__name__"))
            if caller.startswith(_PREFETCHING):
                raise UsageError(
                    f"{caller.partition('.')[0]} prefetches a batch of a loader without a length, so its checkpoint would "
                    "leave that batch out: give the dataset a __len__(), or save at the ends of epochs only"
                )
        now = self._position()
        last = None if self._pass is None else first_step(now.epoch) + now.done - 1
        source = to_portable(now.source if now.is_loaded else self._source.state(last))
        return {
            "format": _FORMAT,
            "data": self._describe(),
            "epoch": now.epoch,
            "batches": now.done,
            "source": source,
            "digest": digest([now.epoch, now.done, source]),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from a state that ``state_dict`` returned. Every rank must call it before it
        iterates.

        The numbers of ranks and loader workers may have changed. The next pass is the rest of the
        epoch. It is empty if the state was taken after the last batch, so that the script runs its
        code between two passes.

        Raises:
            MismatchError: the state has another seed, batch size, dataset length or format, or is
                incomplete.
        """
        if state.get("format") != _FORMAT:
            raise MismatchError(
                f"the format of this state is {state.get('format')!r}, and this version of lockstep reads format {_FORMAT}: it "
                "was saved by another kind of loader or another version of lockstep"
            )
        if state["digest"] != digest([state["epoch"], state["batches"], state["source"]]):
            raise MismatchError(
                "this state is incomplete or was changed: samples would be used twice or never. Load all that state_dict() "
                "returned; with torch.distributed.checkpoint, save pickle.dumps(loader.state_dict())"
            )
        then, now = state["data"], self._describe()
        if now != then:
            was, found = next(pair for pair in itertools.zip_longest(then, now) if pair[0] != pair[1])
            raise MismatchError(
                f"the state was saved by a loader with {was}, and this loader has {found}: after {state['batches']} batches of "
                f"epoch {state['epoch']}, samples would be used twice or never. Change it back, or do not load the state and "
                "start at an epoch of your choice: loader.set_epoch(epoch)"
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
                with preserve_rng():  # fetching uses random streams of its own
                    step = next(steps, None)
                if this is not self._pass:
                    raise UsageError(
                        "an iterator of a resumable loader was used after a newer iterator, set_epoch() or load_state_dict() "
                        "moved the position: a loader has one position, so use one iterator at a time"
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
                    f"the last pass was left after {before.done} batches of epoch {before.epoch}, and it is not known which "
                    f"samples are next: call loader.set_epoch({before.epoch}) to repeat that epoch (after next(iter(loader)), "
                    f"for example), or loader.set_epoch({before.epoch + 1}) to drop the rest of it"
                )
            # a loop that counts to len() does not ask for the end
            begin = _Position(before.epoch + 1)
        check_place(self._place)
        self._pass = this = _Pass(begin.epoch, begin.done)
        return this

    def _position(self) -> _Position:
        return self._next if self._pass is None else _Position(self._pass.epoch, self._pass.done)

    def _is_whole(self, position: _Position | _Pass) -> bool:
        """Return whether all batches of the epoch have been received; False if the length is
        unknown."""
        return 0 < position.done == length_of(self)

    def _finish(self, position: _Position) -> None:
        """Move samplers and dataset, which a loaded state has put to the beginning of an epoch, to
        its end."""
        with preserve_rng():
            for _ in self._source.steps(first_step(position.epoch), position.epoch, position.done):
                pass

    def _steps(self, this: _Pass, *, compared: bool) -> Iterator[StepData]:
        """Yield the remaining steps of a pass, and report each to the source: see
        ``Source.taken``."""
        next_step = first_step(this.epoch) + this.done
        try:
            for step in self._source.steps(first_step(this.epoch), this.epoch, this.done, compared=compared):
                next_step = step[0].number + 1
                self._source.taken(step[0].number)
                yield step
        except Exception as error:  # (Only a builtin name: a pass may be closed while Python ends.)
            if not isinstance(error, MismatchError):
                self._source.taken(next_step)
                raise
            # Its message names options of a run, and a loader alone has none.
            name = type(getattr(self._loader, "dataset", self._loader)).__name__
            raise MismatchError(
                f"{name} or its sampler is not repeatable: read again, the first {this.done} batches of epoch {this.epoch} "
                "have other samples than before, so some samples would be used twice and others never. Make their order "
                f"depend on fixed seeds only; or do not load the state and repeat the epoch: loader.set_epoch({this.epoch})"
            ) from error
        self._source.ended()

    def _part(self, this: _Pass, plan: StepPlan, data: list[Any]) -> Any:
        rank, world_size, num_samples = self._place.rank, self._place.world_size, plan.num_samples
        self._weight = plan.micro_batches[0].num_samples * world_size / num_samples if rank < num_samples else 0.0
        if num_samples < world_size and rank == 0 and not (self._is_weight_read or self._is_padding_said):
            self._is_padding_said = True
            say(
                f"WARNING: a global batch of epoch {this.epoch} has fewer samples ({num_samples}) than ranks "
                f"({world_size}), so the last ranks received samples of other ranks, which count twice in DDP's average. Use "
                "`loss * loader.weight` to count each sample once, or DataLoader(..., drop_last=True) to drop such batches."
            )
        # The source does not pin if the script made the loader before it first used its GPU.
        pins = getattr(self._loader, "pin_memory", False) and devices.in_use() is not None
        return pin(data[0]) if pins else data[0]

    def _compare(self, this: _Pass, step: StepData | None) -> None:
        assert self._comparison is not None
        first = "nothing" if step is None else f"{step[0].num_samples} samples with the digest {step[0].digest[:8]}"
        self._comparison.check(
            {
                "what is read": (", ".join(self._describe()), "Give every rank the same dataset and seed."),
                "the position": (
                    f"{this.done} batches into epoch {this.epoch}",
                    "Call load_state_dict() and set_epoch() on every rank, with the same state.",
                ),
                "the first global batch": (
                    first,
                    "Give every rank the whole dataset, in the same order, and let this loader split it. If machines decode "
                    "the same file to different bits, use compare=False.",
                ),
            }
        )
        self._is_compared = True

    def _describe(self) -> list[str]:
        """Return lines that must be equal on every rank and after a resume."""
        return [f"seed={self._seed}", *self._source.describe(), *self._source.describe_samples()]


def resumable(
    loader: Iterable[Any],
    *,
    seed: int = 0,
    rank: int | None = None,
    world_size: int | None = None,
    compare: bool = True,
) -> ResumableLoader:
    """Wrap a loader so that a loop under DistributedDataParallel can resume within an epoch, at any
    number of ranks.

    ``lockstep.join`` is not required. ::

        loader = lockstep.resumable(DataLoader(data, 64, shuffle=True))  # 64: the global batch
        for epoch in range(loader.epoch, num_epochs):
            for batch in loader:  # this rank's part of the next global batch
                ...
                # equal on every rank; one rank saves it
                state = {"model": ..., "loader": loader.state_dict()}

    After a restart, every rank calls ``loader.load_state_dict(state["loader"])`` before the loop.
    The numbers of ranks and workers may have changed. Each sample of an epoch is used once, and
    every rank has the same number of iterations. If a global batch has fewer samples than ranks,
    the last ranks receive samples of other ranks, and their ``weight`` is 0.

    The order of samples depends on ``seed``, the epoch and the loader only. Each sample of a
    map-style dataset has separate random streams, at any number of ranks and workers.
    ``collate_fn`` draws once for each rank's part.

    Args:
        loader: a ``DataLoader`` over the whole dataset, without a ``DistributedSampler``, whose
            batch size is the global batch size; or an iterable of ready batches, which are cut
            along dimension 0.
        seed: determines the order of samples and their random numbers. It must be the same on every
            rank. Two loaders of equal length with the same seed have the same order: give each its
            own.
        rank: the rank of this process. The default is the rank in the open process group, otherwise
            in the launcher's variables (torchrun, ``lockstep run``, mpirun, srun), otherwise 0 of
            1.
        world_size: the number of ranks; required with ``rank``.
        compare: whether ranks compare seed, data and position at the first batch of each pass, if a
            process group is open. Every rank must then ask for that batch.

    Raises:
        ConfigError: ``seed`` is not a whole number, ``rank`` is out of range, or two sources of it
            disagree.
        DataError: the loader is split over ranks already, or can be read only once.
    """
    if isinstance(seed, bool) or not isinstance(seed, int):
        raise ConfigError(f"resumable(seed={seed!r}): a seed is a whole number, the same on every rank")
    check_not_split(loader)
    return ResumableLoader(loader, seed=seed, place=find_place(rank, world_size), compare=compare)
