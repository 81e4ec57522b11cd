"""The first difference between two digest journals in words. Pure.

A journal has the samples and losses of every step, and the content of samples, gradients and state of some. So the step of a
difference is exact if it shows in a loss; otherwise it lies between two steps whose state is known.
"""

from __future__ import annotations

from lockstep.tools.verify.trace.differences import Difference

STAGES = {
    "samples": "which samples it had",
    "content": "what its samples hold",
    "loss": "its loss",
    "gradient": "the gradient after the exchange",
    "state": "the state after the step",
}


def in_words(difference: Difference) -> str:
    """A difference in one line."""
    where = f"step {difference.step}"
    where += f", shard {difference.shard}" if difference.shard is not None else ""
    where += f", phase {difference.phase + 1}" if difference.phase else ""
    name = f" ({difference.name})" if difference.name else ""
    return f"{where}: {STAGES[difference.stage]}{name}: {difference.values[0]}, and {difference.values[1]}"
