"""A run whose end fails as the process exits."""

import psutil
import pytest

pytestmark = pytest.mark.timeout(60)

SCRIPT = """
import multiprocessing, os, time
import lockstep, torch

class Broken:
    def state_dict(self):
        if has_finished:
            raise RuntimeError("no state")
        return {}
    def load_state_dict(self, state):
        pass

def work():
    os.closerange(0, 3)  # whoever reads them does not wait for this process
    time.sleep(60)

has_finished = False
team = lockstep.join(shards=2, run_dir="run")
model, loader = team.prepare(torch.nn.Linear(1, 1), torch.utils.data.DataLoader(torch.ones(4, 1), 2))
team.register("broken", Broken())
for batch in loader:
    for inputs in batch.shards:
        team.backward(model(inputs).mean())
worker = multiprocessing.get_context("fork").Process(target=work, daemon=True)
worker.start()
print("worker", worker.pid, flush=True)
has_finished = True
"""


def test_its_status_is_1_and_it_leaves_no_loader_worker_behind(python_here, tmp_path):
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    done = python_here(script)
    assert done.returncode == 1, done.stderr
    assert "no state" in done.stderr
    [pid] = [int(line.split()[1]) for line in done.stdout.splitlines() if line.startswith("worker ")]
    assert ended(pid)


def ended(pid):
    """Whether a process has ended, perhaps a moment ago."""
    try:
        psutil.Process(pid).wait(1)
    except psutil.NoSuchProcess:
        return True
    except psutil.TimeoutExpired:
        return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    return True
