"""The notebook runs from top to bottom in a kernel of Jupyter."""

import importlib.util
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[2] / "examples"

pytestmark = [pytest.mark.long, pytest.mark.timeout(200)]


@pytest.mark.longest
def test_one_process_and_two_learn_the_same_and_the_last_cell_says_pass(require, tmp_path, monkeypatch):
    missing = [name for name in ("nbclient", "ipykernel") if importlib.util.find_spec(name) is None]
    require("jupyter", f"{' and '.join(missing)} not installed" if missing else None)
    import nbformat
    from nbclient import NotebookClient

    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    notebook = nbformat.read(EXAMPLES / "notebook.ipynb", as_version=4)
    resources = {"metadata": {"path": str(tmp_path)}}
    # a cell asserts the first
    NotebookClient(notebook, timeout=900, kernel_name="python3", resources=resources).execute()
    assert "\nPASS" in "".join(output.get("text", "") for output in notebook.cells[-1].outputs)
