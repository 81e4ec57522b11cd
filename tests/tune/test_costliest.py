"""The function in which a loader's time goes is named, and the sample that takes far longer than others."""

import cProfile
import importlib.util
import time
from types import SimpleNamespace

import pytest

from lockstep.tools.tune.costliest import find_costliest, heaviest

pytestmark = pytest.mark.timeout(20)

SOURCE = """
class Blur:
    def __call__(self, image):
        return sum(number * number for number in range(3000)) and image

class Flip:
    def __call__(self, image):
        return image

class Images:
    transforms = [Flip(), Blur()]
    def __getitem__(self, index):
        for transform in self.transforms:
            index = transform(index)
        return index
"""


@pytest.fixture
def images(tmp_path):
    (tmp_path / "images.py").write_text(SOURCE)
    spec = importlib.util.spec_from_file_location("images", tmp_path / "images.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.Images()


def test_calls_are_followed_to_the_transform_that_takes_most(images):
    profile = cProfile.Profile()
    profile.enable()
    for index in range(50):
        images[index]
    profile.disable()
    profile.create_stats()
    culprit = heaviest(profile.stats)
    assert culprit["function"] in ("Blur.__call__", "Blur.<genexpr>"), culprit
    assert culprit["file"].endswith("images.py")
    assert culprit["line"] in (3, 4)
    assert culprit["share"] > 0.5


def test_a_profile_without_anybodys_function_names_none():
    assert heaviest({("~", 0, "<built-in method time.sleep>"): (1, 1, 1.0, 1.0, {})}) == {}


def test_a_sample_that_takes_far_longer_is_named_and_one_hiccup_is_not():
    class Uneven:
        hiccups = 1

        def __getitem__(self, index):
            if index == 7:
                time.sleep(0.1)
            if index == 3 and self.hiccups:
                self.hiccups = 0
                time.sleep(0.3)
            time.sleep(0.005)
            return index

    def batches(rows):
        plan = SimpleNamespace(micro_steps=[SimpleNamespace(samples=rows)])
        return lambda: (plan, [])

    found = find_costliest(batches(list(range(8))), SimpleNamespace(dataset=Uneven()), 1.0)
    assert found["sample"] == "7"
    found = find_costliest(batches(list(range(6))), SimpleNamespace(dataset=Uneven()), 1.0)
    assert "sample" not in found
