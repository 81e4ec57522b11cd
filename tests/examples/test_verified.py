"""Every example that trains a model of its own kind passes `lockstep verify`, as its users are told."""

import importlib.util
import shutil

import pytest
from crew import warm_server
from warm import run_on

# (digits.py: tests/docs/test_docs.py, whose pages show the command. And CI verifies a script of a how-to page.)
SCRIPTS = ("streaming.py", "contrastive.py", "lora.py", "transformer.py", "gan.py", "fine_tuning.py")
BRIEFLY = ("--world-sizes", "1,2", "--launchers", "local", "--no-resume")


@pytest.mark.longest
@pytest.mark.timeout(180)
@pytest.mark.parametrize("script", SCRIPTS)
def test_an_example_passes_verify(script, examples, tmp_path, require, warm_trials, outlives_tests, request):
    if script == "fine_tuning.py":
        missing = importlib.util.find_spec("transformers") is None
        require("transformers", "transformers is not installed (pip install transformers)" if missing else None)
    shutil.copy(examples / script, tmp_path)
    words = (*BRIEFLY, script, "--epochs", "1")
    done = run_on(warm_server(request, outlives_tests), tmp_path, words, verb="verify")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "PASS  2 settings" in done.stdout
