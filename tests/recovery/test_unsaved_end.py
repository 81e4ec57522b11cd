"""A run whose end cannot be saved has trained to its end, and does not end with status 0: that is said last."""

import subprocess
import sys
import textwrap

import pytest
from laboratory import PLAIN

from lockstep.base.stopping import UNSAVED_END_STATUS
from lockstep.state.checkpoint.manifest import verify
from lockstep.state.checkpoint.parts import weights_files
from lockstep.state.checkpoint.weights import load_weights

pytestmark = [pytest.mark.timeout(90), pytest.mark.long]

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
if "fail" in sys.argv:
    sys.exit(5)
"""


@pytest.mark.parametrize("nproc", [1, 2])
def test_the_last_checkpoint_is_lost_and_the_status_says_so_after_everything_else(lab, undisturbed, nproc):
    fault = {"at": "save", "number": 3, "rank": 0, "what": "fail", "times": 50}
    ended = lab.run(PLAIN, nproc=nproc, fault=fault, checkpoint_every=5)
    assert (ended.status, ended.words) == (UNSAVED_END_STATUS, undisturbed()), ended
    assert str(UNSAVED_END_STATUS) in ended.err.splitlines()[-1], ended
    assert "Traceback" not in ended.err, ended
    again = lab.run(PLAIN, nproc=nproc, checkpoint_every=5)
    assert (again.status, again.words) == (0, undisturbed()), again


@pytest.mark.parametrize(
    ("what", "closes", "strategy"),
    [("the best weights", False, "exact"), ("the best weights", False, "fsdp"), ("the last checkpoint", True, "exact")],
)
def test_whatever_is_to_be_saved_at_the_end(lab, what, closes, strategy):
    words, every = (["best"], "off") if what == "the best weights" else ([], 100)
    words += ["close"] if closes else []
    ended = lab.run(BROKEN, *words, nproc=2, checkpoint_every=every, strategy=strategy)
    assert ended.status == UNSAVED_END_STATUS, ended
    assert ("still here" in ended.out) == closes, ended
    assert ended.out.count("the script's own exit handler") == 2, ended
    assert "Traceback" not in ended.err, ended


BEST = """
import torch, lockstep
from striking import arm
team = lockstep.join()
arm(team)
model = torch.nn.Linear(4, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
loader = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(torch.randn(40, 4)), 8)
model, optimizer, loader = team.prepare(model, optimizer, loader)
for batch in loader:
    for (x,) in batch.shards:
        team.backward(model(x).square().mean())
    optimizer.step()
    optimizer.zero_grad()
    team.best(-team.step)  # the first
"""


@pytest.mark.parametrize("every", ["off", 2])
def test_where_one_rank_could_not_write_its_part_of_the_best_weights_all_write_theirs_again(lab, every):
    fault = {"at": "save", "what": "fail", "rank": 1, "number": 1, "times": 1}
    ended = lab.run(BEST, nproc=2, fault=fault, checkpoint_every=every, strategy="fsdp")
    assert (ended.status, "could not write the best weights" in ended.err) == (0, True), ended
    files = verify(lab.run_dir / "best").files
    assert weights_files("model.safetensors", files) == ["model.rank-0.safetensors", "model.rank-1.safetensors"]
    assert load_weights(lab.run_dir / "best")["weight"].shape == (2, 4)


def test_where_nothing_is_to_be_saved_nothing_is_missed(lab):
    ended = lab.run(BROKEN, nproc=1, checkpoint_every="off")
    assert ended.status == 0, ended


def test_a_script_that_fails_has_its_own_status(lab):
    assert lab.run(BROKEN, "close", "fail", nproc=1, checkpoint_every=100).status == 5


def test_without_a_launcher_the_process_itself_says_it_last(tmp_path):
    (tmp_path / "script.py").write_text(textwrap.dedent(BROKEN))
    done = subprocess.run([sys.executable, "script.py"], cwd=tmp_path, capture_output=True, text=True, timeout=80)
    assert done.returncode == UNSAVED_END_STATUS, done
    assert str(UNSAVED_END_STATUS) in done.stderr.splitlines()[-1], done
    assert "the script's own exit handler" in done.stdout, done


def test_a_function_that_was_launched_returns_and_the_status_is_that_of_its_caller(tmp_path):
    body = textwrap.indent(BROKEN.replace("import atexit, shutil, sys, torch, lockstep\n", ""), "    ")
    (tmp_path / "script.py").write_text(
        "import atexit, shutil, sys, torch, lockstep\n"
        f"def train():\n{body}\n    return team.step\n"
        "if __name__ == '__main__':\n    print('steps', lockstep.launch(train, nproc=2))\n"
    )
    done = subprocess.run([sys.executable, "script.py", "close"], cwd=tmp_path, capture_output=True, text=True)
    assert (done.returncode, "steps [5, 5]" in done.stdout) == (UNSAVED_END_STATUS, True), done


def test_every_rank_names_the_checkpoint_that_stays(lab):
    fault = {"at": "save", "what": "fail", "rank": 1, "number": 2, "times": 1}
    ended = lab.run(PLAIN, nproc=2, fault=fault, checkpoint_every=5)
    said = [line for line in ended.err.splitlines() if "could not write the checkpoint" in line]
    assert len(said) == 2, ended
    assert all("the one of step 5 stays the newest" in line for line in said), ended
