"""docs/replay.md, diff.md and audit.md: their commands run as written, one after another, and print
what the pages show but for last digits."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

PAGES = [Path(__file__).parents[2] / "docs" / f"{name}.md" for name in ("replay", "diff", "audit")]
PAGE = "\n".join(page.read_text() for page in PAGES)
COMMANDS = [
    line[2:]
    for block in re.findall(r"```console walk\n(.*?)```", PAGE, flags=re.DOTALL)
    for line in block.splitlines()
    if line.startswith("$ ")
]
SHOWN = re.findall(r"```text\n(.*?)```", PAGE, flags=re.DOTALL)


def plain(text):
    """Without what depends on the machine: directories, and the digits of what was computed."""
    text = re.sub(r"/\S+/", "", text)
    return [re.sub(r"\d+\.\d+(e[+-]\d+)?|\b\d{6,}\b", "N", line).strip() for line in text.splitlines()]


def is_cut(line, said):
    return line.endswith("...") and any(whole.startswith(line.removesuffix("...")) for whole in said)


@pytest.mark.long
@pytest.mark.timeout(150)
@pytest.mark.longest
def test_the_walk_from_a_spike_to_its_sample_runs_as_written(tmp_path):
    (tmp_path / "spiky.py").write_text(re.search(r"```python\n(# spiky.py\n.*?)```", PAGE, flags=re.DOTALL)[1])
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    said = []
    for command in COMMANDS:
        done = subprocess.run(
            command,
            shell=True,
            cwd=tmp_path,
            env={**os.environ, "PATH": path, "OMP_NUM_THREADS": "1"},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=600,
        )
        assert done.returncode == 0, f"{command}\n{done.stdout}{done.stderr}"
        said += plain(done.stdout + done.stderr)
    assert len(SHOWN) == 2
    shown = [line for block in SHOWN for line in plain(block)]
    # A line that ends with an ellipsis is the beginning of one.
    missing = [line for line in shown if line not in said and not is_cut(line, said)]
    assert missing == [], "\n".join(said)
    assert any(re.match(r"to blame .*: sample 2024 ", line) for line in said)
