"""The pages on compare and verify name every field of results.json."""

import re
from pathlib import Path

from lockstep._tools.compare.comparison import Comparison, RowResult
from lockstep._tools.compare.methods import Row, parse_method
from lockstep._tools.trials.machine import Machine
from lockstep._tools.trials.study import Task
from lockstep._tools.verify.diagnosis.setting import Setting
from lockstep._tools.verify.verification import SettingResult, Verification

DOCS = Path(__file__).parents[2] / "docs"
MACHINE = dict.fromkeys(("date", "host", "python", "torch", "lockstep"), "")
COMMON = {
    "task": Task(script=Path("train.py")),
    "machine": Machine(**MACHINE, num_cores=2, num_gpus=0),
    "shards": 1,
    "threads": 1,
}


def fields_of(page):
    text = (DOCS / page).read_text().partition("## What is written")[2]
    cells = re.findall(r"^\| (`.*?) \|", text, flags=re.MULTILINE)
    return {name for cell in cells for name in re.findall(r"`(\w+)`", cell)}


def test_of_a_comparison():
    row = RowResult(row=Row(number=1, method=parse_method("single"), num_processes=1))
    record = Comparison(**COMMON, rows=(row,)).as_json()
    assert fields_of("compare.md") == record.keys()
    described = (DOCS / "compare.md").read_text().partition("| `rows` |")[2].partition("| `notes`")[0]
    parts = {"strategy", "launcher", "precision"}  # of the method
    assert set(re.findall(r"`(\w+)`", described)) >= record["rows"][0].keys() - parts


def test_of_a_verification():
    result = SettingResult(setting=Setting(number=1, world_size=1))
    own = Verification(**COMMON, results=(result,)).as_json()
    assert fields_of("verify.md") == own.keys() - fields_of("compare.md")
    assert {"settings", "diagnosis"} <= own.keys()
