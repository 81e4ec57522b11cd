"""Callbacks of click options that take a list, separated by commas. They leave out repetitions; None: not given."""

from __future__ import annotations

from collections.abc import Callable, Collection

import click

from lockstep.base.errors import ConfigError, unknown_name


def numbers(*, least: int) -> Callable[[click.Context, click.Parameter, str | None], tuple[int, ...] | None]:
    """Whole numbers of at least ``least``."""

    def parse(_: click.Context, option: click.Parameter, text: str | None) -> tuple[int, ...] | None:
        parts = [] if text is None else [part.strip() for part in text.split(",")]
        if not all(part.isascii() and part.isdigit() and int(part) >= least for part in parts):
            raise ConfigError(
                f"{option.opts[0]} {text}: write whole numbers, {least} or more, separated by commas, for example {least},4"
            )
        return None if text is None else tuple(dict.fromkeys(map(int, parts)))

    return parse


def names(
    kind: str, valid: Collection[str]
) -> Callable[[click.Context, click.Parameter, str | None], tuple[str, ...] | None]:
    """At least one of the valid names; ``kind``: what they are names of."""

    def parse(_: click.Context, option: click.Parameter, text: str | None) -> tuple[str, ...] | None:
        given = [] if text is None else [part.strip() for part in text.split(",") if part.strip()]
        for name in given:
            if name not in valid:
                raise unknown_name(kind, name, valid)
        if text is not None and not given:
            raise ConfigError(f"{option.opts[0]} {text!r} is empty: choose one of {', '.join(valid)}")
        return None if text is None else tuple(dict.fromkeys(given))

    return parse
