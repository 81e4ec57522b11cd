"""A copy of the working tree, in which faults are planted."""

import contextlib
import os
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from pathlib import Path

from faults import HERE, SOURCE, Fault


def copy_tree(root: Path, copy: Path) -> None:
    """Copies the files that git does not ignore, with their times: compiled files stay valid."""
    command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    listed = subprocess.run(command, cwd=root, stdout=subprocess.PIPE, text=True, check=True).stdout
    for name in filter(None, listed.split("\0")):
        source, target = root / name, copy / name
        if os.path.lexists(source):  # otherwise deleted, but not yet from git's index
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(source, target, follow_symlinks=False)


def environment(copy: Path) -> dict[str, str]:
    """Returns the variables of a pytest that imports lockstep from this copy, and ``outcomes``.

    Texts hash as in a fork server, which may be a fork of the process that has these variables.
    """
    path = os.pathsep.join([str(copy / "src"), str(HERE)])
    return {**os.environ, "PYTHONPATH": path, "OMP_WAIT_POLICY": "passive", "PYTHONHASHSEED": "0"}


@contextlib.contextmanager
def planted(copy: Path, faults: Sequence[Fault], number: int) -> Iterator[None]:
    """Plants faults of different files in a copy, until the end of the block.

    Python compares the times of files, in seconds, to know whether what it compiled is still valid:
    each number has a separate one.
    """
    with contextlib.ExitStack() as stack:
        for fault in faults:
            file = copy / SOURCE / fault.file
            text, times = file.read_text(), file.stat()
            file_with_fault = fault.planted_in(text)
            stack.callback(_write, file, text, times.st_mtime_ns)
            _write(file, file_with_fault, times.st_mtime_ns + (1 + number) * 10**9)
        yield


def _write(file: Path, text: str, time_ns: int) -> None:
    file.write_text(text)
    os.utime(file, ns=(time_ns, time_ns))
