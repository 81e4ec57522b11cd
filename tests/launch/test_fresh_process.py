"""Which imported modules a worker forgets, because the script's directory has others of that
name."""

import sys
from types import ModuleType

import pytest

from lockstep._launch.fresh_process import forget_shadowed

pytestmark = pytest.mark.timeout(20)


def test_a_package_is_forgotten_with_its_submodules_and_none_whose_name_only_begins_like_it(tmp_path, monkeypatch):
    package = tmp_path / "shadowed"
    package.mkdir()
    (package / "__init__.py").write_text("")
    known = ("shadowed", "shadowed.inner", "shadowed.inner.most", "shadowed_not", "shadowed_not.inner")
    for name in known:
        monkeypatch.setitem(sys.modules, name, ModuleType(name))
    forget_shadowed(str(tmp_path))
    assert [name for name in known if name in sys.modules] == ["shadowed_not", "shadowed_not.inner"]
