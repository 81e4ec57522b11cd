"""What a GPU's driver and libraries say of their versions, as far as a machine without a GPU can
show."""

import pytest

from lockstep._world.libraries import cublas_version, driver_version

pytestmark = pytest.mark.timeout(20)

# as NVIDIA's two kernel modules write it
CLOSED = "NVRM version: NVIDIA UNIX x86_64 Kernel Module  535.183.01  Sun May 12 19:39:15 UTC 2024\nGCC version:  12.3.0\n"
OPEN = "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  550.54.14  Release Build  (dvs-builder@U16)\n"


@pytest.mark.parametrize(("text", "version"), [(CLOSED, "535.183.01"), (OPEN, "550.54.14"), ("", None)])
def test_the_driver_is_read_from_the_kernel(tmp_path, text, version):
    (tmp_path / "version").write_text(text)
    assert driver_version(tmp_path / "version") == version
    assert driver_version(tmp_path / "missing") is None


def test_a_library_that_is_not_here_has_no_version():
    assert cublas_version("12.6") is None
