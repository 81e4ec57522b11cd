"""The fixture ``lab``: runs of training scripts that are disturbed, on a fork server that is warm
for the whole session."""

import contextlib
import hashlib
import json
import shutil
import signal
import subprocess
import textwrap
import time
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import pytest
from crew import warm_server

from lockstep._events.history import read_events
from lockstep._launch.local import run_workers
from lockstep._launch.options import LaunchOptions
from lockstep._launch.output import OutputPlan
from lockstep._launch.private import private_directory
from lockstep._launch.program import check_script
from lockstep._launch.restarts import last_error
from lockstep._launch.script import interruption
from lockstep._launch.signals import Interrupts
from lockstep._launch.source import Source
from lockstep._launch.spec import LaunchSpec
from lockstep._state.checkpoint.store import Store

HERE = Path(__file__).parent
PLAIN = HERE / "plain.py"
KILLED = 128 + signal.SIGKILL
SETTINGS = {"shards": 2, "threads": 1, "checkpoint_every": 2, "progress": "off", "device": "cpu"}


@dataclass
class Ended:
    """How a launch ended."""

    status: int
    out: str
    err: str
    story: str = field(repr=False)

    @property
    def words(self):
        """The last words, if it came to its end."""
        said = [line.partition("last words ")[2] for line in self.out.splitlines() if "last words " in line]
        return json.loads(said[-1]) if said else None

    def listed(self, name):
        """A list that was printed under a name."""
        said = [line.partition(f"{name} ")[2] for line in self.out.splitlines() if line.startswith(f"{name} ")]
        return json.loads(said[-1])

    def __str__(self):
        return f"{self.story}\nstatus {self.status}\n-- stdout\n{self.out}\n-- stderr\n{self.err}"


class Lab:
    def __init__(self, directory, server, nursery, capfd, monkeypatch):
        self.directory = directory
        self.run_dir = directory / "run"
        self.started = []
        self._server = server
        self._nursery = nursery
        self._capfd = capfd
        self._monkeypatch = monkeypatch

    def run(self, script, *args, nproc=1, fault=None, max_restarts=0, run_dir="run", **settings):
        """``lockstep run`` to its end, in this process. ``run_dir=None``: as the command finds
        it."""
        if isinstance(script, str):
            source, script = script, self.directory / "script.py"
            script.write_text(f"import sys; sys.path.append({str(HERE)!r})\n" + textwrap.dedent(source))
        settings = {**SETTINGS, **({} if run_dir is None else {"run_dir": str(self.directory / run_dir)}), **settings}
        settings = {name: value for name, value in settings.items() if value is not None}
        self._monkeypatch.setenv("FAULT", json.dumps(fault))
        checked = check_script(str(script), Source.read(script), args, LaunchOptions(pass_local_rank="none", spawns="no"))
        self._capfd.readouterr()
        with Interrupts() as interrupts, private_directory() as private_dir:
            spec = LaunchSpec(
                program=checked,
                nproc=nproc,
                private_dir=private_dir,
                settings=settings,
                max_restarts=max_restarts,
            )
            outcome = run_workers(spec, self._server(), OutputPlan(), interrupts)
        out, err = self._capfd.readouterr()
        status = 0
        if outcome.failures:
            error = last_error(outcome.failures, outcome.spec, stopped_by=outcome.stopped_by)
            status, err = error.exit_status, err + str(error)
        elif stopped := interruption(outcome):
            status, err = stopped.status, err + stopped.message
        return Ended(status, out, err, f"{script.name} {' '.join(args)} on {nproc}, {settings}, fault {fault}")

    def start(self, script, *args, nproc=1, fault=None, **settings):
        """The same by a launcher of its own, which is not waited for."""
        options = {**SETTINGS, "run_dir": str(self.run_dir), **settings}
        listed = [word for name, value in options.items() for word in (f"--{name.replace('_', '-')}", str(value))]
        process = self._nursery().start(
            ["--nproc", str(nproc), *listed, str(script), *args],
            cwd=self.directory,
            env={"FAULT": json.dumps(fault)},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        self.started.append(process)
        return process

    def until(self, read):
        """What ``read()`` returns as soon as there is something to be read."""
        deadline = time.monotonic() + 100
        while time.monotonic() < deadline:
            with contextlib.suppress(FileNotFoundError):
                if found := read():
                    return found
            assert all(process.poll() is None for process in self.started), "the launcher has ended"
            time.sleep(0.01)
        raise AssertionError("it did not come")

    def names(self, run_dir=None):
        """Of the checkpoints there, the newest first."""
        return [path.name for path in Store(run_dir or self.run_dir).all()]

    def resumes(self, run_dir=None):
        """The steps after which launches went on; 0: from the beginning."""
        return [event["step"] for event in read_events(run_dir or self.run_dir) if event["event"] == "resume"]


@pytest.fixture
def lab(outlives_tests, request, tmp_path, monkeypatch, capfd):
    """``lab.run(script, ...)``, in ``tmp_path``."""
    monkeypatch.chdir(tmp_path)
    nursery = partial(request.getfixturevalue, "nursery")
    made = Lab(tmp_path, lambda: warm_server(request, outlives_tests), nursery, capfd, monkeypatch)
    yield made
    for process in made.started:
        process.kill()
        process.communicate(timeout=100)


def content_of(run_dir):
    """A digest of each file that a run goes on from."""
    paths = [run_dir / "birth.json", *sorted((run_dir / "checkpoints").glob("step-*/*"))]
    return {str(path.relative_to(run_dir)): hashlib.sha256(path.read_bytes()).hexdigest() for path in paths}


@pytest.fixture(scope="session")
def known_words():
    return {}


@pytest.fixture
def undisturbed(lab, known_words):
    """``undisturbed(script, *args, **settings)``: the last words of a run that nobody disturbs."""

    def words(script=PLAIN, *args, **settings):
        key = (str(script), args, tuple(sorted(settings.items())))
        if key not in known_words:
            ended = lab.run(script, *args, run_dir="undisturbed", **settings)
            assert ended.status == 0, ended
            known_words[key] = ended.words
            shutil.rmtree(lab.directory / "undisturbed")
        return known_words[key]

    return words


@pytest.fixture(scope="session")
def known_runs(tmp_path_factory):
    return {}, tmp_path_factory.mktemp("known-runs")


@pytest.fixture
def interrupted(lab, known_runs):
    """``interrupted(run_dir, *args, **settings)``: a run of the plain script, killed when it had
    three checkpoints."""
    known, place = known_runs

    def copy(run_dir, *args, **settings):
        key = (args, tuple(sorted(settings.items())))
        if key not in known:
            known[key] = place / str(len(known))
            fault = {"at": "step", "number": 13, "what": "kill", "first": 3, "paced": True}
            settings = {"keep": 3, **settings}
            ended = lab.run(PLAIN, "step_s=0.02", *args, fault=fault, run_dir=str(known[key]), **settings)
            assert ended.status == KILLED, ended
            store = Store(known[key])
            store.clean()  # as the next launch does: one that lacks only its name gets it
            # it was killed when one was named, and the oldest not yet removed
            for old in store.all()[settings["keep"] :]:
                shutil.rmtree(old)
        shutil.copytree(known[key], run_dir)
        return run_dir

    return copy
