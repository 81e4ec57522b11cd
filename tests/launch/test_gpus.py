"""How many GPUs workers would see: NVIDIA's, and AMD's, which are CUDA's to PyTorch."""

import pytest

from lockstep.launch.gpus import built_for, num_present_to_rocm, num_visible_to


@pytest.mark.parametrize(
    ("version", "expected"),
    [
        ("cuda: Optional[str] = '12.8'\nhip: Optional[str] = None\n", ("cuda", "12.8")),
        ("cuda: Optional[str] = None\nhip: Optional[str] = '6.4.43482'\n", ("hip", "6.4.43482")),
        ("cuda: Optional[str] = None\nhip: Optional[str] = None\n", (None, "")),
    ],
)
def test_what_a_torch_was_built_for_is_in_its_version_file(version, expected):
    assert built_for(version) == expected


def test_gpus_of_rocm_are_the_nodes_with_an_id(tmp_path):
    for number, gpu_id in enumerate(("0", "51110", "3614")):
        (tmp_path / str(number)).mkdir()
        (tmp_path / str(number) / "gpu_id").write_text(f"{gpu_id}\n")
    (tmp_path / "3").mkdir()  # one that a container does not have
    assert num_present_to_rocm(tmp_path) == 2
    assert num_present_to_rocm(tmp_path / "none") == 0


@pytest.mark.parametrize(
    ("environ", "expected"),
    [
        ({}, 4),
        ({"ROCR_VISIBLE_DEVICES": "0,2"}, 2),
        ({"HIP_VISIBLE_DEVICES": "3"}, 1),
        ({"CUDA_VISIBLE_DEVICES": "0,1,2"}, 3),
        ({"HIP_VISIBLE_DEVICES": "1,2", "CUDA_VISIBLE_DEVICES": "0"}, 2),
        ({"ROCR_VISIBLE_DEVICES": "1,3", "HIP_VISIBLE_DEVICES": "0,1,2"}, 2),
        ({"HIP_VISIBLE_DEVICES": ""}, 0),
    ],
)
def test_variables_hide_gpus_of_rocm_one_after_the_other(environ, expected):
    assert num_visible_to("hip", 4, environ) == expected
