"""What the launcher adds where a worker's own words do not name the cause."""

import os
from importlib.metadata import version

import pytest
from launch_helpers import MEET

from lockstep.launch.failures import from_exception, from_status, report
from lockstep.tools.explain.launching import causes
from lockstep.tools.explain.launching.causes import Causes


@pytest.mark.parametrize("is_loader", [True, False])
def test_memory_that_ran_out_is_named_only_if_the_kernel_has_killed_for_it_meanwhile(monkeypatch, is_loader):
    killed = from_status(1, -9, "")
    if is_loader:
        killed = from_exception(1, RuntimeError("DataLoader worker (pid 77) is killed by signal: Killed. "))
    kills = [5, 5, 6]
    monkeypatch.setattr(causes, "oom_kills", lambda: kills.pop(0))
    found = Causes({})
    assert found.name(killed) == killed
    named = found.name(killed)
    whose = "loader worker 77 of rank 1" if is_loader else "rank 1"
    assert f"killed a process during this run because memory ran out, and most likely {whose}. Use" in report([named], 2)
    assert ("because memory ran out" in named.summary()) != is_loader


def test_a_failure_that_speaks_for_itself_gets_no_remark():
    failure = from_exception(0, ValueError("no such file"))
    assert Causes({}).name(failure) == failure


@pytest.mark.long
def test_a_crash_that_a_setting_of_pytorch_is_known_for_is_told_with_the_setting(start_cold):
    source = MEET + "torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(2, 2))\n"
    launcher = start_cold(source, "--nproc-per-node", "2", env={**os.environ, "TORCH_DISTRIBUTED_DEBUG": "DETAIL"})
    _, err = launcher.communicate(timeout=100)
    if launcher.returncode == 0:
        pytest.skip(f"torch {version('torch')} does not crash")
    assert "TORCH_DISTRIBUTED_DEBUG=DETAIL is set" in err
