"""The Dockerfile passes its linter, and installs the torch of the constraints. (Nothing here builds
it: there is no Docker.)"""

import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_a_linter_finds_nothing(require):
    linter = Path(sys.executable).with_name("hadolint")
    require("hadolint", None if linter.exists() else "hadolint is not installed")
    done = subprocess.run([str(linter), "Dockerfile"], cwd=ROOT, capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout + done.stderr) == (0, "")


def test_it_installs_the_torch_of_the_constraints():
    [torch] = re.findall(r"^ARG TORCH=(.*)$", (ROOT / "Dockerfile").read_text(), flags=re.MULTILINE)
    assert f"torch=={torch}" in (ROOT / "constraints.txt").read_text().split()


def test_what_it_copies_is_in_the_context():
    copied = " ".join(re.findall(r"^COPY (.*) \S+$", (ROOT / "Dockerfile").read_text(), flags=re.MULTILINE)).split()
    sent = re.findall(r"^!(.*)$", (ROOT / ".dockerignore").read_text(), flags=re.MULTILINE)
    assert copied
    assert set(copied) <= set(sent)
    assert all((ROOT / name).exists() for name in copied)
