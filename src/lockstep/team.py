"""``join()`` and ``Team``: the only place where the parts are put together."""

from __future__ import annotations

import atexit
import contextlib
import os
import sys
import traceback
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar, overload

import torch
from torch import Tensor, nn

from lockstep.allotment import misfits
from lockstep.checkpoint.store import Store
from lockstep.comm.agreement import compare_ranks
from lockstep.comm.collectives import Collectives
from lockstep.comm.group import Meeting, close_group, default_group
from lockstep.comm.spread import whole
from lockstep.config import RunConfig
from lockstep.cores import num_cores
from lockstep.data.evaluation import Evaluation, EvaluationSource
from lockstep.data.fetch import set_workers
from lockstep.data.loader import PreparedLoader
from lockstep.data.occasions import Occasions
from lockstep.data.sources import Share
from lockstep.data.streams import Purpose, derive, draw_on, reseed
from lockstep.errors import ConfigError, PeerError, UsageError, unknown_name
from lockstep.introduction import first_line, start_event
from lockstep.ledger import Ledger
from lockstep.loop import Loop
from lockstep.measure.journal import Journal
from lockstep.measure.log import MetricLog
from lockstep.measure.nan_watch import NanWatch
from lockstep.measure.passes import Meter
from lockstep.measure.progress import Shown, choose_display
from lockstep.precision import find_precision
from lockstep.prepare.model import unwrap
from lockstep.prepare.per_shard import PerShard
from lockstep.prepare.registered import check_registered
from lockstep.prepare.scaling import LossScaling
from lockstep.prepare.watched import Watched
from lockstep.preparing import Kept, Preparation
from lockstep.recovery.holdings import Holdings
from lockstep.recovery.journey import Journey
from lockstep.recovery.parted import PartedRanks
from lockstep.recovery.position import Route
from lockstep.recovery.resuming import Checkpoint, Restorer
from lockstep.recovery.saving import Saver
from lockstep.rundir.birth import Birth
from lockstep.rundir.lock import RunLock
from lockstep.stopping import StopWatch, say
from lockstep.sync.table import make_sync
from lockstep.world import World

if TYPE_CHECKING:  # imported where a run is traced
    from lockstep.measure.recorder import Recorder


_A = TypeVar("_A", bound=Kept)
_B = TypeVar("_B", bound=Kept)
_C = TypeVar("_C", bound=Kept)
_D = TypeVar("_D", bound=Kept)

_MOST_EVALUATED = 8
"""Loaders of evaluations that are kept, with their workers."""


@dataclass(frozen=True, kw_only=True)
class Place:
    """The run that a team works in."""

    run_dir: Path
    birth: Birth
    checkpoint: Checkpoint | None
    """That the run goes on from; None: it is new."""
    lock: RunLock | None
    """Of rank 0."""
    token: str
    """Of this launch, the same on every rank."""
    is_new: bool
    """Whether no launch has run in its directory before. (Known on rank 0.)"""
    notices: Sequence[str]
    """What rank 0 tells the user first."""


class Team(Collectives):
    """The processes of a run, seen from one of them, with the collectives of all of them. Made by ``join()``."""

    def __init__(
        self,
        config: RunConfig,
        world: World,
        devices: tuple[torch.device, ...],
        meeting: Meeting,
        place: Place,
        on_terminal: bool,
    ) -> None:
        assert config.shards is not None
        assert config.threads is not None
        assert config.seed is not None
        super().__init__(default_group(), meeting, lambda what: self._loop.check_outside(what))
        self.config = config
        """The settings of the run, all of them definite."""
        self.world = world
        self.local_rank = world.local_rank
        self.world_size = world.world_size
        self.is_main = world.rank == 0
        """Whether this is rank 0, which prints and writes."""
        self.devices = devices
        """The devices of this process: one, or as many as ``devices_per_process`` says."""
        self.device = devices[0]
        """The first of them, where batches come."""
        self.run_dir = place.run_dir
        self.num_shards = config.shards
        torch.set_num_threads(config.threads)
        draw_on(devices)
        self.seed = config.seed
        """Root of the run's random streams."""
        reseed(config.seed, Purpose.START)
        self._seed_of_start: int | None = torch.initial_seed()
        self._precision = find_precision(config.precision)
        self._lock = place.lock
        self._stop_watch = StopWatch(speaks=self.is_main)
        # Not guarded: the loop's own collectives come where all ranks are known to be.
        self._inner = Collectives(default_group(), meeting)
        self._recorder = None if config.trace == "off" else self._open_trace()
        checkpoint = place.checkpoint
        self._journal = Journal(place.run_dir if self.is_main else None, checkpoint.manifest.step if checkpoint else None)
        self._holdings = Holdings()
        self._saver = self._make_saver(place)
        self._restorer = self._make_restorer(checkpoint)
        self._parted = PartedRanks(self._holdings, self._inner)
        self._sync = make_sync(config.strategy, config, self.num_shards, meeting, devices)
        scaling = LossScaling(self.device.type) if self._precision.scales_loss else None
        is_plain = config.strategy in ("single", "dp") and self.num_shards == 1 == config.accumulate
        watched = Watched(self.num_shards, scaling, is_plain=is_plain)
        self._loop = Loop(
            config.seed,
            self.num_shards,
            self._sync,
            Ledger(self._inner, config.accumulate * -(-self.num_shards // self.world_size)),
            watched,
            Journey(_route(checkpoint), self._restorer, self._saver, self._parted, is_main=self.is_main),
        )
        self._preparation = Preparation(
            config, devices, self._share, self._sync, self._loop, self._inner, watched, self._holdings
        )
        self._preparation.recorder = self._recorder
        if scaling is not None:
            self._preparation.keep(scaling.scaler)
        self._log = self._listen(on_terminal)
        self._occasions = Occasions()
        self._evaluations: dict[int, tuple[Any, EvaluationSource]] = {}
        self._announced = False
        self._closed = False
        self._write_start()
        for notice in place.notices:
            self.print(f"lockstep: {notice}")
        if checkpoint is not None:
            self._journal.write("resume", step=checkpoint.manifest.step, checkpoint=checkpoint.path.name)
        elif not place.is_new:
            self._journal.write("resume", step=0, checkpoint=None)

    def _make_saver(self, place: Place) -> Saver:
        return Saver(
            store=Store(place.run_dir),
            every="off" if self.config.trace != "off" else self.config.interval,
            keep=self.config.keep,
            token=place.token,
            birth=place.birth,
            holdings=self._holdings,
            collectives=self._inner,
            journal=self._journal,
            is_main=self.is_main,
            stop_watch=self._stop_watch,
        )

    def _make_restorer(self, checkpoint: Checkpoint | None) -> Restorer | None:
        if checkpoint is None:
            return None
        config = self.config
        return Restorer(checkpoint=checkpoint, holdings=self._holdings, precision=config.precision, allow=config.allow)

    def _listen(self, on_terminal: bool) -> MetricLog:
        """Who is told of passes, steps and shards, in this order."""
        config = self.config
        display = choose_display(config.progress, is_main=self.is_main, on_terminal=on_terminal)

        def publish(epoch: int, step: int, values: dict[str, float]) -> None:
            self._journal.scalars("step", epoch, step, values)
            display.values(values)

        log = MetricLog(self.world_size, config.log_every, lambda row: publish(*row))
        watch = NanWatch(config.on_nan, self.rank, config.log_every)
        listeners = [self._parted, watch, log, self._saver, Meter(self._journal, self._inner), Shown(display)]
        self._loop.listen([*listeners, *([] if self._recorder is None else [self._recorder])])
        return log

    # Preparing

    # For type checkers: a loader becomes a PreparedLoader, all else stays what it is. Rarer orders are Any.
    @overload
    def prepare(self, one: _A, /) -> _A: ...
    @overload
    def prepare(self, loader: Iterable[Any], /) -> PreparedLoader: ...
    @overload
    def prepare(self, one: _A, two: _B, /) -> tuple[_A, _B]: ...
    @overload
    def prepare(self, one: _A, loader: Iterable[Any], /) -> tuple[_A, PreparedLoader]: ...
    @overload
    def prepare(self, one: _A, two: _B, three: _C, /) -> tuple[_A, _B, _C]: ...
    @overload
    def prepare(self, one: _A, two: _B, loader: Iterable[Any], /) -> tuple[_A, _B, PreparedLoader]: ...
    @overload
    def prepare(self, one: _A, two: _B, three: _C, four: _D, /) -> tuple[_A, _B, _C, _D]: ...
    @overload
    def prepare(self, one: _A, two: _B, three: _C, loader: Iterable[Any], /) -> tuple[_A, _B, _C, PreparedLoader]: ...
    @overload
    def prepare(
        self, one: _A, two: _B, three: _C, four: _D, loader: Iterable[Any], /
    ) -> tuple[_A, _B, _C, _D, PreparedLoader]: ...
    @overload
    def prepare(self, *objects: Kept | Iterable[Any]) -> Any: ...
    def prepare(self, *objects: Any) -> Any:
        """Make the script's objects take part in the run. Every rank must call it, with equal objects in equal order.

        Models are moved to ``team.device`` (with several devices a process they stay where the script has put them), and
        given rank 0's parameters and buffers; the returned model stands for the user's, with the same names, methods and
        attributes. Optimizers, schedules and ``AveragedModel`` are returned themselves. A ``DataLoader``, or any iterable of
        ready batches, becomes a loader that yields a ``Batch`` a step: this process's shards of it. Loaders for evaluation are
        not prepared: see ``evaluate``.

        Returns:
            What was given, prepared, in the same order: a tuple, or the one object if there was one.

        Raises:
            UsageError: something was prepared before, or is of a kind that cannot be prepared.
            ModelError: a model without parameters, already wrapped, or on devices of others; an optimizer of parameters
                that are not a prepared model's.
            DataError: a loader that cannot be dealt out.
            MismatchError: the ranks gave different objects.
        """
        self._take_script_seed()
        prepared = self._preparation.prepare(objects)
        if self._restorer is not None and not self._restorer.is_done:
            self._restorer.check_objects()
            self._restorer.check_loaders()
        for loader in prepared:
            if isinstance(loader, PreparedLoader):
                self._announce(loader)
                if self._recorder is None:  # a traced run is made to be looked at, and not gone on with
                    self._stop_watch.begin()
        return prepared[0] if len(prepared) == 1 else tuple(prepared)

    def _take_script_seed(self) -> None:
        """The script's seed is the run's, also where it calls ``torch.manual_seed`` after ``join``: then it is mixed in."""
        if self._seed_of_start is None:
            return
        found, before, self._seed_of_start = torch.initial_seed(), self._seed_of_start, None
        remedy = "Give torch.manual_seed() the same number on every rank: each shard has a random stream of its own anyway"
        compare_ranks("random seeds", [f"torch.manual_seed({found})"], self._inner, remedy)
        if found != before:
            self.seed = self._loop.seed = derive(self.seed, found) >> 1

    def _share(self, loader: int) -> Share:
        return Share(
            rank=self.rank,
            world_size=self.world_size,
            num_shards=self.num_shards,
            seed=self.seed,
            loader=loader,
            accumulate=self.config.accumulate,
        )

    def register(self, name: str, thing: Any) -> Any:
        """Make something of the script's own part of the run's state: it is in every checkpoint, and put back from it.

        Every rank must call it, before the training loop, with things that are the same on all ranks.

        Args:
            name: by which it is found again.
            thing: a tensor, a list or a dict (of tensors and plain values; they are filled again in place), a random
                generator, or an object with ``state_dict()`` and ``load_state_dict()``.

        Returns:
            The thing itself.

        Raises:
            UsageError: the name is taken, or the thing is of another kind.
        """
        if name in self._holdings.registered:
            raise UsageError(f"register({name!r}, ...): the name is taken, give each thing one of its own")
        check_registered(name, thing)
        self._holdings.registered[name] = thing
        return thing

    def per_shard(self, name: str, start: Any) -> PerShard:
        """State that goes from batch to batch, for each shard its own: an RNN's hidden state, say.

        Every rank must call it, before the training loop. In the loop over ``batch.shards``, ``value`` of what is returned is
        that of the shard that runs, to read and to set. It is in every checkpoint, and does not depend on the number of
        processes.

        Args:
            name: by which it is found again.
            start: what every shard begins with: each gets a copy. Tensors and plain values, and lists and dicts of them.
        """
        current = self._loop
        made = PerShard(
            name, start, self.num_shards, lambda: None if current.micro is None else current.micro.shard, self._inner
        )
        self.register(name, made)
        return made

    def best(self, metric: float, mode: str = "max") -> bool:
        """Keep the weights of all models in ``<run>/best`` if the metric is better than ever before in this run.

        Every rank must call it, outside of ``batch.shards``, with the same value: a result of ``evaluate``, say. The weights
        are written while training goes on; ``lockstep.load_weights(team.run_dir / "best")`` reads them.

        Args:
            metric: a number. NaN is never the best.
            mode: ``max`` if a larger one is better, ``min`` if a smaller one is.

        Returns:
            Whether it was the best.
        """
        self._loop.check_outside("team.best()")
        if self._loop.is_replaying:
            return False
        return self._saver.keep_best(float(metric), mode, self.step, self.epoch)

    def unwrap(self, model: nn.Module) -> nn.Module:
        """The user's own model behind a prepared one."""
        return unwrap(model)

    # In the loop

    @property
    def step(self) -> int:
        """Number of the step at hand, or of the last one outside of loops: steps taken so far in the run, from 1."""
        return self._loop.step

    @property
    def epoch(self) -> int:
        """Number of the epoch at hand, from 0."""
        return self._loop.epoch

    def epochs(self, num_epochs: int) -> Iterator[int]:
        """The epoch numbers, 0 to ``num_epochs - 1``. Every rank must iterate it to its end, or leave it alike.

        In a run that was interrupted they begin with the epoch in which that happened.
        """
        if num_epochs < 0:
            raise ConfigError(f"epochs({num_epochs}): it must be 0 or more")
        first = self._loop.enter_epochs(num_epochs)
        completed = False
        try:
            for epoch in range(first, num_epochs):
                self._loop.begin_epoch(epoch, num_epochs)
                yield epoch
                self._loop.end_epoch(epoch)
            completed = True
        finally:
            self._loop.leave_epochs(max(first, num_epochs) if completed else None)

    def backward(
        self, loss: Tensor, weight: float | Tensor | None = None, *, reduction: str | None = None, **options: Any
    ) -> None:
        """The backward pass of one shard, in place of ``loss.backward()``. Called inside ``batch.shards``.

        When the phase ends, ``sum(w_i * g_i) / sum(w_i)`` over all shards of all ranks is added to ``.grad``.

        Args:
            loss: a scalar: the mean over the shard's samples (or tokens, or whatever ``weight`` counts).
            weight: how much the shard counts, 0 or more; None: its number of samples. Give the number of tokens where the
                loss is a mean over tokens. All shards give one, or none does. A number on the CPU costs no waiting.
            reduction: ``mean`` (so it is understood), or ``sum`` for a loss that is a sum over the shard's samples
                (``reduction="sum"`` of PyTorch's losses): then the gradients of all shards are added up, and not divided.
            options: ``retain_graph``, ``create_graph``, ``inputs``, as for ``Tensor.backward``.

        Raises:
            UsageError: before ``prepare``, or outside of ``batch.shards``.
            ConfigError: an unknown reduction, or a sum with a weight.
            LossError: the loss is not a scalar, is NaN, or is a sum where nothing was said of it.
            ModelError: the loss no longer depends on some parameters.
        """
        if not self._preparation.has_models:
            raise UsageError("backward() before prepare(): prepare the model first, so that its gradients can meet")
        if reduction not in (None, "mean", "sum"):
            raise unknown_name("reduction", str(reduction), ("mean", "sum"))
        if reduction == "sum" and weight is not None:
            raise ConfigError("backward(weight=..., reduction='sum'): a sum is not weighted. Leave one of them out.")
        self._loop.backward(loss, None if weight is None else _check_weight(weight), reduction, options)

    def clip_grad_norm_(self, parameters: Iterable[Tensor] | Tensor, max_norm: float, norm_type: float = 2.0) -> Tensor:
        """``torch.nn.utils.clip_grad_norm_``, also of parameters that ``fsdp`` deals out. Every rank must call it.

        Returns:
            The norm before clipping, the same on every rank.
        """
        self._loop.check_outside("team.clip_grad_norm_()")
        parameters = [parameters] if isinstance(parameters, Tensor) else list(parameters)
        return whole(nn.utils.clip_grad_norm_(parameters, max_norm, norm_type))

    def autocast(self) -> contextlib.AbstractContextManager[Any]:
        """The context of the run's precision, for computation outside of a prepared model's forward pass."""
        return self._precision.autocast(self.device)

    def log(self, *, weight: float | None = None, **values: Any) -> None:
        """Write values to the run's journal, and show them. Never waits.

        Inside ``batch.shards`` they are averaged over all shards, by weight. Outside they must be the same on every rank, as
        ``batch[name]`` and results of evaluations are.

        Args:
            weight: how much this shard's values count; None: as in ``backward``, else its number of samples.
            values: numbers, or tensors with one element (which may be on a GPU, and stay there for now). None is left out.
        """
        if self._loop.is_replaying:
            return
        of_shard = self._loop.shard_weight()
        if of_shard is None and weight is not None:
            raise UsageError("team.log(weight=...) outside of batch.shards: there is nothing to be averaged there")
        weight = of_shard if weight is None else weight
        self._log.add(self.epoch, self.step, weight, values)

    # Evaluating

    def evaluate(
        self, model: nn.Module | Sequence[nn.Module], loader: Iterable[Any], metrics: Sequence[Any] = ()
    ) -> Evaluation:
        """Evaluate on all processes, with the result of one: see ``Evaluation``. Every rank must call it.

        Args:
            model: one or several, set to evaluation mode inside the block.
            loader: a plain ``DataLoader`` or iterable of ready batches. (Of a prepared one, what it was made from.)
            metrics: objects for ``Evaluation.update``, if a process may be without a batch.
        """
        self._loop.check_outside("team.evaluate()")
        batches = loader.wrapped if isinstance(loader, PreparedLoader) else loader
        if id(batches) not in self._evaluations:
            set_workers(batches, self.config.workers)
            self._evaluations[id(batches)] = (batches, EvaluationSource(batches, self._share(0)))
            while len(self._evaluations) > _MOST_EVALUATED:  # a script may make a loader for each
                del self._evaluations[next(iter(self._evaluations))]
        models = [model] if isinstance(model, nn.Module) else list(model)
        source = self._evaluations[id(batches)][1]
        return Evaluation(
            models,
            source,
            self._inner,
            self.device,
            self._evaluated,
            self._occasions.next(id(batches), self.step, in_step=self._loop.in_step),
            metrics,
            together=self._sync.forward_is_collective and self.world_size > 1,
        )

    def _evaluated(self, results: dict[str, float]) -> None:
        if self._loop.is_replaying:
            return
        self._journal.scalars("evaluate", self.epoch, self.step, results)
        if self._recorder is not None:
            self._recorder.evaluated(self.step, results)

    # Talking to the others

    def print(self, *values: Any, **options: Any) -> None:
        """``print``, on rank 0 only."""
        if self.is_main:
            print(*values, **{"flush": True, **options})

    @contextlib.contextmanager
    def main_first(self) -> Iterator[None]:
        """Rank 0 runs the block first, the others after it: for what should be done once, like a download.

        Every rank must enter it. If rank 0 fails in it, the others raise PeerError and do not run it.
        """
        self._loop.check_outside("team.main_first()")
        if not self.is_main and not self._inner.broadcast_object(None):
            raise PeerError("rank 0 failed in main_first(), so this rank did not run the block: see rank 0's error")
        done = False
        try:
            yield
            done = True
        finally:
            if self.is_main:
                self._inner.broadcast_object(done)

    # Beginning and end

    @property
    def is_closed(self) -> bool:
        """Whether the run is over for this process."""
        return self._closed

    def _write_start(self) -> None:
        host = self.world.host
        hosts = self._inner.all_gather_object(host) if self.world.num_nodes > 1 else [host] * self.world_size
        self._journal.write("start", **start_event(self.config, self.world, self.device, self._meeting, hosts))

    def _open_trace(self) -> Recorder:
        from lockstep.measure.recorder import Recorder

        recorder = Recorder(self.run_dir, self.rank, self.config.trace, self.config.trace_until)
        recorder.start(
            rank=self.rank,
            world_size=self.world_size,
            shards=self.num_shards,
            seed=self.seed,
            threads=self.config.threads,
            strategy=self.config.strategy,
            precision=self.config.precision,
            device=self.device.type,
            launcher=self.world.launcher,
        )
        recorder.watch_team(self)
        return recorder

    def _announce(self, loader: PreparedLoader) -> None:
        """One line that says what the run will do, at the first loader."""
        if self._announced:
            return
        self._announced = True
        line = first_line(loader, self.config, self.world, len(self.devices))
        self.print(f"{line}, {self._meeting}, run {self.run_dir}")
        if self.is_main:
            for misfit in misfits(
                self.world,
                num_cores=num_cores(),
                num_cards=torch.cuda.device_count() if self.device.type == "cuda" else 0,
                cards_each=len(self.devices) if self.device.type == "cuda" else 0,
                workers=getattr(loader, "num_workers", 0),
            ):
                say(misfit)

    def close(self) -> None:
        """Leave the run: write what is left, and close the process group. Called by itself when the script ends.

        Every rank must call it, unless the script has failed: then nothing is said to the others. It waits for them if a
        step was taken.
        """
        if self._closed:
            return
        self._closed = True
        atexit.unregister(self.close_at_exit)
        error = sys.exc_info()[1]
        went_well = error is None or (isinstance(error, SystemExit) and error.code in (None, 0))
        # Then the others may be gone, or not come.
        failed = self._loop.script_failed() or not went_well or self._saver.has_stopped
        try:
            self._loop.close(failed=failed)
            if not failed:
                self._journal.write("end", step=self.step)
                if self._stop_watch.received is not None and self.is_main:
                    say("the run came to its end, and need not be started again.")
        finally:
            self._stop_watch.end()
            self._journal.close()
            if self._lock is not None:
                self._lock.release()
            if self._recorder is not None:
                self._recorder.close(self.step, failed=failed)
            self._sync.close()
            self._inner.release()
            self.release()
            close_group()

    def close_at_exit(self) -> None:
        """``close``, where the process ends: an error must not pass for a success there, as Python has it."""
        try:
            self.close()
        except BaseException:
            traceback.print_exc()
            with contextlib.suppress(OSError):
                sys.stdout.flush()
                sys.stderr.flush()
            os._exit(1)

    def __enter__(self) -> Team:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _route(checkpoint: Checkpoint | None) -> Route:
    return Route() if checkpoint is None else Route(checkpoint.position, is_end=checkpoint.manifest.finished)


def _check_weight(weight: float | Tensor) -> float:
    number = float(weight)
    if not 0 <= number < float("inf"):
        raise ConfigError(f"backward(weight={number}): a weight is a count, 0 or more: of tokens, say")
    return number
