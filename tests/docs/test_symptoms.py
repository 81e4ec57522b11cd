"""docs/symptoms.md: every row has a command that exists, as it is written, and a page."""

import re
import shlex
import subprocess
from pathlib import Path

import pytest
from click import Group

from lockstep._cli.group import LazyGroup

PAGE = (Path(__file__).parents[2] / "docs" / "symptoms.md").read_text()
TABLES = [table.splitlines() for table in re.findall(r"(?:^\|.*\n)+", PAGE, flags=re.MULTILINE)]


def rows():
    """The cells of each row by the headings of its table."""
    for headings, _, *lines in TABLES:
        for line in lines:
            cells = [re.split(r"(?<!\\)\|", text.strip().strip("|")) for text in (headings, line)]
            yield dict(zip(*[[cell.strip().replace(r"\|", "|") for cell in row] for row in cells], strict=True))


COMMANDS = sorted({row["first command"].strip("`") for row in rows()})


def test_every_row_has_one_command_and_leads_to_a_page():
    found = list(rows())
    assert len(found) > 30
    for row in found:
        assert re.fullmatch(r"`[^`]+`", row["first command"]), row
        assert "page" not in row or "](" in row["page"], row


@pytest.mark.parametrize("status", ["73", "74", "75", "76", "129", "130", "134", "137", "138", "143"])
def test_each_status_has_a_row(status):
    assert status in {number for row in rows() for number in row.get("status", "").split(", ")}


@pytest.mark.parametrize("command", COMMANDS)
def test_a_command_of_the_page_is_accepted_as_written(command, tmp_path, monkeypatch):
    assert subprocess.run(["bash", "-n", "-c", command], check=False, timeout=30).returncode == 0
    words = [word for word in shlex.split(command) if not re.match(r"[A-Z_]+=", word)]
    if words[0] != "lockstep":
        return
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").write_text("import lockstep\nteam = lockstep.join(shards=8)\n")
    for name in ("train-1", "train-2"):
        (tmp_path / "runs" / name).mkdir(parents=True)
    found, name, words = LazyGroup(name="lockstep"), "lockstep", words[1:]
    while isinstance(found, Group):
        context = found.make_context(name, words, resilient_parsing=True)
        found, name, words = found.get_command(context, words[0]), words[0], words[1:]
        assert found, command
    found.make_context(name, words).close()  # an option or argument that does not exist is an error
