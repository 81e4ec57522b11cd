"""Where the workers' output goes, and the terminal that one of them can have."""

import contextlib
import itertools
import os
import pty
import signal
import subprocess
import sys
from collections import Counter

import pytest
from launch_helpers import until

from lockstep._base.errors import ConfigError
from lockstep._launch.output import OutputPlan, Streams

pytestmark = pytest.mark.timeout(40)

CHATTER = """
import os, subprocess, sys
rank = os.environ["RANK"]
print("python", rank, flush=True)
subprocess.run(["echo", "child", rank])
os.write(2, b"native " + rank.encode() + b"\\n")
print("no newline", end="")
"""
SAID = ["child {}", "native {}", "no newline", "python {}"]


def said(rank):
    return [line.format(rank) for line in SAID]


def test_log_dir_keeps_each_ranks_output_apart(run_warm, tmp_path):
    ended = run_warm(CHATTER, plan=OutputPlan(log_dir=tmp_path / "new" / "logs"))
    assert (ended.out, ended.err) == ("", "")
    for rank in (0, 1):
        text = (tmp_path / "new" / "logs" / f"rank-{rank}.log").read_text()
        assert text == f"python {rank}\nchild {rank}\nnative {rank}\nno newline"


@pytest.mark.parametrize("with_log", [False, True])
def test_tee_shows_each_line_with_its_rank(run_warm, tmp_path, with_log):
    ended = run_warm(CHATTER, plan=OutputPlan(tee=True, log_dir=tmp_path if with_log else None))
    shown = sorted(ended.out.splitlines() + ended.err.splitlines())
    assert shown == [f"[rank {rank}] {line}" for rank in (0, 1) for line in said(rank)]
    assert "[rank 1] native 1" in ended.err
    if with_log:
        assert sorted((tmp_path / "rank-1.log").read_text().splitlines()) == said(1)


def test_every_line_is_passed_on_with_its_rank_also_a_last_one_without_an_end():
    lines = []
    with Streams([0, 1], OutputPlan(sink=lambda *line: lines.append(line))) as streams:
        written = {rank: [os.dup(fd) for fd in streams.for_rank(rank)[1:]] for rank in (0, 1)}
        streams.handed_over()
        for rank, fds in written.items():
            for fd in fds:
                os.write(fd, b"first\r50 %%\rlast of %d" % rank)
                os.close(fd)
        streams.drain(lambda: False)
    parts = [b"first\r", b"50 %\r", b"last of 0\n", b"last of 1\n"]
    expected = [
        (rank, is_error, part) for rank in (0, 1) for is_error in (False, True) for part in (*parts[:2], parts[2 + rank])
    ]
    assert sorted(lines, key=lambda line: line[:2]) == expected


@pytest.mark.parametrize("num_lines", [1, 5000])  # which a pipe has no room for
@pytest.mark.parametrize("kept", [(0,), (3,), (0, 1, 2, 3)])
def test_a_process_that_keeps_the_pipes_open_is_not_waited_for(num_lines, kept):
    lines, looks = [], Counter()

    def give_up():  # asked twenty times in a second
        looks[len(lines)] += 1
        assert looks[len(lines)] < 60, "it waits although nothing comes"
        return False

    with contextlib.ExitStack() as process, Streams([0, 1], OutputPlan(sink=lambda *line: lines.append(line))) as streams:
        written = [os.dup(fd) for rank in (0, 1) for fd in streams.for_rank(rank)[1:]]
        streams.handed_over()
        for number, fd in enumerate(written):
            os.write(fd, b"%d and so forth\n" % number * num_lines + b"last of %d" % number)
            if number in kept:
                process.callback(os.close, fd)
            else:
                os.close(fd)
        streams.drain(give_up)
    for number, (rank, is_error) in enumerate(itertools.product((0, 1), (False, True))):
        found = [line for *whose, line in lines if whose == [rank, is_error]]
        assert found == [b"%d and so forth\n" % number] * num_lines + [b"last of %d\n" % number]


@pytest.mark.parametrize(("attach", "reads"), [(None, 0), (0, 0), (2, 2)])
def test_one_rank_has_the_standard_input(attach, reads):
    with Streams(range(3), OutputPlan(attach=attach)) as streams:
        assert [rank for rank in range(3) if streams.for_rank(rank)[0] == 0] == [reads]


def test_output_is_drained_to_the_last_line(run_warm):
    ended = run_warm("for i in range(20000): print('x' * 50, i)\nimport os; os._exit(0)", plan=OutputPlan(tee=True))
    assert len(ended.lines) == 40000


def test_a_log_dir_that_cannot_be_written_is_refused(run_warm, tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match="--log-dir"):
        run_warm("print(1)", plan=OutputPlan(log_dir=tmp_path / "file" / "logs"))


@pytest.mark.long
def test_breakpoint_works_on_the_attached_rank(tmp_path):
    script = tmp_path / "script.py"
    script.write_text("import os\nif os.environ['RANK'] == '1':\n    breakpoint()\nprint('end of', os.environ['RANK'])\n")
    command = [sys.executable, "-m", "lockstep._cli.main", "run", "--nproc-per-node", "2", "--attach", "1", str(script)]
    master, terminal = pty.openpty()
    launcher = subprocess.Popen(command, stdin=terminal, stdout=terminal, stderr=terminal, start_new_session=True)
    os.close(terminal)
    seen = b""

    def read_until(text):
        nonlocal seen
        while text not in seen:
            seen += os.read(master, 4096)
        seen = seen[seen.index(text) + len(text) :]

    try:
        read_until(b"(Pdb) ")
        os.write(master, b"p 6*7\n")
        read_until(b"42")
        read_until(b"(Pdb) ")
        os.write(master, b"c\n")
        read_until(b"end of 1")
        assert launcher.wait(timeout=100) == 0
    finally:
        if launcher.poll() is None:
            launcher.send_signal(signal.SIGTERM)
            launcher.wait(timeout=100)
        os.close(master)


def test_a_reader_that_leaves_early_does_not_stop_the_run(start_own, tmp_path):
    launcher = start_own("for i in range(50000): print(i)\nopen('done', 'w').close()", "--tee")
    launcher.stdout.readline()
    launcher.stdout.close()
    assert launcher.wait(timeout=100) == 0
    until((tmp_path / "done").exists)
