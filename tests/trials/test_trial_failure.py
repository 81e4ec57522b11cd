"""Promises of what is said of a trial that failed."""

import pytest

from lockstep._tools.trials.failure import describe_silent_failure, in_one_line

pytestmark = pytest.mark.timeout(10)


@pytest.mark.parametrize(
    ("output", "exit_status", "reason"),
    [
        (
            "Traceback ...:\n  File a.py\nValueError: no luck\n\n",
            1,
            "exited with status 1; its last line: ValueError: no luck",
        ),
        ("", -9, "was killed by SIGKILL without a message"),
        ("", -4000, "was killed by signal 4000 without a message"),
    ],
)
def test_of_a_program_that_told_nothing_its_end_and_its_last_lines_are_said(output, exit_status, reason):
    assert describe_silent_failure(output, exit_status) == (reason, output.strip())


def test_one_line_of_a_long_error_is_cut():
    assert len(in_one_line("x" * 500 + "\nmore")) == 300
