"""Ways to run scripts on the fork server that is warm for the whole session."""

import textwrap
from dataclasses import dataclass

import pytest
from crew import warm_server
from launch_helpers import MEET
from launchers import nursery, start_cold, start_launcher
from warm import run_here

from lockstep._launch.local import run_workers
from lockstep._launch.options import LaunchOptions
from lockstep._launch.output import OutputPlan
from lockstep._launch.private import private_directory
from lockstep._launch.program import check_script
from lockstep._launch.signals import Interrupts
from lockstep._launch.source import Source
from lockstep._launch.spec import LaunchSpec
from lockstep._launch.supervise import LaunchResult

__all__ = ["nursery", "run_here", "start_cold", "start_launcher"]


@pytest.fixture
def server(outlives_tests, request):
    return warm_server(request, outlives_tests)


@dataclass
class Ended:
    outcome: LaunchResult
    out: str
    err: str

    @property
    def lines(self):
        return sorted(self.out.splitlines())


@pytest.fixture
def run_warm(server, tmp_path, monkeypatch, capfd):
    """``run_warm(source, *args)``: as ``lockstep run`` does it, in this process and on the warm
    server."""
    monkeypatch.chdir(tmp_path)

    def run(source, *args, nproc=2, plan=None, settings=None, meet=False, is_module=False, max_restarts=0):
        path = tmp_path / "script.py"
        path.write_text((MEET if meet else "") + textwrap.dedent(source))
        target = "script" if is_module else str(path)
        script = check_script(target, Source.read(path), args, LaunchOptions(is_module=is_module, spawns="no"))
        with Interrupts() as interrupts, private_directory() as private_dir:
            spec = LaunchSpec(
                program=script,
                nproc=nproc,
                private_dir=private_dir,
                settings=settings or {},
                max_restarts=max_restarts,
            )
            outcome = run_workers(spec, server, plan or OutputPlan(), interrupts)
        return Ended(outcome, *capfd.readouterr())

    return run


@pytest.fixture
def start_own(start_launcher, tmp_path):
    """``start_own(source, *options)``: a launcher that is a process of its own, started and not
    waited for."""

    def start(source, *options, env=None):
        script = tmp_path / "script.py"
        script.write_text(textwrap.dedent(source))
        return start_launcher(*options, script, env=env)

    return start
