"""Whether Horovod is here, and a way to run scripts under its launcher."""

import contextlib
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from lockstep._base.errors import ConfigError
from lockstep._world.comm.horovod import find_horovod


def why_missing():
    """None if Horovod can be used."""
    try:
        find_horovod()
    except ConfigError as error:
        return f"Horovod is missing, or does not load: {error.__cause__ or error} (make horovod)"
    return None


@pytest.fixture(scope="session")
def horovod(require):
    """For tests that need it."""
    require("horovod", why_missing())


def under_horovodrun(folder, script, *args, nproc=2, hosts="localhost:{nproc}", timeout=100, **settings):
    """Run a script in ``folder`` to its end; what it was and said. Nothing of it is left, also when
    it hangs."""
    launcher = [sys.executable, str(Path(sys.executable).with_name("horovodrun"))]
    command = [*launcher, "--gloo", "-np", str(nproc), "-H", hosts.format(nproc=nproc), sys.executable, str(script), *args]
    said = {"LOCKSTEP_SETTINGS": json.dumps({"threads": 1, "progress": "off", **settings})}
    streams = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
    process = subprocess.Popen(command, cwd=folder, env={**os.environ, **said}, start_new_session=True, **streams)
    try:
        out, _ = process.communicate(timeout=timeout)
    except BaseException:
        # it ends its processes, which have sessions of their own
        process.send_signal(signal.SIGTERM)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.communicate(timeout=100)
        process.kill()
        raise
    return subprocess.CompletedProcess(command, process.returncode, out)
