"""Where the tests of this folder train: on CUDA GPUs; by ``make simulated`` on the simulated
device, which finds mistakes in the tests themselves before they run on a card."""

import contextlib

import pytest
import torch

from lockstep._launch.gpus import num_gpus_here

IS_SIMULATED = hasattr(torch, "sim")
KIND = "sim" if IS_SIMULATED else "cuda"
NUM_DEVICES = torch.sim.device_count() if IS_SIMULATED else num_gpus_here()
BACKEND = "simccl" if IS_SIMULATED else "nccl"
BACKENDS = ["auto"] if IS_SIMULATED else ["gloo", "nccl"]

# Settings of runs. The simulated device is chosen where none is named. It has as many devices as
# are needed.
DEVICE = {} if IS_SIMULATED else {"device": "cuda"}
OVER_DEVICES = {} if IS_SIMULATED else {"device": "cuda", "backend": "nccl"}
SHARED = {} if IS_SIMULATED else {"device": "cuda", "backend": "gloo", "timeout_s": 60.0}


def needs_devices(number):
    return pytest.mark.skipif(
        number > NUM_DEVICES, reason=f"{NUM_DEVICES} devices are visible on this machine, not {number}"
    )


def only_on_cuda(reason):
    return pytest.mark.skipif(IS_SIMULATED, reason=reason)


@contextlib.contextmanager
def no_blocking_copies():
    """A block in which it is an error to wait for a copy, or for all of a stream: what PyTorch's
    debug mode finds on CUDA."""
    if IS_SIMULATED:
        torch.sim.library.reset()
        yield
        waits = [
            place for place in torch.sim.library.waits() if not place.startswith(("synchronize an event", "synchronize a d"))
        ]
        assert not waits, waits
        return
    torch.cuda.set_sync_debug_mode("error")
    try:
        yield
    finally:
        torch.cuda.set_sync_debug_mode("default")
