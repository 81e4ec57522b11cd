"""The memory limits of control groups, and what the kernel has killed within them."""

import pytest

from lockstep._tools.explain.launching.memory import limit_bytes, oom_kills

V1 = "4:memory:/job\n0::/\n"
V2 = "0::/job\n"


@pytest.mark.parametrize(
    ("membership", "files", "limit"),
    [
        (V2, {"job/memory.max": "3000", "memory.max": "4000"}, 3000),
        (V2, {"job/memory.max": "max", "memory.max": "4000"}, 4000),
        (V2, {"job/memory.max": "max"}, None),
        (V1, {"memory/job/memory.limit_in_bytes": "3000"}, 3000),
        (V1, {"memory/job/memory.limit_in_bytes": str(2**63 - 4096)}, None),
    ],
)
def test_the_limit_is_the_least_of_all_control_groups_of_either_version(tmp_path, membership, files, limit):
    for file, text in {"../membership": membership, **files}.items():
        path = tmp_path / "cgroup" / file
        (tmp_path / "cgroup").mkdir(exist_ok=True)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    assert limit_bytes(tmp_path / "cgroup", tmp_path / "membership") == limit


@pytest.mark.parametrize(
    ("membership", "file"),
    [
        (V2, "job/memory.events"),
        (V2, "memory.events"),  # the group itself may have no memory controller
        (V1, "memory/job/memory.oom_control"),
        (V1, "../vmstat"),
    ],
)
def test_what_the_kernel_has_killed_for_want_of_memory_is_counted_where_it_counts(tmp_path, membership, file):
    root = tmp_path / "cgroup"
    root.mkdir()
    for path, text in ((tmp_path / "membership", membership), (root / file, "oom 9\noom_kill 3\n")):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    assert oom_kills(root, tmp_path / "membership", tmp_path / "vmstat") == 3
    assert oom_kills(tmp_path / "none", tmp_path / "none", tmp_path / "none") == 0
