"""The causes that ``lockstep verify`` can name, with remedies."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Cause:
    """A reason why runs differ."""

    sentence: str
    """What is printed after *likely cause:*"""
    remedy: str
    kinds: tuple[str, ...] = ()
    """Evidence for it: see ``diagnosis.evidence``."""


# Likelier ones first: of two with evidence at the same location, the earlier one is named.
CAUSES = {
    "threads": Cause(
        sentence="the number of threads of a process differs, and with it the order in which sums are taken",
        remedy="give threads= to join() (or --threads), and let nothing else set the number of threads",
        kinds=("threads",),
    ),
    "set order": Cause(
        sentence="the order of a Python set: it differs from run to run, because Python hashes texts with a random seed",
        remedy="iterate over sorted(the_set), or use a dict or a list, which keep their order",
    ),
    "collective": Cause(
        sentence="a collective inside a shard: it brings processes together, and how many shards each of them has depends on "
        "how many there are",
        remedy="leave the exchange to team.backward, batch.add and team.log, or call it after the loop over batch.shards",
        kinds=("collective",),
    ),
    "weights": Cause(
        sentence="weights are changed inside a shard: the next shard of this process sees the change, and those of other "
        "processes do not",
        remedy="change weights (clip them, average them, step) after the loop over batch.shards, once a step",
        kinds=("weights",),
    ),
    "random": Cause(
        sentence="a generator of the script's own (or the system's) is drawn from inside a shard, or while a sample is "
        "fetched: what it gives depends on what this process has drawn before, not on the sample",
        remedy="draw from torch, numpy.random or random themselves (lockstep reseeds these for every shard), or make the "
        "generator for each sample, from its index",
        kinds=("generator", "entropy"),
    ),
    "state": Cause(
        sentence="state across shards: something is kept from one forward pass (or one sample) for the next, and which one "
        "that is depends on how the shards are shared out",
        remedy="compute it from the batch at hand alone; keep it in a registered buffer, which lockstep combines over the "
        "shards once a step; or in team.per_shard(...), if it continues from batch to batch",
        kinds=("state",),
    ),
    "data by rank": Cause(
        sentence="the data is read differently on each rank: lockstep itself gives every process its part of each batch, so "
        "all of them must read the same data in the same order",
        remedy="neither split nor seed the data by rank: let every process read the whole stream (or data set)",
    ),
    "worker": Cause(
        sentence="code that depends on which loader worker runs it",
        remedy="let what a sample is depend on its index alone",
        kinds=("worker",),
    ),
    "clock": Cause(
        sentence="time-dependent code: a clock is read where the difference arose",
        remedy="let nothing that is computed depend on the time: count steps (team.step) instead",
        kinds=("clock", "process"),
    ),
    "rank": Cause(
        sentence="rank-dependent code: what is computed depends on which process it is, or on how many there are",
        remedy="use the rank for printing and writing only; scale learning rates by the global batch size, not by the number "
        "of processes",
        kinds=("rank",),
    ),
    "not saved": Cause(
        sentence="something that the script keeps is in no checkpoint, so the run resumes without it",
        remedy="keep values in state = team.state(best=0.0, ...), count with team.step, and give objects to "
        "team.register(name, object): these are saved, as are buffers of the model, optimizers, and team.per_shard(...)",
        kinds=("kept", "state", "generator"),
    ),
    "rounding": Cause(
        sentence="the sum of gradients is taken in an order that depends on the number of processes (strategy ddp)",
        remedy="leave strategy= out: the default, 'exact', adds in one order",
    ),
    "timing": Cause(
        sentence="a non-deterministic kernel: a setting does not agree with itself, and nothing in the script's code explains "
        "it, so an operation (or a library, or a thread of the script's) gives results that depend on timing",
        remedy="torch.use_deterministic_algorithms(True) makes PyTorch choose deterministic kernels, and name those that it "
        "lacks in an error; look at the layer named above first",
    ),
    "unknown": Cause(
        sentence="not found",
        remedy="look at the first thing that differs, above, and at what it is computed from; the traces are in the results' "
        "directory",
    ),
}
