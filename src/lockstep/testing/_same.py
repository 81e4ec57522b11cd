"""``same_at``: whether a function that trains computes the same on every number of processes."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import importlib
import inspect
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from lockstep._base.config import RunConfig
from lockstep._base.errors import LaunchError, LockstepError, UsageError
from lockstep._events.format import FILE_NAME
from lockstep._events.history import Tail, has_new_checkpoint
from lockstep._launch.local import check_fit
from lockstep._tools.check.files import read_function
from lockstep._tools.check.findings import Finding
from lockstep._tools.check.instrument import from_here
from lockstep._tools.trials.settings import TrialSettings
from lockstep._tools.verify.diagnosis.causes import NOT_SAVED, Diagnosis, conclude
from lockstep._tools.verify.diagnosis.experiments import investigate
from lockstep._tools.verify.diagnosis.setting import Setting
from lockstep._tools.verify.settings import step_to_kill_after
from lockstep._tools.verify.trace.differences import Difference, first_difference, first_fault
from lockstep._tools.verify.trace.lines import DIRECTORY, read_ranks
from lockstep._tools.verify.trace.traced_run import TracedRun, gather
from lockstep.testing._differing import in_results, in_traces
from lockstep.testing._errors import DifferenceError, TimeLimitError
from lockstep.testing._ranks import Returned
from lockstep.testing._request import LIMIT_S, Request
from lockstep.testing._trial import Trial, pack_tested, run_trial

T = TypeVar("T")


def same_at(
    worlds: Sequence[int],
    fn: Callable[..., T],
    *args: Any,
    shards: int | None = None,
    kill: bool = False,
    compare_result: bool = True,
    limit_s: float = LIMIT_S,
    **settings: Any,
) -> T:
    """Check that ``fn(*args)`` computes the same on each number of processes, and return its
    result.

    ``fn`` calls ``lockstep.join()`` and trains, as for ``lockstep.launch``. It runs once on each
    number of processes of this machine, in a temporary run directory. In every step the samples,
    losses, gradients, weights, buffers and optimizer states must be bit-identical. The first call
    in a process waits some seconds for the import of torch.

    Args:
        worlds: The numbers of processes. The others are compared with the first.
        fn: A function that can be imported. (With ``cloudpickle``, any other too.)
        args: Its arguments, which are pickled.
        shards: Number of shards of all runs; None: what ``fn`` passes to ``join()``, otherwise the
            smallest power of two that is sufficient.
        kill: Whether runs are also killed, by SIGKILL to all ranks, and resumed on another number
            of processes: one in its first epoch, and one in its last if there are several.
        compare_result: Whether the result of ``fn`` must be bit-identical on all ranks of all runs:
            numbers, texts, tensors, arrays, and containers of them.
        limit_s: The time limit of the whole, in seconds.
        settings: Further settings of every run, as for ``lockstep run``.

    Returns:
        What ``fn`` returned on rank 0 of the first run.

    Raises:
        DifferenceError: something differs; an ``AssertionError``. The message reports the first
            difference.
        TimeLimitError: it took longer than ``limit_s``. The message contains the line at which
            each rank was.
        LaunchError: a rank failed; the message has the first failure in full.
        ConfigError: an argument is invalid; nothing was started.
        UsageError: ``fn`` cannot be sent to other processes, never calls ``join()``, takes no step,
            returns what cannot be compared, or has too few steps to be killed.

    All processes have exited when it returns or raises, except a fork server, which the next call
    uses."""
    __tracebackhide__ = True
    request = Request(
        worlds=worlds, shards=shards, kill=kill, compare_result=compare_result, limit_s=limit_s, settings=settings
    )
    result: T = check_same(request, f"{getattr(fn, '__qualname__', repr(fn))}()", functools.partial(fn, *args))
    return result


def check_same(request: Request, name: str, fn: functools.partial[Any]) -> Any:
    """Like ``same_at``. ``name``: the name of the function, in messages."""
    __tracebackhide__ = True
    config = RunConfig.merge({**request.settings, "shards": request.shards}, {})
    for setting in request.runs():  # before anything is started
        check_fit(config, max(setting.world_size, setting.killed_at or 0))
    with tempfile.TemporaryDirectory(prefix="lockstep-test-") as directory:
        return _Test(request, name, fn, Path(directory)).run()


class _Test:
    """A call of ``same_at``."""

    def __init__(self, request: Request, name: str, fn: functools.partial[Any], directory: Path) -> None:
        self._request = request
        self._name = name
        self._function = fn.func
        self._call = pack_tested(fn)
        self._directory = directory
        self._deadline = time.monotonic() + request.limit_s
        self._reference: _Done | None = None
        """The first run."""
        self._num_experiments = 0

    def run(self) -> Any:
        """Run all settings, up to the first that differs. Returns the function's result."""
        for setting in self._request.runs():
            done = self._run_setting(setting)
            if done is None:
                continue
            self._reference = self._reference or done
            self._compare(done)
        assert self._reference is not None
        return self._reference.returned[0].value

    def _run_setting(self, setting: Setting) -> _Done | None:
        """Runs a setting to its end; None: there is no moment at which to kill it."""
        run_dir = self._directory / setting.slug
        if setting.killed_at is not None and not self._kill(setting, run_dir):
            return None
        try:
            returned = self._launch(setting, setting.label, run_dir, {"trace": "steps"})
        except TimeLimitError:
            raise
        except LaunchError as error:
            self._explain(setting, run_dir, error)
            raise
        assert returned is not None
        if (left_by := returned[0].left_by) is not None:
            outcome, reason = left_by
            # which raises it here as well
            getattr(importlib.import_module("pytest"), outcome)(reason)
        run = self._read(run_dir)
        if setting.killed_at is not None and min(run.steps) == 1:
            raise UsageError(
                f"{self._name} started over instead of resuming, with {setting.label}. See its output.", code="not-resumed"
            )
        return _Done(setting=setting, run=run, returned=returned)

    def _kill(self, setting: Setting, run_dir: Path) -> bool:
        """Run to a checkpoint, and kill all ranks one step later. Returns whether there is such a
        step."""
        assert self._reference is not None
        assert setting.killed_at is not None
        step = step_to_kill_after(self._reference.run, in_last_epoch=setting.in_last_epoch)
        if isinstance(step, str):
            if setting.in_last_epoch:  # it has one epoch, so the first is the last
                return False
            raise UsageError(f"kill=True, but {self._name} cannot be killed and resumed: {step}", code="cannot-be-killed")
        before = dataclasses.replace(setting, world_size=setting.killed_at, killed_at=None)
        event_log = Tail(run_dir / FILE_NAME)
        label = f"{before.label}, to be killed"
        kill_when = functools.partial(has_new_checkpoint, event_log)
        if self._launch(before, label, run_dir, {"checkpoint_every": step}, kill_when=kill_when) is not None:
            raise UsageError(
                f"{self._name} finished before its checkpoint of step {step} was on disk. Train for more steps.",
                code="cannot-be-killed",
            )
        return True

    def _launch(
        self,
        setting: Setting,
        label: str,
        run_dir: Path,
        instead: Mapping[str, Any],
        *,
        kill_when: Callable[[], bool] | None = None,
        is_silent: bool = False,
    ) -> list[Returned] | None:
        request = self._request
        of_function = TrialSettings(
            defaults={} if request.shards else {"shards": request.chosen_shards},
            instead={"run_dir": str(run_dir), "fresh": False, "progress": "off", **instead},
            is_held=kill_when is not None,
        )
        asked = {} if request.shards is None else {"shards": request.shards}
        trial = Trial(
            call=self._call,
            label=label,
            num_processes=setting.world_size,
            settings={**asked, **request.settings},
            of_function=of_function,
            deadline=self._deadline,
            limit_s=request.limit_s,
            kill_when=kill_when,
            is_silent=is_silent,
        )
        return run_trial(trial)

    def _read(self, run_dir: Path) -> TracedRun:
        ranks = read_ranks(run_dir, DIRECTORY)
        if not ranks:
            raise UsageError(
                f"{self._name} did not call lockstep.join(), so there is nothing to compare. The function must join and "
                "train, like a script under lockstep run.",
                code="not-joined",
            )
        if not any(line["event"] == "step" for line in ranks[0]):
            raise UsageError(
                f"{self._name} joined but took no step, so there is nothing to compare. Prepare a model and a loader, and "
                "iterate over the prepared loader.",
                code="no-step",
            )
        return gather(ranks)

    def _compare(self, done: _Done) -> None:
        """Raise the first difference among the ranks of a run, or from the first run."""
        reference = self._reference
        assert reference is not None
        difference = first_fault(done.run) or (None if done is reference else first_difference(reference.run, done.run))
        if difference is not None:
            raise self._in_traces(difference, done)
        if not self._request.compare_result:
            return
        for rank, returned in enumerate(done.returned):
            if returned.opaque:
                raise UsageError(
                    f"cannot compare the result of {self._name}: {returned.opaque}. Return numbers, texts, tensors, "
                    "arrays, or containers of them (for a model, its state_dict()), or pass compare_result=False.",
                    code="result-not-comparable",
                )
            first = reference.returned[0]
            findings = () if returned.leaves == first.leaves else self._findings(done.setting)
            error = in_results(self._name, done.returned[0], returned, done.setting, rank=rank) or in_results(
                self._name, first, returned, done.setting, reference=reference.setting, findings=findings
            )
            if error is not None:
                raise error

    def _explain(self, setting: Setting, run_dir: Path, error: LaunchError) -> None:
        """Raises a difference if a failed run shows one: what it computed before may be the
        reason."""
        try:
            run = self._read(run_dir)
        except LockstepError:
            return
        reference = self._reference
        difference = first_fault(run)
        if difference is None and reference is not None:
            difference = first_difference(reference.run, run, until=run.last_of_all)
        if difference is not None:
            raise self._in_traces(difference, _Done(setting=setting, run=run, returned=[]), failure=error.summary) from error

    def _in_traces(self, difference: Difference, done: _Done, failure: str = "") -> DifferenceError:
        reference = self._reference or done
        diagnosis = self._diagnose(difference, reference, done)
        findings = self._findings(done.setting)
        return in_traces(self._name, difference, reference.setting, done.setting, diagnosis, findings, failure)

    def _findings(self, setting: Setting) -> list[Finding]:
        """Returns findings in the source of the function that may explain why a run differs. Never
        raises."""
        with contextlib.suppress(Exception):
            file = inspect.getsourcefile(inspect.unwrap(self._function))
            assert file is not None
            found = read_function(from_here(Path(file)), self._function.__qualname__)
            is_resumed = setting.killed_at is not None
            return [finding for finding in found if (finding.restarts_on_resume if is_resumed else finding.differs)]
        return []

    def _diagnose(self, difference: Difference, reference: _Done, done: _Done) -> Diagnosis | None:
        """Returns the likely cause; None: there was no time to look for it."""
        if done.setting.killed_at is not None:
            return NOT_SAVED
        first = done if difference.among is not None else reference
        try:
            return conclude(investigate(difference, (first.setting, first.run), (done.setting, done.run), self._again))
        except TimeLimitError:
            return None

    def _again(self, setting: Setting, until: int | None) -> TracedRun | None:
        """Run a setting once more; None: it failed."""
        self._num_experiments += 1
        run_dir = self._directory / f"again-{self._num_experiments}"
        try:
            instead = {"trace": "steps", "trace_until": until}
            self._launch(setting, f"{setting.label}, again", run_dir, instead, is_silent=True)
            return self._read(run_dir)
        except TimeLimitError:
            raise
        except LockstepError:
            with contextlib.suppress(LockstepError):  # as far as it came
                return self._read(run_dir)
            return None


@dataclass(frozen=True, kw_only=True)
class _Done:
    """A finished run."""

    setting: Setting
    run: TracedRun
    returned: list[Returned]
    """The results by rank."""
