"""Which calls of ranks belong together, however they are read."""

import itertools

import pytest

from lockstep.tools.explain.call_comparison import CallComparison
from lockstep.tools.explain.call_log import Call, Group, Line, LoggedCall

ALL, PAIR = Group("0", 1, (0, 1, 2)), Group("1", 1, (0, 1))
LINE = Line("train.py:5 in f", is_own=False)


def called(place, dtype="float32", group=ALL, number=None):
    return LoggedCall(group, place, place if number is None else number, Call("all_reduce", dtype, (4,), "SUM", None), LINE)


def counted(dtypes, numbers=None):
    """Calls of one rank."""
    numbers = numbers or range(1, len(dtypes) + 1)
    return [
        called(place, dtype, number=number) for place, (dtype, number) in enumerate(zip(dtypes, numbers, strict=True), 1)
    ]


def comparison(calls_of, ranks=(0, 1, 2)):
    made = CallComparison(ranks)
    for rank, calls in calls_of.items():
        made.add(rank, calls)
    return made


def test_calls_of_one_place_and_number_in_one_group_belong_together():
    good = [called(1), called(2, "int64"), called(1, "bfloat16", PAIR)]
    assert comparison({0: good, 1: good, 2: good[:2]}).found(is_over=True) is None
    bad = [called(1), called(2, "float64"), called(1, "bfloat16", PAIR)]
    rank, where, report = comparison({0: good, 1: bad, 2: good[:2]}).found(is_over=True)
    assert rank == 0
    assert "number 2 of the default process group" in where
    assert "rank 1: all_reduce of float64" in report
    assert "ranks 0 and 2: all_reduce of int64" in report


def test_groups_of_another_life_or_with_other_members_are_not_compared():
    again, others = PAIR._replace(life=2), PAIR._replace(members=(1, 2))
    for other in (again, others):
        assert comparison({0: [called(1, group=PAIR)], 1: [called(1, "int32", other)]}).found(is_over=True) is None


def test_coalesced_calls_share_a_number_and_are_matched_in_order():
    good, other = counted(["float32", "int32", "int64"], [1, 1, 2]), counted(["int32", "float32", "int64"], [1, 1, 2])
    assert comparison({0: good, 1: good}).found(is_over=True) is None
    assert comparison({0: good, 1: other}).found(is_over=True) is not None


def test_a_rank_that_does_not_log_a_call_which_its_peers_log_is_compared_no_more():
    every = counted(["float32", "int32", "int64", "float64", "int32", "int64"])
    without_one = counted(["float32", "int64", "float64", "int32", "int64"], [1, 3, 4, 5, 6])
    assert comparison({0: every, 1: without_one}).found(is_over=True) is None


def test_where_messages_have_numbers_too_a_call_that_differs_must_stand_between_two_that_do_not():
    good, bad = ["float32", "int64", "bfloat16"], ["float32", "int32", "bfloat16"]
    with_messages = [3, 5, 8]
    assert comparison({0: counted(good), 1: counted(good, with_messages)}).found(is_over=True) is None
    assert comparison({0: counted(good), 1: counted(bad, with_messages)}).found(is_over=True) is not None
    shifted = ["float32", "bfloat16", "int64"]
    assert comparison({0: counted(good), 1: counted(shifted, with_messages)}).found(is_over=True) is None
    assert comparison({0: counted(good[:2]), 1: counted(bad[:2], with_messages[:2])}).found(is_over=True) is None


def test_ranks_with_equal_numbers_are_compared_whatever_the_others_have():
    calls = {0: counted(["float32", "int64"]), 1: counted(["float32", "int32"]), 2: counted(["float32", "int64"], [1, 3])}
    _, _, report = comparison(calls).found(is_over=True)
    assert "rank 1" in report
    assert "rank 2" not in report


def test_ranks_that_may_all_be_waiting_are_found_once_one_goes_on():
    differing = comparison({0: [called(1)], 1: [called(1, "int32")]})
    assert differing.found(is_over=False) is None
    differing.add(1, [called(2)])
    assert differing.found(is_over=False) is not None


def test_ranks_of_other_machines_are_not_waited_for():
    made = comparison({0: [called(1)], 1: [called(1, "int32")]}, ranks=(0, 1))
    assert made.found(is_over=True) is not None


@pytest.mark.parametrize("differs", [True, False])
def test_it_does_not_matter_in_which_portions_calls_are_read(differs):
    wrong = (2, 4) if differs else None
    calls = {rank: [called(n, "int32" if (rank, n) == wrong else "float32") for n in range(1, 7)] for rank in range(3)}
    for order in itertools.permutations(range(3)):
        made = CallComparison(range(3))
        for rank in order:
            made.add(rank, calls[rank][: rank + 2])
            assert made.found(is_over=True) is None or rank == order[-1]
        for rank in order:
            made.add(rank, calls[rank][rank + 2 :])
        found = made.found(is_over=True)
        assert (found is not None and "number 4" in found[1]) == differs


def test_little_is_remembered_of_calls_that_all_ranks_have_made():
    made = CallComparison(range(2))
    for place in range(1, 2001):
        for rank in range(2):
            made.add(rank, [called(place, group=PAIR)])
        assert made.found(is_over=True) is None
    assert len(made._called[PAIR]) <= 2
