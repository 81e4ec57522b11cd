"""Every example that trains a model of its own kind passes `lockstep verify`, as its users are told."""

import importlib.util
import shutil
import subprocess
import sys

import pytest

# (digits.py: tests/docs/test_docs.py, whose pages show the command.)
SCRIPTS = ("lora.py", "streaming.py", "contrastive.py")
LONGEST = ("transformer.py", "gan.py", "fine_tuning.py")
BRIEFLY = ("--world-sizes", "1,2", "--launchers", "local", "--no-resume")


@pytest.mark.long
@pytest.mark.timeout(180)
@pytest.mark.parametrize("script", [*SCRIPTS, *(pytest.param(script, marks=pytest.mark.longest) for script in LONGEST)])
def test_an_example_passes_verify(script, examples, tmp_path, require):
    if script == "fine_tuning.py":
        missing = importlib.util.find_spec("transformers") is None
        require("transformers", "transformers is not installed (pip install transformers)" if missing else None)
    shutil.copy(examples / script, tmp_path)
    command = (sys.executable, "-m", "lockstep", "verify", *BRIEFLY, script, "--epochs", "1")
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=850)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "PASS  2 settings" in done.stdout
