"""Promises of the writing threads: what they put together is what was given to them, and one that
fails holds up no other."""

import json
import resource
import threading
import time
import weakref

import pytest
import torch
from safetensors.torch import load_file

from lockstep._state.checkpoint.manifest import FILE_NAME, Manifest, verify
from lockstep._state.checkpoint.store import BEST, Store
from lockstep._state.checkpoint.writer import STATE, Job, Writer

pytestmark = pytest.mark.timeout(60)


def job(rank=0, world_size=1, *, step=10, token="token", kind="checkpoint", tensors=None, **fields):
    """The part of a rank: a file of its own, and a state, unless something else is given."""
    tensors = {f"state-{rank}.safetensors": {"a": torch.full((1000,), float(rank))}} if tensors is None else tensors
    manifest = Manifest(kind=kind, step=step, epoch=0, time_s=0.0, world_size=world_size)
    place = {"rank": rank, "world_size": world_size, "keep": 2, "token": token}
    return Job(manifest=manifest, tensors=tensors, **{"state": {"of": rank}, **place, **fields})


def write(writer, one):
    """Its result, when it has one."""
    writer.submit(one)
    assert writer.wait(30)
    (result,) = writer.results()
    assert not writer.is_busy
    assert result.manifest is one.manifest
    return result


def test_what_one_rank_writes_can_be_read_without_lockstep(tmp_path):
    tensors = {
        "model.safetensors": {"weight": torch.randn(3, 4), "half": torch.randn(5).bfloat16(), "number": torch.tensor(7)},
        "state-0.safetensors": {
            "empty": torch.empty(0),
            "flag": torch.tensor(True),
            "z": torch.randn(2).to(torch.complex64),
        },
        "none.safetensors": {},
    }
    result = write(Writer(Store(tmp_path)), job(tensors=tensors, state={"lr": 0.1, "text": "ä"}))
    assert (result.error, result.path) == ("", tmp_path / "checkpoints" / "step-00000010")
    assert json.loads((result.path / STATE).read_text()) == {"lr": 0.1, "text": "ä"}
    for name, content in tensors.items():
        found = load_file(result.path / name)
        assert found.keys() == content.keys()
        assert all(torch.equal(found[key], content[key]) and found[key].dtype == content[key].dtype for key in content)
    assert sorted(verify(result.path).files) == sorted([*tensors, STATE])


@pytest.mark.parametrize("order", [(0, 1, 2), (2, 1, 0)])
def test_the_parts_of_all_ranks_come_together_whoever_is_first(tmp_path, order):
    # threads that know nothing of each other, as in three processes
    writers = [Writer(Store(tmp_path)) for _ in range(3)]
    for rank in order:
        assert not list(tmp_path.glob("checkpoints/step-*"))
        writers[rank].submit(job(rank, 3))
        if rank != 0:
            assert writers[rank].wait(30)
    assert writers[0].wait(30)
    results = [writer.results()[0] for writer in writers]
    assert [result.error for result in results] == ["", "", ""]
    assert [result.path is None for result in results] == [False, True, True]
    assert sorted(verify(results[0].path).files) == [*(f"state-{rank}.safetensors" for rank in range(3)), STATE]
    for rank in range(3):
        assert load_file(results[0].path / f"state-{rank}.safetensors")["a"].eq(rank).all()
    assert {path.name for path in results[0].path.iterdir()} == {*verify(results[0].path).files, FILE_NAME}
    assert {path.name for path in (tmp_path / "checkpoints").iterdir()} == {"newest", results[0].path.name}


def test_the_best_weights_are_kept_apart_from_the_checkpoints(tmp_path):
    writers = [Writer(Store(tmp_path)) for _ in range(2)]
    writers[1].submit(job(1, 2, kind="weights", tensors={}))
    result = write(writers[0], job(0, 2, kind="weights", tensors={"model.safetensors": {"weight": torch.ones(3)}}, state={}))
    assert result.path == tmp_path / BEST
    assert (verify(result.path).kind, Store(tmp_path).all()) == ("weights", [])


def test_it_is_busy_until_the_checkpoint_is_there_and_waits_for_a_copy_from_a_gpu(tmp_path):
    class Copying:
        done = threading.Event()

        def synchronize(self):
            assert self.done.wait(30)

    writer = Writer(Store(tmp_path))
    writer.submit(job(copied=[Copying()]))
    assert not writer.wait(0.05)
    assert (writer.is_busy, writer.results(), list(tmp_path.iterdir())) == (True, [], [])
    Copying.done.set()
    assert writer.wait(30)
    assert (writer.is_busy, writer.results()[0].error, writer.results()) == (False, "", [])


def test_tensors_of_a_job_that_is_done_are_let_go(tmp_path):
    writer, one = Writer(Store(tmp_path)), job()
    left = [weakref.ref(tensor) for file in one.tensors.values() for tensor in file.values()]
    write(writer, one)
    del one
    while not writer._changed._waiters:  # for the next job
        time.sleep(0.001)
    assert all(tensor() is None for tensor in left)


# Failures


def test_a_rank_that_cannot_write_says_so_and_rank_0_does_not_wait_for_it_for_ever(tmp_path):
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "checkpoints").write_text("no directory")
    main, other = Writer(Store(tmp_path)), Writer(Store(tmp_path / "elsewhere"))
    main.submit(job(0, 2))
    assert "checkpoints" in write(other, job(1, 2)).error
    assert not main.wait(0.1)
    main.give_up()  # told of it in the ranks' next exchange
    assert main.wait(30)
    (result,) = main.results()
    assert result.path is None
    assert result.error.startswith("CheckpointError: rank 1 ")
    assert list((tmp_path / "checkpoints").iterdir()) == []  # a full disk needs the room
    # A third rank had not heard of it. The next one is written, if it can be: nobody has given up
    # that one.
    third = Writer(Store(tmp_path))
    assert write(third, job(2, 3)).error == ""
    main.submit(job(0, 2, step=20, token="token-2"))
    assert not main.wait(0.3)
    assert write(Writer(Store(tmp_path)), job(1, 2, step=20, token="token-2")).error == ""
    assert main.wait(30)
    assert main.results()[0].error == ""
    assert {path.name for path in (tmp_path / "checkpoints").iterdir()} == {"newest", "step-00000020"}


def test_a_disk_that_is_full_in_the_middle_of_a_file_leaves_no_half_of_it(tmp_path):
    writer = Writer(Store(tmp_path))
    sound = write(writer, job(step=10)).path
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100, before[1]))  # for each file, as on a full disk
    try:
        result = write(writer, job(step=20))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert result.error
    assert sorted(path.name for path in sound.parent.iterdir()) == ["newest", sound.name]
    assert write(writer, job(step=30)).error == ""


def test_what_cannot_be_saved_at_all_does_not_end_the_thread(tmp_path):
    writer = Writer(Store(tmp_path))
    for bad in (
        {"tensors": {"model.safetensors": {"weight": torch.zeros(2, dtype=torch.complex128)}}},
        {"tensors": {"model.safetensors": {"weight": torch.eye(2).to_sparse()}}},
        {"state": {"object": object()}},
        {"state": float("nan")},
    ):
        assert write(writer, job(**bad)).error
    assert list((tmp_path / "checkpoints").iterdir()) == []
    assert write(writer, job()).error == ""


def test_a_writer_that_is_closed_ends_its_thread_after_the_job_under_way(tmp_path):
    writer, before = Writer(Store(tmp_path)), set(threading.enumerate())
    writer.close()  # one that never had a thread
    writer = Writer(Store(tmp_path))
    writer.submit(job())
    (thread,) = set(threading.enumerate()) - before
    writer.close()
    thread.join()
    (result,) = writer.results()
    assert result.path is not None
    assert not writer.is_busy
