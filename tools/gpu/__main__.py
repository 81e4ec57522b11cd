"""Checks lockstep on a GPU in about half an hour: ten stages, from the doctor to ResNet-50. A stage
that fails prints where to look.

  make gpu                          all stages, in an environment that is created for them
  make gpu PYTHON=/opt/bin/python   all stages, with a Python that has torch; nothing is installed
  python tools/gpu                  all stages, without make and without installing lockstep
  python tools/gpu --to 5           the first five stages: under ten minutes
  python tools/gpu --stage 3        one stage again, by number or name
  python tools/gpu --from tests     all stages from this one
  python tools/gpu --device cpu     a rehearsal without a GPU, which runs all lines that it can
                                    (--device simulated: more of them)

A stage that fails ends the series, unless --keep-going is set. A stage that hangs is ended at its
limit, with the stacks of its processes. No stage needs the network or root. At the end, send
report.md and report.json of the directory that is printed. They contain the machine's versions and
variables such as CUDA_*, NCCL_* and TORCH_*, and no other variables.

stages:
{stages}

exit status: 0 if nothing failed, 1 if a stage failed, 2 for wrong arguments, 130 after Ctrl-C
"""

from __future__ import annotations

import argparse
import datetime
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
from gpu.stage import ROOT, Stage  # noqa: E402
from gpu.table import STAGES  # noqa: E402


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
        description=(__doc__ or "").format(stages="\n".join(lines)),
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
    return parser


def main(words: Sequence[str] | None = None, table: Sequence[Stage] = STAGES) -> int:
    args = make_parser(table).parse_args(words)
    out = args.out or ROOT / "build" / "gpu" / datetime.datetime.now().strftime("%Y-%m-%d-%H%M%S")
    out = out.absolute()

    def say(line: str) -> None:
        print(line, flush=True)

    def stop(*_: object) -> None:
        raise KeyboardInterrupt

    signal.signal(signal.SIGTERM, stop)
    series = Series(table, device=args.device, out=out, limit_s=args.limit, say=say)
    try:
        outcomes = series.run(args.stage or range(args.first, args.last + 1), keep_going=args.keep_going)
    except KeyboardInterrupt:
        say(f"stopped; the report of the stages before: {out}")
        return 130
    say("")
    for outcome in outcomes:
        say(f"{outcome.number:2} {outcome.name:10} {outcome.verdict:9} {outcome.seconds:6.0f} s  {outcome.why}".rstrip())
    say(f"report to send: {out / 'report.md'} and report.json (all output: output.log)")
    return 1 if any(outcome.has_failed for outcome in outcomes) else 0


if __name__ == "__main__":
    sys.exit(main())
