"""The script of the page on resumable loaders: killed under torchrun, resumed on other numbers of
processes, one result."""

import re
import subprocess
import sys
from pathlib import Path

import pytest
from warm import run_here

__all__ = ["run_here"]

PAGE = Path(__file__).parents[2] / "docs" / "how-to" / "resumable-loader.md"
SCRIPT, EVALUATION = (
    re.search(rf'```python title="{name}"\n(.*?)```', PAGE.read_text(), re.DOTALL)[1]
    for name in ("train_ddp.py", "evaluate_ddp.py")
)

pytestmark = [pytest.mark.timeout(150), pytest.mark.long]


def killed_behind(step):
    return SCRIPT.replace("        step += 1\n", f"        step += 1\n        step < {step} or os.kill(os.getpid(), 9)\n")


def losses(text):
    return {int(epoch): float(loss) for epoch, loss in re.findall(r"^epoch (\d): loss ([\d.]+)$", text, re.MULTILINE)}


def test_killed_under_torchrun_and_resumed_on_other_numbers_of_processes_it_has_the_losses_of_one(run_here, tmp_path):
    """16 steps an epoch, of which the last has 40 samples."""
    whole = run_here(SCRIPT, "--nproc-per-node", "1")
    assert whole.returncode == 0, whole.stderr
    (tmp_path / "checkpoint.pt").unlink()
    (tmp_path / "train_ddp.py").write_text(killed_behind(28))
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", "train_ddp.py"]
    done = subprocess.run(torchrun, cwd=tmp_path, capture_output=True, text=True, timeout=120)
    assert done.returncode != 0
    assert "SIGKILL" in done.stderr, done.stderr
    found = losses(done.stdout)
    for nproc, text in (("3", killed_behind(52)), ("1", SCRIPT)):
        done = run_here(text, "--nproc-per-node", nproc)
        assert (done.returncode == 0) == (text is SCRIPT), done.stderr
        found |= losses(done.stdout)
    assert found == pytest.approx(losses(whole.stdout), abs=2e-4)
    assert sorted(found) == [1, 2, 3, 4, 5]


def test_an_evaluation_counts_each_sample_once_on_any_number_of_processes(run_here):
    """The last of the global batches has three samples."""
    said = []
    for nproc in ("1", "2", "4"):
        done = run_here(EVALUATION, "--nproc-per-node", nproc)
        assert done.returncode == 0, done.stderr
        said += re.findall(r"^(\d+) of 499 are correct$", done.stdout, re.MULTILINE)
    assert len(said) == 3
    assert len({*said}) == 1
