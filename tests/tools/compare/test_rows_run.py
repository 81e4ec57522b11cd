"""Promises of running rows: in directories of their own, none spoils another, nothing is left
running."""

import dataclasses
import io
import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
from codes import raises
from rich.console import Console

from lockstep._base.errors import ConfigError
from lockstep._tools.compare import compare, table
from lockstep._tools.compare.methods import parse_methods
from lockstep._tools.trials.study import Task, new_directory
from lockstep._tools.trials.trial import Trial, run_trial

pytestmark = pytest.mark.timeout(60)

# Starts a child in a session of its own and one in its own session, says so, and waits for ever.
HANG = """
for own_session in (True, False):
    subprocess.Popen([sys.executable, "-S", "-c", "import time; time.sleep(60)"], start_new_session=own_session)
journal()
time.sleep(60)
"""


class Silent:
    """An observer that remembers, and calls ``on_waiting`` while a row runs."""

    def __init__(self, on_waiting=lambda what, elapsed_s: None):
        self.heard, self.on_waiting = [], on_waiting

    def started(self, what):
        self.heard.append(what)

    def waiting(self, elapsed_s):
        self.on_waiting("".join(self.heard[-1:]), elapsed_s)

    def ended(self, outcome):
        self.heard.append(outcome.partition(" (")[0])


def run(script, methods, tmp_path, machine, observer=None, nprocs=(2,), rounds=1, **options):
    planned = compare.plan(Task(script=script, **options), parse_methods(methods), nprocs, machine, rounds=rounds)
    return compare.run(planned.begin(tmp_path / "comparison"), observer or Silent())


@pytest.fixture
def machine(make_comparison):
    return make_comparison(("single", 1, 1.0)).machine


def written(comparison):
    return json.loads((comparison.directory / "results.json").read_text())


def test_a_row_that_fails_says_why_and_spoils_no_other(fake_script, tmp_path, machine):
    script = fake_script("""
        if settings["precision"] == "bf16-mixed": raise ValueError("no luck")
        journal()
    """)
    observer = Silent()
    comparison = run(script, "single@python+bf16-mixed,single@python", tmp_path, machine, observer)
    failed, fine = comparison.rows
    reason = "exited with status 1; its last line: ValueError: no luck"
    assert (failed.status, failed.reason, failed.decisive_run.exit_status) == ("failed", reason, 1)
    assert (fine.status, fine.figures.samples_per_s) == ("ok", 160.0)
    assert observer.heard == [
        *("[1/2] single@python+bf16-mixed ×1", f"failed: {reason}"),
        *("[2/2] single@python ×1", "160 samples/s"),
    ]
    rows = written(comparison)["rows"]
    assert "no luck" in (comparison.directory / rows[0]["log"]).read_text()
    assert (comparison.directory / rows[1]["run_dir"] / "events.jsonl").is_file()
    assert (written(comparison)["baseline"], rows[1]["against_baseline"]["speed_up"]) == (2, 1.0)


def test_every_row_gets_the_same_shards_threads_and_seed(fake_script, tmp_path, machine):
    script = fake_script("""
        journal()
        print(json.dumps({**settings, "run_dir": None, "OMP": os.environ["OMP_NUM_THREADS"], "args": sys.argv[1:]}))
    """)
    options = {"seed": 7, "threads": 3, "shards": 8, "args": ("--epochs", "2")}
    comparison = run(script, "single@python,single@python+bf16-mixed", tmp_path, machine, **options)
    seen = [json.loads((comparison.directory / result.decisive_run.log).read_text()) for result in comparison.rows]
    assert seen[0].pop("precision") == "32-true"
    assert seen[1].pop("precision") == "bf16-mixed"
    assert seen[0] == seen[1]
    assert seen[0] == {
        "strategy": "single",
        "shards": 8,
        "threads": 3,
        "seed": 7,
        "run_dir": None,
        "OMP": "3",
        "args": ["--epochs", "2"],
    }


@pytest.mark.parametrize(
    ("then", "code"),
    [
        ("", "no-journal"),
        ("journal(world_size=2)", "world-size-differs"),
        ("journal(num_samples='many')", "no-pass"),
    ],
)
def test_a_run_that_cannot_be_measured_is_a_failed_row(fake_script, tmp_path, machine, then, code):
    (result,) = run(fake_script(then), "single@python", tmp_path, machine).rows
    assert (result.status, result.decisive_run.exit_status, result.figures) == ("failed", 0, None)
    assert result.decisive_run.code == code


def test_a_script_that_leaves_no_journal_is_not_run_in_other_rows(fake_script, tmp_path, machine):
    comparison = run(fake_script(""), "single@python,single@python+bf16-mixed", tmp_path, machine)
    assert [result.status for result in comparison.rows] == ["failed", "not run"]


def test_rows_that_failed_alike_are_told_in_one_line(fake_script, tmp_path, machine):
    names = "single@python,single@python+bf16-mixed"
    comparison = run(fake_script("sys.exit('no data')"), names, tmp_path, machine)
    console = Console(record=True, width=200, file=io.StringIO())
    table.show(comparison, console)
    told = [line for line in console.export_text().splitlines() if "no data" in line]
    assert len(told) == 1
    assert told[0].startswith("single@python ×1, single@python+bf16-mixed ×1 failed: ")


# That nothing is left running is what tests/conftest.py watches in each of these.


def test_a_row_that_takes_too_long_is_stopped_with_all_it_started(fake_script, tmp_path, machine):
    (result,) = run(fake_script(HANG), "single@python", tmp_path, machine, timeout_s=1.0).rows
    assert (result.status, result.decisive_run.code) == ("timeout", "time-limit")


def test_an_interrupt_ends_the_running_row_and_keeps_what_was_measured(fake_script, tmp_path, machine):
    script = fake_script("if settings['precision'] == 'bf16-mixed':\n" + HANG.replace("\n", "\n    ") + "\njournal()")

    def interrupt(what, elapsed_s):
        if what.startswith("[2/3]") and elapsed_s > 0.5:
            raise KeyboardInterrupt

    names = "single@python,single@python+bf16-mixed,single@python"
    comparison = run(script, names, tmp_path, machine, Silent(interrupt))
    assert [result.status for result in comparison.rows] == ["ok", "interrupted", "not run"]
    assert [row["status"] for row in written(comparison)["rows"]] == ["ok", "interrupted", "not run"]
    assert written(comparison)["rows"][0]["figures"]["samples_per_s"] == 160.0


@pytest.mark.long
@pytest.mark.longest
def test_a_row_does_not_outlive_a_comparison_that_is_killed(fake_script, tmp_path):
    script = fake_script("Path('pid').write_text(str(os.getpid()))\ntime.sleep(60)")
    killed = subprocess.Popen(
        [sys.executable, "-m", "lockstep._cli.main", "compare", str(script), "--methods", "single@python"],
        cwd=tmp_path,
        stdout=subprocess.DEVNULL,
    )
    try:
        wait_until(lambda: (tmp_path / "pid").is_file() and (tmp_path / "pid").read_text())
    finally:
        killed.kill()
        killed.wait()
    wait_until(lambda: not Path("/proc", (tmp_path / "pid").read_text()).exists())


def wait_until(condition, timeout_s=50.0):
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, "timed out"
        time.sleep(0.05)


def trial_of(script, **fields):
    settings = {"launcher": "python", "num_processes": 1, "settings": {"shards": 2}, **fields}
    return Trial(directory=script.parent, name="run", program=(str(script),), **settings)


def test_of_the_environment_only_the_settings_are_changed_where_no_number_of_threads_is_asked_for(tmp_path):
    (tmp_path / "show.py").write_text("import json, os\nprint(json.dumps(dict(os.environ)))")
    trial = trial_of(tmp_path / "show.py")
    assert run_trial(trial, Silent()).status == "ok"
    seen = json.loads((tmp_path / trial.log).read_text())
    changed = {name for name in {*seen, *os.environ} if seen.get(name) != os.environ.get(name)}
    ours = {"LOCKSTEP_SETTINGS", "LOCKSTEP_ATTEMPT", "LOCKSTEP_ASKED", "LOCKSTEP_FAILURE"}
    assert changed - {"LC_CTYPE"} == ours  # LC_CTYPE is Python's own doing
    assert json.loads(seen["LOCKSTEP_SETTINGS"]) == {"shards": 2}


def test_a_trial_is_killed_with_all_it_started_as_soon_as_it_is_time(tmp_path):
    script = tmp_path / "hang.py"
    script.write_text("import subprocess, sys, time\n" + HANG.replace("journal()", f"open({str(tmp_path / 'go')!r}, 'w')"))
    began = time.monotonic()
    killed = run_trial(trial_of(script, kill_when=(tmp_path / "go").is_file), Silent())
    assert (killed.status, killed.exit_status, killed.log) == ("ok", None, "run-killed.log")
    assert time.monotonic() - began < 50


def test_an_earlier_comparison_is_never_touched(tmp_path):
    first = new_directory(tmp_path / "out")
    (first / "mine.txt").write_text("mine")
    second = new_directory(tmp_path / "out")
    (second / "x").touch()
    assert [first.name, second.name, new_directory(tmp_path / "out").name] == ["out", "out-2", "out-3"]
    assert (first / "mine.txt").read_text() == "mine"


def test_a_place_where_nothing_can_be_written_is_an_error_with_its_remedy(tmp_path):
    (tmp_path / "file").touch()
    with raises(ConfigError, "results-not-writable"):
        new_directory(tmp_path / "file" / "out")


@pytest.fixture
def make_plan(machine):
    def make(methods="single,ddp", nprocs=(2, 4), num_cores=8, **options):
        here = dataclasses.replace(machine, num_cores=num_cores)
        return compare.plan(Task(script=Path("s.py"), **options), parse_methods(methods), nprocs, here)

    return make


def test_shards_and_threads_follow_the_largest_row_for_all_rows(make_plan):
    assert (make_plan().shards, make_plan().threads) == (4, 2)
    assert make_plan(num_cores=2).threads == 1
    assert (make_plan("single").shards, make_plan("single").threads) == (1, 8)
    assert (make_plan(shards=6, threads=5).shards, make_plan(shards=6, threads=5).threads) == (6, 5)
