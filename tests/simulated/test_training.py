"""lockstep on the simulated device: the bits of the CPU, and no access that nothing orders."""

import re
from pathlib import Path

import pytest
import scripts
from codes import raises

from lockstep._base.errors import LaunchError
from lockstep._base.nondeterministic_operations import by_name
from lockstep._events.history import read_events

pytestmark = pytest.mark.timeout(120)


KNOWN = {}
"""Digests on the CPU, by number of shards."""


@pytest.fixture
def on_cpu(crew):
    """``on_cpu(shards)``: the digest of an undisturbed run on the CPU."""

    def digest(shards):
        if shards not in KNOWN:
            (found,) = crew(1, scripts.train, device="cpu", shards=shards)
            KNOWN[shards] = found["digest"]
        return KNOWN[shards]

    return digest


EXACT = [(2, 2), (3, 1), (3, 2), (6, 3)]
FSDP = [(6, 1), (6, 3)]
RUNS = [("exact", *run) for run in EXACT] + [("fsdp", *run) for run in FSDP]


@pytest.mark.parametrize(("strategy", "shards", "nproc"), RUNS)
def test_a_run_has_the_digest_of_the_cpu_on_any_number_of_processes(crew, on_cpu, strategy, shards, nproc):
    ranks = crew(nproc, scripts.train, strategy=strategy, shards=shards)
    assert [one["device"] for one in ranks] == [f"sim:{rank}" for rank in range(nproc)]
    assert {one["backend"] for one in ranks} == {"simccl"}
    assert [one["reports"] for one in ranks] == [[]] * nproc
    assert {one["digest"] for one in ranks} == {on_cpu(shards)}


def test_the_memory_of_a_device_around_the_first_step_is_in_the_log(crew):
    crew(2, scripts.train, shards=2, run_dir="run", checkpoint_every="off")
    (memory,) = [event for event in read_events(Path("run")) if event["event"] == "memory"]
    assert memory["step"] == 1
    assert 0 < memory["used_before_bytes"] < memory["used_after_bytes"] < memory["total_bytes"]
    assert memory["reserved_after_bytes"] == memory["used_after_bytes"]


@pytest.mark.parametrize(("strategy", "precision"), [("exact", "16-mixed"), ("exact", "16-true"), ("fsdp", "16-mixed")])
def test_in_any_precision_two_processes_have_the_digest_of_one(crew, strategy, precision):
    settings = {"shards": 2, "precision": precision}
    ranks = crew(1, scripts.train, **settings) + crew(2, scripts.train, strategy=strategy, **settings)
    assert [one["reports"] for one in ranks] == [[]] * 3
    assert len({one["digest"] for one in ranks}) == 1


def test_a_run_on_the_cpu_opens_no_context_although_its_loader_pins(crew):
    (found,) = crew(1, scripts.train, device="cpu", shards=2)
    assert not found["is pinned"]
    assert not found["opens a context"]


def test_a_gradient_that_comes_in_two_parts_is_their_sum(crew):
    assert crew(1, scripts.train_in_parts, shards=2) == crew(1, scripts.train_in_parts, shards=2, device="cpu")


@pytest.mark.parametrize(("strategy", "shards", "before", "after"), [("exact", 6, 3, 2), ("fsdp", 6, 3, 2)])
def test_a_run_goes_on_from_its_checkpoint_on_another_number_of_processes(crew, on_cpu, strategy, shards, before, after):
    settings = {"strategy": strategy, "shards": shards, "run_dir": "run", "checkpoint_every": 1}
    crew(before, scripts.train, 1, **settings)
    for one in crew(after, scripts.train, **settings):
        assert one["reports"] == []
        assert one["digest"] == on_cpu(shards)


@pytest.mark.parametrize("settings", [{"strategy": "ddp"}, {"audit": 2}, {"log_every": 1}], ids=str)
def test_whatever_else_reads_the_device_waits_for_it(crew, settings):
    for one in crew(2, scripts.train, shards=2, **settings):
        assert one["reports"] == []


def test_an_error_on_one_rank_is_told_before_it_waits_for_others_that_never_come(crew):
    with pytest.raises(LaunchError, match=r"rank 1 of 2 .* ValueError: planted") as caught:
        crew(2, scripts.fail_on_one_rank, shards=2)
    assert "destroy_process_group" not in str(caught.value)


@pytest.mark.parametrize("settings", [{"shards": 2}, {"shards": 1}, {"shards": 2, "strategy": "fsdp"}], ids=str)
def test_kernels_are_deterministic_while_a_run_is_open_and_layers_without_such_are_named(crew, capfd, settings):
    (found,) = crew(1, scripts.see_kernels, **settings)
    # without the last CUDA refuses a product
    assert found["open"] == {"mode": 2, "fills": False, "cublas": ":4096:8"}
    assert found["closed"] == found["before"]
    assert capfd.readouterr().err.count(by_name("reflection_pad").instead) == 1


def test_a_mode_that_the_script_has_set_is_made_strict_and_put_back(crew):
    (found,) = crew(1, scripts.see_kernels, 1, shards=2)
    assert found["open"]["mode"] == 2
    assert found["closed"] == found["before"]
    assert found["before"]["mode"] == 1


@pytest.mark.parametrize(
    ("mode", "benchmark", "settings"),
    [(0, False, {"allow": ["numerics"]}), (1, False, {"allow": ["numerics"]}), (0, True, {})],
    ids=str,
)
def test_a_run_whose_kernels_may_give_other_bits_says_so(crew, capfd, mode, benchmark, settings):
    (found,) = crew(1, scripts.see_kernels, mode, benchmark, shards=2, **settings)
    assert found["open"]["mode"] == (mode if settings else 2)
    assert "results may not be reproducible" in capfd.readouterr().err


def test_ddp_which_promises_no_bits_leaves_kernels_alone(crew, capfd):
    (found,) = crew(1, scripts.see_kernels, shards=2, strategy="ddp")
    assert found["open"]["mode"] == 0
    assert "bits" not in capfd.readouterr().err


@pytest.mark.parametrize(
    ("args", "settings", "expected"),
    [
        (["flash_attn"], {}, ["kernels-unseen"]),
        (["flash_attn"], {"strategy": "ddp"}, []),  # which promises no bits
        (["flash_attn"], {"device": "cpu"}, []),
        ([None, True], {}, ["cublas-variable-late"]),
        ([None, True, ":4096:8"], {}, []),
        ([None, False], {}, []),
    ],
)
def test_a_run_names_what_may_undo_deterministic_kernels(crew, args, settings, expected):
    assert crew(1, scripts.notices, *args, shards=2, **settings) == [expected]


def test_another_product_or_version_of_cudnn_is_refused_among_ranks_and_on_a_resume_and_may_be_allowed(crew):
    with raises(LaunchError, "ranks-differ") as caught:
        crew(2, scripts.train_on, [("H100", 91000), ("A100", 91000)], shards=2)
    assert re.search("rank 0 .*`gpu='H100'`.* rank 1 .*`gpu='A100'`", str(caught.value))
    with raises(LaunchError, "ranks-differ") as caught:
        crew(2, scripts.train_on, [("H100", 91000), ("H100", 92000)], shards=2)
    assert re.search("rank 0 .*`cudnn=91000`.* rank 1 .*`cudnn=92000`", str(caught.value))
    crew(1, scripts.train_on, [("H100", 91000)], 1, shards=2, run_dir="run")
    with raises(LaunchError, "numerics-changed") as caught:
        crew(1, scripts.train_on, [("A100", 91000)], 2, shards=2, run_dir="run")
    assert re.search("gpu .*'A100'.* 'H100'", str(caught.value))
    crew(1, scripts.train_on, [("A100", 91000)], 2, shards=2, run_dir="run", allow=["numerics"])


VARIABLES = [("CUBLAS_WORKSPACE_CONFIG", ":16:8"), ("CUBLASLT_WORKSPACE_SIZE", "0"), ("NVIDIA_TF32_OVERRIDE", "0")]


@pytest.mark.parametrize(("name", "value"), VARIABLES)
def test_a_variable_by_which_libraries_choose_other_algorithms_is_refused_on_a_resume(crew, name, value):
    crew(1, scripts.train, 1, shards=2, run_dir="run")
    with raises(LaunchError, "numerics-changed") as caught:
        crew(1, scripts.train_with, {name: value}, 2, shards=2, run_dir="run")
    assert re.search(f"{name} .*{value!r}", str(caught.value))
    crew(1, scripts.train_with, {name: value}, 2, shards=2, run_dir="run", allow=["numerics"])


def test_what_a_script_keeps_comes_back_to_the_device_where_it_was(crew):
    settings = {"shards": 3, "run_dir": "run", "checkpoint_every": 4}  # of 10 steps an epoch
    (whole,) = crew(1, scripts.keep_on_the_device, shards=3)
    assert whole["where"] == [True, "cpu", True]
    with pytest.raises(LaunchError, match="planted"):
        crew(2, scripts.keep_on_the_device, 14, **settings)
    assert [*crew(3, scripts.keep_on_the_device, **settings)] == [whole] * 3


IN_TWO_STREAMS = [("exact", 1), ("exact", 2), ("fsdp", 1), ("fsdp", 2)]


@pytest.mark.parametrize(("strategy", "nproc"), [*IN_TWO_STREAMS, ("single", 1)])
def test_a_model_that_computes_in_two_streams_is_waited_for_in_both(crew, strategy, nproc):
    settings = {"shards": 1, "accumulate": 2} if strategy == "single" else {"shards": 2}
    ((on_cpu, _),) = crew(1, scripts.train_towers, device="cpu", **settings)
    for found, reports in crew(nproc, scripts.train_towers, strategy=strategy, **settings):
        assert reports == []
        assert found == on_cpu


@pytest.mark.parametrize(("strategy", "precision"), [("exact", "bf16-true"), ("fsdp", "bf16-mixed")])
def test_in_any_precision_two_streams_are_waited_for(crew, strategy, precision):
    settings = {"shards": 2, "precision": precision}
    ranks = crew(1, scripts.train_towers, **settings) + crew(2, scripts.train_towers, strategy=strategy, **settings)
    assert [reports for _, reports in ranks] == [[]] * 3
    assert [found for found, _ in ranks] == [ranks[0][0]] * 3
