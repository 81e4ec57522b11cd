"""What the soaks share: rounds of ``state/recovery/victim.py``, disturbed as a seed says, and what
must hold in the end.

Every sample of every epoch must have been used exactly once in the history that the final weights
come from, and the last words, which hold a digest of the weights, must be those of a run that
nobody disturbed.
"""

import argparse
import collections
import json
import os
import random
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

VICTIM = Path(__file__).with_name("state") / "recovery" / "victim.py"
KINDS = ("samples", "generator", "stream", "bookmarked", "ready")
RUN = [sys.executable, "-m", "lockstep._cli.main", "run"]
SHARDS = 4
EPOCHS, NUM_SAMPLES, STEPS = 3, 203, 39
TIMEOUT_S = 60.0


def options(directory: Path, timeout_s: float) -> dict[str, object]:
    """The settings of every launch of a round, by their names."""
    return {"shards": SHARDS, "threads": 1, "checkpoint_every": 3, "timeout_s": timeout_s, "run_dir": str(directory / "run")}


def run_options(nproc: int, settings: dict[str, object], *more: str) -> list[str]:
    """The options of ``lockstep run``, which stand before the script."""
    names = {"timeout_s": "timeout"}
    listed = [word for name, value in settings.items() for word in (f"--{dashed(names.get(name, name))}", str(value))]
    return ["--nproc", str(nproc), "--progress", "off", *listed, *more]


def dashed(name: str) -> str:
    return name.replace("_", "-")


def script(kind: str, step_s: float = 0.0) -> list[str]:
    return [str(VICTIM), kind, str(step_s)]


def words(output: str) -> dict[str, Any] | None:
    """The last words, if the run came to its end."""
    said = [line.partition("last words ")[2] for line in output.splitlines() if "last words " in line]
    return json.loads(said[-1]) if said else None


class Notes:
    """What the victims of one round have written down."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._notes = directory / "notes"

    def environment(self, launch: int, workers: int) -> dict[str, str]:
        """What a victim hears of it."""
        return {"VICTIM_LAUNCH": str(launch), "VICTIM_NOTES": str(self._notes), "VICTIM_WORKERS": str(workers)}

    def processes(self, launch: int) -> dict[int, tuple[int, str]]:
        """By rank: number and host of the processes that a launch has started last."""
        found: dict[int, dict[int, tuple[int, str]]] = collections.defaultdict(dict)
        for path in self._notes.glob(f"pid-{launch}.*"):
            _, attempt, rank = path.name.split("-")
            if text := path.read_text():  # it may be just being written
                pid, host = text.split()
                found[int(attempt.partition(".")[2])][int(rank)] = int(pid), host
        return found[max(found)] if found else {}

    def starts(self, launch: int) -> int:
        """How many times a launch has started its processes."""
        return len({path.name.split("-")[1] for path in self._notes.glob(f"pid-{launch}.*")})

    def batches(self, launch: int) -> int:
        """How many batches rank 0 has used in a launch."""
        return sum(path.read_bytes().count(b"\n") for path in self._notes.glob(f"used-{launch}.*-0"))

    def used(self) -> dict[int, collections.Counter[int]]:
        """By epoch: how often each sample was used in the history that the final weights come
        from."""
        attempts: dict[str, list[list[Any]]] = collections.defaultdict(list)
        for path in self._notes.glob("used-*"):
            lines = path.read_text().splitlines(keepends=True)
            attempts[path.name.split("-")[1]] += [json.loads(line) for line in lines if line.endswith("\n")]
        ordered = [
            attempts[name] for name in sorted(attempts, key=lambda name: tuple(map(int, name.split(".")))) if attempts[name]
        ]
        found: dict[int, collections.Counter[int]] = {epoch: collections.Counter() for epoch in range(EPOCHS)}
        for number, records in enumerate(ordered):
            # What a later launch did again counts no more.
            redone = min((step for later in ordered[number + 1 :] for _, step, _ in later), default=sys.maxsize)
            for epoch, step, indices in records:
                if step < redone:
                    found[epoch].update(indices)
        return found

    def resumed(self) -> int:
        """How many launches went on from a step after the beginning."""
        events = self._directory / "run" / "events.jsonl"
        return sum('"event": "resume"' in line for line in events.read_text().splitlines()) if events.exists() else 0


class Round:
    """One run, what is done to it, and how it goes on, all chosen by the seed."""

    def __init__(self, seed: int, directory: Path, kinds: tuple[str, ...] = KINDS) -> None:
        self.random = random.Random(seed)
        self.directory = directory
        self.kind = self.random.choice(kinds)
        self.notes = Notes(directory)
        self.story: list[str] = []
        self.seen: collections.Counter[str] = collections.Counter()
        self.wrong: list[str] = []
        """What must not be, besides what ``play`` looks for."""

    def run(self) -> dict[str, Any] | None:
        """To its end; returns the last words."""
        raise NotImplementedError

    def start(self, asked: list[str], *, env: dict[str, str], cwd: Path, output: IO[str]) -> subprocess.Popen[Any]:
        """Start ``lockstep run`` with these words, which writes into a file."""
        return subprocess.Popen([*RUN, *asked], env=env, cwd=cwd, stdout=output, stderr=subprocess.STDOUT)


@dataclass
class Tally:
    """What was seen in all rounds."""

    rounds: int = 0
    seen: collections.Counter[str] = field(default_factory=collections.Counter)
    resumed: int = 0
    lost: int = 0
    repeated: int = 0
    differing: int = 0
    failures: list[str] = field(default_factory=list)


def assert_nothing_was_lost(tally: Tally) -> None:
    assert not tally.failures, "\n\n".join(tally.failures)
    assert (tally.lost, tally.repeated, tally.differing) == (0, 0, 0)
    assert tally.resumed > 0


def undisturbed(one: Round, kind: str, nproc: int) -> dict[str, Any]:
    """The last words of a run that nobody disturbs, started as this round starts its own."""
    with tempfile.TemporaryDirectory() as name:
        directory = Path(name)
        asked = [*run_options(nproc, options(directory, 25)), *script(kind)]
        env = {**os.environ, **Notes(directory).environment(0, 0)}
        with (directory / "output").open("w") as file:
            process = one.start(asked, env=env, cwd=directory, output=file)
            try:
                status = process.wait(TIMEOUT_S)
            finally:
                process.kill()
                process.wait()
        said = (directory / "output").read_text()
        found = words(said)
        assert status == 0, said
        assert found is not None, said
        return found


def play(make: Callable[[int, Path], Round], seed: int, expected: dict[str, dict[str, Any]], tally: Tally) -> None:
    """One round; what it found is added to the tally. ``expected``: the last words by kind, as far
    as they are known."""
    directory = Path(tempfile.mkdtemp(prefix="soak-"))
    one = make(seed, directory)
    keep = False
    try:
        if one.kind not in expected:
            expected[one.kind] = undisturbed(one, one.kind, random.Random(seed).randint(1, SHARDS))
        said = one.run()
        whole, used = range(NUM_SAMPLES), one.notes.used()
        lost = sum(counts[index] == 0 for counts in used.values() for index in whole)
        repeated = sum(max(0, counts[index] - 1) for counts in used.values() for index in whole)
        tally.rounds += 1
        tally.seen += one.seen
        tally.resumed += one.notes.resumed()
        tally.lost += lost
        tally.repeated += repeated
        tally.differing += said != expected[one.kind]
        if lost or repeated or said != expected[one.kind] or one.wrong:
            keep = True
            story = "\n".join([f"round with seed {seed}, {one.kind}:", *one.story, *one.wrong])
            tally.failures.append(
                f"{story}\nlost {lost}, repeated {repeated}\nsaid {said}\nnot  {expected[one.kind]}\nin {directory}"
            )
    finally:
        if not keep:
            shutil.rmtree(directory, ignore_errors=True)


@dataclass
class Asked:
    """Of the command line of a soak."""

    seeds: range
    every: int


def read_arguments(description: str, rounds: int, every: int) -> Asked:
    """``rounds`` if the user does not say how many; told of after ``every`` so many."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("rounds", type=int, nargs="?", default=rounds, help=f"how many (default: {rounds})")
    parser.add_argument("--seed", type=int, default=0, help="of the first round; the next has the next one (default: 0)")
    asked = parser.parse_args()
    return Asked(seeds=range(asked.seed, asked.seed + asked.rounds), every=every)


def soak(asked: Asked, make: Callable[[int, Path], Round]) -> int:
    """All rounds, told of as they go; returns the exit status."""
    tally, failed = Tally(), 0
    expected: dict[str, dict[str, Any]] = {}
    began = time.monotonic()
    for number, seed in enumerate(asked.seeds, 1):
        play(make, seed, expected, tally)
        for failure in tally.failures:
            print(failure, flush=True)
        failed += len(tally.failures)
        tally.failures.clear()
        if number % asked.every == 0 or number == len(asked.seeds):
            seen = ", ".join(f"{count} {name}" for name, count in sorted(tally.seen.items()))
            print(f"{number}/{len(asked.seeds)} rounds in {time.monotonic() - began:.0f} s: {seen}", flush=True)
    figures = {**dict(sorted(tally.seen.items())), "resumes from a step > 0": tally.resumed}
    figures |= {"samples lost": tally.lost, "samples repeated": tally.repeated, "digests that differ": tally.differing}
    for name, figure in {**figures, "rounds that failed": failed}.items():
        print(f"{name:40}{figure}")
    # One round alone may have been struck before it had anything to go on from.
    return 1 if failed or (len(asked.seeds) > 1 and not tally.resumed) else 0
