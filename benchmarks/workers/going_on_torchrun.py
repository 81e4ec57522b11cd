"""The same as ``going_on_lockstep.py``, by hand for torchrun: ``going_on_torchrun.py NOTES SIZE
CHECKPOINT EVERY [TIMEOUT_S]``.

Each process has a separate batch, as in PyTorch's tutorials: with fewer processes a step
has fewer samples."""

import time

began_s = time.time()

import datetime  # noqa: E402
import os  # noqa: E402
import sys  # noqa: E402
from pathlib import Path  # noqa: E402

import torch  # noqa: E402
import torch.distributed as dist  # noqa: E402
from going_on import SEQUENCES, STEPS_OF_EPOCH, Notes, make_data  # noqa: E402
from torch import nn  # noqa: E402
from torch.utils.data import DataLoader  # noqa: E402
from tree import make_model  # noqa: E402

torch.set_num_threads(1)
rank, world_size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
# Under a name for each start: torchrun keeps one store for all, and Gloo would find the addresses
# of the killed in it.
agents = dist.TCPStore(os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]), world_size, is_master=False)
store = dist.PrefixStore(os.environ["TORCHELASTIC_RESTART_COUNT"], agents)
# None: Gloo's own, 30 minutes
timeout = datetime.timedelta(seconds=float(sys.argv[5])) if len(sys.argv) > 5 else None
dist.init_process_group("gloo", store=store, rank=rank, world_size=world_size, timeout=timeout)
notes = Notes(Path(sys.argv[1]))
notes.write("began", rank, began_s)
if rank == 0:
    notes.write("met", 0)
path, every = Path(sys.argv[3]), int(sys.argv[4])
data = make_data(world_size)
plain, optimizer = make_model(sys.argv[2])
step = 0
if path.exists():
    state = torch.load(path, weights_only=True)
    plain.load_state_dict(state["model"])
    optimizer.load_state_dict(state["optimizer"])
    step = state["step"]
    del state
model = nn.parallel.DistributedDataParallel(plain)
criterion = nn.CrossEntropyLoss()
is_first = rank == 0
while True:
    epoch, done = divmod(step, STEPS_OF_EPOCH)
    order = torch.randperm(len(data), generator=torch.Generator().manual_seed(epoch))
    # what was done is not even fetched
    own = order.reshape(STEPS_OF_EPOCH, world_size, SEQUENCES)[done:, rank]
    for tokens, targets in DataLoader(data, batch_sampler=own.tolist()):
        if is_first:
            notes.write("ready", step)
            is_first = False
        loss = criterion(model(tokens), targets)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        step += 1
        if rank == 0:
            notes.write("step", step)
        if step % every == 0 and rank == 0:
            unfinished = path.with_suffix(".new")
            torch.save({"model": plain.state_dict(), "optimizer": optimizer.state_dict(), "step": step}, unfinished)
            os.replace(unfinished, path)  # noqa: PTH105
