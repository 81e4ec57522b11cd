"""The script in docs/monitor.md makes a table of what counts of a run."""

import csv
import json
import re
import textwrap
from pathlib import Path

import pytest

from lockstep._events.history import read_history

PAGE = (Path(__file__).parents[2] / "docs" / "monitor.md").read_text()
[SCRIPT] = re.findall(r"^    import json, pandas\n(?:    .*\n|\n)+", PAGE, flags=re.MULTILINE)


def test_the_table_has_the_steps_that_count(tmp_path, monkeypatch):
    pytest.importorskip("pandas")
    monkeypatch.chdir(tmp_path)
    run = tmp_path / "runs" / "train-1"
    run.mkdir(parents=True)
    events = [{"event": "start"}, *({"event": "step", "step": n, "values": {"loss": 9.0 - n}} for n in range(1, 6))]
    events += [{"event": "start"}, {"event": "resume", "step": 2}]
    events += [{"event": "step", "step": n, "values": {"loss": 5.0 - n}} for n in (3, 4)]
    lines = [json.dumps(event) for event in events]
    (run / "events.jsonl").write_text("\n".join([*lines[:6], '{"event": "step", "step": 6, "val', *lines[6:], ""]))
    exec(textwrap.dedent(SCRIPT), {})
    with (tmp_path / "train-1.csv").open() as file:
        found = [(int(row["step"]), float(row["loss"])) for row in csv.DictReader(file)]
    expected = [(event["step"], event["values"]["loss"]) for event in read_history(run) if event["event"] == "step"]
    assert found == expected == [(1, 8.0), (2, 7.0), (3, 2.0), (4, 1.0)]
