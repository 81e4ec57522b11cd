"""The version of Lightning on whose order of calls ``_host.py`` depends."""

from __future__ import annotations

import importlib.metadata

from lockstep._base.errors import ConfigError

SUPPORTED = "2.6"


def check_version() -> None:
    """Checks the installed version of Lightning.

    Raises:
        ConfigError: another version of Lightning is installed, or only ``pytorch-lightning`` is.
    """
    try:
        version = importlib.metadata.version("lightning")
    except importlib.metadata.PackageNotFoundError:
        raise ConfigError(
            "lockstep.integrations.lightning needs the package lightning, which is not installed (pytorch_lightning is a "
            f"different package). Run: pip install 'lightning=={SUPPORTED}.*'",
            code="not-installed",
        ) from None
    if not version.startswith(f"{SUPPORTED}."):
        raise ConfigError(
            f"lightning {version} is not tested with this version of lockstep (tested: {SUPPORTED}). Its loops may call a "
            f"strategy in another order. Run: pip install 'lightning=={SUPPORTED}.*'",
            code="untested-version",
        )
