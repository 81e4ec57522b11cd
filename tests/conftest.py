"""What every test gets: a watch for what it leaves behind, and a skip where there is no GPU."""

import contextlib
import functools
import os
import signal
import socket
import stat
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import psutil
import pytest
from kept_imports import keep_imports

# Whatever a test starts inherits this variable, so that its processes are known also when their
# parent is gone.
MARK = "PYTEST_LOCKSTEP_SESSION"
os.environ[MARK] = str(os.getpid())

# A shell that starts the tests in the background has them, and all that they start, ignore Ctrl-C;
# nohup does so with SIGHUP, and others with signals that lockstep acts on. What tests start must
# find the usual dispositions; that of SIGHUP is a handler here, which a process that is started
# does not inherit: the tests themselves still survive the terminal.
USUAL_SIGNALS: dict[signal.Signals, Any] = {
    signal.SIGINT: signal.default_int_handler,
    signal.SIGHUP: lambda *_: None,
    **dict.fromkeys(
        (signal.SIGQUIT, signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2, signal.SIGCHLD, signal.SIGTSTP), signal.SIG_DFL
    ),
}
for number, usual in USUAL_SIGNALS.items():
    if signal.getsignal(number) is signal.SIG_IGN:
        signal.signal(number, usual)

# pytest at every test; scikit-learn and torch's compiler when first imported, in whatever test that
# is
ENVIRONMENT_OF_OTHERS = ("PYTEST_CURRENT_TEST", "KMP_", "TORCHINDUCTOR_")
# Python's own, one an interpreter, until it exits
PROCESSES_OF_OTHERS = ("multiprocessing.resource_tracker",)
_KERNEL_THREADS = 2  # the process that is the parent of theirs
GRACE_S = 10.0  # for what is on its way out when a test ends
# times: no test fails on such a machine, so each time limit is so much longer than what it says
SLOWER = 5

START_PROCESSES = frozenset(
    [
        "alone",
        "check_same",
        "crew",
        "horovod",
        "lab",
        "nurseries",
        "nursery",
        "python_here",
        "run_here",
        "standing_crew",
        "start_cold",
        "start_launcher",
        "warm_trials",
    ]
)
"""Fixtures by which a test starts processes: it is long, unless it is marked ``quick``."""

SLOWEST = "test_slurm_jobs.py"  # of the files in tests/cluster

_outliving_tests: set[int] = set()
_ran_on_gpu: set[str] = set()


@pytest.fixture(scope="session")
def outlives_tests() -> Callable[[int], None]:
    """Call it with the pid of a process that a session-wide fixture owns and ends: it and its
    children may stay."""
    return _outliving_tests.add


def _environment() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if not name.startswith(ENVIRONMENT_OF_OTHERS)}


def _is_of_this_session(process: psutil.Process) -> bool:
    environment = process.environ()
    if not environment and process.ppid() != _KERNEL_THREADS:
        # In the middle of an exec, a process has no environment for a moment.
        time.sleep(0.01)
        environment = process.environ()
    return environment.get(MARK) == os.environ[MARK]


def _started_since(known: set[int]) -> dict[psutil.Process, str]:
    """The live processes that come from this one, or did before their parent died, with their
    command lines."""
    found = {}
    for pid in set(psutil.pids()) - known:
        with contextlib.suppress(psutil.Error):  # gone already, or someone else's
            process = psutil.Process(pid)
            # of a few: all processes take milliseconds
            lineage = {pid, *(parent.pid for parent in process.parents())}
            if os.getpid() not in lineage and not _is_of_this_session(process):
                continue
            command = " ".join(process.cmdline())  # of one that is just being made: empty
            alive = process.status() != psutil.STATUS_ZOMBIE
            if alive and not lineage & _outliving_tests and not any(name in command for name in PROCESSES_OF_OTHERS):
                found[process] = f"process {pid}: {command}"
    return found


def _kill(processes: Iterable[psutil.Process]) -> None:
    for process in processes:
        with contextlib.suppress(psutil.Error):
            process.kill()


def _threads() -> set[threading.Thread]:
    return {thread for thread in threading.enumerate() if not thread.daemon}


def _listening() -> set[str]:
    """(Of this process's own descriptors: the kernel's table of connections takes 10 ms, twice in
    each test.)"""
    found = set()
    for name in os.listdir("/proc/self/fd"):  # noqa: PTH208 - thousands of times
        with contextlib.suppress(OSError):  # closed meanwhile
            if not stat.S_ISSOCK(os.fstat(int(name)).st_mode):
                continue
            with socket.socket(fileno=os.dup(int(name))) as one:
                is_inet = one.family in (socket.AF_INET, socket.AF_INET6)
                if is_inet and one.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN):
                    found.add("listening socket {}:{}".format(*one.getsockname()[:2]))
    return found


@pytest.fixture(autouse=True)
def leaves_nothing_behind() -> Iterator[None]:
    """Fail a test that leaves a changed environment, a process, a non-daemon thread or a listening
    socket."""
    environment, pids, threads, listening = _environment(), set(psutil.pids()), _threads(), _listening()
    yield
    deadline = time.monotonic() + GRACE_S
    while True:
        processes = _started_since(pids)
        left = [*processes.values(), *(_listening() - listening), *(f"thread {t.name}" for t in _threads() - threads)]
        if not left or time.monotonic() > deadline:
            break
        time.sleep(0.05)
    now = _environment()
    for name in sorted(environment.keys() | now.keys()):
        if environment.get(name) != now.get(name):
            left.append(f"environment variable {name}: {environment.get(name)!r} -> {now.get(name)!r}")
    if left:
        # Said aloud, and only then cleared, so that the next test is not blamed.
        _kill(processes)
        for name in now.keys() - environment.keys():
            del os.environ[name]
        os.environ.update(environment)
        pytest.fail("the test left behind:\n  " + "\n  ".join(left), pytrace=False)


@pytest.fixture
def one_thread() -> Iterator[None]:
    """PyTorch computes with one thread: two would wait for each other in thousands of tiny kernels,
    on a busy machine for minutes."""
    import torch  # here, since most tests need none of it in this process

    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="session")
def require() -> Callable[[str, str | None], None]:
    """``require(component, reason_missing)``: skip the test if there is a reason, for the component
    is missing here.

    It fails instead where the environment variable LOCKSTEP_REQUIRE, names with commas between
    them, has the component."""

    def check(component: str, reason_missing: str | None) -> None:
        if reason_missing is None:
            return
        wanted = os.environ.get("LOCKSTEP_REQUIRE", "").split(",")
        if component in (name.strip() for name in wanted):
            pytest.fail(f"LOCKSTEP_REQUIRE names {component}, and {reason_missing}", pytrace=False)
        pytest.skip(reason_missing)

    return check


@functools.cache
def _has_gpu() -> bool:
    # In a process of its own: to ask initialises the driver, and tests fork. The simulated device
    # counts (make simulated).
    ask = "import torch; exit(not (torch.cuda.is_available() or hasattr(torch, 'sim')))"
    return subprocess.run([sys.executable, "-c", ask]).returncode == 0


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--require-cuda", action="store_true", help="fail unless a test marked cuda has run")


@pytest.hookimpl(tryfirst=True)  # before those that are not asked for are taken out
def pytest_collection_modifyitems(config: pytest.Config, items: list[Any]) -> None:
    """Give slow machines their time, and let files come in the order of ``in_order``."""
    files: dict[Path, list[Any]] = {}
    for item in items:
        is_marked = item.get_closest_marker("lockstep") is not None
        starts = item.path.parent.name == "cluster" or is_marked or START_PROCESSES.intersection(item.fixturenames)
        if item.get_closest_marker("longest") or (starts and not item.get_closest_marker("quick")):
            item.add_marker(pytest.mark.long)
        limit = item.get_closest_marker("timeout")
        limit_s = limit.args[0] if limit else float(item.config.getini("timeout") or 0)
        item.add_marker(pytest.mark.timeout(SLOWER * limit_s), append=False)
        files.setdefault(item.path, []).append(item)
    items[:] = [item for path in in_order(files) for item in files[path]]


def pytest_collection_finish() -> None:
    """What is there now stays, so it need not be looked through whenever a run is closed or a loop
    left: thousands of tests are half of a second each time."""
    keep_imports()


@pytest.fixture(autouse=True, scope="module")
def imports_stay() -> Iterator[None]:
    """The same after a file whose tests have imported a large library."""
    before = len(sys.modules)
    yield
    if len(sys.modules) > before + 100:
        keep_imports()


def in_order(files: Mapping[Path, list[Any]]) -> Iterator[Path]:
    """The costliest file first, for the last one ends alone. Those of tests/cluster mostly wait:
    they are spread over the first two thirds of what there is to compute, the longest first."""
    costs_s = {path: sum(map(about_s, items)) for path, items in files.items()}
    by_cost = sorted(files, key=costs_s.__getitem__, reverse=True)
    waiting = sorted((path for path in by_cost if path.parent.name == "cluster"), key=lambda path: path.name != SLOWEST)
    computing = [path for path in by_cost if path not in waiting]
    gap_s, before_s = sum(costs_s[path] for path in computing) * 2 / 3 / max(1, len(waiting)), 0.0
    num_waiting = len(waiting)
    for path in computing:
        while waiting and before_s >= gap_s * (num_waiting - len(waiting)):
            yield waiting.pop(0)
        yield path
        before_s += costs_s[path]
    yield from waiting


def about_s(item: Any) -> float:
    """What a test takes of the processor, seen from its marks."""
    return 20.0 if item.get_closest_marker("longest") else 3.0 if item.get_closest_marker("long") else 0.3


def pytest_runtest_setup(item: pytest.Item) -> None:
    if item.get_closest_marker("cuda") and not _has_gpu():
        pytest.skip("torch sees no CUDA GPU on this machine")


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    if report.when == "call" and not report.skipped and "cuda" in report.keywords:
        _ran_on_gpu.add(report.nodeid)


def pytest_sessionfinish(session: pytest.Session) -> None:
    if session.config.getoption("--require-cuda") and not _ran_on_gpu:
        print("\n--require-cuda: no test marked cuda has run")
        session.exitstatus = pytest.ExitCode.TESTS_FAILED
