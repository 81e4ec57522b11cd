"""What a black box keeps of a record that is too long for it."""

import itertools
import time

import pytest

from lockstep._tools.explain import sampler
from lockstep._tools.explain.black_box import BlackBox, read_box
from lockstep._tools.explain.flight_recorder import Counts
from lockstep._tools.explain.frames import MOST_FRAMES
from lockstep._tools.explain.sampler import Sampler, fail_current, shortened

TRACEBACK = "line of a traceback\n" * 300


def frames(length):
    return [(f"/{'a' * length}/{depth}.py", depth, "call") for depth in range(MOST_FRAMES)]


def call_deep(path, depth, act):
    """Call a function at the end of a stack of so many frames in a file of that name."""
    names = {"act": act}
    exec(compile("def call(depth):\n    return call(depth - 1) if depth else act()", path, "exec"), names)
    return names["call"](depth)


def test_a_rank_that_fails_deep_in_a_library_keeps_its_traceback_and_the_innermost_frames(tmp_path):
    path, library = tmp_path / "boxes" / "rank-0.box", f"/{'library/' * 25}module.py"
    assert sampler._current is None

    def fail():
        Sampler(path, {"rank": 0}, lambda: {"activity": "in the script"}, lambda: 0)
        deadline = time.monotonic() + 30
        while read_box(path) is None and time.monotonic() < deadline:
            time.sleep(0.01)
        fail_current(TRACEBACK)

    call_deep(library, MOST_FRAMES, fail)
    record = read_box(path)
    assert record["ended"] == "failed"
    assert record["error"] == TRACEBACK[-6000:]
    assert "fail" in [name for _, _, name in record["stack"]]
    assert [file for file, _, _ in record["stack"]].count(library) >= 10


def test_of_a_record_that_is_too_long_what_is_worth_most_is_kept(tmp_path):
    box = BlackBox(tmp_path / "rank-0.box")
    held = [{"kind": "thread", "what": "thread `upload`", "stack": frames(500)} for _ in range(4)]
    record = {
        "stack": frames(1500),
        "recent": [[number, "allreduce"] for number in range(16)],
        "error": "ä" * 6000 + ": the end",
        "ending": {"since_s": 0.0, "holders": held},
    }
    with pytest.raises(ValueError, match="does not fit"):
        box.write(record)
    short = shortened(record)
    box.write(short)
    assert short["stack"] == record["stack"][: len(short["stack"])]
    assert len(short["stack"]) >= 10
    assert short["recent"] == record["recent"]
    assert short["error"].endswith("ä: the end")


def test_a_collective_that_has_ended_is_progress_at_whatever_line_the_rank_is_seen(tmp_path, monkeypatch):
    path, done = tmp_path / "rank-0.box", itertools.count()
    monkeypatch.setattr(sampler, "counts", lambda: Counts(next(done), {}))
    own = Sampler(path, {"rank": 0}, lambda: {"activity": "in the script"}, lambda: 0)
    time.sleep(1.2)  # at one line
    record = read_box(path)
    own.close("finished")
    assert record["time_s"] == record["since_s"], record
