"""What is written for Horovod and what became of it print the same numbers, whoever starts them and
sums the gradients."""

import re
from pathlib import Path

import pytest
from horovod_helpers import horovod, under_horovodrun

__all__ = ["horovod"]  # a fixture
pytestmark = pytest.mark.timeout(150)
EXAMPLE = Path(__file__).parents[2] / "examples" / "horovod_migration.py"
EPOCHS = ("--epochs", "2")


def results(text):
    """Test loss and accuracy of each epoch."""
    found = re.findall(r"epoch (\d+): test loss ([\d.]+), accuracy ([\d.]+)%", text)
    return [(int(epoch), float(loss), float(accuracy)) for epoch, loss, accuracy in found]


def assert_same_results(one, other):
    assert [epoch for epoch, _, _ in one] == [1, 2]
    assert one[-1][2] > 75
    for mine, theirs in zip(one, other, strict=True):
        assert mine == pytest.approx(theirs, abs=0.3)  # a sample of 360 may be on the edge
        assert mine[1] == pytest.approx(theirs[1], abs=2e-4)


@pytest.fixture(scope="module")
def known():
    return {}


@pytest.fixture
def on_two(run_here, known):
    """The results of two processes without Horovod."""
    if not known:
        done = run_here(EXAMPLE, "--nproc-per-node", "2", args=EPOCHS)
        assert done.returncode == 0, done.stderr
        known["results"] = results(done.stdout)
    return known["results"]


@pytest.mark.long
def test_it_needs_no_horovod_and_gives_the_same_on_one_and_on_two_processes(run_here, on_two):
    alone = run_here(EXAMPLE, args=EPOCHS)
    assert alone.returncode == 0, alone.stderr
    assert_same_results(results(alone.stdout), on_two)


@pytest.mark.longest  # (In CI, tests/sync/test_horovod.py starts horovodrun.)
@pytest.mark.usefixtures("horovod")
def test_the_original_under_horovodrun_prints_the_same(tmp_path, on_two):
    original = under_horovodrun(tmp_path, EXAMPLE, "--original", *EPOCHS)
    assert original.returncode == 0, original.stdout
    assert_same_results(on_two, results(original.stdout))
    left = list(tmp_path.glob("runs/*"))  # of this test alone, or of on_two's run
    assert len(left) <= 1, "the original went through lockstep"


def test_lines_of_one_number_are_there_in_both():
    source = EXAMPLE.read_text()
    theirs, ours = (re.findall(r"# (\d)\b", part) for part in source.split("def train_with_lockstep")[0:2])
    assert theirs == ours == [str(number) for number in range(1, 9)]
