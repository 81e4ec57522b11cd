"""What is said when an audited run starts."""

from types import SimpleNamespace

import pytest
import torch

from lockstep.base.config import RunConfig
from lockstep.tools.audit.opening import open_audit

pytestmark = pytest.mark.timeout(20)


@pytest.mark.parametrize("device", ["cuda:0", "cpu"])
@pytest.mark.parametrize("rank", [0, 1])
@pytest.mark.parametrize("is_deterministic", [False, True])
def test_gpu_kernels_that_may_not_be_deterministic_are_said_once(capfd, monkeypatch, device, rank, is_deterministic):
    monkeypatch.setattr(torch, "are_deterministic_algorithms_enabled", lambda: is_deterministic)
    config = RunConfig(strategy="exact", shards=2)
    parts = dict.fromkeys(("sync", "state", "clock", "collectives", "journal"))
    world, phases = SimpleNamespace(rank=rank, host="a"), SimpleNamespace()
    run = SimpleNamespace(config=config, world=world, devices=[torch.device(device)], phases=phases, **parts)
    assert open_audit(run, 5) is not None
    warns = (device, rank, is_deterministic) == ("cuda:0", 0, False)
    assert ("torch.use_deterministic_algorithms(True)" in capfd.readouterr().err) == warns
