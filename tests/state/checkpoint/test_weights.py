"""Promises of the weights in a checkpoint: they are those of the user's own model, and any program
can load them."""

import random
from contextlib import contextmanager

import pytest
import torch
import torch.distributed as dist
from checkpoint_files import flip
from codes import raises
from safetensors.torch import load_file, save_file
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Shard
from torch.optim.swa_utils import AveragedModel
from torch.testing._internal.distributed.fake_pg import FakeStore

import lockstep
from lockstep._base.errors import CheckpointError
from lockstep._state.checkpoint.manifest import Manifest
from lockstep._state.checkpoint.staging import Staging
from lockstep._state.checkpoint.store import Store, find_checkpoint
from lockstep._state.checkpoint.weights import Tensors
from lockstep._state.checkpoint.writer import Job, Writer
from lockstep._state.recovery.run_state import RunState

pytestmark = pytest.mark.timeout(60)


class Model(nn.Module):
    """With a tied weight, and buffers in the state dict and outside of it."""

    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(5, 4)
        self.norm = nn.BatchNorm1d(4)
        self.head = nn.Linear(4, 5, bias=False)
        self.head.weight = self.embedding.weight
        self.register_buffer("cache", torch.ones(3), persistent=False)

    def forward(self, batch):
        return self.head(self.norm(self.embedding(batch)))


def write(run_dir, *objects, step=10, kind="checkpoint"):
    """A checkpoint of these objects' weights."""
    state, writer = RunState(), Writer(Store(run_dir))
    for thing in objects:
        state.keep(thing)
    tensors = {file: Staging().copy(weights)[0] for file, weights in state.weights(0).items()}
    manifest = Manifest(kind=kind, step=step, epoch=0, time_s=0.0, objects=state.describe_objects())
    writer.submit(Job(manifest=manifest, token="t", rank=0, world_size=1, keep=2, tensors=tensors))
    assert writer.wait(30)
    (result,) = writer.results()
    assert not result.error
    return result.path


@pytest.mark.parametrize("name", ["model", "average"])
def test_they_load_strictly_in_plain_torch_under_the_names_of_the_users_own_model(tmp_path, name):
    model = Model()
    model(torch.arange(5))
    path = write(tmp_path, model, AveragedModel(model))
    for found in (lockstep.load_weights(path, name), load_file(path / f"{name}.safetensors")):
        again = Model()
        again.load_state_dict(found, strict=True)
        assert found.keys() == model.state_dict().keys()
        assert all(torch.equal(again.state_dict()[key], value) for key, value in model.state_dict().items())
        assert again.head.weight is again.embedding.weight


def test_a_path_is_a_checkpoint_or_a_run_with_its_newest_one_or_its_best_or_a_file(tmp_path):
    run, model = tmp_path / "run", nn.Linear(1, 1)
    paths = {}
    for value, step, kind in ((1.0, 10, "checkpoint"), (2.0, 20, "checkpoint"), (3.0, 15, "weights")):
        nn.init.constant_(model.weight, value)
        paths[value] = write(run, model, step=step, kind=kind)
    for path, value in (
        *((path, value) for value, path in paths.items()),
        *((run, 2.0), (str(run), 2.0), (run / "checkpoints", 2.0), (run / "best", 3.0)),
        (paths[1.0] / "model.safetensors", 1.0),
    ):
        assert lockstep.load_weights(path)["weight"].item() == value
    assert Manifest.read(find_checkpoint(run)).step == 20


def test_models_are_told_apart_by_name_and_a_wrong_one_lists_them(tmp_path):
    models = [nn.Linear(1, 1), nn.Linear(2, 2), AveragedModel(nn.Linear(3, 3))]
    write(tmp_path, *models, torch.optim.SGD(models[0].parameters()))
    sizes = [len(lockstep.load_weights(tmp_path, name)["bias"]) for name in ("model", "model-2", "average")]
    assert sizes == [1, 2, 3]
    with raises(CheckpointError, "model-unknown"):
        lockstep.load_weights(tmp_path, "model-3")


def test_damaged_ones_are_refused_and_never_read(tmp_path):
    path = write(tmp_path, Model())
    flip(path / "model.safetensors", random.Random(0))
    with pytest.raises(CheckpointError, match=r"model\.safetensors was damaged"):
        lockstep.load_weights(tmp_path)
    (path / "model.safetensors").write_bytes(b"no tensors")
    for file in (path / "model.safetensors", path):
        with pytest.raises(CheckpointError, match=r"model\.safetensors|damaged"):
            lockstep.load_weights(file)
    with raises(CheckpointError, "safetensors-unreadable"):
        Tensors([path / "model.safetensors"])
    with raises(CheckpointError, "path-missing"):
        lockstep.load_weights(tmp_path / "nowhere")


def test_a_file_of_pickles_is_not_run(tmp_path):
    class Trap:
        def __reduce__(self):
            return (tmp_path.joinpath("sprung").touch, ())

    path = write(tmp_path / "run", Model())
    torch.save({"weight": Trap()}, path / "model.safetensors")
    for where in (path / "model.safetensors", path):
        with pytest.raises(CheckpointError):
            lockstep.load_weights(where)
    assert not (tmp_path / "sprung").exists()


def test_tensors_of_several_files_are_one_mapping_with_all_their_rows(tmp_path):
    save_file({"a": torch.ones(2), "b": torch.zeros(1), "rows": torch.tensor([[1, 2], [3, 4]])}, tmp_path / "1")
    save_file({"c": torch.tensor(3), "rows": torch.tensor([[5, 6]])}, tmp_path / "2")
    save_file({"rows": torch.zeros(0, 2, dtype=torch.int64)}, tmp_path / "3")
    tensors = Tensors([tmp_path / "1", tmp_path / "2", tmp_path / "3"])
    whole = {"a": [1.0, 1.0], "b": [0.0], "c": 3, "rows": [[1, 2], [3, 4], [5, 6]]}
    assert {name: tensor.tolist() for name, tensor in tensors.items()} == whole
    assert (len(tensors), "d" in tensors) == (4, False)
    with pytest.raises(KeyError):
        tensors["d"]
    with raises(CheckpointError, "safetensors-unreadable"):
        Tensors([tmp_path / "4"])


@pytest.mark.parametrize("num_files", [1, 2, 3, 5])
def test_a_rank_reads_its_rows_from_the_files_of_any_number_of_ranks(tmp_path, num_files):
    whole = torch.arange(14).view(7, 2)
    files = [tmp_path / str(number) for number in range(num_files)]
    for file, part in zip(files, cut(whole, num_files), strict=True):
        save_file({"rows": part.clone()}, file)
    for world_size in (1, 2, 3, 5):
        for rank, part in enumerate(cut(whole, world_size)):
            with as_rank(rank, world_size) as mesh:
                form = DTensor.from_local(part.float(), mesh, [Shard(0)], shape=whole.shape, stride=whole.stride())
                found = Tensors(files).formed(lambda _, form=form: form)["rows"]
                assert torch.equal(found.to_local(), part), (rank, world_size)


def cut(whole, num_parts):
    """The rows of each rank, as ``fully_shard`` deals them out."""
    parts = list(whole.chunk(num_parts))
    return parts + [whole[:0]] * (num_parts - len(parts))


@contextmanager
def as_rank(rank, world_size):
    """A mesh of as many ranks, of which this process is one, without the others."""
    dist.init_process_group("fake", store=FakeStore(), rank=rank, world_size=world_size)
    try:
        yield init_device_mesh("cpu", (world_size,))
    finally:
        dist.destroy_process_group()
