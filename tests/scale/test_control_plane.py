"""What a rank sends beside its gradients, counted: calls do not depend on the number of ranks, and
messages are few."""

import math

import pytest
import scale_scripts

pytestmark = [pytest.mark.timeout(300), pytest.mark.quick]

WHEN_DUE = "all_reduce"
"""By which the ranks agree on a stop and compare their state: now and then, by the clock."""
SHORT = ("all_gather_flat", "isend")
"""By which short rows are gathered: of a few ranks by a collective, of more by messages."""
MOST_STEPS = 10
BUCKET = 3.5
"""Messages of a bucket for each doubling, at most (``tests/plan/test_message_rounds.py``): the
first step sends one."""


def without(counts, *names):
    return {name: number for name, number in counts.items() if name not in names}


def test_a_rank_calls_no_more_collectives_among_more_ranks_and_sends_a_message_for_each_doubling(standing_crew):
    by_size = {nproc: standing_crew(nproc, scale_scripts.control_plane)[-1] for nproc in (2, 4, 8)}
    for phase, among_two in by_size[2].items():
        for nproc, phases in by_size.items():
            counts = phases[phase]
            assert counts.get(WHEN_DUE, 0) <= 2 * MOST_STEPS
            assert without(counts, WHEN_DUE, *SHORT) == without(among_two, WHEN_DUE, *SHORT), (phase, nproc)
            calls = among_two.get("all_gather_flat", 0)
            assert counts.get("all_gather_flat", 0) <= calls
            messages = calls + BUCKET * (phase == "steps")
            assert counts.get("isend", 0) <= math.ceil(math.log2(nproc)) * messages, (phase, nproc)
    for phases in by_size.values():
        logged, plain = phases["steps with log"], phases["steps"]
        assert all(number <= plain.get(name, 0) for name, number in without(logged, WHEN_DUE).items()), (
            "it goes with the step"
        )
