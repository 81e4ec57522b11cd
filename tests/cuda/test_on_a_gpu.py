"""What needs a CUDA GPU: ``make gpu`` runs it there, and ``make simulated`` on the simulated
device.

One GPU is enough: where two processes are needed they share it, over Gloo.
"""

import subprocess
import sys
from pathlib import Path

import cuda_scripts
import pytest
import torch
from codes import raises
from places import BACKEND, DEVICE, IS_SIMULATED, KIND, OVER_DEVICES, SHARED, only_on_cuda

from lockstep._base.errors import LaunchError

pytestmark = [pytest.mark.cuda, pytest.mark.timeout(180)]
SHARED_BACKEND = SHARED.get("backend", BACKEND)
EXAMPLE = Path(__file__).parents[2] / "examples" / "digits.py"


def assert_close(one, other, tolerance=2e-4):
    assert one.keys() == other.keys()
    for name in one:
        torch.testing.assert_close(one[name], other[name], rtol=tolerance, atol=tolerance, msg=lambda m, n=name: f"{n}: {m}")


def test_one_process_trains_on_the_gpu_near_the_answer_of_the_cpu(standing_crew):
    (on_gpu,) = standing_crew(1, cuda_scripts.train, 40, 16, 2, True, shards=2, **DEVICE)
    assert (on_gpu["device"], on_gpu["devices"]) == (f"{KIND}:0", [f"{KIND}:0"])
    (on_cpu,) = standing_crew(1, cuda_scripts.train, device="cpu", shards=2)
    assert [w for _, w, _ in on_gpu["losses"]] == [w for _, w, _ in on_cpu["losses"]]
    # dropout draws on the GPU
    assert on_gpu["losses"][0][2] == pytest.approx(on_cpu["losses"][0][2], rel=0.3)


def test_ddp_over_nccl_with_one_process_gives_the_answer_of_single(standing_crew):
    (ddp,) = standing_crew(1, cuda_scripts.train, strategy="ddp", shards=2, **OVER_DEVICES)
    (single,) = standing_crew(1, cuda_scripts.train, strategy="single", shards=2, **OVER_DEVICES)
    assert ddp["backend"] == single["backend"] == BACKEND
    assert ddp["sum"] == ddp["sum on the CPU"] == [1.0, 1.0]
    assert_close(ddp["state"], single["state"])


@only_on_cuda("the simulation has no watchdog")
def test_nccls_watchdog_comes_after_the_error_that_names_a_missing_rank(standing_crew):
    ((of_nccl, of_gloo),) = standing_crew(1, cuda_scripts.timeout_of_the_device, **OVER_DEVICES)
    assert of_nccl > of_gloo


@pytest.mark.parametrize("shards", [2, 4])
def test_two_processes_that_share_a_gpu_give_the_answer_of_one(standing_crew, shards):
    (alone,) = standing_crew(1, cuda_scripts.train, strategy="single", shards=shards, **DEVICE)
    two = standing_crew(2, cuda_scripts.train, shards=shards, strategy="ddp", **SHARED)
    assert [one["backend"] for one in two] == [SHARED_BACKEND] * 2
    assert [one["sum"] for one in two] == [[2.0, 2.0]] * 2
    for one in two:
        assert_close(one["state"], alone["state"])
        # at most one sample of ten
        assert one["accuracy"] == pytest.approx(alone["accuracy"], abs=0.11)
    assert all(torch.equal(two[0]["state"][name], two[1]["state"][name]) for name in two[0]["state"])


@pytest.fixture(scope="module")
def whole():
    """The undisturbed run of ``train_clipped`` by one process, by number of shards. Filled by the
    tests that need it."""
    return {}


@pytest.mark.parametrize("shards", [3, 4])
@pytest.mark.parametrize("parts", [[6], [1, 5]], ids=["undisturbed", "begun anew after step 1"])
@pytest.mark.parametrize(
    ("nproc", "settings"),
    [(1, OVER_DEVICES), (2, SHARED), (3, SHARED)],
    ids=["one process", "two share the GPU", "three share the GPU"],
)
def test_the_fixed_tree_gives_the_same_bits_on_the_gpu(standing_crew, whole, shards, nproc, settings, parts):
    if shards not in whole:
        (whole[shards],) = standing_crew(1, cuda_scripts.train_clipped, [6], shards=shards, **DEVICE)
    for one in standing_crew(nproc, cuda_scripts.train_clipped, parts, shards=shards, **settings):
        assert (one["norms"], one["means"]) == (whole[shards]["norms"], whole[shards]["means"])
        assert one["state"].keys() == whole[shards]["state"].keys()
        assert all(torch.equal(one["state"][name], whole[shards]["state"][name]) for name in one["state"])


def test_fsdp_on_the_gpu_gives_the_bits_of_exact(standing_crew):
    (alone,) = standing_crew(1, cuda_scripts.train_sharded, shards=2, **DEVICE)
    for nproc, settings in ((1, OVER_DEVICES), (2, SHARED)):
        for one in standing_crew(nproc, cuda_scripts.train_sharded, shards=2, strategy="fsdp", **settings):
            assert len(one) == len(alone)
            assert all(map(torch.equal, one, alone))


def test_random_streams_on_the_gpu_belong_to_shards(standing_crew):
    (alone,) = standing_crew(1, cuda_scripts.train, shards=2, **DEVICE)
    two = standing_crew(2, cuda_scripts.train, shards=2, **SHARED)
    by_shard = [alone["drawn"][0::2], alone["drawn"][1::2]]
    for rank in (0, 1):
        assert len(two[rank]["drawn"]) == len(by_shard[rank])
        assert all(torch.equal(a, b) for a, b in zip(two[rank]["drawn"], by_shard[rank], strict=True))
        drawn_alike = zip(two[rank]["drawn outside"], alone["drawn outside"], strict=True)
        assert all(torch.equal(a, b) for a, b in drawn_alike)
    assert not torch.equal(alone["drawn"][0], alone["drawn"][1])


def test_bf16_mixed_keeps_float32_weights_and_outputs(standing_crew):
    (plain,) = standing_crew(1, cuda_scripts.train, shards=2, **DEVICE)
    for nproc, settings in ((1, DEVICE), (2, SHARED)):
        for one in standing_crew(nproc, cuda_scripts.train, precision="bf16-mixed", shards=2, **settings):
            assert one["output"] == "torch.float32"
            assert {t.dtype for n, t in one["state"].items() if "num" not in n} == {torch.float32}
            assert_close(one["state"], plain["state"], tolerance=0.1)
            assert any(not torch.equal(one["state"][name], plain["state"][name]) for name in plain["state"])


def test_a_nan_loss_on_the_gpu_is_found_and_its_step_and_shard_named(crew):
    with raises(LaunchError, "loss-nan") as caught:
        crew(1, cuda_scripts.train, 40, 16, 2, False, 2, **DEVICE)
    assert "step 2, shard 0, on rank 0" in str(caught.value)


def test_logged_values_are_those_of_the_global_batch(standing_crew):
    for nproc, settings in ((1, DEVICE), (2, SHARED)):
        by_rank = standing_crew(nproc, cuda_scripts.train, shards=2, log_every=2, **settings)
        logged = {e["step"]: e["values"]["loss"] for e in by_rank[0]["events"] if e["event"] == "step"}
        assert sorted(logged) == [1, 2, 3, 4, 5, 6]
        for step, value in logged.items():
            parts = [(weight, loss) for one in by_rank for number, weight, loss in one["losses"] if number == step]
            assert value == pytest.approx(sum(w * v for w, v in parts) / sum(w for w, _ in parts), rel=1e-5)
            assert all(dict(one["means"])[step] == pytest.approx(value, rel=1e-5) for one in by_rank)


def test_the_loop_never_waits_for_the_gpu_where_nothing_is_read(crew):
    assert crew(1, cuda_scripts.log_without_waiting, 24, **DEVICE) == [24]


@only_on_cuda("the simulation knows no times")
def test_a_step_is_split_by_the_clock_of_the_gpu_and_the_parts_add_up(crew):
    (split,), wall_s = crew(1, cuda_scripts.train_with_long_kernels, 30, **DEVICE)[0]
    assert split["forward"] > 0.5 * wall_s  # the script has gone on meanwhile
    assert sum(split.values()) == pytest.approx(wall_s, rel=0.02)


def test_the_example_learns_on_the_gpu(tmp_path):
    pytest.importorskip("sklearn", reason="the example's images come with scikit-learn")
    device, epochs, least = ([], 1, 70) if IS_SIMULATED else (["--device", "cuda"], 3, 90)
    command = [sys.executable, "-m", "lockstep._cli.main", "run", "--nproc-per-node", "1", *device]
    done = subprocess.run(
        [*command, str(EXAMPLE), "--epochs", str(epochs)], cwd=tmp_path, capture_output=True, text=True, timeout=150
    )
    assert done.returncode == 0, done.stderr
    accuracy = float(done.stdout.rpartition("accuracy ")[2].split("%")[0])
    assert accuracy > least
