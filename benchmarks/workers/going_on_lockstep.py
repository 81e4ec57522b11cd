"""A training that resumes after a kill: ``lockstep run --shards SHARDS going_on_lockstep.py
NOTES SIZE SHARDS``."""

import time

began_s = time.time()

import sys  # noqa: E402
from pathlib import Path  # noqa: E402

from going_on import SEQUENCES, Notes, make_data  # noqa: E402
from torch import nn  # noqa: E402
from torch.utils.data import DataLoader  # noqa: E402
from tree import make_model  # noqa: E402

import lockstep  # noqa: E402

team = lockstep.join(progress="off")
notes = Notes(Path(sys.argv[1]))
notes.write("began", team.rank, began_s)
if team.is_main:
    notes.write("met", 0)
num_shards = int(sys.argv[3])
loader = DataLoader(make_data(num_shards), num_shards * SEQUENCES, shuffle=True)
model, optimizer, loader = team.prepare(*make_model(sys.argv[2]), loader)
criterion = nn.CrossEntropyLoss()
is_first = team.is_main
for _epoch in team.epochs(1_000_000):
    for batch in loader:
        if is_first:
            notes.write("ready", team.step - 1)
            is_first = False
        for tokens, targets in batch.shards:
            loss = criterion(model(tokens), targets)
            team.backward(loss)
        optimizer.step()
        optimizer.zero_grad()
        if team.is_main:
            notes.write("step", team.step)
