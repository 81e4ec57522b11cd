"""The number of cores is what this process may use, not what the machine has."""

import os

import pytest

from lockstep._world.machine import cores


def test_num_cores_follows_the_affinity():
    before = os.sched_getaffinity(0)
    try:
        os.sched_setaffinity(0, {min(before)})
        assert cores.num_cores() == 1
    finally:
        os.sched_setaffinity(0, before)


@pytest.mark.parametrize(
    ("outer", "inner", "expected"),
    [
        ("max 100000", "max 100000", None),
        ("max 100000", "150000 100000", 1.5),
        # a quota of the whole container holds for its groups
        ("200000 100000", "400000 100000", 2.0),
        (None, None, None),
    ],
)
def test_num_cores_follows_the_least_quota_of_the_cgroups(tmp_path, outer, inner, expected):
    root, group = tmp_path / "cgroup", tmp_path / "cgroup" / "job" / "task"
    group.mkdir(parents=True)
    for folder, text in ((root, outer), (group, inner)):
        if text is not None:
            (folder / "cpu.max").write_text(text + "\n")
    membership = tmp_path / "membership"
    membership.write_text("4:memory:/other\n0::/job/task\n")
    assert cores._cgroup_cores(root, membership) == expected
