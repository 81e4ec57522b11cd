"""Whether loader workers can hand batches over, for which PyTorch and Python make sockets where
temporary files are."""

from __future__ import annotations

import tempfile
from multiprocessing.util import get_temp_dir

import torch.multiprocessing

from lockstep._base.errors import ConfigError

_LONGEST = 107
"""Characters of a socket's path, in Linux."""
_OF_PYTHON = len("/listener-xxxxxxxx")
"""What Python adds to its own directory there: with every start method."""
_OF_MANAGER = len("/torch-shm-dir-xxxxxx/manager.sock")
"""What the process adds that serves the sharing strategy ``file_system``."""
_SURELY_SHORT = 40


def check_room_for_sockets(num_workers: int) -> None:
    """Check that the path of the directory for temporary files is short enough for sockets in it.

    Otherwise the thread that hands a batch over would fail, and the batch would be waited for
    without end.

    Raises:
        ConfigError: it is not.
    """
    directory = tempfile.gettempdir()
    if len(directory) <= _SURELY_SHORT:
        return
    # some versions of Python make it elsewhere if the path is long
    path = f"{get_temp_dir()}{'x' * _OF_PYTHON}"
    if torch.multiprocessing.get_sharing_strategy() == "file_system":  # type: ignore[no-untyped-call]
        path = max(path, f"{directory}{'x' * _OF_MANAGER}", key=len)
    if len(path) > _LONGEST:
        most = len(directory) - (len(path) - _LONGEST)
        raise ConfigError(
            f"this loader has num_workers={num_workers}, and the directory for temporary files, {directory}, has a path of "
            f"{len(directory)} characters: loader workers hand batches over through sockets in it, whose paths would be too "
            f"long, and the training would wait for ever. Set TMPDIR to a directory of at most {most} characters, such as /tmp"
        )
