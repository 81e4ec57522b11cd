"""The environment of a trial: of one machine, wherever the command runs."""

import os
import subprocess
import sys

import pytest

TRAIN = """
import lockstep, torch
team = lockstep.join(shards=2, progress="off", checkpoint_every="off")
model, data = torch.nn.Linear(1, 1), torch.utils.data.DataLoader(torch.ones(8, 1), 4)
optimizer = torch.optim.SGD(model.parameters(), 0.1)
model, optimizer, data = team.prepare(model, optimizer, data)
for epoch in team.epochs(1):
    for batch in data:
        for x in batch.shards:
            loss = model(x).square().mean()
            team.backward(loss)
            batch.add(loss=loss)
        optimizer.step()
        optimizer.zero_grad()
"""


@pytest.mark.long
def test_a_command_in_a_pod_of_several_makes_its_trials_there_alone(tmp_path):
    (tmp_path / "train.py").write_text(TRAIN)
    pod = {"PET_NNODES": "2", "PET_NODE_RANK": "1", "PET_MASTER_ADDR": "pod-0", "PET_MASTER_PORT": "29500"}
    options = ["--nproc", "1,2", "--launchers", "local", "--no-resume", "--no-one-device"]
    command = [sys.executable, "-m", "lockstep._cli.main", "verify", *options, "train.py"]
    ended = subprocess.run(
        command,
        cwd=tmp_path,
        env={**os.environ, **pod},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=100,
    )
    assert ended.returncode == 0, ended.stdout + ended.stderr
