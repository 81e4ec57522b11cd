"""Promises of the one line that says why a run failed, and of the whole error."""

import pytest

from lockstep.tools.trials.failure import first_error, whole_error

pytestmark = pytest.mark.timeout(10)

TRACE = 'Traceback (most recent call last):\n  File "a.py", line 1, in <module>\n    f()\n    ^^^\n'


def test_the_exception_and_not_the_lines_around_it():
    output = f"loading: 100 %\n{TRACE}ValueError: no luck\nwith a second line\n"
    assert first_error(output, 1) == "ValueError: no luck"


def test_the_first_process_that_failed_and_not_its_launcher():
    worker = "".join(f"[rank1]: {line}\n" for line in f"{TRACE}KeyError: 'x'".splitlines())
    launcher = f"{TRACE}torch.distributed.elastic.multiprocessing.errors.ChildFailedError: \n"
    assert first_error(worker + launcher, 1) == "KeyError: 'x'"


@pytest.mark.parametrize(
    ("output", "exit_status", "said"),
    [
        ("step 1\nstep 2\n\n", 3, "ended with exit status 3; its last line: step 2"),
        ("", -9, "was killed by SIGKILL without any message"),
        ("", -4000, "was killed by signal 4000 without any message"),
    ],
)
def test_without_an_error_how_it_ended(output, exit_status, said):
    assert first_error(output, exit_status) == said


def test_the_whole_error_is_the_traceback_with_its_message_and_what_it_follows_from():
    chain = f"{TRACE}OSError: no file\n\nThe above exception was the direct cause of the following exception:\n\n"
    error = f"{chain}{TRACE}DataError: no data set\nin /data"
    assert whole_error(f"loading: 100 %\n{error}\n") == error


def test_what_another_process_or_torchrun_says_after_it_is_no_part_of_the_error():
    worker = "".join(f"[rank1]: {line}\n" for line in f"{TRACE}KeyError: 'x'".splitlines())
    torchrun = "E1122 22:40:00.000000 1 site-packages/torch/distributed/elastic: failed (exitcode: 1)\n"
    for after in (f"{TRACE}ChildFailedError: \n", torchrun, "=====\nroot cause\n"):
        assert whole_error(worker + after) == f"{TRACE}KeyError: 'x'"


def test_without_a_traceback_the_whole_error_is_what_was_said_last():
    assert whole_error("Usage: x\n\nError: No such option: --shard\n") == "Error: No such option: --shard"
    assert whole_error("\n".join(map(str, range(100)))).splitlines() == [str(number) for number in range(80, 100)]


def test_of_a_very_deep_traceback_the_middle_is_left_out():
    lines = whole_error(
        "\n".join([TRACE, *[f"  line {number}" for number in range(500)], "RecursionError: deep"])
    ).splitlines()
    assert len(lines) < 80
    assert lines[-1] == "RecursionError: deep"
