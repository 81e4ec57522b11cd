"""Libraries that drive training on lockstep: which methods of a script they call once per shard."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

INTEGRATIONS = "lockstep.integrations."
"""The package of lockstep's interfaces to other libraries. A script that imports one of them has
no training loop itself."""
_LIGHTNING = ("lightning", "lightning.pytorch", "lightning.pytorch.core", "pytorch_lightning")
_CALLS = {
    **{f"{INTEGRATIONS}transformers.{name}": ("train", "compute_loss", 2) for name in ("Trainer", "Seq2SeqTrainer")},
    **{f"{module}.LightningModule": ("fit", "training_step", 1) for module in _LIGHTNING},
}
"""The call that trains, the method that it calls once per shard, and the position of the argument
with the samples (without ``self``), for each class of a library."""


def called_per_shard(classes: Iterable[str], call: str) -> Iterator[tuple[str, int]]:
    """The methods that a call of a library makes once per shard.

    Args:
        classes: the classes of libraries from which the class of the call's argument derives.
        call: the name of the call.
    """
    for name in classes:
        trains, method, place = _CALLS.get(name, ("", "", 0))
        if trains == call:
            yield method, place
