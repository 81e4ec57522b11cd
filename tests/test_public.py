"""What is public: names in ``__all__`` of modules without an underscore in their path, all of them
on one page.

Whatever else lockstep has is private, is marked by an underscore, and is imported by no page, no
example and no script that users are given.
"""

import ast
import importlib
import re
import textwrap
from pathlib import Path

import pytest

import lockstep

ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "src"
PAGE = (ROOT / "docs" / "api.md").read_text()
# Names whose entry on the page is where they are defined: what runs, not what type checkers see.
DEFINED = re.compile(r"::: (lockstep\.[\w.]+)\n    options: \{heading: (lockstep\.[\w.]+),")
# A block with a path below src/ is a file of lockstep itself.
BLOCK = re.compile(r"^ *```python(?! src/)[^\n]*\n(.*?)^ *```", flags=re.MULTILINE | re.DOTALL)


def public_modules():
    for path in sorted(SOURCE.rglob("lockstep/**/*.py")):
        parts = path.relative_to(SOURCE).with_suffix("").parts
        name = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
        if not any(part.startswith("_") for part in name.split(".")):
            yield name, path


def names_of(path):
    """The names in ``__all__``, without an import: an integration needs its library."""
    stub = path.with_suffix(".pyi")
    if stub.exists():
        return re.findall(r"^from \S+ import (\w+) as \1$", stub.read_text(), flags=re.MULTILINE)
    for node in ast.parse(path.read_text()).body:
        targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
        if any(isinstance(target, ast.Name) and target.id == "__all__" for target in targets):
            return ast.literal_eval(node.value)
    return None


def private_imports(code):
    """The private modules and names of lockstep that this code imports."""
    for node in ast.walk(ast.parse(code)):
        if isinstance(node, ast.Import):
            paths = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            paths = [f"{node.module}.{alias.name}" for alias in node.names]
        else:
            continue
        yield from (path for path in paths if re.match(r"lockstep\.(\w+\.)*_(?!_)", path))


MODULES = dict(public_modules())


def test_the_public_modules_are_these():
    assert set(MODULES) == {
        "lockstep",
        "lockstep.integrations",
        "lockstep.integrations.accelerate",
        "lockstep.integrations.lightning",
        "lockstep.integrations.transformers",
        "lockstep.integrations.trl",
        "lockstep.observers",
        "lockstep.options",
        "lockstep.testing",
    }


@pytest.mark.parametrize("module", MODULES)
def test_a_public_module_lists_its_names_and_is_on_the_page(module):
    names = names_of(MODULES[module])
    assert names is not None, f"{module} has no __all__"
    assert len(names) == len(set(names))
    head, _, last = module.rpartition(".")
    assert f"`{module}`" in PAGE or f"`.{last}`" in PAGE.partition(f"`{head}`")[2].partition("\n")[0]


@pytest.mark.parametrize("module", MODULES)
def test_every_public_name_is_on_the_page_once(module):
    page = DEFINED.sub(lambda match: f"::: {match[2]}\n", PAGE)
    entries = re.findall(r"^(?:::: |\| `)(lockstep\.[\w.]+)", page, flags=re.MULTILINE)
    wanted = [f"{module}.{name}" for name in names_of(MODULES[module])]
    assert [name for name in wanted if entries.count(name) != 1] == []
    below = {name for name in entries if name.rpartition(".")[0] == module} - set(MODULES)
    assert below <= set(wanted), f"on the page, but not in __all__: {below - set(wanted)}"


@pytest.mark.parametrize("module", ["lockstep", "lockstep.testing", "lockstep.observers", "lockstep.options"])
def test_every_public_name_can_be_imported(module):
    imported = importlib.import_module(module)
    assert sorted(imported.__all__) == sorted(names_of(MODULES[module]))
    assert [name for name in imported.__all__ if getattr(imported, name, None) is None] == []


def test_a_name_that_is_not_there_is_an_error():
    with pytest.raises(AttributeError, match="nothing_like_this"):
        _ = lockstep.nothing_like_this


def scripts():
    yield from ((path, path.read_text()) for path in sorted((ROOT / "examples").rglob("*.py")))
    template = SOURCE / "lockstep" / "_cli" / "template"
    yield from ((path, path.read_text()) for path in sorted(template.rglob("*.py")))
    for path in [ROOT / "README.md", ROOT / "llms.txt", *sorted((ROOT / "docs").rglob("*.md"))]:
        yield from ((path, textwrap.dedent(block)) for block in BLOCK.findall(path.read_text()))


def test_what_users_are_shown_imports_nothing_private():
    found, seen = [], 0
    for path, code in scripts():
        try:
            found += [f"{path.relative_to(ROOT)}: {name}" for name in private_imports(code)]
            seen += 1
        except SyntaxError:  # a few lines of something larger
            assert not re.search(r"(from|import) lockstep\.(\w+\.)*_", code), path
    assert found == []
    assert seen > 50


@pytest.mark.parametrize(
    ("code", "found"),
    [
        ("from lockstep._base.option import option", ["lockstep._base.option.option"]),
        ("from lockstep.testing import _same", ["lockstep.testing._same"]),
        ("def f():\n    import lockstep._joining.team", ["lockstep._joining.team"]),
        ("from lockstep import Team, __version__\nfrom lockstep.options import option\nimport lockstep", []),
    ],
)
def test_a_private_import_is_found(code, found):
    assert list(private_imports(code)) == found
