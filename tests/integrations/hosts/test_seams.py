"""What the engine offers to a library that drives training: results of single shards and batches on
every process, passes that end early, state that may differ between ranks, and objects that
are prepared again."""

import pytest
import seam_scripts

pytestmark = [pytest.mark.timeout(60), pytest.mark.quick]


@pytest.mark.parametrize("accumulate", [1, 2])
def test_what_shards_and_batches_share_is_the_same_on_any_number_of_processes(standing_crew, accumulate):
    [alone] = standing_crew(1, seam_scripts.share, accumulate, shards=5)
    for processes in (2, 3):
        assert standing_crew(processes, seam_scripts.share, accumulate, shards=5) == [alone] * processes
    steps, rows = alone
    in_epochs = [[], []]
    for number, shared in enumerate(steps):
        in_epochs[number * 2 // len(steps)] += [sample for _, samples, _ in shared for sample in samples]
        by_part = [shard for shard, _, _ in shared]
        assert by_part == [shard for part in range(accumulate) for shard in range(5)][: len(by_part)] or accumulate == 2
    assert [sorted(epoch) for epoch in in_epochs] == [list(range(23))] * 2
    assert [number for number, _, _ in rows] == [0, 2, 3]
    assert len({sample for _, samples, _ in rows for sample in samples}) == 7 + 7 + 2


def test_what_is_shared_may_be_overwritten(standing_crew):
    [alone] = standing_crew(1, seam_scripts.overwrite, shards=4)
    assert standing_crew(2, seam_scripts.overwrite, shards=4) == [alone] * 2
    shared, updated = alone
    assert all(array == also for array, also in shared)
    assert len(set(shared)) > 4
    assert len(set(updated)) == 4


def test_a_batch_of_an_evaluation_has_the_number_of_its_samples_within_its_shards(standing_crew):
    told = [(0, 7, 7), (1, 7, 7), (2, 7, 7), (3, 2, 2)]
    outside = [place[:2] for place in told]
    mean = sum(number * weight for number, weight in outside) / 23
    for processes in (1, 2, 3):
        assert standing_crew(processes, seam_scripts.places, shards=4) == [(told, outside, mean)] * processes


def test_evaluations_side_by_side_share(standing_crew):
    [alone] = standing_crew(1, seam_scripts.share_side_by_side, shards=4)
    assert [(len(a), [number for number, _ in b]) for a, b in alone] == [(1, [number]) for number in range(4)]
    for processes in (2, 3):
        assert standing_crew(processes, seam_scripts.share_side_by_side, shards=4) == [alone] * processes


@pytest.mark.parametrize("processes", [1, 2])
def test_what_cannot_be_sent_is_refused_where_it_is_shared(standing_crew, processes):
    assert standing_crew(processes, seam_scripts.unsendable, shards=2) == [True] * processes


def test_calls_in_wrong_places_are_refused(standing_crew):
    by_rank = standing_crew(2, seam_scripts.refused, shards=4)
    expected = {
        "share outside",
        "shard outside",
        "shared inside",
        "shard in no loop",
        "share without share=True",
        "shared before",
        "share outside of an evaluation's",
        "shared inside an evaluation's",
        "shared afterwards",
    }
    for errors in by_rank:
        assert errors == dict.fromkeys(expected, "UsageError")


@pytest.mark.parametrize("processes", [1, 2])
def test_a_pass_ends_where_its_loop_has_counted_to(standing_crew, processes):
    told = [(4, None), (6, None), (10, None), "longer"]
    assert standing_crew(processes, seam_scripts.finish, shards=4) == [told] * processes


def test_ranks_may_differ_in_what_is_not_compared(standing_crew):
    assert standing_crew(2, seam_scripts.differ, False, shards=2) == [0, 0]
    assert standing_crew(2, seam_scripts.differ, True, shards=2) == [1, 1]


def test_of_what_is_not_compared_rank_0s_is_saved(standing_crew, tmp_path):
    settings = {"shards": 4, "run_dir": str(tmp_path / "run")}
    standing_crew(3, seam_scripts.save_different, 1, **settings)
    [(loaded, momentum)] = standing_crew(1, seam_scripts.save_different, 2, **settings)
    assert loaded == ([[0]], 0)
    assert standing_crew(1, seam_scripts.save_different, 2, shards=4) == [(None, momentum)]


@pytest.mark.parametrize("processes", [1, 2])
def test_an_object_that_is_prepared_again_is_the_same(standing_crew, processes):
    assert standing_crew(processes, seam_scripts.prepare_again, shards=2) == [([True] * 5, 1)] * processes


def test_ranks_that_prepare_different_objects_are_told_so(standing_crew):
    assert standing_crew(2, seam_scripts.prepare_otherwise, shards=2) == [True, True]
