"""Which signals a run takes for a request to stop, in which process, and for how long."""

import ctypes
import itertools
import json
import multiprocessing
import os
import signal
import socket
import subprocess
import sys
import textwrap
import threading

import psutil
import pytest

from lockstep._base import stopping
from lockstep._base.stopping import SAME_S, SIGNALS, StopWatch

pytestmark = pytest.mark.timeout(30)


@pytest.fixture
def watch(monkeypatch):
    monkeypatch.setattr(multiprocessing, "active_children", list)  # other tests' children are not ended
    numbers = (*SIGNALS, signal.SIGINT)
    before, of_children = [signal.getsignal(number) for number in numbers], signal.getsignal(signal.SIGCHLD)
    made = StopWatch(speaks=True)
    yield made
    made.end()
    assert [signal.getsignal(number) for number in numbers] == before
    signal.signal(signal.SIGCHLD, of_children)


@pytest.fixture
def script_handles():
    """``script_handles(number, handler)``, put back in the end."""
    before = {}

    def put(number, handler):
        before.setdefault(number, signal.signal(number, handler))

    yield put
    for number, handler in before.items():
        signal.signal(number, handler)


def run(source):
    return subprocess.run([sys.executable, "-c", textwrap.dedent(source)], capture_output=True, text=True, timeout=100)


def test_the_first_signal_is_noted_and_told_and_what_follows_closely_is_the_same(watch, capfd):
    watch.begin()
    watch.begin()
    assert watch.received is None
    for number in (signal.SIGUSR1, signal.SIGTERM, signal.SIGUSR1):
        signal.raise_signal(number)
    assert watch.received is signal.SIGUSR1
    told = capfd.readouterr().err
    assert told.startswith("lockstep: SIGUSR1 received")
    assert "status 75" in told
    assert told.count("\n") == 1


@pytest.mark.parametrize("handler", [signal.SIG_IGN, lambda *_: None])
def test_what_the_script_handles_or_ignores_itself_stays_so(watch, script_handles, handler):
    script_handles(signal.SIGTERM, handler)
    watch.begin()
    assert signal.getsignal(signal.SIGTERM) is handler
    assert signal.getsignal(signal.SIGUSR1) == watch._note
    watch.end()
    assert signal.getsignal(signal.SIGTERM) is handler
    assert signal.getsignal(signal.SIGUSR1) is signal.SIG_DFL


def test_a_handler_that_python_does_not_know_of_stays_too():
    done = run(
        """
        import faulthandler, signal
        from lockstep._base.stopping import StopWatch
        faulthandler.register(signal.SIGUSR1)
        watch = StopWatch(speaks=True)
        watch.begin()
        signal.raise_signal(signal.SIGUSR1)
        watch.end()
        signal.raise_signal(signal.SIGUSR1)
        print(watch.received)
        """
    )
    assert (done.returncode, done.stdout) == (0, "None\n"), done.stderr
    assert done.stderr.count("most recent call first") == 2


def test_a_handler_that_the_script_has_set_meanwhile_stays_too(watch, script_handles):
    watch.begin()

    def handler(*_):
        pass

    signal.signal(signal.SIGUSR1, handler)
    watch.end()
    assert signal.getsignal(signal.SIGUSR1) is handler
    signal.signal(signal.SIGUSR1, signal.SIG_DFL)


def test_outside_of_the_main_thread_nothing_is_touched(watch):
    thread = threading.Thread(target=watch.begin)
    thread.start()
    thread.join()
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL


def test_a_process_that_is_forked_does_not_inherit_it():
    done = run(
        """
        import os, signal
        from lockstep._base import stopping
        class Above(stopping.Launcher):
            def watches(self, numbers): pass
        stopping.under(Above())
        stopping.StopWatch(speaks=True).begin()
        pid = os.fork()
        if pid:
            os.waitpid(pid, 0)
        print([signal.getsignal(number) is signal.SIG_DFL for number in stopping.SIGNALS], stopping.is_launched(), flush=True)
        """
    )
    assert done.stdout.splitlines() == ["[True, True] False", "[False, False] True"], done.stderr


class Above(stopping.Launcher):
    """A launcher, and what it was told."""

    def __init__(self):
        self.watched, self.told = [], []
        self.ends, self.takes = False, True

    def watches(self, numbers):
        self.watched.append(sorted(numbers))

    def is_ending(self):
        return self.ends

    def stuck(self, report, how, status):
        self.told.append((report, how, status))
        return self.takes

    def unsaved(self):
        self.told.append("unsaved")
        return self.takes


@pytest.fixture
def above(monkeypatch):
    monkeypatch.setattr(stopping, "_launcher", None)
    monkeypatch.setattr(stopping, "_last_words", None)
    stopping.under(made := Above())
    return made


@pytest.mark.parametrize("own", [(), (signal.SIGTERM,), (signal.SIGINT,), SIGNALS])
def test_the_launcher_knows_at_any_time_on_which_signals_the_run_saves_itself(watch, above, script_handles, own):
    numbers = {*SIGNALS, signal.SIGINT}
    for number in own:
        script_handles(number, lambda *_: None)
    before = {number: signal.getsignal(number) for number in numbers}

    def is_told():
        watched = [number for number in numbers if signal.getsignal(number) == watch._note]
        assert sorted(watched) == (above.watched[-1] if above.watched else [])
        return set(watched)

    watch.begin_interrupts()  # before a loader is prepared there is nothing to save
    assert is_told() == set()
    watch.begin()
    saving = {*SIGNALS} - {*own}
    assert is_told() == saving
    for _ in range(2):
        watch.begin_interrupts()
        # where no other signal is watched, the run cannot save itself
        assert is_told() == (saving | ({signal.SIGINT} - {*own}) if saving else set())
    watch.end_interrupts()
    assert is_told() == saving
    watch.end()
    assert {number: signal.getsignal(number) for number in numbers} == before


def test_in_an_interactive_session_ctrl_c_is_pythons(watch, monkeypatch):
    monkeypatch.setattr(sys, "ps1", ">>> ", raising=False)
    watch.begin()
    watch.begin_interrupts()
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_ctrl_c_that_has_come_is_not_given_back(watch):
    watch.begin()
    watch.begin_interrupts()
    signal.raise_signal(signal.SIGINT)
    watch.end_interrupts()
    assert (watch.received, signal.getsignal(signal.SIGINT)) == (signal.SIGINT, watch._note)


def test_ctrl_c_ends_at_once_what_the_launcher_is_ending(watch, above):
    watch.begin()
    watch.begin_interrupts()
    above.ends = True
    with pytest.raises(KeyboardInterrupt):
        signal.raise_signal(signal.SIGINT)
    signal.raise_signal(signal.SIGTERM)
    assert watch.received is signal.SIGTERM


def test_a_signal_is_known_while_the_main_thread_cannot_handle_it(watch):
    """The main thread reads a pipe in C code, and the signal comes in another thread."""
    watch.begin()
    read_fd, write_fd = os.pipe()
    seen = []

    def get_signal():
        signal.pthread_kill(threading.get_ident(), signal.SIGUSR1)
        seen.append(watch.asked())
        os.write(write_fd, b"!")

    thread = threading.Thread(target=get_signal)
    thread.start()
    ctypes.CDLL(None).read(read_fd, ctypes.create_string_buffer(1), 1)
    thread.join()
    for fd in (read_fd, write_fd):
        os.close(fd)
    assert seen == [signal.SIGUSR1]
    assert watch.asked() is signal.SIGUSR1


def test_a_signal_that_was_not_for_the_run_does_not_stop_it(watch, script_handles):
    script_handles(signal.SIGUSR1, lambda *_: None)
    watch.begin()
    signal.raise_signal(signal.SIGUSR1)
    with pytest.raises(KeyboardInterrupt):
        signal.raise_signal(signal.SIGINT)
    assert watch.asked() is None
    watch.begin_interrupts()
    assert watch.asked() is None, "Python has handled it"


@pytest.mark.parametrize("when", ["before", "meanwhile"])
def test_a_wakeup_descriptor_of_the_script_stays(watch, when):
    reader, writer = socket.socketpair()
    writer.setblocking(False)
    if when == "meanwhile":
        watch.begin()
    signal.set_wakeup_fd(writer.fileno())
    watch.begin()
    watch.end()
    assert signal.set_wakeup_fd(-1) == writer.fileno()
    reader.close()
    writer.close()


def test_a_signal_to_another_rank_is_told_once_with_its_rank(watch, capfd):
    for rank in (3, 4):
        watch.say(signal.SIGTERM, rank)
    told = capfd.readouterr().err
    assert ("rank 3" in told, told.count("\n")) == (True, 1)
    StopWatch(speaks=False).say(signal.SIGTERM)
    assert capfd.readouterr().err == ""


@pytest.mark.parametrize("speaks", [False, True])
@pytest.mark.parametrize("takes", [True, False, None])
def test_what_ends_a_process_is_told_by_its_launcher_or_by_the_rank_that_speaks(above, monkeypatch, capfd, takes, speaks):
    above.takes = takes
    if takes is None:
        monkeypatch.setattr(stopping, "_launcher", None)
    stopping.tell_stuck("0 waits for 1", "saved", 75, speaks=speaks)
    assert above.told == ([] if takes is None else [("0 waits for 1", "saved", 75)])
    assert ("0 waits for 1" in capfd.readouterr().err) is (speaks and not takes)
    stopping.end_unsaved("not saved")
    assert above.told[1:] == ([] if takes is None else ["unsaved"])
    assert (stopping._last_words is None) is bool(takes)


@pytest.mark.parametrize(("end", "status"), [("pass", stopping.UNSAVED_END_STATUS), ("raise ValueError", 1)])
def test_a_script_that_fails_after_its_training_keeps_its_status_though_the_end_is_not_saved(end, status):
    done = run(f"from lockstep._base import stopping\nstopping.end_unsaved('not saved')\n{end}")
    assert (done.returncode, "not saved" in done.stderr) == (status, end == "pass")


@pytest.mark.long
def test_a_second_signal_does_what_it_would_have_done_without_us():
    done = run(
        f"""
        import signal, time
        from lockstep._base.stopping import StopWatch
        StopWatch(speaks=True).begin()
        signal.raise_signal(signal.SIGTERM)
        time.sleep({SAME_S} + 0.1)
        signal.raise_signal(signal.SIGUSR1)
        """
    )
    assert done.returncode == -signal.SIGUSR1
    assert done.stderr.startswith("lockstep: SIGTERM received")


# Each of some processes gets its signals on a clock that jumps. The steps of one are a number of
# seconds, a signal's name, "saved" or "ended".
SIGNALLED = """
import json, os, signal, sys, time, traceback
from lockstep._base import stopping

def live(steps):
    now = 100.0
    time.monotonic = lambda: now
    watch = stopping.StopWatch(speaks=False)
    watch.begin()
    watch.begin_interrupts()
    for step in steps:
        if step == "saved":
            watch.exit_with(75)
        elif step == "ended":
            watch.end()
        elif isinstance(step, str):
            signal.raise_signal(signal.Signals[step])
        else:
            now += step
    return "went on"

ends = []
for steps in json.load(sys.stdin):
    sys.stdout.flush()
    read_fd, write_fd = os.pipe()
    pid = os.fork()
    if not pid:
        try:
            os.write(write_fd, live(steps).encode())
        except BaseException as error:
            os.write(write_fd, type(error).__name__.encode())
        os._exit(0)
    os.close(write_fd)
    with open(read_fd) as file:
        said = file.read()
    status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    ends.append(said or status)
print(json.dumps(ends))
"""
ANY = ("SIGTERM", "SIGUSR1", "SIGINT")
BY_ITSELF = {"SIGTERM": -signal.SIGTERM, "SIGUSR1": -signal.SIGUSR1, "SIGINT": "KeyboardInterrupt"}


def differing(expected):
    """Processes of these steps that did not end as expected, and how they did."""
    done = subprocess.run(
        [sys.executable, "-c", SIGNALLED], input=json.dumps([*expected]), capture_output=True, text=True, timeout=25
    )
    assert (done.returncode, done.stderr) == (0, "")
    ends = dict(zip(expected, json.loads(done.stdout), strict=True))
    return {steps: end for steps, end in ends.items() if end != expected[steps]}


def test_a_second_signal_ends_a_process_and_once_it_has_saved_with_the_status_that_says_so():
    expected = {}
    for first, second, saved in itertools.product(ANY, ANY, ((), ("saved",))):
        end = 75 if saved else BY_ITSELF[second]
        same_s = 0.1 if second == "SIGINT" else SAME_S
        expected[first, *saved, second] = "went on"
        expected[first, *saved, 0.9 * same_s, second] = "went on"
        expected[first, *saved, 1.1 * same_s, second] = end
        # since the first of all
        expected[first, *saved, 0.6 * same_s, second, 0.6 * same_s, second] = end
        expected[first, 1.1 * same_s, *saved, second] = end
    assert differing(expected) == {}


def test_when_it_is_over_a_signal_does_what_it_does_by_itself_or_nothing_if_all_is_saved():
    expected = {}
    for first, last in itertools.product(((), *zip(ANY, strict=True)), ANY):
        expected[*first, "ended", last] = BY_ITSELF[last]
        expected[*first, "saved", "ended", last, 9.0, last] = "went on"
    assert differing(expected) == {}


WITH_WORKER = """
import multiprocessing, os, signal, time
from lockstep._base import stopping

def work():
    os.closerange(0, 3)  # whoever reads them does not wait for this process
    time.sleep(60)

class Worker(multiprocessing.get_context("fork").Process):
    def kill(self):
        super().kill()
        self.join()  # the signal of its end comes before the next line

def fail(*_):  # as the handler of PyTorch's loaders
    raise RuntimeError("a worker was killed")

worker = Worker(target=work, daemon=True)
worker.start()
print(worker.pid, flush=True)
signal.signal(signal.SIGCHLD, fail)
stopping.SAME_S = 0.0
watch = stopping.StopWatch(speaks=False)
watch.begin()
"""


@pytest.mark.parametrize(
    ("end", "status"),
    [
        ("signal.raise_signal(signal.SIGTERM); watch.exit_with(75); signal.raise_signal(signal.SIGTERM)", 75),
        ("signal.raise_signal(signal.SIGTERM); signal.raise_signal(signal.SIGTERM)", -signal.SIGTERM),
        ("stopping.end_stuck('', '', 3, speaks=False)", 3),
    ],
    ids=["second signal after the save", "second signal", "stuck"],
)
def test_a_process_that_exits_at_once_stops_its_loader_workers_first(end, status):
    done = run(f"{WITH_WORKER}\n{end}\n")
    assert done.returncode == status, done.stderr
    assert not psutil.pid_exists(int(done.stdout))


WORKER = """
import multiprocessing, subprocess, sys, time
from lockstep._base.stopping import leave_signals_to_parent

def work(ready):
    leave_signals_to_parent()
    ready.set()
    time.sleep(60)

if __name__ == "__main__":
    context = multiprocessing.get_context(sys.argv[1])
    ready = context.Event()
    worker = context.Process(target=work, args=(ready,), daemon=True)
    worker.start()
    ready.wait()
    subprocess.run(["sh", "-c", f"kill -TERM {worker.pid}; kill -USR1 {worker.pid}"], check=True)
    worker.join(0.3)
    print(worker.exitcode)
    worker.terminate()
    worker.join()
    print(worker.exitcode)
"""


@pytest.mark.parametrize("method", ["fork", "forkserver"])
def test_a_loader_worker_is_ended_by_its_parent_alone(tmp_path, method):
    script = tmp_path / "worker.py"
    script.write_text(WORKER)
    done = subprocess.run([sys.executable, script, method], capture_output=True, text=True, timeout=100)
    assert done.stdout.split() == ["None", "0"], done.stderr


@pytest.mark.long
def test_when_all_is_saved_a_signal_does_not_change_the_status_that_says_so():
    done = run(
        """
        import os, signal, subprocess, sys, time
        from lockstep._base.stopping import SAME_S, StopWatch
        watch = StopWatch(speaks=False)
        watch.begin()
        signal.raise_signal(signal.SIGUSR1)
        watch.exit_with(75)
        signal.raise_signal(signal.SIGTERM)  # so soon it is the same
        time.sleep(SAME_S + 0.1)
        watch.end()
        signal.raise_signal(signal.SIGTERM)
        class Late:
            def __del__(self, kill=os.kill, pid=os.getpid(), number=int(signal.SIGTERM)):
                kill(pid, number)
                print("the last", flush=True)
        late = Late()
        sys.exit(75)
        """
    )
    assert (done.returncode, done.stdout) == (75, "the last\n"), done.stderr
