"""When a worker fails: the first failure is shown whole, and everything that was started is
gone."""

import json
import os
import re
import signal
import subprocess
import sys
import textwrap

import pytest
from launch_helpers import is_running, read_pids

from lockstep._base.errors import AbandonedError, ConfigError, LaunchError
from lockstep._base.reports import PARTED
from lockstep._base.stopping import Stopped
from lockstep._base.tracebacks.excerpt import chain
from lockstep._launch import failures
from lockstep._launch.echoes import is_echo_in
from lockstep._launch.failure_reports import reports_of

pytestmark = pytest.mark.timeout(40)


@pytest.mark.long
def test_the_first_failure_is_shown_once_first_and_with_the_users_frames(run_warm):
    ended = run_warm(
        """
        def step():
            raise ValueError("boom")
        if RANK == 1:
            step()
        try:
            dist.all_reduce(one)
        except RuntimeError:
            raise
        """,
        meet=True,
    )
    first = ended.outcome.failures[0]
    assert (first.rank, first.kind, first.message, first.exit_status) == (1, "ValueError", "boom", 1)
    text = failures.report(ended.outcome.failures, 2)
    lines = text.splitlines()
    assert lines[0] == f"rank 1 of 2 on {os.uname().nodename} failed: ValueError: boom"
    assert [line.split()[-1] for line in lines[1:4:2]] == ["<module>", "step"]
    assert all("script.py" in line for line in lines[1:4:2])
    assert text.count("boom") == 2  # and in the line that raises it
    whole = failures.logs(ended.outcome.failures)[1]
    assert whole.startswith("Traceback (most recent call last):\n")
    assert "lockstep/_launch" not in whole
    assert ended.err == ""  # the launcher tells; nobody else


@pytest.mark.long
def test_every_process_is_gone_after_a_failure(run_warm, tmp_path):
    ended = run_warm(
        """
        import pathlib, signal, subprocess, sys, time
        class Slow(torch.utils.data.Dataset):
            def __len__(self): return 1000
            def __getitem__(self, i):
                pathlib.Path(f"pid-{os.getpid()}").touch()
                return i
        pathlib.Path(f"pid-{os.getpid()}").touch()
        sleepers = [subprocess.Popen(["sleep", "10000"], start_new_session=own) for own in (False, True)]
        for sleeper in sleepers:
            pathlib.Path(f"pid-{sleeper.pid}").touch()
        batches = iter(torch.utils.data.DataLoader(Slow(), num_workers=2))
        next(batches)
        next(batches)
        dist.barrier()
        if RANK == 0:
            raise ValueError("boom")
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # a stubborn one
        while True:
            time.sleep(1)
        """,
        meet=True,
    )
    pids = read_pids(tmp_path)
    assert len(pids) == 2 * 5
    assert not [pid for pid in pids if is_running(pid)]
    assert [failure.rank for failure in ended.outcome.failures] == [0]


@pytest.mark.long
def test_a_failed_rank_that_hangs_in_its_exit_handlers_does_not_hang_the_launch(run_warm):
    ended = run_warm(
        """
        import atexit, sys, time
        atexit.register(time.sleep, 10_000)
        if sys.argv[1:] and RANK == 0:
            time.sleep(10_000)
        raise ValueError("boom")
        """.replace("RANK", 'int(__import__("os").environ["RANK"])'),
        "wait",
    )
    assert [(failure.rank, failure.kind) for failure in ended.outcome.failures] == [(1, "ValueError")]


@pytest.mark.parametrize(
    ("statement", "status", "words"),
    [
        ("sys.exit(7)", 7, "sys.exit(7)"),
        ("sys.exit(256)", 1, "sys.exit(256)"),  # of which the system keeps nothing: still a failure
        ("sys.exit('no data')", 1, "SystemExit: no data"),
        ("os._exit(9)", 9, "status 9"),
        ("os.kill(os.getpid(), signal.SIGKILL)", 137, "memory ran out"),
        ("ctypes.string_at(0)", 139, "script.py"),  # faulthandler's words
    ],
)
def test_the_end_of_a_process_is_told_in_words(run_warm, statement, status, words):
    ended = run_warm(f"import ctypes, os, signal, sys\nif os.environ['RANK'] == '1':\n    {statement}")
    assert [failure.rank for failure in ended.outcome.failures] == [1]
    assert ended.outcome.failures[0].exit_status == status
    text = failures.report(ended.outcome.failures, 2)
    assert words in text
    assert "Extension modules" not in text  # faulthandler's list of all that has been imported


@pytest.mark.parametrize("code", ["None", "257"])
def test_a_scripts_status_is_pythons(run_warm, code):
    source = f"import sys; sys.exit({code})"
    alone = subprocess.run([sys.executable, "-S", "-c", source], stderr=subprocess.DEVNULL, timeout=100).returncode
    found = [failure.exit_status for failure in run_warm(source, nproc=1).outcome.failures]
    assert found == ([alone] if alone else [])


@pytest.mark.parametrize("options", [("--nproc", "2"), ("--nproc", "2", "--log-dir", "logs")])
def test_the_words_that_a_script_ends_itself_with_are_told_once(run_here, tmp_path, options):
    source = "import os, sys, time\nif os.environ['RANK'] == '0': sys.exit('no data')\ntime.sleep(60)"
    done = run_here(source, *options)
    assert done.returncode == 1
    assert done.stdout == ""
    assert done.stderr.endswith(f" on {os.uname().nodename} failed: SystemExit: no data\n")
    assert done.stderr.count("no data") == 1
    if "--log-dir" in options:
        assert (tmp_path / "logs" / "rank-0.log").read_text() == "SystemExit: no data\n"


def test_the_echo_of_a_peers_death_is_not_taken_for_the_cause(run_warm):
    ended = run_warm(
        """
        import signal
        if RANK == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        dist.all_reduce(one)
        """,
        meet=True,
    )
    assert ended.outcome.failures[0].rank == 1
    assert ended.outcome.failures[0].kind == "SIGKILL"


@pytest.mark.parametrize(
    ("statement", "words"),
    [
        ("sys.exit()", "called sys.exit() in {script}, line 12 "),
        ("os._exit(0)", "exited with status 0 "),
        ("pass", "the script finished "),
    ],
)
def test_a_rank_that_ended_well_and_too_early_is_named_and_not_the_echo_of_that(run_warm, tmp_path, statement, words):
    ended = run_warm(
        f"""
        import sys
        if RANK == 1:
            {statement}
        else:
            dist.all_reduce(one)
        """,
        meet=True,
    )
    text = failures.report(ended.outcome.failures, 2)
    words = words.format(script=tmp_path / "script.py")
    assert text.startswith(f"rank 1 of 2 on {os.uname().nodename} ended first: {words}"), text
    assert [failure.rank for failure in ended.outcome.failures] == [1, 0]
    early, _ = reports_of(ended.outcome.failures)
    assert (early.ranks, early.cause) == ((1,), "ended early")
    assert early.places == {0: f"{tmp_path / 'script.py'}:14 in <module>"}, "where it was still needed"
    assert early.places[0] in text
    assert "Traceback" not in text
    assert "GLHF" not in text
    assert ended.outcome.failures[0].exit_status == 1


@pytest.mark.parametrize(("rank", "place"), [(0, "after prepare"), (1, "after training")])
def test_a_rank_that_left_a_run_before_the_others_is_named(run_here, tmp_path, rank, place):
    reports = tmp_path / "reports"
    ended = run_here(
        f"""
        import sys, torch, lockstep
        team = lockstep.join()
        def leave(place):
            if team.rank == {rank} and place == {place!r}:
                sys.exit(0)
        leave("after join")
        model = torch.nn.Linear(1, 1)
        optimizer = torch.optim.SGD(model.parameters())
        model, optimizer, loader = team.prepare(model, optimizer, torch.utils.data.DataLoader(torch.ones(4, 1), 2))
        leave("after prepare")
        for batch in loader:
            for x in batch.shards:
                team.backward(model(x).sum())
            optimizer.step()
        leave("after training")
        team.barrier()
        """,
        "--nproc",
        "2",
        "--timeout",
        # Before a step has been taken nobody is waited for, so it is noticed at once.
        "5" if place == "after training" else "600",
        "--reports",
        str(reports),
    )
    assert ended.returncode == 1
    [parted] = [report for report in map(json.loads, reports.read_text().splitlines()) if report["kind"] == PARTED]
    assert (parted["ranks"], parted["cause"]) == ([rank], "sys.exit")
    assert parted["places"][str(rank)] == f"{tmp_path}/script.py:6 in leave"
    assert parted["text"].split("\n")[0] in ended.stderr


ABORT_IN_A_NATIVE_THREAD = """
import ctypes, atexit, os, sys, time
def abort():
    libc = ctypes.CDLL(None)
    libc.pthread_create(ctypes.byref(ctypes.c_ulong()), None, libc.abort, None)
    time.sleep(60)
atexit.register(abort)
"""


def test_a_rank_that_was_aborted_when_all_had_come_to_their_end_did_not_end_early(run_warm):
    rest = "\nif os.environ['RANK'] == '0': atexit.unregister(abort)\nelse: atexit.register(time.sleep, 1)"
    (failure,) = run_warm(ABORT_IN_A_NATIVE_THREAD + rest).outcome.failures
    assert (failure.rank, failure.kind) == (1, "SIGABRT")


def test_a_rank_whose_exit_handlers_fail_just_before_the_one_that_they_wait_for_is_killed_is_not_the_cause(run_warm):
    source = """
        import atexit, signal, time
        from pathlib import Path
        def wait_in_vain():
            print("Traceback: Connection closed by peer", file=sys.stderr, flush=True)
            os._exit(1)
        def be_killed():
            time.sleep(0.2)
            os.kill(os.getpid(), signal.SIGKILL)
        atexit.register(be_killed if RANK == 0 else wait_in_vain)
    """
    ended = run_warm("import os, sys\nRANK = int(os.environ['RANK'])\n" + textwrap.dedent(source))
    first, echo = ended.outcome.failures
    assert (first.rank, first.kind, first.exit_status) == (0, "SIGKILL", 137)
    assert (echo.rank, echo.kind) == (1, "")


@pytest.mark.long
def test_a_rank_that_does_not_come_to_open_the_group_is_named_when_the_others_time_out(run_warm):
    ended = run_warm(
        """
        import datetime, os, pathlib, time, torch.distributed as dist
        def read_index():
            pathlib.Path("reads").touch()
            time.sleep(600)
        if os.environ["RANK"] == "1":
            read_index()
        while not pathlib.Path("reads").exists():  # on a busy machine rank 1 may come there late
            time.sleep(0.05)
        dist.init_process_group("gloo", timeout=datetime.timedelta(seconds=8))
        """
    )
    text = failures.report(ended.outcome.failures, 2)
    first, second, *_ = text.splitlines()
    assert re.search(r"for \d+ s: rank 0 .* rank 1", first), text
    assert second.startswith("  rank 1 on "), text
    assert "in read_index" in text.partition("rank 0 of 2 on")[0]


def test_an_exception_of_a_loader_worker_is_summed_up_as_that_and_not_as_what_wraps_it(run_warm):
    ended = run_warm(
        """
        import torch
        class Images(torch.utils.data.Dataset):
            def __len__(self): return 4
            def __getitem__(self, index): raise KeyError(f"no image {index}\\n  in the archive")
        next(iter(torch.utils.data.DataLoader(Images(), num_workers=1)))
        """,
        nproc=1,
    )
    (failure,) = ended.outcome.failures
    assert failure.summary().startswith("KeyError: 'no image 0"), failure.summary()
    assert failure.message.endswith("(in DataLoader worker process 0)")
    assert "__getitem__" in failure.text


def test_a_loader_worker_that_dies_while_its_rank_talks_to_it_is_the_failure(run_warm):
    ended = run_warm(
        """
        import multiprocessing.connection as connection, os, signal, threading, time
        import torch
        def talk(address):
            signal.signal(signal.SIGCHLD, lambda *_: None)  # instead of the handler of PyTorch, whose error may be lost
            with connection.Client(address) as worker:
                worker.send("the batch, please")
                worker.recv()
        class Batch:
            def __reduce__(self):
                listener = connection.Listener()
                def die():
                    accepted = listener.accept()
                    time.sleep(0.2)  # until something unread has come: the connection is reset
                    accepted.close()
                    time.sleep(0.3)  # its connections are closed before a process is dead
                    os.kill(os.getpid(), signal.SIGKILL)
                threading.Thread(target=die).start()
                return talk, (listener.address,)
        class Images(torch.utils.data.Dataset):
            def __len__(self): return 1
            def __getitem__(self, index): return Batch()
        next(iter(torch.utils.data.DataLoader(Images(), batch_size=None, num_workers=1)))
        """,
        nproc=1,
    )
    (failure,) = ended.outcome.failures
    assert re.match(r"DataLoader worker \(pid \d+\) is killed by signal: Killed", failure.message), failure.text
    assert "SIGKILL" in failure.explanation


def test_gloos_advice_is_left_out_of_what_it_says():
    said = "[/__w/third_party/gloo/gloo/transport/tcp/pair.cc:537] Read error [127.0.0.1]:4528: Connection reset by peer."
    error = RuntimeError(f"{said} This is typically caused by a remote worker hanging. GLHF! 🏖️")
    found = failures.from_exception(0, error)
    assert found.message == "Read error [127.0.0.1]:4528: Connection reset by peer."
    assert found.is_consequence
    assert found.text == f"RuntimeError: {found.message}\n"


def test_failures_are_put_in_order_by_cause_then_time():
    def failure(rank, time_s, error):
        found = failures.from_exception(rank, error)
        return failures.Failure(**{**vars(found), "time_s": time_s})

    echo = RuntimeError("[/pytorch/third_party/gloo/gloo/transport/tcp/pair.cc:538] Connection closed by peer")
    wrapped = ValueError("rank 1 is gone")
    wrapped.__cause__ = ConnectionResetError("x")
    found = [
        failure(0, 1.0, echo),
        failure(2, 2.0, wrapped),
        failure(3, 4.0, KeyError("b")),
        failure(1, 3.0, OSError()),
    ]
    assert [each.rank for each in failures.in_order(found)] == [1, 3, 0, 2]


def test_only_a_rank_that_ended_before_the_first_failure_ended_early():
    lost = failures.Failure(rank=0, time_s=10.0, kind="ConnectionError", message="", is_consequence=True)
    ends = {1: failures.End(how="one", time_s=11.0), 2: failures.End(how="two", time_s=9.0)}
    found = failures.early_end([lost], ends, {}, 4)
    assert (found.rank, found.ended_early) == (2, True)
    assert failures.early_end([lost], {1: ends[1]}, {}, 4) is None
    assert failures.early_end([lost], ends, {}, 2) is None  # all programs ended, and exit handlers failed
    # without a report of its program's end, whenever that was noticed
    assert failures.early_end([lost], {}, {1: ends[1]}, 4).rank == 1
    assert failures.early_end([failures.Failure(rank=0, kind="ValueError", message="")], ends, {}, 4) is None


KINDS = {
    "e": lambda: RuntimeError("Connection closed by peer"),  # echoes of another rank's failure
    "a": lambda: AbandonedError("the loop was left"),
    "o": lambda: ValueError("of this rank's own"),
    "k": KeyboardInterrupt,  # no failures of any rank
    "g": GeneratorExit,
    "i": StopIteration,
    "j": StopAsyncIteration,
    "s": lambda: Stopped(75),
}


def met(kinds):
    """The error of a rank that has met these, the first first, each while it handled the one before
    and in a call of its own: of ``call_0``, ``call_1`` ... of a library."""
    *before, last = kinds
    error, library = KINDS[last](), {}
    error.__context__ = met(before) if before else None
    name = f"call_{len(before)}"
    exec(f"def wrapper(error): {name}(error)\ndef {name}(error): raise error", library)
    try:
        library["wrapper"](error)
    except BaseException as raised:
        return raised


@pytest.mark.parametrize(
    ("kinds", "own", "called"),
    [
        ("o", None, ""),
        ("oo", None, ""),
        ("e", None, ""),
        ("ee", None, ""),  # of its own it has nothing, however often it meets the same loss
        ("eee", None, ""),
        ("ea", None, ""),
        ("eo", None, ""),  # raised because of the loss
        ("eoe", None, ""),
        ("oe", 0, "waited in call_1"),
        ("oa", 0, "called call_1"),
        ("oee", 0, "waited in call_1"),
        ("oea", 0, "waited in call_1"),
        ("oae", 0, "called call_1"),
        ("ooe", 1, "waited in call_2"),
        ("oeo", 0, "waited in call_1"),
        ("oeoe", 0, "waited in call_1"),
        *((f"{kind}e", None, "") for kind in "kgijs"),
        *((f"o{kind}e", 0, "waited in call_2") for kind in "kgijs"),
        *((f"o{kind}ee", 0, "waited in call_2") for kind in "kgijs"),
    ],
)
def test_what_a_rank_was_handling_when_it_met_the_first_echo_is_its_own_failure(kinds, own, called):
    error = met(kinds)
    links = list(chain(error))[::-1]
    assert len(links) == len(kinds)
    found, shown = failures.from_exception(1, error), error if own is None else links[own]
    assert (found.kind, found.message) == (type(shown).__qualname__, str(shown))
    is_consequence = bool({"e", "a"}.intersection(kinds))
    assert (found.is_consequence, found.distance) == (is_consequence, 1 if called else 2 * is_consequence)
    assert found.then.startswith(f", then it {called}, at {__file__}:" if called else ""), found.then
    assert bool(found.then) == bool(called)
    # If another rank has ended well before, that is the cause: unless this one had failed itself.
    early = failures.early_end([found], {0: failures.End(how="done", time_s=found.time_s - 1)}, {}, 2)
    assert (early is not None) == (found.distance == 2)


def test_an_echo_that_the_users_code_has_raised_is_told_by_its_line():
    error = RuntimeError("Connection closed by peer")
    error.__context__ = ValueError("of this rank's own")
    with pytest.raises(RuntimeError) as caught:
        raise error
    line = caught.traceback[-1].lineno + 1
    assert failures.from_exception(1, error).then == f", then it failed at {__file__}:{line}"


def test_an_echo_from_nowhere_in_the_users_code_is_told_without_a_place():
    error = RuntimeError("Connection closed by peer")
    error.__context__ = ValueError("of this rank's own")
    assert failures.from_exception(1, error).then == ", then it waited"


@pytest.mark.long
@pytest.mark.parametrize("leave", ["except ValueError: dist.all_gather_object([None] * SIZE, RANK)", "finally: end()"])
def test_what_a_rank_was_handling_while_the_others_waited_is_the_cause(run_warm, tmp_path, leave):
    ended = run_warm(
        f"""
        import datetime
        def end():
            dist.barrier()
            dist.destroy_process_group()
        dist.destroy_process_group()
        dist.init_process_group("gloo", timeout=datetime.timedelta(seconds=2))
        try:
            if RANK == 1:
                raise ValueError("label file 17 is empty")
            dist.all_reduce(torch.ones(7))
        {leave}
        """,
        meet=True,
    )
    first, second = ended.outcome.failures
    assert (first.rank, first.kind, first.message) == (1, "ValueError", "label file 17 is empty")
    lines = failures.report(ended.outcome.failures, 2).splitlines()
    call = "all_gather_object" if "all_gather" in leave else "barrier"
    assert "ValueError: label file 17 is empty" in lines[0]
    assert f"in {call}, at {tmp_path}/script.py:" in lines[0]
    assert second.is_consequence


LEAVES_THE_LOOP = """
    import lockstep, torch
    team = lockstep.join()
    data = torch.utils.data.TensorDataset(torch.randn(20, 1))
    net, loader = team.prepare(torch.nn.Linear(1, 1), torch.utils.data.DataLoader(data, batch_size=4))
    try:
        for batch in loader:
            for (x,) in batch.shards:
                if team.step == 3 and team.rank == 1:
                    raise ValueError("label file 17 is empty")
                team.backward(net(x).mean())
    finally:
        team.all_gather_object(team.rank)
"""


@pytest.mark.long
def test_an_error_that_leaves_the_loop_is_the_cause_and_not_what_the_script_calls_afterwards(run_warm):
    first, _ = run_warm(LEAVES_THE_LOOP, settings={"timeout_s": 4, "fresh": True}).outcome.failures
    assert (first.rank, first.kind, first.message) == (1, "ValueError", "label file 17 is empty")


def test_a_breakpoint_without_a_terminal_tells_of_attach(run_warm):
    ended = run_warm("import os\nif os.environ['RANK'] == '1': breakpoint()\nx = 1")
    assert "--attach 1" in failures.report(ended.outcome.failures, 2)


@pytest.mark.long
def test_a_lost_server_is_a_launch_error_and_takes_its_workers_along(run_warm, server, tmp_path):
    with pytest.raises(LaunchError, match="fork server"):
        run_warm(
            f"""
            import ctypes, os, pathlib, signal, time
            PR_SET_PDEATHSIG = 1
            ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, 0, 0, 0, 0)  # the kernel will not do it
            pathlib.Path(f"pid-{{os.getpid()}}").touch()
            if os.environ["RANK"] == "1":
                os.kill({server.pid}, signal.{signal.SIGKILL.name})
            time.sleep(100)
            """
        )
    assert read_pids(tmp_path)
    assert not [pid for pid in read_pids(tmp_path) if is_running(pid)]


def test_a_lost_connection_to_an_own_loader_worker_is_no_consequence_of_what_another_rank_did():
    for file, is_consequence in (("/x/torch/utils/data/dataloader.py", False), ("/x/torch/distributed/c10d.py", True)):
        with pytest.raises(ConnectionResetError) as caught:
            exec(compile("raise ConnectionResetError(104, 'Connection reset by peer')", file, "exec"))
        assert failures.from_exception(1, caught.value).is_consequence is is_consequence


def test_a_process_that_crashes_while_a_library_aborts_it_has_been_aborted():
    def failure(kind, text):
        return failures.Failure(rank=1, kind=kind, message="", text=text)

    assert failures.has_aborted(failure("SIGSEGV", "Fatal Python error: Aborted\n"))
    assert not failures.has_aborted(failure("SIGSEGV", "Fatal Python error: Segmentation fault\n"))
    assert not failures.has_aborted(failure("SIGABRT", "Fatal Python error: Aborted\n\nCurrent thread 0x01:\n"))


def test_a_traceback_is_that_of_an_echo_only_if_no_other_error_is_in_it():
    head = 'Traceback (most recent call last):\n  File "a.py", line 1, in <module>\n    f()\n'
    echo = f"{head}RuntimeError: Timed out waiting 900ms for recv operation to complete\n"
    own = f"{head}ValueError: boom\n"
    link = "\nDuring handling of the above exception, another exception occurred:\n\n"
    assert is_echo_in(echo)
    assert is_echo_in(f"{echo}{link}{head}lockstep._base.errors.PeerError: another rank did not come\n")
    assert not is_echo_in(f"{own}{link}{echo}")
    assert not is_echo_in(own)
    assert not is_echo_in("")


def test_a_failure_is_reported_with_the_code_of_the_error():
    errors = [ConfigError("no shards", code="no-shards"), ValueError("no shards")]
    reports = reports_of([failures.from_exception(rank, error) for rank, error in enumerate(errors)])
    assert [(report.ranks, report.cause, report.code) for report in reports] == [
        ((0,), "ConfigError", "no-shards"),
        ((1,), "ValueError", ""),
    ]
