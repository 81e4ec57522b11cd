"""Every idiom that is promised to be equal, interrupted and resumed: the same weights, or words
that name what starts over."""

import pytest
import running
from running import Outcome, differences
from table import ROWS
from topics.promises import Equal

pytestmark = [pytest.mark.timeout(300), pytest.mark.long]
PARTS = 4
EQUAL = [row for row in ROWS if isinstance(row.promise, Equal)]

# What these train or average is in no checkpoint, which a warning says when it first acts. (What a
# reading of the script finds is in ``found``.)
NAMED_AS_IT_RUNS = {"optimizer_not_prepared", "schedules_chained", "averaged_model_unprepared"}


def trained(outcome: Outcome) -> Outcome:
    """Without the script's own lists, such as the losses that it has seen: these begin with the
    launch."""
    bits = {name: bits for name, bits in outcome.bits.items() if " weights" in name or " state" in name}
    return Outcome(bits, outcome.error)


@pytest.mark.parametrize("number", range(PARTS))
def test_an_idiom_that_is_interrupted_goes_on_to_the_same_weights_or_says_what_starts_over(crew, number):
    names = [row.name for row in EQUAL[number::PARTS]]
    found = {row.name: row.found for row in EQUAL}
    [whole] = crew(1, running.run, names, 1, "whole", shards=4, timeout_s=20.0)
    last = {name: outcome.steps for name, outcome in whole.items()}
    [again] = crew(
        1, running.run_in_two, names, "again", {name: 1 + last[name] // 2 for name in names}, shards=4, timeout_s=20.0
    )
    wrong, silent = [], set()
    for name, (first, said, resumed) in again.items():
        if resumed.error or (first.error and not first.error.startswith("Interrupted")):
            wrong.append(f"{name}: {first.error}, {resumed.error}")
        if not differences(trained(whole[name]), trained(resumed)):
            continue
        if name in NAMED_AS_IT_RUNS:
            wrong += [] if "WARNING" in said else [f"{name}: no warning"]
        elif not found[name].startswith("LS2"):
            silent.add(name)
    assert (wrong, silent) == ([], set())
