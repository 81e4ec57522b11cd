"""What is said once, and what is taken back."""

from lockstep._base.reports import WAITING, Report
from lockstep._tools.explain.remarks import Remarks


def test_after_a_warning_comes_one_all_clear_and_without_one_none():
    said = []
    remarks = Remarks(said.append, said.append)
    remarks.all_clear()
    assert said == []
    report = Report(kind=WAITING, text="no progress")
    remarks.warn(report, 12.0)
    assert remarks.has_warned
    remarks.all_clear()
    remarks.all_clear()
    assert not remarks.has_warned
    assert said[0] == report
    assert len(said) == 2
    assert "all clear" in said[1]
    assert "after 1" in said[1], "for how long they had waited"
