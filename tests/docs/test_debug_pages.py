"""The pages on debugging show what their scripts really print: each block is made again, and
compared without numbers and paths."""

import dataclasses
import json
import os
import re
import signal
import time
from pathlib import Path

import pytest
from crew import warm_server
from launchers import nursery, start_launcher
from pages import WIDTH, unwrapped
from warm import run_on

from lockstep._base import reports

__all__ = ["nursery", "start_launcher"]

DOCS = Path(__file__).parents[2] / "docs"
NAMES = ("debug-a-hang", "debug-a-slow-run", "debug-a-crash", "error-messages", "report-fields")
PAGES = {name: (DOCS / f"{name}.md").read_text() for name in NAMES}
TEXT = "\n".join(PAGES.values())
BLOCKS = re.findall(r"<!-- ([^>]*?) -->\n```(text|json)\n(.*?)```", TEXT, flags=re.DOTALL)
SHOWN = {command: unwrapped(text) if kind == "text" else text for command, kind, text in BLOCKS}
FIELDS, KINDS = (
    dict(
        re.findall(
            r"^\| (`.*?`) \| (.*) \|$", re.split(heading, PAGES["report-fields"])[1].split("\n\n")[0], flags=re.MULTILINE
        )
    )
    for heading in (r"\n\| field \| content \|\n", r"\n\| `kind` \| `ranks` \| `cause` \|\n")
)

pytestmark = [pytest.mark.long, pytest.mark.timeout(120)]


def plain(text):
    """Without what differs from run to run: numbers, hosts, the directories of files, and the width
    of columns."""
    # or one was ended before it had said so
    text = re.sub(r"(rank \d of \d on \S+|all \d ranks) failed:", "FAILED:", text)
    text = re.sub(r" on \S+( |:)", r" on HOST\1", re.sub(r"[^\s\"]*/(?=(?:faults|plain|sums|unused)\.py)", "", text))
    return [re.sub(r" +", " ", re.sub(r"[0-9.]+", "N", line)).strip() for line in text.splitlines()]


@pytest.fixture
def where(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    sources = dict(re.findall(r'```python title="(.*?)"\n(.*?)```', TEXT, flags=re.DOTALL))
    assert sorted(sources) == ["faults.py", "plain.py", "sums.py", "unused.py"]
    for name, source in sources.items():
        (tmp_path / name).write_text(source)
    return tmp_path


@pytest.fixture
def run(outlives_tests, request, where):
    """``run(command)``: what it prints, on both streams."""

    def call(shown, *, status=0):
        _, verb, *words = shown.split()
        done = run_on(warm_server(request, outlives_tests), where, words, verb=verb)
        assert done.returncode == status, done.stderr
        return done.stdout + done.stderr

    return call


@pytest.mark.quick
def test_each_block_is_shown_once_and_fits_the_page():
    assert len(SHOWN) == len(BLOCKS) > 8
    wide = [line for _, _, text in BLOCKS for line in text.splitlines() if len(line) > WIDTH]
    assert wide == []


@pytest.mark.quick
def test_each_field_and_kind_of_a_report_is_listed():
    assert set(re.findall(r"`(\w+)`", " ".join(FIELDS))) == {
        *("time_s", "host", "pid"),
        *(field.name for field in dataclasses.fields(reports.Report)),
    }
    assert {kind.strip("`") for kind in KINDS} == set(reports.KINDS)


def test_what_limits_the_speed(run, where):
    # Slower, and fewer, samples: what else a busy machine does takes less than half of the time.
    script = where / "faults.py"
    script.write_text(script.read_text().replace("time.sleep(0.02", "time.sleep(0.05").replace("return 960", "return 360"))
    said, parts = SHOWN["lockstep run --nproc 3 faults.py --slow-data"], SHOWN["lockstep runs runs/faults-1"]
    assert plain(said)[0] in plain(run("lockstep run --nproc 3 faults.py --slow-data"))
    shown, printed = (
        [re.sub(r" \(rank N\)", "", line) for line in plain(text)] for text in (parts, run("lockstep runs runs/faults-1"))
    )
    table = printed[printed.index(shown[1]) :]
    assert shown[:3] == [printed[printed.index(shown[1]) - 1], *table[:2]]
    # (A part of which too little is left to be shown has no line.)
    assert [row for row in table[1:] if row.startswith(("the ", "waiting", "saving")) and row not in shown] == []


def test_a_slow_rank(run):
    command = "lockstep run --nproc 3 faults.py --slow-rank 1"
    assert plain(SHOWN[command])[0] in [line.removeprefix("[rank N] ") for line in plain(run(command))]


def test_a_stuck_rank_and_what_is_said_of_it_once_it_is_killed(run, start_launcher):
    command, recorded = (
        f"lockstep run --nproc 3 {more}faults.py --stuck-rank 1" for more in ("", "--reports reports.jsonl ")
    )
    with Path("said").open("w") as said:
        process = start_launcher(*recorded.split()[2:], stdout=said, stderr=said)
    try:
        deadline = time.monotonic() + 90
        while "`lockstep stacks" not in Path("said").read_text():
            assert time.monotonic() < deadline, Path("said").read_text()
            time.sleep(0.2)
        printed = [line.removeprefix("[rank N] ").strip() for line in plain(Path("said").read_text())]
        assert [line for line in plain(SHOWN[command]) if line not in printed] == []
        report, shown = json.loads(Path("reports.jsonl").read_text()), json.loads(SHOWN[recorded])
        assert sorted(report) == sorted(shown)
        assert all(report[name] == shown[name] for name in ("kind", "ranks", "cause"))
        for name in ("places", "calls"):
            assert {rank: plain(said) for rank, said in report[name].items()} == {
                rank: plain(said) for rank, said in shown[name].items()
            }
        stacks = plain(run("lockstep stacks runs/faults-1"))
        assert [line for line in plain(SHOWN["lockstep stacks runs/faults-1"]) if line not in stacks] == []
        os.kill(int(re.search(r"rank 1 on \S+ \(pid (\d+)\)", Path("said").read_text())[1]), signal.SIGKILL)
        assert process.wait(60) == 128 + signal.SIGKILL
        printed = plain(Path("said").read_text())
        assert [line for line in plain(SHOWN["kill -KILL"]) if line not in printed] == []
    finally:
        if process.poll() is None:
            os.kill(process.pid, signal.SIGINT)
            process.wait()


def test_a_slow_and_then_stuck_rank_of_a_script_that_knows_nothing_of_lockstep(run):
    command = "lockstep run --nproc 3 plain.py"
    printed = plain(run(command, status=1))
    assert [line for line in plain(SHOWN[command]) if line not in printed] == []


def test_an_error_in_words(run):
    command = "lockstep run --nproc 2 unused.py"
    shown = plain(SHOWN[command])
    printed = plain(run(command, status=1))
    assert printed[: len(shown)] == shown


def test_collectives_that_differ(run):
    command = "lockstep run --nproc 2 sums.py"
    assert plain(SHOWN[command]) == plain(run(command))
