"""docs/strategies.md lists every strategy, with what the engine's own table says of it."""

import re
from pathlib import Path

import pytest

from lockstep._base.config import STRATEGIES

PAGE = (Path(__file__).parents[2] / "docs" / "strategies.md").read_text()
ROWS = {
    row[0]: row[1:]
    for row in re.findall(r"^\| `(\w+)` \| (.*) \| (.*) \| (yes|no) \| (yes|no) \|$", PAGE, flags=re.MULTILINE)
}


def test_all_are_listed():
    assert ROWS.keys() == STRATEGIES.keys() - {"auto"}


@pytest.mark.parametrize("name", sorted(STRATEGIES.keys() - {"auto"}))
def test_a_row_promises_what_the_strategy_does(name):
    strategy, (_, results, audits, balances) = STRATEGIES[name], ROWS[name]
    assert ("bit-identical" in results) == strategy.promises_bits
    assert (audits, balances) == tuple("yes" if can else "no" for can in (strategy.audits, strategy.balances))
