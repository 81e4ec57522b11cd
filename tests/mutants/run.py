"""Plants the faults of tests/mutants/*.toml, one at a time, and runs the tests that must see each.

A row is a fault of one or two lines, as a refactoring makes:

    [[fault]]
    name = "Buffers are weighted by the last micro-batch of a shard"
    file = "_sync/buffers.py"      # below src/lockstep
    old = '''a text that is in the file once'''
    new = '''the text in its place'''
    tests = ["tests/sync/test_oracle.py::test_name"]   # one of them must fail

The tests run in a copy of the working tree. First all of them run without a fault: they must pass.
A row is then

    seen      if one of its tests fails,
    not seen  if all of them pass,
    wrong     if the row must be fixed: old is not in the file once, a test does not exist, is
              skipped, fails without the fault, or takes longer than --limit.

A row with survives = "why" instead of tests is listed, not run. The last line printed is JSON. The
exit status is 1 unless all rows are seen.
"""

import argparse
import json
import queue
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import outcomes
from faults import HERE, Fault, RowError, read_faults
from tree_copies import copy_tree, environment, planted

ROOT = HERE.parents[1]
BASELINE_LIMIT_S = 900
FAILED, INTERRUPTED, USAGE = 1, 2, 4  # exit statuses of pytest
SEEN, NOT_SEEN, WRONG, SURVIVES = "seen", "not seen", "wrong", "survives"


class Place:
    """A copy of the tree, and the process that forks pytest for it."""

    def __init__(self, root: Path, directory: Path) -> None:
        self.copy, self._output, self._outcomes = directory / "tree", directory / "output", directory / "outcomes"
        self._temporary = directory / "t"
        copy_tree(root, self.copy)
        env = {**environment(self.copy), outcomes.VARIABLE: str(self._outcomes)}
        self._process = subprocess.Popen(
            [sys.executable, "-P", HERE / "warm_pytest.py"],
            cwd=self.copy,
            env=env,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            bufsize=1,
        )

    def run(self, tests: Sequence[str], *options: str, limit_s: float) -> tuple[int | None, dict[str, str]]:
        """Runs these tests. Returns pytest's exit status, which is None if over the limit, and how
        each test ended."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._outcomes.unlink(missing_ok=True)
        fixed = ["-q", "-n0", "-p", "no:cacheprovider", "-p", "outcomes", f"--basetemp={self._temporary}"]
        request = {"args": [*fixed, *options, *tests], "output": str(self._output), "limit_s": limit_s}
        self._process.stdin.write(json.dumps(request) + "\n")
        answer = self._process.stdout.readline()
        if not answer:
            raise RuntimeError("the process that forks pytest has exited")
        return json.loads(answer)["status"], outcomes.read_outcomes(self._outcomes)

    def last_lines(self, number: int = 8) -> str:
        return "\n".join("    " + line for line in self._output.read_text(errors="replace").splitlines()[-number:])

    def close(self) -> None:
        with self._process:  # at the end of its requests it exits
            pass


@dataclass
class Verdict:
    fault: Fault
    result: str
    detail: str = ""
    seconds: float = 0.0


def passes(place: Place, tests: Sequence[str]) -> dict[str, str]:
    """Returns how each of the tests that pytest can find ends without a fault."""
    status, ended = place.run(tests, limit_s=BASELINE_LIMIT_S)
    if status in (USAGE, INTERRUPTED) and len(tests) > 1:  # then no test has run
        half = len(tests) // 2
        return passes(place, tests[:half]) | passes(place, tests[half:])
    if status in (USAGE, INTERRUPTED):
        print(place.last_lines(), flush=True)
    return ended


def reason_not_to_run(fault: Fault, text: str | None, without: dict[str, str]) -> str:
    """Returns why a row is wrong, as far as is known without its fault."""
    if text is None:
        return f"there is no src/lockstep/{fault.file}"
    try:
        fault.planted_in(text)
    except RowError as error:
        return str(error)
    if not fault.tests:
        return "it has no tests"
    for test in fault.tests:
        # a test with cases is named without them
        ended = {outcome for name, outcome in without.items() if name == test or name.startswith((f"{test}[", f"{test}::"))}
        if not ended:
            return f"{test} does not exist"
        if ended == {"skipped"}:
            return f"{test} is skipped"
        if not ended <= {"passed", "skipped"}:
            return f"{test} fails without the fault"
    return ""


def judge(fault: Fault, number: int, place: Place, without: dict[str, str], limit_s: float) -> Verdict:
    if fault.survives:
        return Verdict(fault, SURVIVES, fault.survives)
    file = place.copy / "src" / "lockstep" / fault.file
    if reason := reason_not_to_run(fault, file.read_text() if file.is_file() else None, without):
        return Verdict(fault, WRONG, reason)
    start = time.monotonic()
    with planted(place.copy, [fault], number):
        status, ended = place.run(fault.tests, "-x", limit_s=limit_s)
    seconds = time.monotonic() - start
    if status == FAILED:
        return Verdict(fault, SEEN, next(test for test, how in ended.items() if how == "failed"), seconds)
    if status == 0:
        return Verdict(fault, NOT_SEEN, "its tests pass", seconds)
    if status is None:
        return Verdict(fault, WRONG, f"its tests took longer than {limit_s:g} s", seconds)
    return Verdict(fault, WRONG, f"pytest ended with status {status}, not with a failed test\n{place.last_lines()}", seconds)


def in_places(places: Sequence[Place], work: Callable[[Place, Any], Any], tasks: Iterable[Any]) -> list[Any]:
    """Calls ``work(place, task)`` for all tasks, each place one at a time."""
    free: queue.SimpleQueue[Place] = queue.SimpleQueue()
    for place in places:
        free.put(place)

    def at_a_place(task: Any) -> Any:
        place = free.get()
        try:
            return work(place, task)
        finally:
            free.put(place)

    with ThreadPoolExecutor(len(places)) as threads:
        return list(threads.map(at_a_place, tasks))


def by_file(tests: Iterable[str], parts: int) -> list[list[str]]:
    """Deals the tests out, each file as a whole."""
    files: dict[str, list[str]] = {}
    for test in sorted(set(tests)):
        files.setdefault(test.split("::")[0], []).append(test)
    dealt: list[list[str]] = [[] for _ in range(parts)]
    for file in sorted(files, key=lambda name: -len(files[name])):
        min(dealt, key=len).extend(files[file])
    return [part for part in dealt if part]


def run(root: Path, faults: Sequence[Fault], *, jobs: int, limit_s: float) -> list[Verdict]:
    """Judges all faults, on copies of the tree ``root``, and prints a line for each."""
    say = threading.Lock()
    with tempfile.TemporaryDirectory(prefix="mutants-") as directory:
        places = [Place(root, Path(directory, str(number))) for number in range(jobs)]
        try:
            start = time.monotonic()
            named = by_file((test for fault in faults for test in fault.tests), jobs)
            without: dict[str, str] = {}
            for ended in in_places(places, passes, named):
                without |= ended
            print(f"{len(without)} tests without a fault: {time.monotonic() - start:.0f} s", flush=True)

            def one(place: Place, numbered: tuple[int, Fault]) -> Verdict:
                number, fault = numbered
                verdict = judge(fault, number, place, without, limit_s)
                with say:
                    print(f"{verdict.result:8} {verdict.seconds:5.1f} s  {fault.room}: {fault.name}", flush=True)
                    if verdict.result != SEEN:
                        print(f"    {verdict.detail}", flush=True)
                return verdict

            return list(in_places(places, one, enumerate(faults)))
        finally:
            for place in places:
                place.close()


def table(verdicts: Sequence[Verdict]) -> str:
    lines = [f"{'room':14}{'rows':>6}{'seen':>6}{'not seen':>10}{'wrong':>7}{'survive':>9}{'seconds':>9}"]
    for room in [*dict.fromkeys(verdict.fault.room for verdict in verdicts), "all"]:
        of = [verdict for verdict in verdicts if room in ("all", verdict.fault.room)]
        seen, not_seen, wrong, survive = (
            sum(v.result == result for v in of) for result in (SEEN, NOT_SEEN, WRONG, SURVIVES)
        )
        seconds = sum(verdict.seconds for verdict in of)
        lines.append(f"{room:14}{len(of):6}{seen:6}{not_seen:10}{wrong:7}{survive:9}{seconds:9.0f}")
    return "\n".join(lines)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("tables", nargs="*", type=Path, metavar="FILE.toml", help="only these (all of tests/mutants)")
    parser.add_argument("--only", default="", metavar="TEXT", help="only the rows that have this in their name")
    parser.add_argument("--jobs", type=int, default=2, help="rows that run at the same time (2)")
    parser.add_argument(
        "--limit", type=float, default=120, metavar="SECONDS", help="most that the tests of a row take (120)"
    )
    asked = parser.parse_args()
    start = time.monotonic()
    try:
        faults = read_faults(asked.tables or sorted(HERE.glob("*.toml")), asked.only)
    except RowError as error:
        print(error, file=sys.stderr)
        return 1
    verdicts = run(ROOT, faults, jobs=max(1, min(asked.jobs, len(faults))), limit_s=asked.limit)
    print(table(verdicts))
    answer: dict[str, Any] = {"rows": len(verdicts), "seen": sum(verdict.result == SEEN for verdict in verdicts)}
    for result in (NOT_SEEN, WRONG, SURVIVES):
        answer[result.replace(" ", "_")] = [verdict.fault.name for verdict in verdicts if verdict.result == result]
    print(json.dumps({**answer, "seconds": round(time.monotonic() - start)}))
    return int(bool(answer["not_seen"] or answer["wrong"]))


if __name__ == "__main__":
    sys.exit(main())
