"""Promises of ``lockstep watch``: what the files say on one screen, without touching the run."""

import json
import os
import pty
import re
import subprocess
import sys
import time
from pathlib import Path

import pytest
from crew import warm_server
from real_runs import run, until, waiting

from lockstep._cli.main import main
from lockstep._events.history import Tail
from lockstep._tools.explain.rank_reports import RankReport
from lockstep._tools.watch.frame import frame
from lockstep._tools.watch.watched import Watched

pytestmark = pytest.mark.timeout(120)


@pytest.fixture(scope="module")
def finished(tmp_path_factory, request, outlives_tests):
    place = tmp_path_factory.mktemp("watched")
    run(warm_server(request, outlives_tests), place, "runs/train-1", nproc=2)
    return place


def files(directory):
    return {path: (path.stat().st_mtime_ns, path.stat().st_size) for path in directory.rglob("*")}


def look(capsys, *args):
    with pytest.raises(SystemExit) as ended:
        main(["watch", *map(str, args)])
    captured = capsys.readouterr()
    return ended.value.code or 0, captured.out, captured.err


@pytest.mark.long
def test_a_frame_of_a_finished_run_tells_its_progress_values_ranks_events_and_checkpoint(finished, capsys, monkeypatch):
    monkeypatch.chdir(finished)
    before = files(finished / "runs")
    status, out, err = look(capsys)
    assert (status, err) == (0, "")
    assert files(finished / "runs") == before
    lines = out.splitlines()
    assert lines[0] == "train-1 · finished · train.py"
    assert lines[1] == f"epoch 2/2  {30 * '━'}  10/10"
    assert re.match(r"loss 0\.\d+, step 20, error 0\.\d+$", lines[2])
    assert re.match(r"step 20 · [\d.,]+ samples/s · 2 processes · started ", lines[3])
    assert re.search(r"^ranks 0 and 1 on \S+: finished", out, re.MULTILINE)
    assert "last checkpoint: step 20, " in out
    assert look(capsys, "runs/train-1", "--once")[1].splitlines()[0] == lines[0]


def test_the_page_shows_what_it_prints(finished, capsys, monkeypatch):
    monkeypatch.chdir(finished)
    page = (Path(__file__).parents[2] / "docs" / "monitor.md").read_text()
    shown = re.search(r"<!-- lockstep watch runs/train-1 -->\n```text\n(.*?)```", page, flags=re.DOTALL)[1]

    def plain(text):  # without numbers, and what is particular to a machine
        rest = [re.sub(r", \w+-bound| on \w+:|[\d.]+ \w+ ago|^ +", "", line) for line in text.splitlines()]
        return [re.sub(r"\d[\d.,]*", "N", line) for line in rest]

    assert plain(shown) == plain(look(capsys, "runs/train-1")[1])


def on_terminal(place, *args):
    """``lockstep watch`` on a terminal of 80 x 24: its process, and its end of that."""
    ours, theirs = pty.openpty()
    command = [sys.executable, "-m", "lockstep", "watch", *args]
    variables = {**os.environ, "COLUMNS": "80", "LINES": "24", "TERM": "xterm"}
    process = subprocess.Popen(command, cwd=place, stdin=theirs, stdout=theirs, stderr=theirs, env=variables)
    os.close(theirs)
    return process, ours


def read_all(ours):
    text = b""
    while True:
        try:
            data = os.read(ours, 65536)
        except OSError:  # its other end is closed
            data = b""
        if not data:
            os.close(ours)
            return re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", text.decode()).replace("\r", "")
        text += data


def read_until(ours, words):
    """What is shown on the terminal up to these words."""
    data = b""
    while words not in data:
        data += os.read(ours, 65536)
    return re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", data.decode(errors="replace"))


@pytest.mark.long
def test_it_follows_a_run_until_that_ends(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with waiting(tmp_path, "runs/train-1", "--wait", "9", nproc=2) as waits:
        until(lambda: (tmp_path / "runs" / "train-1" / "events.jsonl").exists())
        in_step_9 = r"ranks 0 and 1 on \S+: in the script's code, step 9"
        until(lambda: re.search(in_step_9, look(capsys)[1]), lambda: look(capsys)[1])
        out = look(capsys)[1]
        assert out.startswith("train-1 · running · train.py\n")
        assert re.search(r"^epoch 1/2  ━{27}─{3}  9/10  \d+:\d\d left  \d+:\d\d ", out, re.MULTILINE) or "8/10" in out
        process, ours = on_terminal(tmp_path)
        seen = read_until(ours, b"running")
        (tmp_path / "go").touch()
        text = seen + read_all(ours)
        assert (process.wait(timeout=60), waits.wait(timeout=60)) == (0, 0), text
    assert "train-1 · running" in text
    assert "train-1 · finished" in text


def report(rank, state="running", activity="in the forward pass", host="a", **more):
    record = {"rank": rank, "host": host, "pid": 1, "world_size": 1000, "collective": None, "stack": [], "time_s": 100.0}
    record |= {"since_s": 100.0, "doing": {"activity": activity, "step": 7, "in_step": True}}
    return RankReport({**record, **more}, state, 0.0)


def text_of(watched, width=80, height=24):
    lines = frame(watched, width, height).plain.split("\n")
    assert len(lines) <= height
    assert max(map(len, lines)) <= width
    return "\n".join(lines)


def test_many_ranks_fit_and_those_that_need_a_look_come_first():
    reports = [report(rank, host=f"host{rank // 8}") for rank in range(990)]
    reports += [report(rank, "gone") for rank in range(990, 992)]
    reports += [report(rank, activity=f"doing {rank}") for rank in range(992, 999)]
    seen = Watched(Path("x" * 200))
    seen.state, seen.now_s, seen.reports, seen.values = "running", 101.0, reports, {"loss": 0.5}
    text = text_of(seen)
    lines = text.splitlines()
    first = next(index for index, line in enumerate(lines) if line.startswith("rank"))
    assert lines[first] == "rank 999: has not reported yet"
    assert lines[first + 1].startswith("ranks 990 and 991 on a: dead")
    assert "ranks 0 to 989 on 124 hosts: " in text or "more groups of ranks" in text
    for width, height in ((20, 10), (40, 5), (300, 60)):
        text_of(seen, width, height)


def test_before_anything_is_written_there_is_a_frame_too():
    new = Watched(Path("new-1"))
    new.state = "running"
    assert text_of(new) == "new-1 · running\nno data yet"


def test_a_line_counts_once_it_is_whole_and_a_new_file_begins_anew(tmp_path):
    file = tmp_path / "events.jsonl"
    tail = Tail(file)
    assert tail.read() == ([], False)
    file.write_bytes(b'{"event": "a"}\n[1]\nnoise\n{"eve')
    assert tail.read() == ([{"event": "a"}], True)
    with file.open("ab") as more:
        more.write(b'nt": "b"}\n')
    assert tail.read() == ([{"event": "b"}], False)
    file.write_bytes(b'{"event": "c"}\n')
    assert tail.read() == ([{"event": "c"}], True)


def test_the_newest_values_are_shown_and_nonsense_is_passed_over(tmp_path):
    lines = [
        {"event": "step", "step": 1, "values": {"loss": 3.0, "lr": 0.1}},
        {"event": "step", "step": 2, "values": {"loss": 2.0, "lr": None}},
        {"event": "step", "step": "x", "values": 3},
        {"event": "epoch"},
    ]
    (tmp_path / "events.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    seen = Watched(tmp_path)
    seen.look(time.time())
    text = text_of(seen)
    assert "loss 2, lr not finite\nstep 2" in text, "and not the last that was"


def test_what_is_shown_is_of_the_newest_launch_of_the_run_that_is_there_now(tmp_path):
    seen, file = Watched(tmp_path), tmp_path / "events.jsonl"
    started, step = {"event": "start", "world_size": 2}, {"event": "step", "step": 4, "values": {"loss": 1.0}}
    saved, best = (
        {"event": "checkpoint", "step": 2 + number, "kind": k} for number, k in enumerate(("checkpoint", "weights"))
    )

    def look(*events, way="a"):
        with file.open(way) as log:
            log.writelines(json.dumps(event) + "\n" for event in events)
        seen.look(100.0)
        return seen.step, seen.has_ended, seen.checkpoint and seen.checkpoint["step"], len(seen.values)

    assert look(started, saved, best, step) == (4, False, 2, 1)
    assert look({"event": "end", "step": 4}) == (4, True, 2, 1)
    assert look({"event": "checkpoint", "step": 4, "kind": "checkpoint"}) == (4, True, 4, 1), (
        "the last is saved behind the end"
    )
    assert look(started, {"event": "resume", "step": 2}) == (2, False, 4, 1)
    file.unlink()
    assert look(started, way="w") == (None, False, None, 0)
    assert look({"event": "epoch", "step": 9, "num_samples": 80, "wall_s": 2.0}) == (9, False, None, 0)
    assert seen.samples_per_s == 40.0


def test_where_there_is_no_run_it_says_where_it_looked(capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    status, _, err = look(capsys)
    assert status == 2
    assert f"no run in {tmp_path / 'runs'}: " in err
    (tmp_path / "runs").mkdir()
    assert "A run creates runs/SCRIPT-N" in look(capsys)[2]
