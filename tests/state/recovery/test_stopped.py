"""SIGTERM, SIGUSR1 and Ctrl-C: the run ends its step, saves itself, and ends with a status that
tells which.

See ``striking`` for how a signal is sent from inside of the process that trains.
"""

import contextlib
import os
import re
import signal
import subprocess
import sys
import time

import psutil
import pytest
from laboratory import PLAIN, SETTINGS

from lockstep._base.stopping import INTERRUPTED_STATUS, REQUEUE_STATUS, SAME_S, UNSAVED_STATUS
from lockstep._events.history import read_events
from lockstep._launch import supervise

pytestmark = pytest.mark.timeout(60)

NUM_STEPS = 15


def preemptions(run_dir):
    """What the journal tells of them."""
    found = [event for event in read_events(run_dir) if event["event"] == "preempted"]
    return [(event["signal"], event["rank"], event["step"], event["saved"]) for event in found]


def check_stopped(lab, ended, number, ranks, told):
    """That it has saved itself, once, after one step; returns that step. ``ranks``: one of them has
    told the others."""
    assert ended.status == (INTERRUPTED_STATUS if number == "SIGINT" else REQUEUE_STATUS), told
    assert ended.err.count(" received") == 1, told
    assert "Traceback" not in ended.err, told
    ((name, asked, step, saved),) = preemptions(lab.run_dir)
    assert (name, saved) == (number, True), told
    assert asked in ranks, told
    assert lab.names()[0] == f"step-{step:08d}", told
    assert f"is saved after step {step}." in ended.err, told
    passes = [event for event in read_events(lab.run_dir) if event["event"] == "epoch"]
    # where the time of the part that was done went, too
    assert sum(event["num_steps"] for event in passes) == step, told
    assert all(event["split"] for event in passes), told
    return step


@pytest.mark.parametrize(
    ("number", "to", "rank", "nproc", "at", "step", "every"),
    [
        ("SIGTERM", "launcher", 0, 2, "step", 7, "off"),
        ("SIGUSR1", "me", 1, 2, "step", 4, 2),
        ("SIGUSR1", "tree", 0, 2, "start", 0, "off"),
        ("SIGINT", "launcher", 0, 2, "tail", 10, "off"),
    ],
)
def test_a_stopped_run_goes_on_to_the_digest_of_the_undisturbed_one(
    lab, undisturbed, number, to, rank, nproc, at, step, every
):
    fault = {"at": at, "number": step, "rank": rank, "what": number, "to": to}
    ended = lab.run(PLAIN, "step_s=0.02", nproc=nproc, fault=fault, max_restarts=1, checkpoint_every=every)
    told = str(ended)
    # the ranks may just talk when the signal has come to one of them
    ranks = [rank] if to == "me" else range(nproc)
    stopped_after = check_stopped(lab, ended, number, ranks, told)
    assert step <= stopped_after <= NUM_STEPS, told
    again = lab.run(PLAIN, nproc=3 - nproc, checkpoint_every=every)
    told += f"\n{again}"
    assert again.words == undisturbed(), told
    assert lab.resumes() == [stopped_after], told


def test_a_signal_to_all_processes_spares_loader_workers_until_the_run_is_saved(lab, undisturbed):
    fault = {"at": "step", "number": 6, "rank": 1, "what": "SIGTERM", "to": "tree"}
    ended = lab.run(PLAIN, "step_s=0.02", nproc=2, fault=fault, workers=2)
    step = check_stopped(lab, ended, "SIGTERM", (0, 1), str(ended))
    again = lab.run(PLAIN, nproc=1, workers=1)
    assert again.words == undisturbed(), f"{ended}\n{again}"
    assert lab.resumes() == [step]


def test_a_run_that_comes_to_its_end_first_is_finished(lab, undisturbed):
    fault = {"at": "end", "number": NUM_STEPS, "rank": 0, "what": "SIGTERM", "to": "launcher"}
    # The launcher passes the signal on: all ranks have it by then.
    wait = "; FAULT and __import__('time').sleep(3)"
    source = (
        PLAIN.read_text()
        .replace("import arm,", "import FAULT, arm,")
        .replace('strike(team, "end")', f'strike(team, "end"){wait}')
    )
    ended = lab.run(source, nproc=2, fault=fault)
    assert (ended.status, ended.words) == (0, undisturbed()), ended
    assert "there is nothing to resume" in ended.err, ended
    assert not preemptions(lab.run_dir)
    assert next(reversed(list(read_events(lab.run_dir))))["event"] == "end"


def test_ctrl_c_where_no_step_would_be_lost_ends_a_run_at_once(lab, undisturbed):
    fault = {"at": "shard", "number": 1, "what": "SIGINT", "to": "me", "rank": 1}
    ended = lab.run(PLAIN, nproc=2, fault=fault)
    assert ended.status == 130, ended
    assert "is saved" not in ended.err, ended
    assert not preemptions(lab.run_dir), ended
    assert lab.names() == [], ended
    assert lab.run(PLAIN, nproc=1).words == undisturbed()


def test_a_script_handles_ctrl_c_once_the_run_is_saved_and_after_the_same_step(lab, undisturbed):
    source = PLAIN.read_text().replace("for _epoch in", "try:\n  for _epoch in", 1)
    head, loop = source.split("  for _epoch in")
    loop, tail = loop.split('strike(team, "end")')
    caught = (
        "except KeyboardInterrupt:\n    print('caught', team.all_gather_object(team.step), flush=True)\n"
        "    team.barrier()\n    sys.exit(5)\n"  # the first rank that ends takes the others with it
    )
    source = f"{head}  for _epoch in{loop.replace(chr(10), chr(10) + '  ').rstrip()}\n{caught}\n{tail}"
    fault = {"at": "step", "number": 7, "what": "SIGINT", "to": "launcher"}
    ended = lab.run(source, "step_s=0.02", nproc=2, fault=fault)
    ((_, _, step, saved),) = preemptions(lab.run_dir)
    assert saved
    assert ended.out.count(f"caught [{step}, {step}]") == 2, ended
    assert ended.status == 5, ended
    assert lab.run(PLAIN, nproc=1).words == undisturbed()
    assert lab.resumes() == [step]


def test_a_handler_of_ctrl_c_of_the_scripts_own_is_left_alone(lab):
    source = "import signal; signal.signal(signal.SIGINT, lambda *_: print('mine', flush=True))\n" + PLAIN.read_text()
    fault = {"at": "step", "number": 7, "what": "SIGINT", "to": "me"}
    ended = lab.run(source, fault=fault)
    assert (ended.status, "mine" in ended.out) == (0, True), ended
    assert not preemptions(lab.run_dir)


def test_a_run_that_cannot_be_saved_says_so_with_another_status(lab, undisturbed):
    fault = {"at": "save", "number": 1, "rank": 0, "what": "fail", "times": 3}
    source = PLAIN.read_text().replace(
        "strike(team)", "team.step == 6 and os.kill(os.getpid(), __import__('signal').SIGTERM)"
    )
    ended = lab.run(source, nproc=2, fault=fault, checkpoint_every="off")
    assert ended.status == UNSAVED_STATUS, ended
    assert "No space left on device" in ended.err, ended
    assert re.search(r"NOT save .* step \d+; .* status 74", ended.err), ended
    assert "Traceback" not in ended.err, ended
    assert preemptions(lab.run_dir)[0][3] is False
    assert not lab.names()
    assert lab.run(PLAIN, nproc=2).words == undisturbed()


def test_what_fails_while_the_run_is_to_be_saved_is_shown_and_not_started_again(lab):
    source = PLAIN.read_text().replace("strike(team)\n", "strike(team); team.step == 5 and fail()\n")
    source = f"import time\ndef fail():\n    time.sleep(0.3)\n    raise ValueError('boom')\n{source}"
    fault = {"at": "step", "number": 5, "rank": 0, "what": "SIGTERM", "to": "launcher"}
    ended = lab.run(source, nproc=2, fault=fault, max_restarts=2)
    assert ended.status == 1, ended
    assert "ValueError: boom" in ended.err, ended
    assert re.search("not started again: .*SIGTERM", ended.err), ended


def test_a_run_that_does_not_come_to_the_end_of_its_step_is_not_waited_for_for_ever(lab, monkeypatch):
    monkeypatch.setattr(supervise, "SAVING_GRACE_S", 1.0)
    source = PLAIN.read_text().replace("strike(team)", "strike(team); team.step == 3 and time.sleep(100)")
    fault = {"at": "step", "number": 3, "rank": 0, "what": "SIGTERM", "to": "launcher"}
    ended = lab.run(source, fault=fault, timeout_s=2.0)
    assert ended.status == 128 + signal.SIGTERM, ended
    assert "The run was NOT saved" in ended.err, ended
    assert not preemptions(lab.run_dir)


def send_until_ended(process, number):
    """The signal, again if it came too soon after the first, which a busy machine has handled
    late."""
    while process.poll() is None:
        process.send_signal(number)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(SAME_S + 0.3)


@pytest.mark.long
def test_a_second_signal_ends_it_at_once(lab):
    launcher = lab.start(PLAIN, "pause=7", nproc=2)
    lab.until(lambda: all((lab.directory / f"paused-{rank}").exists() for rank in (0, 1)))
    pids = [int((lab.directory / f"paused-{rank}").read_text()) for rank in (0, 1)]
    launcher.send_signal(signal.SIGTERM)
    time.sleep(0.1)
    launcher.send_signal(signal.SIGUSR1)  # so soon it is the same
    time.sleep(SAME_S + 0.3)
    assert launcher.poll() is None
    send_until_ended(launcher, signal.SIGTERM)
    _, err = launcher.communicate(timeout=100)
    # (Another signal that comes as the launcher exits ends it: a shell calls both 143.)
    assert launcher.returncode in (128 + signal.SIGTERM, -signal.SIGTERM), err
    assert err.count("SIGTERM received") == 1, err
    assert "The run was NOT saved" in err, err
    assert not any(map(psutil.pid_exists, pids))
    assert not preemptions(lab.run_dir)


@contextlib.contextmanager
def started(lab, nursery, *command, **settings):
    """Another launcher than ``lockstep run``, or none, with all that it starts in a session of its
    own."""
    given = {**SETTINGS, "run_dir": str(lab.run_dir), **settings}
    said = ", ".join(f"{name}={value!r}" for name, value in given.items())
    script = lab.directory / "script.py"
    here = f"import sys; sys.path.append({str(PLAIN.parent)!r})\n"
    script.write_text(here + PLAIN.read_text().replace("lockstep.join()", f"lockstep.join({said})"))
    streams = {"cwd": lab.directory, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    if command:
        words = [sys.executable, *command, str(script), "pause=7"]
        process = subprocess.Popen(words, stdin=subprocess.DEVNULL, text=True, start_new_session=True, **streams)
    else:
        process = nursery.start([str(script), "pause=7"], is_python=True, **streams)
    lab.started.append(process)
    try:
        yield process
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)


@pytest.mark.long
def test_a_process_alone_saves_itself(lab, nursery, undisturbed):
    with started(lab, nursery, workers=1) as process:
        lab.until((lab.directory / "paused-0").exists)
        os.killpg(process.pid, signal.SIGINT)
        (lab.directory / "enough").touch()
        _, err = process.communicate(timeout=100)
    assert process.returncode == INTERRUPTED_STATUS, err
    assert "Traceback" not in err, err
    assert preemptions(lab.run_dir) == [("SIGINT", 0, 7, True)]
    (lab.directory / "enough").unlink()
    (lab.directory / "paused-0").unlink()
    lab.started.clear()
    again = lab.run(PLAIN, nproc=2)
    assert again.words == undisturbed(), f"{err}\n{again}"


@pytest.mark.longest
def test_under_torchrun_too(lab, undisturbed):
    with started(lab, None, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", workers=1) as process:
        lab.until(lambda: all((lab.directory / f"paused-{rank}").exists() for rank in (0, 1)))
        ranks = [int((lab.directory / f"paused-{rank}").read_text()) for rank in (0, 1)]
        for pid in [process.pid, *ranks]:
            os.kill(pid, signal.SIGTERM)
        (lab.directory / "enough").touch()
        _, err = process.communicate(timeout=100)
        assert not any(map(psutil.pid_exists, ranks))
    assert process.returncode != 0, err  # torchrun's own, since it was stopped
    ((name, _, step, saved),) = preemptions(lab.run_dir)
    assert (name, saved) == ("SIGTERM", True), err
    lab.started.clear()
    again = lab.run(PLAIN, nproc=1)
    assert again.words == undisturbed(), f"{err}\n{again}"
    assert lab.resumes() == [step]
