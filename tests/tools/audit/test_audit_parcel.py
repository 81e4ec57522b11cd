"""Samples on their way to another process: the same bits, strides and places relative to lines of
memory, and no more."""

import pickle

import pytest
import torch

from lockstep._plan.blocks import even_blocks
from lockstep._plan.shards import plan_step
from lockstep._tools.audit.parcel import Parcel, pack, unpack

pytestmark = pytest.mark.timeout(20)
CPU = torch.device("cpu")
TABLE = torch.arange(80_000.0).reshape(1000, 80)
TENSORS = {
    "whole": torch.randn(5, 3),
    "rows that begin between lines": torch.arange(7000.0).reshape(1000, 7)[3:8],
    "a column": TABLE[:, 3],
    "channels last": torch.randn(2, 3, 4, 4).to(memory_format=torch.channels_last)[1:],
    "every second": torch.arange(100.0)[10:40:2],
    "nothing": TABLE[:0],
    "16 bits": TABLE.bfloat16()[9:11],
    "sparse": torch.eye(3).to_sparse(),
}


def sent(value):
    micro = plan_step(1, (8,), 0, even_blocks(1, 1)).micro_batches[0]
    data = pack(Parcel(runs=[(micro, value)]), [CPU])
    [(_, found)] = unpack(data, [CPU]).runs
    return found, len(data)


@pytest.mark.parametrize("name", TENSORS)
def test_a_tensor_arrives_as_it_was(name):
    tensor = TENSORS[name]
    [found], size = sent([tensor])
    assert size < 6000
    assert torch.equal(found.to_dense(), tensor.to_dense())
    assert found.dtype == tensor.dtype
    if name != "sparse":
        assert found.stride() == tensor.stride() or name == "a column"
    if name in ("rows that begin between lines", "16 bits"):
        assert found.data_ptr() % 64 == tensor.data_ptr() % 64


def test_what_is_sent_is_a_copy_and_structures_stay():
    batch = {"inputs": TABLE[1:3], "names": ["a", "b"]}
    found, _ = sent(batch)
    found["inputs"].zero_()
    assert batch["inputs"].sum() > 0
    assert found["names"] == ["a", "b"]


def test_what_cannot_be_pickled_is_an_error():
    with pytest.raises((pickle.PicklingError, AttributeError, TypeError)):
        sent([lambda: 0])


def test_state_that_was_on_a_gpu_arrives_on_a_gpu_and_the_rest_on_the_cpu():
    values = [{"hidden": torch.ones(2), "seen": torch.zeros(())}, torch.ones(3)]
    sent = pickle.dumps(Parcel(runs=[], per_shard=values, device_numbers=[1, None, 0]))
    [state, other] = unpack(sent, [torch.device("meta"), torch.device("meta", 1)]).per_shard
    assert (state["hidden"].device.type, state["seen"].device.type, other.device.type) == ("meta", "cpu", "meta")
    packed = pickle.loads(pack(Parcel(runs=[], per_shard=values), [CPU]))
    assert packed.device_numbers == [None, None, None]
