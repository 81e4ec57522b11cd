"""Opens the listeners that trace a run."""

from __future__ import annotations

from lockstep._joining.instrument import Run
from lockstep._listener import Listener
from lockstep._tools.trials.settings import TrialSettings
from lockstep._tools.verify.diagnosis.first_gradient import FirstGradient
from lockstep._tools.verify.trace.lines import TraceWriter
from lockstep._tools.verify.trace.recorder import Recorder
from lockstep._tools.verify.trace.subjects import Subjects


def begin_trace(run: Run, level: str, checkpoint_every: int | str) -> TraceWriter:
    """Begin this process's trace with a line about the run.

    Args:
        run: that is traced.
        level: how much of it.
        checkpoint_every: of the run without a trace.
    """
    config, world = run.config, run.world
    writer = TraceWriter(run.run_dir, f"rank-{world.rank}")
    trial = TrialSettings(**run.requests.get("trials", {}))
    writer.write(
        event="start",
        level=level,
        rank=world.rank,
        world_size=world.world_size,
        shards=config.shards,
        seed=config.seed,
        threads=config.threads,
        strategy=config.strategy,
        precision=config.precision,
        device=run.devices[0].type,
        launcher=world.launcher,
        chosen=sorted(trial.chosen(run.script_settings)),
        checkpoint_every=checkpoint_every,
    )
    return writer


def open_trace(run: Run, level: str, until: int | None, checkpoint_every: int | str) -> list[Listener]:
    """Begin this process's trace. Returns the listeners, to be notified in this order.

    Args:
        run: that is traced.
        level: how much of it: see ``TraceOptions``.
        until: the step after which the script ends; None: with the run.
        checkpoint_every: of the run without a trace.
    """
    writer = begin_trace(run, level, checkpoint_every)
    subjects = Subjects(run.state.registered)
    observers = [FirstGradient(writer, subjects)] if level == "gradient" else []
    return [subjects, Recorder(writer, subjects, until), *observers]
