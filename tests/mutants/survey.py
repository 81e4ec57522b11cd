"""Plants faults in groups, and runs all tests: which faults does nothing see?

The tests of make test run first, then, for faults that they do not see, the others of CI. If all
pass, all faults of the group survive. Otherwise each runs alone on the tests that failed. This
takes as long as the tests, for each group: it is run by hand, after larger changes, also with
faults that tests/mutants has no rows of (make mutants SURVEY=1 FAULTS=FILE.toml). Rows need no
tests here.

The last line printed is JSON: how many there are, how many make test and CI see, and the survivors.
"""

import argparse
import json
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import descendants
import outcomes
from faults import HERE, Fault, RowError, read_faults
from tree_copies import copy_tree, environment, planted

ROOT = HERE.parents[1]
QUICK, LONG = "make test", "CI"
MARKS = {QUICK: "not long and not cuda", LONG: "long and not longest and not cuda"}
MOST_FAILED = 40  # of one run: what breaks everything hides what breaks little
ALONE_LIMIT_S = 300


@dataclass
class Ending:
    """How a run of tests ended: which failed or hung, and whether all of them ran."""

    failed: list[str]
    is_whole: bool
    seconds: float


@dataclass
class Result:
    name: str
    file: str
    room: str
    seen_by: str = ""  # make test, CI, or nothing
    test: str = ""  # one of those that fail


class Tests:
    """All tests of a tier, in a copy of the tree."""

    def __init__(self, root: Path, directory: Path, paths: Sequence[str], jobs: int) -> None:
        self.copy, self._directory, self._paths, self._jobs = directory / "tree", directory, list(paths), jobs
        copy_tree(root, self.copy)
        self._number = 0

    def run(self, faults: Sequence[Fault], tests: Sequence[str], *options: str, limit_s: float) -> Ending:
        file = self._directory / "outcomes"
        file.unlink(missing_ok=True)
        env = {**environment(self.copy), outcomes.VARIABLE: str(file)}
        fixed = ["-q", "-p", "no:cacheprovider", "-p", "outcomes", f"--basetemp={self._directory / 't'}"]
        fixed += ["--ignore=tests/mutants", "-n", str(self._jobs), "--dist", "loadfile", "--no-loadscope-reorder"]
        command = [sys.executable, "-m", "pytest", *fixed, *options, *tests]
        self._number += 1
        start = time.monotonic()
        with planted(self.copy, faults, self._number), (self._directory / "output").open("wb") as output:
            process = subprocess.Popen(
                command,
                cwd=self.copy,
                env=env,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,
            )
            try:
                status = process.wait(limit_s)
            except subprocess.TimeoutExpired:
                status = None
                process.kill()
                process.wait()
            finally:
                descendants.end_all()
        ended = outcomes.read_outcomes(file)
        if status not in (None, 0, 1, 2):  # 2: as many have failed as were asked for, or a file cannot be imported
            raise RowError(f"pytest ended with status {status}:\n{(self._directory / 'output').read_text()[-3000:]}")
        failed = [test for test, how in ended.items() if how in ("failed", "started")]
        return Ending(failed, status is not None and len(failed) < MOST_FAILED, time.monotonic() - start)

    def run_tier(self, faults: Sequence[Fault], tier: str, known: Sequence[str], limit_s: float) -> Ending:
        """Runs all tests of a tier, except tests that are known to fail."""
        left_out = [f"--deselect={test}" for test in known]
        return self.run(faults, self._paths, "-m", MARKS[tier], f"--maxfail={MOST_FAILED}", *left_out, limit_s=limit_s)


def groups_of(faults: Sequence[Fault], size: int) -> list[list[Fault]]:
    """Returns groups of faults in different files."""
    groups: list[list[Fault]] = []
    for fault in faults:
        for group in groups:
            if len(group) < size and all(fault.file != other.file for other in group):
                group.append(fault)
                break
        else:
            groups.append([fault])
    return groups


def seen_in(
    tests: Tests, group: Sequence[Fault], tier: str, known: Sequence[str], limit_s: float
) -> Iterator[tuple[Fault, str]]:
    """Yields the faults of a group that tests of the tier see, each with a test that fails."""
    left = list(group)
    while left:
        ending = tests.run_tier(left, tier, known, limit_s)
        print(f"  {len(left)} faults: {len(ending.failed)} tests failed in {ending.seconds:.0f} s", flush=True)
        if not ending.failed:
            return
        found = []
        for fault in left:
            alone = tests.run([fault], ending.failed, "-x", limit_s=ALONE_LIMIT_S)
            if alone.failed:
                found.append(fault)
                yield fault, alone.failed[0]
        left = [fault for fault in left if fault not in found]
        if not found:
            print(f"  with no fault alone: {', '.join(ending.failed)}", flush=True)
        if ending.is_whole or not found:
            return


def survey(tests: Tests, faults: Sequence[Fault], tiers: Sequence[str], size: int, out: Path | None) -> list[Result]:
    results = {fault.name: Result(fault.name, fault.file, fault.room) for fault in faults}
    for tier in tiers:
        sound = tests.run_tier([], tier, [], 7200)
        limit_s = 2 * sound.seconds + 300
        print(
            f"{tier} without a fault: {len(sound.failed)} tests failed in {sound.seconds:.0f} s", *sound.failed, flush=True
        )
        groups = groups_of([fault for fault in faults if not results[fault.name].seen_by], size)
        for number, group in enumerate(groups, 1):
            print(f"{tier}, group {number} of {len(groups)}", flush=True)
            for fault, test in seen_in(tests, group, tier, sound.failed, limit_s):
                results[fault.name].seen_by, results[fault.name].test = tier, test
                print(f"  seen: {fault.name}\n      by {test}", flush=True)
            for fault in group:
                if not results[fault.name].seen_by:
                    print(f"  not seen: {fault.name}", flush=True)
            if out is not None:
                out.write_text(json.dumps([asdict(result) for result in results.values()], indent=1) + "\n")
    return list(results.values())


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("tables", nargs="*", type=Path, metavar="FILE.toml", help="tables of faults (all of tests/mutants)")
    parser.add_argument("--only", default="", metavar="TEXT", help="only the faults that have this in their name")
    parser.add_argument("--tier", choices=("quick", "ci"), default="ci", help="quick: only the tests of make test")
    parser.add_argument("--group", type=int, default=8, metavar="N", help="faults that are planted together (8)")
    parser.add_argument("--tests", action="append", default=[], metavar="PATH", help="only the tests there, again for more")
    parser.add_argument("--jobs", type=int, default=2, help="test files that run at the same time (2)")
    parser.add_argument("--out", type=Path, metavar="FILE.json", help="write what each fault was seen by, after each group")
    asked = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that what has started is ended
    descendants.keep_orphans()
    try:
        faults = read_faults(asked.tables or sorted(HERE.glob("*.toml")), asked.only)
        faults = [fault for fault in faults if not fault.survives]
        for fault in faults:
            fault.planted_in((ROOT / "src" / "lockstep" / fault.file).read_text())
        with tempfile.TemporaryDirectory(prefix="mutants-", ignore_cleanup_errors=True) as directory:
            tests = Tests(ROOT, Path(directory), asked.tests, asked.jobs)
            results = survey(tests, faults, [QUICK, LONG] if asked.tier == "ci" else [QUICK], asked.group, asked.out)
    except (RowError, OSError) as error:
        print(error, file=sys.stderr)
        return 1
    by = {tier: sum(result.seen_by == tier for result in results) for tier in (QUICK, LONG)}
    survivors = [result.name for result in results if not result.seen_by]
    print(
        json.dumps({"faults": len(results), "seen_by_make_test": by[QUICK], "only_by_ci": by[LONG], "not_seen": survivors})
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
