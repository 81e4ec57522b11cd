"""A hook of MkDocs (see mkdocs.yml) that adds files of the repository to the site if pages link to
them.

Pages are written for the repository, where ``../examples/gan.py`` is a file. Files outside of docs/
that are linked, or in the navigation, are added: Markdown as pages, others as text that a browser
shows.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File

ROOT = Path(__file__).parents[1]
LINK = re.compile(r"(\]\(|<(?:a|img)[^>]* (?:href|src)=\")(?![a-z]+:|#)([^)\s\"#]+)")
BLOCK = re.compile(r"^( *)```(\w*)( [^\n]*)?\n(.*?)^\1```$", flags=re.MULTILINE | re.DOTALL)
WIDEST = 120  # characters of code that fit beside the navigation on a screen of 1200 pixels
LLMS = "llms.txt"
# The theme shows its navigation from 1220 pixels on, and below that in a drawer; here from 960 on.
BREAKPOINTS = {"76.25em": "60em", "76.234375em": "59.984375em"}


def in_site(path: str) -> str:
    """Where this file of the repository is in the site."""
    if path.startswith("docs/"):
        return path.removeprefix("docs/")
    return path if path.endswith(".md") else f"repository/{path}.txt"


def in_repository(uri: str) -> str:
    """Which file of the repository this page was."""
    return f"docs/{uri}" if (ROOT / "docs" / uri).exists() else uri


def linked(page: str) -> Iterator[tuple[str, str]]:
    """The files of the repository that a page links to, as it names them and from the root."""
    for _, target in LINK.findall((ROOT / page).read_text()):
        path = posixpath.normpath(posixpath.join(posixpath.dirname(page), target))
        if (ROOT / path).is_file():
            yield target, path


def on_files(files: Any, config: Any) -> Any:
    """Add what is linked, and what that links to."""
    waiting = [LLMS, *(in_repository(file.src_uri) for file in files.documentation_pages())]
    waiting += re.findall(r": (\S+\.md)$", Path(config.config_file_path).read_text(), flags=re.MULTILINE)
    while waiting:
        page = waiting.pop()
        if not (ROOT / page).exists():
            continue  # in the navigation, and in docs/
        for path in {page, *(path for _, path in linked(page))} - {LLMS}:
            if files.get_file_from_path(in_site(path)) is None:
                files.append(File.generated(config, in_site(path), abs_src_path=str(ROOT / path)))
                if path.endswith(".md"):
                    waiting.append(path)
    return files


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Rewrites links for the site, and code fences for the highlighter."""
    places = dict(linked(in_repository(page.file.src_uri)))
    start = posixpath.dirname(page.file.src_uri) or "."

    def moved(match: re.Match[str]) -> str:
        path = places.get(match[2])
        return match[0] if path is None else match[1] + posixpath.relpath(in_site(path), start)

    return BLOCK.sub(fenced, LINK.sub(moved, markdown))


def fenced(match: re.Match[str]) -> str:
    """A block of code without the words that are for the tests; output with lines wider than any
    screen is wrapped."""
    indent, language, words, text = match.groups()
    if words and words.startswith(" title="):
        return match[0]
    is_wide = language in ("", "text", "console") and max(map(len, text.splitlines()), default=0) > WIDEST
    kind = f"{{.{language or 'text'} .wrapped}}" if is_wide else language
    return f"{indent}```{kind}\n{text}{indent}```"


def on_post_build(config: Any) -> None:
    """Show the navigation on narrower screens, and put llms.txt, with its links, into the root of
    the site."""
    assets = Path(config.site_dir, "assets")
    for file in [*assets.glob("stylesheets/main.*.css"), *assets.glob("javascripts/bundle.*.js")]:
        text = file.read_text()
        for theirs, ours in BREAKPOINTS.items():
            text = text.replace(theirs, ours)
        file.write_text(text)

    def moved(match: re.Match[str]) -> str:
        uri = in_site(match[2]).replace("README.md", "index.md")
        return match[1] + re.sub(r"\.md$", ".html", uri)

    Path(config.site_dir, LLMS).write_text(LINK.sub(moved, (ROOT / LLMS).read_text()))
