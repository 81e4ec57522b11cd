"""Runs ``pip install`` and prints a line for each large step, with the seconds since the start.

    python tools/install.py ARGUMENTS OF PIP INSTALL

pip installs into the environment of the Python that runs this. Alone, it prints either nothing for
minutes (``-q``) or a thousand lines.
"""

from __future__ import annotations

import queue
import re
import subprocess
import sys
import threading
import time
from collections.abc import Iterator

QUIET_S = 10.0
"""Seconds without a line after which one is printed all the same."""
LARGE_MB = 20.0
FETCHED = re.compile(r"\s*(Downloading|Using cached) (\S+?)-\d\S* \(([\d.]+) MB\)")


def step(line: str) -> str | None:
    """The step that a line of pip's output begins, if it is worth a line."""
    if found := FETCHED.match(line):
        what, package, size = found.groups()
        if float(size) < LARGE_MB:
            return None
        name = package.rpartition("/")[2]
        return f"{'downloading' if what == 'Downloading' else 'from the cache:'} {name} ({float(size):.0f} MB)"
    if line.startswith("Installing collected packages: "):
        return f"installing {line.count(',') + 1} packages"
    if line.startswith("Successfully installed "):
        return "installed"
    return None


def lines_of(pip: subprocess.Popen[str]) -> Iterator[str | None]:
    """What pip prints, line by line; None after ``QUIET_S`` without a line."""
    lines: queue.Queue[str | None] = queue.Queue()

    def read() -> None:
        assert pip.stdout is not None
        for line in pip.stdout:
            lines.put(line)
        lines.put(None)

    threading.Thread(target=read, daemon=True).start()
    while True:
        try:
            line = lines.get(timeout=QUIET_S)
        except queue.Empty:
            yield None
            continue
        if line is None:
            return
        yield line


def main(arguments: list[str]) -> int:
    """Install, and return pip's status."""
    start = time.monotonic()
    command = [sys.executable, "-m", "pip", "install", "--disable-pip-version-check", "--progress-bar", "off", *arguments]
    doing, tail = "choosing versions", [""]

    def report(text: str) -> None:
        print(f"{time.monotonic() - start:5.0f} s  {text}", flush=True)

    report(doing)
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as pip:
        for line in lines_of(pip):
            if line is None:
                report(f"{doing} ...")
                continue
            tail = [*tail[-19:], line]
            if new := step(line):
                doing = new
                report(doing)
    if pip.returncode:
        print("".join(tail), file=sys.stderr, end="")
    return pip.returncode


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
