"""What is judged of values that this machine cannot have: of GPUs and their links. (Written in the
form in which ``nvidia-smi --query-gpu`` and PyTorch's version file have them.)"""

import pytest

from lockstep._tools.doctor.driver import judge_gpus
from lockstep._tools.doctor.finding import FAIL, OK, WARN
from lockstep._tools.doctor.processes import judge, judge_speed

pytestmark = pytest.mark.timeout(20)


H100 = ["NVIDIA H100 80GB HBM3", "535.183.01"]
USUAL = {"present": 2, "visible": 2, "rows": [H100, H100], "error": "", "wants_gpus": False, "num_processes": 2}
USUAL |= {"version": "12.6"}


@pytest.mark.parametrize(
    ("changed", "state", "code"),
    [
        ({}, OK, ""),
        ({"visible": 0}, WARN, "gpus-hidden"),
        ({"visible": 0, "wants_gpus": True}, FAIL, "gpus-hidden"),
        ({"num_processes": 4}, WARN, "gpus-shared"),
        ({"version": None}, WARN, "torch-without-cuda"),
        ({"error": "No devices were found"}, FAIL, "driver-failed"),
    ],
)
def test_gpus(changed, state, code):
    found = judge_gpus(**{**USUAL, **changed})
    assert (found.state, found.code) == (state, code)
    assert changed.get("error", "GPU(s)") in found.found


def test_installed_kernels_that_pytorch_does_not_make_deterministic_are_named():
    found = judge_gpus(**USUAL, packages=["flash-attn", "apex"])
    assert found.state == OK
    assert "flash-attn, apex" in found.found


def test_nccl_is_expected_to_be_faster_than_gloo():
    usual = {"interface": "auto", "world_size": 8, "latency_s": 0.00003}
    assert judge_speed(backend="nccl", bandwidth_bytes_s=150e9, **usual).state == OK
    assert judge_speed(backend="nccl", bandwidth_bytes_s=0.3e9, **usual).state == WARN
    assert judge_speed(backend="gloo", bandwidth_bytes_s=0.3e9, **usual).state == OK
    assert judge_speed(backend="gloo", bandwidth_bytes_s=0.3e9, **{**usual, "latency_s": 0.1}).state == WARN


def test_gpus_that_pytorch_does_not_see():
    usual = {"backend": "gloo", "interface": "lo", "world_size": 2, "latency_s": 0.0003, "bandwidth_bytes_s": 1e9}
    found = judge(num_gpus=2, torch_gpus=0, **usual)
    assert (found.state, found.code) == (FAIL, "gpus-unseen")
    assert judge(num_gpus=2, torch_gpus=2, **usual).state == OK
