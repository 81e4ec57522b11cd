"""A hook of MkDocs (see mkdocs.yml): files of the repository that pages link to become part of the site.

Pages are written for the repository, where ``../examples/gan.py`` and ``../README.md`` lead somewhere. Files outside of docs/ that are
linked, or stand in the navigation, are added: Markdown as pages, others as text that a browser shows.
"""

import posixpath
import re
from pathlib import Path

ROOT = Path(__file__).parents[1]
LINK = re.compile(r"(\]\(|<(?:a|img)[^>]* (?:href|src)=\")(?![a-z]+:|#)([^)\s\"#]+)")
ERRORS = "src/lockstep/errors.py"  # llms.txt links to it, and no page does
FENCE = re.compile(r"^([ ]*```\w+) (?!title=|hl_lines=)\S.*$", flags=re.MULTILINE)  # a word for the tests


def in_site(path):
    """Where this file of the repository is in the site."""
    if path.startswith("docs/"):
        return path.removeprefix("docs/")
    return path if path.endswith(".md") else f"repository/{path}.txt"


def in_repository(uri):
    """Which file of the repository this page was."""
    return f"docs/{uri}" if (ROOT / "docs" / uri).exists() else uri


def linked(page):
    """The files of the repository that a page links to, as it names them and from the root."""
    for _, target in LINK.findall((ROOT / page).read_text()):
        path = posixpath.normpath(posixpath.join(posixpath.dirname(page), target))
        if (ROOT / path).is_file():
            yield target, path


def on_files(files, config):
    """Add what is linked, and what that links to."""
    from mkdocs.structure.files import File

    files.append(File.generated(config, in_site(ERRORS), abs_src_path=str(ROOT / ERRORS)))
    waiting = [in_repository(file.src_uri) for file in files.documentation_pages()]
    waiting += re.findall(r": (\S+\.md)$", Path(config.config_file_path).read_text(), flags=re.MULTILINE)
    while waiting:
        page = waiting.pop()
        if not (ROOT / page).exists():
            continue  # a page of docs/ in the navigation
        for path in (page, *(path for _, path in linked(page))):
            uri = in_site(path)
            if files.get_file_from_path(uri) is None:
                files.append(File.generated(config, uri, abs_src_path=str(ROOT / path)))
                if path.endswith(".md"):
                    waiting.append(path)
    return files


def on_page_markdown(markdown, page, **_):
    """Turn links from those of the repository into those of the site, and fences into what the highlighter knows."""
    here = in_repository(page.file.src_uri)
    places = dict(linked(here))
    start = posixpath.dirname(page.file.src_uri)

    def moved(match):
        path = places.get(match[2])
        return match[0] if path is None else match[1] + posixpath.relpath(in_site(path), start or ".")

    return FENCE.sub(r"\1", LINK.sub(moved, markdown))


def on_post_build(config):
    """llms.txt in the root of the site, with its links."""

    def moved(match):
        uri = in_site(match[2]).replace("README.md", "index.md")
        return match[1] + re.sub(r"\.md$", ".html", uri)

    Path(config.site_dir, "llms.txt").write_text(LINK.sub(moved, (ROOT / "llms.txt").read_text()))
