"""Times, sizes and GPUs mean what sbatch takes them for."""

import math

import pytest

from lockstep.tools.slurm.units import gpus, megabytes, minutes

pytestmark = pytest.mark.timeout(20)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("90", 90),
        ("1:30", 1.5),
        ("1:30:00", 90),
        ("2-12", 60 * 60),
        ("2-12:30", 60 * 60 + 30),
        ("2-12:30:30", 60 * 60 + 30.5),
        ("infinite", math.inf),
        ("UNLIMITED", math.inf),
        ("0", math.inf),
        ("0:00", math.inf),
    ],
)
def test_a_time(text, expected):
    assert minutes(text) == expected


@pytest.mark.parametrize(
    ("text", "expected"), [("64000", 64000), ("64G", 65536), ("1T", 2**20), ("512K", 0.5), ("2gb", 2048), ("0", 0)]
)
def test_a_size(text, expected):
    assert megabytes(text) == expected


@pytest.mark.parametrize(
    ("text", "expected"), [("4", (None, 4)), ("a100:2", ("a100", 2)), ("nvidia_a100-sxm4:8", ("nvidia_a100-sxm4", 8))]
)
def test_gpus(text, expected):
    assert gpus(text) == expected


@pytest.mark.parametrize(
    ("read", "text"),
    [
        *((minutes, text) for text in ("", "a", "1:2:3:4", "-1", "1-", "-5:00", "1.5", "2h")),
        *((megabytes, text) for text in ("", "G", "-1", "1.5G", "64 G", "64X")),
        *((gpus, text) for text in ("", "0", "a100", "a100:", ":4", "a:b:1", "-2")),
    ],
)
def test_what_is_none_is_refused(read, text):
    with pytest.raises(ValueError, match="is not a "):
        read(text)
