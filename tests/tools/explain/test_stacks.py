"""``lockstep stacks``: what live, stopped and killed ranks are said to do."""

import json
import os
import re
import textwrap
import time

import pytest
from click.testing import CliRunner
from explain_scripts import end

from lockstep._tools.explain import command as stacks

pytestmark = pytest.mark.timeout(90)

SCRIPT = """
    import os, re, time, torch, lockstep
    from torch.utils.data import DataLoader, TensorDataset

    def hang(team):
        if team.rank == 1:
            {how}

    with lockstep.join(run_dir="run", shards=3) as team:
        model = torch.nn.Linear(4, 1)
        data = TensorDataset(torch.randn(240, 4), torch.randn(240, 1))
        model, loader = team.prepare(model, DataLoader(data, batch_size=6))
        for step, batch in enumerate(loader, 1):
            for x, y in batch.shards:
                team.backward((model(x) - y).square().mean())
            if step == 5:
                hang(team)
"""


def look(*options):
    return CliRunner().invoke(stacks.command, ["run", *options], catch_exceptions=False).output


def ranks():
    try:
        return json.loads(look("--json"))
    except ValueError:  # nobody has reported yet
        return []


def doings():
    """What each rank does, by rank."""
    return [report["doing"] for report in ranks()]


def until(condition):
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline, look()
        time.sleep(0.2)


@pytest.fixture
def stuck(start_launcher, tmp_path, monkeypatch):
    """Starts three ranks of which rank 1 hangs after step 5, and returns once the others wait for
    it."""
    monkeypatch.chdir(tmp_path)
    started = []

    def start(how):
        (tmp_path / "train.py").write_text(textwrap.dedent(SCRIPT.format(how=how)))
        with (tmp_path / "errors").open("w") as errors:
            started.append(start_launcher("--nproc", "3", "train.py", stdout=errors, stderr=errors))
        until(lambda: [rank["waiting"] and rank["still_s"] > 3 for rank in ranks()] == [True, False, True])

    yield start
    for process in started:
        end(process)


@pytest.mark.long
def test_a_run_that_does_not_get_on_says_once_who_waits_for_whom_and_where_that_one_is(stuck, tmp_path):
    os.mkfifo(tmp_path / "go")
    stuck("open('go').read()")
    said = (tmp_path / "errors").read_text
    until(lambda: "no progress" in said())
    text = said()
    assert re.search(r"\n.*  rank 1 on \S+ \(pid \d+\): .*step 5.*\n", text)
    assert re.search(r"train.py:7 in hang\n.* +open\('go'\).read\(\)\n", text)
    assert "all clear" not in text
    (tmp_path / "go").write_text("")
    until(lambda: "all clear" in said())
    assert said().count("no progress") == 1


SAVES = """
    import os, time, torch, lockstep
    from torch.utils.data import DataLoader, TensorDataset
    fsync = os.fsync

    def slow(file):
        while not os.path.exists("written"):
            time.sleep(0.05)
        fsync(file)

    with lockstep.join(run_dir="run", shards=2, checkpoint_every=4) as team:
        if team.rank == 1:
            os.fsync = slow
        model = torch.nn.Linear(4, 1)
        data = TensorDataset(torch.randn(48, 4), torch.randn(48, 1))
        model, loader = team.prepare(model, DataLoader(data, batch_size=4))
        for step, batch in enumerate(loader, 1):
            for x, y in batch.shards:
                team.backward((model(x) - y).square().mean())
            while step == 6 and not os.path.exists("go"):
                time.sleep(0.05)
"""


@pytest.mark.long
def test_a_checkpoint_in_progress_is_part_of_what_a_rank_does(start_launcher, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").write_text(textwrap.dedent(SAVES))
    with (tmp_path / "errors").open("w") as errors:
        process = start_launcher("--nproc", "2", "train.py", stdout=errors, stderr=errors)
    until(lambda: [(doing["step"], doing["checkpoint"]) for doing in doings()][1:] == [(6, 4)])
    assert re.search("step 6, .*checkpoint of step 4", look())
    (tmp_path / "go").touch()
    until(lambda: "checkpoint of step 4, " in look())  # a rank that waits until it is written
    (tmp_path / "written").touch()
    assert process.wait(60) == 0


def test_where_no_rank_has_reported_the_error_says_so(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    done = CliRunner().invoke(stacks.command, ["run"])
    assert done.exception.code == "stacks-no-run"
    assert "run/blackbox" in str(done.exception)


@pytest.mark.long
def test_a_run_that_has_waited_for_its_timeout_ends_with_who_was_waited_for(run_here):
    script = SCRIPT.format(how="time.sleep(100)")
    error = run_here(script, "--nproc", "3", "--timeout", "4").stderr
    report, _, underneath = error[error.index("error: ") :].partition("\n\n")
    # Another rank may have failed already when one says this: then it is waited for, too.
    assert re.search(r"^  rank 1 .* step 5, ", report, re.MULTILINE)
    assert "in hang" in report
    assert re.match(r"rank \d of 3 .*: PeerError: ", underneath)
