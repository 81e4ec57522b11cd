"""Lightning's Trainer on lockstep: ``L.Trainer(strategy=LockstepStrategy(shards=8), ...)``."""

from lockstep.integrations.lightning._versions import check_version

# First, since the imports below fail in other ways for other versions of Lightning.
check_version()

from lockstep.integrations.lightning._strategy import LockstepStrategy  # noqa: E402

__all__ = ["LockstepStrategy"]
