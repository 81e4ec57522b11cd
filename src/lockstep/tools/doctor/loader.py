"""Whether the loader of the user's script keeps up: runs the script for a while, and reads where its time goes."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from lockstep.journal.history import read_events
from lockstep.journal.measure.split import PARTS, notable_wait, sentence, shares_of
from lockstep.tools.doctor.finding import Finding, fail, ok, warn
from lockstep.tools.explain.black_box import box_path, read_box
from lockstep.tools.trials.trial import Observer, Trial, passable, run_trial

NAME = "loader"
_LOOK_EVERY_S = 0.5
_WARM_UP_STEPS = 3
"""Steps in which workers start, and libraries choose their kernels."""
_LEAST_STEPS = 5
_OVERRIDDEN = ("run_dir", "checkpoint_every", "trace", "trace_until", "profile", "progress")
"""Settings that the trial does not take from the run."""

Split = Mapping[str, float]


class Watch:
    """Reads where a running script's time goes, after its warm-up, from its black boxes.

    Args:
        run_dir: of the run.
        num_processes: of the run.
        long_s: how long to measure, in seconds.
    """

    def __init__(self, run_dir: Path, num_processes: int, long_s: float) -> None:
        self._run_dir, self._num_processes, self._long_s = run_dir, num_processes, long_s
        self._next_s = self._began_s = 0.0
        self._first: tuple[int, list[Split]] | None = None
        self.num_steps, self.splits = 0, list[Split]()
        """Measured so far; of each rank the seconds of each part."""

    def is_done(self) -> bool:
        """Read the black boxes if that is due. Returns whether enough was measured."""
        now = time.monotonic()
        if now < self._next_s:
            return False
        self._next_s = now + _LOOK_EVERY_S
        records = [read_box(box_path(self._run_dir, rank)) for rank in range(self._num_processes)]
        doing = [record["doing"] for record in records if record is not None]
        if len(doing) < self._num_processes:
            return False
        step, splits = doing[0]["step"], [sample["split"] for sample in doing]
        if step < _WARM_UP_STEPS:
            return False
        if self._first is None or sum(splits[0].values()) < sum(self._first[1][0].values()):  # another pass has begun
            self._first, self._began_s = (step, splits), now
            return False
        first_step, first = self._first
        if step > first_step:
            self.num_steps = step - first_step
            pairs = zip(splits, first, strict=True)
            self.splits = [{part: new[part] - old[part] for part in PARTS} for new, old in pairs]
        return self.num_steps >= _LEAST_STEPS and now - self._began_s >= self._long_s


def look(
    program: Sequence[str],
    num_processes: int,
    settings: Mapping[str, Any],
    long_s: float,
    limit_s: float,
    observer: Observer,
) -> dict[str, Any]:
    """Run a script for a while, in a temporary run directory.

    Args:
        program: the script and its arguments, as given to ``lockstep run``.
        num_processes: to run it with.
        settings: of the run, as given by the user.
        long_s: how long to measure steps, in seconds.
        limit_s: how long it may run, in seconds.
        observer: notified of its progress.

    Returns:
        The arguments of ``judge``.

    Raises:
        KeyboardInterrupt: Ctrl-C; all of its processes have ended.
    """
    passed = passable(settings, but=_OVERRIDDEN)
    with tempfile.TemporaryDirectory(prefix="lockstep-doctor-") as directory:
        watch = Watch(Path(directory, "run"), num_processes, long_s)
        trial = Trial(
            directory=Path(directory),
            name="run",
            program=tuple(program),
            launcher="lockstep",
            num_processes=num_processes,
            settings={**passed, "run_dir": str(Path(directory, "run")), "checkpoint_every": "off", "progress": "off"},
            timeout_s=limit_s,
            kill_when=watch.is_done,
        )
        record = run_trial(trial, observer)
        if record.status == "interrupted":
            raise KeyboardInterrupt
        splits, num_steps, joined = watch.splits, watch.num_steps, False
        try:
            events = list(read_events(trial.run_dir))
            joined = bool(events)
        except FileNotFoundError:
            events = []
        passes = [event for event in events if event["event"] == "epoch" and event["num_steps"]]
        if passes:  # a whole pass is more accurate
            splits, num_steps = passes[-1]["split"], passes[-1]["num_steps"]
    error = record.reason or "" if record.status == "failed" else ""
    return {"error": error, "joined": joined, "num_steps": num_steps, "splits": splits, "limit_s": limit_s}


def judge(*, error: str, joined: bool, num_steps: int, splits: Sequence[Split], limit_s: float) -> Finding:
    """Whether steps wait for the loader. ``splits``: of each rank, the seconds of each part in ``num_steps`` steps."""
    if error:
        return fail(f"the script failed: {error}", "run it with lockstep run, which shows the error in full")
    if not joined:
        return warn(
            "not measured: the script has not called lockstep.join(), so nothing tells where its time goes",
            "port it (`lockstep new` writes a script that does), or see torch.profiler",
        )
    if num_steps == 0:
        return warn(f"not measured: the script took too few steps within {limit_s:g} s", "give it longer: --seconds")
    shares = shares_of(splits)
    waits_s = sum(split["data"] for split in splits) / len(splits) / num_steps
    step_s = sum(sum(split.values()) for split in splits) / len(splits) / num_steps
    waits = f"waits {1e3 * waits_s:.1f} ms ({shares['data']:.0%}) for the loader"
    found = f"a step of {1e3 * step_s:.1f} ms {waits}, in {num_steps} steps"
    if notable_wait(shares) == "data":
        return warn(found, sentence(shares).partition("; ")[2])
    return ok(f"{found}; {sentence(shares).partition(';')[0]}")
