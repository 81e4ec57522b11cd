"""The documentation site is built strictly, has the whole interface, and loads nothing from
elsewhere."""

import html
import inspect
import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
from browser import browse

from lockstep import Team

__all__ = ["browse"]

ROOT = Path(__file__).parents[2]
LOADED = re.compile(r'<(?:script|img|iframe)[^>]+src="?([^"\s>]+)|<link[^>]+rel="?(?:stylesheet|icon|preconnect)[^>]*>')


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    place = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(place)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=500)
    assert done.returncode == 0, done.stdout + done.stderr
    return place


@pytest.mark.long
@pytest.mark.timeout(150)
def test_every_page_is_in_it_and_loads_nothing_from_elsewhere(site):
    for page in (ROOT / "docs").rglob("*.md"):
        assert (site / page.relative_to(ROOT / "docs").with_suffix(".html")).exists(), page
    for page in site.rglob("*.html"):
        for found in LOADED.finditer(page.read_text()):
            assert "//" not in (found[1] or found[0]), f"{page.relative_to(site)}: {found[0]}"


@pytest.mark.long
@pytest.mark.timeout(150)
def test_the_interface_is_told_from_docstrings(site):
    page = (site / "api.html").read_text()
    for name in (
        "lockstep.Team.prepare",
        "lockstep._joining.join.join",
        "lockstep._launch.function.launch",
        "lockstep.RunConfig.shards",
        "lockstep.DataError",
        "lockstep.options.option",
        "lockstep.integrations.transformers.Trainer",
    ):
        assert f'id="{name}"' in page
    described = inspect.getdoc(Team.register).partition(".")[0].partition(",")[0]
    assert described in html.unescape(page)


@pytest.mark.long
@pytest.mark.timeout(150)
def test_llms_txt_is_in_its_root_with_links_into_it(site):
    links = re.findall(r"\]\(([^)]+)\)", (site / "llms.txt").read_text())
    assert "tutorial.html" in links
    assert [link for link in links if not (site / link).is_file()] == []


@pytest.mark.long
@pytest.mark.timeout(150)
def test_a_browser_shows_it_from_the_disk_without_an_error(site, browse):
    done = browse((site / "index.html").as_uri())
    assert "<h1" in done.stdout
    assert [line for line in done.stderr.splitlines() if "CONSOLE" in line] == []


MEASURE = """<script>
const pages = %s, found = {}
for (const page of pages) for (const width of [1200, 390]) {
  const frame = document.createElement("iframe")
  frame.width = width; frame.height = 900; frame.src = page
  frame.onload = () => {
    const body = frame.contentDocument
    const isVisible = link => {
      const {x, y, width, height} = link.getBoundingClientRect()
      return link.contains(body.elementFromPoint(x + width / 2, y + height / 2))
    }
    found[page + " " + width] = {
      links: [...body.querySelectorAll(".md-sidebar--primary a")].filter(isVisible).length,
      cut: [...body.querySelectorAll("pre > code")].filter(code => code.scrollWidth > code.clientWidth).length,
      wide: body.documentElement.scrollWidth > width,
    }
    document.title = JSON.stringify(found)
  }
  document.body.append(frame)
}
</script>"""


@pytest.mark.long
@pytest.mark.timeout(150)
def test_no_code_is_cut_on_a_wide_screen_and_a_phone_scrolls_only_tables(site, browse, tmp_path):
    pages = [
        "index.html",
        "debug-a-hang.html",
        "internals/architecture.html",
        "rendezvous.html",
        "how-to/early-stopping.html",
    ]
    frame = tmp_path / "frame.html"
    frame.write_text(f"<body>{MEASURE % json.dumps([(site / page).as_uri() for page in pages])}")
    found = json.loads(re.search("<title>(.*)</title>", browse(frame.as_uri()).stdout)[1])
    wide, narrow = ([seen for name, seen in found.items() if name.endswith(width)] for width in ("1200", "390"))
    assert len(wide) == len(narrow) == len(pages)
    assert all(seen["links"] > 20 and not seen["cut"] and not seen["wide"] for seen in wide), found
    assert not any(seen["wide"] for seen in narrow), found


def test_scripts_on_pages_are_no_wider_than_a_screen():
    blocks = [
        (page.name, line)
        for page in (ROOT / "docs").rglob("*.md")
        for block in re.findall(r"^```python[^\n]*\n(.*?)^```", page.read_text(), flags=re.MULTILINE | re.DOTALL)
        for line in block.splitlines()
    ]
    assert blocks
    assert [found for found in blocks if len(found[1]) > 118] == []
