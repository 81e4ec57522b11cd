"""Options that take a list."""

import click
import pytest
from codes import raises

from lockstep._base.errors import ConfigError
from lockstep._tools.trials.studies import names, numbers

LAUNCHERS = names("launcher", ("local", "torchrun"))


def parse(callback, text):
    return callback(None, click.Option(["--list"]), text)


def test_numbers_and_names_come_once_in_their_order():
    assert parse(numbers(least=1), "4, 1,2,4") == (4, 1, 2)
    assert parse(LAUNCHERS, " torchrun,local,torchrun") == ("torchrun", "local")


@pytest.mark.parametrize("text", ["0", "two", "1,,2", "²"])
def test_a_number_that_is_none_is_refused(text):
    with raises(ConfigError, "list-invalid"):
        parse(numbers(least=1), text)


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("local,slurm", "unknown-name"),
        (",", "list-empty"),
    ],
)
def test_an_unknown_name_lists_the_known_ones(text, code):
    with raises(ConfigError, code) as refused:
        parse(LAUNCHERS, text)
    assert "local, torchrun" in str(refused.value)
