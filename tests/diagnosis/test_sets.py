"""Where a script makes sets whose order may matter."""

import pytest

from lockstep.tools.verify.diagnosis.sets import sets_in

pytestmark = pytest.mark.timeout(20)


@pytest.mark.parametrize(
    ("line", "matters"),
    [
        ("for x in {1, 2}: pass", True),
        ("x = list(set(y))", True),
        ("x = [i for i in frozenset(y)]", True),
        ("x = {i for i in y}", True),
        ("for x in sorted({1, 2}): pass", False),
        ("x = len(set(y))", False),
        ("if x in {1, 2}: pass", False),
        ("x = {1: 2}", False),
    ],
)
def test_a_set_counts_where_its_order_may_matter(tmp_path, line, matters):
    (tmp_path / "a.py").write_text(f"y = ()\n{line}\n")
    assert sets_in(tmp_path / "a.py") == ([2] if matters else [])


def test_a_file_that_cannot_be_read_has_none(tmp_path):
    (tmp_path / "a.py").write_text("for for")
    assert sets_in(tmp_path / "a.py") == sets_in(tmp_path / "missing.py") == []
