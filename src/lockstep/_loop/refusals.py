"""Errors and warnings for calls that the script makes in the wrong place, and the detection of
losses that are sums."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import Tensor

from lockstep._base.errors import AbandonedError, LossError, UsageError
from lockstep._plan.shards import MicroBatch


def uneven_side_by_side(first: list[int], second: list[int]) -> UsageError:
    """Returns the error for two batches whose shards cannot be paired: how many of each have
    samples."""
    return UsageError(
        f"the shards of two batches side by side (zip(a.shards, b.shards)): {_plus(first)} shards of the first batch have "
        f"samples, but {_plus(second)} of the second, so samples would be lost. Give both loaders global batches of the same "
        "size, or of at least as many samples as there are shards (drop_last=True).",
        code="shards-uneven",
    )


def _plus(numbers: list[int]) -> str:
    """Returns the numbers of the accumulated batches of a step, nearly always one."""
    return " + ".join(map(str, numbers))


def moved_side_by_side() -> UsageError:
    """Returns the error for two batches of which a process has different shards."""
    return UsageError(
        "the shards of two batches side by side (zip(a.shards, b.shards)): the second loader was prepared while shards moved "
        "between processes (docs/balance.md), so the shards cannot be paired in this step. Prepare both loaders before the "
        "first pass, or use join(balance='off').",
        code="shards-moved",
    )


def step_is_over(step: int) -> UsageError:
    """Returns the error for a loop over the shards of an earlier batch."""
    return UsageError(
        f"batch.shards of step {step} was used after that step ended. Use it in the body of `for batch in loader:`, before the "
        "next batch is fetched. Remove a prefetcher (lockstep fetches ahead), and replace itertools.cycle(loader) by a "
        "generator: `while True: yield from loader`.",
        code="step-over",
    )


def abandoned(call: str, step: int, error: BaseException) -> AbandonedError:
    """Returns the error for a call that this rank makes alone, while it handles an error that left
    its loop over the shards."""
    return AbandonedError(
        f"{call}, while this rank handles {type(error).__name__}: it has left its loop over batch.shards in step {step}, so "
        "the other ranks do not make this call. Do not communicate in `except` or `finally`.",
        code="call-while-failing",
    )


def left_early(call: str, step: int) -> UsageError:
    """Returns the error for a call after a loop over the shards that did not reach its end."""
    return UsageError(
        f"{call}: step {step} is discarded, because its loop over batch.shards was left early, by break or a caught error, and "
        "gradients were not synchronized. `break` out of the outer loop instead, after the shard loop.",
        code="shards-left-early",
    )


_BATCHES = (
    "A loop that makes its own batches (for example by a get_batch()) needs a loader of them, whose batches lockstep splits "
    "into shards:\n\n"
    "    class Batches:\n"
    "        def __iter__(self):\n"
    "            while True:\n"
    "                yield get_batch()\n\n"
    "    loader = team.prepare(Batches())  # loader.take(1000): 1000 steps\n\n"
    "Then loop: `for batch in loader: for inputs, targets in batch.shards: ... team.backward(loss)`."
)


def no_loader(call: str) -> str:
    """Returns the warning of a prepared optimizer that steps although no loader was prepared."""
    return (
        f"{call}, but no loader was passed to team.prepare(): each process trains on its own batches, and their gradients are "
        f"not combined. {_BATCHES}"
    )


def backward_outside(*, has_loader: bool) -> UsageError:
    """Returns the error for a backward pass of no shard."""
    if not has_loader:
        return UsageError(
            f"backward() outside of batch.shards: its gradients would belong to no shard. {_BATCHES}", code="outside-shards"
        )
    return UsageError(
        "backward() outside of batch.shards: its gradients would belong to no shard. Call it in the inner loop: `for batch in "
        "loader: for images, labels in batch.shards: ... team.backward(loss)`, over the loader that prepare() returned.",
        code="outside-shards",
    )


def cut_short(micro: MicroBatch, error: BaseException) -> UsageError:
    """Returns the error for a shard that continues or ends after an error interrupted its backward
    pass."""
    return UsageError(
        f"step {micro.step}, shard {micro.shard}: team.backward(loss) was interrupted by {type(error).__name__} "
        f"({_first_line(error)}), which the script caught. Part of the shard's gradients are already in the step's sum, so the "
        "step would be wrong. Let the error end the script: the run resumes from its newest checkpoint. To skip a shard, test "
        "its loss first and call team.backward(loss, weight=0), or `continue`; if memory ran out, use more shards.",
        code="backward-interrupted",
    )


def _first_line(error: BaseException) -> str:
    return next(iter(str(error).splitlines()), "no message")


def sum_for_a_mean(micro: MicroBatch, num_shards: int) -> LossError:
    """Returns the error for a loss that is summed over a shard's samples."""
    return LossError(
        f"the loss of shard {micro.shard} is a sum over its {micro.num_samples} samples, but a mean is expected: averaged over "
        f"{num_shards} shards, it would be {num_shards} times too small. Call team.backward(loss, reduction='sum'), or use a "
        "mean. If it is not a sum, pass reduction='mean'.",
        code="loss-is-sum",
    )


def perhaps_sum_for_a_mean(micro: MicroBatch, num_shards: int) -> str:
    """Returns the warning of a loss that is a sum over as many stacked losses as there are
    samples."""
    return (
        f"the loss of shard {micro.shard} is a sum over {micro.num_samples} stacked losses, and the shard has "
        f"{micro.num_samples} samples. If there is one loss per sample, call team.backward(loss, reduction='sum') or use a "
        f"mean: averaged over {num_shards} shards, the sum is {num_shards} times too small. If not (one loss per task, for "
        "example), pass reduction='mean' to end this warning."
    )


_SUM = 2
"""``at::Reduction::Sum``, as PyTorch's losses save it for their backward pass."""


def is_sum(loss: Tensor, num_samples: int) -> bool:
    """Whether the last operation of a loss was a sum over something with one row per sample.

    PyTorch documents the saved values of graph nodes (``grad_fn._saved_*``). Sums followed by other
    operations are not detected here, but by ``lockstep verify``.
    """
    node: Any = loss.grad_fn
    if node is None or num_samples < 2:
        return False
    if getattr(node, "_saved_reduction", None) == _SUM:
        return True
    return _sums_one_per_sample(node, num_samples) and not _is_of_a_stack(node)


def may_be_sum(loss: Tensor, num_samples: int) -> bool:
    """Whether it was a sum over as many stacked losses as there are samples: they may be one per
    sample, or one per task."""
    node: Any = loss.grad_fn
    return node is not None and num_samples > 1 and _sums_one_per_sample(node, num_samples) and _is_of_a_stack(node)


def _sums_one_per_sample(node: Any, num_samples: int) -> bool:
    sizes: Sequence[int] = getattr(node, "_saved_self_sym_sizes", ())
    return bool(node.name().startswith("SumBackward")) and len(sizes) > 0 and sizes[0] == num_samples


def _is_of_a_stack(node: Any) -> bool:
    before = node.next_functions[0][0]
    return before is not None and bool(before.name().startswith("StackBackward"))
