"""Tests that others wrote for torchrun's processes: do they end under ``lockstep run`` as they do under torchrun?

    python benchmarks/peers_tests.py

The scripts that accelerate brings to test a launcher (``accelerate.test_utils.scripts``), on two CPU processes, unchanged. Each
runs under both launchers.

  same        both pass
  different   one passes, the other does not
  cannot      neither passes: it needs what this machine or environment lacks
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
from pathlib import Path

import _harness as harness
from _crew import clean_environ
from _samples import end_session, last_error

NPROC = 2
LIMIT_S = 400.0
SCRIPTS = (
    "test_ops",
    "test_sync",
    "test_script",
    "test_distributed_data_loop",
    "test_ddp_comm_hook",
    "test_merge_weights",
    "external_deps.test_checkpointing",
    "external_deps.test_metrics",
    "external_deps.test_performance",
)
LAUNCHERS = {
    "torchrun": ("torch.distributed.run", "--rdzv-backend", "c10d", "--rdzv-endpoint", "127.0.0.1:0"),
    "lockstep": ("lockstep", "run"),
}


def run(launcher: str, script: str, directory: Path) -> tuple[int | None, str]:
    """Its status, or None if it does not end; and what was printed."""
    module = f"accelerate.test_utils.scripts.{script}"
    command = [sys.executable, "-m", *LAUNCHERS[launcher], "--nproc-per-node", str(NPROC), "-m", module]
    with (directory / f"{launcher}-{script}.txt").open("w+") as printed:
        process = subprocess.Popen(
            command,
            cwd=directory,
            env=clean_environ({"ACCELERATE_USE_CPU": "true"}),
            stdin=subprocess.DEVNULL,
            stdout=printed,
            stderr=printed,
            start_new_session=True,
        )
        try:
            status = process.wait(LIMIT_S)
        except subprocess.TimeoutExpired:
            status = None
        finally:
            end_session(process)
        printed.seek(0)
        return status, printed.read()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--scripts", metavar="NAMES", help="only these, with commas between them")
    parser.add_argument("--keep", type=Path, metavar="DIR", help="keep what was printed here")
    parser.add_argument("--quick", action="store_true", help="one script: see that it runs")
    parser.add_argument("--json", action="store_true", help="print the last line only")
    args = parser.parse_args()
    say, machine = harness.speaker(args), harness.machine()
    scripts = args.scripts.split(",") if args.scripts else SCRIPTS[: 1 if args.quick else None]
    rows, verdicts = [], {}
    with tempfile.TemporaryDirectory() as scratch:
        directory = args.keep or Path(scratch)
        directory.mkdir(parents=True, exist_ok=True)
        for number, script in enumerate(scripts, start=1):
            ended = {launcher: run(launcher, script, directory) for launcher in LAUNCHERS}
            passes = [status == 0 for status, _ in ended.values()]
            verdict = "same" if all(passes) else "different" if any(passes) else "cannot"
            because = "" if all(passes) else last_error(next(text for status, text in ended.values() if status != 0))
            rows.append(
                [script, *("no end" if status is None else str(status) for status, _ in ended.values()), verdict, because]
            )
            verdicts[script] = verdict
            say(f"[{number}/{len(scripts)}] {script}: {verdict} {because}".rstrip())
    say("\n" + harness.table(["script", *(f"status, {name}" for name in LAUNCHERS), "verdict", "because"], rows))
    harness.finish(
        {
            "benchmark": "peers_tests",
            "quick": args.quick,
            "goal": 0,
            "better": "lower",
            "different": sum(verdict == "different" for verdict in verdicts.values()),
            "goal_met": "different" not in verdicts.values(),
            "verdicts": verdicts,
            "versions": harness.versions(("accelerate", "transformers")),
            "machine": machine,
        }
    )


if __name__ == "__main__":
    main()
