"""What is in a black box when nobody is there any more to ask."""

import os
import signal
import subprocess
import sys
import time

import pytest

from lockstep._tools.explain.black_box import BlackBox, box_path, note_status, read_box


def test_the_newest_record_is_read(tmp_path):
    path = tmp_path / "boxes" / "rank-0.box"
    assert read_box(path) is None
    box = BlackBox(path)
    assert read_box(path) is None
    for number in range(5):
        box.write({"number": number, "text": "ä" * number})
        assert read_box(path) == {"number": number, "text": "ä" * number}
    assert read_box(path)["number"] == 4


def test_a_record_that_was_being_written_leaves_the_one_before(tmp_path):
    path = tmp_path / "rank-0.box"
    box = BlackBox(path)
    box.write({"number": 1})
    box.write({"number": 2})
    content = bytearray(path.read_bytes())
    content[content.index(b'"number": 2') + 10] ^= 1
    path.write_bytes(content)
    assert read_box(path) == {"number": 1}


def test_a_record_that_is_too_long_leaves_the_one_before_and_the_file_its_size(tmp_path):
    path = tmp_path / "rank-0.box"
    box = BlackBox(path)
    size = path.stat().st_size
    box.write({"number": 1})
    with pytest.raises(ValueError, match="a record of"):
        box.write({"text": "x" * size})
    assert read_box(path) == {"number": 1}
    assert path.stat().st_size == size


def test_a_file_that_is_cut_or_gone_does_no_harm(tmp_path):
    path = tmp_path / "rank-0.box"
    box = BlackBox(path)
    os.truncate(path, 0)
    box.write({"number": 1})
    path.unlink()
    box.write({"number": 2})


def test_the_status_of_a_process_that_is_gone_is_added_to_its_last_record_also_in_the_box_of_its_run(tmp_path):
    launch, run = box_path(tmp_path / "launch", 0), box_path(tmp_path / "run", 0)
    launch.parents[1].mkdir()
    run.parents[1].mkdir()
    BlackBox(launch).write({"joined": str(run)})
    box = BlackBox(run)
    box.write({"number": 1})
    box.write({"number": 2})
    note_status(tmp_path / "launch", 0, -9)
    assert read_box(run) == {"number": 2, "status": -9}
    assert read_box(launch) == {"joined": str(run), "status": -9}
    BlackBox(run).write({"number": 7})  # the next process
    assert read_box(run) == {"number": 7}
    note_status(tmp_path / "elsewhere", 0, 1)  # there is none
    assert not (tmp_path / "elsewhere").exists()


def test_it_survives_sigkill(tmp_path):
    path = tmp_path / "rank-0.box"
    code = f"""
from pathlib import Path
from lockstep._tools.explain.black_box import BlackBox
box, number = BlackBox(Path({str(path)!r})), 0
while True:
    number += 1
    box.write({{"number": number, "text": "x" * (number % 1000)}})
"""
    process = subprocess.Popen([sys.executable, "-c", code])
    deadline = time.monotonic() + 30
    while ((read_box(path) or {}).get("number", 0)) < 1000 and time.monotonic() < deadline:
        time.sleep(0.05)
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    record = read_box(path)
    assert record["number"] >= 1000
    assert record["text"] == "x" * (record["number"] % 1000)


def test_the_file_of_a_stack_may_be_in_a_directory_relative_to_that_of_the_process(tmp_path):
    source = (
        "from pathlib import Path; from lockstep._tools.explain.interpreter import StackFile\n"
        "Path('run/blackbox').mkdir(parents=True); StackFile(Path('run/blackbox/rank-0.stack'))"
    )
    subprocess.run([sys.executable, "-c", source], cwd=tmp_path, timeout=50, check=True)
    assert (tmp_path / "run" / "blackbox" / "rank-0.stack").exists()
