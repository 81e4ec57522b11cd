"""The errors for calls of the script that do not belong where they stand, in words; and whether a
loss is a sum."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import Tensor

from lockstep._base.errors import AbandonedError, LossError, UsageError
from lockstep._plan.shards import MicroStep


def uneven_side_by_side(first: list[int], second: list[int]) -> UsageError:
    """Two batches whose shards cannot be paired: how many of each have samples."""
    return UsageError(
        f"the shards of two batches side by side, as in zip(a.shards, b.shards): {first} shards of the first have "
        f"samples, and {second} of the second, so samples would be lost. Give both loaders global batches of "
        "equally many samples, or of at least as many as there are shards (drop_last=True)."
    )


def moved_side_by_side() -> UsageError:
    """Two batches of which a process has different shards."""
    return UsageError(
        "the shards of two batches side by side, as in zip(a.shards, b.shards): the second loader was prepared while shards "
        "moved from one process to another (see docs/balance.md), so they cannot be paired in this step. Prepare both loaders "
        "before the first pass, or use join(balance='off')."
    )


def step_is_over(step: int) -> UsageError:
    """A loop over the shards of an earlier batch."""
    return UsageError(
        f"batch.shards of step {step}, which is over: the loader was already asked for a later batch, or "
        "its loop has ended. A step lasts until the loader is asked for the next batch, so run over batch.shards "
        "before that, in the body of `for batch in loader:`. In place of next() ahead or a prefetcher write nothing, "
        "since lockstep fetches ahead by itself; in place of itertools.cycle(loader), for endless epochs, a "
        "generator: `while True: yield from loader`; to keep an iterator, `batches = iter(loader)` and "
        "`next(batches)`."
    )


def abandoned(call: str, step: int, error: BaseException) -> AbandonedError:
    """A call that this rank makes alone, while it handles an error that has ended its loop over the
    shards."""
    return AbandonedError(
        f"{call}, while this rank handles {type(error).__name__}: it has left the loop over batch.shards in step "
        f"{step}, and the other ranks do not make this call. In a `finally` or `except`, call nothing of the kind"
    )


def left_early(call: str, step: int) -> UsageError:
    """A call after a loop over the shards that did not reach its end."""
    return UsageError(
        f"{call}: in step {step} the loop over batch.shards was left before its end, by break or an error "
        "that was caught, so its gradients were not synchronized, and the step is discarded. Leave the outer loop "
        "after the inner one."
    )


_BATCHES = (
    "A loop that makes its batches itself, by a get_batch() say, needs a loader of them, whose batches lockstep cuts into "
    "shards:\n\n"
    "    class Batches:\n"
    "        def __iter__(self):\n"
    "            while True:\n"
    "                yield get_batch()\n\n"
    "    loader = team.prepare(Batches())  # loader.take(1000): so many steps\n\n"
    "Then loop: `for batch in loader: for inputs, targets in batch.shards: ... team.backward(loss)`."
)


def no_loader(call: str) -> str:
    """A step of a prepared optimizer, although no loader was prepared: in words for a warning."""
    return (
        f"WARNING: {call}, and no loader was given to team.prepare(): each process trains on batches of its own, and nothing "
        f"combines what they learn. {_BATCHES}"
    )


def backward_outside(*, has_loader: bool) -> UsageError:
    """A backward pass of no shard."""
    if not has_loader:
        return UsageError(
            f"backward() outside of batch.shards: there is no shard for its gradients to belong to. {_BATCHES}"
        )
    return UsageError(
        "backward() outside of batch.shards: there is no shard for its gradients to belong to. Call it in the inner "
        "loop: `for batch in loader: for images, labels in batch.shards: ... team.backward(loss)`, over the loader "
        "that prepare() returned."
    )


def cut_short(micro: MicroStep, error: BaseException) -> UsageError:
    """A shard that goes on, or ends, after an error has ended its backward pass."""
    return UsageError(
        f"step {micro.step}, shard {micro.shard}: team.backward(loss) was ended by {type(error).__name__} "
        f"({_first_line(error)}), which the script caught. Some of the shard's gradients had been added to the step's by then, "
        "and perhaps sent to other ranks, so the step would be wrong without a word. Let the error end the script: the run "
        "resumes from its newest checkpoint. If the shard is too large for the memory, give the run more shards, or "
        "accumulate=; to leave out a shard whose loss is NaN, say, test the loss before and call "
        "team.backward(loss, weight=0), or `continue`."
    )


def _first_line(error: BaseException) -> str:
    return next(iter(str(error).splitlines()), "no message")


def sum_for_a_mean(micro: MicroStep, num_shards: int) -> LossError:
    """A loss that is summed over a shard's samples."""
    return LossError(
        f"the loss of shard {micro.shard} is a sum over its {micro.num_samples} samples, where a mean is expected: "
        f"averaged over {num_shards} shards it would be that much smaller than on one device. Call "
        "team.backward(loss, reduction='sum'), or use a mean. (If it is not a sum: reduction='mean'.)"
    )


def perhaps_sum_for_a_mean(micro: MicroStep, num_shards: int) -> str:
    """A warning of a loss that is a sum over as many stacked losses as there are samples."""
    return (
        f"WARNING: the loss of shard {micro.shard} is a sum over {micro.num_samples} stacked losses, and the shard has "
        f"{micro.num_samples} samples. If they are one per sample, averaging over {num_shards} shards makes it that much "
        "smaller than on one device: call team.backward(loss, reduction='sum'), or use a mean. If they are not (one per task, "
        "say), team.backward(loss, reduction='mean') ends this warning."
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
