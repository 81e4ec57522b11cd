"""Checks whether reports identify planted faults and their ranks: under lockstep, under torchrun,
and with TraceML.

    python benchmarks/diagnosis.py

Each fault is planted on one of two to four ranks. lockstep runs a script written for it for some
(form "lockstep"), and for others the script that torchrun runs (form "unchanged"). It is judged
by the fields of its reports (``--reports``): a fault is named if a report has its rank and its
cause (the function that hangs, the signal, the collective, the slow activity) within 15 s of the
moment at which it shows. Slow ranks of unchanged scripts, and ranks that never meet, have about a
minute (see ``_faults.py``). If an earlier report has another rank or cause, the fault counts as
wrong, and not as named.

torchrun has TORCH_DISTRIBUTED_DEBUG=INFO (with DETAIL, torch 2.13 crashes where
DistributedDataParallel is created with Gloo) and the Flight Recorder, whose dumps, if there are
any, go through torchfrtrace. TraceML, which measures steps, is used for slow ranks only, with
torchrun's script and the two lines that TraceML needs; it reports when the training is finished.
Process groups time out after 40 s. For these two, the printed text counts, at any time: the rank
and the cause next to each other.

  named_*    the number of faults that each named; in the table: seconds from the moment at which
             the fault showed until it was named
"""

from __future__ import annotations

import argparse
import concurrent.futures
import math
import os
import shutil
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import _harness as harness
from _crew import WORKERS
from _faults import FAULTS, SOON_S, Fault
from _judging import LATE, NAMED, SILENT, WRONG, Verdict, judged, names
from _watched import REPORTS, Watched, watched

GOAL = 0.95
"""Of the faults."""
TOOLS = ("lockstep", "torchrun", "traceml")
_BEGINS_S = 60.0
"""In which a fault shows, after the command's start."""
_LATE_S = 20.0
"""How long a fault may still be named after its time, to see that it comes late."""
_LIMIT_S = 100.0
"""For one fault and another launcher: torchrun's ranks need the 40 s of the time limit, and time to
end."""
_NOT_PLANTED = "not planted"


def command_of(fault: Fault, tool: str) -> list[str]:
    """What a user would type."""
    command = [str(Path(sys.executable).with_name(tool)), *(["--standalone"] if tool == "torchrun" else ["run"])]
    if tool == "lockstep":
        command += ["--reports", REPORTS, *fault.options]
    form = "lockstep" if tool == fault.form == "lockstep" else "torchrun"
    script = WORKERS / ("alone.py" if fault.script == "alone" else f"{fault.script}_{form}.py")
    arguments = [fault.name, str(fault.rank)]
    if tool == "traceml":
        arguments = ["--args", *arguments, "traceml"]
    command += ["--nproc-per-node", str(fault.nproc), str(script), *arguments]
    if not fault.shared_memory:
        return command
    mount = f'mount -t tmpfs -o size={fault.shared_memory} tmpfs /dev/shm && exec "$@"'
    return ["unshare", "--mount", "sh", "-c", mount, "sh", *command]


def run_lockstep(fault: Fault) -> tuple[Verdict, str]:
    """What lockstep has reported of a fault; and what was printed."""
    with watched(command_of(fault, "lockstep")) as run:
        for _ in run.looks(_BEGINS_S):
            if run.fault_at is not None:
                break
        if (fault_at := run.fault_at) is None:
            return Verdict(_NOT_PLANTED), run.text
        verdict = Verdict(SILENT)
        for _ in run.looks(fault_at + fault.limit_s + _LATE_S - time.time()):
            verdict = judged(run.reports, fault, fault_at)
            if verdict.how in (NAMED, LATE, WRONG):
                break
        return verdict, run.text + "".join(f"{report}\n" for report in run.reports)


def run_other(fault: Fault, tool: str) -> tuple[Verdict, str]:
    """Whether another launcher has printed rank and cause; and what was printed."""
    environ = {
        "TORCH_DISTRIBUTED_DEBUG": "INFO",
        "TORCH_FR_BUFFER_SIZE": "2000",
        "TORCH_FR_DUMP_TEMP_FILE": "fr_",
        "TORCH_NCCL_DUMP_ON_TIMEOUT": "1",
    }
    with watched(command_of(fault, tool), environ if tool == "torchrun" else {}) as run:
        for _ in run.looks(_LIMIT_S):
            if names(run.text, fault):
                break
        text = run.text + analysed(run, fault)
        if not names(text, fault):
            return Verdict(SILENT), text
        return Verdict(NAMED, time.time() - (run.fault_at or math.nan)), text


def analysed(run: Watched, fault: Fault) -> str:
    """What the Flight Recorder's analyser makes of the dumps; nothing without any."""
    if not (dumps := sorted(run.directory.glob("fr_*"))):
        return ""
    tool = [str(Path(sys.executable).with_name("torchfrtrace")), str(run.directory), "-p", "fr_"]
    incomplete = ["--allow-incomplete-ranks"] if len(dumps) < fault.nproc else []
    done = subprocess.run([*tool, *incomplete], capture_output=True, text=True, timeout=60, check=False)
    return done.stdout + done.stderr


def run(fault: Fault, tool: str) -> tuple[Verdict, str]:
    """Returns the verdict on one fault under one launcher, and its output."""
    return run_lockstep(fault) if tool == "lockstep" else run_other(fault, tool)


def chosen(args: argparse.Namespace) -> Sequence[Fault]:
    """The faults that were asked for, and that can be planted here."""
    if args.quick:
        return [fault for fault in FAULTS if fault.name == "read_labels"]
    can_mount = os.geteuid() == 0 and shutil.which("unshare") is not None
    asked = [fault for fault in FAULTS if args.fault is None or args.fault in fault.name]
    return [fault for fault in asked if can_mount or not fault.shared_memory]


def applies(fault: Fault, tool: str) -> bool:
    """Whether a launcher is asked about a fault."""
    return tool != "traceml" or fault.group == "slow"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--fault", metavar="TEXT", help="only faults with this in their name")
    parser.add_argument("--group", metavar="TEXT", help="only faults of this group: stuck, calls, loader, ...")
    parser.add_argument("--only", choices=TOOLS, help="only this launcher")
    parser.add_argument("--at-a-time", type=int, default=1, metavar="N", help="number of runs at the same time (default: 1)")
    parser.add_argument("--show", action="store_true", help="show the output if a fault was not named")
    parser.add_argument("--quick", action="store_true", help="one fault: only check that it runs")
    parser.add_argument("--json", action="store_true", help="print the last line only")
    args = parser.parse_args()
    say, machine = harness.speaker(args), harness.machine()
    peers = harness.find_peers({"traceml": "traceml_ai"}, say)
    tools = [args.only] if args.only else ["lockstep", "torchrun", *peers]
    faults = [fault for fault in chosen(args) if args.group in (None, fault.group)]
    began = time.monotonic()
    with concurrent.futures.ThreadPoolExecutor(args.at_a_time) as pool:
        running = {
            (number, tool): pool.submit(run, fault, tool)
            for number, fault in enumerate(faults)
            for tool in tools
            if applies(fault, tool)
        }
        verdicts: dict[tuple[int, str], Verdict] = {}
        for (number, tool), future in running.items():
            verdict, text = future.result()
            fault, verdicts[number, tool] = faults[number], verdict
            say(f"{tool} {fault.name} ({fault.form}, rank {fault.rank} of {fault.nproc}): {verdict.how}, {verdict.cell}")
            if args.show and verdict.how != NAMED:
                say(f"{text}\n---")
    rows = [
        [fault.name, fault.group, fault.form, f"{fault.rank} of {fault.nproc}"]
        + [verdicts[number, tool].cell if (number, tool) in verdicts else "" for tool in tools]
        for number, fault in enumerate(faults)
    ]
    say("\n" + harness.table(["fault", "group", "form", "rank", *tools], rows))
    counts = {tool: Counter(verdict.how for (_, by), verdict in verdicts.items() if by == tool) for tool in tools}
    named = [verdict.seconds or 0.0 for (_, by), verdict in verdicts.items() if by == "lockstep" and verdict.how == NAMED]
    goal = math.ceil(GOAL * len(faults))
    harness.finish(
        {
            "benchmark": "diagnosis",
            "goal": goal,
            "better": "higher",
            "num_faults": len(faults),
            **{f"named_{tool}": counts[tool][NAMED] for tool in tools},
            "others_lockstep": {how: count for how, count in counts.get("lockstep", Counter()).items() if how != NAMED},
            "named_in_15_s_lockstep": sum(seconds <= SOON_S for seconds in named),
            "slowest_s_lockstep": round(max(named, default=0.0), 1),
            "goal_met": counts.get("lockstep", Counter())[NAMED] >= goal,
            "at_a_time": args.at_a_time,
            "took_s": round(time.monotonic() - began),
            "versions": harness.versions(["traceml-ai"]),
            "machine": machine,
        }
    )


if __name__ == "__main__":
    main()
