"""ResNet-50 on one GPU in images a second: the article's loops, lockstep at its best, and the best loop by hand.

    python benchmarks/resnet50.py                            needs a CUDA GPU, with 80 GB for the batch of the article
    python benchmarks/resnet50.py --batch 128                a smaller GPU
    python benchmarks/resnet50.py --quick --device cpu       see that it runs, on tiny images

  article       its recipe in float32: batch 400, SGD. (With TF32, as its PyTorch 1.8 did it on its A100s.)
  article amp   float16 autocast and a loss scaler, as its second loop; without the emptying of the cache in every step
  by-hand       channels_last, bfloat16 autocast, fused SGD, compiled, bytes copied to the GPU while the last step runs
  lockstep      the same loop with team.prepare

Images are in pinned memory: what it takes to read and decode them is left out, for all alike.

  ratio              lockstep / by-hand: HIGHER is better
  ratio_article      lockstep / article
  ratio_article_amp  lockstep / article amp
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from collections.abc import Callable

import _harness as harness
from _crew import Crew, Crews

GOAL, GOAL_ARTICLE = 0.98, 4.0
ARTICLE, ARTICLE_AMP, BY_HAND, LOCKSTEP = CONTENDERS = ("article", "article amp", "by-hand", "lockstep")
NO_GPU = 77
"""The exit status of what cannot run here: `make bench` goes on without it."""


def find_gpu() -> str | None:
    """The name of the GPU; None where there is none. (In a process of its own, that holds no memory of the GPU.)"""
    ask = "import torch; print(torch.cuda.get_device_name() if torch.cuda.is_available() else '')"
    done = subprocess.run([sys.executable, "-c", ask], capture_output=True, text=True, check=True)
    return done.stdout.strip() or None


def measure(options: list[str], *, images: int, rounds: int, say: Callable[[str], None]) -> harness.Timings:
    """Images a second of every contender in every round."""
    with tempfile.TemporaryDirectory() as scratch, Crews(say) as crews:

        def start(name: str) -> Callable[[], float]:
            crew = crews.start(Crew(name, "resnet_loop.py", [name, *options, "--run-dir", f"{scratch}/run"]))
            crew.wait_ready()  # one after the other: each needs most of the GPU while it warms up
            say(f"{name} is ready")
            return lambda: images / crew.turn()[0].wall_s

        turns = {name: start(name) for name in CONTENDERS}
        return harness.interleave(turns, rounds, say)


def main() -> None:
    parser = harness.make_parser(__doc__ or "", rounds=10)
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda", help="cpu: with --quick only")
    parser.add_argument("--batch", type=int, metavar="N", help="images in a step (default: 400, as in the article)")
    parser.add_argument("--steps", type=int, metavar="N", help="steps of a turn (default: 20)")
    args = parser.parse_args()
    say, rounds = harness.speaker(args), harness.resolve_rounds(args)
    if args.device == "cpu" and not args.quick:
        raise SystemExit("--device cpu without --quick: a CPU's images a second tell nothing of a GPU's. Give both.")
    gpu = find_gpu() if args.device == "cuda" else None
    if args.device == "cuda" and gpu is None:
        print("torch sees no CUDA GPU here, and this benchmark is about one: nothing was measured", file=sys.stderr)
        print("(--quick --device cpu runs its code on the CPU)", file=sys.stderr)
        raise SystemExit(NO_GPU)
    batch, steps = args.batch or (2 if args.quick else 400), args.steps or (2 if args.quick else 20)
    arch, size = ("resnet18", 32) if args.quick else ("resnet50", 224)
    compiler = "aot_eager" if args.device == "cpu" else "inductor"  # inductor's own compiler takes minutes on a CPU
    options = {"arch": arch, "device": args.device, "compiler": compiler, "batch": batch, "size": size, "steps": steps}
    machine = harness.machine()
    say(f"{arch}, batch {batch}, images of {size} x {size}, on {gpu or 'the CPU'}; {rounds} rounds of {steps} steps")
    command = [word for name, value in options.items() for word in (f"--{name}", str(value))]
    rates = measure(command, images=batch * steps, rounds=rounds, say=say)
    ratios = {name: harness.paired_ratio(rates[LOCKSTEP], rates[name]) for name in (BY_HAND, ARTICLE, ARTICLE_AMP)}
    say(harness.spread_table(rates, "images/s", {LOCKSTEP: (BY_HAND, ratios[BY_HAND])}))
    for name in (ARTICLE, ARTICLE_AMP):
        say(f"- lockstep / {name}: {ratios[name].median:.3f} [{ratios[name].lower95:.3f}, {ratios[name].upper95:.3f}]")
    harness.finish(
        {
            "benchmark": "resnet50",
            "goal": GOAL,
            "goal_article": GOAL_ARTICLE,
            "better": "higher",
            **harness.ratio_fields(ratios[BY_HAND]),
            **harness.ratio_fields(ratios[ARTICLE], "ratio_article"),
            **harness.ratio_fields(ratios[ARTICLE_AMP], "ratio_article_amp"),
            "goal_met": ratios[BY_HAND].median >= GOAL and ratios[ARTICLE].median >= GOAL_ARTICLE,
            "medians_images_per_s": harness.medians(rates, 1),
            "coverage": round(ratios[BY_HAND].coverage, 4),
            **options,
            "gpu": gpu,
            "rounds": rounds,
            "quick": args.quick,
            "machine": machine,
            "versions": harness.versions(()),
        }
    )


if __name__ == "__main__":
    main()
