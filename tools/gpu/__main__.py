"""Checks lockstep on all GPUs of a machine, in at most {minutes_of_8} minutes on eight and
{minutes_of_1} on one: stages from the doctor to ResNet-50, the most important first. A stage that
fails prints where to look.

  make gpu                          all stages, in an environment that is created for them
  make gpu PYTHON=/opt/bin/python   all stages, with a Python that has torch; nothing is installed
  python tools/gpu                  all stages, without make and without installing lockstep
  python tools/gpu --to worlds      the stages up to this one
  python tools/gpu --stage bits     one stage again, by number or name
  python tools/gpu --from tests     all stages from this one
  python tools/gpu --device cpu     a rehearsal without a GPU, which runs all lines that it can
                                    (--device simulated: more of them)

On several machines, which see this clone in the same directory, run on the first, and on each of
the others with its own --node-rank:

  python tools/gpu --stage hosts --nnodes 2 --node-rank 0 --master-addr HOST0

A stage that fails ends the series, unless --keep-going is set. A stage that hangs is ended at its
limit, with the stacks of its processes. Stages that need more GPUs than there are do not run. No
stage needs root; only `hosts` needs the network. At the end, send the file that is printed,
report.md. It contains the machine's versions and variables such as CUDA_*, NCCL_* and TORCH_*, and
no other variables.

stages:
{stages}

exit status: 0 if nothing failed, 1 if a stage failed, 2 for wrong arguments, 130 after Ctrl-C
"""

from __future__ import annotations

import argparse
import datetime
import math
import signal
import sys
from collections.abc import Sequence
from pathlib import Path

LEAST = (3, 11)
if sys.version_info < LEAST:
    raise SystemExit(f"lockstep needs Python 3.11 or later, and {sys.executable} is {sys.version.split()[0]}")

TOOLS = Path(__file__).parents[1]
if Path(sys.path[0]) == TOOLS / "gpu":  # `python tools/gpu`
    sys.path[0] = str(TOOLS)

from gpu.series import Series  # noqa: E402
from gpu.stage import ROOT, Hosts, Stage  # noqa: E402
from gpu.table import STAGES, seconds_at_most  # noqa: E402


def numbered(text: str, table: Sequence[Stage]) -> int:
    """Returns the number of a stage from its number or name."""
    names = [stage.name for stage in table]
    if text in names:
        return names.index(text) + 1
    if text.isdecimal() and 1 <= int(text) <= len(table):
        return int(text)
    raise argparse.ArgumentTypeError(f"there is no stage {text!r}: give 1 to {len(table)}, or one of {', '.join(names)}")


def make_parser(table: Sequence[Stage]) -> argparse.ArgumentParser:
    width = max(len(stage.name) for stage in table)
    lines = [
        f"  {number:2} {stage.name:{width}}  {stage.shows} ({stage.limit_s:.0f} s at most)"
        for number, stage in enumerate(table, 1)
    ]
    parser = argparse.ArgumentParser(
        prog="python tools/gpu",
        description=(__doc__ or "").format(
            stages="\n".join(lines),
            minutes_of_1=math.ceil(seconds_at_most(table, 1) / 60),
            minutes_of_8=math.ceil(seconds_at_most(table, 8) / 60),
        ),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )

    def stage(text: str) -> int:
        return numbered(text, table)

    def stages(text: str) -> list[int]:
        return [stage(word) for word in text.split(",")]

    parser.add_argument("--stage", type=stages, metavar="N[,N]", help="run only these stages")
    parser.add_argument("--from", dest="first", type=stage, metavar="N", default=1, help="begin with this stage")
    parser.add_argument("--to", dest="last", type=stage, metavar="N", default=len(table), help="end with this stage")
    parser.add_argument(
        "--device", choices=("cuda", "cpu", "simulated"), default="cuda", help="device; other than cuda: a rehearsal"
    )
    parser.add_argument("--keep-going", action="store_true", help="continue with the other stages after a failure")
    parser.add_argument("--limit", type=float, metavar="SECONDS", help="time limit of every stage, instead of its default")
    parser.add_argument("--out", type=Path, metavar="DIR", help="directory of the report (default: build/gpu/DATE-TIME)")
    parser.add_argument("--nnodes", type=int, metavar="N", help="number of machines, for the stage `hosts`")
    parser.add_argument("--node-rank", type=int, metavar="R", default=0, help="rank of this machine (default: 0)")
    parser.add_argument("--master-addr", metavar="HOST", help="the first machine, as all others reach it")
    parser.add_argument(
        "--master-port", type=int, metavar="PORT", default=29500, help="the first of three free ports there (default: 29500)"
    )
    return parser


def hosts_of(parser: argparse.ArgumentParser, args: argparse.Namespace) -> Hosts | None:
    """The machines that the arguments describe; None: only this one."""
    if args.nnodes is None and args.master_addr is None:
        return None
    if args.nnodes is None or args.nnodes < 2 or args.master_addr is None or not 0 <= args.node_rank < args.nnodes:
        parser.error("several machines need --nnodes (2 or more), --master-addr, and a --node-rank below --nnodes on each")
    return Hosts(nnodes=args.nnodes, node_rank=args.node_rank, master_addr=args.master_addr, master_port=args.master_port)


def main(words: Sequence[str] | None = None, table: Sequence[Stage] = STAGES) -> int:
    parser = make_parser(table)
    args = parser.parse_args(words)
    hosts = hosts_of(parser, args)
    node = f"-node-{hosts.node_rank}" if hosts else ""  # machines that share this clone may begin in one second
    out = args.out or ROOT / "build" / "gpu" / (datetime.datetime.now().strftime("%Y-%m-%d-%H%M%S") + node)
    out = out.absolute()

    def say(line: str) -> None:
        print(line, flush=True)

    def stop(*_: object) -> None:
        raise KeyboardInterrupt

    signal.signal(signal.SIGTERM, stop)
    series = Series(table, device=args.device, out=out, limit_s=args.limit, say=say, hosts=hosts)
    try:
        outcomes = series.run(args.stage or range(args.first, args.last + 1), keep_going=args.keep_going)
    except KeyboardInterrupt:
        say(f"stopped; the report of the stages before: {out}")
        return 130
    say("")
    for outcome in outcomes:
        say(f"{outcome.number:2} {outcome.name:10} {outcome.verdict:9} {outcome.seconds:6.0f} s  {outcome.why}".rstrip())
    say(f"report to send: {out / 'report.md'} (for programs: report.json; all output: output.log)")
    return 1 if any(outcome.has_failed for outcome in outcomes) else 0


if __name__ == "__main__":
    sys.exit(main())
