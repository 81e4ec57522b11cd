"""Counts lockstep's own instructions of a step and of a shard, by callgrind.

    python benchmarks/instructions.py

The model of loop_overhead.py, 32 samples a step that are fetched one by one, on one process with
one thread: the plain loop, the same in 8 micro-batches by hand, and lockstep with 1 and 8 shards.
callgrind counts the instructions of the thread that trains, step by step, from the 41st: the same
within 0.5 %, whatever else the machine does. Instructions are not time: code that has left the
caches takes longer. Needed are Debian's valgrind and a C compiler.

  own_step_k    thousands of instructions of a step with one shard, less those of the plain loop
  own_shard_k   of a step with 8 shards, less those of the micro-batches by hand, divided by 8
  ratio         instructions of a step with 8 shards / of micro-batches by hand: lower is better

The goals are 25 % above what was measured last: tests/benchmarks/test_instructions.py fails where
one of them is missed."""

from __future__ import annotations

import re
import shutil
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

import _harness as harness
from _crew import WORKERS, clean_environ

GOAL_STEP_K, GOAL_SHARD_K = 265.0, 510.0
SHARDS, FIRST = 8, 40
PLAIN, OURS, PARTS, OURS_PARTS = "by-hand-1", "lockstep-1", f"by-hand-{SHARDS}", f"lockstep-{SHARDS}"
_LIMIT_S = 1400


def missing() -> str | None:
    """What this machine lacks, or None."""
    if shutil.which("valgrind") is None:
        return "callgrind is in Debian's package valgrind, which is not installed"
    return None if shutil.which("cc") else "callgrind is called through a library in C, which needs a compiler, cc"


def count(steps: int) -> harness.Timings:
    """For each case thousands of instructions, step by step."""
    cases = [PLAIN, OURS, PARTS, OURS_PARTS]
    with tempfile.TemporaryDirectory() as scratch:
        library = f"{scratch}/counted.so"
        subprocess.run(["cc", "-O2", "-shared", "-fPIC", "-o", library, str(WORKERS / "counted.c")], check=True)
        options = {"first": FIRST, "steps": steps, "library": library, "dir": f"{scratch}/runs"}
        worker = [str(WORKERS / "counted.py"), ",".join(cases), *(f"--{name}={value}" for name, value in options.items())]
        tool = ["valgrind", "--tool=callgrind", "--instr-atstart=no", "--separate-threads=yes"]
        command = [*tool, f"--callgrind-out-file={scratch}/sums.%p", sys.executable, *worker]
        # by default strings have other hashes in each process, and dictionaries take other ways
        environ = clean_environ({"PYTHONHASHSEED": "0"})
        done = subprocess.run(command, env=environ, capture_output=True, text=True, timeout=_LIMIT_S, check=False)
        pids = dict(re.findall(r"^([a-z-]+-\d+) (\d+)$", done.stderr, flags=re.MULTILINE))
        if done.returncode or pids.keys() != set(cases):
            raise SystemExit(f"callgrind ended with status {done.returncode}. Its last words:\n{done.stderr[-4000:]}")
        return {case: _sums(Path(scratch), pids[case]) for case in cases}


def _sums(directory: Path, pid: str) -> list[float]:
    # sums.PID.3-01 has what the first thread did up to the third mark
    texts = [path.read_text() for path in directory.glob(f"sums.{pid}.*-01")]
    marked = [text for text in texts if "Trigger: Client Request" in text]
    return [int(total) / 1e3 for text in marked for total in re.findall(r"^totals: (\d+)", text, flags=re.MULTILINE)]


def main() -> None:
    parser = harness.make_parser(__doc__ or "", rounds=16)
    args = parser.parse_args()
    say, rounds = harness.speaker(args), harness.resolve_rounds(args)
    if reason := missing():
        print(reason, file=sys.stderr)
        raise SystemExit(77)
    say("counting, which takes one or two minutes ...")
    machine = harness.machine()
    counted = count(rounds)
    step, shard = (
        harness.paired_ratio(counted[OURS], counted[PLAIN]),
        harness.paired_ratio(counted[OURS_PARTS], counted[PARTS]),
    )
    say(harness.spread_table(counted, "k/step", {OURS: (PLAIN, step), OURS_PARTS: (PARTS, shard)}, digits=0))
    medians = {case: statistics.median(values) for case, values in counted.items()}
    own_step_k = medians[OURS] - medians[PLAIN]
    own_shard_k = (medians[OURS_PARTS] - medians[PARTS]) / SHARDS
    say(f"lockstep's own: {own_step_k:.0f} k of a step with one shard, {own_shard_k:.0f} k of each of {SHARDS} shards")
    harness.finish(
        {
            "benchmark": "instructions",
            "goal_step_k": GOAL_STEP_K,
            "goal_shard_k": GOAL_SHARD_K,
            "better": "lower",
            "own_step_k": round(own_step_k, 1),
            "own_shard_k": round(own_shard_k, 1),
            "goal_met": own_step_k <= GOAL_STEP_K and own_shard_k <= GOAL_SHARD_K,
            **harness.ratio_fields(shard),
            **harness.ratio_fields(step, "ratio_step"),
            "medians_k": harness.medians(counted),
            "coverage": round(shard.coverage, 4),
            **harness.circumstances(args, rounds, machine),
        }
    )


if __name__ == "__main__":
    main()
