"""``lockstep replay``: repeat steps of a run, and look into them."""

from __future__ import annotations

import dataclasses
import os
import shlex
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click

from lockstep._base.errors import ConfigError, LaunchError, UsageError
from lockstep._cli.echo import echo, echo_json
from lockstep._cli.options import CONTEXT
from lockstep._events.history import read_events
from lockstep._launch.gpus import num_gpus_here
from lockstep._launch.options import LaunchOptions
from lockstep._launch.script import Interruption, run_script
from lockstep._tools.replay import culprits, step_names
from lockstep._tools.replay.confirm_program import reason_to_confirm
from lockstep._tools.replay.digests import Digests, read_digests
from lockstep._tools.replay.directory import checkpoint_before, make_directory
from lockstep._tools.replay.record import RunRecord, read_record
from lockstep._tools.replay.request import Request
from lockstep._tools.replay.shown import Recorded, lines_of_steps, read_recorded
from lockstep._tools.replay.verdict import Verdict, compare_with_run
from lockstep._tools.trials.study import new_directory
from lockstep._world.machine.sizes import counted

_DIRECTORY = Path("replays")
_STATUS = {"equal": 0, "equal up to rounding": 0, "different": 1, "unknown": 3}
_EPILOG = """
\b
Examples:
  lockstep replay runs/train-1 --step 1234
      that step's losses, samples, gradient norms, learning rates; one process
  lockstep replay runs/train-1 --step nan --blame
      the first step with a NaN, and the sample that causes it
  lockstep replay runs/train-1 --step worst-loss --shard 2 --out batch.pt
      the step with the largest loss: one shard, its batch in a file
  lockstep replay runs/train-1 --step 1234 --script changed.py
      another script, for example with `if team.step == 1234: breakpoint()`

The run directory is only read. The replay writes its files to replays/RUN-step-N; with --json, also the script's output.

The run's files name the program to execute. If they belong to another user or were copied, or if the script has changed
since, the command shows the program and asks for confirmation.

Exit status: 0 if the replay's digests equal the run's (with strategy ddp: losses up to rounding), 1 if not, 2 if the step
cannot be replayed, 3 if the run has no digests to compare with; the script's exit status if it fails.
"""


@dataclass(frozen=True, kw_only=True)
class _Options:
    """The options of the command; None: not given."""

    step: str
    last: int | None
    shard: int | None
    nproc: int
    with_samples: bool
    out: Path | None
    blames: bool
    script: Path | None
    as_json: bool
    is_confirmed: bool


@dataclass(frozen=True, kw_only=True)
class _Program:
    """The program of a run, according to its journal."""

    target: str
    is_module: bool
    args: tuple[str, ...]
    cwd: Path


@click.command("replay", epilog=_EPILOG, context_settings=CONTEXT)
@click.argument("run", metavar="RUN", type=click.Path(path_type=Path))
@click.option("--step", required=True, metavar="N", help="Step to replay: a number, nan, or worst-loss.")
@click.option("--to", "last", type=click.IntRange(min=1), metavar="M", help="Last step to replay.  [default: N]")
@click.option(
    "--shard",
    type=click.IntRange(min=0),
    metavar="S",
    help="Replay one shard only, and show its gradient.  [default: all]",
)
@click.option("--nproc", type=click.IntRange(min=1), default=1, metavar="N", help="Number of processes.  [default: 1]")
@click.option("--samples", "with_samples", is_flag=True, help="List all samples instead of the first of each shard.")
@click.option(
    "--out",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="Save the batches of the steps to FILE, for torch.load.",
)
@click.option(
    "--blame", "blames", is_flag=True, help="Replay the worst shard sample by sample, and list the samples that cause it."
)
@click.option(
    "--script",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="Script to run, for example a changed one.  [default: the run's]",
)
@click.option("--json", "as_json", is_flag=True, help="Print a JSON object.")
@click.option(
    "--yes",
    "is_confirmed",
    is_flag=True,
    help="Do not ask before running the program, even if it may belong to another user.",
)
def command(run: Path, **values: Any) -> int:
    """Recompute a step of the run in the directory RUN, on one process, and show its samples and
    losses.

    The replay resumes from the newest checkpoint before the step, or starts from the beginning,
    with the run's script, arguments and settings. It reports whether its digests equal the run's.
    With the default strategy, exact, they are equal for any number of processes of the run."""
    options = _Options(**values)
    record, digests = read_record(run), _digests_of(run)
    first, remark = _find(options.step, record, digests)
    last = options.last or first
    known = max([record.last_step, *(digests.numbers() if digests is not None else ())])
    record = dataclasses.replace(record, last_step=known)
    _check(record, first, last, options)
    program = _program(record, first, options.script)
    say = _ignore if options.as_json else echo
    if remark:
        say(remark)
    _confirm(program, reason_to_confirm(record, record.start_of(first), runs_recorded=options.script is None), options)
    checkpoint = checkpoint_before(run, first, say)
    request = Request(
        run=str(run.resolve()),
        after=0 if checkpoint is None else checkpoint[1].step,
        first=first,
        last=last,
        shard=options.shard,
        every=0 if digests is None else digests.every,
        device=record.birth.device,
        strategy=str(record.command.settings.get("strategy") or "auto"),
        out=None if options.out is None else str(options.out.resolve()),
    )
    start = None if checkpoint is None else checkpoint[0].resolve()
    replayer = _Replayer(program, start, options.nproc, say, log_output=options.as_json)
    directory, failure = replayer.replay(request)
    recorded = read_recorded(directory)
    if recorded is None or first not in recorded.run.steps:
        raise failure or UsageError(
            f"the script finished before step {first}. It, or its dataset, may have changed since the run.",
            code="replay-too-short",
        )
    verdict = compare_with_run(request, record, _start_of(directory), digests, recorded.digests)
    for line in lines_of_steps(request, recorded, with_samples=options.with_samples):
        say(line)
    if options.out is not None:
        say(f"saved the batches to {options.out}")
    for line in verdict.lines:
        say(line)
    place, samples = _blame(replayer, request, recorded, say) if options.blames else (None, [])
    if options.as_json:
        echo_json(_as_json(directory, request, recorded, verdict, place, samples))
    if failure is not None:
        raise failure
    return _STATUS[verdict.status]


def _ignore(line: str) -> None:
    """Replaces ``echo`` where a program reads the output."""


def _digests_of(run: Path) -> Digests | None:
    try:
        return read_digests(run)
    except UsageError:
        return None


def _find(step: str, record: RunRecord, digests: Digests | None) -> tuple[int, str]:
    """The step, and a remark on how it was found."""
    if step.isdecimal():
        return int(step), ""
    if step not in step_names.NAMES:
        raise UsageError(
            f"--step {step} is neither a number nor one of {', '.join(step_names.NAMES)}", code="replay-unknown-step-name"
        )
    if digests is None:
        raise UsageError(
            f"--step {step} needs a digest journal, and {record.path} has none. Pass the number of the step.",
            code="replay-no-journal",
        )
    return step_names.step_with_nan(digests) if step == "nan" else step_names.step_with_worst_loss(digests)


def _check(record: RunRecord, first: int, last: int, options: _Options) -> None:
    """Check that the steps can be replayed like this, on this machine.

    Raises:
        UsageError: the run has no such step or shard, or options exclude each other.
        ConfigError: the run needs a GPU.
    """
    shard, nproc, num_shards = options.shard, options.nproc, counted(record.birth.shards, "shard")
    if not 1 <= first <= last:
        raise UsageError(
            f"--step {first} --to {last}: steps count from 1, and M must not be less than N", code="replay-step-range"
        )
    if last > record.last_step:
        raise UsageError(
            f"step {last} was never taken: the last step of {record.path} is {record.last_step}",
            code="replay-step-after-end",
        )
    if shard is not None and shard >= record.birth.shards:
        raise UsageError(f"--shard {shard}: the run has {num_shards}, numbered from 0", code="replay-unknown-shard")
    if nproc > record.birth.shards:
        raise UsageError(
            f"--nproc {nproc}: the run has {num_shards}, and each process needs at least one",
            code="replay-too-many-processes",
        )
    if nproc > 1 and options.blames:
        raise UsageError(
            f"--nproc {nproc} with --blame: --blame needs one process that runs all shards", code="replay-blame-processes"
        )
    if record.command.number > 0:
        raise UsageError(
            f"{record.path} is run number {record.command.number + 1} of several in one process, so replaying it would repeat "
            "the earlier ones. Give the script an argument that starts with this run.",
            code="replay-several-runs",
        )
    if record.birth.device == "cuda" and num_gpus_here() == 0:
        raise ConfigError(
            f"{record.path} was trained on a GPU, and this machine has none. Results are bit-identical only on the same kind "
            "of device. Replay it on a machine with such a GPU.",
            code="replay-needs-gpu",
        )


def _program(record: RunRecord, step: int, script: Path | None) -> _Program:
    start = record.start_of(step)
    args = tuple(start.get("args", record.command.args))
    cwd = Path(start.get("cwd") or Path.cwd())
    if script is not None:
        return _Program(target=str(script.resolve()), is_module=False, args=args, cwd=cwd)
    if not record.command.script:
        raise UsageError(
            f"{record.path} was trained by a function or a notebook, so there is no script to run. Pass one with --script.",
            code="replay-no-script",
        )
    module = start.get("module")
    return _Program(target=module or record.command.script, is_module=module is not None, args=args, cwd=cwd)


def _confirm(program: _Program, doubt: str, options: _Options) -> None:
    """Show a program that may belong to another user, and ask whether to run it.

    Raises:
        UsageError: the user declined, or there is no terminal to ask.
    """
    if not doubt:
        return
    words = shlex.join([*(["-m"] if program.is_module else []), program.target, *program.args])
    echo(f"this would execute, with your permissions: python {words}", err=True)
    echo(f"  in {program.cwd}. Check it first, because {doubt}", err=True)
    if options.is_confirmed:
        return
    if not sys.stdin.isatty():
        raise UsageError(
            "nothing was run, because there is no terminal to ask for confirmation. Pass --yes to run it, or --script FILE to "
            "run your script with these arguments.",
            code="replay-cannot-ask",
        )
    if not click.confirm("Run it?", default=False, err=True):
        raise UsageError("nothing was run", code="replay-declined")


class _Replayer:
    """Repeats steps of a run, in separate directories.

    Args:
        program: what to run.
        checkpoint: the directory of the checkpoint to resume from; None: begin at the start.
        nproc: number of processes.
        say: prints a line.
        log_output: write the output of each rank to the replay's directory, not to the terminal.
    """

    def __init__(
        self, program: _Program, checkpoint: Path | None, nproc: int, say: Callable[[str], object], *, log_output: bool
    ) -> None:
        self._program = program
        self._checkpoint = checkpoint
        self._nproc = nproc
        self._say = say
        self._log_output = log_output
        self._parent = _DIRECTORY.resolve()

    def replay(self, request: Request) -> tuple[Path, LaunchError | None]:
        """Repeat the steps; returns the replay's directory, and how the script has failed."""
        is_shown = request.blamed_phase is None
        name = f"{Path(request.run).name}-step-{request.first}{'' if is_shown else '-blame'}"
        directory = new_directory(self._parent / name)
        make_directory(directory, Path(request.run), self._checkpoint)
        since = "the beginning" if self._checkpoint is None else self._checkpoint.name
        is_single = request.after + 1 == request.last
        steps = f"step {request.last}" if is_single else f"steps {request.after + 1} to {request.last}"
        self._say(f"replaying {steps} from {since}, in {directory}" if is_shown else "replaying the shard sample by sample")
        program = self._program
        if program.cwd.is_dir():
            os.chdir(program.cwd)
        else:
            self._say(f"the run's working directory {program.cwd} does not exist here; using {Path.cwd()}")
        options = LaunchOptions(
            nproc_per_node=self._nproc, is_module=program.is_module, log_dir=directory if self._log_output else None
        )
        asked = {"replay": {**dataclasses.asdict(request), "directory": str(directory)}}
        try:
            stopped = run_script(program.target, program.args, options, {}, asked=asked)
        except LaunchError as error:
            return directory, error
        if isinstance(stopped, Interruption):
            echo(stopped.message, err=True)
            sys.exit(stopped.status)
        return directory, None


def _start_of(directory: Path) -> dict[str, Any]:
    return next((event for event in read_events(directory) if event["event"] == "start"), {})


def _blame(
    replayer: _Replayer, request: Request, recorded: Recorded, say: Callable[[str], object]
) -> tuple[culprits.Place | None, list[culprits.Sample]]:
    """Replay the worst shard of the first step sample by sample, and print the samples that cause
    its loss; returns the shard (None: no shard has a loss) and all its samples."""
    place = culprits.worst_place(recorded.run, request.first, request.shard)
    if place is None:
        which = "no shard" if request.shard is None else f"shard {request.shard}"
        say(f"nothing to blame: {which} of step {request.first} has {'a' if request.shard is None else 'no'} loss")
        return None, []
    if recorded.batch_norm:
        say(
            f"to blame: {place.name} (loss {place.loss:.6g}). Its samples cannot be replayed one by one: "
            f"{recorded.batch_norm[0]!r} normalizes over all of them (BatchNorm)"
        )
        return place, []
    alone = dataclasses.replace(request, last=request.first, shard=place.shard, blamed_phase=place.phase)
    directory, failure = replayer.replay(alone)
    if failure is not None:
        say(f"to blame: {place.name}. Its samples could not be replayed one by one: the script fails on a single sample")
        raise failure
    samples = culprits.read_samples(directory)
    for line in culprits.describe(place.name, samples):
        say(line)
    return place, samples


def _as_json(
    directory: Path,
    request: Request,
    recorded: Recorded,
    verdict: Verdict,
    place: culprits.Place | None,
    samples: list[culprits.Sample],
) -> dict[str, Any]:
    return {
        **{name: value for name, value in dataclasses.asdict(request).items() if name != "blamed_phase"},
        "directory": str(directory),
        "verdict": verdict.status,
        "why": verdict.lines,
        "compared": None if verdict.comparison is None else dataclasses.asdict(verdict.comparison),
        "shards": [
            {**key._asdict(), "losses": line["losses"], "samples": [batch["samples"] for batch in line["batches"]]}
            for step in request.steps
            for key, ((_, line), *_) in recorded.run.shards_of(step)
            if request.shard in (None, key.shard)
        ],
        "norms": [
            {"step": step, "phase": phase, "norms": norms}
            for step in recorded.run.steps
            for phase, norms in enumerate(recorded.norms(step))
        ],
        "rates": {step: recorded.rates(step) for step in recorded.run.steps},
        "alone": [{"sample": sample.identity, "loss": repr(sample.loss)} for sample in samples],
        "blamed_in": None if place is None else {**dataclasses.asdict(place), "loss": repr(place.loss)},
        "blamed": [sample.identity for sample in culprits.culprits(samples)],
    }
