"""Images in a directory a class are trained on, and evaluated exactly, whatever the number of
processes."""

import importlib.util
import re

import on_disk
import pytest
import torch

import lockstep

pytestmark = pytest.mark.timeout(120)
CLASSES = ("n01440764", "n01443537", "n01484850", "n01491361", "n01494475", "n01496331")
SMALL = ("--image-size", "32", "--workers", "0", "--batch-size", "48", "--lr", "0.01")


@pytest.fixture
def folder(tmp_path):
    """Where images are looked for."""
    on_disk.write_images(tmp_path / "data" / "imagenet", CLASSES, per_class=(8, 3))
    return tmp_path / "data" / "imagenet"


@pytest.mark.long
def test_one_and_two_processes_give_the_same_answer_and_it_is_exact(folder, told_on_one_and_two, examples):
    told, run_dir = told_on_one_and_two("imagenet.py", "--arch", "resnet18", "--epochs", "1", "--channels-last", *SMALL)
    from imagenet import DEVIATION, MEAN, Images, make_model

    val = Images(folder / "val", CLASSES, 32, train=False)
    pixels = torch.stack([pixels for pixels, _ in val])
    labels = torch.tensor([label for _, label in val])
    assert labels.tolist() == [label for label in range(len(CLASSES)) for _ in range(3)]
    model = make_model("resnet18", len(CLASSES))
    model.load_state_dict(lockstep.load_weights(run_dir))
    with torch.no_grad():
        logits = model.eval()(((pixels - torch.tensor(MEAN)) / torch.tensor(DEVIATION)).permute(0, 3, 1, 2).contiguous())
    # 0: the right class is the likeliest
    places = (logits > logits[torch.arange(len(labels)), labels].unsqueeze(1)).sum(1)
    shares = [100 * (places < k).double().mean().item() for k in (1, 5)]
    found = re.fullmatch(r"epoch 1: loss ([\d.]+), top-1 ([\d.]+)%, top-5 ([\d.]+)%(, the best so far)?", told[-1])
    assert float(found[1]) == pytest.approx(torch.nn.functional.cross_entropy(logits, labels).item(), rel=1e-3, abs=1e-4)
    assert [float(found[2]), float(found[3])] == pytest.approx(shares, abs=1e-2)
    assert shares[0] < shares[1]


def test_it_says_what_is_missing(run_here, examples, tmp_path):
    done = run_here(examples / "imagenet.py", "--nproc-per-node", "2")
    assert done.returncode == 1
    for word in (str(tmp_path / "data" / "imagenet"), "no directories in train/", "image-net.org", "--data"):
        assert word in done.stderr


def test_an_image_that_cannot_be_read_is_named(folder, run_here, examples, tmp_path):
    path = folder / "train" / CLASSES[1] / f"{CLASSES[1]}_5.JPEG"
    path.write_bytes(b"no image")
    done = run_here(examples / "imagenet.py", args=("--arch", "resnet18", *SMALL))
    assert done.returncode == 1
    assert "DataError" in done.stderr
    assert str(path.relative_to(tmp_path)) in done.stderr


def test_other_networks_are_torchvisions(run_here, examples, folder):
    if importlib.util.find_spec("torchvision"):
        pytest.skip("torchvision is installed here")
    done = run_here(examples / "imagenet.py", args=("--arch", "vit_b_16", *SMALL))
    assert done.returncode == 1
    assert "--arch vit_b_16 comes from torchvision" in done.stderr
    assert "pip install torchvision" in done.stderr


@pytest.mark.parametrize(
    ("name", "classes", "small", "count"),
    [("resnet18", 1000, False, 11_689_512), ("resnet50", 1000, False, 25_557_032), ("resnet18", 10, True, 11_173_962)],
)
def test_residual_networks_have_the_published_number_of_parameters(examples, name, classes, small, count):
    from resnet import make_resnet

    model = make_resnet(name, classes, small_images=small)
    assert model(torch.ones(2, 3, 32, 32)).shape == (2, classes)
    assert sum(parameter.numel() for parameter in model.parameters()) == count
