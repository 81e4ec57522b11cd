"""A rank that stores slowly is named, with the call and its line, while the run goes on: in either form of script."""

import re
import textwrap

import pytest

pytestmark = [pytest.mark.long, pytest.mark.timeout(240)]

SAVES = """
    import os, shutil, sys, time, torch
    from pathlib import Path

    class SlowFile:
        def __init__(self, path): self.file = open(path, "wb")
        def write(self, data):
            time.sleep(0.1)
            return self.file.write(data)
        def flush(self): self.file.flush()

    def slow(real):
        return lambda *args: (time.sleep(3), real(*args))[1]

    os.fsync, shutil.copy = slow(os.fsync), slow(shutil.copy)
    Path("source").write_bytes(b"x")

    def save(model, rank):
        if sys.argv[1] == "fsync":
            with open(f"state-{rank}", "wb") as file:
                file.write(b"x")
                os.fsync(file.fileno())
        if sys.argv[1] == "copy":
            shutil.copy("source", f"copy-{rank}")
        if sys.argv[1] == "save":
            torch.save(model.state_dict(), SlowFile(f"state-{rank}"))
"""
UNCHANGED = """
    import saves, time, torch, torch.distributed as dist
    dist.init_process_group("gloo")
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(4, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(1, 61):
        time.sleep(0.02)
        model(torch.ones(8, 4)).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
        if step % 10 == 0 and dist.get_rank() == 1:
            saves.save(model, 1)
    dist.barrier()
"""
OWN = """
    import saves, time, torch, lockstep
    team = lockstep.join(shards=2)
    model = torch.nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    data = torch.utils.data.TensorDataset(torch.ones(480, 4))
    model, optimizer, loader = team.prepare(model, optimizer, torch.utils.data.DataLoader(data, 8))
    for batch in loader:
        for (x,) in batch.shards:
            team.backward(model(x).mean())
        optimizer.step()
        optimizer.zero_grad()
        time.sleep(0.02)
        if team.step % 10 == 0 and team.rank == 1:
            saves.save(model, 1)
"""


@pytest.mark.parametrize(
    ("form", "how", "call"),
    [
        (UNCHANGED, "fsync", "os.fsync"),
        pytest.param(UNCHANGED, "copy", "shutil.copy", marks=pytest.mark.longest),
        pytest.param(UNCHANGED, "save", "torch.save", marks=pytest.mark.longest),
        (OWN, "fsync", "os.fsync"),
    ],
)
def test_the_rank_that_stores_slowly_is_named_once_with_the_call_and_its_line(start_launcher, tmp_path, form, how, call):
    (tmp_path / "saves.py").write_text(textwrap.dedent(SAVES))
    (tmp_path / "train.py").write_text(textwrap.dedent(form))
    for _ in range(3):  # where others take the cores, a brief run may show too little of the time that is lost
        launcher = start_launcher("--nproc", "2", "train.py", how)
        _, err = launcher.communicate(timeout=200)
        assert launcher.returncode == 0, err
        if lines := [line for line in err.splitlines() if "slowly" in line]:
            break
    (line,) = lines
    assert re.search(rf"rank 1 on \S+ writes slowly: \S+ s of each \S+ s, at \S+saves.py:\d+ in save \({call}\)", line)
