"""A loopback interface that is down is told of in words, with the remedy, before any process waits
for it."""

import subprocess
import sys

import pytest
from cluster import missing

from lockstep._world.machine.addresses import check_loopback

pytestmark = pytest.mark.timeout(60)

COMMUNICATES = "import torch.distributed as dist\nopen('started', 'w')\ndist.init_process_group('gloo')\n"
JOINS = "import lockstep\nlockstep.join()\n"


@pytest.fixture
def run_without_lo(require, tmp_path):
    """Runs a script in a network namespace of its own, whose loopback interface is down."""

    def run(source, *command):
        require("cluster", missing())
        (tmp_path / "train.py").write_text(source)
        words = ["unshare", "--net", sys.executable, *command, "train.py"]
        return subprocess.run(words, cwd=tmp_path, capture_output=True, text=True, timeout=50, check=False)

    return run


def test_it_is_up_here():
    check_loopback()


def test_a_launch_of_several_processes_is_refused_before_they_start(run_without_lo, tmp_path):
    done = run_without_lo(COMMUNICATES, "-m", "lockstep", "run", "--nproc-per-node", "2")
    assert done.returncode == 2
    assert done.stderr.startswith("error: 127.0.0.1 cannot be reached")
    assert "ip link set lo up" in done.stderr
    assert not (tmp_path / "started").exists()


@pytest.mark.long
def test_join_refuses_on_a_single_process(run_without_lo):
    done = run_without_lo(JOINS)
    assert done.returncode == 1
    assert "ip link set lo up" in done.stderr
    assert "ifa != nullptr" not in done.stderr
