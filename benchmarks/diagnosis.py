"""What is wrong, and with which rank: does it say so? 53 planted faults, under lockstep, under torchrun, and with TraceML.

    python benchmarks/diagnosis.py

Each fault is planted on one rank of three. lockstep runs a script of its own for some (form "lockstep"), and for others the
very script that torchrun runs (form "unchanged"). torchrun has TORCH_DISTRIBUTED_DEBUG=INFO (with DETAIL, torch 2.13 crashes
where DistributedDataParallel is made with Gloo) and the Flight Recorder, whose dumps, where there are any, go through
torchfrtrace. TraceML, which measures steps, is asked about the slow ones only, by torchrun's script with the two lines that
it needs; it speaks when the training is over. Process groups time out after 40 s. A fault counts as found when what was
printed names the rank and the cause (the function that hangs, the signal, the parameter, what it is slow in) next to each
other.

  found_*    so many, by each; in the table: seconds from the command's start until it was said, start-up included
"""

from __future__ import annotations

import argparse
import math
import os
import re
import selectors
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import _harness as harness
import psutil
from _crew import WORKERS, clean_environ

GOAL = 0.95
"""Of the faults."""
NPROC = 3
TOOLS = ("lockstep", "torchrun", "traceml")
LIMIT_S = 100.0
"""For one fault, and one launcher: torchrun's ranks need the 40 s of the time limit, and time to end."""
_END_S = 10.0
_NEAR = 12
"""Lines between the name of the rank and the cause."""


@dataclass(frozen=True)
class Fault:
    """One fault."""

    kind: str
    form: str
    """Of the script that lockstep runs: ``lockstep`` or ``unchanged``."""
    name: str
    """See workers/faults.py."""
    cause: str
    """A regular expression for what must be said. It is the same for both."""
    rank: int = 1
    options: tuple[str, ...] = ()
    """Of lockstep run."""


FAULTS = (
    Fault("stuck", "lockstep", "wait_for_licence", "wait_for_licence"),
    Fault("stuck", "unchanged", "wait_for_licence", "wait_for_licence", 2),
    Fault("stuck", "lockstep", "parse_caption", "parse_caption"),
    Fault("stuck", "unchanged", "update_cache", "update_cache", 0),
    Fault("stuck", "unchanged", "read_control_file", "read_control_file"),
    Fault("stuck", "lockstep", "refine_boxes", "refine_boxes", 0),
    Fault("stuck", "unchanged", "refine_boxes", "refine_boxes", 2),
    Fault("stuck", "lockstep", "poll_for_labels", "poll_for_labels"),
    Fault("stuck", "unchanged", "poll_for_labels", "poll_for_labels", 0),
    Fault("stuck", "unchanged", "save_weights", "saving a checkpoint"),
    Fault("stuck", "lockstep", "call_preprocessor", "call_preprocessor", 2),
    Fault("stuck", "unchanged", "call_preprocessor", "call_preprocessor", 0),
    Fault("stuck", "lockstep", "receive_weights", "receive_weights"),
    Fault("stuck", "unchanged", "receive_weights", "receive_weights", 2),
    Fault("stuck", "lockstep", "stop_this_process", "stopped by a signal|SIGSTOP"),
    Fault("stuck", "unchanged", "stop_this_process", "stopped by a signal|SIGSTOP", 2),
    Fault("stuck", "lockstep", "fetch_from_archive", "fetch_from_archive"),
    Fault("stuck", "unchanged", "fetch_from_archive", "fetch_from_archive"),
    Fault("stuck", "lockstep", "average_by_hand", "different collectives|average_by_hand"),
    Fault("stuck", "unchanged", "average_by_hand", "different collectives|Detected mismatch|average_by_hand", 2),
    Fault("stuck", "unchanged", "leave_the_loop", "ended first|has ended|ended early"),
    Fault("slow", "lockstep", "slow_forward", "slow.*forward|STRAGGLER.*FORWARD", 2),
    Fault("slow", "lockstep", "slow_layer", "slow.*backward"),
    Fault("slow", "lockstep", "decode_slowly", "slow.*loader|INPUT STRAGGLER", 0),
    Fault("slow", "lockstep", "write_images", "slow.*script", 0),
    Fault("slow", "lockstep", "clip_slowly", "slow.*script"),
    Fault("slow", "lockstep", "slow_forward", "slow.*forward|STRAGGLER.*FORWARD", 2, ("--strategy", "fsdp")),
    Fault("slow", "lockstep", "slow_layer", "slow.*backward", 0, ("--strategy", "fsdp")),
    Fault("stuck", "unchanged", "reduce_by_group", "reduce_by_group"),
    Fault("stuck", "lockstep", "reduce_by_group", "reduce_by_group", 2),
    Fault("stuck", "unchanged", "leave_out_group", "leave_out_group|process group"),
    Fault("stuck", "unchanged", "lock_index", "lock_index", 0),
    Fault("stuck", "lockstep", "lock_index", "lock_index"),
    Fault("stuck", "unchanged", "wait_for_cache", "fill-cache|fill_cache", 2),
    Fault("ends not", "unchanged", "leave_thread", "upload"),
    Fault("ends not", "unchanged", "leave_exit_handler", "flush_metrics", 2),
    Fault("ends not", "unchanged", "leave_child", r"renderer|child", 0),
    Fault("ends not", "lockstep", "leave_thread", "upload", 2),
    Fault("dead", "unchanged", "read_settings", "KeyError: 'depth'"),
    Fault("dead", "unchanged", "read_labels", "label 10 is not one of"),
    Fault("dead", "lockstep", "call_extension", "SIGSEGV|Signal 11|Segmentation"),
    Fault("dead", "unchanged", "kill_this_process", "SIGKILL|Signal 9"),
    Fault("dead", "unchanged", "leave_at_once", r"(status|exitcode|code)\W+3\b", 2),
    Fault("dead", "lockstep", "write_past_shared_memory", "/dev/shm|shared memory"),
    Fault("wrong", "unchanged", "unused_layer", r"spare\.weight", 2),
    Fault("wrong", "unchanged", "another_format", "of double", 2),
    Fault("wrong", "lockstep", "another_format", "float64", 2),
    Fault("wrong", "lockstep", "nudge_weights", "body.weight|weights"),
    Fault("wrong", "unchanged", "count_samples", "(?i)int.*float|float.*int"),
    Fault("wrong", "lockstep", "count_samples", "(?i)int.*float|float.*int", 2),
    Fault("wrong", "unchanged", "take_maximum", "take_maximum", 2),
    Fault("wrong", "lockstep", "take_maximum", "take_maximum"),
)


def command_of(fault: Fault, tool: str) -> list[str]:
    """What a user would type."""
    command = [str(Path(sys.executable).with_name(tool)), *([] if tool == "torchrun" else ["run"])]
    if tool == "lockstep":
        command += fault.options
    script = WORKERS / ("faulty_lockstep.py" if tool == fault.form == "lockstep" else "faulty_torchrun.py")
    arguments = [fault.name, str(fault.rank)]
    if tool == "traceml":
        arguments = ["--args", *arguments, "traceml"]
    return [*command, "--nproc-per-node", str(NPROC), str(script), *arguments]


def names(text: str, fault: Fault) -> bool:
    """Whether the rank and the cause are said next to each other."""
    rank = re.compile(rf"\branks?\W{{0,12}}{fault.rank}\b|\bR{fault.rank}/N0 (waited|was)")
    lines = text.splitlines()
    ranks = [number for number, line in enumerate(lines) if rank.search(line)]
    causes = [number for number, line in enumerate(lines) if re.search(fault.cause, line)]
    return any(abs(one - other) <= _NEAR for one in ranks for other in causes)


def run(fault: Fault, tool: str) -> tuple[float | None, str]:
    """Seconds until the fault was named, None if never; and what was printed."""
    with tempfile.TemporaryDirectory() as scratch:
        began = time.monotonic()
        with subprocess.Popen(
            command_of(fault, tool),
            cwd=scratch,
            env=clean_environ(
                {
                    "TORCH_DISTRIBUTED_DEBUG": "INFO",
                    "TORCH_FR_BUFFER_SIZE": "2000",
                    "TORCH_FR_DUMP_TEMP_FILE": f"{scratch}/fr_",
                    "TORCH_NCCL_DUMP_ON_TIMEOUT": "1",
                }
                if tool == "torchrun"
                else {}
            ),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        ) as process:
            assert process.stdout is not None
            said_s, text = None, ""
            with selectors.DefaultSelector() as selector:
                selector.register(process.stdout, selectors.EVENT_READ)
                while said_s is None and (left_s := began + LIMIT_S - time.monotonic()) > 0:
                    if not selector.select(left_s):
                        break
                    data = os.read(process.stdout.fileno(), 65536)
                    if not data:
                        break
                    text += data.decode(errors="replace")
                    if names(text, fault):
                        said_s = time.monotonic() - began
            end(process)
        if said_s is None and (dumps := sorted(Path(scratch).glob("fr_*"))):
            text += analyse(Path(scratch), len(dumps))
            said_s = time.monotonic() - began if names(text, fault) else None
    return said_s, text


def analyse(directory: Path, num_dumps: int) -> str:
    """What the Flight Recorder's analyser makes of the dumps."""
    tool = [str(Path(sys.executable).with_name("torchfrtrace")), str(directory), "-p", "fr_"]
    incomplete = ["--allow-incomplete-ranks"] if num_dumps < NPROC else []
    done = subprocess.run([*tool, *incomplete], capture_output=True, text=True, timeout=60, check=False)
    return done.stdout + done.stderr


def end(process: subprocess.Popen[bytes]) -> None:
    """End the command and all that it has started."""
    try:
        started = psutil.Process(process.pid).children(recursive=True)
    except psutil.NoSuchProcess:
        started = []
    process.terminate()
    try:
        process.wait(_END_S)
    except subprocess.TimeoutExpired:
        process.kill()
    for child in started:
        try:
            child.kill()
        except psutil.NoSuchProcess:
            continue


def chosen(args: argparse.Namespace) -> Sequence[Fault]:
    """The faults that were asked for."""
    if args.quick:
        return [fault for fault in FAULTS if fault.name == "read_labels"]
    return [fault for fault in FAULTS if args.fault is None or args.fault in fault.name]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--fault", metavar="TEXT", help="only faults with this in their name")
    parser.add_argument("--only", choices=TOOLS, help="only this one")
    parser.add_argument("--show", action="store_true", help="show what was printed where a fault was not found")
    parser.add_argument("--quick", action="store_true", help="one fault: see that it runs")
    parser.add_argument("--json", action="store_true", help="print the last line only")
    args = parser.parse_args()
    say, machine = harness.speaker(args), harness.machine()
    peers = harness.find_peers({"traceml": "traceml_ai"}, say)
    tools = [args.only] if args.only else ["lockstep", "torchrun", *peers]
    faults, rows = chosen(args), []
    goal = math.ceil(GOAL * len(faults))
    found: dict[str, list[float]] = {tool: [] for tool in tools}
    for fault in faults:
        cells = []
        for tool in tools:
            if tool == "traceml" and fault.kind != "slow":
                cells.append("")
                continue
            said_s, text = run(fault, tool)
            cells.append("not found" if said_s is None else f"{said_s:.1f} s")
            if said_s is not None:
                found[tool].append(said_s)
            elif args.show:
                say(f"--- {tool}, {fault.name} ({fault.form}), rank {fault.rank}:\n{text}\n---")
        rows.append([fault.name, fault.kind, fault.form, str(fault.rank), *cells])
        say(" ".join(rows[-1]))
    say("\n" + harness.table(["fault", "kind", "form", "rank", *tools], rows))
    harness.finish(
        {
            "benchmark": "diagnosis",
            "goal": goal,
            "better": "higher",
            "num_faults": len(faults),
            **{f"found_{tool}": len(times) for tool, times in found.items()},
            **{f"slowest_s_{tool}": round(max(times), 1) for tool, times in found.items() if times},
            "goal_met": len(found.get("lockstep", ())) >= goal,
            "versions": harness.versions(["traceml-ai"]),
            "machine": machine,
        }
    )


if __name__ == "__main__":
    main()
