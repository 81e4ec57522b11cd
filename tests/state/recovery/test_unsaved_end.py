"""A run whose end cannot be saved has trained to its end, and does not end with status 0: that is
said last."""

import subprocess
import sys

import pytest
from laboratory import PLAIN

from lockstep._base.stopping import UNSAVED_END_STATUS

pytestmark = pytest.mark.timeout(90)

BROKEN = """
import atexit, shutil, sys, torch, lockstep
atexit.register(lambda: print("the script's own exit handler"))
team = lockstep.join()
model = torch.nn.Linear(4, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
loader = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(torch.randn(40, 4)), 8)
model, optimizer, loader = team.prepare(model, optimizer, loader)
for epoch in team.epochs(1):
    for batch in loader:
        for (x,) in batch.shards:
            team.backward(model(x).square().mean())
        optimizer.step()
        optimizer.zero_grad()
    if team.is_main:
        shutil.rmtree(team.run_dir / "checkpoints", ignore_errors=True)
        (team.run_dir / "checkpoints").write_text("no directory")
    if "best" in sys.argv:
        team.best(0.5)
if "close" in sys.argv:
    team.close()
    print("still here")
"""


def test_the_last_checkpoint_is_lost_and_the_status_says_so_after_everything_else(lab, undisturbed):
    fault = {"at": "save", "number": 3, "rank": 0, "what": "fail", "times": 50}
    ended = lab.run(PLAIN, nproc=2, fault=fault, checkpoint_every=5)
    assert (ended.status, ended.words) == (UNSAVED_END_STATUS, undisturbed()), ended
    assert str(UNSAVED_END_STATUS) in ended.err.splitlines()[-1], ended
    assert "Traceback" not in ended.err, ended
    again = lab.run(PLAIN, nproc=1, checkpoint_every=5)
    assert (again.status, again.words) == (0, undisturbed()), again


@pytest.mark.parametrize(
    ("what", "closes", "strategy"),
    [("the best weights", False, "fsdp"), ("the last checkpoint", True, "exact")],
)
def test_whatever_is_to_be_saved_at_the_end(lab, what, closes, strategy):
    words, every = (["best"], "off") if what == "the best weights" else ([], 100)
    words += ["close"] if closes else []
    ended = lab.run(BROKEN, *words, nproc=2, checkpoint_every=every, strategy=strategy)
    assert ended.status == UNSAVED_END_STATUS, ended
    assert ("still here" in ended.out) == closes, ended
    assert ended.out.count("the script's own exit handler") == 2, ended
    assert "Traceback" not in ended.err, ended


def test_without_a_launcher_the_process_itself_says_it_last(tmp_path):
    (tmp_path / "script.py").write_text(BROKEN)
    done = subprocess.run([sys.executable, "script.py"], cwd=tmp_path, capture_output=True, text=True, timeout=80)
    assert done.returncode == UNSAVED_END_STATUS, done
    assert str(UNSAVED_END_STATUS) in done.stderr.splitlines()[-1], done
    assert "the script's own exit handler" in done.stdout, done
