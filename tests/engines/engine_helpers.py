"""Pods, which are processes with the variables that an engine sets, and the training that they
run."""

import contextlib
import hashlib
import socket
import subprocess
from pathlib import Path

import psutil
import pytest
from nursery import Nursery

from lockstep._events.history import read_launches

ROOT = Path(__file__).parents[2]
SECRET = "0123456789abcdef" * 2
NUM_STEPS = 24

TRAIN = """
import sys, time
from pathlib import Path
import torch, lockstep
from torch.utils.data import DataLoader, TensorDataset

team = lockstep.join(shards=8, checkpoint_every=4)
inputs = torch.randn(96, 6, generator=torch.Generator().manual_seed(3))
model = torch.nn.Sequential(torch.nn.Linear(6, 8), torch.nn.Tanh(), torch.nn.Dropout(0.1), torch.nn.Linear(8, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
loader = DataLoader(TensorDataset(inputs, inputs.sum(1, keepdim=True)), 8, shuffle=True)
model, optimizer, loader = team.prepare(model, optimizer, loader)
hurry = Path(__file__).with_name("hurry")
for epoch in team.epochs(2):
    for batch in loader:
        for x, y in batch.shards:
            team.backward((model(x) - y).square().mean())
        optimizer.step()
        optimizer.zero_grad()
        if not hurry.exists():
            time.sleep(0.2)
print("world size", team.world_size)
"""


def digest(run_dir):
    """The digest of a finished run's weights."""
    weights = run_dir / "checkpoints" / f"step-{NUM_STEPS:08}" / "model.safetensors"
    return hashlib.sha256(weights.read_bytes()).hexdigest()


def resumed_after(run_dir):
    """For each launch of a run, the step after which it resumed; None: it began the run."""
    return [launch.resumed_after for launch in read_launches(run_dir)]


def free_port():
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return free.getsockname()[1]


@pytest.fixture(scope="session")
def known():
    return {}


@pytest.fixture
def digest_alone(run_here, known, tmp_path):
    """The digest of ``TRAIN`` on one process."""
    if not known:
        directory = tmp_path / "alone"
        directory.mkdir()
        (directory / "train.py").write_text(TRAIN)
        (directory / "hurry").touch()
        done = run_here(directory / "train.py", "--run-dir", str(directory / "run"))
        assert done.returncode == 0, done.stderr
        known["digest"] = digest(directory / "run")
    return known["digest"]


class Pod:
    """One attempt of a pod: a launcher or script, with its output in the pod's directory."""

    def __init__(self, directory, start):
        directory.mkdir(exist_ok=True)
        number = len(list(directory.glob("*.err")))
        self._files = [(directory / f"{number}.{name}").open("w+") for name in ("out", "err")]
        self.process = start(cwd=directory, stdout=self._files[0], stderr=self._files[1])

    @property
    def output(self):
        return "".join(Path(file.name).read_text() for file in self._files)

    def wait(self):
        """The exit status."""
        try:
            return self.process.wait(60)
        except subprocess.TimeoutExpired:
            pytest.fail(f"the pod has not ended\n{self.output}", pytrace=False)

    def terminate(self):
        """As the kubelet does it: SIGTERM to PID 1 of the container."""
        self.process.terminate()

    def kill(self):
        """As if the node had lost its power."""
        with contextlib.suppress(psutil.NoSuchProcess):
            process = psutil.Process(self.process.pid)
            for each in (process, *process.children(recursive=True)):
                with contextlib.suppress(psutil.NoSuchProcess):
                    each.kill()
        self.process.wait(10)

    def close(self):
        self.kill()
        for file in self._files:
            file.close()


class Pods:
    """Starts pods, each with its own directory; all see the same names of pods."""

    def __init__(self, nursery, directory):
        self._nursery = nursery
        self._directory = directory
        self._started = []

    def start(self, index, words, env, *, is_python=False):
        """The pod of this index: ``lockstep run`` (or python) with these words and variables."""

        def start(**streams):
            return self._nursery.start(words, env=env, is_python=is_python, **streams)

        self._started.append(Pod(self._directory / f"pod-{index}", start))
        return self._started[-1]

    def close(self):
        for pod in self._started:
            pod.close()


@pytest.fixture(scope="session")
def named_nursery(outlives_tests, tmp_path_factory):
    """``nursery`` in a mount namespace where the names of pods mean this machine; without root,
    None."""
    if subprocess.run(["unshare", "--mount", "true"], capture_output=True).returncode:
        yield None
        return
    hosts = tmp_path_factory.mktemp("names") / "hosts"
    names = "train-0.train train-node-0-0.train train-master-0"
    hosts.write_text(f"{Path('/etc/hosts').read_text()}\n127.0.0.1 {names}\n")
    mount = 'mount --bind "$0" /etc/hosts && exec "$@"'

    def start(command, **options):
        return subprocess.Popen(["unshare", "--mount", "sh", "-c", mount, str(hosts), *command], **options)

    made = Nursery(start)
    outlives_tests(made.pid)
    yield made
    made.close()


@pytest.fixture
def pods(named_nursery, require, tmp_path):
    """``pods.start(index, words, env)``: a pod."""
    require("cluster", None if named_nursery else "a mount namespace needs root (and unshare)")
    started = Pods(named_nursery, tmp_path)
    yield started
    started.close()


def words_of(command):
    """What follows ``lockstep run``, or ``python``, in a command; and whether it is python."""
    program, *words = command
    if program == "python":
        return words, True
    assert (program, words[0]) == ("lockstep", "run"), command
    return words[1:], False
