"""Libraries that drive training on lockstep: which methods of a script they call once per shard."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

INTEGRATIONS = "lockstep.integrations."
"""Where lockstep's interfaces of other libraries are. A script that imports one of them needs no
loop of its own."""
_LIGHTNING = ("lightning", "lightning.pytorch", "lightning.pytorch.core", "pytorch_lightning")
_CALLS = {
    **{f"{INTEGRATIONS}transformers.{name}": ("train", "compute_loss", 2) for name in ("Trainer", "Seq2SeqTrainer")},
    **{f"{module}.LightningModule": ("fit", "training_step", 1) for module in _LIGHTNING},
}
"""For each class of a library, the call that trains, the method that it calls once per shard, and
which of its arguments, after ``self``, has the samples."""


def called_per_shard(classes: Iterable[str], call: str) -> Iterator[tuple[str, int]]:
    """The methods that a call of a library makes once per shard.

    Args:
        classes: of libraries, from which the class of an object derives that the call is given.
        call: its name.
    """
    for name in classes:
        trains, method, place = _CALLS.get(name, ("", "", 0))
        if trains == call:
            yield method, place
