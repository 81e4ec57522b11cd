"""The watch of conftest.py sees what it is there for."""

import ast
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

CONFTEST = Path(__file__).with_name("conftest.py")
SOURCE = CONFTEST.parents[1] / "src" / "lockstep"


def _pytest(tmp_path: Path, source: str, *options: str) -> subprocess.CompletedProcess[str]:
    """Run a file of tests under our conftest.py, in a pytest of its own."""
    (tmp_path / "conftest.py").write_text(CONFTEST.read_text().replace("GRACE_S = 10.0", "GRACE_S = 0.2"))
    shutil.copy(CONFTEST.with_name("kept_imports.py"), tmp_path)
    marks = "\n    ".join(["cuda: needs a GPU", "long: not in make test", "quick: in it", "longest: not in CI"])
    (tmp_path / "pytest.ini").write_text(f"[pytest]\ntestpaths = .\nmarkers =\n    {marks}\n")
    (tmp_path / "test_it.py").write_text(source)
    command = [sys.executable, "-m", "pytest", "-q", "-rs", "-p", "no:cacheprovider", *options]
    return subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=500)


LEAKS = {
    "environment variable LEFT: None -> '1'": "import os; os.environ['LEFT'] = '1'",
    "environment variable HOME": "import os; del os.environ['HOME']",
    "thread left": "import threading; threading.Thread(target=time.sleep, args=(2,), name='left').start()",
    "listening socket 127.0.0.1:": "import socket, builtins; builtins.left = socket.create_server(('127.0.0.1', 0))",
    "import time; time.sleep(9)": "import builtins; builtins.left = subprocess.Popen([sys.executable, '-c', SLEEP])",
    # Its parent is gone and it has a session of its own: a child of nobody here.
    "process": "subprocess.run(['sh', '-c', 'setsid sleep 9 >/dev/null 2>&1 &'])",
}


@pytest.mark.long
def test_a_leak_fails_the_test_that_made_it_and_is_cleared_for_the_next(tmp_path):
    source = "import subprocess, sys, time\nSLEEP = 'import time; time.sleep(9)'\n"
    for number, leak in enumerate(LEAKS.values()):
        source += f"def test_leaks_{number}():\n    {leak}\ndef test_is_not_blamed_{number}():\n    pass\n"
    run = _pytest(tmp_path, source)
    told = run.stdout.split("ERROR at teardown of test_leaks_")[1:]
    assert [text[0] for text in told] == [str(number) for number in range(len(LEAKS))], run.stdout
    for text, seen in zip(told, LEAKS, strict=True):
        assert "the test left behind:" in text
        assert seen in text
    assert f"{2 * len(LEAKS)} passed, {len(LEAKS)} errors" in run.stdout
    assert run.returncode == 1


MISSING = """
import pytest

@pytest.mark.cuda
def test_on_a_gpu():
    pass

def test_elsewhere():
    import sys
    assert "torch" not in sys.modules

def test_there(require):
    require("warp", None)

@pytest.mark.parametrize("named", ["", "mpi", "mpi,warp"])
def test_missing(require, monkeypatch, named):
    monkeypatch.setenv("LOCKSTEP_REQUIRE", named)
    require("warp", "this machine has no warp")
"""


@pytest.mark.long
def test_what_is_missing_skips_its_tests_with_a_reason_and_fails_where_it_is_required(tmp_path, monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    run = _pytest(tmp_path, MISSING, "--require-cuda")
    assert run.returncode == 1
    assert "torch sees no CUDA GPU" in run.stdout
    assert "no test marked cuda has run" in run.stdout
    assert "this machine has no warp" in run.stdout
    assert " test_missing[mpi,warp] " in run.stdout, run.stdout
    assert "1 failed, 2 passed, 3 skipped" in run.stdout


def test_no_two_helpers_of_tests_have_one_name():
    # pytest puts the directory of each test file on the path: the first that was imported would
    # serve for both.
    here = CONFTEST.parent
    directories = {path.parent for path in here.rglob("test_*.py")}
    helpers = sorted(
        path.name for each in directories for path in each.glob("*.py") if path.name not in ("conftest.py", "__init__.py")
    )
    assert [name for name in set(helpers) if helpers.count(name) > 1] == []


def private_uses(source: str) -> list[str]:
    """Attributes with an underscore of anything but ``self``, and such names that are imported from
    lockstep's modules. (``os`` has two public ones.)"""
    modules = {part for path in SOURCE.rglob("*") for part in (path.stem, path.name)}
    found = []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Attribute) and ast.unparse(node.value) not in ("self", "cls", "os"):
            names = [node.attr]
        elif isinstance(node, ast.ImportFrom):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.Constant) and str(node.value).startswith("lockstep._"):  # of a patch
            names = str(node.value).split(".")
        else:
            continue
        found += [name for name in names if name.startswith("_") and not name.endswith("__") and name not in modules]
    return found


def test_the_harness_uses_what_lockstep_has_without_an_underscore():
    harness = [path for path in CONFTEST.parent.glob("*.py") if not path.name.startswith("test_")]
    assert {path.name: found for path in harness if (found := private_uses(path.read_text()))} == {}


@pytest.mark.parametrize(
    "line",
    ["server._kept = 1", "from lockstep._launch.server import _kept", "patch('lockstep._launch.server._kept')"],
)
def test_a_private_use_is_seen(line):
    assert private_uses(f"{line}\nself._kept, lockstep._launch.server.kept, os._exit") == ["_kept"]


MARKED = """
import pytest

@pytest.fixture
def nursery():
    pass

def test_quick():
    pass

@pytest.mark.quick
def test_quick_with_processes(nursery):
    pass

def test_long(nursery):
    pass

@pytest.mark.longest
def test_longest():
    pass

@pytest.mark.longest
@pytest.mark.quick
def test_longest_case_of_a_quick_one():
    pass
"""


@pytest.mark.long
def test_quick_tests_start_no_processes_unless_they_are_marked_and_none_is_of_the_longest(tmp_path):
    run = _pytest(tmp_path, MARKED, "-m", "not long", "-vv")
    assert run.returncode == 0, run.stdout
    assert re.findall(r"::(\w+) PASSED", run.stdout) == ["test_quick", "test_quick_with_processes"]
