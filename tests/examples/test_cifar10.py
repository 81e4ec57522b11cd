"""CIFAR-10 is read from its standard archive, safely, and the answer does not depend on the number
of processes."""

import os
import pickle
import re
import tarfile

import on_disk
import pytest
import torch

import lockstep

pytestmark = pytest.mark.timeout(120)


@pytest.fixture
def archive(tmp_path):
    """Where the archive is looked for."""
    on_disk.write_cifar(tmp_path / "data")
    return tmp_path / "data"


def weights_of(model, run_dir):
    model.load_state_dict(lockstep.load_weights(run_dir))
    return model.eval()


@pytest.mark.long
def test_one_and_two_processes_give_the_same_answer_and_it_is_exact(archive, told_on_one_and_two, examples):
    told, run_dir = told_on_one_and_two("cifar10.py", "--epochs", "2", "--batch-size", "32")
    assert sorted(path.name for path in archive.iterdir()) == ["cifar-10-batches-py", "cifar-10-python.tar.gz"]
    import cifar10

    with tarfile.open(archive / cifar10.ARCHIVE) as files:
        test = pickle.load(files.extractfile("cifar-10-batches-py/test_batch"), encoding="bytes")
    images = torch.from_numpy(test[b"data"].copy()).reshape(-1, 3, 32, 32) / 127.5 - 1
    labels = torch.tensor(test[b"labels"])
    with torch.no_grad():
        logits = weights_of(cifar10.make_cnn(), run_dir)(images)
    loss, accuracy = torch.nn.functional.cross_entropy(logits, labels), (logits.argmax(1) == labels).double().mean()
    [(loss_told, accuracy_told)] = re.findall(r"epoch 2: test loss ([\d.]+), accuracy ([\d.]+)%", told[-1])
    assert float(loss_told) == pytest.approx(loss.item(), abs=1e-4)
    assert float(accuracy_told) == pytest.approx(100 * accuracy.item(), abs=1e-2)


@pytest.mark.parametrize("nproc", ["1", "2"])
def test_it_says_where_the_archive_belongs_if_there_is_none(run_here, examples, tmp_path, nproc):
    done = run_here(examples / "cifar10.py", "--nproc-per-node", nproc)
    assert done.returncode == 1
    for word in (str(tmp_path / "data"), "cifar-10-python.tar.gz", "https://www.cs.toronto.edu", "MD5 c58f3010", "--data"):
        assert word in done.stderr


def test_a_damaged_archive_leaves_nothing_half_unpacked(archive, run_here, examples):
    path = archive / "cifar-10-python.tar.gz"
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
    done = run_here(examples / "cifar10.py")
    assert done.returncode == 1
    assert "cannot be unpacked" in done.stderr
    assert "MD5 should be c58f3010" in done.stderr
    assert list(archive.iterdir()) == [path]


def test_a_batch_that_names_a_function_is_refused(examples, tmp_path):
    from cifar10 import BatchReader

    path = tmp_path / "batch"
    path.write_bytes(pickle.dumps({b"data": os.getcwd}))
    with path.open("rb") as file, pytest.raises(pickle.UnpicklingError, match=r"posix\.getcwd"):
        BatchReader(file, encoding="bytes").load()


@pytest.mark.longest
def test_the_small_network_learns(archive, run_here, examples):
    options = ("--threads", "1", "--device", "cpu")
    done = run_here(examples / "cifar10.py", *options, args=("--epochs", "25", "--batch-size", "16"))
    assert done.returncode == 0, done.stderr
    accuracies = [float(found) for found in re.findall(r"accuracy ([\d.]+)%", done.stdout)]
    assert accuracies[-1] > 40  # guessing: 10
    best = [float(found) for found in re.findall(r"accuracy ([\d.]+)%, the best so far", done.stdout)]
    assert best == sorted(set(best))
    assert best[-1] == max(accuracies)
