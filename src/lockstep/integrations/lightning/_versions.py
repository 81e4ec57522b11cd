"""The versions of Lightning whose order of calls ``host`` relies on."""

from __future__ import annotations

import importlib.metadata

from lockstep._base.errors import ConfigError

SUPPORTED = "2.6"


def check_version() -> None:
    """Refuse other versions.

    Raises:
        ConfigError: another version of Lightning is installed, or only ``pytorch-lightning`` is.
    """
    try:
        version = importlib.metadata.version("lightning")
    except importlib.metadata.PackageNotFoundError:
        raise ConfigError(
            "lockstep.integrations.lightning needs the package lightning (import lightning), and it is not installed. "
            "(pytorch_lightning has classes of its own, which are not those of lightning.pytorch.) Install it: "
            f"pip install 'lightning=={SUPPORTED}.*'"
        ) from None
    if not version.startswith(f"{SUPPORTED}."):
        raise ConfigError(
            f"lightning {version}: lockstep.integrations.lightning works with {SUPPORTED}. It relies on the order in "
            "which Lightning's "
            f"loops call a strategy, which may change in any other version. Install it: pip install 'lightning=={SUPPORTED}.*'"
        )
