"""Measures the time per step over two hosts: `lockstep run` on both, compared with torchrun and a
hand-written DDP script.

    python benchmarks/two_hosts.py                       a fast link, then one of 100 Mbit/s;
                                                         needs root
    python benchmarks/two_hosts.py --size 0.5M --link 10
    python benchmarks/two_hosts.py --nproc 2             two processes on each host

The hosts are network namespaces of this machine (see docs/clusters.md): each has a separate
address, name and processes, and they share the machine's cores. All contenders train the same
transformer on data of the same kind, with one thread per process, and live through the whole run.
They alternate in rounds, first on the fast link (as fast as the machine's memory; three rounds
for each round on the slow link, since they are short), then with one host's cable limited.
lockstep runs with strategy ddp, which is the same engine as in the hand-written script, and, for
comparison, with strategy exact, its fixed tree. No contender saves anything. A turn is an epoch,
and its end costs lockstep some small exchanges (logged and measured values, and whether to stop),
which are visible if it has few steps (--steps 4).

  ratio   seconds per step, lockstep (ddp) / by hand, on the link with the larger ratio: lower is
          better
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import _harness as harness
from _crew import WORKERS, Crews
from _hosts import PORT, Host, LaunchedCrew, hosts

GOAL = 1.05
PEER, DDP, EXACT = "torchrun, DDP by hand", "lockstep (ddp)", "lockstep (exact)"
SIZES = ("0.5M", "5M", "25M")
NUM_HOSTS = 2
FAST, SLOW = "fast link", "slow link"
FAST_ROUNDS = 3
"""On the fast link, for each on the slow one."""


@dataclass(frozen=True)
class Timed:
    """Of every contender in every round, in milliseconds a step."""

    wall: harness.Timings
    cpu: harness.Timings
    """Processor time of a process: others on the machine disturb it less."""


def command_of(name: str, host: int, on: Host, nproc: int, run_dir: str) -> list[str]:
    """What starts a contender's part on a host."""
    port = PORT + [PEER, DDP, EXACT].index(name)
    where = ["--nnodes", str(NUM_HOSTS), "--node-rank", str(host), "--master-addr", on.address, "--master-port", str(port)]
    program = "torchrun" if name == PEER else "lockstep"
    run = [str(Path(sys.executable).with_name(program)), *(() if name == PEER else ("run",)), *where]
    script = str(WORKERS / "two_hosts.py")
    if name == PEER:
        return [*run, "--nproc-per-node", str(nproc), script, "by-hand"]
    strategy = "ddp" if name == DDP else "exact"
    ours = ["--threads", "1", "--strategy", strategy, "--checkpoint-every", "off", "--run-dir", run_dir, "--progress", "off"]
    return [*run, "--nproc-per-node", str(nproc), *ours, script, "lockstep"]


def measure(
    *, size: str, nproc: int, steps: int, rounds: int, links: dict[str, str | None], say: Callable[[str], None]
) -> dict[str, Timed]:
    """What each link (by the rate that limits it) gives."""
    found = {}
    cpu: harness.Timings = {name: [] for name in (PEER, DDP, EXACT)}
    with tempfile.TemporaryDirectory() as scratch, hosts(NUM_HOSTS) as both, Crews(say) as crews:

        def begin(name: str) -> Callable[[], float]:
            run_dir, asked = f"{scratch}/{name}", ["--size", size, "--steps", str(steps)]
            commands = [[*command_of(name, host, both[0], nproc, run_dir), *asked] for host in range(NUM_HOSTS)]
            crew = crews.start(LaunchedCrew(name, commands, both, NUM_HOSTS * nproc))

            def turn() -> float:
                answers = crew.turn()
                cpu[name].append(max(answer.cpu_s for answer in answers) / steps * 1e3)
                return max(answer.wall_s for answer in answers) / steps * 1e3

            return turn

        turns = {name: begin(name) for name in cpu}
        crews.wait_ready()
        for link, rate in links.items():
            both[1].limit(rate)
            num = rounds * (FAST_ROUNDS if link == FAST else 1)
            say(f"\n{link}: {num} rounds of {steps} steps")
            for name, turn in turns.items():
                turn()  # so that the first round knows the link
                cpu[name].clear()
            wall = harness.interleave(turns, num, say)
            found[link] = Timed(wall, {name: values.copy() for name, values in cpu.items()})
    return found


def main() -> None:
    parser = harness.make_parser(__doc__ or "", rounds=6)
    parser.add_argument("--nproc", type=int, default=1, metavar="N", help="processes on each host (default: 1)")
    parser.add_argument("--size", choices=SIZES, help="of the model (default: 5M)")
    parser.add_argument("--steps", type=int, metavar="N", help="steps of a turn, which is an epoch (default: 16)")
    parser.add_argument("--link", type=int, default=100, metavar="MBIT", help="the slow link's Mbit/s (default: 100)")
    args = parser.parse_args()
    for option in ("nproc", "steps", "link"):
        if (value := getattr(args, option)) is not None and value < 1:
            raise SystemExit(f"--{option} {value}: at least 1 is needed")
    say, rounds = harness.speaker(args), harness.resolve_rounds(args)
    size, steps = args.size or ("0.5M" if args.quick else "5M"), args.steps or (2 if args.quick else 16)
    machine = harness.machine()
    say(f"{NUM_HOSTS} hosts with {args.nproc} processes each, {size} parameters")
    links = {FAST: None, SLOW: f"{args.link}mbit"}
    timings = measure(size=size, nproc=args.nproc, steps=steps, rounds=rounds, links=links, say=say)
    say("")
    results: dict[str, dict[str, Any]] = {}
    for link, own in timings.items():
        ratios, cpu_ratios = (
            {name: harness.paired_ratio(kind[name], kind[PEER]) for name in (DDP, EXACT)} for kind in (own.wall, own.cpu)
        )
        say(f"{link}{f', {args.link} Mbit/s' if links[link] else ''}:")
        for unit, kind, taken in (("ms", own.wall, ratios), ("ms of processor", own.cpu, cpu_ratios)):
            say(f"{harness.spread_table(kind, unit, {name: (PEER, ratio) for name, ratio in taken.items()})}\n")
        results[link] = {
            **harness.ratio_fields(ratios[DDP]),
            **harness.ratio_fields(ratios[EXACT], "ratio_exact"),
            **harness.ratio_fields(cpu_ratios[DDP], "ratio_cpu"),
            "medians_ms": harness.medians(own.wall),
            "coverage": round(ratios[DDP].coverage, 4),
        }
    worse = max(results, key=lambda link: results[link]["ratio"])
    harness.finish(
        {
            "benchmark": "two_hosts",
            "goal": GOAL,
            "better": "lower",
            **{name: results[worse][name] for name in ("ratio", "ratio_lower95", "ratio_upper95")},
            "goal_met": results[worse]["ratio"] <= GOAL,
            "worse": worse,
            "medians_ms": results[worse]["medians_ms"],
            "links": results,
            "coverage": results[worse]["coverage"],
            "hosts": NUM_HOSTS,
            "nproc": args.nproc,
            "size": size,
            "link_mbit": args.link,
            "steps": steps,
            **harness.circumstances(args, rounds, machine),
        }
    )


if __name__ == "__main__":
    main()
