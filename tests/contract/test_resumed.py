"""The contract, interrupted: a run that is killed with real processes goes on with the same bits at another world size.

(test_to_the_bit stops every training of the corpus, and goes on with it.)
"""

import os
import time
from functools import partial
from pathlib import Path

import pytest
from bits import Seen, differences
from contract_corpus import CORPUS

from lockstep.base.errors import LaunchError

pytestmark = pytest.mark.timeout(90)
PLAIN = CORPUS["plain"].task


def killed_in(step, task):
    """The task, in processes of which the first dies in this step, once there is a checkpoint."""

    def disturb(now):
        if now == step:
            while not list(Path("run").glob("checkpoints/*/manifest.json")):
                time.sleep(0.01)
            os._exit(7)

    Seen.disturb = staticmethod(disturb)
    return task()


@pytest.mark.parametrize("name", ["plain", "averages", "accumulation of a stream", "states of shards by weight"])
def test_a_killed_run_goes_on_in_the_middle_of_an_epoch_at_another_world_size(crew, standing_crew, name):
    task, settings = CORPUS[name].task, {"shards": 4, **CORPUS[name].settings}
    [whole] = standing_crew(1, task, **settings)
    settings |= {"checkpoint_every": 2, "run_dir": "run"}
    with pytest.raises(LaunchError, match="status 7"):
        crew(3, partial(killed_in, 5), task, **settings)
    for rank, result in enumerate(standing_crew(2, task, **settings)):
        assert differences(whole["state"], result["state"]) == [], f"state of rank {rank}"
        assert min(result["by_step"]) > 1
        for number, values in result["by_step"].items():
            assert differences(whole["by_step"][number], values) == [], f"step {number} of rank {rank}"
        assert result["losses"].items() <= whole["losses"].items()


def test_killed_on_four_processes_a_run_ends_on_two_with_the_same_bits(crew, standing_crew):
    whole, *_ = standing_crew(4, PLAIN)
    with pytest.raises(LaunchError, match="status 7"):
        crew(4, partial(killed_in, 4), PLAIN, run_dir="run", checkpoint_every=1)
    for rank, result in enumerate(standing_crew(2, PLAIN, run_dir="run")):
        assert differences(whole["state"], result["state"]) == [], f"state of rank {rank}"
        assert min(result["by_step"]) > 1
