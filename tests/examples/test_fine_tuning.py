"""A model of transformers, with batches that are dicts, learns the same on one process and on two, and is saved."""

import importlib.util
import re

import pytest

pytestmark = [pytest.mark.longest, pytest.mark.timeout(120)]


def test_one_and_two_processes_learn_the_same_and_save_a_model_of_transformers(told_on_one_and_two, require):
    missing = importlib.util.find_spec("transformers") is None
    require("transformers", "transformers is not installed (pip install transformers)" if missing else None)
    told, run_dir = told_on_one_and_two("fine_tuning.py", "--epochs", "1")
    assert float(re.search(r"accuracy ([\d.]+)%", told[-1])[1]) > 50  # of three modules
    saved = run_dir / "fine-tuned"
    assert {"config.json", "model.safetensors"} <= {file.name for file in saved.iterdir()}
