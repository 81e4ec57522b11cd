"""What cannot work is said before any training: what is wrong, with which values, and what to
do."""

import bad_scripts
import pytest
import torch
import torch.distributed as dist

import lockstep
from lockstep._base.errors import LaunchError

pytestmark = [pytest.mark.timeout(60), pytest.mark.quick]
QUICK = {"timeout_s": 20.0}

WRONG = [
    (bad_scripts.no_parameters, "ModelError", "Sequential has no parameters and no buffers"),
    (bad_scripts.foreign_optimizer, "ModelError", "2 parameters of SGD"),
    (bad_scripts.optimizer_before_its_model, "ModelError", "belong to no prepared model"),
    (bad_scripts.backward_before_prepare, "UsageError", "backward() before prepare()"),
    (bad_scripts.backward_outside_the_loop, "UsageError", "over the loader that prepare() returned"),
    (bad_scripts.backward_behind_the_shards, "UsageError", "backward() outside of batch.shards"),
    (bad_scripts.nothing_prepared, "UsageError", "prepare() needs at least one argument"),
    (bad_scripts.strange_object, "UsageError", "a int cannot be prepared"),
    (bad_scripts.own_schedule, "UsageError", 'team.register("schedule", ...)'),
    (bad_scripts.lookahead, "UsageError", 'team.register("lookahead", ...)'),
    (bad_scripts.random_generator, "UsageError", 'team.register("generator", ...)'),
    (bad_scripts.wrapped_in_ddp, "ModelError", "already in a DistributedDataParallel"),
    (bad_scripts.join_again, "UsageError", "join() was already called"),
    (bad_scripts.negative_epochs, "ConfigError", "epochs(-1): it must be 0 or more"),
    (bad_scripts.never, "DataError", "no global batch"),
    (bad_scripts.empty_data, "DataError", "no global batch"),
]


@pytest.mark.parametrize(("script", "kind", "words"), WRONG, ids=[case[0].__name__ for case in WRONG])
def test_every_rank_is_told_what_cannot_work(standing_crew, script, kind, words):
    for told in standing_crew(2, bad_scripts.told, script, **QUICK):
        assert told is not None, "nothing was said"
        assert told[0] == kind
        assert words in told[2]


def test_sync_batchnorm_is_for_gpus(standing_crew):
    told = standing_crew(2, bad_scripts.told, bad_scripts.sync_batchnorm, strategy="ddp", **QUICK)
    assert [one[:2] for one in told] == [("ModelError", "sync-batchnorm-on-cpu")] * 2


def test_sync_batchnorm_needs_as_many_processes_as_shards(tmp_path):
    with lockstep.join(run_dir=str(tmp_path), shards=4, strategy="single") as team:
        # refused before anything is moved there
        team._engine.preparation._device = torch.device("cuda")
        with pytest.raises(lockstep.ModelError) as caught:
            bad_scripts.sync_batchnorm(team)
    assert "layer '1' is SyncBatchNorm" in str(caught.value)
    assert "4 shards on 1 processes" in str(caught.value)


DIFFERENT = [
    (bad_scripts.models_of_different_width, "Sequential: 0.weight of shape (4, 2)", "0.weight of shape (5, 2)"),
    (bad_scripts.models_of_different_type, "torch.float32", "torch.float64"),
    (bad_scripts.models_frozen_differently, "bias of shape (2,), torch.float32, requires_grad=True", "grad=False"),
    (bad_scripts.data_of_different_length, "data set of length 8", "data set of length 9"),
    (bad_scripts.a_rank_with_more_objects, "object 2, SGD", "nothing more"),
]


@pytest.mark.parametrize(("script", "first", "other"), DIFFERENT, ids=[case[0].__name__ for case in DIFFERENT])
def test_ranks_that_differ_are_told_the_first_difference(standing_crew, script, first, other):
    for kind, code, message in standing_crew(2, bad_scripts.told, script, **QUICK):
        assert (kind, code) == ("MismatchError", "ranks-differ")
        rank_0, _, rank_1 = message.partition("rank 1 has")
        assert first in rank_0
        assert other in rank_1
        assert "depends on the rank" in message


def test_settings_that_differ_between_ranks_are_told(crew):
    with pytest.raises(LaunchError, match=r"MismatchError: .*`seed=0`.*`seed=1`"):
        crew(2, bad_scripts.settings_that_depend_on_the_rank, **QUICK)


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"strategy": "dpp"}, "'dp' or 'ddp'"),
        ({"precision": "fp8"}, "32-true, 16-mixed, 16-master, 16-true"),
        ({"backend": "smoke"}, "auto, gloo, nccl, mpi"),
        ({"backend": "mpi"}, "backend='mpi'"),
        ({"init_method": "tcp://localhost:29500"}, "RANK"),
        ({"init_method": "tcp:localhost"}, "init_method='tcp:localhost'"),
        ({"stratgy": "ddp"}, "'strategy'"),
        ({"shards": 0}, "shards=0: "),
        ({"backend": "nccl", "device": "cpu"}, "backend='nccl' needs a GPU"),
    ],
)
def test_join_refuses_settings_that_cannot_be_meant_and_can_be_called_again(tmp_path, settings, words):
    with pytest.raises(lockstep.ConfigError) as caught:
        lockstep.join(run_dir=str(tmp_path / "run"), **settings)
    assert words in str(caught.value)
    lockstep.join(run_dir=str(tmp_path / "run")).close()


def test_cuda_without_a_gpu_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    with pytest.raises(lockstep.ConfigError, match="no CUDA GPU here"):
        lockstep.join(run_dir=str(tmp_path / "run"), device="cuda")


def test_a_process_group_opened_by_the_script_is_told(tmp_path):
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    try:
        with pytest.raises(lockstep.UsageError, match=r"initialized before lockstep\.join"):
            lockstep.join(run_dir=str(tmp_path / "run"))
    finally:
        dist.destroy_process_group()
    lockstep.join(run_dir=str(tmp_path / "run")).close()  # as the error says


def test_more_processes_than_the_run_has_shards_is_refused_on_every_rank(crew, tmp_path):
    lockstep.join(run_dir=str(tmp_path / "run"), threads=1).close()  # born with one shard
    for message in crew(2, bad_scripts.join_refused, run_dir=str(tmp_path / "run"), **QUICK):
        assert message.startswith("2 processes but only 1 shard: ")
        assert "shards=2" in message


def test_a_run_directory_that_cannot_be_written_is_told_on_every_rank(crew, tmp_path):
    (tmp_path / "file").write_text("")
    for message in crew(2, bad_scripts.join_refused, run_dir=str(tmp_path / "file" / "run"), **QUICK):
        assert str(tmp_path / "file") in message
        assert "--run-dir" in message
