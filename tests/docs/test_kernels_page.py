"""docs/deterministic-kernels.md: written from the table of operations."""

import kernels_page


def test_the_page_is_as_it_would_be_written():
    assert kernels_page.PAGE.read_text() == kernels_page.page(), "python tests/docs/kernels_page.py"
