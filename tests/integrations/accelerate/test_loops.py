"""Loops as people write them with accelerate give the same numbers on any number of processes, or
an error."""

import loops
import pytest

pytestmark = [pytest.mark.timeout(300), pytest.mark.long]


def test_loops_give_the_same_numbers_on_any_number_of_processes_also_if_audited(nest, tmp_path):
    found = []
    for processes, audit in ((1, 0), (2, 0), (3, 0), (1, 1), (2, 1)):
        statuses, results = nest.run(processes, "loops", "run_all", [audit], tmp_path)
        assert statuses == [0] * processes, (tmp_path / "log-0").read_text()[-3000:]
        found += results
    for name in (loop.__name__ for loop in loops.LOOPS):
        assert [result[name] for result in found] == [found[0][name]] * 9, name


def test_what_would_give_another_number_is_refused(nest, tmp_path):
    processes = 2
    expected = {name: error for name, (_, error) in loops.REFUSED.items()}
    assert nest.run(processes, "loops", "refuse_all", [], tmp_path) == ([0] * processes, [expected] * processes)
