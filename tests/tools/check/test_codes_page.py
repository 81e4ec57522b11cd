"""docs/check-codes.md: written from the table of codes, with examples that have their finding."""

import codes_page
import pytest

from lockstep._tools.check.findings import RULES
from lockstep._tools.check.reader import read_source


def test_the_page_is_as_it_would_be_written():
    assert list(codes_page.CODES) == list(RULES)
    assert codes_page.PAGE.read_text() == codes_page.page(), "python tests/tools/check/codes_page.py"


@pytest.mark.parametrize("name", codes_page.CODES)
def test_the_example_of_a_code_has_that_finding_before_the_change_and_none_after(name):
    code = codes_page.CODES[name]
    assert [found.code for found in read_source(code.before())] == [name]
    assert [str(found) for found in read_source(code.after())] == []
