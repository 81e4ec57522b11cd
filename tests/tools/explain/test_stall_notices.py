"""What is said once, and what is taken back."""

from lockstep._base.reports import WAITING, Report
from lockstep._tools.explain.stall_notices import StallNotices


def test_after_a_warning_comes_one_all_clear_and_without_one_none():
    said = []
    notices = StallNotices(said.append, said.append)
    notices.all_clear()
    assert said == []
    report = Report(kind=WAITING, text="no progress")
    notices.warn(report, 12.0)
    assert notices.has_warned
    notices.all_clear()
    notices.all_clear()
    assert not notices.has_warned
    assert said[0] == report
    assert len(said) == 2
    assert "all clear" in said[1]
    assert "after 1" in said[1], "for how long they had waited"
