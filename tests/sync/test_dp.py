"""The strategy ``dp``, as far as it goes without GPUs: DataParallel itself then calls the
module."""

import threading

import pytest
import sync_scripts
import torch
from codes import raises, refusal_of
from torch import nn

from lockstep._base.config import RunConfig
from lockstep._base.errors import ConfigError, ModelError
from lockstep._sync.dp import DataParallelStrategy, _Copied
from lockstep._sync.table import make_strategy, resolve_strategy
from lockstep._world.comm.group import Transport

pytestmark = pytest.mark.timeout(60)
ONE, TWO = (torch.device("cpu"),), (torch.device("cpu"),) * 2


def test_a_run_on_the_cpu_is_refused_and_told_what_to_use_instead(crew):
    [(_, code, message)] = crew(1, refusal_of, sync_scripts.join_with, "dp")
    assert code == "dp-without-gpus"
    assert "strategy='single'" in message


def test_several_processes_are_refused_on_gpus_too():
    with raises(ConfigError, "dp-several-processes"):
        resolve_strategy("dp", 2, 2, is_exact=False, on_gpus=True)
    assert resolve_strategy("dp", 1, 1, is_exact=False, on_gpus=True) == "dp"


def test_the_table_makes_it_of_all_devices():
    sync = make_strategy(
        "dp", RunConfig(strategy="dp", batch_dim=1), 2, Transport(backend="gloo", interface="lo", timeout_s=60), TWO
    )
    assert isinstance(sync, DataParallelStrategy)


@pytest.mark.parametrize("shards", [1, 3])
def test_steps_are_those_of_one_process_without_it(crew, shards):
    (plain,) = crew(1, sync_scripts.walk, "single", [8, 7, 2], shards=shards)
    (parallel,) = crew(1, sync_scripts.walk, "dp", [8, 7, 2], shards=shards)
    assert len(plain) == len(parallel) == 3
    for (_, grads, buffers), (_, expected_grads, expected_buffers) in zip(parallel, plain, strict=True):
        assert all(torch.equal(grads[name], expected_grads[name]) for name in ("weight", "narrow"))
        assert all(torch.equal(buffers[name], expected_buffers[name]) for name in expected_buffers)


def test_the_model_keeps_its_names_and_is_called_with_all_arguments():
    class Add(nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = nn.Parameter(torch.ones(2))

        def forward(self, x, *, times):
            return times * self.weight * x

    model = Add()
    forward = DataParallelStrategy(1, 1, ONE).attach(model)
    assert list(model.state_dict()) == ["weight"]
    forward(torch.ones(2), times=3).sum().backward()
    assert model.weight.grad.tolist() == [3.0, 3.0]


def in_a_thread(function):
    results = []
    thread = threading.Thread(target=lambda: results.append(function()))
    thread.start()
    thread.join()
    return results[0]


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, None])
def test_copies_run_in_other_threads_under_the_autocast_of_the_one_that_asked(dtype):
    x, copied = torch.ones(1, 2), _Copied(nn.Linear(2, 2), "cpu")
    with torch.autocast("cpu", dtype=dtype, enabled=dtype is not None):
        copied.note_autocast()
        replica = copied._replicate_for_data_parallel()  # as DataParallel makes them
        expected = copied(x).dtype
        assert in_a_thread(lambda: copied.model(x).dtype) == torch.float32, "autocast is a thread's own: nothing to carry"
    assert expected == (dtype or torch.float32)
    assert in_a_thread(lambda: replica(x).dtype) == expected


def test_a_forward_pass_runs_under_the_autocast_of_its_caller():
    forward = DataParallelStrategy(1, 1, ONE).attach(nn.Linear(2, 2))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert forward(torch.ones(1, 2)).dtype == torch.bfloat16
    assert forward(torch.ones(1, 2)).dtype == torch.float32


def test_batch_statistics_of_parts_are_warned_of_where_there_are_parts(recwarn):
    model = nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2))
    DataParallelStrategy(1, 1, ONE).attach(model)
    DataParallelStrategy(1, 1, TWO).attach(nn.Sequential(nn.Linear(2, 2), nn.LayerNorm(2)))
    assert not recwarn.list
    with pytest.warns(RuntimeWarning, match=r"BatchNorm .*'1' of Sequential"):
        DataParallelStrategy(1, 1, TWO).attach(model)


@pytest.mark.long
def test_compiled_layers_are_refused_where_they_would_be_copied(monkeypatch, tmp_path):
    # which PyTorch would set by itself
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path))
    model = nn.Sequential(nn.Linear(2, 2), torch.compile(nn.Linear(2, 2), backend="eager"))
    with raises(ModelError, "dp-compiled-model") as caught:
        DataParallelStrategy(1, 1, TWO).attach(model)
    assert "layer '1' of Sequential" in str(caught.value)
    assert callable(DataParallelStrategy(1, 1, ONE).attach(model))
