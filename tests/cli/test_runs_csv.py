"""Promises of ``lockstep runs --csv``: what a spreadsheet reads is what the files say."""

import csv
import io
import json

import pytest
from crew import warm_server
from logged_runs import EPOCHS, STEPS, run_logged

from lockstep.cli.main import main
from lockstep.journal.writer import EventWriter
from lockstep.tools.runs import as_csv

pytestmark = pytest.mark.timeout(180)


@pytest.fixture(scope="module")
def made(tmp_path_factory, request, outlives_tests):
    """A run that was killed in its second epoch on two processes, and resumed on one."""
    place, server = tmp_path_factory.mktemp("logged"), warm_server(request, outlives_tests)
    run_logged(server, place, "runs/killed-1", "--kill", "15", nproc=2, kill=True)
    run_logged(server, place, "runs/killed-1", "--kill", "15")
    return place


@pytest.fixture
def read(made, capsys, monkeypatch):
    def call(*args):
        monkeypatch.chdir(made)
        with pytest.raises(SystemExit) as ended:
            main(["runs", "--csv", *args])
        captured = capsys.readouterr()
        assert (ended.value.code or 0, captured.err) == (0, "")
        return list(csv.DictReader(io.StringIO(captured.out)))

    return call


def test_a_resumed_run_has_one_row_for_each_step_evaluation_and_epoch(read, made):
    rows = read("runs/killed-1")
    steps = [row for row in rows if row["kind"] == "step"]
    assert [int(row["step"]) for row in steps] == list(range(1, EPOCHS * STEPS + 1))
    assert [row["epoch"] for row in steps] == ["0"] * STEPS + ["1"] * STEPS
    lines = map(json.loads, (made / "runs" / "killed-1" / "events.jsonl").read_text().splitlines())
    losses = {line["step"]: line["values"]["loss"] for line in lines if line["event"] == "step"}
    assert {int(row["step"]): float(row["loss"]) for row in steps} == losses
    assert all(row["value_step"] == f"{float(row['step'])}" for row in steps)  # logged under that name by the script
    evaluations = [row for row in rows if row["kind"] == "evaluate"]
    assert [(row["step"], bool(row["error"]), row["loss"]) for row in evaluations] == [("10", True, ""), ("20", True, "")]
    passes = [row for row in rows if row["kind"] == "epoch"]  # each as far as its launch made it
    assert [int(row["num_samples"]) == 4 * int(row["num_steps"]) > 0 for row in passes] == [True] * EPOCHS


def test_what_is_not_finite_is_an_empty_cell_and_damage_is_passed_over(tmp_path):
    journal = EventWriter(tmp_path)
    journal.write("step", epoch=0, step=1, values={"a,b": float("nan"), "c": 1e-9})
    journal.close()
    with (tmp_path / "events.jsonl").open("ab") as file:
        file.write(b'[1]\n"x"\n\xff\xfe\n{"event": "resume", "step": 3}\n{"event": "step", "val')
    out = io.StringIO()
    as_csv.write_values(tmp_path, out)
    assert [row[4:] for row in csv.reader(io.StringIO(out.getvalue()))] == [["a,b", "c"], ["", "1e-09"]]
    out = io.StringIO()
    as_csv.write_values(tmp_path / "nothing", out)
    assert out.getvalue() == "kind,epoch,step,time_s\n"


@pytest.mark.parametrize(("options", "words"), [(("--csv", "--json"), "give one of them"), (("--csv",), "one run")])
def test_it_is_the_format_of_one_run(capsys, tmp_path, options, words):
    with pytest.raises(SystemExit) as ended:
        main(["runs", str(tmp_path), *options])
    assert ended.value.code == 2
    assert words in capsys.readouterr().err
