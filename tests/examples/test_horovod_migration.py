"""What is written for Horovod and what became of it print the same numbers, whoever starts them and sums the gradients."""

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


@pytest.mark.long
def test_it_needs_no_horovod_and_gives_the_same_on_one_and_on_two_processes(run_here):
    told = [run_here(EXAMPLE, "--nproc-per-node", nproc, args=EPOCHS) for nproc in ("1", "2")]
    assert [done.returncode for done in told] == [0, 0], told[0].stderr + told[1].stderr
    assert_same_results(*(results(done.stdout) for done in told))


@pytest.mark.long
@pytest.mark.usefixtures("horovod")
def test_horovod_can_sum_its_gradients(run_here, run_script):
    plain = run_here(EXAMPLE, "--nproc-per-node", "2", args=EPOCHS)
    done = run_script(EXAMPLE, "--nproc-per-node", "2", "--strategy", "horovod", args=EPOCHS, timeout=100)
    assert done.returncode == 0, done.stderr
    assert_same_results(results(plain.stdout), results(done.stdout))


@pytest.mark.long
@pytest.mark.usefixtures("horovod")
def test_the_original_under_horovodrun_prints_the_same(tmp_path, run_here):
    ours = run_here(EXAMPLE, "--nproc-per-node", "2", args=EPOCHS)
    original = under_horovodrun(tmp_path, EXAMPLE, "--original", *EPOCHS)
    assert original.returncode == 0, original.stdout
    assert_same_results(results(ours.stdout), results(original.stdout))
    assert not (tmp_path / "runs" / "horovod_migration-2").exists(), "the original went through lockstep"


def test_lines_of_one_number_are_there_in_both():
    source = EXAMPLE.read_text()
    theirs, ours = (re.findall(r"# (\d)\b", part) for part in source.split("def train_with_lockstep")[0:2])
    assert theirs == ours == [str(number) for number in range(1, 9)]
