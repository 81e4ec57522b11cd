"""Scripts that never call ``lockstep.join``: who waits for whom is said, and shown, all the
same."""

import json
import os
import re
import textwrap
import time

import pytest
from click.testing import CliRunner
from explain_scripts import end

from lockstep._tools.explain import command as stacks
from lockstep._tools.explain.work import CHILDREN_WORK

pytestmark = pytest.mark.timeout(100)

# Plain torch.distributed. ``fault()`` is called on rank 1 only, before its step 12.
SCRIPT = """
    import datetime, os, re, signal, sys, time, torch, torch.distributed as dist
    dist.init_process_group("gloo", timeout=datetime.timedelta(seconds={timeout}))

    def fault():
        {fault}

    class Data(torch.utils.data.Dataset):
        def __len__(self):
            return 2400

        def __getitem__(self, index):
            {read}
            return torch.ones(4)

    model = torch.nn.Linear(4, 1)
    for step, x in enumerate(torch.utils.data.DataLoader(Data(), batch_size=4, num_workers={workers})):
        if step == 12 and dist.get_rank() == 1:
            fault()
        model(x).sum().backward()
        dist.all_reduce(model.weight.grad)
        time.sleep(0.02)
"""


WAITS = 'while not os.path.exists("go"): time.sleep(0.05)'


def source(fault="pass", read="pass", workers=0, timeout=600):
    return textwrap.dedent(SCRIPT.format(fault=fault, read=read, workers=workers, timeout=timeout))


@pytest.fixture
def start(start_launcher, tmp_path):
    """Starts the script in two processes; ``said()`` is what was written up to now."""
    started = []

    def start(*args, **kwargs):
        (tmp_path / "plain.py").write_text(source(*args, **kwargs))
        with (tmp_path / "said").open("w") as said:
            started.append(start_launcher("--nproc", "2", "plain.py", stdout=said, stderr=said))
        return started[-1]

    yield start
    for process in started:
        end(process)


@pytest.fixture
def said(tmp_path):
    return (tmp_path / "said").read_text


def ask(process, *options):
    return CliRunner().invoke(stacks.command, ["--pid", str(process.pid), *options]).output


def ranks(process):
    try:
        return json.loads(ask(process, "--json"))
    except ValueError:  # nobody has reported yet
        return []


def until(condition, process, limit_s=80):
    deadline = time.monotonic() + limit_s
    while not condition():
        assert time.monotonic() < deadline, ask(process)
        time.sleep(0.2)


@pytest.mark.long
def test_who_is_waited_for_is_said_once_and_an_all_clear_when_it_goes_on(start, said, tmp_path):
    os.mkfifo(tmp_path / "go")
    process = start(read="index == 60 and dist.get_rank() == 1 and open('go').read()", workers=2)
    until(lambda: "no progress" in said(), process)
    text = said()
    assert re.search(r"  rank 1 .*\(pid \d+\): .* loader .* \d+ collectives, ", text)
    assert "all clear" not in text
    (tmp_path / "go").write_text("")
    until(lambda: "all clear" in said(), process)
    assert said().count("no progress") == 1


@pytest.mark.long
def test_a_rank_whose_child_computes_is_shown_to_be_at_work_without_a_warning(start, said, tmp_path):
    process = start('os.system("while [ ! -e go ]; do :; done")')
    until(lambda: [rank["waiting"] and rank["still_s"] > 13 for rank in ranks(process)] == [True, False], process)
    assert CHILDREN_WORK in ask(process)
    assert "no progress" not in said()
    (tmp_path / "go").touch()


def test_a_killed_rank_is_told_with_what_it_was_last_seen_at(start, said, tmp_path):
    process = start(WAITS + "\n        os.kill(os.getpid(), signal.SIGKILL)")
    until(lambda: "in fault" in ask(process), process)
    (tmp_path / "go").touch()
    process.wait()
    text = said()
    assert re.match(r"error: rank 1 of 2 .*: SIGKILL: ", text)
    assert re.match(r".* 12 collectives, .* \d+ MB .*:\n.*\n.*\n.*in fault", text.partition("last seen ")[2])
