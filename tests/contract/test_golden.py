"""Promises of golden.py, by which the bits of two trees are compared."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = [pytest.mark.timeout(120), pytest.mark.long]


def test_the_same_tree_has_the_same_bits_and_a_changed_one_is_named(tmp_path):
    file = tmp_path / "bits.json"
    command = [sys.executable, Path(__file__).with_name("golden.py"), file, "--only", "exact 2: two losses in"]

    def run():
        return subprocess.run(list(map(str, command)), capture_output=True, text=True, timeout=100, check=False)

    assert run().returncode == 0
    bits = json.loads(file.read_text())
    assert [len(ranks) for ranks in bits.values()] == [2]
    assert run().returncode == 0
    [name] = bits
    bits[name][1] = "of another tree"
    file.write_text(json.dumps(bits))
    changed = run()
    assert changed.returncode == 1
    assert name in changed.stdout
