"""Groups of any number and size come to the same result."""

from pathlib import Path

import pytest

pytestmark = pytest.mark.timeout(120)
EXAMPLE = Path(__file__).parents[2] / "examples" / "sub_groups.py"


def results(done):
    assert done.returncode == 0, done.stderr
    first, *rest = done.stdout.splitlines()
    return first, rest


@pytest.mark.long
def test_groups_of_any_size_find_what_one_process_finds(run_here):
    told, one = results(run_here(EXAMPLE))
    assert told == "6 penalties on 1 process, groups [[0]]"
    told, three = results(run_here(EXAMPLE, "--nproc-per-node", "3"))
    assert told == "6 penalties on 3 processes, groups [[0, 2], [1]]"
    assert one == three
    assert len(one) == 7
    assert one[-1].startswith("best: 10000, ")
    best = max(int(line.split()[2]) for line in one[:-1])
    assert best > 310, "of 360"
