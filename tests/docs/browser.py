"""A fixture: pages as a browser lays them out."""

import shutil
import subprocess

import pytest


@pytest.fixture
def browse(require, tmp_path):
    """``browse(address)``: what Chromium has made of a page after three seconds of its time, and
    what it has said."""
    require("chromium", None if shutil.which("chromium") else "there is no chromium here")

    def run(address):
        command = ["chromium", "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run"]
        command += ["--disable-background-networking", "--disable-component-update", "--disable-sync"]
        command += ["--allow-file-access-from-files", "--virtual-time-budget=3000", "--enable-logging=stderr"]
        command += [f"--user-data-dir={tmp_path}", "--dump-dom", address]
        done = subprocess.run(command, capture_output=True, text=True, timeout=120)
        assert done.returncode == 0, done.stderr
        return done

    return run
