"""Counts false alarms in healthy runs that look stuck or slow for a while.

    python benchmarks/false_alarms.py

Runs of three processes, half of them in lockstep's own form and half unchanged torchrun scripts,
several at a time on the same cores. In each run, something makes the ranks wait: a slow first
step or first batch, a rank that begins late, rank 0 that evaluates or saves for 15 to 20 s, a
debugger's prompt, a launch that was suspended for 15 s, cores that other programs took. Or one
rank works between two steps for 16 s, at one line: it waits for another program, for a pool of
processes or threads that compute, for a loader whose batches arrive or whose first one takes
long; it computes in one call, downloads, or polls. Or the ranks have long steps, uneven steps,
steps in which only some of them meet, or no step for 90 s. A run counts as an alarm if a warning
was reported (``--reports``) that ranks wait, are slow, do not match or have parted. It counts as
failed if it did not exit with status 0.

  alarms   the number of alarms in so many runs. The goal is 0
"""

from __future__ import annotations

import argparse
import concurrent.futures
import itertools
import signal
import subprocess
import sys
import time
from pathlib import Path

import _harness as harness
import psutil
from _crew import WORKERS
from _watched import REPORTS, watched

NPROC = 3
LIMIT_S = 400.0
OF_ONE_RANK = (
    "begin_late",
    "compile_long",
    "read_first_slowly",
    "save_often",
    "run_tool",
    "compile_in_subprocess",
    "tokenize_in_pool",
    "compress_in_threads",
    "evaluate_batches",
    "evaluate_here",
    "evaluate_slow_batches",
    "evaluate_slow_batches_here",
    "wait_for_first_batch",
    "wait_for_slow_reads",
    "add_up",
    "derive_key",
    "download",
    "poll_for_job",
    "train_in_subset",
)
"""All cases. Those before ``OF_ONE_RANK`` are of rank 0, or of all ranks."""
CASES = (
    "evaluate_long",
    "save_long",
    "debug",
    "suspended",
    "stolen",
    "hold_interpreter",
    "accumulate_unevenly",
    "compute_alone",
    *OF_ONE_RANK,
)
FORMS = ("lockstep", "unchanged")
_TOOK_S = 15.0
"""The seconds for which a launch is suspended, or its cores are taken."""
_NO_ALARMS = ("failed", "lingering")
"""Kinds of reports that are no alarm; a warning of any other kind is a false alarm."""


def run(number: int, case: str, form: str) -> tuple[str, str]:
    """``ok``, ``alarm`` or ``failed``; and what was printed."""
    script = WORKERS / ("faulty_lockstep.py" if form == "lockstep" else "faulty_torchrun.py")
    name = case if case not in ("suspended", "stolen") else "train_long"
    again = number // (len(CASES) * len(FORMS))
    rank = (number + again) % NPROC if case in OF_ONE_RANK else 0
    launcher = [str(Path(sys.executable).with_name("lockstep")), "run", "--reports", REPORTS]
    with watched([*launcher, "--nproc-per-node", str(NPROC), str(script), name, str(rank)]) as healthy:
        if case == "suspended":
            suspend(healthy.process)
        elif case == "stolen":
            steal()
        for _ in healthy.looks(LIMIT_S):
            continue
        text = healthy.text + "".join(f"{report}\n" for report in healthy.reports)
        if any(report["is_warning"] and report["kind"] not in _NO_ALARMS for report in healthy.reports):
            return "alarm", text
        return ("ok" if healthy.process.poll() == 0 else "failed"), text


def suspend(process: subprocess.Popen[bytes]) -> None:
    """Suspends all processes for a while, like Ctrl-Z and fg, or a sleeping machine."""
    time.sleep(10)
    launcher = psutil.Process(process.pid)
    everybody = [launcher, *launcher.children(recursive=True)]
    for member in everybody:
        member.send_signal(signal.SIGSTOP)
    time.sleep(_TOOK_S)
    for member in everybody:
        member.send_signal(signal.SIGCONT)


def steal() -> None:
    """Others want the cores."""
    time.sleep(8)
    burn = [sys.executable, "-c", f"import time; end = time.monotonic() + {_TOOK_S}\nwhile time.monotonic() < end: pass"]
    for thief in [subprocess.Popen(burn) for _ in range(4)]:
        thief.wait()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=240, metavar="N", help="number of runs (default: 240)")
    parser.add_argument("--at-a-time", type=int, default=6, metavar="N", help="number of runs at the same time (default: 6)")
    parser.add_argument("--case", metavar="TEXT", help="only those with this in their name")
    parser.add_argument("--show", action="store_true", help="show the output of runs with an alarm or failure")
    parser.add_argument("--quick", action="store_true", help="two runs: only check that it works")
    parser.add_argument("--json", action="store_true", help="print the last line only")
    args = parser.parse_args()
    say, machine = harness.speaker(args), harness.machine()
    num_runs = 2 if args.quick else args.runs
    chosen = [case for case in CASES if args.case is None or args.case in case]
    cases = list(itertools.islice(itertools.cycle(itertools.product(chosen, FORMS)), num_runs))
    began = time.monotonic()
    counts = {pair: {"ok": 0, "alarm": 0, "failed": 0} for pair in dict.fromkeys(cases)}
    with concurrent.futures.ThreadPoolExecutor(args.at_a_time) as pool:
        running = {pool.submit(run, number, *pair): pair for number, pair in enumerate(cases)}
        for done, future in enumerate(concurrent.futures.as_completed(running), start=1):
            how, text = future.result()
            pair = running[future]
            counts[pair][how] += 1
            if how != "ok":
                say(f"[{done}/{num_runs}] {' '.join(pair)}: {how}" + (f"\n{text}" if args.show else ""))
            elif done % 20 == 0:
                say(f"[{done}/{num_runs}]")
    rows = [[*pair, *(str(number) for number in found.values())] for pair, found in counts.items()]
    say("\n" + harness.table(["what happens", "form", "well", "alarms", "failed"], rows))
    alarms, failed = (sum(found[how] for found in counts.values()) for how in ("alarm", "failed"))
    harness.finish(
        {
            "benchmark": "false_alarms",
            "goal": 0,
            "better": "lower",
            "runs": num_runs,
            "alarms": alarms,
            "failed": failed,
            "goal_met": alarms == failed == 0,
            "at_a_time": args.at_a_time,
            "took_s": round(time.monotonic() - began),
            "versions": harness.versions(()),
            "machine": machine,
        }
    )


if __name__ == "__main__":
    main()
