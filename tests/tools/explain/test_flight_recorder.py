"""PyTorch's recorders: the general one, and NCCL's own, which only builds with CUDA have (here one
that stands for it)."""

import json
import time

import pytest
import torch
import torch.distributed as dist

from lockstep._tools.explain import flight_recorder

pytestmark = pytest.mark.timeout(60)

# As PyTorch's FlightRecorder.hpp writes them, and its own tests of NCCL read them.
NCCL_ENTRY = {
    "is_p2p": False,
    "p2p_seq_id": 0,
    "collective_seq_id": 7,
    "profiling_name": "nccl:all_reduce",
    # no other test of this process has opened one of that name
    "process_group": ["mine", "of this test"],
    "input_sizes": [[3, 4]],
    "input_dtypes": ["Float"],
    "time_created_ns": 1700000000_000000000,
    "retired": False,
}
NCCL_STATUS = {"mine": {"last_enqueued_collective": 7, "last_started_collective": 7, "last_completed_collective": 6}}


@pytest.fixture
def group(tmp_path):
    dist.init_process_group("gloo", store=dist.FileStore(str(tmp_path / "store"), 1), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


@pytest.fixture
def nccl(monkeypatch):
    """A recorder of NCCL's with one collective that has not ended."""

    def dump(includeCollectives=True, onlyActive=False):  # noqa: N803
        entries = {"entries": [NCCL_ENTRY]} if includeCollectives else {}
        return json.dumps({**entries, "pg_status": NCCL_STATUS}).encode()

    monkeypatch.setattr(torch._C._distributed_c10d, "_dump_nccl_trace_json", dump, raising=False)


def test_nothing_is_read_before_a_group_is_open():
    assert flight_recorder.read_recording() == flight_recorder.Recording(None, ())
    assert flight_recorder.counts() == flight_recorder.Counts(0, {})


@pytest.mark.usefixtures("group")
def test_collectives_of_gloo_are_found():
    before = flight_recorder.counts().num_done
    dist.all_reduce(torch.zeros(5))
    deadline = time.monotonic() + 30
    while flight_recorder.counts().num_done == before and time.monotonic() < deadline:
        time.sleep(0.01)  # Gloo's thread notes the end, perhaps after the caller has gone on
    assert flight_recorder.counts().num_done == before + 1
    assert flight_recorder.read_recording().pending is None
    assert flight_recorder.read_recording().recent[-1][1] == "all_reduce (shape [5] of float)"


@pytest.mark.usefixtures("group", "nccl")
def test_those_of_nccl_are_found_beside_them_and_each_once(monkeypatch):
    pending = flight_recorder.read_recording().pending
    assert str(pending) == "all_reduce number 7 (shape [3, 4] of float)"
    assert flight_recorder.counts().begun["mine"] == 7
    read_by_nccl = torch._C._distributed_c10d._dump_nccl_trace_json
    # as newer versions have it
    monkeypatch.setattr(torch._C._distributed_c10d, "_dump_fr_trace_json", read_by_nccl)
    assert flight_recorder.counts() == flight_recorder.Counts(6, {"mine": 7})
    assert flight_recorder.read_recording().recent == ((7, pending.what, "mine"),)


@pytest.mark.usefixtures("group")
def test_groups_have_the_same_name_on_all_ranks_whichever_others_a_rank_has():
    groups = [dist.new_group([0]) for _ in range(2)]
    dist.all_reduce(torch.zeros(5), group=groups[1])
    assert flight_recorder.read_recording().recent[-1][2] == groups[1].group_name
    assert flight_recorder.counts().begun[groups[1].group_name] == 1
