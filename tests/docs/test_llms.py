"""llms.txt has the form of https://llmstxt.org, and names what there is."""

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
TEXT = (ROOT / "llms.txt").read_text()


def test_it_begins_with_a_title_and_a_summary():
    assert re.match(r"# lockstep\n\n> [^\n]+\n\n", TEXT)


def test_sections_are_lists_of_links_that_lead_somewhere():
    for section in re.split(r"^## .*\n\n", TEXT, flags=re.MULTILINE)[1:]:
        for line in section.strip().splitlines():
            link = re.fullmatch(r"- \[[^]]+\]\(([^)]+)\)(: .+)?", line)
            assert link, line
            assert (ROOT / link[1]).is_file(), line


def test_every_page_of_the_documentation_is_there_but_the_entrances():
    pages = {str(path.relative_to(ROOT)) for path in (ROOT / "docs").rglob("*.md")}
    linked = set(re.findall(r"\]\((docs/[^)]+)\)", TEXT))
    assert pages - linked == {"docs/index.md"}
