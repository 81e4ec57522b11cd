"""Checks that `lockstep tune` finds the best settings of a loader in a fraction of the time of a
sweep.

    python benchmarks/tune.py                        all five scripts of _loaders.py
    python benchmarks/tune.py --cases files,remote   some of them; --quick to check that it works

For each script, `lockstep tune` runs once, as a user runs it. A sweep then times all pairs of
loader workers and prefetch. The best settings of the sweep and the settings from tune are then
timed again alternately, in five rounds, so that chance favors neither.

  share      the median epoch of the sweep's best settings / of tune's settings: 1 is equally good
             (goal 0.95). If both are the same settings, it is 1, since two measurements of them
             would only compare the machine with itself.
  of_sweep   tune's time / the sweep's: one epoch of 1000 steps for each setting and the start of
             its run (goal 0.2). The sweep's epochs are computed from the speed of one second of
             steps, after the first ones, and from their first step.
  gain       the median epoch of the script's settings / of tune's settings
  digests    whether 40 steps with and without its --workers have the same digest
"""

from __future__ import annotations

import re
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import _harness as harness
import _loaders

import lockstep

SCRIPT = Path(_loaders.__file__)
WORKERS, PREFETCH = (0, 1, 2, 3, 4, 6, 8, 12, 16), (2, 4, 8)
Setting = tuple[int | None, int | None]
"""Workers, and prefetch if there are any."""


def settings(quick: bool) -> list[Setting]:
    """The settings of the sweep."""
    if quick:
        return [(0, None), (2, 2)]
    return [(0, None), *((workers, prefetch) for workers in WORKERS[1:] for prefetch in PREFETCH)]


class Case:
    """One script.

    Args:
        name: of the script, in ``_loaders.CASES``.
        directory: for what it writes.
        seconds: for how long each setting is timed.
    """

    def __init__(self, name: str, directory: Path, seconds: float) -> None:
        self.name, self.directory, self.seconds = name, directory, seconds
        self._runs = 0

    def epoch_s(self, setting: Setting) -> float:
        """An epoch under a setting."""
        self._runs += 1
        run_dir = str(self.directory / f"run-{self._runs}")
        (epoch_s,) = lockstep.launch(_loaders.time_epoch, self.name, *setting, self.seconds, run_dir, nproc=1)
        return epoch_s

    def command(self, *words: str) -> str:
        """What a lockstep command prints."""
        command = [sys.executable, "-m", "lockstep", *words]
        done = subprocess.run(command, cwd=self.directory, capture_output=True, text=True, check=False)
        if done.returncode:
            raise SystemExit(f"{' '.join(command)}\n{done.stdout}{done.stderr}")
        return done.stdout

    def tune(self) -> tuple[float, int | None]:
        """``lockstep tune``: how long it takes, and the number of workers that it names."""
        began_s = time.monotonic()
        found = re.search(r"lockstep run --workers (\d+)", self.command("tune", str(SCRIPT), self.name))
        return time.monotonic() - began_s, None if found is None else int(found[1])

    def digest(self, *options: str) -> str:
        """The digest of 40 steps under ``lockstep run``."""
        printed = self.command("run", "--fresh", "--progress", "off", *options, str(SCRIPT), self.name, "40")
        return next(line for line in printed.splitlines() if line.startswith("digest "))


def measure(case: Case, swept: list[Setting], rounds: int, say: Callable[[str], None]) -> dict[str, Any]:
    """Tune, sweep, and both results in turn."""
    tune_s, found = case.tune()
    own_workers = _loaders.CASES[case.name][1]
    own: Setting = (own_workers, 2 if own_workers else None)
    tuned = own if found is None else (found, 2 if found else None)
    began_s = time.monotonic()
    case.digest()
    start_s = time.monotonic() - began_s
    epochs_s = {setting: case.epoch_s(setting) for setting in swept}
    for (workers, prefetch), epoch_s in epochs_s.items():
        say(f"{case.name}: workers {workers}, prefetch {prefetch}: {1e3 * epoch_s / _loaders.STEPS:.2f} ms a step")
    best = min(epochs_s, key=lambda setting: epochs_s[setting])
    contenders = {name: (lambda setting=setting: case.epoch_s(setting)) for name, setting in
                  {"best": best, "tuned": tuned, "own": own}.items()}  # fmt: skip
    timings = harness.interleave(contenders, rounds, say)
    middle = {name: statistics.median(values) for name, values in timings.items()}
    ratio = round(middle["best"] / middle["tuned"], 4)
    return {
        "best": best,
        "tuned": tuned,
        "share_of_times": ratio,
        "share": 1.0 if best == tuned else ratio,
        "gain": middle["own"] / middle["tuned"],
        "tune_s": tune_s,
        "sweep_s": sum(epochs_s.values()) + start_s * len(epochs_s),
        "of_sweep": tune_s / (sum(epochs_s.values()) + start_s * len(epochs_s)),
        "ms": {name: round(1e3 * epoch_s / _loaders.STEPS, 2) for name, epoch_s in middle.items()},
        "digests": case.digest() == case.digest("--workers", str(tuned[0])),
    }


def _shown(setting: Setting) -> str:
    workers, prefetch = setting
    return f"{workers} x {prefetch or '-'}"


def main() -> None:
    parser = harness.make_parser(__doc__ or "", rounds=5)
    parser.add_argument("--cases", default=",".join(_loaders.CASES), help="names, with commas between (default: all)")
    args = parser.parse_args()
    rounds, say, here = harness.resolve_rounds(args, quick=1), harness.speaker(args), harness.machine()
    results: dict[str, dict[str, Any]] = {}
    _loaders.write_files()
    for name in args.cases.split(","):
        with tempfile.TemporaryDirectory() as scratch:
            case = Case(name, Path(scratch), 0.1 if args.quick else 1.0)
            results[name] = measure(case, settings(args.quick), rounds, say)
    rows = [
        [
            name,
            *map(_shown, (r["best"], r["tuned"])),
            *(f"{r['ms'][which]:.2f}" for which in ("best", "tuned", "own")),
            f"{r['share']:.3f}",
            f"{r['gain']:.2f}",
            f"{r['tune_s']:.1f}",
            f"{r['of_sweep']:.3f}",
            "equal" if r["digests"] else "DIFFER",
        ]
        for name, r in results.items()
    ]
    header = ["script", "best", "tuned", "ms best", "ms tuned", "ms own", "share", "gain", "tune s", "of sweep", "digests"]
    say(harness.table(header, rows))
    worst = min(result["share"] for result in results.values())
    harness.finish(
        {
            "benchmark": "tune",
            "goal": 0.95,
            "better": "higher",
            "share": round(worst, 4),
            "of_sweep": round(max(result["of_sweep"] for result in results.values()), 4),
            "digests_equal": all(result["digests"] for result in results.values()),
            "cases": results,
            "versions": harness.versions(("torch",)),
            "machine": here,
        }
    )


if __name__ == "__main__":
    main()
