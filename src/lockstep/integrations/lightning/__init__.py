"""Lightning's Trainer on lockstep: ``L.Trainer(strategy=LockstepStrategy(shards=8), ...)``."""

from lockstep.integrations.lightning._versions import check_version

check_version()  # before anything of Lightning is imported

from lockstep.integrations.lightning._strategy import LockstepStrategy  # noqa: E402

__all__ = ["LockstepStrategy"]
