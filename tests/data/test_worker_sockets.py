"""Loader workers hand batches over through sockets among the temporary files: a path that is too
long for that is refused."""

import multiprocessing.util
import tempfile
from pathlib import Path

import pytest
import torch
from torch.utils.data import DataLoader

from lockstep._base.errors import ConfigError
from lockstep._data.fetch import set_workers

pytestmark = pytest.mark.timeout(60)


def reads(length, strategy):
    """What a loader with one worker gives where the path of temporary files has this length, or the
    error that refuses it."""
    torch.multiprocessing.set_sharing_strategy(strategy)
    loader = DataLoader(torch.arange(4.0), batch_size=2, num_workers=1)
    with tempfile.TemporaryDirectory(dir="/tmp", ignore_cleanup_errors=True) as here:
        path = Path(here, "x" * (length - len(here) - 1))
        path.mkdir()
        tempfile.tempdir = str(path)
        try:
            set_workers(loader, None)
        except ConfigError as error:
            set_workers(loader, 0)  # what needs no socket is not refused
            return str(error)
        return [batch.tolist() for batch in loader]


@pytest.mark.parametrize(("strategy", "longest"), [("file_descriptor", 75), ("file_system", 73)])
def test_the_longest_path_that_is_not_refused_serves_for_batches(crew, strategy, longest):
    if hasattr(multiprocessing.util, "_get_base_temp_dir"):
        pytest.skip("this Python makes its sockets elsewhere if the path is long")
    assert crew(1, reads, longest, strategy) == [[[0.0, 1.0], [2.0, 3.0]]]
    [refused] = crew(1, reads, longest + 1, strategy)
    assert "TMPDIR" in refused
    assert f"at most {longest} characters" in refused
