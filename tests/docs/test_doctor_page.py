"""docs/doctor.md shows what the doctor really prints: its blocks are made anew, and compared but
for numbers and paths."""

import re
from pathlib import Path

import pytest
from crew import warm_server
from warm import run_on

from lockstep._tools.doctor.finding import STATES
from lockstep._tools.doctor.table import CHECKS

PAGE = (Path(__file__).parents[2] / "docs" / "doctor.md").read_text()
SHOWN = dict(re.findall(r"<!-- ([^>]*?) -->\n```text\n(.*?)```", PAGE, flags=re.DOTALL))
ON_EVERY_MACHINE = ("check ", "threads ", "warn: threads")
pytestmark = pytest.mark.timeout(100)


def plain(text):
    """Without what differs from run to run: numbers, paths, and the width of columns."""
    text = re.sub(r"\S*/(here|test_\w+)", "DIR", text)
    text = re.sub(r"[0-9][0-9.,]*( [MG]B/s|\+cpu)?", "N", text)
    return [re.sub(r" +", " ", line).strip() for line in text.splitlines()]


@pytest.fixture
def run(outlives_tests, request, tmp_path):
    """``run(command)``: what it prints, in ``tmp_path``, on both streams."""

    def call(shown):
        variables, verb, rest = re.fullmatch(r"((?:\w+=\w+ )*)lockstep (\w+) (.*)", shown).groups()
        env = dict(pair.split("=") for pair in variables.split())
        done = run_on(warm_server(request, outlives_tests), tmp_path, rest.split(), env=env, verb=verb)
        return plain(done.stdout + done.stderr)

    return call


@pytest.mark.long
def test_the_table_is_what_the_command_prints(run, tmp_path):
    (tmp_path / "train.py").touch()
    (shown,) = [command for command in SHOWN if "lockstep doctor" in command]
    printed = run(shown)
    assert [line for line in plain(SHOWN[shown]) if line.startswith(ON_EVERY_MACHINE) and line not in printed] == [], printed
    rows = [re.match(rf"(.*?) ({'|'.join(STATES)}) ", line) for line in plain(SHOWN[shown])]
    assert [row[1] for row in rows if row] == [*(check.name for check in CHECKS), "exchange"]


def test_every_check_is_explained():
    explained = {name for row in re.findall(r"^\| ([^|]+) \|", PAGE, flags=re.MULTILINE) for name in row.split(", ")}
    assert {check.name for check in CHECKS} <= explained
