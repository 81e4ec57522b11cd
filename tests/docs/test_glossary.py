"""The glossary defines at most twenty terms, each in a sentence that begins with it."""

import re
from pathlib import Path

PAGE = (Path(__file__).parents[2] / "docs" / "glossary.md").read_text()


def test_each_entry_begins_with_its_term_and_has_one_or_two_sentences():
    entries = re.findall(r"^- (.*?)(?=^- |^#|\Z)", PAGE, flags=re.MULTILINE | re.DOTALL)
    assert 15 <= len(entries) <= 20
    for entry in entries:
        assert re.match(r"((A|An|The) )?\*\*[^*]+\*\*", entry), entry
        assert len(re.findall(r"[.)](\s|$)", entry)) <= 3, entry
