"""What is known of a failure, and what is shown of several: pure functions of ``failures``."""

import signal
from dataclasses import replace

import pytest

import lockstep
from lockstep._base import errors
from lockstep._base.stopping import AUDIT_STATUS, AuditFailed
from lockstep._launch import failures
from lockstep._launch.failures import Failure

pytestmark = pytest.mark.timeout(20)
RECUR = {
    *("CheckpointError", "ConfigError", "LossError", "UsageError", "MismatchError", "ModelError", "LaunchError"),
    *("AbandonedError", "PartedError"),
}
"""Errors that the same program meets again: no restart follows them."""


def raised(error, *, handling=None):
    """This error, raised; ``handling``: while this one was handled."""
    try:
        if handling is None:
            raise error
        try:
            raise handling
        except BaseException:
            raise error  # noqa: B904 - not `from`
    except BaseException as caught:
        return caught


def explain(error):
    return f"of {type(error).__name__}"


KINDS = [kind for kind in vars(errors).values() if isinstance(kind, type) and issubclass(kind, errors.LockstepError)]


@pytest.mark.parametrize("kind", [*KINDS, ValueError, OSError, MemoryError, KeyboardInterrupt])
def test_a_failure_has_the_fields_of_the_ranks_own_error_whatever_it_met_while_it_handled_it(kind):
    is_ours, lost = issubclass(kind, errors.LockstepError), lockstep.PeerError("lost", code="of-the-echo")
    own = kind("mine", code="own") if is_ours else kind("mine")
    alone = failures.from_exception(3, raised(own), explain)
    assert (alone.rank, alone.kind, alone.code, alone.then) == (3, kind.__qualname__, "own" if is_ours else "", "")
    assert (alone.would_recur, alone.explanation) == (kind.__name__ in RECUR, f"of {kind.__name__}")
    assert alone.exit_status == (130 if kind is KeyboardInterrupt else 1)
    met = failures.from_exception(3, raised(lost, handling=own), explain)
    if alone.is_consequence or kind is KeyboardInterrupt:
        assert met.distance == 2
        return
    assert (met.distance, bool(met.then)) == (1, True)
    assert replace(met, time_s=0.0, text="", then="", is_consequence=False, frames="") == replace(
        alone, time_s=0.0, text="", frames=""
    )


def test_the_status_of_a_process_is_that_of_the_launch(tmp_path):
    found = {}
    for status in (1, 7, -signal.SIGSEGV, -signal.SIGTERM, -64):
        for end in (None, failures.end_of()):
            failure = failures.from_status(1, status, str(tmp_path), end=end)
            found[status, end is not None] = failure.exit_status
            # An exit handler that waits for others has ended it.
            assert failure.is_consequence is (status == 1 and end is not None)
    assert found == {(status, end): status if status > 0 else 128 - status for status, end in found}
    audit = failures.from_audit(1, AuditFailed("wrong"))
    assert (audit.exit_status, audit.would_recur, audit.is_of_all) == (AUDIT_STATUS, True, True)
    stuck = failures.from_deadlock(1, "0 waits", "saved", 75)
    assert (stuck.exit_status, stuck.is_of_all, stuck.would_recur) == (75, True, False)


@pytest.mark.parametrize(("code", "status"), [(3, 3), (-1, 255), (256, 1), (300, 44), ("text", 1), (1.5, 1), (True, 1)])
def test_a_script_that_ends_itself_has_a_status_that_is_no_success(code, status):
    assert failures.from_exit(0, code).exit_status == status


def failed(rank, message="boom", **more):
    return Failure(rank=rank, host="here", kind="ValueError", message=message, **more)


def shown(*found, nproc=3, attached=None):
    """Which ranks are named on each line that names one, and the whole."""
    text = failures.report(found, nproc, attached=attached)
    named = [[rank for rank in range(nproc) if f"rank {rank} " in line] for line in text.splitlines()]
    return [ranks for ranks in named if ranks], text


def test_the_first_is_shown_and_of_the_others_a_line_unless_all_are_alike():
    assert shown(failed(1))[0] == [[1]]
    assert shown(failed(0), nproc=1)[0] == [[0]]
    assert shown(failed(1), failed(0, "other"))[0] == [[1], [0]]
    assert shown(failed(1), failed(0))[0] == [[1], [0]], "the third has not failed"
    alike, text = shown(*map(failed, (1, 0, 2)))
    assert (alike, "all 3 ranks" in text) == ([], True)
    assert shown(failed(1), failed(0), failed(2, "other"))[0] == [[1], [0], [2]]


def test_of_an_end_of_all_no_rank_is_named_and_what_else_failed_is():
    stuck = [failures.from_deadlock(rank, "they wait", "saved") for rank in (0, 1)]
    assert shown(*stuck)[0] == []
    assert shown(stuck[0], failed(2), stuck[1])[0] == [[2]]
    assert "they wait" in shown(*stuck)[1]
    assert "rank" not in failures.headline(stuck[0], 3)
    assert "rank 2 of 3" in failures.headline(failed(2), 3)


@pytest.mark.parametrize("kind", ["BdbQuit", "EOFError"])
def test_who_has_no_terminal_is_told_how_to_get_it_and_who_has_one_is_not(kind):
    for attached in (None, 0, 1):
        text = shown(replace(failed(1), kind=kind), attached=attached)[1]
        assert ("--attach 1" in text) is (attached != 1)


def test_the_log_of_a_rank_has_its_traceback_or_what_is_known_instead():
    found = failures.logs([failed(0, text="the traceback\n"), failed(1), failed(2, text="lines", explanation="why")])
    assert found[0] == "the traceback\n"
    assert found[1] == "ValueError: boom\n"
    assert found[2].startswith("lines\n\n")
    assert found[2].endswith("why\n")


def test_the_place_is_the_innermost_line_of_the_user():
    lines = [f'  File "{file}", line {number}, in {name}' for file, number, name in (("a.py", 1, "f"), ("b.py", 2, "g"))]
    trace = "\n".join(["Traceback (most recent call last):", *lines, '  File "<string>", line 3, in h'])
    assert failures.place_of(failed(0, text=trace)) == "b.py:2 in g"
    crash = "\n".join(["Current thread (most recent call first):", '  File "<string>", line 3, in h', *reversed(lines)])
    assert failures.place_of(failed(0, text=crash.replace("most recent call first", "newest first"))) == "b.py:2 in g"
    assert failures.place_of(failed(0)) == ""
