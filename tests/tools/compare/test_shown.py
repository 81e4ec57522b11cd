"""Promises of the table, and the notes under it."""

import json
import sys

import pytest
from rich.console import Console

from lockstep._tools.compare import advice, table

pytestmark = pytest.mark.timeout(30)


def printed(comparison, width):
    console = Console(width=width, record=True, file=sys.stderr)
    table.show(comparison, console)
    return console.export_text()


def cells(comparison):
    speed, answer = table.columns(comparison)
    return [table.line(comparison, result, (*speed, *answer)) for result in comparison.rows]


def test_a_row_shows_its_figures_and_their_relation_to_single(make_comparison):
    single, ddp = cells(make_comparison(("single", 1, 2.0), ("ddp", 2, 1.25)))
    assert single == ["2.50", "400", "1.00×", "100 %", "25 %", "100 B", "0.5000", "0", "0.7500", "0"]
    assert ddp[:5] == ["1.56", "640", "1.60×", "80 %", "50 %"]


def test_without_single_there_is_no_speed_up(make_comparison):
    (row,) = cells(make_comparison(("ddp", 2, 2.0)))
    assert (row[2], row[3], row[7]) == (table.NOTHING,) * 3


def test_the_usual_precision_is_the_baseline_wherever_it_stands(make_comparison):
    comparison = make_comparison(("single+bf16-mixed", 1, 2.0), ("single", 1, 1.0), ("ddp", 2, 1.0))
    assert comparison.baseline.row.number == 2
    without = make_comparison(("single+bf16-mixed", 1, 2.0), ("single", 1, "failed"), ("ddp", 2, 1.0))
    assert without.baseline.row.number == 1


@pytest.mark.parametrize("width", [80, 140])
def test_every_figure_is_legible_at_every_width(make_comparison, width):
    comparison = make_comparison(("single", 1, 2.0), ("ddp@torchrun", 2, 1.25), ("ddp", 2, "no luck [today]"))
    text = printed(comparison, width)
    for cell in (cell for row in cells(comparison)[:2] for cell in row):
        assert cell in text
    assert "…" not in text
    assert "ddp ×2 failed: no luck [today]" in text
    assert "runs/x.log" in text


@pytest.mark.parametrize(
    ("number", "text"), [(1786.8, "1,787"), (54.53, "54.5"), (1.2345, "1.23"), (0.5, "0.50"), (0.01234, "0.0123")]
)
def test_seconds_keep_about_three_digits(number, text):
    assert table.seconds(number) == text


@pytest.mark.parametrize(
    ("num_cores", "num_processes", "threads", "said"),
    [
        (1, 2, 1, " 2 processes"),
        (2, 4, 1, "2 cores"),
        (4, 4, 2, "2 threads each share 4 cores"),
    ],
)
def test_a_reader_is_told_when_cores_and_processes_do_not_fit(make_comparison, num_cores, num_processes, threads, said):
    rows = (("single", 1, 5.0), ("ddp", num_processes, 5.0))
    (note,) = advice.notes_on(make_comparison(*rows, num_cores=num_cores, threads=threads))
    assert said in note


def test_a_reader_is_told_when_timings_rest_on_little(make_comparison):
    rows = (("single", 1, 5.0), ("single@torchrun", 1, 1.0))
    (short,) = advice.notes_on(make_comparison(*rows, num_cores=1))
    assert " 2 s " in short
    assert "single@torchrun ×1" in short
    (cold,) = advice.notes_on(make_comparison(*rows, num_cores=1, steady_samples=0))
    assert "was warm-up" in cold


def test_results_can_be_read_by_any_json_reader(make_comparison):
    comparison = make_comparison(("single", 1, 2.0), ("ddp", 2, 1.0), ("ddp@torchrun", 2, "no luck"))
    path = comparison.noting(notes=("a note",)).directory / "results.json"
    read = json.loads(path.read_text(), parse_constant=lambda word: pytest.fail(f"{word} is not JSON"))
    assert (read["schema"], read["shards"], read["threads"], read["baseline"]) == (1, 2, 1, 1)
    assert read["machine"]["host"] == "host"
    assert read["notes"] == ["a note"]
    assert [row["status"] for row in read["rows"]] == ["ok", "ok", "failed"]
    assert read["rows"][1]["against_baseline"]["speed_up"] == 2.0
    assert read["rows"][1]["figures"]["epoch_s"] == 1.25
    assert list(comparison.directory.iterdir()) == [path]
