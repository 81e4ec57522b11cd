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
    ("changed", "state", "words"),
    [
        ({}, OK, "2 of 2 GPU(s) visible (NVIDIA H100 80GB HBM3, driver 535.183.01), torch for CUDA 12.6"),
        ({"visible": 0}, WARN, "none of them in CUDA_VISIBLE_DEVICES"),
        ({"visible": 0, "wants_gpus": True}, FAIL, "none of them in CUDA_VISIBLE_DEVICES"),
        ({"num_processes": 4}, WARN, "4 processes for 2 GPU(s)"),
        ({"version": None}, WARN, "built without CUDA"),
        ({"error": "No devices were found"}, FAIL, "nvidia-smi: No devices were found"),
    ],
)
def test_gpus(changed, state, words):
    found = judge_gpus(**{**USUAL, **changed})
    assert found.state == state
    assert words in found.found


def test_nccl_is_expected_to_be_faster_than_gloo():
    usual = {"interface": "auto", "world_size": 8, "latency_s": 0.00003}
    assert judge_speed(backend="nccl", bandwidth_bytes_s=150e9, **usual).state == OK
    assert judge_speed(backend="nccl", bandwidth_bytes_s=0.3e9, **usual).state == WARN
    assert judge_speed(backend="gloo", bandwidth_bytes_s=0.3e9, **usual).state == OK
    assert judge_speed(backend="gloo", bandwidth_bytes_s=0.3e9, **{**usual, "latency_s": 0.1}).state == WARN


def test_gpus_that_pytorch_does_not_see():
    usual = {"backend": "gloo", "interface": "lo", "world_size": 2, "latency_s": 0.0003, "bandwidth_bytes_s": 1e9}
    found = judge(num_gpus=2, torch_gpus=0, **usual)
    assert (found.state, found.found[:51]) == (FAIL, "the driver shows 2 GPU(s), and PyTorch sees none in")
    assert judge(num_gpus=2, torch_gpus=2, **usual).state == OK
