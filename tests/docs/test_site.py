"""The documentation site is built strictly, has the whole interface, and loads nothing from elsewhere."""

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import lockstep

ROOT = Path(__file__).parents[2]
LOADED = re.compile(r'<(?:script|img|iframe)[^>]+src="?([^"\s>]+)|<link[^>]+rel="?(?:stylesheet|icon|preconnect)[^>]*>')


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    place = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(place)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=500)
    assert done.returncode == 0, done.stdout + done.stderr
    return place


def test_the_page_of_the_interface_names_every_public_name_once():
    names = re.findall(r"^::: lockstep\.([\w.]+)$", (ROOT / "docs" / "api.md").read_text(), flags=re.MULTILINE)
    assert sorted(names) == sorted("launch.function.launch" if name == "launch" else name for name in lockstep.__all__)


@pytest.mark.long
@pytest.mark.timeout(150)
def test_every_page_is_in_it_and_loads_nothing_from_elsewhere(site):
    for page in (ROOT / "docs").rglob("*.md"):
        if "notes" not in page.parts:
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
        "lockstep.join",
        "lockstep.launch.function.launch",
        "lockstep.RunConfig.shards",
        "lockstep.DataError",
    ):
        assert f'id="{name}"' in page
    assert "Add an object of the script to the run's state" in page.replace("&#39;", "'")


@pytest.mark.long
@pytest.mark.timeout(150)
def test_llms_txt_is_in_its_root_with_links_into_it(site):
    links = re.findall(r"\]\(([^)]+)\)", (site / "llms.txt").read_text())
    assert "tutorial.html" in links
    assert [link for link in links if not (site / link).is_file()] == []


@pytest.mark.long
@pytest.mark.timeout(150)
@pytest.mark.parametrize("page", ["index.html", "api.html", "how-to/contrastive.html"])
def test_a_browser_shows_it_from_the_disk_without_an_error(site, page, require, tmp_path):
    require("chromium", None if shutil.which("chromium") else "there is no chromium here")
    command = ["chromium", "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run"]
    command += ["--disable-background-networking", "--disable-component-update", "--disable-sync", "--enable-logging=stderr"]
    command += [f"--user-data-dir={tmp_path}", "--virtual-time-budget=3000", "--dump-dom", (site / page).as_uri()]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert "<h1" in done.stdout
    assert [line for line in done.stderr.splitlines() if "CONSOLE" in line] == []
