"""Which versions of transformers are known to run as promised."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, version

from lockstep._base.errors import ConfigError

TESTED = ("5.23",)
"""The minor versions for which the tests have passed."""


def check_version(installed: str | None = None) -> None:
    """Refuse a version of transformers whose training loop was not tested.

    Args:
        installed: the version; None: the installed one.

    Raises:
        ConfigError: it is another, or there is none.
    """
    remedy = f'pip install "transformers=={TESTED[-1]}.*" accelerate'
    if installed is None:
        try:
            installed = version("transformers")
        except PackageNotFoundError:
            raise ConfigError(
                f"lockstep.integrations.transformers needs transformers, which is not installed: {remedy}"
            ) from None
    if ".".join(installed.split(".")[:2]) not in TESTED:
        raise ConfigError(
            f"transformers {installed} was not tested with this version of lockstep (tested: {', '.join(TESTED)}). Its Trainer "
            "may call its steps in another order, and results could then depend on the number of processes without a word. "
            f"Install a tested one: {remedy}"
        )
