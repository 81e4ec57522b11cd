"""What the launcher adds where a worker's own words do not name the cause."""

from lockstep._launch.failures import from_exception, from_status, report
from lockstep._tools.explain.launching import causes
from lockstep._tools.explain.launching.causes import Causes


def test_memory_that_ran_out_is_named_only_if_the_kernel_has_killed_for_it_meanwhile(monkeypatch):
    killed = from_status(1, -9, "")
    kills = [5, 5, 6]
    monkeypatch.setattr(causes, "oom_kills", lambda: kills.pop(0))
    found = Causes()
    assert found.name(killed) is None
    named = found.name(killed)
    assert "memory ran out" in named.summary()
    assert "rank 1" in named.remark
    assert named.remark in report([named], 2)


def test_a_failure_that_speaks_for_itself_gets_no_remark():
    failure = from_exception(0, ValueError("no such file"))
    assert Causes().name(failure) is None
