"""Lightning's Trainer on lockstep: equal weights, metrics and hooks on any number of processes,
through kills; and what is refused."""

import re
from pathlib import Path

import pytest
import torch
from lightning_calls import missing, missing_where_gradients_are_zeroed_first, run_refusal, run_row, run_row_by_torchrun

pytestmark = [pytest.mark.long, pytest.mark.timeout(100)]
HERE = Path(__file__).parent
ROWS = re.findall(r"^@row\ndef (\w+)", (HERE / "lightning_rows.py").read_text(), re.MULTILINE)
REFUSED = re.findall(r'^@refused\("([\w-]+)".*\n+def (\w+)', (HERE / "lightning_refusals.py").read_text(), re.MULTILINE)
FIRST = dict(reversed(REFUSED))
"""The first script of each code, which is in ``test_lightning_as_plain.py``."""
ON_THREE = ("every_kind_of_log", "batches_by_their_number")


def test_this_version_of_lightning_has_the_order_of_calls_that_is_relied_on(standing_crew):
    [found] = standing_crew(1, missing)
    assert found == [], "Lightning has changed where lockstep.integrations.lightning._host relies on it"


def test_another_order_of_calls_is_noticed(standing_crew):
    [found] = standing_crew(1, missing_where_gradients_are_zeroed_first)
    assert len(found) == 1


@pytest.mark.parametrize("row", ROWS)
def test_weights_metrics_and_hooks_do_not_depend_on_the_number_of_processes(standing_crew, tmp_path, row):
    [one] = standing_crew(1, run_row, row, str(tmp_path / "1"))
    for processes in (2, 3) if row in ON_THREE else (2,):
        assert standing_crew(processes, run_row, row, str(tmp_path / str(processes))) == [one] * processes


def test_a_training_that_torchrun_starts_is_the_same(standing_crew, tmp_path):
    [one] = standing_crew(1, run_row, "plain", str(tmp_path / "1"))
    agent = torch.distributed.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    assert standing_crew(2, run_row_by_torchrun, "plain", str(tmp_path / "2"), agent.port) == [one] * 2


@pytest.mark.parametrize("name", [name for code, name in REFUSED if name != FIRST[code]])
def test_what_would_give_other_results_is_refused(standing_crew, tmp_path, name):
    [(is_refused, error)] = standing_crew(1, run_refusal, name, str(tmp_path / "1"))
    assert is_refused, error
