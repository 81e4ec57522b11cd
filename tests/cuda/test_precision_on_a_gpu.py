"""Every precision on a CUDA GPU (``make gpu``), and on the simulated device (``make
simulated``)."""

import precision_scripts
import pytest
import torch
from places import DEVICE, OVER_DEVICES, SHARED

pytestmark = [pytest.mark.cuda, pytest.mark.timeout(180)]

# Parameters (gradients and momentum are alike), and in passes: the weights of convolutions, those
# of BatchNorm, inputs.
EXPECTED = {
    "32-true": ("float32", "float32", "float32", "float32"),
    "16-mixed": ("float32", "float32", "float32", "float32"),
    "16-master": ("float32", "float16", "float32", "float16"),
    "16-true": ("float16", "float16", "float16", "float16"),
    "bf16-mixed": ("float32", "float32", "float32", "float32"),
    "bf16-true": ("bfloat16", "bfloat16", "bfloat16", "bfloat16"),
}


@pytest.fixture(scope="module")
def plain():
    """The same training in float32, filled by the first test that needs it."""
    return []


@pytest.mark.parametrize("precision", EXPECTED)
def test_a_precision_learns_on_the_gpu_what_float32_learns_in_its_own_formats(standing_crew, plain, precision):
    if not plain:
        plain += standing_crew(1, precision_scripts.train, shards=2, **DEVICE)
    [found] = standing_crew(1, precision_scripts.train, shards=2, precision=precision, **DEVICE)
    kept, conv, norm, inputs = (f"torch.{name}" for name in EXPECTED[precision])
    assert (found["parameters"], found["gradients"], found["momentum"]) == ([kept], [kept], [kept])
    assert found["seen"] == {"conv": conv, "norm": norm, "inputs": inputs}
    assert found["outputs"] == "torch.float32"
    assert found["losses"][0] == pytest.approx(plain[0]["losses"][0], abs=0.03)
    # with a scaled loss the first steps may be skipped
    assert found["result"] == pytest.approx(plain[0]["result"], abs=0.2)
    assert found["result"] < found["losses"][0]
    if precision != "32-true":
        assert found["losses"] != plain[0]["losses"]


@pytest.mark.parametrize("strategy", ["exact", "ddp"])
@pytest.mark.parametrize("precision", EXPECTED)
def test_two_processes_that_share_the_gpu_give_the_answer_of_one(standing_crew, precision, strategy):
    alone_by = "exact" if strategy == "exact" else "single"
    [alone] = standing_crew(1, precision_scripts.train, shards=4, precision=precision, strategy=alone_by, **DEVICE)
    tolerance = 0.05 if precision.endswith("true") and precision != "32-true" else 5e-3
    for one in standing_crew(2, precision_scripts.train, shards=4, precision=precision, strategy=strategy, **SHARED):
        for name, value in alone["state"].items():
            torch.testing.assert_close(
                one["state"][name], value, rtol=tolerance, atol=tolerance, msg=lambda m, n=name: f"{n}: {m}"
            )


def test_ddp_over_nccl_reduces_gradients_of_float16_passes_in_float32(standing_crew):
    settings = {"shards": 2, "precision": "16-master", **OVER_DEVICES}
    [ddp] = standing_crew(1, precision_scripts.train, strategy="ddp", **settings)
    [single] = standing_crew(1, precision_scripts.train, strategy="single", **settings)
    for name, value in single["state"].items():
        torch.testing.assert_close(ddp["state"][name], value, rtol=5e-3, atol=5e-3)
