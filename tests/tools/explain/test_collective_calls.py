"""Which calls of a collective may belong together, and what is told of those that do not."""

from dataclasses import replace

import pytest

from lockstep._base.tracebacks.frames import UNSEEN
from lockstep._launch.failures import from_status
from lockstep._tools.explain.call_ring import NotedCall
from lockstep._tools.explain.collective_calls import Call, difference, parse
from lockstep._tools.explain.launching.failed_calls import frames_of
from lockstep._tools.explain.mismatch import at_failure, first_difference, has_gone_on

pytestmark = [pytest.mark.timeout(20), pytest.mark.quick]

TORCH = "/usr/lib/python3/dist-packages/torch"
REDUCING = (f"{TORCH}/distributed/distributed_c10d.py", 3252, "all_reduce")
BACKWARD = (f"{TORCH}/autograd/graph.py", 979, "_engine_run_backward")


@pytest.mark.parametrize(
    "call",
    [
        Call("barrier"),
        Call("all_reduce", "float", ((3, 4),), "SUM"),
        Call("all_reduce", "float", ((),), "MAX"),
        Call("all_gather", "float/long", ((1,), (2, 2), (3,))),
        Call("reduce", "int", ((2,),), "MIN", 3),
        Call("broadcast", "float", ((4,),), root=0),
        Call("recv", root=2),
    ],
    ids=str,
)
def test_a_call_is_read_as_it_was_written(call):
    assert parse(str(call)) == call


@pytest.mark.parametrize(
    ("one", "other", "aspect"),
    [
        ("all_reduce (shape [3] of float, op SUM)", "barrier", "kind"),
        ("all_reduce (shape [1] of float, op SUM)", "all_reduce (shape [1] of int, op SUM)", "dtype"),
        ("all_reduce (shape [3] of float, op SUM)", "all_reduce (shape [4] of float, op SUM)", "size"),
        ("all_reduce (shape [2, 6] of float, op SUM)", "all_reduce (shape [3, 4] of float, op SUM)", "size"),
        ("all_reduce (shape [3] of float, op SUM)", "all_reduce (shape [3] of float, op AVG)", "op"),
        ("broadcast (shape [3] of float, from rank 0)", "broadcast (shape [3] of float, from rank 1)", "root"),
        # of which the op is not known
        ("all_reduce (shape [3] of float, op MAX)", "all_reduce (shape [3] of float)", ""),
        ("all_reduce (shape [] of float, op SUM)", "all_reduce (shape [1] of float, op SUM)", ""),
        ("all_reduce (shape [6] of float, op SUM)", "all_reduce (shape [2, 3] of float, op SUM)", ""),
        ("broadcast (shape [8] of bool, from rank 0)", "broadcast (shape [8] of byte, from rank 0)", ""),
        ("all_gather (shape [2] of float)", "all_gather (shape [3] of float)", ""),
        ("scatter (shape [2] of float, from rank 0)", "scatter (shape [2] of float, from rank 0)", ""),
    ],
)
def test_what_must_be_the_same_on_all_ranks_is_named_where_it_differs_and_nothing_else_is(one, other, aspect):
    assert difference(parse(one), parse(other)) == difference(parse(other), parse(one)) == aspect


def test_names_of_one_collective_from_different_sources_are_no_difference():
    mine, recorders = parse("reduce_scatter (shape [1] of float, op SUM)"), parse("all_reduce (shape [1] of float)")
    assert difference(mine, recorders, is_loose=True) == ""
    assert difference(mine, recorders) == "kind"


def noted(number, text, at="train.py:9 in step", *, time_s=0.0, life=0, group="0", via="all_reduce"):
    return NotedCall(number, time_s, group, life, parse(text), via, at)


SUM, MAX = "all_reduce (shape [1] of float, op SUM)", "all_reduce (shape [1] of float, op MAX)"


def test_the_earliest_difference_of_all_groups_is_found_with_the_ranks_that_differ_from_most():
    called = {
        0: [noted(7, SUM, time_s=1.0), noted(2, SUM, group="a", time_s=3.0)],
        1: [noted(7, SUM, time_s=1.0), noted(2, MAX, group="a", time_s=3.0)],
        2: [noted(7, MAX, time_s=1.5)],
    }
    found = first_difference(called)
    assert (found.number, found.group, found.aspect, found.odd_ranks) == (7, "0", "op", (2,))
    assert not has_gone_on(called, found)
    assert has_gone_on({**called, 1: [*called[1], noted(8, SUM)]}, found)


def test_no_rank_differs_from_most_while_the_calls_of_too_many_are_not_known():
    two, three = (first_difference({rank: [noted(7, MAX if rank == 1 else SUM)] for rank in range(n)}) for n in (2, 3))
    assert [two.odd_among(2), two.odd_among(3)] == [(0, 1), ()]
    assert [three.odd_among(3), three.odd_among(4)] == [(1,), ()]


def test_calls_are_not_compared_that_may_not_belong_together():
    assert first_difference({0: [noted(7, SUM)], 1: [noted(8, MAX)]}) is None
    assert first_difference({0: [noted(7, SUM)], 1: [noted(7, MAX, life=1)]}) is None, "of another group of that name"
    twice = [noted(7, SUM), noted(7, MAX)]  # by two backends of one group
    assert first_difference({0: twice, 1: twice[:1]}) is None
    messages = {rank: [noted(0, f"send (to rank {1 - rank})")] for rank in (0, 1)}
    assert first_difference(messages) is None


def at(line, function):
    return ("/home/me/train.py", line, function)


def test_where_communication_failed_each_rank_has_its_call_or_its_line():
    called = {0: [noted(3, SUM)], 1: [], 2: [noted(3, "barrier", "train.py:4 in evaluate")]}
    stacks = {0: [REDUCING, at(9, "step")], 1: [BACKWARD, at(7, "step")]}
    first, lines = at_failure(called, stacks, has_aborted=False)
    assert (first.aspect, set(first.calls)) == ("kind", {0, 2})
    said = "\n".join(lines)
    assert all(where in said for where in ("train.py:9 in step", "train.py:7 in step", "train.py:4 in evaluate"))


def test_sizes_that_only_some_backends_allow_are_a_difference_once_communication_has_failed():
    called = {rank: [noted(3, f"all_gather (shape [{rank + 1}] of float)")] for rank in (0, 1)}
    stacks = {rank: [REDUCING, at(9, "step")] for rank in (0, 1)}
    assert first_difference(called) is None
    assert at_failure(called, stacks, has_aborted=True)[0].aspect == "size"


def test_lines_alone_are_a_sign_only_where_the_library_aborted_a_rank():
    stacks = {0: [BACKWARD, at(27, "step")], 1: [REDUCING, at(34, "evaluate")], 2: [BACKWARD, at(27, "step")]}
    first, lines = at_failure({}, stacks, has_aborted=True)
    assert first is None
    assert "/home/me/train.py:34 in evaluate" in "\n".join(lines)
    assert at_failure({}, stacks, has_aborted=False) is None, "a link may have been cut"
    assert at_failure({}, {rank: [REDUCING, at(27, "step")] for rank in (0, 1)}, has_aborted=True) is None


def test_nothing_is_claimed_of_a_rank_that_failed_in_its_own_code():
    stacks = {0: [BACKWARD, at(27, "step")], 1: [at(40, "extension")]}
    assert at_failure({0: [noted(3, SUM)], 1: [noted(3, MAX)]}, stacks, has_aborted=True) is None


def test_the_stack_of_an_aborted_rank_begins_in_the_call_and_not_where_calls_are_noted():
    files = [UNSEEN, "/site-packages/torch/distributed/distributed_c10d.py", "/home/me/train.py"]
    lines = [f'  File "{file}", line {number} in call' for number, file in enumerate(files)]
    text = "\n".join(["Fatal Python error: Aborted", "", "Thread 0x1 (most recent call first):", *lines])
    assert [file for file, _, _ in frames_of(replace(from_status(1, -6, ""), text=text))] == files[1:]
