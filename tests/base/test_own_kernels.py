"""Which packages bring GPU kernels that PyTorch's deterministic setting does not reach."""

import pytest

from lockstep._base.own_kernels import PACKAGES, packages_in, packages_installed

pytestmark = pytest.mark.timeout(20)


def test_packages_with_kernels_of_their_own_are_known_by_their_modules(tmp_path, monkeypatch):
    assert packages_in({"torch", "flash_attn.ops"}) == []
    assert packages_in({"torch", "xformers", "apex"}) == ["apex", "xformers"]
    assert packages_in(PACKAGES) == [*PACKAGES.values()]
    (tmp_path / "flash_attn.py").write_text("raise ImportError('this needs a GPU')")
    before = packages_installed()
    monkeypatch.syspath_prepend(tmp_path)
    assert {*packages_installed()} == {*before, "flash-attn"}
