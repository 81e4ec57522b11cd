"""The memory that is free, on the machine and within the limits of control groups."""

import psutil
import pytest

from lockstep.machine.memory import free_bytes


@pytest.mark.parametrize(
    ("limits", "free"),
    [
        ({"job": "3000", "job/step": "max"}, 2000),  # the job's, in which the step lies
        ({"job": "3000", "job/step": "1500"}, 500),
        ({"job": "800", "job/step": "max"}, 0),
        ({"job": "max", "job/step": "max"}, None),
    ],
)
def test_no_more_is_free_than_the_machine_has_and_every_control_group_allows(tmp_path, limits, free):
    for group, limit in limits.items():
        directory = tmp_path / "cgroup" / group
        directory.mkdir(parents=True, exist_ok=True)
        (directory / "memory.max").write_text(f"{limit}\n")
        (directory / "memory.current").write_text("1000\n")
    (tmp_path / "membership").write_text("0::/job/step\n")
    counted = free_bytes(tmp_path / "cgroup", tmp_path / "membership")
    assert counted == free if free is not None else 2000 < counted <= psutil.virtual_memory().total
