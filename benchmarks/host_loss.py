"""Measures the time from the loss of a host to the next new step on the remaining one: `lockstep
run --nnodes 1:2` compared with torchrun.

    python benchmarks/host_loss.py                    power lost, and all processes of the host
                                                      killed; needs root
    python benchmarks/host_loss.py --losses power --rounds 9
    python benchmarks/host_loss.py --peer-timeout 10  a torchrun user with a short timeout

Two hosts (network namespaces of this machine, see docs/clusters.md) train one transformer, with one
process and one thread each. They save their state every so many steps to a directory that both see:
lockstep automatically, torchrun's script by hand (DistributedDataParallel; torch.save on rank 0 and
a rename, loaded at every start). Then the host without the rendezvous is lost, some steps after a
checkpoint and somewhere within a step. The moments are drawn again for each round, and are the same
for all contenders. The result is the time from the loss until a step is completed that was not
completed before.

  power      no process and no kernel closes a connection: the others hear nothing any more
  processes  everything on the host is killed, including its launcher, and its kernel closes the
             connections

torchrun runs as its documentation starts it (--nnodes 1:2, --rdzv-backend c10d), and a second time
with the timeouts of lockstep's rendezvous (--rdzv-conf). A script by hand must set how long a
process waits for the others. Gloo's own 30 minutes would decide everything here. 30 s, the default
of --peer-timeout, is as short as a careful user can choose: the longest legitimate wait (a
checkpoint being written, evaluation on rank 0, a slow start) must fit in.

A peer that has no new step --limit seconds after the loss, or that gives up earlier, counts as
failed and enters the ratio with that limit. Its true time is longer, and the ratio smaller.

  ratio   seconds from the loss (of power, if it is among --losses) to the next new step,
          lockstep / torchrun: lower is better
"""

from __future__ import annotations

import argparse
import random
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import _harness as harness
from _crew import WORKERS
from _hosts import PORT, Host, hosts, start
from _launch import Launch, Moment, Stuck

GOAL = 0.5
OURS, PEER, TUNED = "lockstep", "torchrun", "torchrun, impatient"
IMPATIENT = "last_call_timeout=1,keep_alive_interval=1,keep_alive_max_attempt=5"  # lockstep's own
LOSSES = ("power", "processes")
SIZES = ("0.5M", "5M", "25M")
STAGES = ("script begins", "met", "state is back", "first step", "new step")
COLUMNS = (*STAGES, "steps again", "starts")
NUM_HOSTS = 2
_WARM_UP_S, _QUICK_S = 7.0, 0.5
"""Of training before the loss, as there would be in a run of hours (lockstep readies itself for
restarts after 5 s)."""


@dataclass(frozen=True)
class Recovery:
    """Seconds from the loss to each stage, the number of repeated steps, and the number of new
    starts of all processes."""

    reached_s: tuple[float, ...]
    again: int
    num_starts: int


def command_of(name: str, args: argparse.Namespace, endpoint: Host, notes: Path) -> list[str]:
    """What is started on every host."""
    where = ["--nnodes", f"1:{NUM_HOSTS}", "--rdzv-endpoint", f"{endpoint.address}:{PORT}", "--max-restarts", "3"]
    program = str(Path(sys.executable).with_name("lockstep" if name == OURS else "torchrun"))
    if name == OURS:
        saved = ["--shards", str(NUM_HOSTS), "--threads", "1", "--checkpoint-every", str(args.every)]
        return [program, "run", *where, *saved, str(WORKERS / "going_on_lockstep.py"), str(notes), args.size, str(NUM_HOSTS)]
    where += ["--rdzv-backend", "c10d", "--rdzv-id", "benchmark", "--nproc-per-node", "1"]
    where += ["--rdzv-conf", IMPATIENT] if name == TUNED else []
    own = [str(notes), args.size, str(notes.with_name("checkpoint.pt")), str(args.every), str(args.peer_timeout)]
    return [program, *where, str(WORKERS / "going_on_torchrun.py"), *own]


def lose(host: Host, loss: str) -> float:
    """Lose a host, and say when that was."""
    lost_s = time.time()
    if loss == "power":
        host.kill()
    else:
        for process in host.processes():  # found first: a launcher must not see its workers die
            process.kill()
    return lost_s


def run_once(name: str, args: argparse.Namespace, loss: str, moment: Moment, say: Callable[[str], None]) -> Recovery | None:
    """Start one on both hosts, lose a host, and wait for the next new step. None: it did not
    come."""
    args.dir.mkdir(parents=True, exist_ok=True)
    with (
        tempfile.TemporaryDirectory(prefix="host-loss-", dir=args.dir) as directory,
        (Path(directory) / "output").open("w+") as output,
        hosts(NUM_HOSTS) as both,
    ):
        scratch = Path(directory).resolve()
        notes = scratch / "notes"
        streams = {"stdin": subprocess.DEVNULL, "stdout": output, "stderr": output}
        processes = [start(host, command_of(name, args, both[0], notes), cwd=scratch, **streams) for host in both]
        launch = Launch(processes, output, notes)
        try:
            launch.wait_for(moment, args.every, _QUICK_S if args.quick else _WARM_UP_S)
            return follow(launch, lose(both[1], loss), args.limit)
        except Stuck as stuck:  # perhaps before the loss, by a time limit of its own on a busy machine
            say(f"no new step within {args.limit:g} s: {stuck}")
            return None
        finally:
            for process in processes:
                process.kill()
                process.wait()


def follow(launch: Launch, lost_s: float, limit_s: float) -> Recovery:
    """Wait for the next new step. Raises Stuck."""
    # Processes of different hosts may have the same number. The start time identifies processes of
    # after the loss.
    began = launch.until(lambda notes: [n for n in notes if n.what == "began" and n.time_s > lost_s], limit_s)
    best = max(note.number for note in launch.notes() if note.what == "step" and note.time_s < began.time_s)
    remaining_s = limit_s - (time.time() - lost_s)
    new = launch.until(
        lambda notes: [n for n in notes if n.what == "step" and n.number > best and n.time_s > began.time_s], remaining_s
    )
    after = [note for note in launch.notes() if note.time_s > lost_s]
    own = [note for note in after if note.pid == new.pid and note.time_s >= began.time_s]
    first = {what: next(note for note in own if note.what == what) for what in ("began", "met", "ready", "step")}
    reached = [*(note.time_s for note in first.values()), new.time_s]
    num_starts = sum(note.what == "began" for note in after)
    return Recovery(tuple(time_s - lost_s for time_s in reached), best - first["ready"].number, num_starts)


def main() -> None:
    parser = harness.make_parser(__doc__ or "", rounds=5)
    parser.add_argument("--losses", default=",".join(LOSSES), metavar="L,L", help="which (default: power,processes)")
    parser.add_argument("--every", type=int, metavar="K", help="steps from one checkpoint to the next (default: 25)")
    parser.add_argument("--size", choices=SIZES, default=SIZES[0], help=f"of the model (default: {SIZES[0]})")
    parser.add_argument("--peer-timeout", type=float, metavar="S", help="of the peer's process group (default: 30)")
    parser.add_argument("--limit", type=float, default=180.0, metavar="S", help="until a peer has failed (default: 180)")
    parser.add_argument("--dir", type=Path, default=Path("build"), help="where the checkpoints go (default: build)")
    args = parser.parse_args()
    asked = ["power"] if args.quick else args.losses.split(",")
    if unknown := [loss for loss in asked if loss not in LOSSES]:
        raise SystemExit(f"--losses {unknown[0]}: choose from {', '.join(LOSSES)}")
    losses = [loss for loss in LOSSES if loss in asked]
    if args.peer_timeout is None:
        args.peer_timeout = 5.0 if args.quick else 30.0
    if args.every is None:
        args.every = 5 if args.quick else 25
    contenders = (OURS, TUNED) if args.quick else (OURS, PEER, TUNED)
    say, rounds = harness.speaker(args), harness.resolve_rounds(args, quick=1)
    machine = harness.machine()
    say(f"{NUM_HOSTS} hosts, {args.size} parameters, saved every {args.every} steps, {rounds} rounds of {', '.join(losses)}")
    drawn = {(name, loss): random.Random(0) for name in contenders for loss in losses}
    found: dict[tuple[str, str], list[Recovery | None]] = {key: [] for key in drawn}

    def turn(name: str, loss: str) -> Callable[[], float]:
        def run() -> float:
            draw = drawn[name, loss]  # the same numbers for all, in the same order of rounds
            one = run_once(name, args, loss, Moment(draw.randint(1, args.every), draw.random()), say)
            found[name, loss].append(one)
            told = f"{one.reached_s[-1]:.2f} s ({one.again} steps again)" if one else "FAILED"
            say(f"{name}, {loss}: {told}")
            return one.reached_s[-1] if one else args.limit

        return run

    timings = harness.interleave({f"{name}, {loss}": turn(name, loss) for name, loss in drawn}, rounds, say)
    report(args, rounds, {key: timings[", ".join(key)] for key in drawn}, found, machine)


def report(
    args: argparse.Namespace,
    rounds: int,
    timings: dict[tuple[str, str], list[float]],
    found: dict[tuple[str, str], list[Recovery | None]],
    machine: dict[str, object],
) -> None:
    """The tables and the last line."""
    say = harness.speaker(args)
    results = {}
    for loss in dict.fromkeys(loss for _, loss in timings):
        own = {name: values for (name, which), values in timings.items() if which == loss}
        ratios = {name: harness.paired_ratio(own[OURS], own[name]) for name in own if name != OURS}
        say(f"\n{loss} lost, seconds to the next new step:\n{harness.spread_table(own, 's', {}, digits=2)}")
        for name, ratio in ratios.items():
            say(f"- lockstep / {name}: {ratio.median:.3f} [{ratio.lower95:.3f}, {ratio.upper95:.3f}]")
        stages = {name: stages_of([one for one in found[name, loss] if one]) for name in own}
        failed = {name: sum(one is None for one in found[name, loss]) for name in own}
        rows = [
            [name, *(f"{stages[name][column]:.2f}" if stages[name] else "" for column in COLUMNS), str(failed[name])]
            for name in own
        ]
        say(f"\nMedians of the recovered runs:\n{harness.table(['contender', *COLUMNS, 'failed'], rows)}")
        headline = ratios.get(PEER) or ratios[TUNED]
        results[loss] = {
            **harness.ratio_fields(headline),
            **harness.ratio_fields(ratios[TUNED], "ratio_impatient"),
            "medians_s": harness.medians(own),
            "stages_s": {name: {stage: round(s, 3) for stage, s in each.items()} for name, each in stages.items()},
            "failed": failed,
            "coverage": round(headline.coverage, 4),
        }
    first = next(iter(results.values()))
    harness.finish(
        {
            "benchmark": "host_loss",
            "goal": GOAL,
            "better": "lower",
            **{name: first[name] for name in ("ratio", "ratio_lower95", "ratio_upper95")},
            "goal_met": first["ratio"] <= GOAL and not any(result["failed"][OURS] for result in results.values()),
            "medians_s": first["medians_s"],
            "losses": results,
            "coverage": first["coverage"],
            "hosts": NUM_HOSTS,
            "size": args.size,
            "every": args.every,
            "peer_timeout_s": args.peer_timeout,
            "limit_s": args.limit,
            **harness.circumstances(args, rounds, machine),
        }
    )


def stages_of(recoveries: list[Recovery]) -> dict[str, float]:
    """Medians of what was reached when, of the steps taken again, and of the starts; nothing if
    none has recovered."""
    columns = zip(*([*one.reached_s, one.again, one.num_starts] for one in recoveries), strict=True)
    return dict(zip(COLUMNS, map(statistics.median, columns), strict=bool(recoveries)))


if __name__ == "__main__":
    main()
