"""Processes are bound to the CPUs near their GPUs by PyTorch, and refused where it would not."""

import inspect
import shutil

import pytest
import torch.numa.binding

from lockstep._base.config import RunConfig
from lockstep._base.errors import ConfigError
from lockstep._launch.binding import BINDINGS, check_binding

pytestmark = pytest.mark.timeout(60)


def test_the_bindings_are_torchs_and_what_applies_them_is_where_lockstep_looks():
    assert ("none", *(mode.value for mode in torch.numa.binding.AffinityMode)) == BINDINGS
    apply = torch.numa.binding._maybe_apply_numa_binding_to_current_process
    assert set(inspect.signature(apply).parameters) == {"gpu_index", "numa_options"}


def test_a_kind_that_does_not_exist_is_refused_and_none_never_is():
    with pytest.raises(ConfigError, match="core-complex"):
        check_binding("cores", RunConfig())
    check_binding("none", RunConfig(device="cpu"))


def test_without_gpus_nothing_is_started(run_here):
    done = run_here("", "--device", "cpu", "--bind", "node")
    assert done.returncode == 2
    assert "GPU" in done.stderr


@pytest.mark.cuda
@pytest.mark.skipif(shutil.which("numactl") is None, reason="PyTorch binds only where numactl is")
def test_a_process_runs_near_its_gpu_with_as_many_threads_as_ever(run_here):
    source = "import os, lockstep\nteam = lockstep.join()\nprint(len(os.sched_getaffinity(0)), team.config.threads)"
    (free, threads), (near, as_many) = (run_here(source, "--fresh", *how).stdout.split() for how in ((), ("--bind", "node")))
    assert int(near) <= int(free)
    assert as_many == threads
