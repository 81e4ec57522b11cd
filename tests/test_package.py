"""What is installed: its version, its command, and the files of its wheel."""

import importlib.metadata
import pickle
import re
import shutil
import subprocess
import sys
import traceback
import zipfile
from pathlib import Path

import pytest

import lockstep
from lockstep._base import errors

ROOT = Path(__file__).parents[1]


def test_the_version_is_the_one_that_is_installed_and_written_nowhere_else():
    assert lockstep.__version__ == importlib.metadata.version("torch-lockstep")
    assert [*ROOT.glob("src/**/*.py")]
    assert not [path for path in ROOT.glob("src/**/*.py") if f'"{lockstep.__version__}"' in path.read_text()]


def test_the_version_comes_without_torch():
    program = "import sys, lockstep; print(lockstep.__version__); sys.exit('torch' in sys.modules)"
    run = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=100)
    assert (run.returncode, run.stdout.strip()) == (0, lockstep.__version__)


def test_public_errors_are_printed_and_pickled_by_the_name_that_users_import():
    public = {name: kind for name, kind in vars(errors).items() if name in lockstep.__all__}
    assert {"LockstepError", "DataError", "LaunchError"} <= public.keys()
    for name, kind in public.items():
        assert traceback.format_exception_only(kind("why")) == [f"lockstep.{name}: why\n"]
        assert type(pickle.loads(pickle.dumps(kind("why")))) is kind


def test_in_a_checkout_that_was_not_installed_the_version_is_unknown(tmp_path):
    shutil.copytree(Path(lockstep.__file__).parent, tmp_path / "lockstep", ignore=shutil.ignore_patterns("__pycache__"))
    program = f"import sys; sys.path[:0] = [{str(tmp_path)!r}]; import lockstep; print(lockstep.__version__)"
    run = subprocess.run([sys.executable, "-I", "-S", "-c", program], capture_output=True, text=True, timeout=100)
    assert (run.returncode, run.stdout) == (0, "unknown\n"), run.stderr


def test_help_comes_without_torch():
    program = """
import sys
from lockstep._cli.main import main
sys.argv = ["lockstep", *sys.argv[1:]]
try:
    main()
except SystemExit as end:
    assert not end.code, end.code
assert "torch" not in sys.modules, "torch was imported"
"""
    run = subprocess.run([sys.executable, "-c", program, "--help"], capture_output=True, text=True, timeout=100)
    assert run.returncode == 0, run.stderr
    for verb in ("run", "compare"):
        assert verb in run.stdout


def test_the_versions_that_are_promised_are_the_same_everywhere():
    def read(path, pattern):
        return re.findall(pattern, (ROOT / path).read_text(), flags=re.MULTILINE)

    [oldest] = read("pyproject.toml", r'^requires-python = ">=(3\.\d+)"$')
    [oldest_torch] = read("pyproject.toml", r'"torch>=(\d+\.\d+)"')
    [pinned_torch] = read("constraints.txt", r"^torch==(.*)$")
    classified = read("pyproject.toml", r":: Python :: (3\.\d+)")
    assert classified[0] == oldest
    assert read("Makefile", r"^PYTHONS \?= (3\.\d+) (3\.\d+)#") == [(classified[0], classified[-1])]
    assert read("docs/internals/testing.md", r"for Python (3\.\d+) to (3\.\d+)") == [(classified[0], classified[-1])]
    for page in ("README.md", "CONTRIBUTING.md", "docs/tutorial.md"):
        assert set(read(page, r"Python\s+(3\.\d+)\s+or\s+later")) == {oldest}, page
    for page in ("README.md", "docs/tutorial.md"):
        assert set(read(page, r"torch\s+(\d+\.\d+)\s+or\s+later")) == {oldest_torch}, page
    tried = read(".github/workflows/ci.yml", r'\{python: "(3\.\d+)", torch: "([\d.]+)"\}')
    assert {(oldest, f"{oldest_torch}.0"), (classified[-1], pinned_torch)} <= set(tried)
    assert {python for python, _ in tried} <= set(classified)


@pytest.mark.parametrize(
    "command",
    [[Path(sys.executable).with_name("lockstep")], [sys.executable, "-m", "lockstep._cli.main"]],
    ids=["lockstep", "python -m"],
)
def test_the_command_is_installed(command):
    run = subprocess.run([*command, "--help"], capture_output=True, text=True, timeout=100)
    assert run.returncode == 0, run.stderr
    assert "run" in run.stdout


@pytest.mark.long
def test_the_wheel_holds_every_module_its_types_and_the_licence(tmp_path):
    # From a copy, without the network: setuptools comes with torch.
    copy = tmp_path / "copy"
    copy.mkdir()
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, copy)
    shutil.copytree(ROOT / "src" / "lockstep", copy / "src" / "lockstep", ignore=shutil.ignore_patterns("__pycache__"))
    command = [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", str(tmp_path), str(copy)]
    run = subprocess.run(command, capture_output=True, text=True, timeout=100)
    assert run.returncode == 0, run.stdout + run.stderr
    (wheel,) = tmp_path.glob("*.whl")
    packed = {name for name in zipfile.ZipFile(wheel).namelist() if name.startswith("lockstep/")}
    source = copy / "src"
    written = {str(path.relative_to(source)) for path in source.rglob("lockstep/**/*") if path.is_file()}
    assert packed == written
    assert "lockstep/py.typed" in packed
    assert any(name.endswith("licenses/LICENSE") for name in zipfile.ZipFile(wheel).namelist())
