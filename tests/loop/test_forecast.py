"""Promises of the form that is predicted for a phase: what fits into it needs no second message,
and what is used no more leaves it."""

import pytest

from lockstep._loop.forecast import Forecast
from lockstep._loop.numbers import RankNumbers
from lockstep._sync.news import News

pytestmark = pytest.mark.timeout(10)


def numbers(kinds=(), names=(), **more):
    """What a rank has recorded: calls of these kinds, and a value under each name."""
    return RankNumbers(kinds=list(kinds), values={((name, "mean"), 0): (1.0, 1.0) for name in names}, **more)


def learned(*phases):
    """A forecast after these phases, each with what its ranks have recorded."""
    forecast = Forecast()
    for ranks in phases:
        forecast.learn(max((rank.kinds for rank in ranks), key=len), ranks)
    return forecast


USUAL = [numbers(["samples", "weight"], ["loss"]), numbers(["samples"], ["accuracy"])]


@pytest.mark.parametrize(
    ("rank", "is_foreseen"),
    [
        (numbers(), True),
        (numbers(["samples"]), True),
        (numbers(["samples", "weight"], ["loss", "accuracy"]), True),
        (numbers(["weight"]), False),
        (numbers(["samples", "weight", "sum"]), False),
        (numbers(names=["other"]), False),
        (numbers(others=[("table", 0, ("sum", None, 1.0))]), False),
        (numbers(news=News(modules=[0])), False),
        (numbers(followers=1), False),
    ],
    ids=["nothing", "fewer calls", "all", "another kind", "more calls", "a name", "a tensor", "news", "followers"],
)
def test_a_form_holds_what_any_rank_had_and_less(rank, is_foreseen):
    assert learned(USUAL).foresees(rank) == is_foreseen


def test_nothing_is_foreseen_before_the_first_phase_but_nothing():
    assert Forecast().foresees(numbers())
    assert not Forecast().foresees(USUAL[0])


def test_calls_of_other_kinds_take_the_place_of_the_usual_ones_and_fewer_do_not():
    assert learned(USUAL, [numbers(["sum"])]).kinds == ["sum"]
    assert learned(USUAL, [numbers(["samples"])]).kinds == ["samples", "weight"]


def test_a_name_that_is_used_no_more_leaves_the_form_after_some_time_and_one_that_is_used_stays():
    once, often = [numbers(names=["once", "often"])], [numbers(names=["often"])]
    few, many = learned(once, *[often] * 40), learned(once, *[often] * 60)
    assert few.foresees(once[0])
    assert not many.foresees(once[0])
    assert many.foresees(often[0])
