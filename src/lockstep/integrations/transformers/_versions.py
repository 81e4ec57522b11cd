"""The versions of transformers that are tested with lockstep."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, version

from lockstep._base.errors import ConfigError

TESTED = ("5.23",)
"""The minor versions for which lockstep's tests pass."""


def check_version(installed: str | None = None) -> None:
    """Checks that the version of transformers is tested.

    Args:
        installed: the version; None: the version of the installed package.

    Raises:
        ConfigError: the version is not tested, or transformers is not installed.
    """
    remedy = f'pip install "transformers=={TESTED[-1]}.*" accelerate'
    if installed is None:
        try:
            installed = version("transformers")
        except PackageNotFoundError:
            raise ConfigError(
                f"lockstep.integrations.transformers needs transformers, which is not installed. Run: {remedy}",
                code="not-installed",
            ) from None
    if ".".join(installed.split(".")[:2]) not in TESTED:
        raise ConfigError(
            f"transformers {installed} is not tested with this version of lockstep (tested: {', '.join(TESTED)}). Its Trainer "
            "may work differently, and results could silently depend on the number of processes. Install a tested version: "
            f"{remedy}",
            code="untested-version",
        )
