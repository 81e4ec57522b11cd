"""Who writes in place to the samples of the data set is told so, and who writes to copies is
not."""

import pytest
import sample_scripts

pytestmark = pytest.mark.timeout(90)


@pytest.mark.parametrize("shards", [1, 2])
def test_each_way_of_writing_to_samples_of_the_data_set_is_said_once(crew, shards):
    [told] = crew(1, sample_scripts.train_all, list(sample_scripts.FOUND), shards=shards)
    assert {name: lines for name, lines in told.items() if len(lines) != 1} == {}
    for name, [line] in told.items():
        place = "the collate_fn" if "collate_fn" in name else "the loop"
        assert line.startswith(f"WARNING: {place}"), line
        assert f"{sample_scripts.__file__}:" in line, line


@pytest.mark.parametrize("shards", [1, 2])
def test_writing_to_copies_is_left_in_peace(crew, shards):
    [told] = crew(1, sample_scripts.train_all, list(sample_scripts.NOT_FOUND), shards=shards)
    assert {name: lines for name, lines in told.items() if lines} == {}


def test_of_several_ranks_one_speaks(crew):
    first, second = crew(2, sample_scripts.train_all, ["imul of a tensor", "collate_fn assigns", "stacked"], shards=2)
    assert [len(first[name]) for name in first] == [1, 1, 0]
    assert [len(second[name]) for name in second] == [0, 0, 0]


def test_of_several_workers_one_speaks(crew, capfd):
    crew(2, sample_scripts.train_with_workers, 2, shards=4)
    [line] = [line for line in capfd.readouterr().err.splitlines() if "WARNING: " in line]
    assert "the collate_fn augmented at " in line
