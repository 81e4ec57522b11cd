"""A process that has no file descriptors left, and fails of that."""

import pytest

pytestmark = pytest.mark.timeout(60)

OPENS = """
import os, resource, sys, time
resource.setrlimit(resource.RLIMIT_NOFILE, (60, 60))
files = []
def open_all():
    while True:
        files.append(open(os.devnull))
def main():
    {join}
    if os.environ["RANK"] == "1":
        try:
            open_all()
        except Exception:
            raise
    else:
        time.sleep(50)  # until it is ended: the other one may still connect to it
main()
"""


@pytest.mark.parametrize("join", ["pass", "import torch.distributed as dist; dist.init_process_group('gloo')"])
def test_its_own_error_is_shown_with_its_lines_and_nothing_of_locksteps(run_here, join):
    ended = run_here(OPENS.format(join=join), "--nproc-per-node", 2)
    assert ended.returncode == 1
    assert "files.append(open(os.devnull))" in ended.stderr, "also what is read from files"
    assert "lockstep/" not in ended.stderr
    assert ended.stderr.count("Errno 24") == 1


def test_a_syntax_error_of_an_imported_module_is_shown_with_its_line(run_here, tmp_path):
    (tmp_path / "layers.py").write_text("WIDTH = 3\ndef make(:\n")
    ended = run_here("import layers", "--nproc-per-node", 2)
    assert ended.returncode == 1
    assert "def make(:" in ended.stderr
