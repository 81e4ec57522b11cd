"""What the doctor times is the exchange of gradients, with the rounds of a run: its tensors are
summed over the ranks."""

import exchange_scripts
import pytest

pytestmark = pytest.mark.timeout(60)


def test_the_exchange_that_is_timed_sums_over_the_ranks(crew):
    assert crew(3, exchange_scripts.exchange_twice) == [([{6.0}, {6.0}], "cpu", 3)] * 3
