"""Two models with an optimizer each train in steps of two phases, to the same bits on one process
and on two."""

import numpy as np
import pytest
from PIL import Image

pytestmark = pytest.mark.timeout(120)


def paintings(path):
    """64 of them, as 64 numbers from 0 to 1 each, out of the picture."""
    with Image.open(path) as image:
        assert image.size == (320, 320)
        pixels = np.array(image)[::4, ::4].reshape(8, 10, 8, 10)[:, 1:-1, :, 1:-1]
    return pixels.transpose(0, 2, 1, 3).reshape(64, 64) / 255


@pytest.mark.long
def test_one_and_two_processes_paint_the_same(told_on_one_and_two, tmp_path):
    told, run_dir = told_on_one_and_two("gan.py", "--epochs", "1", "--batch-size", "200")
    assert len(told) == 1
    assert all((checkpoint / "model-2.safetensors").exists() for checkpoint in run_dir.glob("checkpoints/step-*"))
    assert np.array_equal(paintings(tmp_path / "on-1" / "gan.png"), paintings(run_dir / "gan.png"))
