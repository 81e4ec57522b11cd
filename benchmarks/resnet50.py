"""Measures ResNet-50 in images per second: the article's loops, lockstep at its best, and the best
hand-written loop.

    python benchmarks/resnet50.py                        needs a CUDA GPU, with 80 GB for the batch
                                                         of the article
    python benchmarks/resnet50.py --batch 128            a smaller GPU
    python benchmarks/resnet50.py --nproc 4              on four GPUs, with the two rows for several
    python benchmarks/resnet50.py --contenders by-hand,lockstep
    python benchmarks/resnet50.py --quick --device cpu   check that it runs, on tiny images

  article       its recipe in float32: batch 400, SGD (with TF32, like its PyTorch 1.8 on its A100s)
  article amp   float16 autocast and a loss scaler, like its second loop, but without emptying the
                cache in every step
  by-hand       channels_last, bfloat16 autocast, fused SGD, compiled, bytes copied to the GPU
                during the step before
  lockstep      the same loop with team.prepare, at V = 1
  parts         by-hand, with each batch in two passes: the computation of V = 2
  V=2           lockstep with two shards on one GPU: the sum in the fixed tree
  ddp           by-hand on --nproc GPUs, with DistributedDataParallel
  V=W           lockstep on --nproc GPUs, with the strategy exact and one shard per GPU; its
                batches come from the host

Images are in pinned memory, so no contender reads or decodes files. --batch is the batch of one
GPU.

  ratio              lockstep / by-hand: HIGHER is better
  ratio_article      lockstep / article
  ratio_article_amp  lockstep / article amp
  ratio_shards       V=2 / parts
  ratio_exact        V=W / ddp
"""

from __future__ import annotations

import importlib.util
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence

import _harness as harness
from _crew import Crew, Crews

GOAL, GOAL_ARTICLE = 0.98, 4.0
ON_ONE = ("article", "article amp", "by-hand", "lockstep", "parts", "V=2")
ON_SEVERAL = ("ddp", "V=W")
RATIOS = {
    "ratio": ("lockstep", "by-hand"),
    "ratio_article": ("lockstep", "article"),
    "ratio_article_amp": ("lockstep", "article amp"),
    "ratio_shards": ("V=2", "parts"),
    "ratio_exact": ("V=W", "ddp"),
}
NO_GPU = 77
"""The exit status if it cannot run here. `make bench` then continues without it."""


def find_gpu() -> str | None:
    """Returns the name of the GPU; None: there is none. It looks in a separate process, so that
    this one uses no memory of the GPU."""
    ask = "import torch; print(torch.cuda.get_device_name() if torch.cuda.is_available() else '')"
    done = subprocess.run([sys.executable, "-c", ask], capture_output=True, text=True, check=True)
    return done.stdout.strip() or None


def measure(
    names: Sequence[str], options: list[str], *, images: int, nproc: int, rounds: int, say: Callable[[str], None]
) -> harness.Timings:
    """Images a second of every contender in every round; ``images``: of one GPU in a turn."""
    with tempfile.TemporaryDirectory() as scratch, Crews(say) as crews:

        def start(name: str) -> Callable[[], float]:
            num_gpus = nproc if name in ON_SEVERAL else 1
            run_dir = f"{scratch}/{name.replace('=', '')}"
            crew = crews.start(Crew(name, "resnet_loop.py", [name, *options, "--run-dir", run_dir], num_gpus))
            crew.wait_ready()  # one after the other: each needs most of the GPU while it warms up
            say(f"{name} is ready")
            return lambda: num_gpus * images / max(turn.wall_s for turn in crew.turn())

        turns = {name: start(name) for name in names}
        return harness.interleave(turns, rounds, say)


def chosen(text: str | None, nproc: int) -> list[str]:
    """The contenders that were asked for, or all that so many GPUs are enough for."""
    possible = [*ON_ONE, *(ON_SEVERAL if nproc > 1 else ())]
    if text is None:
        return possible
    asked = text.split(",")
    if unknown := [name for name in asked if name not in (*ON_ONE, *ON_SEVERAL)]:
        raise SystemExit(f"--contenders {','.join(unknown)}: choose from {', '.join((*ON_ONE, *ON_SEVERAL))}")
    if several := [name for name in asked if name not in possible]:
        raise SystemExit(f"--contenders {','.join(several)}: these run on several GPUs; give --nproc, too")
    return asked


def compiler_here(device: str) -> str:
    """The backend of torch.compile: Inductor's takes minutes on a CPU, and on a GPU needs Triton
    and a compiler of C."""
    if device == "cpu":
        return "aot_eager"
    has_all = importlib.util.find_spec("triton") is not None and any(map(shutil.which, ("gcc", "cc", "clang")))
    return "inductor" if has_all else "none"


def main() -> None:
    parser = harness.make_parser(__doc__ or "", rounds=10)
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda", help="cpu: with --quick only")
    parser.add_argument("--batch", type=int, metavar="N", help="images of a GPU in a step (default: 400, as in the article)")
    parser.add_argument("--steps", type=int, metavar="N", help="steps of a turn (default: 20)")
    parser.add_argument(
        "--nproc", type=int, default=1, metavar="N", help="GPUs of the last two contenders (default: 1, without them)"
    )
    parser.add_argument("--contenders", metavar="NAME,...", help="only these (default: all)")
    parser.add_argument("--compiler", help="backend of torch.compile; none: do not compile (default: inductor, if it can)")
    args = parser.parse_args()
    say, rounds = harness.speaker(args), harness.resolve_rounds(args)
    if args.device == "cpu" and not args.quick:
        raise SystemExit("--device cpu needs --quick: a CPU's images per second do not predict a GPU's. Pass both.")
    names = chosen(args.contenders, args.nproc)
    gpu = find_gpu() if args.device == "cuda" else None
    if args.device == "cuda" and gpu is None:
        print("torch sees no CUDA GPU here, and this benchmark is about one: nothing was measured", file=sys.stderr)
        print("(--quick --device cpu runs its code on the CPU)", file=sys.stderr)
        raise SystemExit(NO_GPU)
    batch, steps = args.batch or (4 if args.quick else 400), args.steps or (2 if args.quick else 20)
    arch, size = ("resnet18", 32) if args.quick else ("resnet50", 224)
    compiler = args.compiler or compiler_here(args.device)
    options = {"arch": arch, "device": args.device, "compiler": compiler, "batch": batch, "size": size, "steps": steps}
    machine = harness.machine()
    say(f"{arch}, batch {batch}, images of {size} x {size}, on {gpu or 'the CPU'}; {rounds} rounds of {steps} steps")
    command = [word for name, value in options.items() for word in (f"--{name}", str(value))]
    rates = measure(names, command, images=batch * steps, nproc=args.nproc, rounds=rounds, say=say)
    ratios = {
        field: harness.paired_ratio(rates[ours], rates[theirs])
        for field, (ours, theirs) in RATIOS.items()
        if {ours, theirs} <= rates.keys()
    }
    shown = {RATIOS[field][0]: (RATIOS[field][1], ratio) for field, ratio in reversed(ratios.items())}
    say(harness.spread_table(rates, "images/s", shown))
    for field in ("ratio_article", "ratio_article_amp"):
        if ratio := ratios.get(field):
            say(f"- {' / '.join(RATIOS[field])}: {ratio.median:.3f} [{ratio.lower95:.3f}, {ratio.upper95:.3f}]")
    goals = {"ratio": GOAL, "ratio_article": GOAL_ARTICLE}
    harness.finish(
        {
            "benchmark": "resnet50",
            "goal": GOAL,
            "goal_article": GOAL_ARTICLE,
            "better": "higher",
            **{key: value for field, ratio in ratios.items() for key, value in harness.ratio_fields(ratio, field).items()},
            "goal_met": all(field in ratios and ratios[field].median >= goal for field, goal in goals.items()),
            "medians_images_per_s": harness.medians(rates, 1),
            "coverage": round(min((ratio.coverage for ratio in ratios.values()), default=0.0), 4),
            **options,
            "nproc": args.nproc,
            "gpu": gpu,
            **harness.circumstances(args, rounds, machine),
        }
    )


if __name__ == "__main__":
    main()
