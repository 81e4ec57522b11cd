"""Promises of what is said of a trial that failed."""

import pytest

from lockstep._tools.trials.failure import describe_silent_failure, in_one_line

pytestmark = pytest.mark.timeout(10)


@pytest.mark.parametrize(
    ("output", "exit_status", "named"),
    [
        (
            "Traceback ...:\n  File a.py\nValueError: no luck\n\n",
            1,
            ["status 1", "ValueError: no luck"],
        ),
        ("", -9, ["SIGKILL"]),
        ("", -4000, ["signal 4000"]),
    ],
)
def test_of_a_program_that_told_nothing_its_end_and_its_last_lines_are_said(output, exit_status, named):
    reason, last_lines = describe_silent_failure(output, exit_status)
    assert [name for name in named if name not in reason] == []
    assert last_lines == output.strip()


def test_one_line_of_a_long_error_is_cut():
    assert len(in_one_line("x" * 500 + "\nmore")) == 300
