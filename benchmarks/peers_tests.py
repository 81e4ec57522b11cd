"""Runs tests that other projects wrote for torchrun's processes, and checks that they end under
``lockstep run`` as they do under torchrun.

    python benchmarks/peers_tests.py --sources DIR

accelerate's test scripts, the scripts of transformers' Trainer, PyTorch's tests of Join and of DDP
hooks, torchft's integration tests (the table is ``_suites.py``), on CPU processes, unchanged, by
both launchers one after the other. Some are in the packages; others are read from checkouts in
DIR/transformers and DIR/pytorch, which need not be built.

  same        both pass, and their output to compare is equal; or pytest reports that the same
              tests pass, at least one
  different   one passes and the other does not, or their output differs
  cannot      neither passes: the test needs something that this machine or environment lacks

On a machine without a network, HF_HUB_OFFLINE=1 saves some minutes of requests for datasets.
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

import _harness as harness
import torch
from _crew import WORKERS, clean_environ
from _samples import end_session, last_error
from _suites import SCRIPTS, Script

LAUNCHERS = {
    "torchrun": ("torch.distributed.run", "--rdzv-backend", "c10d", "--rdzv-endpoint", "127.0.0.1:0"),
    "lockstep": ("lockstep", "run"),
}


@dataclass(frozen=True)
class End:
    """How a script ended under one launcher."""

    status: int | None
    """None: it did not end in time."""
    printed: str = ""
    wrote: bytes = b""

    def passed(self) -> set[str]:
        """The tests that pass, if pytest lists them."""
        return set(re.findall(r"^(\S*::\S+) PASSED", self.printed, re.MULTILINE))


def run(launcher: str, script: Script, target: list[str], directory: Path, limit_s: float) -> End:
    """Starts it in a separate directory, and waits for its end."""
    (directory / "out").mkdir(parents=True, exist_ok=True)
    if script.model:
        stand_in = [sys.executable, str(WORKERS / "tiny_model.py"), script.model]
        subprocess.run(stand_in, cwd=directory, check=True, capture_output=True)
    command = [sys.executable, "-m", *LAUNCHERS[launcher], "--nproc-per-node", str(script.nproc), *target, *script.args]
    with (directory / "printed.txt").open("w+") as printed:
        process = subprocess.Popen(
            command,
            cwd=directory,
            env=clean_environ({"ACCELERATE_USE_CPU": "true", **dict(script.environ)}),
            stdin=subprocess.DEVNULL,
            stdout=printed,
            stderr=printed,
            start_new_session=True,
        )
        try:
            status = process.wait(limit_s)
        except subprocess.TimeoutExpired:
            status = None
        finally:
            end_session(process)
        printed.seek(0)
        wrote = directory / script.wrote
        return End(status, printed.read(), wrote.read_bytes() if wrote.is_file() else b"")


def judge(theirs: End, ours: End) -> tuple[str, str]:
    """The verdict, and what speaks for it."""
    failed = [end for end in (theirs, ours) if end.status != 0]
    passed = f"{len(ours.passed())} tests pass" if ours.passed() else ""
    because = "" if not failed else "no end in time" if failed[0].status is None else last_error(failed[0].printed)
    if len(failed) == 1 or theirs.passed() != ours.passed():
        return "different", because or f"{len(theirs.passed())} tests pass under torchrun, {passed or 'none'} under lockstep"
    if not failed:
        return ("same", passed) if theirs.wrote == ours.wrote else ("different", "they wrote something else")
    return ("same", f"{passed}, others under neither: {because}") if passed else ("cannot", because)


def chosen(names: str | None, *, is_quick: bool) -> list[Script]:
    """The rows that were asked for: of whole suites, or single scripts."""
    if names is None:
        return list(SCRIPTS[: 1 if is_quick else None])
    wanted = set(names.split(","))
    unknown = wanted - {script.name for script in SCRIPTS} - {script.suite.name for script in SCRIPTS}
    if unknown:
        raise SystemExit(f"--only {','.join(sorted(unknown))}: neither a suite nor a script of _suites.py")
    return [script for script in SCRIPTS if {script.name, script.suite.name} & wanted]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sources", type=Path, metavar="DIR", help="checkouts of transformers and pytorch are here")
    parser.add_argument("--only", metavar="NAMES", help="these scripts or suites, with commas between them")
    parser.add_argument("--limit", type=float, default=200.0, metavar="SECONDS", help="for one script (default: 200)")
    parser.add_argument("--keep", type=Path, metavar="DIR", help="keep what was printed here")
    parser.add_argument("--quick", action="store_true", help="one script: see that it runs")
    parser.add_argument("--json", action="store_true", help="print the last line only")
    args = parser.parse_args()
    say, machine = harness.speaker(args), harness.machine()
    present = harness.versions({script.suite.package for script in SCRIPTS})
    rows, verdicts, gpus = [], dict[str, str](), torch.cuda.device_count()
    with tempfile.TemporaryDirectory() as scratch:
        for script in chosen(args.only, is_quick=args.quick):
            suite, name = script.suite, f"{script.suite.name} {script.name}"
            if suite.package not in present:
                say(f"{name}: left out, {suite.package} is not installed here ({sys.executable})")
                continue
            target, lacks = suite.target(script.name, args.sources), script.lacks(gpus)
            if lacks:
                verdict, because, statuses = "cannot", f"needs {lacks}", ["-", "-"]
            elif target is None:
                say(f"{name}: left out, --sources DIR with a checkout of {suite.wanted()} has it in {suite.where}")
                continue
            else:
                kept = (args.keep or Path(scratch)).resolve()
                ends = [run(by, script, target, kept / by / suite.name / script.name, args.limit) for by in LAUNCHERS]
                verdict, because = judge(*ends)
                statuses = ["no end" if end.status is None else str(end.status) for end in ends]
            rows.append([name, str(script.nproc), *statuses, verdict, because])
            verdicts[name] = verdict
            say(f"{name}: {verdict} {because}".rstrip())
    header = ["script", "processes", *(f"status, {name}" for name in LAUNCHERS), "verdict", "because"]
    say("\n" + harness.table(header, rows))
    harness.finish(
        {
            "benchmark": "peers_tests",
            "quick": args.quick,
            "goal": 0,
            "better": "lower",
            "different": sum(verdict == "different" for verdict in verdicts.values()),
            "goal_met": "different" not in verdicts.values(),
            "verdicts": verdicts,
            "versions": present,
            "machine": machine,
        }
    )


if __name__ == "__main__":
    main()
