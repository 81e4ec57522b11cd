"""Promises of ``make mutants``, in a small tree: a fault that a test sees, one that none sees and a
row that must be fixed are distinguished; nothing that a row has started stays."""

import subprocess

import psutil
import pytest
import run
import survey
from faults import read_faults

pytestmark = [pytest.mark.timeout(120), pytest.mark.long]

SOURCE = "def larger(a, b):\n    return a if a > b else b\n\n\ndef half(a):\n    return a / 2\n"
OTHER = "UNUSED = 0\n"
TESTS = """
import os, subprocess, sys, time
import pytest
sys.path.insert(0, os.path.join(os.getcwd(), "src", "lockstep"))
from numbers_of import half, larger

def test_larger():
    assert larger(1, 2) == 2

@pytest.mark.parametrize("a", [2, 4])
def test_half(a):
    if half(a) == "hangs":
        subprocess.Popen(["sleep", "987"], start_new_session=True)
        time.sleep(987)
    assert half(a) < a

@pytest.mark.skip
def test_skipped():
    pass

def test_broken():
    assert half(2) == 2
"""
ROWS = {
    # name: old text, new text, test
    "seen": ("a > b", "a < b", "test_larger"),
    "seen by a case": ("a / 2", "a - (a > 2)", "test_half[2]"),
    "not seen": ("a > b", "a >= b", "test_larger"),
    "twice": ("return", "return 1 +", "test_larger"),
    "no Python": ("a > b", "a >", "test_larger"),
    "cannot be imported": ("def half", "def third", "test_half"),
    "no such test": ("a > b", "a < b", "test_smaller"),
    "no such case": ("a / 2", "a", "test_half[3]"),
    "skipped": ("a > b", "a < b", "test_skipped"),
    "fails anyway": ("a / 2", "a", "test_broken"),
    "hangs": ("a / 2", "'hangs'", "test_half[4]"),
}


@pytest.fixture
def tree(tmp_path):
    root = tmp_path / "tree"
    files = {"src/lockstep/numbers_of.py": SOURCE, "src/lockstep/other.py": OTHER, "tests/test_it.py": TESTS}
    for name, text in {**files, "pytest.ini": "[pytest]\nmarkers =\n    long: not quick\n"}.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    subprocess.run(["git", "init", "-q", root], check=True)
    return root


@pytest.fixture
def rows(tmp_path):
    """The table, as a file."""
    text = ""
    for name, (old, new, test) in ROWS.items():
        text += f"[[fault]]\nname = '{name}'\nfile = 'numbers_of.py'\nold = '''{old}'''\nnew = '''{new}'''\n"
        text += f"tests = ['tests/test_it.py::{test}']\n"
    table = tmp_path / "small.toml"
    table.write_text(text.replace("numbers_of.py'\nold = '''UNUSED", "other.py'\nold = '''UNUSED"))
    return table


def test_each_row_is_judged_and_nothing_stays(tree, rows):
    verdicts = run.run(tree, read_faults([rows]), jobs=1, limit_s=5)
    found = {verdict.fault.name: verdict.result for verdict in verdicts}
    expected = {"seen": run.SEEN, "seen by a case": run.SEEN, "not seen": run.NOT_SEEN}
    assert found == {name: expected.get(name, run.WRONG) for name in ROWS}
    assert not [process for process in psutil.process_iter(["cmdline"]) if process.info["cmdline"] == ["sleep", "987"]]
    assert (tree / "src/lockstep/numbers_of.py").read_text() == SOURCE


def test_a_survey_finds_what_each_fault_of_a_group_is_seen_by(tree, rows, tmp_path):
    faults = [fault for fault in read_faults([rows]) if fault.name in ("seen", "not seen")]
    tests = survey.Tests(tree, tmp_path / "survey", [], jobs=1)
    results = survey.survey(tests, faults, [survey.QUICK], 8, None)
    assert {result.name: (result.seen_by, result.test) for result in results} == {
        "seen": (survey.QUICK, "tests/test_it.py::test_larger"),
        "not seen": ("", ""),
    }
