"""What a step launches and waits for, beside the passes of its model."""

from collections import Counter

import pytest
import scripts
import torch

from lockstep._state.checkpoint.staging import Staging

pytestmark = pytest.mark.timeout(120)
STRATEGIES = [("exact", 1), ("exact", 2), ("single", 1), ("ddp", 2), ("fsdp", 2)]
PLAIN = 8
"""The number of steps with which ``scripts.count`` counts step 7, in which nothing is looked at and
no digest of step 4 is read."""
BESIDE = 130
"""Launches of a step that do not depend on the model's size."""


def total(counts):
    return sum(counts.values())


def by_file(step):
    """Waits by the file of lockstep that waits. Without those of comparing the ranks, which falls
    on steps that depend on how long it takes."""
    files = Counter()
    for place, number in step["waits"].items():
        if "recovery/fingerprint.py" not in place:
            files[place.partition(" @ ")[2].partition(":")[0]] += number
    return files


@pytest.mark.parametrize(("strategy", "nproc"), STRATEGIES)
@pytest.mark.parametrize(("reads", "expected"), [(False, {}), (True, {"_data/values.py": 1})])
def test_a_step_waits_once_for_the_values_added_to_its_batch_and_never_without(crew, strategy, nproc, reads, expected):
    for one in crew(nproc, scripts.count, 8, PLAIN, reads, True, strategy=strategy, shards=2, checkpoint_every="off"):
        assert by_file(one["step"]) == expected
        assert one["step"]["reports"] == []


@pytest.mark.parametrize(("strategy", "nproc"), STRATEGIES)
def test_weights_that_the_device_counts_are_read_with_the_values_and_give_the_bits_of_the_cpu(crew, strategy, nproc):
    ((on_cpu, _, _),) = crew(1, scripts.train_weighted, shards=2, device="cpu")
    for found, waits, reports in crew(nproc, scripts.train_weighted, strategy=strategy, shards=2, checkpoint_every="off"):
        assert found == on_cpu
        copies = {place: number for place, number in waits.items() if not place.startswith("synchronize an event")}
        # logging waits for the event of a step before
        assert by_file({"waits": copies}) == {"_data/values.py": 1}
        assert reports == []


def test_rows_are_gathered_from_device_to_device_without_a_wait(crew):
    on_cpu = crew(3, scripts.gather_rows, shards=3, device="cpu")
    on_devices = crew(3, scripts.gather_rows, shards=3)
    assert [found for found, _ in on_devices] == [found for found, _ in on_cpu]
    for _, counts in on_devices:
        assert (counts["waits"], counts["reports"]) == ({}, [])
        assert counts["launches"]["all_gather_single"] == 5


@pytest.mark.parametrize("kind", [scripts.Record, scripts.Own, scripts.packed])
def test_a_batch_of_any_class_that_is_pinned_is_moved_without_a_wait(crew, kind):
    ((on_cpu, _, _),) = crew(1, scripts.train_on_kind, kind, shards=2, device="cpu")
    for found, counts, reports in crew(2, scripts.train_on_kind, kind, 1, shards=2):
        assert by_file(counts) == {}
        assert (found, reports) == (on_cpu, [])


@pytest.mark.parametrize("nproc", [1, 2])
def test_an_evaluation_waits_once_for_the_values_of_all_its_batches(crew, nproc):
    ((on_cpu, _),) = crew(1, scripts.count_evaluation, 7, shards=2, device="cpu")
    for found, counts in crew(nproc, scripts.count_evaluation, 7, shards=2):
        assert found == on_cpu
        assert by_file(counts) == {"_data/values.py": 1}
        assert counts["reports"] == []


@pytest.mark.parametrize("nproc", [1, 2])
def test_a_scaled_loss_costs_one_wait_more_and_two_after_an_overflow(crew, nproc):
    for one in crew(nproc, scripts.count, 8, PLAIN, True, True, shards=2, checkpoint_every="off", precision="16-mixed"):
        waits = by_file(one["step"])
        # a comparison of the ranks reads the scale, too
        assert waits.pop("_prepare/scaling.py") in ((1, 2) if nproc == 1 else (1, 2, 3))
        assert waits == {"_data/values.py": 1}
        assert one["step"]["reports"] == []


@pytest.mark.parametrize(("strategy", "nproc"), [("exact", 1), ("exact", 2), ("fsdp", 2)])
def test_a_step_that_writes_digests_waits_once_for_all_that_is_hashed_on_the_device(crew, strategy, nproc):
    for one in crew(nproc, scripts.count, strategy=strategy, shards=2, checkpoint_every="off", journal_every=1):
        of_digests = [place for place in one["step"]["waits"] if not place.endswith(" read")]  # of values
        assert len(of_digests) == 1
        assert one["step"]["waits"][of_digests[0]] == 1
        assert "recovery/fingerprint.py" in of_digests[0]
        assert one["step"]["reports"] == []


@pytest.mark.parametrize("nproc", [1, 2])
def test_the_digests_of_a_deeper_model_take_no_more_launches(crew, nproc):
    def launches(num_blocks, every):
        first, *_ = crew(nproc, scripts.count, num_blocks, shards=2, checkpoint_every="off", journal_every=every)
        return total(first["step"]["launches"])

    small, large = (launches(num_blocks, 1) - launches(num_blocks, 0) for num_blocks in (8, 24))
    assert large == small <= 50, (small, large)


@pytest.mark.parametrize("nproc", [1, 2])
def test_a_step_launches_little_more_than_the_passes_of_its_model(crew, nproc):
    small, *_ = crew(nproc, scripts.count, 8, 6, True, True, shards=2, checkpoint_every="off")
    large, *_ = crew(nproc, scripts.count, 24, 6, True, True, shards=2, checkpoint_every="off")
    passes = total(large["plain"]["launches"]) - total(small["plain"]["launches"])
    assert passes > 0
    assert total(large["step"]["launches"]) - total(small["step"]["launches"]) <= 1.2 * passes
    assert total(small["step"]["launches"]) - total(small["plain"]["launches"]) <= BESIDE


def test_an_exchange_of_a_bucket_adds_by_halves_and_copies_nothing(crew):
    def launches(nproc):
        first, *_ = crew(nproc, scripts.send_gradients, 7, strategy="exact", shards=nproc)
        return Counter(first["launches"])

    alone = launches(1)
    for nproc, halvings in (2, 1), (4, 2):
        more = launches(nproc)
        more.subtract(alone)
        expected = {"all_to_all_single": 1, "all_gather_single": 1, "aten::add": halvings}
        assert {name: number for name, number in more.items() if number} == expected


@pytest.mark.parametrize("nproc", [1, 2])
def test_parameters_have_gradients_where_any_shard_gave_one_though_the_sums_are_not_read(crew, nproc):
    sides = [(0, 0), (0, 0), (0, 1), (1, 1), (0, 0), (0, 1), (1, 0)]
    (on_cpu,) = crew(1, scripts.choose, sides, shards=2, device="cpu")
    for found in crew(nproc, scripts.choose, sides, shards=2):
        assert found == on_cpu


def test_copies_for_checkpoints_need_little_more_pinned_memory_than_their_bytes(device):
    tensors = {f"weight {number}": torch.full((100, 270 + number), float(number), device="sim") for number in range(90)}
    tensors |= {"number": torch.tensor(3, device="sim"), "half": torch.ones(5, device="sim").bfloat16()}
    tensors |= {"empty": torch.empty(0, 3, device="sim"), "on the CPU": torch.ones(7)}
    before, staging = device.pinned(), Staging()
    device.reset()
    for fill in (0, 1):
        copies, events = staging.copy(tensors)
        assert device.waits() == {}
        for event in events:
            event.synchronize()
        device.reset()
        for number, name in enumerate(list(tensors)[:90]):
            assert copies[name].unique().tolist() == [number + fill]
            tensors[name] += 1
        device.reset()
        assert all(copies[name].dtype == tensors[name].dtype for name in tensors)
        assert (copies["number"].item(), copies["empty"].shape) == (3, (0, 3))
        if not fill:
            memory, places = device.pinned(), {name: copy.data_ptr() for name, copy in copies.items()}
    num_bytes = sum(tensor.nbytes for tensor in tensors.values())
    assert num_bytes < memory - before < 1.1 * num_bytes
    assert (device.pinned(), {name: copy.data_ptr() for name, copy in copies.items()}) == (memory, places)
    del copies
    staging.copy({"weight 0": tensors["weight 0"]})
    assert device.pinned() - before < 0.1 * num_bytes
