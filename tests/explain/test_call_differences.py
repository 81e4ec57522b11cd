"""In what the calls of two ranks must agree, and in what they need not."""

import pytest

from lockstep.tools.explain.call_differences import difference, report
from lockstep.tools.explain.call_log import Call, Group, Line, LoggedCall


def call(kind="all_reduce", dtype="float32", shape=(4,), op="SUM", root=None):
    return Call(kind, dtype, shape, op, root)


def copying(kind, dtype, root=None):
    return Call(kind, dtype, None, "", root)


@pytest.mark.parametrize(
    ("one", "other", "named"),
    [
        (call(dtype="float32"), call(dtype="int32"), "torch.float32"),
        (call(dtype="int64"), call(dtype="float64"), "torch.float64"),
        (call(dtype="bfloat16"), call(dtype="float16"), "bfloat16"),
        (call(dtype="bool"), call(dtype="uint8"), "uint8"),
        (call(shape=(2, 8)), call(shape=(4, 4)), "shape"),
        (call(shape=(2, 3)), call(shape=(3, 2)), "shape"),
        (call(shape=(4,)), call(shape=(5,)), "shape"),
        (call(shape=(4,)), call(shape=(8,), dtype="float16"), "float16"),
        (call(op="SUM"), call(op="MAX"), "MAX"),
        (call("broadcast", op="", root=0), call("broadcast", op="", root=1), "src="),
        (call("reduce", root=0), call("reduce", root=1), "dst="),
        (copying("gather_object", "", root=0), copying("gather_object", "", root=1), "dst="),
        (copying("all_gather", "float32"), copying("all_gather", "int32"), "float32"),
        (call(), copying("barrier", ""), "same collectives"),
        (call(), call("reduce", root=0), "same collectives"),
    ],
)
def test_what_makes_the_numbers_wrong_is_named(one, other, named):
    assert named in difference(one, other)
    assert named in difference(other, one)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (call(shape=()), call(shape=(1,))),  # a loss
        (call(shape=(1, 4)), call(shape=(4,))),
        (call(shape=(2, 3)), call(shape=(6,))),  # flattened
        (call(shape=None), call(shape=(6,))),  # not noted: there were too many
        (copying("broadcast", "bool", root=0), copying("broadcast", "uint8", root=0)),
        (copying("all_to_all", ""), copying("all_to_all", "float32")),  # an empty list
        (copying("scatter", "int64", root=0), copying("scatter", "int64", root=0)),
    ],
)
def test_what_gives_right_numbers_is_no_difference(one, other):
    assert not difference(one, other)
    assert not difference(other, one)


def test_a_report_has_each_rank_with_its_call_and_line_and_marks_those_of_lockstep():
    group = Group("0", 1, (0, 1, 2))
    mine, theirs = Line("train.py:5 in f", is_own=False), Line("train.py:9 in g", is_own=True)
    called = {rank: LoggedCall(group, 7, 9, call(), mine) for rank in (0, 2)}
    called[1] = LoggedCall(group, 7, 9, call(dtype="int32"), theirs)
    assert report(called).splitlines()[1:3] == [
        "  ranks 0 and 2: all_reduce of float32 [4], op SUM, at train.py:5 in f",
        "  rank 1: lockstep's own all_reduce of int32 [4], op SUM, at train.py:9 in g",
    ]
