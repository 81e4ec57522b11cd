"""Lightning's Trainer on lockstep: ``L.Trainer(strategy=LockstepStrategy(shards=8), ...)``."""

from lockstep.integrations.lightning.strategy import LockstepStrategy

__all__ = ["LockstepStrategy"]
