"""Promises of what is said where ranks have called different collectives, and their communication library failed."""

from lockstep.tools.explain.mismatch import SAME_CALLS, at_failure

TORCH = "/usr/lib/python3/dist-packages/torch"
REDUCING = [(f"{TORCH}/distributed/distributed_c10d.py", 3252, "all_reduce")]
BACKWARD = [(f"{TORCH}/autograd/graph.py", 979, "_engine_run_backward")]


def at(line, function):
    return ("/home/me/train.py", line, function)


def test_lines_of_the_script_are_said_where_the_library_aborted_a_rank():
    stacks = {0: [*BACKWARD, at(27, "step")], 1: [*REDUCING, at(34, "evaluate")], 2: [*BACKWARD, at(27, "step")]}
    text = at_failure([], stacks, has_aborted=True)
    assert text.splitlines() == [
        "communication failed, since the ranks have called different collectives.",
        "  ranks 0 and 2: at /home/me/train.py:27 in step",
        "  rank 1: at /home/me/train.py:34 in evaluate",
        SAME_CALLS,
    ]
    assert at_failure([], stacks, has_aborted=False) is None, "a link may have been cut"


def test_tensors_that_differ_are_said_as_the_recorders_know_them():
    records = [
        {"rank": rank, "recent": [[3, f"broadcast (shape [833] of {dtype})", "0"]]}
        for rank, dtype in enumerate(("float", "double"))
    ]
    stacks = {rank: [*BACKWARD, at(27, "step")] for rank in (0, 1)}
    text = at_failure(records, stacks, has_aborted=False)
    assert "  ranks 0 and 1: at /home/me/train.py:27 in step" in text
    differs = "number 3 was broadcast (shape [833] of float) on rank 0, broadcast (shape [833] of double) on rank 1."
    assert f"  The first of the latest ones that differs: {differs}" in text


def test_nothing_is_claimed_of_a_rank_that_failed_in_its_own_code():
    stacks = {0: [*BACKWARD, at(27, "step")], 1: [at(40, "extension")]}
    assert at_failure([], stacks, has_aborted=True) is None


def test_nothing_is_claimed_of_ranks_that_were_at_the_same_line():
    stacks = {rank: [*REDUCING, at(27, "step")] for rank in (0, 1)}
    assert at_failure([], stacks, has_aborted=True) is None
