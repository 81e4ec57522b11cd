"""Scripts of ``tests/cuda`` that name no kind of device: several devices a process, and the fixed tree."""

import pytest
import scripts

cuda_scripts = pytest.importorskip("cuda_scripts", reason="make simulated has tests/cuda on its path")
device_scripts = pytest.importorskip("device_scripts")
pytestmark = pytest.mark.timeout(120)


def reported(fn, *args):
    """What a script returns, and what the simulation reports of its process."""
    return fn(*args), scripts.account()["reports"]


@pytest.mark.parametrize("strategy", ["exact", "ddp"])
def test_models_in_parts_on_two_devices_of_each_process(crew, strategy):
    settings = {"shards": 2, "devices_per_process": 2, "strategy": strategy}
    ((alone, reports),) = crew(1, reported, device_scripts.train_parts, **settings)
    assert reports == []
    assert alone["devices"] == ["sim:0"] * 3 + ["sim:1"] * 2
    for one, reports in crew(2, reported, device_scripts.train_parts, **settings):
        assert reports == []
        assert scripts.digest(one["state"]) == scripts.digest(alone["state"])  # two addends have one order: ddp's bits, too


def test_the_fixed_tree_gives_the_same_bits_on_three_processes_that_begin_anew(crew):
    ((whole, reports),) = crew(1, reported, cuda_scripts.train_clipped, [6], shards=6)
    assert reports == []
    for one, reports in crew(3, reported, cuda_scripts.train_clipped, [1, 5], shards=6):
        assert reports == []
        assert (one["norms"], one["means"]) == (whole["norms"], whole["means"])
        assert scripts.digest(one["state"]) == scripts.digest(whole["state"])
