"""Images in a directory a class are trained on, and evaluated exactly, whatever the number of processes."""

import importlib.util
import re
import shutil

import numpy as np
import on_disk
import pytest
import torch
from PIL import Image

import lockstep

pytestmark = pytest.mark.timeout(120)
CLASSES = ("n01440764", "n01443537", "n01484850", "n01491361", "n01494475", "n01496331")
SMALL = ("--image-size", "32", "--workers", "0", "--batch-size", "24", "--lr", "0.01")


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
    places = (logits > logits[torch.arange(len(labels)), labels].unsqueeze(1)).sum(1)  # 0: the right class is the likeliest
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


def test_it_names_a_class_without_directory_for_evaluation(folder, run_here, examples):
    shutil.rmtree(folder / "val" / CLASSES[2])
    done = run_here(examples / "imagenet.py", args=SMALL)
    assert done.returncode == 1
    assert f"val/ lacks {CLASSES[2]}" in done.stderr


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


def test_parts_of_an_image_are_drawn_in_it_and_of_all_sizes(examples):
    from imagenet import middle, random_part

    shares = []
    for width, height in ((500, 375), (64, 64), (30, 400)) * 200:
        left, upper, right, lower = random_part(width, height)
        assert 0 <= left < right <= width
        assert 0 <= upper < lower <= height
        assert (right - left) / (lower - upper) == pytest.approx(1, abs=0.334)
        shares.append((right - left) * (lower - upper) / (width * height))
    assert min(shares) < 0.15
    assert max(shares) > 0.9
    assert middle(100, 80) == (15, 5, 85, 75)


def test_a_grey_image_has_three_channels_and_is_mirrored_half_of_the_time(examples, tmp_path):
    from imagenet import Images

    (tmp_path / "cat").mkdir()
    ramp = np.tile(np.linspace(0, 255, 64, dtype=np.uint8), (64, 1))
    Image.fromarray(ramp).save(tmp_path / "cat" / "one.jpg")
    (tmp_path / "cat" / "list.txt").write_text("no image")
    train, val = (Images(tmp_path, ["cat"], 16, train=train) for train in (True, False))
    assert len(train) == len(val) == 1
    pixels, label = val[0]
    assert (pixels.shape, pixels.dtype, label) == ((16, 16, 3), torch.uint8, 0)
    assert pixels[8, 0, 0] < pixels[8, -1, 0]
    mirrored = [(image[8, 0, 0] > image[8, -1, 0]).item() for image, _ in (train[0] for _ in range(60))]
    assert 10 < sum(mirrored) < 50


@pytest.mark.parametrize(
    ("name", "classes", "small", "count"),
    [("resnet18", 1000, False, 11_689_512), ("resnet50", 1000, False, 25_557_032), ("resnet18", 10, True, 11_173_962)],
)
def test_residual_networks_have_the_published_number_of_parameters(examples, name, classes, small, count):
    from resnet import make_resnet

    model = make_resnet(name, classes, small_images=small)
    assert model(torch.ones(2, 3, 32, 32)).shape == (2, classes)
    assert sum(parameter.numel() for parameter in model.parameters()) == count
