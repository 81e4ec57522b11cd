"""The notebook runs from top to bottom in a kernel of Jupyter."""

import importlib.util
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[2] / "examples"

pytestmark = [pytest.mark.long, pytest.mark.timeout(200)]


@pytest.fixture
def run_cells(require, tmp_path, monkeypatch):
    """``run_cells(number)``: the notebook, after so many of its cells were run (negative: all but so many)."""
    missing = [name for name in ("nbclient", "ipykernel") if importlib.util.find_spec(name) is None]
    require("jupyter", f"{' and '.join(missing)} not installed" if missing else None)
    import nbformat
    from nbclient import NotebookClient

    monkeypatch.setenv("OMP_NUM_THREADS", "1")

    def run(number):
        notebook = nbformat.read(EXAMPLES / "notebook.ipynb", as_version=4)
        notebook.cells = notebook.cells[:number]
        resources = {"metadata": {"path": str(tmp_path)}}
        NotebookClient(notebook, timeout=900, kernel_name="python3", resources=resources).execute()
        return notebook

    return run


@pytest.mark.longest
def test_one_process_and_two_are_launched_from_a_kernel_and_learn_the_same(run_cells):
    run_cells(-2)  # it asserts that itself


@pytest.mark.longest
def test_it_ends_with_pass(run_cells):
    notebook = run_cells(None)
    assert "\nPASS" in "".join(output.get("text", "") for output in notebook.cells[-1].outputs)
