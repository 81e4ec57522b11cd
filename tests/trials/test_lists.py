"""Options that take a list."""

import click
import pytest

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
    with pytest.raises(ConfigError, match=f"--list {text}: write whole numbers, 1 or more"):
        parse(numbers(least=1), text)


@pytest.mark.parametrize(
    ("callback", "text", "said"),
    [
        (LAUNCHERS, "local,slurm", "unknown launcher 'slurm': choose one of local, torchrun$"),
        (LAUNCHERS, ",", "--list ',' is empty: choose one of local, torchrun"),
    ],
)
def test_an_unknown_name_lists_the_known_ones(callback, text, said):
    with pytest.raises(ConfigError, match=said):
        parse(callback, text)
